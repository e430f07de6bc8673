"""What users of ONNX Runtime write beside `InferenceSession`: bindings of arrays and options."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ._kvark import InferenceSession


class GraphOptimizationLevel(IntEnum):
    """Levels of ONNX Runtime. kvark runs all its passes at every level; `InferenceSession(passes=…)` selects them."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class SessionOptions:
    """Options of a session. `intra_op_num_threads` is the number of threads, 0 for one for each core; others are ignored."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL


def get_available_providers() -> list[str]:
    """ONNX Runtime's names of the devices that `InferenceSession(providers=…)` takes."""
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


class IOBinding:
    """Arrays for the inputs and outputs of a session's runs. Inputs are read and outputs written where the arrays are."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, npt.NDArray[Any] | None] = {}
        self._results: list[npt.NDArray[Any]] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an input to a numpy array or an object with `__dlpack__`."""
        self._inputs[name] = arr_on_cpu

    def bind_output(self, name: str, array: npt.NDArray[Any] | None = None, device_type: str = "cpu") -> None:
        """Binds an output to an array, which must have the output's shape and type; without one, each run makes it."""
        if isinstance(array, str):
            # ONNX Runtime's second argument is the device.
            array = None
        if array is not None and not isinstance(array, np.ndarray):
            raise TypeError(f"the output {name!r} must be bound to a numpy array")
        self._outputs[name] = array

    def clear_binding_inputs(self) -> None:
        """Removes all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Removes all outputs."""
        self._outputs.clear()

    def get_outputs(self) -> list[npt.NDArray[Any]]:
        """The outputs of the last run, in the order in which they were bound."""
        return self._results

    def copy_outputs_to_cpu(self) -> list[npt.NDArray[Any]]:
        """The outputs of the last run, in the order in which they were bound."""
        return self._results

    def _run(self, session: InferenceSession) -> None:
        self._results = session.run_into(self._inputs, self._outputs)
