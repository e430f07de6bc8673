"""`OrtValue` and `IOBinding`: tensors in the caller's memory, with the interface of ONNX Runtime's classes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._kvark import InferenceSession

#: ONNX's numbers and names of element types, by numpy's names.
_TYPES = {
    "float32": (1, "float"),
    "uint8": (2, "uint8"),
    "int8": (3, "int8"),
    "uint16": (4, "uint16"),
    "int16": (5, "int16"),
    "int32": (6, "int32"),
    "int64": (7, "int64"),
    "bool": (9, "bool"),
    "float16": (10, "float16"),
    "float64": (11, "double"),
    "uint32": (12, "uint32"),
    "uint64": (13, "uint64"),
}


def _dtype(element_type: Any) -> np.dtype[Any]:
    """numpy's type for a type of numpy or for ONNX's number of one."""
    if isinstance(element_type, int):
        for name, (number, _) in _TYPES.items():
            if number == element_type:
                return np.dtype(name)
        raise InvalidArgumentError(f"there is no element type {element_type} that kvark takes")
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def _array_at(what: str, device: str, element_type: Any, shape: Sequence[int], address: int) -> npt.NDArray[Any]:
    """The array in row-major order at an address of the CPU's memory."""
    if device != "cpu":
        raise InvalidArgumentError(f"{what} is bound to memory of {device!r}, must be that of 'cpu'")
    dtype = _dtype(element_type)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size == 0:
        return np.zeros(tuple(shape), dtype)
    memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    array: npt.NDArray[Any] = np.frombuffer(memory, dtype)
    return array.reshape(tuple(shape))


class OrtValue:
    """A tensor in the CPU's memory."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: npt.NDArray[Any], device_type: str = "cpu", device_id: int = 0) -> Self:
        """A tensor of an array; the elements stay where they are. Every device's runs take it."""
        return cls(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> Self:
        """A tensor of zeros."""
        return cls(np.zeros(tuple(shape), _dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any) -> Self:
        """A tensor of an object with `__dlpack__`."""
        return cls(np.from_dlpack(data))

    def numpy(self) -> npt.NDArray[Any]:
        """The elements as an array, which shares them."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The elements, for numpy."""
        array = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        """The elements, for other libraries."""
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU, as DLPack writes it."""
        device, number = self._array.__dlpack_device__()
        return int(device), int(number)

    def update_inplace(self, np_arr: npt.NDArray[Any]) -> None:
        """Copies an array of the same type and shape into the tensor."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            found, wanted = (f"{a.dtype}{list(a.shape)}" for a in (np_arr, self._array))
            raise InvalidArgumentError(f"the array is {found}, must be {wanted}")
        np.copyto(self._array, np_arr)

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """The type as ONNX Runtime writes it: `tensor(float)`."""
        name = self._array.dtype.name
        return f"tensor({_TYPES[name][1] if name in _TYPES else name})"

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return _TYPES[self._array.dtype.name][0]

    def device_name(self) -> str:
        """`cpu`."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of all elements."""
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        """Always true."""
        return True

    def is_tensor(self) -> bool:
        """Always true."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Always false."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Always false."""
        return False


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

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds an input to an array in row-major order at an address of the CPU's memory, which must stay valid."""
        self._inputs[name] = _array_at(f"the input {name!r}", device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to a tensor."""
        self._inputs[name] = ortvalue.numpy()

    def bind_output(
        self,
        name: str,
        device_type: str | npt.NDArray[Any] | None = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to an array, or to memory of the CPU at an address; without either, each run makes an array of it.

        The array is the second argument, where ONNX Runtime has the device. It must have the output's type and shape.
        """
        array = None if isinstance(device_type, str) else device_type
        if array is not None and not isinstance(array, np.ndarray):
            raise TypeError(f"the output {name!r} must be bound to a numpy array")
        if isinstance(device_type, str) and buffer_ptr is not None:
            if shape is None or element_type is None:
                raise InvalidArgumentError(f"the output {name!r} is bound to an address without a type and a shape")
            array = _array_at(f"the output {name!r}", device_type, element_type, shape, buffer_ptr)
        self._outputs[name] = array

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to a tensor, which must have the output's type and shape."""
        self._outputs[name] = ortvalue.numpy()

    def synchronize_inputs(self) -> None:
        """Does nothing: inputs are in the CPU's memory."""

    def synchronize_outputs(self) -> None:
        """Does nothing: a run returns when its outputs are written."""

    def clear_binding_inputs(self) -> None:
        """Removes all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Removes all outputs."""
        self._outputs.clear()

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return [OrtValue(array) for array in self._results]

    def copy_outputs_to_cpu(self) -> list[npt.NDArray[Any]]:
        """The outputs of the last run as arrays, in the order in which they were bound. Bound arrays are not copied."""
        return self._results

    def _run(self, session: InferenceSession) -> None:
        self._results = session.run_into(self._inputs, self._outputs)
