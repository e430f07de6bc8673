//! `SamplerOptions`: the numbers of every sampling stage.

use crate::{RuntimeError, RuntimeErrorKind};

/// The options of a [`Sampler`](super::Sampler). Names and defaults are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Temperature: divides the logits; 0 always selects the most likely token.
    pub temperature: f32,
    /// Sample from the `top_k` most likely tokens; 0 for all.
    pub top_k: usize,
    /// Sample from the most likely tokens whose probabilities add up to this.
    pub top_p: f32,
    /// Sample from tokens with at least this probability relative to the most likely one.
    pub min_p: f32,
    /// Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities
    /// add up to this; 1 for all.
    pub typical_p: f32,
    /// XTC: the probability of removing the most likely tokens; 0 for never.
    pub xtc_probability: f32,
    /// XTC: of the tokens with at least this probability, all but the least likely are removed; above 0.5 none.
    pub xtc_threshold: f32,
    /// Repetition penalty: divides positive and multiplies negative logits of recent tokens; 1 for none.
    pub repeat_penalty: f32,
    /// Frequency penalty: subtracted from a logit for each recent occurrence of the token; 0 for none.
    pub frequency_penalty: f32,
    /// Presence penalty: subtracted from the logits of recent tokens; 0 for none.
    pub presence_penalty: f32,
    /// The number of recent tokens that the three penalties consider.
    pub repeat_last_n: usize,
    /// DRY: the penalty of a token that would extend a repetition of `dry_allowed_length` tokens; 0 for none.
    pub dry_multiplier: f32,
    /// DRY: the factor of the penalty for each further token of the repetition.
    pub dry_base: f32,
    /// DRY: the length of a repetition from which it is penalised.
    pub dry_allowed_length: usize,
    /// DRY: the number of recent tokens that are searched for repetitions.
    pub dry_penalty_last_n: usize,
    /// DRY: token sequences that end repetitions; see [`sequence_breakers`](super::sequence_breakers).
    pub dry_sequence_breakers: Vec<Vec<u32>>,
    /// Numbers added to the logits of tokens, before all other stages. Negative infinity excludes a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> SamplerOptions {
        SamplerOptions {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: usize::MAX,
            dry_sequence_breakers: vec![],
            logit_bias: vec![],
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// Checks every number, for a model with `vocab` tokens.
    ///
    /// # Errors
    /// `InvalidOptions` with the first option that is out of range.
    pub fn check(&self, vocab: usize) -> Result<(), RuntimeError> {
        let finite = |x: f32| x.is_finite();
        let at_least_zero = |x: f32| x.is_finite() && x >= 0.0;
        let fraction = |x: f32| (0.0..=1.0).contains(&x);
        let positive = |x: f32| x.is_finite() && x > 0.0;
        let at_least_one = |x: f32| x.is_finite() && x >= 1.0;
        type Test<'a> = &'a dyn Fn(f32) -> bool;
        let numbers: [(&str, f32, Test<'_>, &str); 11] = [
            ("temp", self.temperature, &at_least_zero, "at least 0"),
            ("top-p", self.top_p, &fraction, "from 0 to 1"),
            ("min-p", self.min_p, &fraction, "from 0 to 1"),
            ("typical", self.typical_p, &fraction, "from 0 to 1"),
            (
                "xtc-probability",
                self.xtc_probability,
                &fraction,
                "from 0 to 1",
            ),
            (
                "xtc-threshold",
                self.xtc_threshold,
                &fraction,
                "from 0 to 1",
            ),
            ("repeat-penalty", self.repeat_penalty, &positive, "above 0"),
            (
                "frequency-penalty",
                self.frequency_penalty,
                &finite,
                "finite",
            ),
            ("presence-penalty", self.presence_penalty, &finite, "finite"),
            (
                "dry-multiplier",
                self.dry_multiplier,
                &at_least_zero,
                "at least 0",
            ),
            ("dry-base", self.dry_base, &at_least_one, "at least 1"),
        ];
        let invalid = |text: String| Err(RuntimeErrorKind::InvalidOptions(text).into());
        for (name, value, valid, range) in numbers {
            if !valid(value) {
                return invalid(format!("{name} is {value}, must be {range}"));
            }
        }
        for (id, bias) in &self.logit_bias {
            if *id as usize >= vocab {
                return invalid(format!(
                    "logit-bias: token id {id} is outside the model's vocabulary of {vocab}"
                ));
            }
            if !(bias.is_finite() || *bias == f32::NEG_INFINITY) {
                return invalid(format!(
                    "logit-bias of token {id} is {bias}, must be a number or -inf"
                ));
            }
        }
        Ok(())
    }
}
