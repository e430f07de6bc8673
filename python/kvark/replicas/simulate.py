"""Simulates routing in a cluster: hit rate and waiting time of prefix-aware routing against round-robin.

    python -m kvark.replicas.simulate --replicas 4 100 --requests 20000

A trace has agents that come and go (a system prompt from a small set, then turns that extend their own history) and single
questions. A replica computes a prompt's uncached part, then its answer, one request after the other.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .routing import BLOCK, PrefixIndex, PrefixPolicy, block_hashes


@dataclass(frozen=True)
class Request:
    """A request of a trace: when it comes, its prompt, and the characters of its answer."""

    time: float
    text: str
    answer: int


@dataclass
class Outcome:
    """The share of prompt blocks that were cached, and the times to the first token in seconds."""

    hit_rate: float
    median: float
    worst_percent: float


def trace(requests: int, rate: float, seed: int) -> Iterator[Request]:
    """Requests in the order of their arrival, `rate` a second."""
    choose = random.Random(seed)
    systems = [f"system {i} " + "".join(choose.choices("abcdefgh ", k=4096)) for i in range(24)]
    agents: list[str] = []
    time = 0.0
    for _ in range(requests):
        time += choose.expovariate(rate)
        if not agents or choose.random() < 0.1:
            agents.append(choose.choice(systems))
        place = choose.randrange(len(agents))
        agents[place] += "".join(choose.choices("abcdefgh ", k=choose.randrange(200, 1200)))
        yield Request(time, agents[place], choose.randrange(100, 800))
        if len(agents[place]) > 24_000 or choose.random() < 0.02:
            agents.pop(place)


def simulate(
    requests: list[Request], replicas: int, blocks: int, order: Callable[[str, dict[int, int]], list[int]],
    routed: Callable[[str, int, int], None],
) -> Outcome:
    """Runs a trace. A replica computes 4,000 characters of prompt and 200 of answer a second."""
    caches = PrefixIndex(blocks)
    free_at = [0.0] * replicas
    ends: list[list[float]] = [[] for _ in range(replicas)]
    waits, hits, total = [], 0, 0
    for request in requests:
        for queue in ends:
            queue[:] = [end for end in queue if end > request.time]
        chosen = order(request.text, {replica: len(ends[replica]) for replica in range(replicas)})[0]
        routed(request.text, chosen, request.answer // 4)
        hashes = block_hashes(request.text)
        cached = caches.matched(chosen, hashes)
        caches.add(chosen, hashes)
        hits += cached
        total += len(hashes)
        start = max(request.time, free_at[chosen])
        first = start + (len(request.text) - cached * BLOCK) / 4000
        free_at[chosen] = first + request.answer / 200
        ends[chosen].append(free_at[chosen])
        waits.append(first - request.time)
    waits.sort()
    return Outcome(hits / max(1, total), waits[len(waits) // 2], waits[int(len(waits) * 0.99)])


def compare(replicas: int, requests: int, blocks: int, seed: int) -> dict[str, Outcome]:
    """Prefix-aware routing and round-robin on the same trace."""
    # A request takes about 3.5 seconds uncached: the cluster is busy three quarters of the time at most.
    events = list(trace(requests, 0.22 * replicas, seed))
    policy = PrefixPolicy(blocks)
    turn = 0

    def next_in_turn(text: str, loads: dict[int, int]) -> list[int]:
        nonlocal turn
        turn += 1
        return [turn % len(loads)]

    return {
        "prefix-aware": simulate(events, replicas, blocks, policy.order, policy.routed),
        "round-robin": simulate(events, replicas, blocks, next_in_turn, lambda text, replica, tokens: None),
    }


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 32, 256])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=2048, help=f"blocks of {BLOCK} characters that a replica's cache holds")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print("| replicas | routing | cached blocks | first token, median | 99 % |")
    print("|--:|---|--:|--:|--:|")
    for replicas in args.replicas:
        for name, outcome in compare(replicas, args.requests, args.blocks, args.seed).items():
            print(f"| {replicas} | {name} | {outcome.hit_rate:.0%} | {outcome.median:.2f} s | {outcome.worst_percent:.2f} s |")


if __name__ == "__main__":
    main()
