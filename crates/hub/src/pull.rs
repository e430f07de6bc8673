//! Downloads the files of a model into the store.

use crate::catalogue::{FetchCallback, FetchProgress, FetchStage, ModelStore};
use crate::client::HubClient;
use crate::download::{self, RemoteFile};
use crate::error::{HubError, HubErrorKind};
use crate::quantisation::{FOLDER, choose, is_folder, quantisation_of_name};
use crate::reference::ModelRef;
use crate::stored::{Record, RecordedFile};
use crate::url;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a model and the record of them.
struct PullPlan {
    record: Record,
    /// Path of the record.
    path: PathBuf,
    /// A file for each one of the record.
    files: Vec<RemoteFile>,
}

impl ModelStore {
    /// Downloads a model of the hub, or of an address, and returns its (first) file.
    ///
    /// Files get their names when they are complete and their checksums are right. What a failed download has of a file
    /// stays, and the next download continues there; [`stored_models`](ModelStore::stored_models) lists it. Several
    /// processes may download at once: one downloads a file, the others wait for it.
    ///
    /// # Errors
    /// If the reference is of another kind, the model does not exist, the server cannot be reached, the file is damaged,
    /// the store cannot be written, or the caller cancelled. See [`HubErrorKind`].
    pub fn pull(
        &self,
        client: &HubClient,
        reference: &ModelRef,
        on: FetchCallback<'_>,
    ) -> Result<PathBuf, HubError> {
        let mut plan = self.plan(client, reference, on)?;
        let earlier = Record::read(&plan.path);
        plan.record.is_default |= earlier.as_ref().is_some_and(|record| record.is_default);
        let folder = plan.path.parent().unwrap_or(self.root()).to_owned();
        plan.delete_other_versions(&folder, earlier.as_ref())?;
        plan.keep_known_sums(earlier.as_ref());
        plan.record.write(&plan.path)?;
        let result = plan.download(client, &folder, on);
        if result.is_err() && !plan.record.has_any_file(&folder) {
            // Nothing to continue: leave nothing.
            let _ = fs::remove_file(&plan.path);
            self.remove_empty_folders(&folder);
        }
        result?;
        plan.record.write(&plan.path)?;
        Ok(folder.join(&plan.record.files[0].name))
    }

    fn plan(
        &self,
        client: &HubClient,
        reference: &ModelRef,
        on: FetchCallback<'_>,
    ) -> Result<PullPlan, HubError> {
        match reference {
            ModelRef::Hub {
                repository,
                quantisation,
            } => {
                let mut cancelled = || {
                    !on(FetchProgress {
                        stage: FetchStage::Download,
                        done: 0,
                        total: 0,
                    })
                };
                let files = client.files(repository, &mut cancelled)?;
                let files = choose(repository, &files, quantisation.as_deref())?;
                let of_folder = is_folder(&files[0]);
                let label = match of_folder {
                    true => Some(FOLDER.to_owned()),
                    false => quantisation_of_name(&files[0].path),
                };
                let label = label.unwrap_or_else(|| files[0].path.clone());
                let folder = self.hub_folder(repository);
                let remote = files.iter().map(|file| RemoteFile {
                    url: client.file_url(repository, &file.path),
                    bytes: Some(file.bytes),
                    sha256: file.sha256.clone(),
                });
                Ok(PullPlan {
                    files: remote.collect(),
                    path: Record::path_of(&folder.join(&files[0].path)),
                    record: Record {
                        reference: format!("hf:{repository}:{label}"),
                        is_default: quantisation.is_none(),
                        files: files
                            .iter()
                            .map(|f| {
                                let file =
                                    RecordedFile::new(&f.path, Some(f.bytes), f.sha256.clone());
                                match of_folder {
                                    // Files of a folder stay where they are in it.
                                    true => RecordedFile {
                                        name: f.path.clone(),
                                        ..file
                                    },
                                    false => file,
                                }
                            })
                            .collect(),
                    },
                })
            }
            ModelRef::Url(address) => {
                let addresses = url::parts(address);
                let first = self.url_path(&addresses[0]);
                let remote = |url: &String| RemoteFile {
                    url: url.clone(),
                    bytes: None,
                    sha256: None,
                };
                let name = |url: &String| self.url_path(url).to_string_lossy().into_owned();
                Ok(PullPlan {
                    files: addresses.iter().map(remote).collect(),
                    path: Record::path_of(&first),
                    record: Record {
                        reference: reference.to_string(),
                        is_default: true,
                        files: addresses
                            .iter()
                            .map(|url| RecordedFile::new(&name(url), None, None))
                            .collect(),
                    },
                })
            }
            other => Err(HubErrorKind::Reference {
                text: other.to_string(),
                reason: "only models of the hub and addresses are downloaded",
            }
            .into()),
        }
    }
}

impl PullPlan {
    /// Deletes files of another version than the planned one, which `earlier` describes.
    fn delete_other_versions(
        &self,
        folder: &Path,
        earlier: Option<&Record>,
    ) -> Result<(), HubError> {
        for file in &self.record.files {
            let path = folder.join(&file.name);
            let known =
                earlier.and_then(|record| record.files.iter().find(|f| f.name == file.name));
            let same = known.is_some_and(|known| known.is_version_of(file) && known.is_at(&path));
            if !same && path.exists() {
                fs::remove_file(&path).map_err(|e| HubError::io("delete", &path, e))?;
            }
        }
        Ok(())
    }

    /// Takes over the sizes and checksums of files that are there and that no hub states.
    fn keep_known_sums(&mut self, earlier: Option<&Record>) {
        for file in &mut self.record.files {
            let known =
                earlier.and_then(|record| record.files.iter().find(|f| f.name == file.name));
            if let Some(known) = known.filter(|known| known.is_version_of(file)) {
                file.bytes = file.bytes.or(known.bytes);
                file.sha256 = file.sha256.take().or(known.sha256.clone());
            }
        }
    }

    /// Downloads the files that are not there.
    fn download(
        &mut self,
        client: &HubClient,
        folder: &Path,
        on: FetchCallback<'_>,
    ) -> Result<(), HubError> {
        let stated: Option<u64> = self.files.iter().map(|file| file.bytes).sum();
        let mut before = 0;
        for (file, recorded) in self.files.iter().zip(&mut self.record.files) {
            let to = folder.join(&recorded.name);
            if let Ok(meta) = to.metadata() {
                before += meta.len();
                continue;
            }
            let mut report = |stage, done, total: u64| {
                on(FetchProgress {
                    stage,
                    done: before + done,
                    total: stated.unwrap_or(before + total),
                })
            };
            let checked = download::download(client, file, &to, &mut report)?;
            before += checked.bytes;
            recorded.bytes = Some(checked.bytes);
            recorded.sha256 = Some(checked.sha256);
        }
        Ok(())
    }
}
