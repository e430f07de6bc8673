//! Models by name: references, the catalogue, downloads from a model hub or an address, the folder that stores models, and
//! the stores of Ollama on this machine. Also requests to servers that run already.
//!
//! This is the only crate with network code.
//!
//! ```no_run
//! use hub::catalogue::ModelStore;
//! use hub::{HubClient, HubOptions, ModelRef};
//!
//! let store = ModelStore::from_env()?;
//! let reference: ModelRef = "hf:owner/repository:Q8_0".parse()?;
//! let path = match store.stored(&reference) {
//!     Some(path) => path,
//!     None => store.pull(&HubClient::new(&HubOptions::from_env())?, &reference, &mut |_| true)?,
//! };
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod catalogue;
mod client;
mod download;
mod error;
mod ollama;
mod options;
mod plain_http;
mod pull;
mod quantisation;
mod reference;
mod repository;
mod running;
mod stored;
mod url;

pub use client::HubClient;
pub use error::{HubError, HubErrorKind};
pub use ollama::{OllamaModel, OllamaStore};
pub use options::HubOptions;
pub use plain_http::{Heard, PlainHttp};
pub use quantisation::quantisation_of_name;
pub use reference::ModelRef;
pub use running::{RunningServer, ServedModel};
pub use stored::{ModelSource, StoredModel};
