//! `DiskStore`: prefixes as snapshot files, within a size limit, kept over restarts.

use super::request::CacheSource;
use super::state::Rung;
use super::stored::{Found, StoredPrefix, StoredPrefixes, notes_of};
use crate::snapshot::{Snapshot, SnapshotError};
use crate::{BatchRunner, Model, RuntimeError};
use kv::SeqId;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Snapshots of prefixes in one folder. Files that cannot be read or that belong to another model are ignored.
pub(super) struct DiskStore {
    folder: PathBuf,
    limit: u64,
    files: StoredPrefixes<PathBuf>,
}

const EXTENSION: &str = "kvsnap";

impl DiskStore {
    /// Opens the folder and reads the tokens of its snapshots of `model`.
    pub(super) fn open(folder: &Path, limit: u64, model: &Model) -> std::io::Result<DiskStore> {
        // Models have folders of their own: a snapshot is useless to another model.
        let folder = folder.join(format!("{:016x}", model.fingerprint()));
        std::fs::create_dir_all(&folder)?;
        let mut store = DiskStore {
            folder,
            limit,
            files: StoredPrefixes::default(),
        };
        for entry in std::fs::read_dir(&store.folder)? {
            let path = entry?.path();
            delete_abandoned(&path);
            if path
                .extension()
                .is_none_or(|extension| extension != EXTENSION)
            {
                continue;
            }
            if let Ok(snapshot) = Snapshot::open_tables(&path) {
                store.files.add(stored(path, &snapshot));
            }
        }
        store.trim();
        Ok(store)
    }

    /// Finds those files from now on whose rows are stored as this runner stores them, and, if `smaller_types`, those that were stored in
    /// smaller types on their way down. The others stay.
    pub(super) fn use_files_for(&mut self, runner: &BatchRunner, smaller_types: bool) {
        let types = runner.layer_types();
        self.files.use_only(|file| match file.inexact {
            None => file.types == types,
            Some(_) => smaller_types,
        });
    }

    /// The number of files, and their bytes.
    pub(super) fn usage(&self) -> (usize, u64) {
        self.files.usage()
    }

    /// What is on the disk.
    pub(super) fn rung(&self) -> Rung {
        let (prefixes, bytes) = self.usage();
        Rung {
            name: CacheSource::Disk.name().to_owned(),
            prefixes,
            tokens: self.files.iter().map(|(_, file)| file.tokens.len()).sum(),
            bytes,
            limit: self.limit,
        }
    }

    /// The file from which the longest prefix of `tokens`, at most `limit` of them, can be restored.
    pub(super) fn find(&self, tokens: &[u32], limit: usize) -> Option<Found> {
        self.files.find(tokens, limit)
    }

    /// The tokens, types and bytes of a file that was found.
    pub(super) fn file(&self, id: u32) -> &StoredPrefix<PathBuf> {
        self.files.get(id).expect("a file of the index")
    }

    /// Writes a sequence to a file.
    pub(super) fn save(
        &mut self,
        runner: &BatchRunner,
        model: &Model,
        seq: SeqId,
    ) -> Result<(), RuntimeError> {
        let path = self.path_for(runner.tokens(seq));
        let notes = notes_of(runner.inexact(seq));
        runner.save(model, seq, &path, &notes)?;
        self.add_written(path)
    }

    /// Writes a snapshot that is in memory to a file.
    pub(super) fn keep(&mut self, snapshot: &Snapshot) -> Result<(), RuntimeError> {
        let path = self.path_for(snapshot.tokens());
        snapshot.write_to(&path)?;
        self.add_written(path)
    }

    fn path_for(&self, tokens: &[u32]) -> PathBuf {
        let name = base::xxh64(bytes_of(tokens).as_slice(), 0);
        self.folder.join(format!("{name:016x}.{EXTENSION}"))
    }

    /// Adds a file that was written, and deletes those that it replaces.
    fn add_written(&mut self, path: PathBuf) -> Result<(), RuntimeError> {
        let written = stored(path.clone(), &Snapshot::open_tables(&path)?);
        let same = self.files.iter().filter(|(_, file)| file.place == path);
        let mut replaced: Vec<u32> = same.map(|(id, _)| id).collect();
        replaced.extend(self.files.replaced_by(&written));
        for id in replaced {
            let same = self.files.get(id).is_some_and(|file| file.place == path);
            self.forget(id, !same);
        }
        self.files.add(written);
        self.trim();
        Ok(())
    }

    /// Whether these tokens can be restored from a file.
    pub(super) fn holds(&self, tokens: &[u32]) -> bool {
        self.files.holds(tokens)
    }

    /// Opens a file to restore it. A damaged file is deleted.
    pub(super) fn open_file(&mut self, id: u32) -> Result<Snapshot, SnapshotError> {
        let stored = self.files.get_mut(id).expect("a file of the index");
        stored.used = SystemTime::now();
        // The time of the last use decides which file goes first, also after a restart. It is only a hint.
        _ = std::fs::File::open(&stored.place).and_then(|f| f.set_modified(stored.used));
        let opened = Snapshot::open(&stored.place);
        if opened.is_err() {
            self.forget(id, true);
        }
        opened
    }

    /// Deletes a file that cannot be restored.
    pub(super) fn delete(&mut self, id: u32) {
        self.forget(id, true);
    }

    /// Deletes the files that were not used for the longest time until the limit holds.
    fn trim(&mut self) {
        while self.usage().1 > self.limit {
            let oldest = self.files.iter().min_by_key(|(_, file)| file.used);
            let Some((id, _)) = oldest else { break };
            self.forget(id, true);
        }
    }

    fn forget(&mut self, id: u32, delete: bool) {
        if let Some(file) = self.files.remove(id)
            && delete
        {
            // A file that cannot be deleted is found again at the next start.
            _ = std::fs::remove_file(&file.place);
        }
    }
}

/// The prefix that a file has.
fn stored(path: PathBuf, snapshot: &Snapshot) -> StoredPrefix<PathBuf> {
    let metadata = std::fs::metadata(&path).ok();
    let used = metadata.as_ref().and_then(|m| m.modified().ok());
    let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
    StoredPrefix::of(snapshot, metadata.map_or(0, |m| m.len()), used, path)
}

/// Deletes the temporary file of a process that was killed while it wrote. A running writer has locked its file.
fn delete_abandoned(path: &Path) {
    let is_partial = path
        .extension()
        .is_some_and(|extension| extension == "partial");
    if is_partial
        && let Ok(file) = std::fs::File::open(path)
        && file.try_lock().is_ok()
    {
        // A file that cannot be deleted is tried again at the next start.
        _ = std::fs::remove_file(path);
    }
}

fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect()
}
