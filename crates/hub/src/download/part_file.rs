//! The partial file of a download, and its lock.

use super::pieces::Pieces;
use crate::error::{HubError, HubErrorKind};
use serde_json::Value;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The interval between two tries to get a lock that another process holds.
const POLL: Duration = Duration::from_millis(50);

/// A partial file that this process alone writes.
pub(crate) struct PartFile {
    file: File,
    path: PathBuf,
    /// Whether the file has its final name or is deleted.
    gone: bool,
    resumable: bool,
}

/// The result of [`PartFile::claim`].
pub(super) enum Claim {
    Ours(PartFile),
    /// The file has its final name.
    Done,
}

/// The path of the partial file of `to`.
pub(crate) fn part_path(to: &Path) -> PathBuf {
    with_suffix(to, ".part")
}

/// The path of the state of a partial file.
pub(crate) fn state_path(part: &Path) -> PathBuf {
    with_suffix(part, ".json")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Bytes of an unfinished download of `to` that are there, and bytes in all if they are known. `None` if there is none.
pub(crate) fn unfinished_bytes(to: &Path) -> Option<(u64, Option<u64>)> {
    let part = part_path(to);
    if !part.exists() {
        return None;
    }
    let state = read_state(&part).unwrap_or_default();
    let done = state["done"].as_array().into_iter().flatten();
    let done = done.filter_map(Value::as_u64).sum();
    Some((done, state["bytes"].as_u64()))
}

fn read_state(part: &Path) -> Option<Value> {
    let text = fs::read_to_string(state_path(part)).ok()?;
    serde_json::from_str(&text).ok()
}

impl PartFile {
    /// Opens the partial file of `to` and locks it. Waits while another process downloads the file.
    pub(super) fn claim(to: &Path, cancelled: &mut dyn FnMut() -> bool) -> Result<Claim, HubError> {
        let path = part_path(to);
        let unwritable = |error| HubError::io("write", &path, error);
        loop {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = options.open(&path).map_err(unwritable)?;
            match file.try_lock() {
                Ok(()) => {
                    let is_ours = is_same_file(&file, &path);
                    if to.exists() {
                        if is_ours {
                            let _ = fs::remove_file(&path);
                        }
                        return Ok(Claim::Done);
                    }
                    if is_ours {
                        return Ok(Claim::Ours(PartFile {
                            file,
                            path,
                            gone: false,
                            resumable: true,
                        }));
                    }
                }
                Err(TryLockError::WouldBlock) => {
                    if cancelled() {
                        return Err(HubErrorKind::Interrupted.into());
                    }
                    std::thread::sleep(POLL);
                }
                Err(TryLockError::Error(error)) => return Err(unwritable(error)),
            }
        }
    }

    /// Deletes the partial file of `to` and its state. `name` is the model's, for messages.
    pub(crate) fn delete(to: &Path, name: &str) -> Result<(), HubError> {
        let path = part_path(to);
        match File::options().write(true).open(&path) {
            Ok(file) => match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    let name = name.to_owned();
                    return Err(HubErrorKind::InUse { name }.into());
                }
                _ => fs::remove_file(&path).map_err(|e| HubError::io("delete", &path, e))?,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(HubError::io("delete", &path, error)),
        }
        let _ = fs::remove_file(state_path(&path));
        Ok(())
    }

    /// The file from its start. On some systems a locked file can only be read through the handle that holds the lock.
    pub(super) fn reader(&self) -> Result<File, HubError> {
        let open = || {
            let mut file = self.file.try_clone()?;
            file.rewind()?;
            Ok(file)
        };
        open().map_err(|e| HubError::io("read", &self.path, e))
    }

    pub(super) fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.len())
    }

    /// The state that an earlier download left.
    pub(super) fn state(&self) -> Option<Value> {
        read_state(&self.path)
    }

    /// Prepares the file for these pieces: of the right size, and empty if no piece is there.
    pub(super) fn begin(&mut self, pieces: &Pieces) -> Result<(), HubError> {
        self.resumable = pieces.is_resumable();
        let unwritable = |error| HubError::io("write", &self.path, error);
        if pieces.done() == 0 {
            let _ = fs::remove_file(state_path(&self.path));
            self.file.set_len(0).map_err(unwritable)?;
        }
        self.file.set_len(pieces.total()).map_err(unwritable)
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), HubError> {
        let seek = self.file.seek(SeekFrom::Start(at));
        let written = seek.and_then(|_| self.file.write_all(bytes));
        written.map_err(|e| HubError::io("write", &self.path, e))
    }

    /// Stores which pieces are there. The bytes are on the disk before the state that counts them.
    pub(super) fn save(&mut self, pieces: &Pieces) -> Result<(), HubError> {
        if !pieces.is_resumable() {
            return Ok(());
        }
        let path = state_path(&self.path);
        let text = pieces.to_json().to_string();
        let saved = self.file.sync_data();
        let saved =
            saved.and_then(|()| base::atomic_write(&path, |f| f.write_all(text.as_bytes())));
        saved.map_err(|e| HubError::io("write", &path, e))
    }

    /// Moves the complete file to its final name.
    pub(super) fn finish(&mut self, to: &Path) -> Result<(), HubError> {
        let unwritable = |error| HubError::io("write", to, error);
        self.file.sync_all().map_err(unwritable)?;
        fs::rename(&self.path, to).map_err(unwritable)?;
        self.gone = true;
        let _ = fs::remove_file(state_path(&self.path));
        // Sync the folder too, so that the rename survives a crash. Not every file system supports this.
        let folder = to.parent().map(File::open);
        let _ = folder.map(|folder| folder.and_then(|folder| folder.sync_all()));
        Ok(())
    }

    /// Deletes the file: it is damaged.
    pub(super) fn discard(&mut self) {
        self.gone = true;
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(state_path(&self.path));
    }

    /// Ends a failed download. The file stays if a later download can continue it.
    pub(super) fn release(&mut self) {
        let useful = self.resumable && state_path(&self.path).exists();
        if !self.gone && !useful {
            self.discard();
        }
    }
}

#[cfg(unix)]
pub(crate) fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let own = file.metadata().map(identity);
    let there = fs::metadata(path).map(identity);
    matches!((own, there), (Ok(own), Ok(there)) if own == there)
}

/// Without inodes: a file that was renamed meanwhile is no longer there.
#[cfg(not(unix))]
pub(crate) fn is_same_file(_: &File, path: &Path) -> bool {
    path.exists()
}
