"""Which replica gets a request: the policy that the Ray router and the simulation share."""

import random

import pytest

routing = pytest.importorskip("kvark.replicas.routing")
simulate = pytest.importorskip("kvark.replicas.simulate")
resources = pytest.importorskip("kvark.replicas.resources")


def prompt(seed, blocks):
    """A text of whole blocks that shares no block with those of other seeds."""
    return "".join(random.Random(seed).choices("abcdefgh ", k=blocks * routing.BLOCK))


def serve(policy, text, loads):
    """Sends a request to the best replica."""
    chosen = policy.order(text, loads)[0]
    policy.routed(text, chosen, answer_tokens=0)
    return chosen


def test_a_prompt_goes_where_its_prefix_is():
    policy = routing.PrefixPolicy()
    idle = {"a": 0, "b": 0, "c": 0}
    system = prompt(1, 20)
    home = serve(policy, system + prompt(2, 2), idle)
    assert all(serve(policy, system + prompt(n, 2), idle) == home for n in range(3, 9))
    # A busy home is worth some waiting, but not any.
    assert serve(policy, system + prompt(9, 2), idle | {home: 1}) == home
    assert serve(policy, system + prompt(10, 2), idle | {home: 50}) != home


def test_new_prefixes_fill_all_caches_evenly():
    policy = routing.PrefixPolicy()
    idle = {"a": 0, "b": 0, "c": 0, "d": 0}
    counts = dict.fromkeys(idle, 0)
    for n in range(100):
        counts[serve(policy, prompt(n, 10), idle)] += 1
    assert set(counts.values()) == {25}
    # A replica that comes later gets its share and not everything.
    for n in range(100, 150):
        chosen = serve(policy, prompt(n, 10), idle | {"e": 0})
        counts[chosen] = counts.get(chosen, 0) + 1
    assert counts["e"] == 10


def test_prefixes_are_forgotten_as_the_cache_forgets_them():
    index = routing.PrefixIndex(10)
    texts = [routing.block_hashes(prompt(n, 6)) for n in range(2)]
    for hashes in texts:
        index.add("a", hashes)
    # The older one is forgotten from its end.
    assert [index.matched("a", hashes) for hashes in texts] == [4, 6]
    index.retain(["b"])
    assert index.matched("a", texts[1]) == 0


def test_the_simulation_prefers_prefix_aware_routing():
    outcomes = simulate.compare(replicas=4, requests=600, blocks=1024, seed=3)
    aware, turns = outcomes["prefix-aware"], outcomes["round-robin"]
    assert aware.hit_rate > 1.4 * turns.hit_rate
    assert aware.median < turns.median


def test_a_replica_reserves_its_threads():
    for arguments, cpus, expected in [
        ([], None, 1.0),
        (["--threads", "4"], None, 4.0),
        (["-t", "2", "--threads=3"], None, 3.0),
        (["--threads", "4"], 0.5, 0.5),
        (["--threads", "many"], None, 1.0),
        (["--threads"], None, 1.0),
    ]:
        assert resources.cpus_of(arguments, cpus) == expected, arguments


def test_replicas_without_room_are_counted_before_they_wait():
    for replicas, cpus, nodes, missing in [
        (4, 1.0, [2.0], 2),
        (4, 0.5, [2.0], 0),
        (2, 4.0, [2.0], 2),
        (3, 2.0, [3.0, 3.0], 1),
        (10, 0.1, [1.0], 0),
        (8, 0.0, [1.0], 0),
    ]:
        assert resources.unplaced(replicas, cpus, nodes) == missing, (replicas, cpus, nodes)
    message = resources.shortage(4, 1.0, [2.0])
    assert "2 of 4 replicas" in message and "--cpus 0.5" in message and "--replicas 2" in message
    assert resources.shortage(2, 1.0, [2.0]) is None
