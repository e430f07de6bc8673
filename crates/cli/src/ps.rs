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
    #[command(flatten)]
    server: ServerArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A running server.
#[derive(Args)]
pub(crate) struct ServerArgs {
    /// Address of the server
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port of the server
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Key of the server [default: KVARK_API_KEY, or none]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

impl ServerArgs {
    /// The key of the server.
    pub(crate) fn key(&self) -> Option<String> {
        let own = || std::env::var("KVARK_API_KEY").ok();
        let key = self.api_key.clone().or_else(own);
        key.filter(|key| !key.is_empty())
    }

    /// Asks the server for its models.
    ///
    /// # Errors
    /// That nobody answers, that it wants a key, or that it is another program.
    pub(crate) fn ask(&self) -> Result<RunningServer> {
        // An IPv6 address has colons of its own.
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host.trim_matches(['[', ']'])),
            false => self.host.clone(),
        };
        let address = format!("http://{host}:{}", self.port);
        let server = RunningServer::ask(&address, self.key().as_deref());
        server.map_err(|error| match error.kind() {
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
        })
    }
}

impl Ps {
    pub(crate) fn execute(self) -> Result<()> {
        let server = self.server.ask()?;
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
