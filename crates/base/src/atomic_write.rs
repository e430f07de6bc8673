//! A file replaced as a whole: whoever looks finds the old one or the new one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Writes a file beside `path`, lets it reach the disk, and renames it. When anything fails, `path` is as it was.
pub fn atomic_write(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let partial = partial_path(path)?;
    let mut file = lock_partial(&partial)?;
    let written = write(&mut file)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&partial, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    // The new name must reach the disk as well, where folders can be opened for that.
    if let Ok(folder) = File::open(folder(path)) {
        folder.sync_all()?;
    }
    Ok(())
}

fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// The name of the unfinished file: always the same one, so that what a killed process left is used up by the next.
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

/// The unfinished file, empty and locked. Another save of the same file is waited for; a lock ends with its process.
fn lock_partial(partial: &Path) -> io::Result<File> {
    loop {
        let mut options = File::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(partial)?;
        file.lock()?;
        // The other save may have renamed the file that was waited for: it is the finished one now.
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

/// Where files have no numbers, a file that has content may be the finished one.
#[cfg(not(unix))]
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    if file.metadata()?.len() > 0 {
        let _ = fs::remove_file(path);
        return Ok(false);
    }
    Ok(true)
}
