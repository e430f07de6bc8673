//! `StepPace`: how many prompt tokens a step takes, so that running streams do not wait long.

use std::time::Duration;

/// The fewest prompt tokens of a step: fewer make steps that read all weights for little work.
const MIN_TOKENS: usize = 16;

/// Measures the time of prompt tokens and derives the size of steps.
pub(super) struct StepPace {
    /// The longest time that a decoding sequence should wait for its next token.
    target: Duration,
    /// Seconds per prompt token: an average with more weight on recent steps. 0 before the first step.
    per_token: f64,
}

impl StepPace {
    pub(super) fn new(target: Duration) -> StepPace {
        StepPace {
            target,
            per_token: 0.0,
        }
    }

    /// The number of prompt tokens of the next step: all that fit if no sequence is decoding, otherwise as many as the
    /// target allows.
    pub(super) fn prompt_tokens(&self, decoding: usize, max: usize) -> usize {
        let room = max.saturating_sub(decoding);
        if decoding == 0 {
            return room;
        }
        let fit = match self.per_token > 0.0 {
            true => (self.target.as_secs_f64() / self.per_token) as usize,
            false => MIN_TOKENS * 4,
        };
        // Steps of few sizes need few recordings.
        let fit = match fit {
            0..32 => MIN_TOKENS,
            32..512 => 1 << fit.ilog2(),
            _ => 512,
        };
        fit.min(room)
    }

    /// Seconds per prompt token; 0 before the first step.
    pub(super) fn per_token(&self) -> f64 {
        self.per_token
    }

    /// Records the time of a step with prompt tokens.
    pub(super) fn record(&mut self, prompt_tokens: usize, time: Duration) {
        if prompt_tokens < MIN_TOKENS {
            return;
        }
        let each = time.as_secs_f64() / prompt_tokens as f64;
        self.per_token = match self.per_token > 0.0 {
            true => 0.7 * self.per_token + 0.3 * each,
            false => each,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_as_long_as_the_target_allows() {
        let mut pace = StepPace::new(Duration::from_millis(60));
        assert_eq!(pace.prompt_tokens(0, 512), 512);
        assert_eq!(
            pace.prompt_tokens(1, 512),
            64,
            "before the first measurement"
        );
        pace.record(128, Duration::from_millis(128));
        assert_eq!(pace.prompt_tokens(3, 512), 32, "60 ms at 1 ms a token");
        pace.record(4, Duration::from_secs(9));
        assert_eq!(pace.prompt_tokens(3, 512), 32, "short steps tell nothing");
        for _ in 0..40 {
            pace.record(256, Duration::from_millis(32));
        }
        assert_eq!(pace.prompt_tokens(3, 512), 256);
        assert_eq!(pace.prompt_tokens(500, 512), 12, "decodes come first");
        for _ in 0..40 {
            pace.record(16, Duration::from_secs(1));
        }
        assert_eq!(pace.prompt_tokens(1, 512), 16, "never fewer");
        assert_eq!(pace.prompt_tokens(0, 512), 512);
    }
}
