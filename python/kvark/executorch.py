"""kvark's caches behind ExecuTorch's `kvcache::update_and_attend`.

    import kvark.executorch
    from executorch.extension.llm.cache.update_and_attend import REGISTRY

    cache = kvark.executorch.install("mine", "cells", config)      # config: ExecuTorch's CacheConfig
    cache.begin_step([0, 0, 1])
    with REGISTRY.active("mine"):
        program.module()(tokens, positions, rows)

kvark places the rows, stores them and says what each query sees; ExecuTorch's eager kernel attends over what it gets.
The classes have the methods of ExecuTorch's reference caches, and beyond them `rewind`, rings that really evict
(kind `ring`) and trees of candidates (kind `tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from executorch.extension.llm.cache.reference_cache import (
    MAX_SEQS,
    AttendSpec,
    CacheConfig,
    CacheSizing,
    MaskKind,
)
from executorch.extension.llm.cache.update_and_attend import REGISTRY

from ._kvark import EagerCache
from .errors import CacheError, InvalidArgumentError

__all__ = ["CellCache", "ContiguousCache", "RingCache", "TreeCache", "install"]


class _Cache:
    """What all kinds share: rows go to kvark as float32 and come back in the configured type."""

    _kind: str
    _ring: int | None = None

    def __init__(self, config: CacheConfig) -> None:
        if config.batch_size != 1:
            raise InvalidArgumentError("kvark's caches hold a batch of one: use cells for several sequences")
        self.config = config
        windows = [config.policy_for(layer).window or None for layer in range(config.n_layers)]
        layers = [(config.n_kv_heads, config.head_dim, config.head_dim, window) for window in windows]
        preallocate = config.sizing is CacheSizing.STATIC
        self._cache = EagerCache(self._kind, layers, config.capacity, ring=self._ring, preallocate=preallocate)
        self._masks: dict[int, torch.Tensor] = {}
        self._step: list[int] | None = None

    def can_extend(self, n: int = 1) -> bool:
        """Whether `n` more tokens fit."""
        return self._cache.can_extend(n)

    def reset(self) -> None:
        """Removes all tokens."""
        self._end_step()
        self._cache.clear()

    def rewind(self, length: int) -> None:
        """Removes all tokens after the first `length`."""
        self._end_step()
        self._cache.rewind(length)

    def _end_step(self) -> None:
        self._masks.clear()
        self._step = None

    def _fetch(
        self, layer_id: int, k: torch.Tensor, v: torch.Tensor, positions: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Stores rows and returns history and mask. Layers of one window get the same mask."""
        if positions != self._step:
            self._masks.clear()
        rows = [side[0].to(torch.float32).contiguous().numpy(force=True) for side in (k, v)]
        keys, values, seen, mask_class = self._cache.update_and_fetch(layer_id, rows[0], rows[1], positions)
        self._step = positions
        mask = self._masks.setdefault(mask_class, torch.from_numpy(seen).to(k.device))
        history = [torch.from_numpy(side).unsqueeze(0).to(k.device, self.config.dtype) for side in (keys, values)]
        return history[0], history[1], mask


def _flat_positions(position: torch.Tensor) -> list[int]:
    if position.shape[-1] != 1:
        raise NotImplementedError(f"one position per token is needed, got {position.shape[-1]}")
    return [int(p) for p in position.reshape(-1).tolist()]


class ContiguousCache(_Cache):
    """One sequence; layers with a window keep all rows and mask them."""

    _kind = "contiguous"

    def used(self, layer_id: int) -> int:
        """The number of tokens."""
        del layer_id
        return len(self._cache)

    def update_and_fetch(
        self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, AttendSpec]:
        """Stores this step's rows of a layer; returns the history and what each query sees of it."""
        keys, values, mask = self._fetch(layer_id, k, v, _flat_positions(position))
        queries, total = mask.shape
        if queries == 1 and bool(mask.all()):
            return keys, values, AttendSpec(kind=MaskKind.NONE)
        if queries == total and bool((mask == torch.ones_like(mask).tril()).all()):
            return keys, values, AttendSpec(kind=MaskKind.CAUSAL)
        return keys, values, AttendSpec(kind=MaskKind.EXPLICIT, mask=mask)


