"""The op `kvcache::update_and_attend`: attention over a KV cache that the runtime provides.

ExecuTorch's own op is used when it is installed. Otherwise the identical schema is registered here. A model that calls it
also runs in plain PyTorch, on one of the caches of `caches`:

    with contiguous_cache():
        logits = model(tokens, position)

The overload `update_and_attend.softcap` is kvark's: its further argument caps the scores, `cap * tanh(score / cap)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .caches import Cache, CellCache, ContiguousCache, RingCache

try:
    from executorch.extension.llm.cache.update_and_attend import REGISTRY, update_and_attend

    FROM_EXECUTORCH = True
except ImportError:
    FROM_EXECUTORCH = False

_active: list[Cache] = []


def fetch(layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
    """Stores a step's rows in the active cache; returns rows and which of them each query sees."""
    if not FROM_EXECUTORCH:
        if not _active:
            raise RuntimeError("update_and_attend without a cache: run the model inside `with contiguous_cache():`")
        return _active[-1].update(layer_id, k, v, position)
    cache: Any = REGISTRY.current()
    if isinstance(cache, Cache):
        return cache.update(layer_id, k, v, position)
    k_rows, v_rows, spec = cache.update_and_fetch(layer_id, k, v, position)
    seen = spec.mask
    if seen is None:
        seen = torch.ones(k.shape[2], k_rows.shape[2], dtype=torch.bool)
        seen = seen.tril() if spec.kind.value == "causal" else seen
    return k_rows, v_rows, seen


def attend(q, k, v, seen, scale: float, out_dtype: torch.dtype, softcap: float | None = None) -> torch.Tensor:
    """Attention over the rows that `seen [T, S]` lets each query see, in the type that is asked for."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ v.float()).to(out_dtype)


if not FROM_EXECUTORCH:

    @torch.library.custom_op("kvcache::update_and_attend", mutates_args=())
    def update_and_attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        position: torch.Tensor,
        layer_id: int,
        scale: float,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        """Stores keys and values `[B, Hkv, T, D]` in cache `layer_id`; attends `q [B, Hq, T, D]` over what is seen."""
        return attend(q, *fetch(layer_id, k, v, position), scale, out_dtype)

    @update_and_attend.register_fake
    def _(q, k, v, position, layer_id, scale, out_dtype):
        return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype)


_library = torch.library.Library("kvcache", "FRAGMENT")
_library.define(
    "update_and_attend.softcap(Tensor q, Tensor k, Tensor v, Tensor position, SymInt layer_id, float scale, "
    "ScalarType out_dtype, float softcap) -> Tensor"
)


@torch.library.impl(_library, "update_and_attend.softcap", "CompositeExplicitAutograd")
def _capped(q, k, v, position, layer_id, scale, out_dtype, softcap):
    return attend(q, *fetch(layer_id, k, v, position), scale, out_dtype, softcap)


@torch.library.register_fake("kvcache::update_and_attend.softcap", lib=_library)
def _(q, k, v, position, layer_id, scale, out_dtype, softcap):
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype)


@contextmanager
def active(cache: Cache) -> Iterator[Cache]:
    """Uses a cache for the forwards inside the block."""
    if FROM_EXECUTORCH:
        key = f"kvark-{id(cache)}"
        REGISTRY.install(key, cache)
        try:
            with REGISTRY.active(key):
                yield cache
        finally:
            REGISTRY.uninstall(key)
    else:
        _active.append(cache)
        try:
            yield cache
        finally:
            _active.remove(cache)


def contiguous_cache(windows: Sequence[int] | None = None):
    """A fresh cache of one sequence for the forwards inside the block."""
    return active(ContiguousCache(windows))


def ring_cache(windows: Sequence[int], slack: int = 0):
    """A fresh cache of one sequence whose windowed layers keep only the rows that they need."""
    return active(RingCache(windows, slack))


def cell_cache(windows: Sequence[int] | None = None, capacity: int | None = None):
    """A fresh cache of many sequences; call its `begin_step` before each forward."""
    return active(CellCache(windows, capacity))
