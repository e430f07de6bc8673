"""The op `kvcache::update_and_attend`: attention over a KV cache that the runtime provides.

ExecuTorch's own op is used when it is installed. Otherwise the identical schema is registered here, with a small
contiguous cache so that a model that calls it also runs in plain PyTorch:

    with contiguous_cache():
        logits = model(tokens, position)
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

import torch

try:
    from executorch.extension.llm.cache.update_and_attend import REGISTRY, update_and_attend

    FROM_EXECUTORCH = True
except ImportError:
    FROM_EXECUTORCH = False


class ContiguousCache:
    """One sequence: rows in the order of their positions, which may go back (a rewind) but not leave a gap.

    `windows` gives each layer's sliding window (0 or absent: everything is seen).
    """

    def __init__(self, windows: list[int] | None = None):
        self.windows = windows or []
        self.rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
        """Stores the step's rows; returns all rows and which of them each query sees."""
        at = positions(position)
        start, count = int(at[0]), k.shape[2]
        if at.tolist() != list(range(start, start + count)):
            raise ValueError(f"positions {at.tolist()} are not one run; a contiguous cache holds one sequence")
        held = self.rows.get(layer_id)
        if held is not None:
            if start > held[0].shape[2]:
                raise ValueError(f"position {start} leaves a gap behind the {held[0].shape[2]} rows of cache {layer_id}")
            k, v = (torch.cat((old[:, :, :start], new), 2) for old, new in zip(held, (k, v)))
        elif start > 0:
            raise ValueError(f"cache {layer_id} is empty, and the first position is {start}")
        self.rows[layer_id] = (k, v)
        keys = torch.arange(k.shape[2])
        seen = keys[None, :] <= at[:, None]
        window = self.windows[layer_id] if layer_id < len(self.windows) else 0
        if window > 0:
            seen &= keys[None, :] > at[:, None] - window
        return k, v, seen

    # ExecuTorch's registry calls its caches by this name and expects its own result type.
    def update_and_fetch(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
        from executorch.extension.llm.cache.reference_cache import AttendSpec, MaskKind

        k, v, seen = self.update(layer_id, k, v, position)
        return k, v, AttendSpec(MaskKind.EXPLICIT, seen)


def positions(position: torch.Tensor) -> torch.Tensor:
    """The sequence position of each token, from `[T]` or `[T, n]`."""
    return position if position.dim() == 1 else position[:, 0]


def attend(q, k, v, seen, scale: float, out_dtype: torch.dtype) -> torch.Tensor:
    """Attention over the rows that `seen [T, S]` lets each query see."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ v.float()).to(out_dtype)


if not FROM_EXECUTORCH:
    _active: list[ContiguousCache] = []

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
        if not _active:
            raise RuntimeError("update_and_attend without a cache: run the model inside `with contiguous_cache():`")
        k, v, seen = _active[-1].update(layer_id, k, v, position)
        return attend(q, k, v, seen, scale, out_dtype)

    @update_and_attend.register_fake
    def _(q, k, v, position, layer_id, scale, out_dtype):
        return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype)


@contextmanager
def contiguous_cache(windows: list[int] | None = None) -> Iterator[ContiguousCache]:
    """A fresh cache for the forwards inside the block."""
    cache = ContiguousCache(windows)
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
