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
from .binding import IOBinding, OrtValue
from .errors import KvarkError
from .exporting import export
from .model import Model
from .ort_options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    ModelMetadata,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_device,
    get_version_string,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from .views import CellMap, MemoryPlan

__all__ = [
    "Branch",
    "Branches",
    "CellMap",
    "ExecutionMode",
    "ExecutionOrder",
    "Generation",
    "GenerationResult",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "KvarkError",
    "MemoryPlan",
    "Model",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "Prefix",
    "RunOptions",
    "ScatterDecoder",
    "Session",
    "SessionOptions",
    "__version__",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "errors",
    "export",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "iterate",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]
