//! Stored tensors of a model, with their elements inside the file or in external data files.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use base::{Bytes, DType};
use graph::{Data, Value};

use super::proto::Message;
use super::schema::TensorProto;
use crate::error::ImportError;
use crate::stored_type::StoredType;

/// An initialiser, or the tensor of a `Constant` node.
#[derive(Clone, Debug)]
pub struct OnnxTensor {
    /// Stored element type.
    pub(super) kind: StoredType,
    /// Row-major dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements as stored, in row-major order.
    pub data: Bytes,
}

/// The element type of an ONNX type code.
pub(super) fn kind(code: i64) -> Result<StoredType, String> {
    Ok(match code {
        1 => StoredType::F32,
        2 => StoredType::U8,
        3 => StoredType::I8,
        4 => StoredType::U16,
        5 => StoredType::I16,
        6 => StoredType::I32,
        7 => StoredType::I64,
        9 => StoredType::Bool,
        10 => StoredType::F16,
        11 => StoredType::F64,
        12 => StoredType::U32,
        13 => StoredType::U64,
        16 => StoredType::BF16,
        17 => StoredType::F8E4M3FN,
        18 => StoredType::F8E4M3FNUZ,
        19 => StoredType::F8E5M2,
        20 => StoredType::F8E5M2FNUZ,
        21 => StoredType::U4,
        22 => StoredType::I4,
        23 => StoredType::F4E2M1,
        25 => StoredType::U2,
        26 => StoredType::I2,
        code => {
            let name = match code {
                8 => "string",
                14 | 15 => "complex",
                24 => "f8e8m0",
                _ => "unknown",
            };
            return Err(format!(
                "has elements of type code {code} ({name}), which is not supported"
            ));
        }
    })
}

impl OnnxTensor {
    /// Reads a tensor message; `folder` finds its external data.
    pub(super) fn new(
        tensor: &TensorProto,
        folder: &mut ExternalDataFiles,
    ) -> Result<OnnxTensor, ImportError> {
        let what = format!("tensor {:?}", tensor.name);
        let wrong = |reason: String| ImportError::malformed(&what[..], reason);
        let kind = kind(tensor.data_type).map_err(wrong)?;
        if tensor.segmented {
            return Err(wrong(
                "is stored in segments, which is not supported".into(),
            ));
        }
        let dim = |dim: &i64| {
            usize::try_from(*dim).map_err(|_| wrong(format!("has the invalid dimension {dim}")))
        };
        let shape: Vec<usize> = tensor.dims.iter().map(dim).collect::<Result<_, _>>()?;
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let bytes = elements.and_then(|n| kind.bytes(n));
        let bytes =
            bytes.ok_or_else(|| wrong(format!("has shape {shape:?}, whose size overflows")))?;
        let data = match (&tensor.external, &tensor.raw) {
            (Some(place), _) => folder.external(&what, place, bytes)?,
            (None, Some(raw)) => raw.clone(),
            (None, None) => typed(tensor, kind),
        };
        if data.len() != bytes {
            let reason = format!("has {} bytes, {shape:?} takes {bytes}", data.len());
            return Err(wrong(reason));
        }
        Ok(OnnxTensor { kind, shape, data })
    }

    /// The stored element type's name.
    pub fn type_name(&self) -> &'static str {
        self.kind.name()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements in their compute type, without a copy if that is the stored type.
    pub(super) fn computed(&self) -> Result<(DType, Bytes), String> {
        let data = self.kind.computed(&self.data, self.len())?;
        Ok((self.kind.dtype(), data))
    }

    /// The tensor as an input or output value of a run.
    pub fn value(&self) -> Result<Value, ImportError> {
        let wrong = |reason: String| ImportError::malformed("a tensor", reason);
        let (dtype, bytes) = self.computed().map_err(wrong)?;
        let data = Data::from_bytes(dtype, &bytes, self.len());
        Ok(Value {
            shape: self.shape.clone(),
            data: data.expect("a graph's type is one that runs have"),
        })
    }
}

