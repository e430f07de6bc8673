"""Exports PyTorch models to `.pt2` files that kvark runs without Python.

| to | use |
|---|---|
| export a Hugging Face folder or a GGUF file | `python -m kvark_export MODEL -o model.pt2` |
| export any module as it is | `export_module(module, args, path, dynamic_shapes=...)` |
| write a model against swappable KV caches | `torch.ops.kvcache.update_and_attend`, run it in `contiguous_cache()`, `ring_cache()` or `cell_cache()` |
| say what its caches are like | `write_kv_cache_metadata`, `cache_metadata` |
"""

from .archive import export_module, save
from .caches import CellCache, ContiguousCache, RingCache
from .metadata import cache_metadata, write_constant_methods, write_kv_cache_metadata
from .op import cell_cache, contiguous_cache, ring_cache, update_and_attend

__all__ = [
    "CellCache",
    "ContiguousCache",
    "RingCache",
    "cache_metadata",
    "cell_cache",
    "contiguous_cache",
    "export_module",
    "ring_cache",
    "save",
    "update_and_attend",
    "write_constant_methods",
    "write_kv_cache_metadata",
]
