//! `/set`: options that change while the chat runs.

use super::conversation::Conversation;
use crate::args;
use crate::args::predict;
use crate::sampling::SamplingArgs;
use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
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
        let name = match &*name {
            "temperature" => "temp",
            "n" | "max-tokens" => "predict",
            "typical-p" => "typical",
            name => name,
        };
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
        let o = conversation.sampling();
        let last_n = |n: usize| match n {
            usize::MAX => "-1".to_owned(),
            n => n.to_string(),
        };
        let bias: Vec<String> = o
            .logit_bias
            .iter()
            .map(|(id, bias)| format!("{id}{bias:+}"))
            .collect();
        let breakers: Vec<String> = self
            .sampling
            .dry_sequence_breaker
            .iter()
            .map(|text| format!("{text:?}"))
            .collect();
        let or = |list: Vec<String>, none: &str| match list.is_empty() {
            true => none.to_owned(),
            false => list.join(" "),
        };
        match name {
            "temp" => o.temperature.to_string(),
            "top-k" => o.top_k.to_string(),
            "top-p" => o.top_p.to_string(),
            "min-p" => o.min_p.to_string(),
            "typical" => o.typical_p.to_string(),
            "xtc-probability" => o.xtc_probability.to_string(),
            "xtc-threshold" => o.xtc_threshold.to_string(),
            "repeat-penalty" => o.repeat_penalty.to_string(),
            "frequency-penalty" => o.frequency_penalty.to_string(),
            "presence-penalty" => o.presence_penalty.to_string(),
            "repeat-last-n" => last_n(o.repeat_last_n),
            "dry-multiplier" => o.dry_multiplier.to_string(),
            "dry-base" => o.dry_base.to_string(),
            "dry-allowed-length" => o.dry_allowed_length.to_string(),
            "dry-penalty-last-n" => last_n(o.dry_penalty_last_n),
            "dry-sequence-breaker" => or(breakers.clone(), r#""\n" ":" "\"" "*""#),
            "logit-bias" => or(bias.clone(), "none"),
            "seed" if o.temperature == 0.0 => "not used at temperature 0".to_owned(),
            "seed" => o.seed.to_string(),
            "predict" => self.predict.unwrap_or(-1).to_string(),
            _ => "?".to_owned(),
        }
    }
}
