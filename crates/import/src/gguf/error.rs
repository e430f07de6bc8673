//! GGUF errors.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use base::MapError;

/// Characters shown of a message.
const MAX_MESSAGE: usize = 1000;

/// A GGUF file that could not be read, or a metadata value that does not have the requested type.
///
/// The message names the field and the number that was wrong.
#[derive(Debug, thiserror::Error)]
pub struct GgufError {
    problem: Box<GgufErrorDetail>,
    path: Option<PathBuf>,
}

/// Category of a GGUF error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GgufErrorKind {
    /// The file could not be opened or mapped.
    Io,
    /// The first bytes are not those of a GGUF file.
    Magic,
    /// A GGUF file written for big-endian machines.
    BigEndian,
    /// A version other than 2 or 3.
    Version,
    /// The file ends before a field that it promises.
    Truncated,
    /// A count or a length is larger than the rest of the file could hold.
    Count,
    /// A key, name or string value is not UTF-8.
    Utf8,
    /// A key or a tensor name occurs twice.
    Duplicate,
    /// A metadata value has a type that the format does not define or kvark does not support.
    Value,
    /// `general.alignment` is not a usable alignment.
    Alignment,
    /// A tensor's dimensions are impossible.
    Shape,
    /// A tensor's type is not supported.
    TensorType,
    /// A tensor's bytes are misaligned, outside the file, or overlap another's.
    Layout,
    /// A part of a split model is missing, or the parts do not belong together.
    Split,
    /// A metadata key is absent.
    MissingKey,
    /// A metadata value does not have the requested type, or does not fit it.
    WrongType,
}

/// The internal error enum. Messages lack only the file's path.
#[derive(Debug, thiserror::Error)]
pub(super) enum GgufErrorDetail {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("not a GGUF file: it is empty")]
    Empty,
    #[error("not a GGUF file but a Git LFS pointer to one; fetch the model itself (git lfs pull)")]
    LfsPointer,
    #[error("not a GGUF file: it starts with \"{}\" instead of \"GGUF\"", start.escape_ascii())]
    Magic { start: Vec<u8> },
    #[error("the file is big-endian GGUF (version {version}); kvark reads little-endian files")]
    BigEndian { version: u32 },
    #[error("GGUF version {version} is not supported; kvark reads versions 2 and 3")]
    Version { version: u32 },
    #[error(
        "the file is truncated: it has {len} bytes and ends inside {field} ({need} bytes from byte {at})"
    )]
    Truncated {
        field: String,
        at: usize,
        need: u64,
        len: usize,
    },
    #[error(
        "the file is truncated or damaged: {field} is {count}, but the remaining {left} bytes can hold at most {max}"
    )]
    Count {
        field: String,
        count: u64,
        left: usize,
        max: usize,
    },
    #[error("{field} is not UTF-8 (byte {at} of \"{text}\")")]
    Utf8 {
        field: String,
        at: usize,
        text: String,
    },
    #[error("metadata key {key} occurs twice")]
    DuplicateKey { key: String },
    #[error("tensor {name} occurs twice")]
    DuplicateTensor { name: String },
    #[error("metadata key {key} has value type {code}, which GGUF does not define")]
    ValueType { key: String, code: u32 },
    #[error("metadata key {key} is an array of arrays, which kvark does not read")]
    NestedArray { key: String },
    #[error("metadata key {key} holds {byte} where a bool (0 or 1) belongs")]
    Bool { key: String, byte: u8 },
    #[error("general.alignment is {value}, not a power of two from 1 to {max}")]
    Alignment { value: u64, max: u64 },
    #[error("tensor {name} has {dims} dimensions; the most is {max}")]
    DimCount { name: String, dims: u32, max: u32 },
    #[error("tensor {name} has dimension {index} equal to 0")]
    ZeroDim { name: String, index: usize },
    #[error("tensor {name} has shape {dims:?} (innermost first), whose size overflows")]
    Overflow { name: String, dims: Vec<u64> },
    #[error("tensor {name} has rows of {row} elements, not whole {dtype} blocks of {block}")]
    PartialBlock {
        name: String,
        row: usize,
        dtype: base::DType,
        block: usize,
    },
    #[error("tensor {name} has type {label}, which kvark cannot read")]
    TensorType { name: String, label: String },
    #[error("tensor {name} has offset {offset}, not a multiple of the alignment {alignment}")]
    Misaligned {
        name: String,
        offset: u64,
        alignment: u64,
    },
    #[error(
        "tensor {name} takes {bytes} bytes from offset {offset}, but there are only {have} bytes of tensor data"
    )]
    Outside {
        name: String,
        offset: u64,
        bytes: usize,
        have: usize,
    },
    #[error(
        "the file is truncated: it has {found} bytes, and its tensors need {needed}; the first one that is not complete is {name}"
    )]
    TruncatedData {
        name: String,
        found: usize,
        needed: u64,
    },
    #[error("tensor {name} at offset {offset} overlaps tensor {other}, which ends at {end}")]
    Overlap {
        name: String,
        offset: usize,
        other: String,
        end: usize,
    },
    #[error(
        "{} is missing: the model is split over {count} files, and this is number {number}", path.display()
    )]
    MissingPart {
        number: usize,
        count: usize,
        path: PathBuf,
    },
    #[error(
        "the model is split over {count} files, but the name does not end with -00001-of-{count:05}.gguf or the like, so the other files cannot be found"
    )]
    PartName { count: usize },
    #[error("the name says part {number} of {count}, but the keys split.no and split.count do not")]
    WrongPart { number: usize, count: usize },
    #[error("the parts have {found} tensors, must have {stated} (split.tensors.count)")]
    PartTensors { stated: usize, found: usize },
    #[error("metadata key {key} is missing")]
    MissingKey { key: String },
    #[error("metadata key {key} is {found}, not {wanted}")]
    WrongType {
        key: String,
        found: String,
        wanted: &'static str,
    },
    #[error("metadata key {key} holds {value}, which does not fit {wanted}")]
    Range {
        key: String,
        value: i128,
        wanted: &'static str,
    },
}

