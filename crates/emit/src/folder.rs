//! Writes a folder whole or not at all.

use crate::error::{EmitError, EmitErrorKind};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file by which a folder of an earlier program is recognised.
const MARK: &str = "layout.map";
/// The file of weights.
pub(crate) const WEIGHTS: &str = "weights.bin";

/// Writes the files and the weights to a new folder and renames it to `folder`.
pub(crate) fn write(
    folder: &Path,
    files: &[(&str, &[u8])],
    weights: impl FnOnce(&Path) -> Result<(), EmitError>,
) -> Result<(), EmitError> {
    let replaced = check(folder)?;
    let partial = beside(folder, "partial")?;
    let made = make(&partial, files, weights).and_then(|()| match replaced {
        true => replace(&partial, folder),
        false => fs::rename(&partial, folder).map_err(|e| at(folder, e)),
    });
    if made.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

fn at(path: &Path, error: io::Error) -> EmitError {
    EmitErrorKind::Io {
        path: path.to_owned(),
        error,
    }
    .into()
}

/// Whether there is a folder to replace. A folder with other files in it is refused.
fn check(folder: &Path) -> Result<bool, EmitError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(at(folder, error)),
    };
    if entries.count() > 0 && !folder.join(MARK).is_file() {
        return Err(EmitErrorKind::NotOurs(folder.to_owned()).into());
    }
    Ok(true)
}

/// The path of a folder with a dot, the name and an ending, next to `folder`.
fn beside(folder: &Path, ending: &str) -> Result<PathBuf, EmitError> {
    let name = folder
        .file_name()
        .ok_or_else(|| at(folder, io::ErrorKind::InvalidInput.into()))?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.{ending}", std::process::id()));
    Ok(folder.with_file_name(beside))
}

fn make(
    partial: &Path,
    files: &[(&str, &[u8])],
    weights: impl FnOnce(&Path) -> Result<(), EmitError>,
) -> Result<(), EmitError> {
    let _ = fs::remove_dir_all(partial);
    fs::create_dir(partial).map_err(|e| at(partial, e))?;
    weights(&partial.join(WEIGHTS))?;
    for (name, bytes) in files {
        let path = partial.join(name);
        fs::write(&path, bytes).map_err(|e| at(&path, e))?;
    }
    Ok(())
}

/// Replaces a folder; the old one is put back if that fails.
fn replace(partial: &Path, folder: &Path) -> Result<(), EmitError> {
    let old = beside(folder, "old")?;
    fs::rename(folder, &old).map_err(|e| at(folder, e))?;
    if let Err(error) = fs::rename(partial, folder) {
        let _ = fs::rename(&old, folder);
        return Err(at(folder, error));
    }
    let _ = fs::remove_dir_all(&old);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("kvark-emit-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn listed(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_is_whole_or_not_there() {
        let parent = folder("whole");
        let target = parent.join("out");
        let files = [("layout.map", "one".as_bytes())];
        let good = |path: &Path| fs::write(path, "weights").map_err(|e| at(path, e));
        let bad = |_: &Path| Err(EmitErrorKind::Interrupted.into());
        assert!(write(&target, &files, bad).is_err());
        assert_eq!(listed(&parent), [""; 0]);
        write(&target, &files, good).unwrap();
        assert_eq!(listed(&target), ["layout.map", "weights.bin"]);
        let files = [("layout.map", "two".as_bytes())];
        assert!(write(&target, &files, bad).is_err());
        assert_eq!(
            fs::read_to_string(target.join("layout.map")).unwrap(),
            "one"
        );
        write(&target, &files, good).unwrap();
        assert_eq!(
            fs::read_to_string(target.join("layout.map")).unwrap(),
            "two"
        );
        assert_eq!(listed(&parent), ["out"]);
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let target = folder("other");
        fs::write(target.join("letter.txt"), "dear").unwrap();
        let error = write(&target, &[], |_| Ok(())).unwrap_err();
        assert!(matches!(error.kind(), EmitErrorKind::NotOurs(_)), "{error}");
        assert_eq!(listed(&target), ["letter.txt"]);
        fs::remove_dir_all(&target).unwrap();
    }
}
