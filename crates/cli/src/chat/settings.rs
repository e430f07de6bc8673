//! `/set`: options that change while the chat runs.

use super::conversation::Conversation;
use crate::args;
use crate::args::predict;
use crate::sampling::SamplingArgs;
use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use kvark::generate::SamplingOption;
use std::fmt::Write;

/// The options that `/set` changes, with the names and values that they have on the command line.
#[derive(Parser, Clone)]
#[command(no_binary_name = true, disable_help_flag = true)]
pub(super) struct Settings {
    #[command(flatten)]
    sampling: SamplingArgs,
    #[arg(long, alias = "n", alias = "max-tokens", value_parser = predict, allow_hyphen_values = true)]
    predict: Option<i64>,
}

impl Settings {
    pub(super) fn new(sampling: SamplingArgs, predict: i64) -> Settings {
        Settings {
            sampling,
            predict: Some(predict),
        }
    }

    /// Names of all options.
    pub(super) fn names() -> Vec<String> {
        let command = Settings::command();
        let names = command.get_arguments().filter_map(clap::Arg::get_long);
        names.map(str::to_owned).collect()
    }

    /// Acts on the words after `/set` and returns what to print. An error changes nothing.
    pub(super) fn set(
        &mut self,
        line: &str,
        conversation: &mut Conversation<'_>,
    ) -> Result<String> {
        if line.is_empty() {
            return self.list(conversation);
        }
        let (name, value) = match line.split_once(char::is_whitespace) {
            Some((name, value)) => (name, value.trim()),
            None => (line, ""),
        };
        let name = name.trim_start_matches('-').replace('_', "-");
        let name = match (SamplingOption::find(&name), &*name) {
            (Some(option), _) => option.flag(),
            (None, "n" | "max-tokens") => "predict".to_owned(),
            _ => name,
        };
        let name = &*name;
        if value.is_empty() {
            return match Settings::names().iter().any(|known| known == name) {
                true => Ok(format!("[{name} is {}]", self.value(name, conversation))),
                false => bail!("unknown option {name}; /set alone lists the options"),
            };
        }
        let mut changed = self.clone();
        if let Err(error) = changed.try_update_from([format!("--{name}={value}")]) {
            match error.kind() {
                ErrorKind::UnknownArgument => {
                    bail!("unknown option {name}; /set alone lists the options")
                }
                _ => bail!("/set {name} {value}: {}", args::reason(&error)),
            }
        }
        let mut options = changed.sampling.options(conversation.model())?;
        if name != "seed" {
            options.seed = conversation.sampling().seed;
        }
        conversation.set_sampling(options, name == "seed");
        let limit = changed.predict.unwrap_or(-1);
        conversation.set_max_tokens(usize::try_from(limit).ok());
        *self = changed;
        Ok(format!("[{name} is {value}]"))
    }

    /// Every option and its value.
    fn list(&self, conversation: &Conversation<'_>) -> Result<String> {
        let mut text = String::new();
        for name in Settings::names() {
            writeln!(text, "{name:<22}{}", self.value(&name, conversation))?;
        }
        Ok(text.trim_end().to_owned())
    }

    /// The value of an option.
    fn value(&self, name: &str, conversation: &Conversation<'_>) -> String {
        let options = conversation.sampling();
        let Some(option) = SamplingOption::find(name) else {
            return self.predict.unwrap_or(-1).to_string();
        };
        match option.text(options) {
            _ if name == "seed" && options.temperature == 0.0 => {
                "not used at temperature 0".to_owned()
            }
            text if text.is_empty() => "none".to_owned(),
            text => text,
        }
    }
}
