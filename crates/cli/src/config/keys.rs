//! The keys of the configuration: names of flags.

use crate::args::reason;
use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};

/// The key of the default model.
pub(super) const MODEL: &str = "model";

/// Commands that have no defaults to configure.
const NOT_CONFIGURED: [&str; 14] = [
    "completions",
    "config",
    "detokenize",
    "exec",
    "export",
    "help",
    "inspect",
    "list",
    "man",
    "ps",
    "pull",
    "rm",
    "show",
    "tokenize",
];

/// Flags that say what one run reads, does and writes.
const OF_ONE_RUN: [&str; 26] = [
    "api",
    "cache",
    "chat",
    "compare",
    "file",
    "help",
    "json",
    "map",
    "messages",
    "on",
    "parallel",
    "print-trace",
    "profile",
    "prompt",
    "prompt-cache",
    "requests",
    "restore",
    "served-model",
    "stride",
    "svg",
    "token-ids",
    "trace",
    "url",
    "version",
    "hf-repo",
    "hf-file",
];

/// The subcommands that have keys.
pub(super) fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|subcommand| !NOT_CONFIGURED.contains(&subcommand.get_name()))
}

/// The key of a flag, if it has one.
pub(super) fn key_of(arg: &Arg) -> Option<&str> {
    arg.get_long().filter(|name| !OF_ONE_RUN.contains(name))
}

/// The flag of a subcommand that this key sets.
pub(super) fn flag<'a>(subcommand: &'a Command, key: &str) -> Option<&'a Arg> {
    subcommand
        .get_arguments()
        .find(|arg| key_of(arg) == Some(key))
}

/// All keys of a subcommand.
pub(super) fn names(subcommand: &Command) -> impl Iterator<Item = &str> {
    subcommand.get_arguments().filter_map(key_of)
}

/// Whether a flag takes no value.
pub(super) fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Whether a flag takes a list.
pub(super) fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The name of the environment variable for a key.
pub(super) fn variable(key: &str) -> String {
    format!("KVARK_{}", key.replace('-', "_").to_ascii_uppercase())
}

/// The default that a flag has by itself, as text: its value, or what its help says after `[default: `.
pub(super) fn built_in_default(arg: &Arg) -> Option<String> {
    if is_switch(arg) {
        return Some("false".to_owned());
    }
    let values = arg.get_default_values().iter();
    let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
    if !values.is_empty() {
        return Some(values.join(", "));
    }
    let help = arg.get_help()?.to_string();
    let (_, default) = help.rsplit_once("[default: ")?;
    Some(default.split_once(']')?.0.to_owned())
}

/// Checks values as the command's flag would; a command without the flag takes any.
pub(super) fn check(subcommand: &Command, key: &str, values: &[String]) -> Result<()> {
    let Some(flag) = flag(subcommand, key) else {
        return Ok(());
    };
    if is_switch(flag) {
        return Ok(());
    }
    for value in values {
        let parser = subcommand.clone().no_binary_name(true);
        let parsed = parser.try_get_matches_from([format!("--{key}={value}")]);
        if let Err(error) = parsed
            && [ErrorKind::ValueValidation, ErrorKind::InvalidValue].contains(&error.kind())
        {
            bail!("{key} = {value:?}: {}", reason(&error));
        }
    }
    Ok(())
}
