//! Atomic replacement of a file: readers see the old content or the new content, never a part.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Writes a temporary file in the folder of `path`, syncs it to disk and renames it to `path`.
///
/// # Errors
/// Any I/O error, including those of `write`. The file at `path` is then unchanged, unless the folder could not be
/// synced.
pub fn atomic_write(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let partial = partial_path(path)?;
    let mut file = lock_partial(&partial)?;
    let written = write(&mut file)
        .and_then(|()| file.sync_all())
        .and_then(|()| rename(&partial, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    // Sync the folder too, so that the rename is on disk. Not all systems can open a folder.
    if let Ok(folder) = File::open(folder(path)) {
        folder.sync_all()?;
    }
    Ok(())
}

/// How often a rename is tried on Windows.
const RENAME_ATTEMPTS: usize = 100;

/// Renames a file. Windows may deny access while a handle of the file at `to` is open, which waiting writers and virus
/// scanners have for a moment, so that the rename is tried again for about a second.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    for _ in 1..RENAME_ATTEMPTS {
        match fs::rename(from, to) {
            Err(error) if cfg!(windows) && error.kind() == io::ErrorKind::PermissionDenied => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            done => return done,
        }
    }
    fs::rename(from, to)
}

fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// The path of the temporary file, `.<name>.partial` in the same folder. The name is fixed, so that a file left by a
/// killed process is reused.
fn partial_path(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut partial = std::ffi::OsString::from(".");
    partial.push(name);
    partial.push(".partial");
    Ok(folder(path).join(partial))
}

/// Opens the temporary file empty and locked. Waits for another write of the same file; the lock of a killed process is
/// released by the system.
fn lock_partial(partial: &Path) -> io::Result<File> {
    loop {
        let mut options = File::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(partial)?;
        file.lock()?;
        // While this one waited, the other write may have renamed the file to its final name.
        if is_same_file(&file, partial)? {
            file.set_len(0)?;
            return Ok(file);
        }
    }
}

#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(windows)]
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    use same_file::Handle;
    let own = Handle::from_file(file.try_clone()?)?;
    match Handle::from_path(path) {
        Ok(there) => Ok(own == there),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn writers_at_the_same_time_leave_one_whole_file() {
        let folder = std::env::temp_dir().join(format!("kvark-atomic-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        // A process that was killed while it wrote leaves such a file.
        fs::write(partial_path(&path).unwrap(), "abandoned").unwrap();
        std::thread::scope(|scope| {
            for letter in b'a'..b'e' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..8 {
                        atomic_write(path, |file| file.write_all(&[letter; 5000])).unwrap();
                    }
                });
            }
        });
        let text = fs::read(&path).unwrap();
        assert!(text.len() == 5000 && text.iter().all(|letter| *letter == text[0]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let error = atomic_write(&path, |_| Err(io::ErrorKind::Other.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
        assert_eq!(fs::read(&path).unwrap(), text);
        fs::remove_dir_all(&folder).unwrap();
    }
}
