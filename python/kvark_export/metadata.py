"""KV cache metadata of a model, in the two forms that kvark and ExecuTorch read."""

from __future__ import annotations

from typing import Sequence

SCHEMA_VERSION = 1


def write_kv_cache_metadata(metadata: dict, *, n_layers: int, n_kv_heads: int, head_dim: int) -> dict:
    """Adds the versioned `kv_cache.*` keys: caches of one size without windows."""
    for name, value in (("n_layers", n_layers), ("n_kv_heads", n_kv_heads), ("head_dim", head_dim)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, must be a positive integer")
    metadata.update(
        {
            "kv_cache.schema_version": SCHEMA_VERSION,
            "kv_cache.n_layers": n_layers,
            "kv_cache.n_kv_heads": n_kv_heads,
            "kv_cache.head_dim": head_dim,
        }
    )
    return metadata


def write_constant_methods(
    metadata: dict,
    *,
    kv_heads: Sequence[int],
    head_dims: Sequence[int],
    windows: Sequence[int],
    prefill_chunk: int,
    max_context: int,
) -> dict:
    """Adds ExecuTorch's constant methods: sizes and windows (0: none) for each cache."""
    if not len(kv_heads) == len(head_dims) == len(windows) > 0:
        raise ValueError(f"{len(kv_heads)} head counts, {len(head_dims)} head dims and {len(windows)} windows")
    metadata.update(
        {
            "get_n_caches": len(kv_heads),
            "get_kv_heads": list(kv_heads),
            "get_head_dims": list(head_dims),
            "get_windows": list(windows),
            "get_prefill_chunk_size": prefill_chunk,
            "get_max_ctx_len": max_context,
        }
    )
    return metadata


def cache_metadata(
    *, kv_heads: Sequence[int], head_dims: Sequence[int], windows: Sequence[int], prefill_chunk: int, max_context: int
) -> dict:
    """Both forms; `kv_cache.*` only if it can express the caches (one size, no window)."""
    metadata = write_constant_methods(
        {},
        kv_heads=kv_heads,
        head_dims=head_dims,
        windows=windows,
        prefill_chunk=prefill_chunk,
        max_context=max_context,
    )
    if len(set(kv_heads)) == len(set(head_dims)) == 1 and not any(windows):
        write_kv_cache_metadata(metadata, n_layers=len(kv_heads), n_kv_heads=kv_heads[0], head_dim=head_dims[0])
    return metadata
