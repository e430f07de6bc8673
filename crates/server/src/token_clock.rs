//! `TokenClock`: what a stream tells of its speed while it goes on.

use kvark::engine::CacheReport;
use serde_json::{Value, json};
use std::time::Instant;

/// Counts the tokens of an answer that is being generated.
pub(crate) struct TokenClock {
    prompt: usize,
    cached: usize,
    started: Instant,
    first: Option<Instant>,
    tokens: usize,
}

impl TokenClock {
    /// A clock of an answer that has begun.
    pub(crate) fn new(report: &CacheReport) -> TokenClock {
        TokenClock {
            prompt: report.prompt_tokens,
            cached: report.cached_tokens,
            started: Instant::now(),
            first: None,
            tokens: 0,
        }
    }

    /// Counts generated tokens.
    pub(crate) fn count(&mut self, tokens: usize) {
        self.first.get_or_insert_with(Instant::now);
        self.tokens += tokens;
    }

    /// How much of the prompt is computed, with llama.cpp's names.
    pub(crate) fn progress(&self, computed: usize) -> Value {
        json!({
            "total": self.prompt,
            "cache": self.cached,
            "processed": computed,
            "time_ms": self.started.elapsed().as_millis() as u64,
        })
    }

    /// The timings so far, with llama.cpp's names.
    pub(crate) fn timings(&self) -> Value {
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        let milliseconds = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let (prompt, predicted) = (milliseconds(self.started, first), milliseconds(first, now));
        let computed = self.prompt - self.cached;
        let rate = |n: usize, ms: f64| if ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
        json!({
            "cache_n": self.cached,
            "prompt_n": computed,
            "prompt_ms": prompt,
            "prompt_per_second": rate(computed, prompt),
            "predicted_n": self.tokens,
            "predicted_ms": predicted,
            "predicted_per_second": rate(self.tokens.saturating_sub(1), predicted),
        })
    }
}
