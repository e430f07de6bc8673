"""Which replica gets a request: the one whose cache holds most of the prompt, unless it has too much to do.

Nothing here needs Ray: the router, the simulation and the tests share it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

#: Characters of a block. Prompts are compared block by block.
BLOCK = 128
#: Tokens of a block, about.
BLOCK_TOKENS = 32
#: What a request ahead costs the next one, of its own cost: a replica answers several requests together.
BATCHED = 0.7


def prompt_text(body: Mapping[str, Any]) -> str:
    """The text of a request that a cache could hold: what comes first, in the order of the template."""
    parts = [json.dumps(body.get("tools") or [], sort_keys=True)]
    for message in body.get("messages") or []:
        parts.append(f"{message.get('role')}:{message.get('content')}")
    for field in ("system", "input", "prompt"):
        if body.get(field):
            parts.append(str(body[field]))
    return "\n".join(parts)


def block_hashes(text: str) -> list[int]:
    """A hash for every whole block of a text, each of the text from its beginning to the end of the block."""
    hashes = []
    last = 0
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        last = hash((last, text[start : start + BLOCK]))
        hashes.append(last)
    return hashes


class PrefixIndex:
    """The blocks that each replica has computed, the least recently used ones forgotten first."""

    def __init__(self, blocks_per_replica: int) -> None:
        self._limit = blocks_per_replica
        self._blocks: dict[Hashable, OrderedDict[int, None]] = {}

    def matched(self, replica: Hashable, hashes: list[int]) -> int:
        """The number of leading blocks that the replica has."""
        held = self._blocks.get(replica) or OrderedDict[int, None]()
        return next((i for i, block in enumerate(hashes) if block not in held), len(hashes))

    def add(self, replica: Hashable, hashes: list[int]) -> None:
        """The replica computes these blocks."""
        held = self._blocks.setdefault(replica, OrderedDict())
        # The last block first, so that a prefix is forgotten from its end.
        for block in reversed(hashes):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._limit:
            held.popitem(last=False)

    def retain(self, replicas: Iterable[Hashable]) -> None:
        """Forgets all replicas but these."""
        alive = set(replicas)
        for replica in [replica for replica in self._blocks if replica not in alive]:
            del self._blocks[replica]


class PrefixPolicy:
    """Orders replicas for a request by what it would cost them, in blocks: those of the prompt that they do not hold, and the
    rest of the requests that they are answering already, each half of a mean request. So a long shared prefix is worth some
    waiting, and no replica gets everything. Among equals, the replica comes first that has computed least: new prefixes fill
    all caches evenly.
    """

    def __init__(self, blocks_per_replica: int = 4096) -> None:
        self.index = PrefixIndex(blocks_per_replica)
        self._mean_cost = 16.0
        self._computed: dict[Hashable, float] = {}

    def order(self, text: str, loads: Mapping[Any, int]) -> list[Any]:
        """The replicas, the best one first. `loads` has the number of requests that each one is answering."""
        self.index.retain(loads)
        least = min((self._computed[replica] for replica in loads if replica in self._computed), default=0.0)
        # A new replica is an equal of the one that has computed least: it need not catch up.
        self._computed = {replica: self._computed.get(replica, least) for replica in loads}
        hashes = block_hashes(text)

        def cost(replica: Any) -> tuple[float, float]:
            missing = len(hashes) - self.index.matched(replica, hashes)
            # Of the requests that it is answering, one is half done on average and the others wait.
            ahead = BATCHED * self._mean_cost * max(0.0, loads[replica] - 0.5)
            return missing + ahead, self._computed[replica]

        return sorted(loads, key=cost)

    def routed(self, text: str, replica: Hashable, answer_tokens: int = 64) -> None:
        """The replica answers the request with about this many tokens."""
        hashes = block_hashes(text)
        # An answer's token costs about as much as eight tokens of a prompt, and a block has about 32.
        cost = len(hashes) - self.index.matched(replica, hashes) + answer_tokens / 4
        self._mean_cost += (cost - self._mean_cost) / 32
        self._computed[replica] = self._computed.get(replica, 0.0) + cost
        self.index.add(replica, hashes)
