"""kvark: a local LLM runtime whose KV cache can be swapped at run time.

    import kvark

    model = kvark.Model()                        # the default model, downloaded on first use
    print(model.chat("Name a river."))
    for piece in model.generate("The capital of France is", max_tokens=16):
        print(piece, end="")

`InferenceSession` runs any model on named arrays, with the interface of ONNX Runtime's class. `Model.session` is one
sequence with its cache, `Model.branches` several that fork and share cells.
"""

from . import errors
from ._aio import iterate
from ._kvark import (
    Branch,
    Branches,
    Generation,
    GenerationResult,
    InferenceSession,
    NodeArg,
    Prefix,
    ScatterDecoder,
    Session,
    __version__,
)
from .binding import GraphOptimizationLevel, IOBinding, SessionOptions, get_available_providers
from .errors import KvarkError
from .exporting import export
from .model import Model
from .views import CellMap, MemoryPlan

__all__ = [
    "Branch",
    "Branches",
    "CellMap",
    "Generation",
    "GenerationResult",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "KvarkError",
    "MemoryPlan",
    "Model",
    "NodeArg",
    "Prefix",
    "ScatterDecoder",
    "Session",
    "SessionOptions",
    "__version__",
    "errors",
    "export",
    "get_available_providers",
    "iterate",
]
