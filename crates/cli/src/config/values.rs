//! `Configuration`: the values of all keys and where they come from.

use super::file::{self, FileEntry};
use super::{file_path, keys};
use anyhow::{Context, Result, bail};
use clap::Command;
use std::collections::BTreeMap;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    Default,
    File { line: usize },
    Environment { variable: String },
}

/// A line of `kvark config`.
pub(super) struct Row {
    pub(super) key: String,
    /// The command that the value is for; `None` for all.
    pub(super) command: Option<String>,
    /// The value, or a description of the default; `None` if there is none.
    pub(super) value: Option<String>,
    pub(super) source: Source,
}

/// The values of the file and of the environment.
pub(super) struct Configuration {
    file: Vec<FileEntry>,
    /// By key: the variable and its values.
    environment: BTreeMap<String, (String, Vec<String>)>,
}

impl Configuration {
    /// Reads the file and the environment, and checks every value as its flag would.
    pub(super) fn load(command: &Command) -> Result<Configuration> {
        let file = match file_path()? {
            Some(path) => file::read(&path, command)?,
            None => vec![],
        };
        let mut environment = BTreeMap::new();
        for subcommand in keys::commands(command) {
            for arg in subcommand.get_arguments() {
                let Some(key) = keys::key_of(arg) else {
                    continue;
                };
                let variable = keys::variable(key);
                let value = std::env::var(&variable).ok();
                let Some(value) = value.filter(|value| !value.is_empty()) else {
                    continue;
                };
                let values = match (keys::is_switch(arg), arg.get_value_delimiter()) {
                    (true, _) => vec![switch(&value).context(variable.clone())?],
                    (false, Some(delimiter)) => value.split(delimiter).map(str::to_owned).collect(),
                    (false, None) => vec![value],
                };
                keys::check(subcommand, key, &values).with_context(|| variable.clone())?;
                environment.insert(key.to_owned(), (variable, values));
            }
        }
        Ok(Configuration { file, environment })
    }

    /// The value of a key for a command: that of the environment, of the command's table or of the whole file.
    pub(super) fn value(&self, command: &str, key: &str) -> Option<(Vec<String>, Source)> {
        self.resolve(Some(command), key)
            .or_else(|| self.resolve(None, key))
    }

    fn resolve(&self, command: Option<&str>, key: &str) -> Option<(Vec<String>, Source)> {
        if let Some((variable, values)) = self.environment.get(key) {
            let variable = variable.clone();
            return Some((values.clone(), Source::Environment { variable }));
        }
        let found = |entry: &&FileEntry| entry.key == key && entry.command.as_deref() == command;
        let entry = self.file.iter().find(found)?;
        Some((entry.values.clone(), Source::File { line: entry.line }))
    }

    /// All keys with their values, by name; then those of the tables.
    pub(super) fn rows(&self, command: &Command) -> Vec<Row> {
        let mut defaults: BTreeMap<&str, Option<String>> = BTreeMap::new();
        for arg in keys::commands(command).flat_map(Command::get_arguments) {
            if let Some(key) = keys::key_of(arg) {
                let default = defaults.entry(key).or_default();
                *default = default.take().or_else(|| keys::built_in_default(arg));
            }
        }
        let default_model = kvark::catalogue::default_entry().name;
        defaults.insert(keys::MODEL, Some(default_model.to_owned()));
        let row = |key: &str, command: Option<&str>, default: Option<String>| {
            let (value, source) = match self.resolve(command, key) {
                Some((values, source)) => (Some(values.join(", ")), source),
                None => (default, Source::Default),
            };
            Row {
                key: key.to_owned(),
                command: command.map(str::to_owned),
                value,
                source,
            }
        };
        let general = defaults
            .into_iter()
            .map(|(key, default)| row(key, None, default));
        let tables = self.file.iter().filter(|entry| entry.command.is_some());
        let tables = tables.map(|entry| row(&entry.key, entry.command.as_deref(), None));
        general.chain(tables).collect()
    }
}

/// The value of a variable that turns something on or off.
fn switch(text: &str) -> Result<String> {
    let on = match &*text.to_ascii_lowercase() {
        "1" | "true" | "yes" | "on" => true,
        "0" | "false" | "no" | "off" => false,
        _ => bail!("{text:?} must be true or false"),
    };
    Ok(on.to_string())
}