class RingCache(ContiguousCache):
    """One sequence; layers with a window keep only its rows and those that a step or rewind of `slack` tokens needs."""

    def __init__(self, config: CacheConfig, slack: int = 64) -> None:
        self._ring = slack
        super().__init__(config)


class TreeCache(ContiguousCache):
    """One sequence with a tree of candidates behind it: siblings do not see each other."""

    _kind = "tree"

    def propose(self, parents: Sequence[int | None]) -> None:
        """Declares candidates as the next step's tokens; each names its parent among the candidates, or None."""
        self._end_step()
        self._cache.propose(list(parents))

    def commit(self, path: Sequence[int]) -> None:
        """Commits a path of candidates and removes the others."""
        self._end_step()
        self._cache.accept(list(path))


class CellCache(_Cache):
    """Many sequences over one pool of cells. `begin_step` must precede every forward."""

    _kind = "cells"

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self._declared: list[int] | None = None
        self._served: set[int] = set()

    def free_cells(self) -> int:
        """Cells that hold no token."""
        return self._cache.capacity - len(self._cache)

    def seq_len(self, seq_id: int) -> int:
        """The number of tokens of a sequence."""
        return self._cache.seq_len(_checked(seq_id))

    def begin_step(self, seq_ids: Sequence[int]) -> None:
        """Declares the sequence of each token of the next forward."""
        if not seq_ids:
            raise InvalidArgumentError("a step carries at least one token")
        ids = [_checked(seq_id) for seq_id in seq_ids]
        self._end_step()
        self._cache.begin_step(ids)
        self._declared = ids
        self._served.clear()

    def seq_cp(self, src_id: int, dst_id: int, upto: int | None = None) -> None:
        """Makes dst_id share src_id's cells below position `upto`. Nothing is copied."""
        self._end_step()
        self._cache.seq_cp(_checked(src_id), _checked(dst_id), upto)

    def seq_rm(self, seq_id: int, p0: int = 0, p1: int | None = None) -> None:
        """Removes positions [p0, p1) from a sequence."""
        self._end_step()
        self._cache.seq_rm(_checked(seq_id), p0, p1)

    def reset(self) -> None:
        """Removes all tokens."""
        self._declared = None
        self._served.clear()
        super().reset()

    def update_and_fetch(
        self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, AttendSpec]:
        """Stores this step's rows of a layer; returns the pool's rows and what each query sees of them."""
        if layer_id in self._served:
            raise CacheError(f"layer {layer_id} served twice: begin_step must precede every forward", "StepPending")
        positions = _flat_positions(position)
        if self._step is None:
            declared, self._declared = self._declared, None
            if declared is None:
                raise CacheError("no step declared: begin_step must precede every forward", "NoStep")
            if len(declared) != len(positions):
                # A forward that fails consumes the declaration.
                with suppress(CacheError):
                    self._fetch(layer_id, k, v, positions)
                raise InvalidArgumentError(f"the step declares {len(declared)} tokens, the forward has {len(positions)}")
        keys, values, mask = self._fetch(layer_id, k, v, positions)
        self._served.add(layer_id)
        return keys, values, AttendSpec(kind=MaskKind.EXPLICIT, mask=mask)


def _checked(seq_id: int) -> int:
    if not 0 <= seq_id < MAX_SEQS:
        raise InvalidArgumentError(f"the sequence {seq_id} is outside [0, {MAX_SEQS})")
    return seq_id


_KINDS = {"contiguous": ContiguousCache, "ring": RingCache, "cells": CellCache, "tree": TreeCache}


def install(key: str, kind: str, config: CacheConfig) -> _Cache:
    """Installs one of kvark's caches (`contiguous`, `ring`, `cells` or `tree`) in ExecuTorch's registry."""
    if kind not in _KINDS:
        raise InvalidArgumentError(f"there is no cache kind {kind!r}; the kinds are {', '.join(_KINDS)}")
    cache: _Cache = _KINDS[kind](config)
    REGISTRY.install(key, cache)
    return cache
