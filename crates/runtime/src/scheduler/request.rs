//! Requests, what is reported about them, and the stream of a request's events.

use super::branch_cells::BranchCells;
use crate::decode::{GeneratedToken, TokenConstraint, TokenLogprobs};
use crate::generation::{FinishReason, GenerateOptions, Timings};
use crate::speculative::{RoundTrace, SpecOptions, SpecStats};
use crate::{RuntimeError, RuntimeErrorKind, SamplerOptions};
use base::named_enum;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// A generation that an [`Engine`](crate::Engine) is asked for.
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The lengths of the prompt at which its messages end. Recurrent layers keep their states after some of them, so that a conversation
    /// whose last message was edited is computed from there.
    pub message_ends: Vec<usize>,
    /// How tokens are sampled.
    pub sampling: SamplerOptions,
    /// The conditions that end the generation. With a maximum of 0 tokens, only the prompt is computed and kept.
    pub options: GenerateOptions,
    /// With `Some(k)`, every token comes with its log-probability and those of the `k` most likely tokens.
    pub logprobs: Option<usize>,
    /// With `Some(k)`, the tokens of the prompt have them too. All of the prompt is computed then, whatever is stored.
    pub prompt_logprobs: Option<usize>,
    /// Requests of a higher priority are admitted first.
    pub priority: i32,
    /// The generation ends at this time, with what it has.
    pub deadline: Option<Instant>,
    /// Restricts the tokens that can be sampled.
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// Reuse stored prefixes, and store this request's tokens for later ones.
    pub cache_prompt: bool,
    /// Share rows also that a splice has moved, which are an approximation.
    pub approximate: bool,
    /// Rows of an earlier text that the request uses as an approximation.
    pub moved: Option<MovedTokens>,
    /// The branch of a conversation that holds the request's tokens from its end on.
    pub branch: Option<BranchCells>,
    /// Speculative decoding; `None` decodes plainly. The tokens are the same.
    pub speculation: Option<SpecOptions>,
}

impl Request {
    /// A request with default options.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            message_ends: vec![],
            sampling: SamplerOptions::default(),
            options: GenerateOptions::default(),
            logprobs: None,
            prompt_logprobs: None,
            priority: 0,
            deadline: None,
            constraint: None,
            cache_prompt: true,
            approximate: false,
            moved: None,
            branch: None,
            speculation: None,
        }
    }
}

/// Tokens of a prompt whose rows are taken from an earlier text, where they stood at other positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedTokens {
    /// The earlier text, up to the end of the tokens.
    pub text: Vec<u32>,
    /// The number of its tokens before them.
    pub from: usize,
    /// The number of the prompt's tokens before them.
    pub at: usize,
}

impl MovedTokens {
    /// Whether a prompt has these tokens, and at least one after them.
    pub fn are_in(&self, prompt: &[u32]) -> bool {
        let own = self.text.get(self.from..).filter(|own| !own.is_empty());
        let there = prompt.get(self.at..).zip(own);
        there.is_some_and(|(rest, own)| rest.len() > own.len() && rest.starts_with(own))
    }

    /// Refuses them for a prompt that does not have them.
    pub(super) fn check(&self, prompt: &[u32]) -> Result<(), RuntimeError> {
        match self.are_in(prompt) {
            true => Ok(()),
            false => Err(RuntimeErrorKind::InvalidOptions(format!(
                "the tokens to move, from {} on, are not those of the prompt from {} on",
                self.from, self.at
            ))
            .into()),
        }
    }
}

/// What happened to a request.
#[derive(Debug)]
pub enum RequestEvent {
    /// The request got a sequence; what was reused.
    Started(CacheReport),
    /// This many tokens of the prompt are in the cache.
    PromptProgress(usize),
    /// A token was generated.
    Token(GeneratedToken),
    /// A round of speculation was verified, if the request asked for a trace. Its tokens came before.
    Round(Box<RoundTrace>),
    /// The generation ended. No event follows.
    Finished(Box<RequestOutput>),
    /// The request failed. No event follows.
    Failed(RuntimeError),
}

