//! `IncrementalDetokenizer`: converts sampled tokens to text as they arrive.

use crate::decode::TokenLogprobs;
use crate::generation::{FinishReason, GenerateOptions, GenerateOutput, Timings};
use crate::stop::StopFilter;
use text::{TokenKind, Tokenizer, Utf8Stream};

/// Converts sampled tokens to text and detects the end of the generation: an end-of-generation token, a stop string or
/// the length limit.
pub(crate) struct IncrementalDetokenizer {
    options: GenerateOptions,
    utf8: Utf8Stream,
    stop: StopFilter,
    /// The tokens of the sequence and the generated tokens, for the sampler's penalties.
    history: Vec<u32>,
    generated: GenerateOutput,
}

impl IncrementalDetokenizer {
    pub(crate) fn new<'t>(
        options: GenerateOptions,
        history: impl Iterator<Item = &'t u32>,
    ) -> IncrementalDetokenizer {
        IncrementalDetokenizer {
            utf8: Utf8Stream::default(),
            stop: StopFilter::new(&options.stop),
            options,
            history: history.copied().collect(),
            generated: GenerateOutput {
                tokens: vec![],
                text: String::new(),
                logprobs: vec![],
                prompt_logprobs: vec![],
                finish: FinishReason::Interrupted,
                stop_string: None,
                timings: Timings::default(),
                speculation: None,
            },
        }
    }

    /// The tokens of the sequence and the generated tokens.
    pub(crate) fn history(&self) -> &[u32] {
        &self.history
    }

    /// Puts the tokens that a sequence holds before its history.
    pub(crate) fn prepend(&mut self, tokens: &[u32]) {
        self.history.splice(..0, tokens.iter().copied());
    }

    /// The maximum number of tokens.
    pub(crate) fn max_tokens(&self) -> Option<usize> {
        self.options.max_tokens
    }

    /// The number of generated tokens.
    pub(crate) fn len(&self) -> usize {
        self.generated.tokens.len()
    }

    /// Whether a token ends the generation.
    pub(crate) fn ends(&self, tokenizer: Option<&Tokenizer>, token: u32) -> bool {
        let of_model = tokenizer.is_some_and(|t| t.is_eog(token)) && !self.options.ignore_eos;
        of_model || self.options.stop_tokens.contains(&token)
    }

    /// Whether no token that ends the generation may be next.
    pub(crate) fn must_go_on(&self) -> bool {
        self.len() < self.options.min_tokens
    }

    /// Appends a sampled token. Returns the text that can be shown now, and the reason if the token ends the
    /// generation. Without a tokenizer there is no text.
    pub(crate) fn push(
        &mut self,
        tokenizer: Option<&Tokenizer>,
        token: u32,
    ) -> (String, Option<FinishReason>) {
        self.generated.tokens.push(token);
        self.history.push(token);
        if self.ends(tokenizer, token) {
            return (String::new(), Some(FinishReason::Stop));
        }
        let bytes = tokenizer
            .filter(|t| {
                let hidden = t.kind(token).is_none_or(TokenKind::is_hidden);
                !hidden || self.options.shown.contains(&token)
            })
            .and_then(|t| t.token_bytes(token))
            .unwrap_or_default();
        let (text, found) = self.stop.push(&self.utf8.push(bytes));
        self.generated.text.push_str(&text);
        let enough = self.options.max_tokens.is_some_and(|n| self.len() >= n);
        let end = if found {
            Some(FinishReason::Stop)
        } else {
            enough.then_some(FinishReason::Length)
        };
        (text, end)
    }

    /// Keeps the log-probabilities of the next token, if they were asked for.
    pub(crate) fn push_logprobs(&mut self, logprobs: Option<TokenLogprobs>) {
        self.generated.logprobs.extend(logprobs);
    }

    /// Ends the generation. Returns its output, and the text of it that was pending.
    pub(crate) fn finish(mut self, finish: FinishReason) -> (GenerateOutput, String) {
        let (mut rest, found) = self.stop.push(&self.utf8.finish());
        self.generated.stop_string = self.stop.found().map(str::to_owned);
        if !found {
            rest.push_str(&self.stop.finish());
        }
        self.generated.text.push_str(&rest);
        self.generated.finish = finish;
        (self.generated, rest)
    }
}
