//! numpy arrays and DLPack objects as borrowed tensors, and tensors as arrays.

use crate::error::{Error, Result};
use kvark::inference::{Data, DataMut, DataRef, Value, ValueRef};
use numpy::{
    Element, IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// An input: an array that stays where it is, or a copy of one whose elements are not in row-major order.
pub(crate) struct InputArray<'py> {
    shape: Vec<usize>,
    elements: Elements<'py>,
}

enum Elements<'py> {
    F32(Typed<'py, f32>),
    I32(Typed<'py, i32>),
    I64(Typed<'py, i64>),
    Bool(Typed<'py, bool>),
}

enum Typed<'py, T: Element> {
    Borrowed(PyReadonlyArrayDyn<'py, T>),
    Copied(Vec<T>),
}

impl<T: Element> Typed<'_, T> {
    fn slice(&self) -> &[T] {
        match self {
            Typed::Borrowed(array) => array.as_slice().expect("the order was checked"),
            Typed::Copied(list) => list,
        }
    }
}

impl<'py> InputArray<'py> {
    /// A numpy array, an object with `__dlpack__`, or anything that numpy makes an array of.
    pub(crate) fn new(name: &str, object: &Bound<'py, PyAny>) -> Result<InputArray<'py>> {
        let array = as_array(object)?;
        let shape = array.getattr("shape")?.extract::<Vec<usize>>()?;
        let elements = if let Some(list) = typed(&array)? {
            Elements::F32(list)
        } else if let Some(list) = typed(&array)? {
            Elements::I64(list)
        } else if let Some(list) = typed(&array)? {
            Elements::I32(list)
        } else if let Some(list) = typed(&array)? {
            Elements::Bool(list)
        } else {
            let dtype = array.getattr("dtype")?.str()?.to_string();
            return Err(Error::argument(format!(
                "the input {name:?} is {dtype}; supported are float32, int64, int32 and bool"
            )));
        };
        Ok(InputArray { shape, elements })
    }

    /// The tensor.
    pub(crate) fn view(&self) -> ValueRef<'_> {
        ValueRef {
            shape: &self.shape,
            data: match &self.elements {
                Elements::F32(list) => DataRef::F32(list.slice()),
                Elements::I32(list) => DataRef::I32(list.slice()),
                Elements::I64(list) => DataRef::I64(list.slice()),
                Elements::Bool(list) => DataRef::Bool(list.slice()),
            },
        }
    }
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

/// Elements of this type; `None` for an array of another type.
fn typed<'py, T: Element + Copy>(array: &Bound<'py, PyAny>) -> Result<Option<Typed<'py, T>>> {
    let Ok(array) = array.cast::<PyArrayDyn<T>>() else {
        return Ok(None);
    };
    let array = array
        .try_readonly()
        .map_err(|_| Error::argument("an input is also an output that is written"))?;
    // `as_slice` also succeeds for column-major arrays.
    let in_order = array.is_c_contiguous() && array.as_slice().is_ok();
    Ok(Some(match in_order {
        true => Typed::Borrowed(array),
        false => Typed::Copied(array.as_array().iter().copied().collect()),
    }))
}

/// An array that a run writes an output to.
pub(crate) enum OutputArray<'py> {
    F32(PyReadwriteArrayDyn<'py, f32>),
    I32(PyReadwriteArrayDyn<'py, i32>),
    I64(PyReadwriteArrayDyn<'py, i64>),
    Bool(PyReadwriteArrayDyn<'py, bool>),
}

impl<'py> OutputArray<'py> {
    /// A writable array in row-major order.
    pub(crate) fn new(name: &str, object: &Bound<'py, PyAny>) -> Result<OutputArray<'py>> {
        let wrong = |reason: &str| Error::argument(format!("the output {name:?} {reason}"));
        fn writable<'py, T: Element>(
            object: &Bound<'py, PyAny>,
        ) -> Option<std::result::Result<PyReadwriteArrayDyn<'py, T>, numpy::BorrowError>> {
            let array = object.cast::<PyArrayDyn<T>>().ok()?;
            Some(array.try_readwrite())
        }
        let refused = |_| wrong("is bound to an array that is read-only or in use");
        let mut array = if let Some(array) = writable(object) {
            OutputArray::F32(array.map_err(refused)?)
        } else if let Some(array) = writable(object) {
            OutputArray::I64(array.map_err(refused)?)
        } else if let Some(array) = writable(object) {
            OutputArray::I32(array.map_err(refused)?)
        } else if let Some(array) = writable(object) {
            OutputArray::Bool(array.map_err(refused)?)
        } else {
            return Err(wrong(
                "must be bound to a numpy array of float32, int64, int32 or bool",
            ));
        };
        match array.is_in_order() && array.memory().is_some() {
            true => Ok(array),
            false => Err(wrong("is bound to an array that is not in row-major order")),
        }
    }

    /// The elements' memory; `None` if they are not in row-major order.
    pub(crate) fn memory(&mut self) -> Option<DataMut<'_>> {
        Some(match self {
            OutputArray::F32(array) => DataMut::F32(array.as_slice_mut().ok()?),
            OutputArray::I32(array) => DataMut::I32(array.as_slice_mut().ok()?),
            OutputArray::I64(array) => DataMut::I64(array.as_slice_mut().ok()?),
            OutputArray::Bool(array) => DataMut::Bool(array.as_slice_mut().ok()?),
        })
    }

    fn is_in_order(&self) -> bool {
        match self {
            OutputArray::F32(array) => array.is_c_contiguous(),
            OutputArray::I32(array) => array.is_c_contiguous(),
            OutputArray::I64(array) => array.is_c_contiguous(),
            OutputArray::Bool(array) => array.is_c_contiguous(),
        }
    }

    /// Its sizes.
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            OutputArray::F32(array) => array.shape(),
            OutputArray::I32(array) => array.shape(),
            OutputArray::I64(array) => array.shape(),
            OutputArray::Bool(array) => array.shape(),
        }
    }
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
