//! `kvark config` and the configuration: defaults of flags in a file and in environment variables.

mod file;
mod keys;
mod values;

use crate::args;
use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Args, Command};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use values::{Configuration, Source};

/// Show the configuration and where each value comes from
#[derive(Args)]
#[command(
    after_help = "The file is $XDG_CONFIG_HOME/kvark/config.toml (~/.config/kvark/config.toml when XDG_CONFIG_HOME is not set), or the one \
that KVARK_CONFIG names. Its keys are the names of flags; a table holds those of one command:

  model = \"qwen2.5-coder\"
  threads = 4
  cache-type-k = \"q8\"
  temp = 0.2

  [chat]
  system = \"Answer in one sentence.\"

A flag takes precedence over an environment variable (KVARK_THREADS for threads), a variable over the file, a command's table \
over the keys above it.

Examples:
  kvark config
  kvark config --path
  kvark config --json"
)]
pub(crate) struct Config {
    /// Print the path of the file and nothing else
    #[arg(long, conflicts_with = "json")]
    path: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Config {
    pub(crate) fn execute(self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.path {
            let path = file_path()?.context(NO_HOME)?;
            writeln!(out, "{}", path.display())?;
            return Ok(());
        }
        let command = crate::command();
        let configuration = Configuration::load(&command)?;
        let path = file_path()?;
        let rows = configuration.rows(&command);
        if self.json {
            let values: Vec<_> = rows
                .iter()
                .map(|row| {
                    let (source, line, variable) = match &row.source {
                        Source::Default => ("default", None, None),
                        Source::File { line } => ("file", Some(line), None),
                        Source::Environment { variable } => ("environment", None, Some(variable)),
                    };
                    json!({
                        "key": row.key,
                        "command": row.command,
                        "value": row.value,
                        "source": source,
                        "line": line,
                        "variable": variable,
                    })
                })
                .collect();
            let exists = path.as_ref().is_some_and(|path| path.exists());
            let report = json!({ "file": path, "exists": exists, "values": values });
            writeln!(out, "{report}")?;
            return Ok(());
        }
        let name = |row: &values::Row| match &row.command {
            Some(command) => format!("{command}.{}", row.key),
            None => row.key.clone(),
        };
        let keys = rows.iter().map(|row| name(row).len()).max().unwrap_or(0);
        let shown = |row: &values::Row| row.value.clone().unwrap_or_else(|| "not set".to_owned());
        let widths = rows.iter().map(|row| shown(row).chars().count());
        // Long values do not push the sources of all others away.
        let width = widths.filter(|width| *width <= 40).max().unwrap_or(0);
        for row in &rows {
            let source = match &row.source {
                Source::Default => "default".to_owned(),
                Source::File { line } => {
                    let path = path.as_deref().unwrap_or("config.toml".as_ref());
                    format!("{}:{line}", path.display())
                }
                Source::Environment { variable } => variable.clone(),
            };
            writeln!(
                out,
                "{:<keys$}  {:<width$}  {source}",
                name(row),
                shown(row)
            )?;
        }
        Ok(())
    }
}

const NO_HOME: &str = "there is no place for a configuration: neither XDG_CONFIG_HOME nor HOME is set; KVARK_CONFIG can name a file";

/// Path of the file: that of `KVARK_CONFIG`, or the one in the user's configuration folder. `None` without such a folder.
///
/// # Errors
/// If `KVARK_CONFIG` names a file that does not exist.
fn file_path() -> Result<Option<PathBuf>> {
    let folder = |name| {
        std::env::var_os(name)
            .filter(|v: &OsString| !v.is_empty())
            .map(PathBuf::from)
    };
    if let Some(path) = folder("KVARK_CONFIG") {
        if !path.exists() {
            bail!("KVARK_CONFIG={}: there is no such file", path.display());
        }
        return Ok(Some(path));
    }
    // Relative folders are to be ignored by the XDG specification.
    let named = folder("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let own = || match cfg!(windows) {
        true => folder("APPDATA"),
        false => folder("HOME").map(|path| path.join(".config")),
    };
    let folder = named.or_else(own);
    Ok(folder.map(|folder| folder.join("kvark").join("config.toml")))
}

/// A path with the user's home folder in the place of `~`, which no shell has replaced in a file.
fn with_home(path: &str) -> String {
    let home = std::env::var("HOME").ok().filter(|home| !home.is_empty());
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => format!("{home}/{rest}"),
        _ => path.to_owned(),
    }
}

/// Parses arguments, with the configuration as the defaults of flags. Exits on wrong usage and after help.
///
/// # Errors
/// If the configuration is wrong.
pub(crate) fn parse(command: Command, arguments: &[OsString]) -> Result<ArgMatches> {
    // Help and wrong usage come before the configuration is read.
    let plain = command.clone().get_matches_from(arguments);
    let Some((name, given)) = plain.subcommand() else {
        return Ok(plain);
    };
    let is_configured = keys::commands(&command).any(|known| known.get_name() == name);
    let takes_model = |known: &Command| keys::flag(known, keys::MODEL).is_some();
    if !is_configured && !command.find_subcommand(name).is_some_and(takes_model) {
        return Ok(plain);
    }
    let configuration = Configuration::load(&command)?;
    if let Some((model, _)) = configuration.value(name, keys::MODEL) {
        args::set_default_model(with_home(&model.concat()));
    }
    if !is_configured {
        return Ok(plain);
    }
    let with_defaults = command.mut_subcommand(name, |subcommand| {
        subcommand.mut_args(|arg| {
            let Some(key) = keys::key_of(&arg).map(str::to_owned) else {
                return arg;
            };
            match configuration.value(name, &key) {
                Some((values, _)) if applies(&configuration, name, &key, given) => {
                    arg.default_values(values)
                }
                _ => arg,
            }
        })
    });
    Ok(with_defaults.get_matches_from(arguments))
}

/// Whether a configured value is the default of a flag: not that of a flag which needs another one that is not there.
fn applies(configuration: &Configuration, command: &str, key: &str, given: &ArgMatches) -> bool {
    match (command, key) {
        (_, keys::MODEL) => false,
        // The key of one's own server is nothing that others may see.
        ("agents-bench", "api-key") => false,
        // The command reads the variable itself.
        (_, "passes") => {
            let value = configuration.value(command, key);
            value.is_some_and(|(_, source)| matches!(source, Source::File { .. }))
        }
        ("run", "system" | "chat-template") => {
            given.get_flag("chat") || given.contains_id("messages")
        }
        (_, "keep") => {
            let configured = configuration.value(command, "context-shift");
            given.get_flag("context_shift") || configured.is_some_and(|(on, _)| on == ["true"])
        }
        _ => true,
    }
}