impl GgufError {
    /// Category of a GGUF error.
    pub fn kind(&self) -> GgufErrorKind {
        use GgufErrorDetail as P;
        match &*self.problem {
            P::Map(_) => GgufErrorKind::Io,
            P::Empty | P::LfsPointer | P::Magic { .. } => GgufErrorKind::Magic,
            P::BigEndian { .. } => GgufErrorKind::BigEndian,
            P::Version { .. } => GgufErrorKind::Version,
            P::Truncated { .. } | P::TruncatedData { .. } => GgufErrorKind::Truncated,
            P::Count { .. } => GgufErrorKind::Count,
            P::Utf8 { .. } => GgufErrorKind::Utf8,
            P::DuplicateKey { .. } | P::DuplicateTensor { .. } => GgufErrorKind::Duplicate,
            P::ValueType { .. } | P::NestedArray { .. } | P::Bool { .. } => GgufErrorKind::Value,
            P::Alignment { .. } => GgufErrorKind::Alignment,
            P::DimCount { .. }
            | P::ZeroDim { .. }
            | P::Overflow { .. }
            | P::PartialBlock { .. } => GgufErrorKind::Shape,
            P::TensorType { .. } => GgufErrorKind::TensorType,
            P::Misaligned { .. } | P::Outside { .. } | P::Overlap { .. } => GgufErrorKind::Layout,
            P::MissingPart { .. }
            | P::PartName { .. }
            | P::WrongPart { .. }
            | P::PartTensors { .. } => GgufErrorKind::Split,
            P::MissingKey { .. } => GgufErrorKind::MissingKey,
            P::WrongType { .. } | P::Range { .. } => GgufErrorKind::WrongType,
        }
    }

    /// The error for a metadata key that the caller needs and the file lacks.
    pub fn missing(key: &str) -> GgufError {
        let key = key.to_owned();
        GgufErrorDetail::MissingKey { key }.into()
    }

    /// Whether the message names the file.
    pub(crate) fn names_file(&self) -> bool {
        let own = matches!(*self.problem, GgufErrorDetail::MissingPart { .. });
        own || self.path.is_some()
    }

    pub(super) fn in_file(mut self, path: &Path) -> GgufError {
        self.path = Some(path.to_owned());
        self
    }
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        // Names in the message come from the file: they may be arbitrarily long or contain terminal controls.
        let message = self.problem.to_string();
        for c in message.chars().take(MAX_MESSAGE) {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                f.write_char(c)?;
            }
        }
        if message.chars().nth(MAX_MESSAGE).is_some() {
            f.write_str("...")?;
        }
        Ok(())
    }
}

impl From<GgufErrorDetail> for GgufError {
    fn from(problem: GgufErrorDetail) -> GgufError {
        GgufError {
            problem: Box::new(problem),
            path: None,
        }
    }
}

impl From<MapError> for GgufError {
    fn from(error: MapError) -> GgufError {
        GgufErrorDetail::from(error).into()
    }
}
