//! numpy arrays and DLPack objects as borrowed tensors, and tensors as arrays.

use crate::error::{Error, Result};
use kvark::inference::{Data, DataMut, DataRef, StoredType, Value, ValueRef};
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
    /// A numpy array, an object with `__dlpack__`, or anything that numpy makes an array of, with elements that kvark computes in.
    pub(crate) fn new(name: &str, object: &Bound<'py, PyAny>) -> Result<InputArray<'py>> {
        InputArray::of_array(name, &as_array(object, None)?)
    }

    /// Like [`new`](InputArray::new), with elements of a declared type. Those that kvark does not compute in are converted.
    pub(crate) fn declared(
        name: &str,
        object: &Bound<'py, PyAny>,
        declared: StoredType,
    ) -> Result<InputArray<'py>> {
        let array = as_array(object, numpy_name(declared))?;
        let found = dtype_name(&array)?;
        let computed = computed_name(declared);
        let fits = match numpy_name(declared) {
            Some(name) => found == name,
            // numpy has such types only with ml_dtypes.
            None => found == computed || extension_name(declared) == Some(&found[..]),
        };
        if !fits {
            let wanted = numpy_name(declared).unwrap_or(computed);
            return Err(Error::argument(format!(
                "the input {name:?} is {found}, must be {wanted}"
            )));
        }
        if let Some(list) = typed::<u64>(&array)? {
            let large = |n: &&u64| i64::try_from(**n).is_err();
            if let Some(n) = list.slice().iter().find(large) {
                return Err(Error::argument(format!(
                    "the input {name:?} has {n}, must be below 2**63"
                )));
            }
        }
        // Also makes the bytes of an element those of this machine.
        let native = array.getattr("dtype")?.getattr("isnative")?.extract()?;
        match found == computed && native {
            true => InputArray::of_array(name, &array),
            false => InputArray::of_array(name, &array.call_method1("astype", (computed,))?),
        }
    }

    fn of_array(name: &str, array: &Bound<'py, PyAny>) -> Result<InputArray<'py>> {
        let shape = array.getattr("shape")?.extract::<Vec<usize>>()?;
        let elements = if let Some(list) = typed(array)? {
            Elements::F32(list)
        } else if let Some(list) = typed(array)? {
            Elements::I64(list)
        } else if let Some(list) = typed(array)? {
            Elements::I32(list)
        } else if let Some(list) = typed(array)? {
            Elements::Bool(list)
        } else {
            let dtype = dtype_name(array)?;
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

/// The object as a numpy array; the elements are not copied if the object shares them. Lists and numbers become elements of `dtype`.
fn as_array<'py>(object: &Bound<'py, PyAny>, dtype: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    let numpy = object.py().import("numpy")?;
    let ndarray = numpy.getattr("ndarray")?;
    if object.is_instance(&ndarray)? {
        return Ok(object.clone());
    }
    if object.hasattr("__dlpack__")? {
        return numpy.call_method1("from_dlpack", (object,));
    }
    let is_array = object.hasattr("dtype")? || object.hasattr("__array__")?;
    let dtype = dtype.filter(|_| !is_array);
    numpy.call_method1("asarray", (object, dtype))
}

fn dtype_name(array: &Bound<'_, PyAny>) -> PyResult<String> {
    array.getattr("dtype")?.getattr("name")?.extract()
}

/// numpy's name of a type; `None` if numpy has no such type.
fn numpy_name(declared: StoredType) -> Option<&'static str> {
    Some(match declared {
        StoredType::U8 => "uint8",
        StoredType::I8 => "int8",
        StoredType::U16 => "uint16",
        StoredType::I16 => "int16",
        StoredType::U32 => "uint32",
        StoredType::I32 => "int32",
        StoredType::U64 => "uint64",
        StoredType::I64 => "int64",
        StoredType::F16 => "float16",
        StoredType::F32 => "float32",
        StoredType::F64 => "float64",
        StoredType::Bool => "bool",
        _ => return None,
    })
}

/// The name of a type that numpy has with ml_dtypes.
fn extension_name(declared: StoredType) -> Option<&'static str> {
    Some(match declared {
        StoredType::BF16 => "bfloat16",
        StoredType::F8E4M3FN => "float8_e4m3fn",
        StoredType::F8E4M3FNUZ => "float8_e4m3fnuz",
        StoredType::F8E5M2 => "float8_e5m2",
        StoredType::F8E5M2FNUZ => "float8_e5m2fnuz",
        StoredType::F4E2M1 => "float4_e2m1fn",
        StoredType::U4 => "uint4",
        StoredType::I4 => "int4",
        StoredType::U2 => "uint2",
        StoredType::I2 => "int2",
        _ => return None,
    })
}

