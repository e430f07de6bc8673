//! kvark's errors as the exception classes of `kvark.errors`.

use kvark::backend::CudaError;
use kvark::catalogue::CatalogueError;
use kvark::grammar::GrammarError;
use kvark::hub::HubError;
use kvark::{RuntimeError, RuntimeErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The result of a call that releases the interpreter's lock and may fail.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// An error on its way to Python: a class of `kvark.errors` with a message and a kind.
#[derive(Debug)]
pub(crate) enum Error {
    /// An error of kvark.
    Kvark {
        class: &'static str,
        kind: String,
        message: String,
    },
    /// An exception that Python code or a signal raised.
    Python(PyErr),
}

impl Error {
    fn new(class: &'static str, kind: &str, message: impl ToString) -> Error {
        Error::Kvark {
            class,
            kind: kind.to_owned(),
            message: message.to_string(),
        }
    }

    /// A wrong argument.
    pub(crate) fn argument(message: impl ToString) -> Error {
        Error::new("InvalidArgumentError", "InvalidArgument", message)
    }

    /// A token id outside the vocabulary.
    pub(crate) fn unknown_token(id: u32, vocab: usize) -> Error {
        RuntimeError::from(RuntimeErrorKind::UnknownToken { id, vocab }).into()
    }

    /// A thing that was closed.
    pub(crate) fn closed(what: &str) -> Error {
        Error::new("ClosedError", "Closed", format!("the {what} was closed"))
    }
}

/// The name of an enum's variant.
fn variant(kind: &impl std::fmt::Debug) -> String {
    let text = format!("{kind:?}");
    let end = text.find(|c: char| !c.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

impl From<RuntimeError> for Error {
    fn from(error: RuntimeError) -> Error {
        use RuntimeErrorKind as Kind;
        let class = match error.kind() {
            Kind::Import(_) | Kind::NotADecoder | Kind::Encoder(_) | Kind::NoEmbedding(_) => {
                "ModelError"
            }
            Kind::Text(_) | Kind::NoTokenizer(_) => "TextError",
            Kind::Cache(_) => "CacheError",
            Kind::Backend(_) => "BackendError",
            Kind::MemoryShortfall(_) | Kind::TooMuchMemory { .. } => "MemoryShortfallError",
            Kind::Snapshot(_) => "SnapshotError",
            Kind::QueueFull { .. } | Kind::EngineStopped => "EngineError",
            Kind::PromptTooLong { .. } => "ContextFullError",
            _ => "InvalidArgumentError",
        };
        let kind = match error.kind() {
            Kind::Import(error) => variant(&error.kind()),
            Kind::Cache(error) => variant(error.kind()),
            Kind::Backend(error) => variant(error.kind()),
            Kind::Snapshot(error) => variant(error.kind()),
            kind => variant(kind),
        };
        Error::new(class, &kind, error)
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::new("BackendError", &variant(error.kind()), error)
    }
}

impl From<GrammarError> for Error {
    fn from(error: GrammarError) -> Error {
        Error::new("GrammarError", &variant(&error), error)
    }
}

impl From<HubError> for Error {
    fn from(error: HubError) -> Error {
        Error::new("HubError", &variant(error.kind()), error)
    }
}

impl From<CatalogueError> for Error {
    fn from(error: CatalogueError) -> Error {
        Error::new("HubError", &variant(error.kind()), error)
    }
}

impl From<PyErr> for Error {
    fn from(error: PyErr) -> Error {
        Error::Python(error)
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        let (class, kind, message) = match error {
            Error::Python(error) => return error,
            Error::Kvark {
                class,
                kind,
                message,
            } => (class, kind, message),
        };
        Python::attach(|py| {
            let found = py
                .import("kvark.errors")
                .and_then(|module| module.getattr(class))
                .and_then(|class| Ok(class.cast_into::<PyType>()?));
            match found {
                Ok(class) => PyErr::from_type(class, (message, kind)),
                Err(error) => error,
            }
        })
    }
}
