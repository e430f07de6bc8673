//! `DiskStore`: prefixes as snapshot files, within a size limit, kept over restarts.

use super::radix::RadixIndex;
use super::request::CacheSource;
use super::state::Rung;
use crate::snapshot::{RestorableLengths, Snapshot, SnapshotError};
use crate::{BatchRunner, Model, RuntimeError, RuntimeErrorKind};
use kv::{KvStorage, SeqId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Snapshots of prefixes in one folder. Files that cannot be read or that belong to another model are ignored.
pub(super) struct DiskStore {
    folder: PathBuf,
    limit: u64,
    files: HashMap<u32, StoredFile>,
    /// The files whose rows the runner can use.
    index: RadixIndex,
    next: u32,
}

struct StoredFile {
    path: PathBuf,
    tokens: Vec<u32>,
    restorable: RestorableLengths,
    /// How its rows are stored.
    types: Vec<[KvStorage; 2]>,
    bytes: u64,
    used: SystemTime,
}

/// A file that shares tokens with a prompt.
pub(super) struct FoundFile {
    /// The number of tokens that both begin with.
    pub(super) shared: usize,
    /// Those of them that can be restored.
    pub(super) kept: usize,
    pub(super) file: u32,
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
            files: HashMap::new(),
            index: RadixIndex::default(),
            next: 0,
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
                store.add(path, &snapshot);
            }
        }
        store.trim();
        Ok(store)
    }

    /// Finds those files from now on whose rows are stored as this runner stores them. The others stay.
    pub(super) fn use_files_for(&mut self, runner: &BatchRunner) {
        self.index = RadixIndex::default();
        let types = runner.layer_types();
        for (id, file) in self.files.iter().filter(|(_, file)| file.types == types) {
            self.index.insert(&file.tokens, *id);
        }
    }

    /// The number of files, and their bytes.
    pub(super) fn usage(&self) -> (usize, u64) {
        let bytes = self.files.values().map(|file| file.bytes).sum();
        (self.files.len(), bytes)
    }

    /// What is on the disk.
    pub(super) fn rung(&self) -> Rung {
        let (prefixes, bytes) = self.usage();
        Rung {
            name: CacheSource::Disk.name(),
            prefixes,
            tokens: self.files.values().map(|file| file.tokens.len()).sum(),
            bytes,
            limit: self.limit,
        }
    }

    /// The file from which the longest prefix of `tokens`, at most `limit` of them, can be restored.
    pub(super) fn find(&self, tokens: &[u32], limit: usize) -> Option<FoundFile> {
        let found = self.index.find(tokens);
        let longest = found.owners.iter().map(|file| (*file, found.len));
        // With recurrent layers, a shorter file on the way may have a later state.
        let types = found.owners.first().map(|file| &self.files[file].types);
        let on_the_way = self.files.iter().filter(|(_, stored)| {
            stored.restorable.has_states()
                && Some(&stored.types) == types
                && stored.tokens.len() < found.len
                && tokens.starts_with(&stored.tokens)
        });
        let on_the_way = on_the_way.map(|(file, stored)| (*file, stored.tokens.len()));
        let candidates = longest.chain(on_the_way).map(|(file, shared)| FoundFile {
            shared,
            kept: self.files[&file].restorable.longest(shared.min(limit)),
            file,
        });
        let best = candidates.max_by_key(|found| (found.kept, found.shared, found.file));
        best.filter(|found| found.kept > 0)
    }

    /// Writes a sequence to a file, and deletes the files whose tokens are the beginning of its tokens and that can be restored
    /// from it.
    pub(super) fn save(
        &mut self,
        runner: &BatchRunner,
        model: &Model,
        seq: SeqId,
    ) -> Result<(), RuntimeError> {
        let tokens = runner.tokens(seq).to_vec();
        let name = base::xxh64(bytes_of(&tokens).as_slice(), 0);
        let path = self.folder.join(format!("{name:016x}.{EXTENSION}"));
        runner.save(model, seq, &path, &[])?;
        let written = Snapshot::open_tables(&path)?;
        let (restorable, types) = (written.restorable(), written.layer_types());
        let replaced = |file: &StoredFile| {
            let kept = |lengths: &RestorableLengths| lengths.longest(file.tokens.len());
            let covered = tokens.starts_with(&file.tokens) && file.types == types;
            file.path == path || covered && kept(&restorable) >= kept(&file.restorable)
        };
        let replaced = self.files.iter().filter(|(_, file)| replaced(file));
        let replaced: Vec<u32> = replaced.map(|(id, _)| *id).collect();
        for id in replaced {
            let same = self.files[&id].path == path;
            self.forget(id, !same);
        }
        self.add(path, &written);
        self.trim();
        Ok(())
    }

    /// Whether these tokens can be restored from a file.
    pub(super) fn holds(&self, tokens: &[u32]) -> bool {
        let found = self.find(tokens, tokens.len());
        found.is_some_and(|found| found.kept == tokens.len())
    }

    /// The token of a file at a position.
    pub(super) fn token(&self, file: u32, position: usize) -> Option<u32> {
        self.files.get(&file)?.tokens.get(position).copied()
    }

    /// Restores the first `len` tokens of a file to an empty sequence. A damaged file is deleted.
    pub(super) fn restore(
        &mut self,
        file: u32,
        runner: &mut BatchRunner,
        model: &Model,
        seq: SeqId,
        len: usize,
    ) -> Result<(), RuntimeError> {
        let stored = self.files.get_mut(&file).expect("a file of the index");
        stored.used = SystemTime::now();
        // The time of the last use decides which file goes first, also after a restart. It is only a hint.
        _ = std::fs::File::open(&stored.path).and_then(|f| f.set_modified(stored.used));
        let opened = Snapshot::open(&stored.path);
        let restored = opened
            .map_err(|error: SnapshotError| error.into())
            .and_then(|snapshot| runner.restore_prefix(model, seq, &snapshot, len));
        match &restored {
            // There was no room.
            Err(error) if matches!(error.kind(), RuntimeErrorKind::Cache(_)) => {}
            Err(_) => self.forget(file, true),
            Ok(()) => {}
        }
        restored
    }

    fn add(&mut self, path: PathBuf, snapshot: &Snapshot) {
        let metadata = std::fs::metadata(&path).ok();
        let used = metadata.as_ref().and_then(|m| m.modified().ok());
        let file = StoredFile {
            path,
            bytes: metadata.map_or(0, |m| m.len()),
            used: used.unwrap_or(SystemTime::UNIX_EPOCH),
            restorable: snapshot.restorable(),
            types: snapshot.layer_types(),
            tokens: snapshot.tokens().to_vec(),
        };
        self.index.insert(&file.tokens, self.next);
        self.files.insert(self.next, file);
        self.next += 1;
    }

    /// Deletes the files that were not used for the longest time until the limit holds.
    fn trim(&mut self) {
        while self.usage().1 > self.limit {
            let oldest = self.files.iter().min_by_key(|(_, file)| file.used);
            let Some((id, _)) = oldest else { break };
            self.forget(*id, true);
        }
    }

    fn forget(&mut self, id: u32, delete: bool) {
        if let Some(file) = self.files.remove(&id) {
            self.index.remove(&file.tokens, id);
            if delete {
                // A file that cannot be deleted is found again at the next start.
                _ = std::fs::remove_file(&file.path);
            }
        }
    }
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
