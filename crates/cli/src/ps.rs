//! `kvark ps`: the models of a running `kvark serve`.

use anyhow::{Result, anyhow};
use clap::Args;
use kvark::hub::{HubErrorKind, RunningServer, ServedModel};
use serde_json::{Value, json};
use std::io::{BufWriter, Write};

/// Show the models of a running kvark serve
#[derive(Args)]
#[command(after_help = "Examples:
  kvark ps
  kvark ps --port 8081 --json
  KVARK_API_KEY=KEY kvark ps")]
pub(crate) struct Ps {
    /// Address of the server
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port of the server
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Key of the server [default: KVARK_API_KEY, or none]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Ps {
    pub(crate) fn execute(self) -> Result<()> {
        // An IPv6 address has colons of its own.
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host.trim_matches(['[', ']'])),
            false => self.host.clone(),
        };
        let address = format!("http://{host}:{}", self.port);
        let own = || std::env::var("KVARK_API_KEY").ok();
        let key = self.api_key.clone().or_else(own);
        let key = key.filter(|key| !key.is_empty());
        let server = RunningServer::ask(&address, key.as_deref());
        let server = server.map_err(|error| match error.kind() {
            HubErrorKind::Unreachable { .. } => {
                anyhow!("no server answers at {address}; kvark serve starts one (--host, --port)")
            }
            HubErrorKind::Unauthorized { .. } => {
                anyhow!("{address} wants a key: --api-key, or KVARK_API_KEY")
            }
            HubErrorKind::NotFound { .. } => {
                anyhow!("{address} is no kvark serve: it has no /v1/models")
            }
            _ => error.into(),
        })?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        match self.json {
            true => writeln!(out, "{}", report(&server))?,
            false => print(&mut out, &server)?,
        }
        Ok(out.flush()?)
    }
}

fn print(out: &mut impl Write, server: &RunningServer) -> Result<()> {
    match &server.build {
        Some(build) => writeln!(out, "{} ({build})", server.address)?,
        None => writeln!(out, "{}", server.address)?,
    }
    let names = server.models.iter().map(|model| model.name.chars().count());
    let width = names.max().unwrap_or(0).max(24);
    writeln!(
        out,
        "{:<width$}  {:<10}  {:>8}  SLOTS",
        "NAME", "STATE", "CONTEXT"
    )?;
    for ServedModel {
        name,
        is_loaded,
        context,
        slots,
    } in &server.models
    {
        let state = if *is_loaded { "loaded" } else { "not loaded" };
        let context = context.map_or("-".to_owned(), |n| n.to_string());
        let slots = slots.map_or("-".to_owned(), |(all, busy)| {
            format!("{busy} of {all} busy")
        });
        writeln!(out, "{name:<width$}  {state:<10}  {context:>8}  {slots}")?;
    }
    Ok(())
}

fn report(server: &RunningServer) -> Value {
    let model = |model: &ServedModel| {
        json!({
            "name": model.name,
            "loaded": model.is_loaded,
            "context": model.context,
            "slots": model.slots.map(|(all, _)| all),
            "busy_slots": model.slots.map(|(_, busy)| busy),
        })
    };
    json!({
        "address": server.address,
        "build": server.build,
        "models": server.models.iter().map(model).collect::<Vec<_>>(),
    })
}
