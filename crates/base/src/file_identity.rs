//! `FileIdentity`: the path and the state of a mapped file.

use crate::xxh64;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

/// A file and its state at one time: its absolute path and a stamp that changes when the file changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    path: PathBuf,
    change_stamp: u64,
}

impl FileIdentity {
    /// The identity of the file at `path` now.
    pub fn of(path: &Path) -> io::Result<FileIdentity> {
        FileIdentity::new(path, &std::fs::metadata(path)?)
    }

    pub(crate) fn new(path: &Path, meta: &Metadata) -> io::Result<FileIdentity> {
        Ok(FileIdentity {
            path: std::path::absolute(path)?,
            change_stamp: change_stamp(meta),
        })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A hash of the file's size and modification time and, on Unix, its change time and inode. It changes when the
    /// file is written to or replaced.
    pub fn change_stamp(&self) -> u64 {
        self.change_stamp
    }
}

fn change_stamp(meta: &Metadata) -> u64 {
    let mut facts = vec![meta.len() as i64];
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        facts.extend([meta.mtime(), meta.mtime_nsec()]);
        facts.extend([meta.ctime(), meta.ctime_nsec(), meta.ino() as i64]);
    }
    #[cfg(not(unix))]
    if let Ok(time) = meta.modified() {
        let since = time.duration_since(std::time::SystemTime::UNIX_EPOCH);
        facts.push(since.map_or(-1, |since| since.as_nanos() as i64));
    }
    xxh64(bytemuck::cast_slice(&facts), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_written_to_has_another_stamp() {
        let path = std::env::temp_dir().join(format!("kvark-origin-{}", std::process::id()));
        std::fs::write(&path, "one").unwrap();
        let before = FileIdentity::of(&path).unwrap();
        assert_eq!(before, FileIdentity::of(&path).unwrap());
        assert_eq!(
            before,
            *crate::Bytes::map(&path).unwrap().file_identity().unwrap().0
        );
        std::fs::write(&path, "another").unwrap();
        assert_ne!(
            before.change_stamp(),
            FileIdentity::of(&path).unwrap().change_stamp()
        );
        std::fs::remove_file(&path).unwrap();
        assert!(FileIdentity::of(&path).is_err());
        assert!(before.path().is_absolute());
    }
}
