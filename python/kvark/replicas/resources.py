"""How many cores a replica reserves, and whether a cluster has them. Needs no Ray."""

from __future__ import annotations

from collections.abc import Sequence


def option(arguments: Sequence[str], *names: str) -> str | None:
    """The last value of a flag of `kvark serve`, as `--flag value` or `--flag=value`."""
    found = None
    for index, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in names:
            found = value if equals else next(iter(arguments[index + 1 : index + 2]), None)
    return found


def cpus_of(arguments: Sequence[str], cpus: float | None) -> float:
    """The cores that Ray reserves for a replica: those that were asked for, or else its threads, or else one."""
    if cpus is not None:
        return cpus
    threads = option(arguments, "-t", "--threads")
    return float(threads) if threads is not None and threads.isdigit() and int(threads) > 0 else 1.0


def unplaced(replicas: int, cpus: float, nodes: Sequence[float]) -> int:
    """How many of `replicas` replicas have no room on nodes with these numbers of cores. A replica runs on one node."""
    if cpus <= 0:
        return 0
    # A sum of fractions of a core may miss a whole number by its last bit.
    room = sum(int(cores / cpus + 1e-9) for cores in nodes)
    return max(0, replicas - room)


def shortage(replicas: int, cpus: float, nodes: Sequence[float]) -> str | None:
    """What to say if not all replicas have room; nothing if they have."""
    missing = unplaced(replicas, cpus, nodes)
    if missing == 0:
        return None
    cores = sum(nodes)
    fraction = cores / replicas if len(nodes) == 1 else None
    hint = f"--cpus {fraction:.3g} lets all of them share the cores, " if fraction and fraction < cpus else ""
    return (
        f"{missing} of {replicas} replicas have no room: each reserves {cpus:g} cores, and the cluster has {cores:g}. "
        f"{hint}--replicas {replicas - missing} starts those that fit."
    )
