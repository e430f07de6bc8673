"""Caches for running a model with `kvcache::update_and_attend` in plain PyTorch: one sequence, rings, and cells.

Each stores the rows of a step and says which of the stored rows every query sees. They are the reference for the caches of
runtimes, so they are written for reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch


def positions(position: torch.Tensor) -> torch.Tensor:
    """The sequence position of each token, from `[T]` or `[T, n]`."""
    return position if position.dim() == 1 else position[:, 0]


class Cache(ABC):
    """The base of all caches. `windows` gives each layer's sliding window (0 or absent: everything is seen)."""

    def __init__(self, windows: Sequence[int] | None = None):
        self.windows = list(windows or [])

    def window(self, layer_id: int) -> int:
        """The sliding window of a layer; 0 without one."""
        return self.windows[layer_id] if layer_id < len(self.windows) else 0

    @abstractmethod
    def update(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
        """Stores the step's rows `[B, H, T, D]`; returns rows, and which of them each query sees as `[T, rows]`."""

    # ExecuTorch's registry calls its caches by this name and expects its own result type.
    def update_and_fetch(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
        from executorch.extension.llm.cache.reference_cache import AttendSpec, MaskKind

        k, v, seen = self.update(layer_id, k, v, position)
        return k, v, AttendSpec(MaskKind.EXPLICIT, seen)


class ContiguousCache(Cache):
    """One sequence: rows in the order of their positions, which may go back (a rewind) but not leave a gap."""

    def __init__(self, windows: Sequence[int] | None = None):
        super().__init__(windows)
        self.rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: The position of each layer's first row.
        self.first: dict[int, int] = {}

    def update(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
        """Stores the step's rows; returns all rows and which of them each query sees."""
        at = positions(position)
        start, count = int(at[0]), k.shape[2]
        if at.tolist() != list(range(start, start + count)):
            raise ValueError(f"positions {at.tolist()} are not one run; this cache holds one sequence")
        held, first = self.rows.get(layer_id), self.first.get(layer_id, 0)
        if held is not None:
            end = first + held[0].shape[2]
            if start > end:
                raise ValueError(f"position {start} leaves a gap behind the {end} rows of cache {layer_id}")
            self._check_rewind(layer_id, start, first)
            k, v = (torch.cat((old[:, :, : start - first], new), 2) for old, new in zip(held, (k, v)))
        elif start > 0:
            raise ValueError(f"cache {layer_id} is empty, and the first position is {start}")
        keys = torch.arange(first, first + k.shape[2])
        seen = keys[None, :] <= at[:, None]
        window = self.window(layer_id)
        if window > 0:
            seen &= keys[None, :] > at[:, None] - window
        self._keep(layer_id, k, v, first)
        return k, v, seen

    def _check_rewind(self, layer_id: int, start: int, first: int) -> None:
        """Raises `ValueError` if queries from `start` on would see rows before `first`."""
        lowest = max(0, start - self.window(layer_id) + 1)
        if first > lowest:
            raise ValueError(f"cache {layer_id} cannot go back to position {start}: its rows begin at {first}")

    def _keep(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, first: int) -> None:
        self.rows[layer_id], self.first[layer_id] = (k, v), first


class RingCache(ContiguousCache):
    """One sequence; a layer with a window keeps only its last `window - 1 + slack` rows.

    `slack` is the number of tokens by which a position may go back.
    """

    def __init__(self, windows: Sequence[int], slack: int = 0):
        super().__init__(windows)
        self.slack = slack

    def _keep(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, first: int) -> None:
        window = self.window(layer_id)
        released = max(0, k.shape[2] - (window - 1 + self.slack)) if window > 0 else 0
        super()._keep(layer_id, k[:, :, released:], v[:, :, released:], first + released)


class CellCache(Cache):
    """Many sequences over a pool of cells, one for each token, which sequences may share.

    `begin_step` says before each forward which sequence every token belongs to. A query sees the cells of its sequence that
    are not after it, and within the layer's window.
    """

    def __init__(self, windows: Sequence[int] | None = None, capacity: int | None = None):
        super().__init__(windows)
        self.capacity = capacity
        self.rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: Of each cell: the position of its token, and the sequences that it belongs to. A cell of none is free.
        self.position: list[int] = []
        self.owners: list[set[int]] = []
        self._sequences: list[int] | None = None
        self._cells: list[int] | None = None
        self._served: set[int] = set()

    def begin_step(self, sequences: Sequence[int]) -> None:
        """Declares the sequence of each of the next forward's tokens."""
        free = sum(not owners for owners in self.owners)
        if self.capacity is not None and len(sequences) > free + self.capacity - len(self.owners):
            raise ValueError(f"{len(sequences)} tokens do not fit: the cache has {self.capacity} cells")
        self._sequences, self._cells = list(sequences), None
        self._served.clear()

    def seq_cp(self, source: int, target: int, upto: int | None = None) -> None:
        """Shares the cells of a sequence, those before position `upto`, with another one."""
        for position, owners in zip(self.position, self.owners):
            if source in owners and (upto is None or position < upto):
                owners.add(target)

    def seq_rm(self, sequence: int, start: int = 0, end: int | None = None) -> None:
        """Removes positions of a sequence; cells that no other sequence has are free then."""
        for position, owners in zip(self.position, self.owners):
            if position >= start and (end is None or position < end):
                owners.discard(sequence)

    def seq_len(self, sequence: int) -> int:
        """The number of cells of a sequence."""
        return sum(sequence in owners for owners in self.owners)

    def update(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
        """Stores the step's rows in free cells; returns all cells and which of them each query sees."""
        at = positions(position).tolist()
        if self._sequences is None or layer_id in self._served:
            raise RuntimeError("begin_step must precede every forward")
        if len(at) != len(self._sequences):
            raise ValueError(f"begin_step declared {len(self._sequences)} tokens, the forward has {len(at)}")
        if self._cells is None:
            self._cells = [self._claim(p, sequence) for p, sequence in zip(at, self._sequences)]
        self._served.add(layer_id)
        stored = []
        for old, new in zip(self.rows.get(layer_id, (k, v)), (k, v)):
            pool = new.new_zeros(*new.shape[:2], len(self.owners), new.shape[3])
            if layer_id in self.rows:
                pool[:, :, : old.shape[2]] = old
            pool[:, :, self._cells] = new
            stored.append(pool)
        self.rows[layer_id] = (stored[0], stored[1])
        window = self.window(layer_id)
        seen = torch.tensor(
            [
                [
                    sequence in owners and p <= query and (window == 0 or p > query - window)
                    for p, owners in zip(self.position, self.owners)
                ]
                for query, sequence in zip(at, self._sequences)
            ]
        )
        return stored[0], stored[1], seen

    def _claim(self, position: int, sequence: int) -> int:
        """The first free cell, with a token in it."""
        for cell, owners in enumerate(self.owners):
            if not owners:
                break
        else:
            cell = len(self.owners)
            self.position.append(0)
            self.owners.append(set())
        self.position[cell] = position
        self.owners[cell].add(sequence)
        return cell
