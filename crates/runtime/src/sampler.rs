//! `Sampler`: samples the next token from logits. Each sampler is a link of a chain, in a file of its own. This file lists
//! the options of all of them, and the links in llama.cpp's default order.

#[macro_use]
mod schema;
mod candidates;
mod chain;
mod dry;
mod logit_bias;
mod min_p;
mod mirostat;
mod penalties;
mod random;
mod sequence_breakers;
mod temperature;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical_p;
mod xtc;

#[cfg(test)]
mod tests;

pub use chain::Sampler;
use chain::Stage;
use schema::{ANY, FRACTION, POSITIVE, at_least};
pub use schema::{NumberRange, OptionKind, OptionValue, SamplingOption, random_seed};
pub use sequence_breakers::{DEFAULT_SEQUENCE_BREAKERS, sequence_breakers};

/// The samplers that `samplers` can name, in the default order. Each makes its link from the options, or none if they turn
/// it off. A logit bias always comes first.
static STAGES: &[Stage] = &[
    Stage::new("penalties", &[], penalties::link),
    Stage::new("dry", &[], dry::link),
    Stage::new("top_n_sigma", &[], top_n_sigma::link),
    Stage::new("top_k", &[], top_k::link),
    Stage::new("typ_p", &["typical", "typical_p"], typical_p::link),
    Stage::new("top_p", &["nucleus"], top_p::link),
    Stage::new("min_p", &[], min_p::link),
    Stage::new("xtc", &[], xtc::link),
    Stage::new(temperature::NAME, &["temp"], temperature::link),
];

sampling_options! {
    /// Temperature; 0 always takes the most likely token
    temperature: f32 = 0.8, Number(at_least(0.0)), "T".flag("temp").default_file("genai_config.json");
    /// Sample from the K most likely tokens; 0 or -1 for all
    top_k: usize = 40, Count(Some(0)), "K".default_file("genai_config.json");
    /// Sample from the most likely tokens whose probabilities sum to P
    top_p: f32 = 0.95, Number(FRACTION), "P".default_file("genai_config.json");
    /// Sample from tokens at least P times as likely as the most likely one
    min_p: f32 = 0.05, Number(FRACTION), "P";
    /// Sample from tokens whose logits are at most N standard deviations below the highest one; 0 or less for all
    top_n_sigma: f32 = -1.0, Number(ANY), "N";
    /// Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities
    /// sum to P; 1 for none
    typical_p: f32 = 1.0, Number(FRACTION), "P".flag("typical").alias("typical-p");
    /// Probability of removing the most likely tokens (XTC); 0 for never
    xtc_probability: f32 = 0.0, Number(FRACTION), "P";
    /// XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none
    xtc_threshold: f32 = 0.1, Number(FRACTION), "P";
    /// Mirostat: 2 removes tokens that are too surprising instead of all other samplers that remove tokens; 0 for none
    mirostat: usize = 0, Choice(&[0, 2]), "N";
    /// Mirostat: the surprise of tokens to reach, in bits
    mirostat_tau: f32 = 5.0, Number(at_least(0.0)), "N".flag("mirostat-ent");
    /// Mirostat: how fast the limit of the surprise follows
    mirostat_eta: f32 = 0.1, Number(at_least(0.0)), "N".flag("mirostat-lr");
    /// Penalty on tokens among the last `repeat_last_n`: divides positive and multiplies negative logits; 1 for none
    repeat_penalty: f32 = 1.0, Number(POSITIVE), "X".default_file("genai_config.json");
    /// Penalty for each occurrence of a token among the last `repeat_last_n`; 0 for none
    frequency_penalty: f32 = 0.0, Number(ANY), "X";
    /// Penalty on tokens that occur among the last `repeat_last_n`; 0 for none
    presence_penalty: f32 = 0.0, Number(ANY), "X";
    /// Number of last tokens that the penalties consider; -1 for all
    repeat_last_n: usize = 64, Count(Some(usize::MAX)), "N";
    /// Penalty on tokens that would extend a repetition (DRY); 0 for none
    dry_multiplier: f32 = 0.0, Number(at_least(0.0)), "X";
    /// Factor of the DRY penalty for each further token of the repetition
    dry_base: f32 = 1.75, Number(at_least(1.0)), "X";
    /// Length of a repetition from which DRY penalises it
    dry_allowed_length: usize = 2, Count(None), "N";
    /// Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all
    dry_penalty_last_n: usize = usize::MAX, Count(Some(usize::MAX)), "N";
    /// Texts across which DRY follows no repetition
    dry_sequence_breakers: Vec<String> = DEFAULT_SEQUENCE_BREAKERS.map(str::to_owned).to_vec(), Texts(), "TEXT"
        .flag("dry-sequence-breaker");
    /// Samplers in the order in which they run; those that are not named do not run
    samplers: Vec<&'static str> = chain::names().collect(), Samplers(), "NAME;NAME";
    /// Numbers added to the logits of tokens, before all samplers; -inf bans a token
    logit_bias: Vec<(u32, f32)> = vec![], Biases(), "ID(+|-)BIAS".short('l');
    /// Seed of the random numbers; -1 draws one
    seed: u64 = 0, Seed(), "N".short('s');
    internal {
        /// The tokens of `dry_sequence_breakers`; see [`sequence_breakers`]. `Model::sampling` sets it.
        dry_breaker_tokens: Vec<Vec<u32>>,
    }
}
