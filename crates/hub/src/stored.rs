//! Models that were downloaded from the hub or from an address: records of their files, the list of them, removal.
//!
//! A model of the hub is in `$KVARK_HOME/hub/OWNER/REPOSITORY/`, one from an address in `$KVARK_HOME/url/HOST/`. Beside its
//! first file, `model.gguf.json` records the reference it was asked for by and the files that belong to it. The record is
//! written before the download, so that unfinished downloads are listed too.

use crate::catalogue::{FetchCallback, FetchProgress, FileState, ModelStore};
use crate::download::{self, PartFile, part_path, state_path, unfinished_bytes};
use crate::error::{HubError, HubErrorKind};
use crate::quantisation::{has_quantisation, quantisation_of_name};
use crate::reference::{ModelRef, is_file_path, is_name};
use crate::url;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where a stored model came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A repository of the hub.
    Hub,
    /// An address.
    Url,
    /// A file in the store's folders that no record names, as a killed process may leave.
    Stray,
}

/// A model in the store, complete or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredModel {
    /// The reference, or the path of a stray file.
    pub name: String,
    /// Where it came from.
    pub source: ModelSource,
    /// The file to open; the first one of a split model.
    pub path: PathBuf,
    /// All files, complete or not.
    pub files: Vec<PathBuf>,
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes of the complete model, if they are known.
    pub total_bytes: Option<u64>,
    /// Whether all files are there. Only then may the model be used.
    pub is_complete: bool,
    /// The quantisation that the file's name states.
    pub quantisation: Option<String>,
    /// When it was last used by [`ModelStore::mark_used`].
    pub last_use: Option<SystemTime>,
}

/// What is stored of a model.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The reference, with the quantisation.
    pub(crate) reference: String,
    /// Whether the repository without a quantisation means this model.
    pub(crate) is_default: bool,
    pub(crate) files: Vec<RecordedFile>,
}

/// A file of a model.
#[derive(Clone, Debug)]
pub(crate) struct RecordedFile {
    /// The path in the folder of the record.
    pub(crate) name: String,
    pub(crate) bytes: Option<u64>,
    pub(crate) sha256: Option<String>,
}

impl RecordedFile {
    /// A file with this name, which may have folders before it.
    pub(crate) fn new(path: &str, bytes: Option<u64>, sha256: Option<String>) -> RecordedFile {
        let name = path.rsplit(['/', std::path::MAIN_SEPARATOR]).next();
        RecordedFile {
            name: name.unwrap_or_default().to_owned(),
            bytes,
            sha256,
        }
    }

    /// Whether the file is complete at `path`.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let meta = path.metadata().ok().filter(fs::Metadata::is_file);
        meta.is_some_and(|meta| self.bytes.is_none_or(|bytes| bytes == meta.len()))
    }

    /// Whether nothing stated for `other` contradicts this file.
    pub(crate) fn is_version_of(&self, other: &RecordedFile) -> bool {
        let bytes = other.bytes.is_none_or(|bytes| self.bytes == Some(bytes));
        bytes && (other.sha256.is_none() || self.sha256 == other.sha256)
    }
}

impl Record {
    /// The path of the record of a model whose first file is at `first`.
    pub(crate) fn path_of(first: &Path) -> PathBuf {
        state_path(first)
    }

