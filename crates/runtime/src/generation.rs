//! Options, events and the result of a generation.

use crate::decode::TokenLogprobs;
use crate::speculative::SpecStats;
use base::named_enum;
use std::time::Duration;
use text::ReasoningBudget;

/// The conditions that end a generation.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// The maximum number of tokens to generate; `None` for no limit.
    pub max_tokens: Option<usize>,
    /// Stop strings. They end the generation and are not part of its text.
    pub stop: Vec<String>,
    /// Continue after the model's end-of-generation tokens.
    pub ignore_eos: bool,
    /// Tokens that end the generation like the model's end-of-generation tokens.
    pub stop_tokens: Vec<u32>,
    /// No token that ends the generation is sampled before so many others.
    pub min_tokens: usize,
    /// Control tokens that are part of the text, such as the marks of reasoning and tool calls. All others are not.
    pub shown: Vec<u32>,
    /// A limit on the reasoning of the answer. Reasoning that has reached it is closed with the model's own marks, unless a
    /// constraint does not allow them.
    pub reasoning: Option<ReasoningBudget>,
}

named_enum! {
    /// Why a generation ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FinishReason {
        /// An end-of-generation token of the model, or a stop string.
        Stop = "stop",
        /// The maximum number of tokens was generated.
        Length = "length",
        /// The context is full.
        Context = "context",
        /// The caller cancelled it.
        Interrupted = "interrupted",
        /// The deadline of the request passed.
        Deadline = "deadline",
    }
}

/// An event of a running generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenerateEvent {
    /// This many tokens of the prompt are in the cache.
    PromptProgress(usize),
    /// A token was generated; the text that it completes, which may be empty. Never a part of a character.
    Text(String),
}

/// The durations of a generation's parts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Prompt tokens fed.
    pub prompt_tokens: usize,
    /// Time to feed them.
    pub prompt_time: Duration,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Time to generate them.
    pub decode_time: Duration,
    /// Tokens decoded in that time. The first generated token is sampled from the logits of the prompt and needs no
    /// decode.
    pub decoded_tokens: usize,
    /// Time that a request waited for a sequence.
    pub queue_time: Duration,
}

impl Timings {
    /// Prompt tokens per second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Decoded tokens per second; `None` if no token was decoded.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decoded_tokens, self.decode_time)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    let known = tokens > 0 && !time.is_zero();
    known.then(|| tokens as f64 / time.as_secs_f64())
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct GenerateOutput {
    /// The generated tokens, including an end-of-generation token.
    pub tokens: Vec<u32>,
    /// Their text, without stop string and end-of-generation token.
    pub text: String,
    /// The log-probabilities of the tokens, if they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Those of the prompt's tokens from the second one on, if they were asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The stop string that ended it.
    pub stop_string: Option<String>,
    /// How long it took.
    pub timings: Timings,
    /// The counts of its speculation so far, if it speculates.
    pub speculation: Option<SpecStats>,
}
