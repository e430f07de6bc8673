//! Import errors.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use base::{DType, MapError};
use graph::GraphError;

use crate::gguf::{GgufError, GgufErrorKind};

/// A model file that could not be read or turned into a graph.
///
/// The message names the file, key, tensor or architecture that was wrong.
#[derive(Debug, thiserror::Error)]
pub struct ImportError {
    problem: Box<ImportErrorDetail>,
    path: Option<PathBuf>,
}

/// Category of an import error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImportErrorKind {
    /// The file could not be opened or mapped.
    Io,
    /// The file has no supported format.
    UnknownFormat,
    /// The file violates its format.
    Malformed,
    /// The architecture is not supported.
    UnknownArchitecture,
    /// The model needs a feature that is not supported.
    Unsupported,
    /// A metadata key is absent.
    MissingKey,
    /// A metadata value has the wrong type or is out of range.
    Value,
    /// A tensor is absent.
    MissingTensor,
    /// A tensor has a shape or element type that contradicts the model's parameters.
    Tensor,
    /// The file has a tensor that the architecture does not use.
    UnusedTensor,
    /// The program has unsupported ops.
    UnknownOp,
    /// A node of the program cannot be lowered.
    Node,
    /// The graph could not be built.
    Graph,
}

/// Limit on the characters of a message, because names in files can be arbitrarily long.
const MAX_MESSAGE: usize = 16_000;

/// The internal error enum. Messages lack only the file's path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportErrorDetail {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(
        "unknown model format: neither the first bytes nor the extension match a supported format ({known})"
    )]
    UnknownFormat { known: &'static str },
    #[error("architecture {name:?} is not supported; supported architectures are {known}")]
    UnknownArchitecture { name: String, known: String },
    #[error("model_type {name:?} is not supported; supported types are {known}")]
    UnknownModelType { name: String, known: String },
    #[error("{what} {reason}")]
    Malformed { what: String, reason: String },
    #[error("the program has unsupported ops: {ops}")]
    UnknownOps { ops: String },
    #[error("node {node} ({op}): {reason}")]
    Op {
        node: String,
        op: String,
        reason: String,
    },
    #[error("{error}")]
    OnData { error: ImportError },
    #[error("{error} (with the inputs {inputs})")]
    AtShapes { error: ImportError, inputs: String },
    #[error("{what} is not supported")]
    Unsupported { what: String },
    #[error("{what} {reason}")]
    Value { what: String, reason: String },
    #[error("tensor {name} is missing")]
    MissingTensor { name: String },
    #[error("tensor {name} has shape {found:?}, must have {wanted:?}")]
    Shape {
        name: String,
        found: Vec<usize>,
        wanted: Vec<usize>,
    },
    #[error("tensor {name} is {dtype}, must be of a real type")]
    DType { name: String, dtype: DType },
    #[error("tensor {name} is not part of the architecture {architecture}")]
    UnusedTensor { name: String, architecture: String },
}

impl ImportError {
    /// Category of an import error.
    pub fn kind(&self) -> ImportErrorKind {
        use ImportErrorKind as K;
        match &*self.problem {
            ImportErrorDetail::Map(_) => K::Io,
            ImportErrorDetail::Gguf(error) => match error.kind() {
                GgufErrorKind::Io => K::Io,
                GgufErrorKind::MissingKey => K::MissingKey,
                GgufErrorKind::WrongType => K::Value,
                _ => K::Malformed,
            },
            ImportErrorDetail::Graph(_) => K::Graph,
            ImportErrorDetail::UnknownFormat { .. } => K::UnknownFormat,
            ImportErrorDetail::UnknownArchitecture { .. }
            | ImportErrorDetail::UnknownModelType { .. } => K::UnknownArchitecture,
            ImportErrorDetail::Malformed { .. } => K::Malformed,
            ImportErrorDetail::UnknownOps { .. } => K::UnknownOp,
            ImportErrorDetail::Op { .. } => K::Node,
            ImportErrorDetail::AtShapes { error, .. } | ImportErrorDetail::OnData { error } => {
                error.kind()
            }
            ImportErrorDetail::Unsupported { .. } => K::Unsupported,
            ImportErrorDetail::Value { .. } => K::Value,
            ImportErrorDetail::MissingTensor { .. } => K::MissingTensor,
            ImportErrorDetail::Shape { .. } | ImportErrorDetail::DType { .. } => K::Tensor,
            ImportErrorDetail::UnusedTensor { .. } => K::UnusedTensor,
        }
    }

    /// Error for an invalid value of a metadata key or of a spec.
    pub(crate) fn value(what: impl Into<String>, reason: impl Into<String>) -> ImportError {
        let (what, reason) = (what.into(), reason.into());
        ImportErrorDetail::Value { what, reason }.into()
    }

    /// Error for a part of a file that violates its format.
    pub(crate) fn malformed(what: impl Into<String>, reason: impl Into<String>) -> ImportError {
        let (what, reason) = (what.into(), reason.into());
        ImportErrorDetail::Malformed { what, reason }.into()
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> ImportError {
        ImportErrorDetail::Unsupported { what: what.into() }.into()
    }

    pub(crate) fn missing_tensor(name: &str) -> ImportError {
        let name = name.to_owned();
        ImportErrorDetail::MissingTensor { name }.into()
    }

    /// The error of a lowering for inputs of these shapes.
    pub(crate) fn at_shapes(self, inputs: String) -> ImportError {
        let error = self;
        ImportErrorDetail::AtShapes { error, inputs }.into()
    }

    /// The error of a node that needs what is known only when the model runs.
    pub(crate) fn on_data(self) -> ImportError {
        ImportErrorDetail::OnData { error: self }.into()
    }

    /// Whether a node needs what is known only when the model runs.
    pub(crate) fn depends_on_data(&self) -> bool {
        matches!(*self.problem, ImportErrorDetail::OnData { .. })
    }

    /// The error with the name that `find` gives to the tensor that it names.
    pub(crate) fn rename_tensor(mut self, find: impl Fn(&str) -> Option<String>) -> ImportError {
        if let ImportErrorDetail::MissingTensor { name }
        | ImportErrorDetail::Shape { name, .. }
        | ImportErrorDetail::DType { name, .. }
        | ImportErrorDetail::UnusedTensor { name, .. } = &mut *self.problem
            && let Some(found) = find(name)
        {
            *name = found;
        }
        self
    }

    pub(crate) fn in_file(mut self, path: &Path) -> ImportError {
        // These errors name their file already.
        let named = match &*self.problem {
            ImportErrorDetail::Map(_) => true,
            ImportErrorDetail::Gguf(error) => error.names_file(),
            _ => self.path.is_some(),
        };
        if !named {
            self.path = Some(path.to_owned());
        }
        self
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        // Messages quote text from the file, whose control characters must not reach a terminal.
        let message = self.problem.to_string();
        let shown = message.chars().take(MAX_MESSAGE);
        shown
            .map(|c| if c.is_control() { '\u{FFFD}' } else { c })
            .try_for_each(|c| f.write_char(c))
    }
}

impl<P: Into<ImportErrorDetail>> From<P> for ImportError {
    fn from(problem: P) -> ImportError {
        ImportError {
            problem: Box::new(problem.into()),
            path: None,
        }
    }
}
