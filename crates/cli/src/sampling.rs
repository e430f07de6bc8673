//! The options of the sampler, under llama.cpp's names.

use crate::args::{
    at_least_zero, clock_seed, fraction, last_n, number, positive, seed, top_k, whole,
};
use crate::output;
use anyhow::{Context, Result};
use clap::Args;
use kvark::Model;
use kvark::generate::{DEFAULT_SEQUENCE_BREAKERS, SamplerOptions, sequence_breakers};

/// Options of the sampler. An option that is `None` or empty has its default.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]
    #[arg(long, value_name = "T", value_parser = at_least_zero)]
    pub(crate) temp: Option<f32>,
    /// Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]
    #[arg(long, value_name = "K", value_parser = top_k)]
    pub(crate) top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) top_p: Option<f32>,
    /// Sample from tokens at least P times as likely as the most likely one [default: 0.05]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) min_p: Option<f32>,
    /// Locally typical sampling with probability P; 1 for none [default: 1]
    #[arg(long, visible_alias = "typical-p", value_name = "P", value_parser = fraction)]
    pub(crate) typical: Option<f32>,
    /// Probability of removing the most likely tokens (XTC); 0 for never [default: 0]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) xtc_probability: Option<f32>,
    /// XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]
    #[arg(long, value_name = "P", value_parser = fraction)]
    pub(crate) xtc_threshold: Option<f32>,
    /// Penalty on tokens among the last --repeat-last-n; 1 for none [default: that of genai_config.json, or 1]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]
    #[arg(long, value_name = "X", value_parser = finite)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]
    #[arg(long, value_name = "X", value_parser = finite)]
    pub(crate) presence_penalty: Option<f32>,
    /// Number of last tokens that the penalties consider; -1 for all [default: 64]
    #[arg(long, value_name = "N", value_parser = last_n)]
    pub(crate) repeat_last_n: Option<usize>,
    /// Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]
    #[arg(long, value_name = "X", value_parser = at_least_zero)]
    pub(crate) dry_multiplier: Option<f32>,
    /// Factor of the DRY penalty for each further token of the repetition [default: 1.75]
    #[arg(long, value_name = "X", value_parser = at_least_one)]
    pub(crate) dry_base: Option<f32>,
    /// Length of a repetition from which DRY penalises it [default: 2]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pub(crate) dry_allowed_length: Option<usize>,
    /// Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]
    #[arg(long, value_name = "N", value_parser = last_n)]
    pub(crate) dry_penalty_last_n: Option<usize>,
    /// Text across which DRY follows no repetition; may be given several times; none for no text [default: \n : " *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) dry_sequence_breaker: Vec<String>,
    /// Add BIAS to the logit of a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times
    #[arg(short = 'l', long, value_name = "ID(+|-)BIAS", value_delimiter = ',', value_parser = token_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Seed of the sampler; -1 takes one from the clock and prints it [default: -1]
    #[arg(short, long, value_name = "N", value_parser = seed)]
    pub(crate) seed: Option<u64>,
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, f32::is_finite, "a number")
}

fn at_least_one(text: &str) -> Result<f32, String> {
    number(
        text,
        |x| x.is_finite() && x >= 1.0,
        "a number of at least 1",
    )
}

/// Parses `15043+1`, `15043-1` (llama.cpp's form) or `15043:1.5`. The bias may be `-inf`.
fn token_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "must be a token id and a bias, as in 15043+1, 15043-1.5 or 15043:-inf";
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (id, bias) = text.split_at(digits);
    let bias = bias.strip_prefix([':', '=']).unwrap_or(bias);
    let bias: f32 = bias.parse().map_err(|_| wrong())?;
    let id = id.parse().map_err(|_| wrong())?;
    match bias.is_finite() || bias == f32::NEG_INFINITY {
        true => Ok((id, bias)),
        false => Err(wrong().to_owned()),
    }
}

/// Replaces `\n`, `\t`, `\r`, `\"`, `\'` and `\\` by the characters they stand for.
fn unescape(text: &str) -> String {
    let mut found = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c != '\\' {
            found.push(c);
            continue;
        }
        match characters.next() {
            Some('n') => found.push('\n'),
            Some('t') => found.push('\t'),
            Some('r') => found.push('\r'),
            Some(same @ ('"' | '\'' | '\\')) => found.push(same),
            other => found.extend(['\\'].into_iter().chain(other)),
        }
    }
    found
}

impl SamplingArgs {
    /// The options, with the model's own defaults.
    ///
    /// # Errors
    /// If an option does not fit the model, such as a bias on a token that it does not have.
    pub(crate) fn options(&self, model: &Model) -> Result<SamplerOptions> {
        let own = model.default_sampling();
        if let Some(config) = model.artifact().genai()
            && !config.not_honoured.is_empty()
        {
            let settings = config.not_honoured.join(", ");
            output::warn(&format!(
                "genai_config.json has settings that kvark does not support: {settings}"
            ));
        }
        let dry_multiplier = self.dry_multiplier.unwrap_or(own.dry_multiplier);
        let options = SamplerOptions {
            temperature: self.temp.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            typical_p: self.typical.unwrap_or(own.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(own.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(own.xtc_threshold),
            repeat_penalty: self.repeat_penalty.unwrap_or(own.repeat_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(own.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(own.presence_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(own.repeat_last_n),
            dry_multiplier,
            dry_base: self.dry_base.unwrap_or(own.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(own.dry_allowed_length),
            dry_penalty_last_n: self.dry_penalty_last_n.unwrap_or(own.dry_penalty_last_n),
            dry_sequence_breakers: match dry_multiplier > 0.0 {
                true => self.sequence_breakers(model),
                false => vec![],
            },
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(clock_seed),
        };
        options
            .check(model.facts().vocab_size)
            .context("the sampling options do not fit the model")?;
        Ok(options)
    }

    /// The token sequences that break repetitions; none if the model has no tokenizer.
    fn sequence_breakers(&self, model: &Model) -> Vec<Vec<u32>> {
        let Ok(tokenizer) = model.tokenizer() else {
            return vec![];
        };
        match &*self.dry_sequence_breaker {
            [] => sequence_breakers(tokenizer, &DEFAULT_SEQUENCE_BREAKERS),
            [none] if none == "none" => vec![],
            texts => {
                let texts: Vec<String> = texts.iter().map(|text| unescape(text)).collect();
                sequence_breakers(tokenizer, &texts)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_read_in_each_form() {
        assert_eq!(token_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(token_bias("15043-1.5"), Ok((15043, -1.5)));
        assert_eq!(token_bias("7:2"), Ok((7, 2.0)));
        assert_eq!(token_bias("7:-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in [
            "",
            "7",
            "+1",
            "a+1",
            "7+",
            "7+inf",
            "7:nan",
            "99999999999+1",
        ] {
            assert!(token_bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn escapes_become_characters() {
        assert_eq!(unescape(r#"a\n\t\"\\b\x\"#), "a\n\t\"\\b\\x\\");
    }
}
