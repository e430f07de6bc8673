//! `ReasoningBudget`: a limit on the reasoning of an answer, and what closes reasoning that has reached it.

use crate::harmony::HarmonySplitter;
use crate::reasoning::{ReasoningFormat, TagSplitter};
use crate::{EncodeOptions, Tokenizer, Utf8Stream};
use std::collections::VecDeque;

/// The number of a prompt's last tokens in which the beginning of an answer is looked for.
const PROMPT_END: usize = 32;

/// A limit on the reasoning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningBudget {
    /// The maximum number of tokens, the marks not counted.
    pub tokens: usize,
    /// How the model marks its reasoning.
    pub format: ReasoningFormat,
    /// The part of the answer that the prompt ends with.
    pub begun: String,
}

impl ReasoningBudget {
    /// A limit on the answer to a prompt.
    pub fn after(
        tokens: usize,
        format: ReasoningFormat,
        tokenizer: &Tokenizer,
        prompt: &[u32],
    ) -> ReasoningBudget {
        ReasoningBudget {
            tokens,
            format,
            begun: format.begun_by(tokenizer, prompt),
        }
    }
}

impl ReasoningFormat {
    /// The part of an answer that its prompt has begun; see [`opened`](ReasoningFormat::opened).
    pub fn begun_by(&self, tokenizer: &Tokenizer, prompt: &[u32]) -> String {
        let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        self.opened(&tokenizer.decode(end, true)).to_owned()
    }

    /// The text that closes reasoning. gpt-oss chooses what follows; a model that reasons again after it was closed has to answer.
    fn closing(&self, again: bool) -> String {
        match (self, again) {
            (ReasoningFormat::None, _) => String::new(),
            (ReasoningFormat::Tagged(tags), _) => format!("\n{}", tags.close),
            (ReasoningFormat::Harmony, false) => "<|end|><|start|>assistant".to_owned(),
            (ReasoningFormat::Harmony, true) => {
                "<|end|><|start|>assistant<|channel|>final<|message|>".to_owned()
            }
        }
    }
}

/// Follows the tokens of an answer, and says which tokens close its reasoning once the budget is used.
pub struct ReasoningGuard {
    budget: ReasoningBudget,
    splitter: Splitter,
    utf8: Utf8Stream,
    /// Tokens of reasoning so far.
    used: usize,
    /// The tokens that close the reasoning, from the next one on.
    closing: VecDeque<u32>,
    /// Whether reasoning was closed before.
    closed: bool,
}

enum Splitter {
    None,
    Tags(TagSplitter),
    Harmony(HarmonySplitter),
}

impl ReasoningGuard {
    /// A guard of an answer that has not begun.
    pub fn new(budget: ReasoningBudget) -> ReasoningGuard {
        let splitter = match budget.format {
            ReasoningFormat::None => Splitter::None,
            ReasoningFormat::Tagged(tags) => Splitter::Tags(TagSplitter::new(tags)),
            ReasoningFormat::Harmony => Splitter::Harmony(HarmonySplitter::new()),
        };
        let mut guard = ReasoningGuard {
            splitter,
            utf8: Utf8Stream::default(),
            used: 0,
            closing: VecDeque::new(),
            closed: false,
            budget,
        };
        let begun = std::mem::take(&mut guard.budget.begun);
        guard.follow(&begun);
        guard
    }

    /// The token that the answer must go on with, if its reasoning has used the budget.
    pub fn forced(&mut self, tokenizer: &Tokenizer) -> Option<u32> {
        // Characters are finished first.
        let ends = self.used >= self.budget.tokens && !self.utf8.is_pending();
        if self.closing.is_empty() && ends && self.in_reasoning() {
            let special = EncodeOptions {
                special: true,
                ..EncodeOptions::default()
            };
            let text = self.budget.format.closing(self.closed);
            self.closing.extend(tokenizer.encode(&text, special));
            self.closed = true;
        }
        self.closing.front().copied()
    }

    /// Appends a token of the answer.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) {
        match self.closing.front() {
            Some(next) if *next == token => _ = self.closing.pop_front(),
            // Something else went on in its place.
            _ => self.closing.clear(),
        }
        let reasoned = self.in_reasoning();
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        let text = self.utf8.push(bytes);
        self.follow(&text);
        self.used += usize::from(reasoned && self.in_reasoning());
    }

    fn in_reasoning(&self) -> bool {
        match &self.splitter {
            Splitter::None => false,
            Splitter::Tags(splitter) => splitter.in_reasoning(),
            Splitter::Harmony(splitter) => splitter.in_reasoning(),
        }
    }

    fn follow(&mut self, text: &str) {
        for c in text.chars() {
            match &mut self.splitter {
                Splitter::None => {}
                Splitter::Tags(splitter) => splitter.push(c, &mut |_, _| {}),
                Splitter::Harmony(splitter) => splitter.push(c, &mut |_| {}),
            }
        }
    }
}

#[cfg(test)]
mod tests;
