//! The configuration file: TOML, with the line of each value.

use super::keys;
use crate::nearest::nearest;
use anyhow::{Context, Result, bail};
use clap::{Arg, Command};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One value of the file.
pub(super) struct FileEntry {
    /// The command of its table; `None` for all commands.
    pub(super) command: Option<String>,
    pub(super) key: String,
    pub(super) values: Vec<String>,
    /// Its line, from 1.
    pub(super) line: usize,
}

/// Reads the file; a missing one has no values. Keys are checked against the flags of the commands.
pub(super) fn read(path: &Path, command: &Command) -> Result<Vec<FileEntry>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    let Ok(text) = std::str::from_utf8(&bytes) else {
        bail!("{} is not UTF-8", path.display());
    };
    let reader = Reader {
        path,
        text,
        command,
    };
    let mut entries = reader.entries()?;
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    command: &'a Command,
}

impl Reader<'_> {
    fn line(&self, span: Range<usize>) -> usize {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    /// The path with a line, for messages.
    fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    fn entries(&self) -> Result<Vec<FileEntry>> {
        let table = match DeTable::parse(self.text) {
            Ok(table) => table,
            Err(error) => {
                let line = self.line(error.span().unwrap_or_default());
                bail!("{}: {}", self.at(line), error.message());
            }
        };
        let mut entries = vec![];
        for (key, value) in table.get_ref().iter() {
            let DeValue::Table(inner) = value.get_ref() else {
                entries.push(self.entry(None, key.get_ref(), key.span(), value)?);
                continue;
            };
            let name = key.get_ref().as_ref();
            let Some(subcommand) = keys::commands(self.command).find(|c| c.get_name() == name)
            else {
                let names = keys::commands(self.command).map(Command::get_name);
                let names: Vec<&str> = names.collect();
                bail!(
                    "{}: unknown table [{name}]; there can be one of {}",
                    self.at(self.line(key.span())),
                    names.join(", ")
                );
            };
            for (key, value) in inner.iter() {
                entries.push(self.entry(Some(subcommand), key.get_ref(), key.span(), value)?);
            }
        }
        Ok(entries)
    }

    fn entry(
        &self,
        table: Option<&Command>,
        key: &str,
        span: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<FileEntry> {
        let line = self.line(span);
        let known = key.replace('_', "-");
        let flags: Vec<&Arg> = self
            .commands(table)
            .filter_map(|subcommand| keys::flag(subcommand, &known))
            .collect();
        let Some(flag) = flags.first() else {
            let place = table.map_or(String::new(), |t| format!(" of kvark {}", t.get_name()));
            let names = self.commands(table).flat_map(keys::names);
            let near = nearest(&known, names, known.chars().count().div_ceil(2)).map_or_else(
                || "kvark config lists the keys".to_owned(),
                |near| format!("did you mean {near}?"),
            );
            bail!("{}: unknown key {key}{place}; {near}", self.at(line));
        };
        let values =
            texts(value.get_ref(), flag).with_context(|| format!("{}: {key}", self.at(line)))?;
        let entry = FileEntry {
            command: table.map(|table| table.get_name().to_owned()),
            key: known,
            values,
            line,
        };
        for subcommand in self.commands(table) {
            keys::check(subcommand, &entry.key, &entry.values).with_context(|| self.at(line))?;
        }
        Ok(entry)
    }

    /// The commands that a key applies to: that of its table, or all.
    fn commands<'c>(&'c self, table: Option<&'c Command>) -> impl Iterator<Item = &'c Command> {
        keys::commands(self.command)
            .filter(move |c| table.is_none_or(|table| table.get_name() == c.get_name()))
    }
}

/// The value as the texts that the flag would take.
fn texts(value: &DeValue<'_>, flag: &Arg) -> Result<Vec<String>> {
    let switch = keys::is_switch(flag);
    let one = |value: &DeValue<'_>| -> Result<String> {
        Ok(match value {
            DeValue::Boolean(on) if switch => on.to_string(),
            _ if switch => bail!("must be true or false"),
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Array(_) => bail!("takes one value, not a list"),
            _ => bail!("must be a text or a number"),
        })
    };
    match value {
        DeValue::Array(list) if keys::is_list(flag) => {
            list.iter().map(|value| one(value.get_ref())).collect()
        }
        value => Ok(vec![one(value)?]),
    }
}