/// numpy's name of the type that elements of a declared type are computed in.
fn computed_name(declared: StoredType) -> &'static str {
    let computed = StoredType::of(declared.dtype()).and_then(numpy_name);
    computed.expect("graphs compute in types of numpy")
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
    /// An array of a type that kvark does not compute in, which gets converted elements after the run.
    Converted(Vec<usize>),
    F32(PyReadwriteArrayDyn<'py, f32>),
    I32(PyReadwriteArrayDyn<'py, i32>),
    I64(PyReadwriteArrayDyn<'py, i64>),
    Bool(PyReadwriteArrayDyn<'py, bool>),
}

impl<'py> OutputArray<'py> {
    /// A writable array of an output's declared type, in row-major order if kvark computes in that type.
    pub(crate) fn new(
        name: &str,
        object: &Bound<'py, PyAny>,
        declared: StoredType,
    ) -> Result<OutputArray<'py>> {
        let wrong = |reason: &str| Error::argument(format!("the output {name:?} {reason}"));
        let wanted = numpy_name(declared).unwrap_or(computed_name(declared));
        let ndarray = object.py().import("numpy")?.getattr("ndarray")?;
        if !object.is_instance(&ndarray)? || dtype_name(object)? != wanted {
            return Err(wrong(&format!(
                "must be bound to a numpy array of {wanted}"
            )));
        }
        if wanted != computed_name(declared) {
            let flags = object.getattr("flags")?;
            if !flags.getattr("writeable")?.extract::<bool>()? {
                return Err(wrong("is bound to an array that is read-only or in use"));
            }
            return Ok(OutputArray::Converted(object.getattr("shape")?.extract()?));
        }
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
            return Err(wrong("is bound to an array of another byte order"));
        };
        match array.is_in_order() && array.memory().is_some() {
            true => Ok(array),
            false => Err(wrong("is bound to an array that is not in row-major order")),
        }
    }

    /// The elements' memory; `None` if they are not in row-major order or are converted.
    pub(crate) fn memory(&mut self) -> Option<DataMut<'_>> {
        Some(match self {
            OutputArray::Converted(_) => return None,
            OutputArray::F32(array) => DataMut::F32(array.as_slice_mut().ok()?),
            OutputArray::I32(array) => DataMut::I32(array.as_slice_mut().ok()?),
            OutputArray::I64(array) => DataMut::I64(array.as_slice_mut().ok()?),
            OutputArray::Bool(array) => DataMut::Bool(array.as_slice_mut().ok()?),
        })
    }

    fn is_in_order(&self) -> bool {
        match self {
            OutputArray::Converted(_) => true,
            OutputArray::F32(array) => array.is_c_contiguous(),
            OutputArray::I32(array) => array.is_c_contiguous(),
            OutputArray::I64(array) => array.is_c_contiguous(),
            OutputArray::Bool(array) => array.is_c_contiguous(),
        }
    }

    /// Its sizes.
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            OutputArray::Converted(shape) => shape,
            OutputArray::F32(array) => array.shape(),
            OutputArray::I32(array) => array.shape(),
            OutputArray::I64(array) => array.shape(),
            OutputArray::Bool(array) => array.shape(),
        }
    }
}

/// A tensor as a numpy array with elements of a declared type, if numpy has that type.
pub(crate) fn declared_array<'py>(
    py: Python<'py>,
    value: Value,
    declared: StoredType,
) -> PyResult<Bound<'py, PyAny>> {
    let array = array_of(py, value)?;
    match numpy_name(declared) {
        Some(name) if name != computed_name(declared) => array.call_method1("astype", (name,)),
        _ => Ok(array),
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