/// A finished request.
#[derive(Clone, Debug)]
pub struct RequestOutput {
    /// The generated tokens, including an end-of-generation token.
    pub tokens: Vec<u32>,
    /// The text that was pending when the generation ended; the other text came with the tokens.
    pub rest: String,
    /// Why the generation ended.
    pub finish: FinishReason,
    /// The stop string that ended it.
    pub stop_string: Option<String>,
    /// The log-probabilities of the prompt's tokens from the second one on, if they were asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Durations. `prompt_tokens` counts the tokens that were computed, not the reused ones.
    pub timings: Timings,
    /// What was reused.
    pub cache: CacheReport,
    /// The counts of its speculation, if the request asked for it.
    pub speculation: Option<SpecStats>,
}

/// How much of a prompt was reused, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens whose keys and values were reused.
    pub cached_tokens: usize,
    /// Those of them, at the end, whose rows are an approximation: a splice has moved them, or host memory had them in a smaller type.
    pub approximate_tokens: usize,
    /// Where they came from.
    pub source: CacheSource,
    /// Why no more tokens were reused; `None` if all but the last one were, which is always computed for its logits.
    pub miss: Option<CacheMiss>,
}

impl CacheReport {
    /// Nothing of a prompt was reused.
    pub(super) fn nothing(prompt_tokens: usize, miss: Option<CacheMiss>) -> CacheReport {
        CacheReport {
            prompt_tokens,
            cached_tokens: 0,
            approximate_tokens: 0,
            source: CacheSource::None,
            miss,
        }
    }
}

named_enum! {
    /// Where reused tokens came from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CacheSource {
        /// Nothing was reused.
        None = "none",
        /// A request that is running.
        Running = "running",
        /// A retained prefix in memory.
        Memory = "memory",
        /// A snapshot in host memory.
        Host = "host",
        /// A snapshot on disk.
        Disk = "disk",
    }
}

/// Why a prompt was not reused from some position on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheMiss {
    /// The reason.
    pub reason: MissReason,
    /// The first position that had to be computed.
    pub position: usize,
    /// The token that the nearest stored prefix has there; `None` if it ends before.
    pub stored: Option<u32>,
    /// The token of the prompt there.
    pub requested: Option<u32>,
}

named_enum! {
    /// The reason of a [`CacheMiss`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MissReason {
        /// No stored prefix begins with the same token.
        Empty = "empty",
        /// The nearest stored prefix continues with another token.
        Differs = "differs",
        /// The nearest stored prefix ends there: these tokens are new.
        New = "new",
        /// A stored prefix had these tokens, and was removed to make room.
        Evicted = "evicted",
        /// Sliding-window layers have evicted rows that this position needs.
        WindowEvicted = "window_evicted",
        /// Recurrent layers have kept no state at this position.
        NoState = "no_state",
        /// The request asked not to reuse prefixes.
        Disabled = "disabled",
    }
}

/// Cancels a request. The request also ends when its sink returns false.
#[derive(Clone, Debug)]
pub struct RequestHandle {
    pub(super) id: u64,
    pub(super) cancelled: Arc<AtomicBool>,
}

impl RequestHandle {
    /// The request's number in [`EngineState`](crate::EngineState).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Ends the request before its next step.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// The events of a request, in order, pulled by the caller. Dropping it cancels the request.
pub struct Generation {
    pub(super) handle: RequestHandle,
    pub(super) events: Receiver<RequestEvent>,
}

impl Generation {
    /// The handle of the request.
    pub fn handle(&self) -> &RequestHandle {
        &self.handle
    }
}

impl Iterator for Generation {
    type Item = RequestEvent;

    fn next(&mut self) -> Option<RequestEvent> {
        self.events.recv().ok()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.handle.cancel();
    }
}
