//! numpy arrays and DLPack objects to tensors, and back.

use crate::error::{Error, Result};
use kvark::inference::{Data, Value};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A tensor from a numpy array, an object with `__dlpack__`, or anything that numpy makes an array of.
pub(crate) fn value_of(name: &str, object: &Bound<'_, PyAny>) -> Result<Value> {
    let array = as_array(object)?;
    if let Some(value) = typed::<f32>(&array, Data::F32)? {
        return Ok(value);
    }
    if let Some(value) = typed::<i64>(&array, Data::I64)? {
        return Ok(value);
    }
    if let Some(value) = typed::<i32>(&array, Data::I32)? {
        return Ok(value);
    }
    if let Some(value) = typed::<bool>(&array, Data::Bool)? {
        return Ok(value);
    }
    let dtype = array.getattr("dtype")?.str()?.to_string();
    Err(Error::argument(format!(
        "the input {name:?} is {dtype}; supported are float32, int64, int32 and bool"
    )))
}

/// The object as a numpy array; the elements are not copied if the object shares them.
fn as_array<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let numpy = object.py().import("numpy")?;
    let ndarray = numpy.getattr("ndarray")?;
    if object.is_instance(&ndarray)? {
        return Ok(object.clone());
    }
    if object.hasattr("__dlpack__")? {
        return numpy.call_method1("from_dlpack", (object,));
    }
    numpy.call_method1("asarray", (object,))
}

/// A tensor of elements of this type; `None` for an array of another type.
fn typed<T: numpy::Element + Copy>(
    array: &Bound<'_, PyAny>,
    data: fn(Vec<T>) -> Data,
) -> Result<Option<Value>> {
    let Ok(array) = array.cast::<PyArrayDyn<T>>() else {
        return Ok(None);
    };
    let array = array.readonly();
    let elements = match array.as_slice() {
        Ok(slice) => slice.to_vec(),
        // Another order of elements than row-major.
        Err(_) => array.as_array().iter().copied().collect(),
    };
    Ok(Some(Value {
        shape: array.shape().to_vec(),
        data: data(elements),
    }))
}

/// A tensor as a numpy array. The elements move: nothing is copied.
pub(crate) fn array_of<'py>(py: Python<'py>, value: Value) -> PyResult<Bound<'py, PyAny>> {
    let flat = match value.data {
        Data::F32(v) => v.into_pyarray(py).into_any(),
        Data::I32(v) => v.into_pyarray(py).into_any(),
        Data::I64(v) => v.into_pyarray(py).into_any(),
        Data::Bool(v) => v.into_pyarray(py).into_any(),
    };
    let shape = PyTuple::new(py, value.shape)?;
    flat.call_method1("reshape", (shape,))
}