    /// Reads a record; `None` if there is none or it is damaged.
    pub(crate) fn read(path: &Path) -> Option<Record> {
        let value: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let file = |file: &Value| {
            let name = file["name"].as_str()?;
            // A record must not reach files elsewhere.
            is_file_path(name).then(|| RecordedFile {
                name: name.to_owned(),
                bytes: file["bytes"].as_u64(),
                sha256: file["sha256"].as_str().map(str::to_owned),
            })
        };
        let files = value["files"].as_array()?.iter().map(file);
        let record = Record {
            reference: value["reference"].as_str()?.to_owned(),
            is_default: value["default"].as_bool()?,
            files: files.collect::<Option<Vec<_>>>()?,
        };
        (!record.files.is_empty()).then_some(record)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), HubError> {
        let file =
            |f: &RecordedFile| json!({ "name": f.name, "bytes": f.bytes, "sha256": f.sha256 });
        let text = json!({
            "reference": self.reference,
            "default": self.is_default,
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
        })
        .to_string();
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|e| HubError::io("create", folder, e))?;
        let written = base::atomic_write(path, |file| file.write_all(text.as_bytes()));
        written.map_err(|e| HubError::io("write", path, e))
    }

    /// Whether all files are complete.
    fn is_complete(&self, folder: &Path) -> bool {
        self.files
            .iter()
            .all(|file| file.is_at(&folder.join(&file.name)))
    }

    /// Whether a file is there, complete or not.
    pub(crate) fn has_any_file(&self, folder: &Path) -> bool {
        self.files.iter().any(|file| {
            let path = folder.join(&file.name);
            path.exists() || part_path(&path).exists()
        })
    }
}

impl ModelStore {
    /// The folder of a repository of the hub.
    pub(crate) fn hub_folder(&self, repository: &str) -> PathBuf {
        self.root().join("hub").join(repository)
    }

    /// The path that the file of an address is stored at.
    pub(crate) fn url_path(&self, address: &str) -> PathBuf {
        let plain = |text: &str| -> String {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.~+%".contains(c);
            text.chars()
                .map(|c| if allowed(c) { c } else { '_' })
                .collect()
        };
        let host = plain(&url::authority(address));
        let mut path = self.root().join("url").join(host);
        for part in url::path(address).split('/') {
            match is_name(&plain(part)) {
                true => path.push(plain(part)),
                false => path.push(format!(
                    "_{}",
                    plain(part).replace(['.', '%', '~', '+'], "_")
                )),
            }
        }
        // Addresses that differ in their queries are different files.
        let query = address.split_once('?').map_or("", |(_, query)| query);
        if !["", "download=true"].contains(&query) {
            let folder = format!("{:016x}", base::xxh64(query.as_bytes(), 0));
            let name = path.file_name().map(PathBuf::from).unwrap_or_default();
            path.set_file_name(folder);
            path.push(name);
        }
        path
    }

    /// The (first) file of a model of the catalogue, the hub or an address, if it is stored. Does not use the network.
    pub fn stored(&self, reference: &ModelRef) -> Option<PathBuf> {
        match reference {
            ModelRef::Catalogue(entry) => {
                let there = self.state(entry) == FileState::Present;
                there.then(|| self.model_path(entry))
            }
            ModelRef::Hub {
                repository,
                quantisation,
            } => {
                let folder = self.hub_folder(repository);
                let mut records = Vec::new();
                walk(&folder, &mut |path| {
                    let record = is_record(path).then(|| Record::read(path)).flatten();
                    records.extend(record.map(|r| (path.to_owned(), r)))
                });
                records.sort_by(|a, b| a.0.cmp(&b.0));
                let found = records.into_iter().find(|(path, record)| {
                    let first = path.with_file_name(&record.files[0].name);
                    let name = first.strip_prefix(&folder).unwrap_or(&first);
                    let name = name.to_string_lossy().replace('\\', "/");
                    match quantisation {
                        Some(asked) => has_quantisation(&name, asked),
                        None => record.is_default,
                    }
                });
                complete(found)
            }
            ModelRef::Url(address) => {
                let record = Record::path_of(&self.url_path(&url::parts(address)[0]));
                complete(Record::read(&record).map(|found| (record, found)))
            }
            ModelRef::Path(_) | ModelRef::Ollama { .. } => None,
        }
    }

