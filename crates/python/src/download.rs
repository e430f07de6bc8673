//! Models by name: the file of a reference, downloaded if needed.

use crate::error::{Error, Result};
use kvark::catalogue::{FetchProgress, FileState, ModelStore, default_entry};
use kvark::hub::{HubClient, HubOptions, ModelRef, OllamaStore};
use pyo3::prelude::*;
use std::path::PathBuf;

/// The file of a model: a path, a name of the catalogue, `hf:OWNER/REPO`, an address, `ollama:NAME`, or the default
/// model. `progress` is called with the stage, the bytes done and all bytes.
pub(crate) fn path_of(
    py: Python<'_>,
    name: Option<&str>,
    progress: Option<Py<PyAny>>,
) -> Result<PathBuf> {
    let reference = match name {
        Some(name) => name.parse()?,
        None => ModelRef::Catalogue(default_entry()),
    };
    let mut raised = None;
    let found = py.detach(|| {
        resolve(&reference, &mut |state| {
            let call = Python::attach(|py| {
                py.check_signals()?;
                match &progress {
                    Some(call) => {
                        let stage = state.stage.name();
                        call.call1(py, (stage, state.done, state.total)).map(|_| ())
                    }
                    None => Ok(()),
                }
            });
            raised = call.err();
            raised.is_none()
        })
    });
    match raised {
        Some(error) => Err(error.into()),
        None => found,
    }
}

fn resolve(reference: &ModelRef, on: &mut dyn FnMut(FetchProgress) -> bool) -> Result<PathBuf> {
    match reference {
        ModelRef::Path(path) if path.exists() => Ok(path.clone()),
        ModelRef::Path(_) => Err(Error::argument(format!(
            "no such file or catalogue model: {reference}"
        ))),
        ModelRef::Catalogue(entry) => {
            let home = ModelStore::from_env()?;
            match home.state(entry) {
                FileState::Present => Ok(home.model_path(entry)),
                FileState::Absent | FileState::WrongSize => Ok(home.fetch(entry, on)?),
            }
        }
        ModelRef::Hub { .. } | ModelRef::Url(_) => {
            let home = ModelStore::from_env()?;
            match home.stored(reference) {
                Some(path) => Ok(path),
                None => {
                    let client = HubClient::new(&HubOptions::from_env())?;
                    Ok(home.pull(&client, reference, on)?)
                }
            }
        }
        ModelRef::Ollama { name, tag } => Ok(OllamaStore::from_env().find(name, tag)?.path),
    }
}
