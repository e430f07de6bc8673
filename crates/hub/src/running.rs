//! A `kvark serve` that runs: its models, asked over its API.

use crate::client::HubClient;
use crate::error::{HubError, HubErrorKind, printable};
use serde_json::Value;

/// A server that answers, and its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningServer {
    /// Its address.
    pub address: String,
    /// The name of its build.
    pub build: Option<String>,
    /// Its models, the default one first.
    pub models: Vec<ServedModel>,
}

/// A model of a running server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// Its name on the wire.
    pub name: String,
    /// Whether it is loaded.
    pub is_loaded: bool,
    /// Context in tokens of a request, if it is loaded.
    pub context: Option<u64>,
    /// Requests that can run at once, and those that run now, if it is loaded.
    pub slots: Option<(u64, u64)>,
}

impl RunningServer {
    /// Asks the server at this address, such as `http://127.0.0.1:8080`. `key` is its API key.
    ///
    /// # Errors
    /// If nothing answers there, or what answers has another API.
    pub fn ask(address: &str, key: Option<&str>) -> Result<RunningServer, HubError> {
        let client = HubClient::for_server(address, key)?;
        let ask = |path: &str| -> Result<Value, HubError> {
            let url = format!("{address}{path}");
            let (text, _) = client.persist(&url, &mut || false, || client.text(&url))?;
            serde_json::from_str(&text).map_err(|error| {
                let repository = url.clone();
                let message = printable(&error.to_string());
                HubErrorKind::Listing {
                    repository,
                    message,
                }
                .into()
            })
        };
        let list = ask("/v1/models")?;
        let mut server = RunningServer {
            address: address.to_owned(),
            build: None,
            models: vec![],
        };
        for entry in list["data"].as_array().into_iter().flatten() {
            let Some(name) = entry["id"].as_str() else {
                continue;
            };
            let mut model = ServedModel {
                name: printable(name),
                is_loaded: entry["loaded"].as_bool().unwrap_or(true),
                context: None,
                slots: None,
            };
            // Asking for the properties of another model would load it.
            if model.is_loaded {
                let query = crate::url::encode_path(name);
                if let Ok(props) = ask(&format!("/props?model={query}")) {
                    model.context = props["default_generation_settings"]["n_ctx"].as_u64();
                    let build = props["build_info"].as_str().map(printable);
                    server.build = server.build.or(build);
                }
                if let Ok(slots) = ask(&format!("/slots?model={query}")) {
                    let slots = slots.as_array().map_or(&[][..], Vec::as_slice);
                    let busy = slots.iter().filter(|slot| slot["is_processing"] == true);
                    model.slots = Some((slots.len() as u64, busy.count() as u64));
                }
            }
            server.models.push(model);
        }
        Ok(server)
    }
}
