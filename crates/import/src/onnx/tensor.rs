//! A tensor that the model holds: its elements, wherever the file keeps them.

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
    /// How elements are stored.
    pub(super) kind: StoredType,
    /// Row-major dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The elements in the order of their indices, as they are stored.
    pub data: Bytes,
}

/// The element type with ONNX's code.
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
                "has elements of type code {code} ({name}), which kvark does not read"
            ));
        }
    })
}

impl OnnxTensor {
    /// The tensor of a message; `folder` is where external data lies.
    pub(super) fn new(
        tensor: &TensorProto,
        folder: &mut ExternalDataFiles,
    ) -> Result<OnnxTensor, ImportError> {
        let what = format!("tensor {:?}", tensor.name);
        let wrong = |reason: String| ImportError::malformed(&what[..], reason);
        let kind = kind(tensor.data_type).map_err(wrong)?;
        if tensor.segmented {
            return Err(wrong("is stored in segments".into()));
        }
        let dim = |dim: &i64| {
            usize::try_from(*dim).map_err(|_| wrong(format!("has a dimension of {dim}")))
        };
        let shape: Vec<usize> = tensor.dims.iter().map(dim).collect::<Result<_, _>>()?;
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let bytes = elements.and_then(|n| kind.bytes(n));
        let bytes = bytes.ok_or_else(|| wrong(format!("has sizes {shape:?} that overflow")))?;
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

    /// The elements as a graph computes with them, without a copy where the types agree.
    pub(super) fn computed(&self) -> Result<(DType, Bytes), String> {
        let data = self.kind.computed(&self.data, self.len())?;
        Ok((self.kind.dtype(), data))
    }

    /// The tensor as a run takes or gives it.
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

/// Reads a file that holds one tensor and nothing else, as test data does: its name and its contents.
pub fn read_tensor(bytes: &Bytes) -> Result<(String, OnnxTensor), ImportError> {
    let wrong = |reason| ImportError::malformed("the tensor", reason);
    let tensor = TensorProto::read(Message::new(bytes.clone())).map_err(wrong)?;
    let stored = OnnxTensor::new(&tensor, &mut ExternalDataFiles::new(None))?;
    Ok((tensor.name, stored))
}

/// The elements of the message's own lists, as raw data would have them.
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

/// The folder that a model lies in, and the files of it that tensors have asked for.
pub(super) struct ExternalDataFiles {
    path: Option<PathBuf>,
    files: HashMap<PathBuf, Bytes>,
}

impl ExternalDataFiles {
    /// The folder; `None` when the model is in memory only.
    pub(super) fn new(path: Option<&Path>) -> ExternalDataFiles {
        // A path without a folder has an empty one.
        let here = |path: &Path| match path.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => path.to_owned(),
        };
        ExternalDataFiles {
            path: path.map(here),
            files: HashMap::new(),
        }
    }

    /// The bytes that a tensor has in another file of the model's folder.
    fn external(
        &mut self,
        what: &str,
        place: &BTreeMap<String, String>,
        bytes: usize,
    ) -> Result<Bytes, ImportError> {
        let wrong = |reason: String| ImportError::malformed(what, reason);
        let location = place.get("location");
        let location =
            location.ok_or_else(|| wrong("is external and does not say where".into()))?;
        let number = |key: &str| match place.get(key).map(|text| text.parse::<usize>()) {
            None => Ok(None),
            Some(Ok(n)) => Ok(Some(n)),
            Some(Err(_)) => Err(wrong(format!("has the {key} {:?}", place[key]))),
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
                "has {len} bytes from {start} on in {location:?}, which has {size}"
            ))
        })
    }

    /// The file at this place, which must not lead out of the folder.
    fn file(&mut self, location: &str) -> Result<Bytes, String> {
        let relative = Path::new(location);
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || !relative.components().all(inside) {
            return Err(format!(
                "lies in {location:?}, which is outside the model's folder"
            ));
        }
        let Some(folder) = &self.path else {
            return Err(format!("lies in {location:?}, and the model in no folder"));
        };
        let path = folder.join(relative);
        if let Some(file) = self.files.get(&path) {
            return Ok(file.clone());
        }
        // A link inside the folder could lead out of it.
        let real = |path: &Path| {
            let real = path.canonicalize();
            real.map_err(|e| format!("lies in {location:?}, which cannot be read: {e}"))
        };
        if !real(&path)?.starts_with(real(folder)?) {
            return Err(format!(
                "lies in {location:?}, which leads outside the model's folder"
            ));
        }
        let file = Bytes::map(&path).map_err(|e| e.to_string())?;
        self.files.insert(path, file.clone());
        Ok(file)
    }
}
