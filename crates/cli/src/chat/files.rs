//! `/save` and `/export`: files that are written, and files that are not replaced.

use super::saved::saved_turns;
use super::{Next, Session, colours, transcript};
use crate::output;
use anyhow::{Context, Result, bail};
use kvark::snapshot::{Snapshot, SnapshotErrorKind};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A file that a command writes.
pub(super) struct FileToWrite {
    kind: Kind,
    path: PathBuf,
}

#[derive(Clone, Copy)]
enum Kind {
    Snapshot,
    Markdown,
}

impl FileToWrite {
    /// The file of `/save PATH`.
    pub(super) fn snapshot(path: &str) -> FileToWrite {
        FileToWrite {
            kind: Kind::Snapshot,
            path: path.into(),
        }
    }

    /// The file of `/export PATH`.
    pub(super) fn markdown(path: &str) -> FileToWrite {
        FileToWrite {
            kind: Kind::Markdown,
            path: path.into(),
        }
    }

    /// Writes the file. One that exists is replaced if `replace` says so or the user confirms it.
    pub(super) fn write_or_ask(self, session: &mut Session<'_>, replace: bool) -> Next {
        let name = self.path.display();
        match self.replaced() {
            Err(error) => failed(&error),
            Ok(Some(what)) if !replace && session.terminal => Next::Confirm {
                question: format!("{name} {what}: replace it?"),
                file: self,
            },
            Ok(Some(what)) if !replace => {
                let command = match self.kind {
                    Kind::Snapshot => "save",
                    Kind::Markdown => "export",
                };
                colours::note(&format!("[{name} {what}; /{command}! {name} replaces it]"));
                Next::Failed
            }
            Ok(_) => self.write(session),
        }
    }

    /// Writes the file, and replaces one that exists.
    pub(super) fn write(&self, session: &mut Session<'_>) -> Next {
        let written = match self.kind {
            Kind::Snapshot => session
                .conversation
                .save(&self.path, &session.model)
                .map(|tokens| format!("[{} saved]", output::tokens(tokens))),
            Kind::Markdown => {
                let text = transcript::markdown(&session.conversation, &session.model);
                let turns = session.conversation.turns().len() / 2;
                fs::write(&self.path, text)
                    .with_context(|| self.path.display().to_string())
                    .map(|()| format!("[{} exported]", output::count(turns, "turn")))
            }
        };
        match written {
            Ok(said) => {
                colours::note(&said);
                Next::Line
            }
            Err(error) => failed(&error),
        }
    }

    /// The file that writing would replace; `None` if there is no such file.
    ///
    /// # Errors
    /// If the file must not be replaced.
    fn replaced(&self) -> Result<Option<String>> {
        let path = &self.path;
        let name = path.display();
        let facts = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(name.to_string()),
            Ok(facts) => facts,
        };
        if !facts.is_file() {
            bail!("{name} is not a file");
        }
        match self.kind {
            Kind::Markdown => Ok(Some("exists already".to_owned())),
            Kind::Snapshot => snapshot_at(path).map(Some),
        }
    }
}

/// Describes the snapshot in a file.
///
/// # Errors
/// If the file is something else.
fn snapshot_at(path: &Path) -> Result<String> {
    match Snapshot::open(path) {
        Ok(snapshot) => Ok(match saved_turns(&snapshot) {
            Some(turns) => format!("holds a conversation of {}", output::count(turns, "turn")),
            None => "holds a prompt of kvark run".to_owned(),
        }),
        Err(error) => match error.kind() {
            SnapshotErrorKind::NotASnapshot => bail!(
                "{} is not a kvark snapshot, and /save replaces no other file: name another",
                path.display()
            ),
            SnapshotErrorKind::Io(_) => Err(error.into()),
            _ => Ok("is a kvark snapshot that cannot be read".to_owned()),
        },
    }
}

fn failed(error: &anyhow::Error) -> Next {
    colours::note(&format!("[{error:#}]"));
    Next::Failed
}