    /// Models of the hub and of addresses, and stray files, complete or not.
    pub fn stored_models(&self) -> Vec<StoredModel> {
        let mut models = Vec::new();
        for (folder, source) in [("hub", ModelSource::Hub), ("url", ModelSource::Url)] {
            let mut files = BTreeSet::new();
            walk(&self.root().join(folder), &mut |path| {
                files.insert(path.to_owned());
            });
            let records: Vec<PathBuf> = files
                .iter()
                .filter(|path| is_record(path))
                .cloned()
                .collect();
            for path in records {
                let Some(record) = Record::read(&path) else {
                    continue;
                };
                let model = self.describe(&path, &record, source);
                for file in &model.files {
                    let part = part_path(file);
                    for known in [file, &state_path(&part), &part, &path] {
                        files.remove(known);
                    }
                }
                models.push(model);
            }
            models.extend(files.into_iter().map(|path| self.describe_stray(path)));
        }
        models
    }

    fn describe(&self, path: &Path, record: &Record, source: ModelSource) -> StoredModel {
        let folder = path.parent().unwrap_or(Path::new(""));
        let files: Vec<PathBuf> = record.files.iter().map(|f| folder.join(&f.name)).collect();
        let (mut bytes, mut total) = (0, Some(0));
        for (recorded, file) in record.files.iter().zip(&files) {
            let there = file.metadata().map(|meta| (meta.len(), Some(meta.len())));
            let there = there.ok().or_else(|| unfinished_bytes(file));
            let (done, of) = there.unwrap_or((0, None));
            bytes += done;
            total = total.zip(recorded.bytes.or(of)).map(|(sum, n)| sum + n);
        }
        StoredModel {
            name: record.reference.clone(),
            source,
            quantisation: quantisation_of_name(&files[0].to_string_lossy()),
            last_use: self.last_use(&files[0]),
            path: files[0].clone(),
            is_complete: record.is_complete(folder),
            files,
            bytes,
            total_bytes: total,
        }
    }

    fn describe_stray(&self, path: PathBuf) -> StoredModel {
        let bytes = path.metadata().map_or(0, |meta| meta.len());
        StoredModel {
            name: path.display().to_string(),
            source: ModelSource::Stray,
            files: vec![path.clone()],
            path,
            bytes,
            total_bytes: None,
            is_complete: false,
            quantisation: None,
            last_use: None,
        }
    }

    /// The model of [`stored_models`](ModelStore::stored_models) with this name, reference or path, complete or not.
    ///
    /// # Errors
    /// If there is none, or several.
    pub fn find_stored(&self, name: &str) -> Result<StoredModel, HubError> {
        let models = self.stored_models();
        let exact = models
            .iter()
            .find(|model| model.name.eq_ignore_ascii_case(name) || model.path == Path::new(name));
        if let Some(model) = exact {
            return Ok(model.clone());
        }
        let reference: Option<ModelRef> = name.parse().ok();
        let matches = |model: &&StoredModel| match &reference {
            Some(ModelRef::Hub {
                repository,
                quantisation,
            }) => {
                let folder = self.hub_folder(repository);
                let inside = model.path.strip_prefix(folder);
                inside.is_ok_and(|path| {
                    let path = path.to_string_lossy().replace('\\', "/");
                    let asked = quantisation.as_deref();
                    asked.is_none_or(|asked| has_quantisation(&path, asked))
                })
            }
            Some(url @ ModelRef::Url(_)) => model.name == url.to_string(),
            _ => false,
        };
        let found: Vec<&StoredModel> = models.iter().filter(matches).collect();
        match found[..] {
            [model] => Ok(model.clone()),
            [] => Err(HubErrorKind::NotStored {
                name: name.to_owned(),
            }
            .into()),
            _ => Err(HubErrorKind::Ambiguous {
                name: name.to_owned(),
                candidates: found.iter().map(|model| model.name.clone()).collect(),
            }
            .into()),
        }
    }