/// Reads a file that consists of one tensor message, such as test data; returns its name and value.
pub fn read_tensor(bytes: &Bytes) -> Result<(String, OnnxTensor), ImportError> {
    let wrong = |reason| ImportError::malformed("the tensor", reason);
    let tensor = TensorProto::read(Message::new(bytes.clone())).map_err(wrong)?;
    let stored = OnnxTensor::new(&tensor, &mut ExternalDataFiles::new(None))?;
    Ok((tensor.name, stored))
}

/// Converts the message's typed element lists to raw data.
fn typed(tensor: &TensorProto, kind: StoredType) -> Bytes {
    match kind {
        StoredType::F32 => Bytes::from_slice(&tensor.floats),
        StoredType::F64 => Bytes::from_slice(&tensor.doubles),
        kind => {
            let width = kind.bits().div_ceil(8);
            let narrow = |n: &i64| n.to_le_bytes().into_iter().take(width);
            let bytes: Vec<u8> = tensor.ints.iter().flat_map(narrow).collect();
            Bytes::from(&bytes[..])
        }
    }
}

/// External data files of a model's folder, mapped on first use.
pub(super) struct ExternalDataFiles {
    path: Option<PathBuf>,
    files: HashMap<PathBuf, Bytes>,
}

impl ExternalDataFiles {
    /// `folder` is `None` if the model was read from memory.
    pub(super) fn new(path: Option<&Path>) -> ExternalDataFiles {
        // `Path::parent` returns an empty path for a bare file name.
        let here = |path: &Path| match path.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => path.to_owned(),
        };
        ExternalDataFiles {
            path: path.map(here),
            files: HashMap::new(),
        }
    }

    /// The bytes of a tensor in an external data file.
    fn external(
        &mut self,
        what: &str,
        place: &BTreeMap<String, String>,
        bytes: usize,
    ) -> Result<Bytes, ImportError> {
        let wrong = |reason: String| ImportError::malformed(what, reason);
        let location = place.get("location");
        let location =
            location.ok_or_else(|| wrong("is external but states no location".into()))?;
        let number = |key: &str| match place.get(key).map(|text| text.parse::<usize>()) {
            None => Ok(None),
            Some(Ok(n)) => Ok(Some(n)),
            Some(Err(_)) => Err(wrong(format!("has an invalid {key}: {:?}", place[key]))),
        };
        let start = number("offset")?.unwrap_or(0);
        let len = number("length")?.unwrap_or(bytes);
        let file = self.file(location).map_err(wrong)?;
        let part = start
            .checked_add(len)
            .and_then(|end| file.slice(start..end));
        part.ok_or_else(|| {
            let size = file.len();
            wrong(format!(
                "needs {len} bytes at offset {start} of {location:?}, which has {size} bytes"
            ))
        })
    }

    /// Maps the file at a relative path, which must stay inside the folder.
    fn file(&mut self, location: &str) -> Result<Bytes, String> {
        let relative = Path::new(location);
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || !relative.components().all(inside) {
            return Err(format!(
                "is stored in {location:?}, which is outside the model's folder"
            ));
        }
        let Some(folder) = &self.path else {
            return Err(format!(
                "is stored in {location:?}, but a model read from memory has no folder"
            ));
        };
        let path = folder.join(relative);
        if let Some(file) = self.files.get(&path) {
            return Ok(file.clone());
        }
        // A symbolic link inside the folder could point outside.
        let real = |path: &Path| {
            let real = path.canonicalize();
            real.map_err(|e| format!("is stored in {location:?}, which cannot be read: {e}"))
        };
        if !real(&path)?.starts_with(real(folder)?) {
            return Err(format!(
                "is stored in {location:?}, which links outside the model's folder"
            ));
        }
        let file = Bytes::map(&path).map_err(|e| e.to_string())?;
        self.files.insert(path, file.clone());
        Ok(file)
    }
}
