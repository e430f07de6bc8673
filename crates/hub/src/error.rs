//! The error type of references, downloads and stored models.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A model that could not be found, downloaded, checked or deleted.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HubError(Box<HubErrorKind>);

/// Why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubErrorKind {
    /// A text is not a model reference.
    #[error("{text} is not a model reference: {reason}")]
    Reference {
        /// The text.
        text: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The settings of the network connection are unusable.
    #[error("{what}: {message}")]
    Settings {
        /// The variable or file.
        what: String,
        /// What is wrong.
        message: String,
    },
    /// A repository or file does not exist.
    #[error("{url} does not exist{}", said(message))]
    NotFound {
        /// The address.
        url: String,
        /// The server's own words, if any.
        message: String,
    },
    /// A repository is private, gated or absent, and no valid token was sent.
    #[error("{url} does not exist or needs a token (HF_TOKEN){}", said(message))]
    Unauthorized {
        /// The address.
        url: String,
        /// The server's own words, if any.
        message: String,
    },
    /// The token has no access, or a licence was not accepted yet.
    #[error(
        "no access to {url}: its licence may have to be accepted on the hub first{}",
        said(message)
    )]
    Forbidden {
        /// The address.
        url: String,
        /// The server's own words, if any.
        message: String,
    },
    /// A server answers with another status that is an error.
    #[error("{url} answers with status {status}{}", said(message))]
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's own words, if any.
        message: String,
    },
    /// A server could not be reached, or failed again and again.
    #[error("cannot download {url}: {message} ({})", tries(*attempts))]
    Unreachable {
        /// The address.
        url: String,
        /// The last failure.
        message: String,
        /// Number of attempts without progress.
        attempts: u32,
    },
    /// A server that the user named does not answer, or not as expected.
    #[error("{url}: {message}")]
    NoAnswer {
        /// The address.
        url: String,
        /// The failure.
        message: String,
    },
    /// A server asks for a longer pause than a download waits.
    #[error("{url} asks to wait {seconds} s before the next try")]
    Busy {
        /// The address.
        url: String,
        /// The pause.
        seconds: u64,
    },
    /// A server redirects in a circle, or to an address that must not be followed.
    #[error("{url} {reason}")]
    Redirect {
        /// The address.
        url: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The hub's list of files cannot be understood.
    #[error("the list of files of {repository} cannot be read: {message}")]
    Listing {
        /// The repository.
        repository: String,
        /// What is wrong.
        message: String,
    },
    /// A repository has no GGUF model and no safetensors with a configuration.
    #[error(
        "{repository} has no GGUF model and is no folder with config.json and model.safetensors"
    )]
    NoGguf {
        /// The repository.
        repository: String,
    },
    /// A repository has no file of this quantisation.
    #[error("{repository} has no GGUF model {asked:?}; it has {}", known.join(", "))]
    UnknownQuantisation {
        /// The repository.
        repository: String,
        /// The quantisation or file that was asked for.
        asked: String,
        /// Those that are there.
        known: Vec<String>,
    },
    /// A part of a split model is not in the repository.
    #[error("{repository} has no file {name}, a part of the split model")]
    MissingPart {
        /// The repository.
        repository: String,
        /// The file.
        name: String,
    },
    /// A server does not state the size of a file.
    #[error(
        "{url} does not state its size, so a complete download could not be told from a cut one"
    )]
    NoSize {
        /// The address.
        url: String,
    },
    /// A file has another size than stated.
    #[error("{file} is damaged: it has {found} bytes, must have {expected}")]
    Size {
        /// The file.
        file: String,
        /// Bytes found.
        found: u64,
        /// Bytes stated.
        expected: u64,
    },
    /// A file has another checksum than stated.
    #[error("{file} is damaged: its sha256 is {found}, must be {expected}")]
    Checksum {
        /// The file.
        file: String,
        /// The checksum of the file.
        found: String,
        /// The checksum stated.
        expected: String,
    },
    /// A downloaded file is not GGUF, or not the other kind that its name says.
    #[error("{url} is not a {kind} file: it starts with \"{}\"", start.escape_ascii())]
    NotGguf {
        /// The address.
        url: String,
        /// The kind that the name says.
        kind: &'static str,
        /// The first bytes.
        start: Vec<u8>,
    },
    /// A file changed on the server during its download.
    #[error("{url} changed during its download; try again")]
    Changed {
        /// The address.
        url: String,
    },
    /// A model is not stored.
    #[error("{name} is not stored here")]
    NotStored {
        /// The name.
        name: String,
    },
    /// Several stored models have this name.
    #[error("{name} could be {}", candidates.join(" or "))]
    Ambiguous {
        /// The name.
        name: String,
        /// The models.
        candidates: Vec<String>,
    },
    /// Another process downloads the model.
    #[error("{name} is being downloaded by another process")]
    InUse {
        /// The model.
        name: String,
    },
    /// A local Ollama store has no such model, or one that cannot be used.
    #[error("{name}: {reason}")]
    Ollama {
        /// The reference.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A file operation failed.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// The operation.
        verb: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The disk is full. What was downloaded is kept, and the next attempt continues there.
    #[error("the disk is full: no room is left for {}", path.display())]
    DiskFull {
        /// The file that was written.
        path: PathBuf,
    },
    /// The caller cancelled it.
    #[error("interrupted")]
    Interrupted,
}

/// The maximum number of characters shown of a server's message.
const MAX_MESSAGE: usize = 200;

/// A server's message as the end of an error message.
fn said(message: &str) -> String {
    match message {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

fn tries(attempts: u32) -> String {
    match attempts {
        1 => "tried once".to_owned(),
        n => format!("tried {n} times"),
    }
}

/// Text from a server, without control characters and not too long.
pub(crate) fn printable(text: &str) -> String {
    let shown = text.chars().take(MAX_MESSAGE);
    let shown: String = shown
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    shown.trim().to_owned()
}

impl HubError {
    /// Why it failed.
    pub fn kind(&self) -> &HubErrorKind {
        &self.0
    }

    pub(crate) fn io(verb: &'static str, path: &Path, source: std::io::Error) -> HubError {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                HubErrorKind::DiskFull { path }.into()
            }
            _ => HubErrorKind::Io { verb, path, source }.into(),
        }
    }
}

impl From<HubErrorKind> for HubError {
    fn from(kind: HubErrorKind) -> HubError {
        HubError(Box::new(kind))
    }
}