    /// Deletes a model with all its files, complete or not.
    ///
    /// # Errors
    /// If another process downloads it, or a file cannot be deleted.
    pub fn remove_stored(&self, model: &StoredModel) -> Result<(), HubError> {
        for file in &model.files {
            PartFile::delete(file, &model.name)?;
            match fs::remove_file(file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(HubError::io("delete", file, error));
                }
                _ => {}
            }
            // A folder's files may be in folders of their own; those with other files stay.
            let own = file
                .parent()
                .filter(|own| Some(*own) != model.path.parent());
            let _ = own.map(fs::remove_dir);
        }
        if model.source != ModelSource::Stray {
            let record = Record::path_of(&model.path);
            fs::remove_file(&record).map_err(|e| HubError::io("delete", &record, e))?;
        }
        self.forget_use(&model.path);
        self.remove_empty_folders(model.path.parent().unwrap_or(self.root()));
        Ok(())
    }

    /// Verifies the checksums of a complete model.
    ///
    /// # Errors
    /// If a file is absent, has another size or checksum, or the caller cancelled.
    pub fn verify_stored(
        &self,
        model: &StoredModel,
        on: FetchCallback<'_>,
    ) -> Result<(), HubError> {
        let path = Record::path_of(&model.path);
        let not_stored = || HubErrorKind::NotStored {
            name: model.name.clone(),
        };
        let record = Record::read(&path).filter(|_| model.is_complete);
        let record = record.ok_or_else(not_stored)?;
        let (mut before, total) = (0, model.bytes);
        for (file, recorded) in model.files.iter().zip(&record.files) {
            let mut report = |stage, done, _| {
                let done = before + done;
                on(FetchProgress { stage, done, total })
            };
            let expected = recorded.sha256.as_deref();
            before += download::check_file(file, expected, &mut report)?.bytes;
        }
        Ok(())
    }

    /// Notes that a model was used now. `path` is its file; files outside of the store may be noted too. Errors are
    /// ignored.
    pub fn mark_used(&self, path: &Path) {
        let stamp = self.use_stamp(path);
        let _ = stamp.parent().map(fs::create_dir_all);
        let _ = File::create(stamp).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// When a model was last used.
    pub fn last_use(&self, path: &Path) -> Option<SystemTime> {
        self.use_stamp(path).metadata().ok()?.modified().ok()
    }

    /// Forgets when a model was last used.
    pub(crate) fn forget_use(&self, path: &Path) {
        let _ = fs::remove_file(self.use_stamp(path));
        let _ = fs::remove_dir(self.root().join("used"));
    }

    /// The empty file whose time is the time of the last use. The model's own times must stay: packed weights are bound to
    /// them.
    fn use_stamp(&self, path: &Path) -> PathBuf {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let whole = path.strip_prefix(self.root()).unwrap_or(path);
        let hash = base::xxh64(whole.as_os_str().as_encoded_bytes(), 0);
        self.root().join("used").join(format!("{name}-{hash:016x}"))
    }

    /// Removes a folder of downloads and those above it, as far as they are empty.
    pub(crate) fn remove_empty_folders(&self, folder: &Path) {
        let inside = folder
            .ancestors()
            .take_while(|folder| *folder != self.root());
        for folder in inside {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
    }
}

/// The first file of a record's model if all files are complete.
fn complete(found: Option<(PathBuf, Record)>) -> Option<PathBuf> {
    let (path, record) = found?;
    let folder = path.parent()?;
    record
        .is_complete(folder)
        .then(|| folder.join(&record.files[0].name))
}

/// Whether a file can be the record of a model, by its name.
fn is_record(path: &Path) -> bool {
    let name = path.to_string_lossy().to_ascii_lowercase();
    let ends = [".gguf.json", ".safetensors.json", ".index.json.json"];
    ends.iter().any(|end| name.ends_with(end))
}

/// Calls `each` with every file below a folder.
fn walk(folder: &Path, each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), each),
            Ok(_) => each(&entry.path()),
            Err(_) => {}
        }
    }
}
