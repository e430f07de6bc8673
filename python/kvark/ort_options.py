"""Options and facts that users of ONNX Runtime write and read beside `InferenceSession`."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ._kvark import __version__, has_cuda


class GraphOptimizationLevel(IntEnum):
    """Levels of ONNX Runtime. kvark runs all its passes at every level; `InferenceSession(passes=…)` selects them."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Modes of ONNX Runtime. kvark runs nodes in order, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Orders of ONNX Runtime. kvark's order is its own."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions:
    """Options of a session. `intra_op_num_threads` is the number of threads, 0 for one for each core; others are ignored."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self._entries: dict[str, str] = {}

    def add_session_config_entry(self, config_key: str, config_value: str) -> None:
        """Keeps an entry, which is ignored."""
        self._entries[config_key] = config_value

    def get_session_config_entry(self, config_key: str) -> str:
        """An entry that was added."""
        return _entry(self._entries, config_key)

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Does nothing: graphs are planned for the sizes of the inputs."""


class RunOptions:
    """Options of a run, which are ignored."""

    def __init__(self) -> None:
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, config_key: str, config_value: str) -> None:
        """Keeps an entry, which is ignored."""
        self._entries[config_key] = config_value

    def get_run_config_entry(self, config_key: str) -> str:
        """An entry that was added."""
        return _entry(self._entries, config_key)


def _entry(entries: dict[str, str], key: str) -> str:
    if key not in entries:
        raise RuntimeError(f"there is no entry {key!r}")
    return entries[key]


class ModelMetadata:
    """What a model's file says about it: names, documentation and properties."""

    def __init__(
        self,
        *,
        producer_name: str,
        graph_name: str,
        graph_description: str,
        domain: str,
        description: str,
        version: int,
        custom_metadata_map: dict[str, str],
    ) -> None:
        self.producer_name = producer_name
        self.graph_name = graph_name
        self.graph_description = graph_description
        self.domain = domain
        self.description = description
        self.version = version
        self.custom_metadata_map = custom_metadata_map


def get_available_providers() -> list[str]:
    """ONNX Runtime's names of this machine's devices, the preferred one first."""
    return [*(["CUDAExecutionProvider"] if has_cuda() else []), "CPUExecutionProvider"]


def get_all_providers() -> list[str]:
    """ONNX Runtime's names of the devices that kvark knows, the preferred one first."""
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def get_device() -> str:
    """`GPU` where there is one that kvark runs on, else `CPU`."""
    return "GPU" if has_cuda() else "CPU"


def get_version_string() -> str:
    """kvark's version."""
    return __version__


def set_default_logger_severity(severity: int) -> None:
    """Does nothing: kvark writes no log."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing: kvark writes no log."""


def disable_telemetry_events() -> None:
    """Does nothing: kvark sends no telemetry."""


def enable_telemetry_events() -> None:
    """Does nothing: kvark sends no telemetry."""


def preload_dlls(*_arguments: Any, **_options: Any) -> None:
    """Does nothing: kvark finds the GPU's libraries itself."""
