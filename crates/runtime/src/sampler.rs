//! `Sampler`: samples the next token from logits.

/// The options of a [`Sampler`]. The defaults are llama.cpp's.
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
    /// Repetition penalty: divides positive and multiplies negative logits of recent tokens; 1 for none.
    pub repeat_penalty: f32,
    /// The number of recent tokens that are penalised.
    pub repeat_last_n: usize,
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
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }
}

/// Samples tokens; holds its random state and scratch.
pub struct Sampler {
    options: SamplerOptions,
    state: u64,
    penalised: Vec<f32>,
    /// Candidates: logit, then probability, with the token.
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler with the seed of the options.
    pub fn new(options: SamplerOptions) -> Sampler {
        let state = options.seed;
        Sampler {
            options,
            state,
            penalised: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Samples the token after `history` from its logits. Of equal logits, the lower id is preferred.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> u32 {
        let mut penalised = std::mem::take(&mut self.penalised);
        let logits = if self.options.repeat_penalty == 1.0 {
            logits
        } else {
            penalised.clear();
            penalised.extend_from_slice(logits);
            self.penalise(&mut penalised, history);
            &penalised
        };
        let token = if self.options.temperature <= 0.0 || self.options.top_k == 1 {
            argmax(logits)
        } else {
            self.draw(logits)
        };
        self.penalised = penalised;
        token
    }

    fn penalise(&self, logits: &mut [f32], history: &[u32]) {
        let recent = &history[history.len().saturating_sub(self.options.repeat_last_n)..];
        for (i, token) in recent.iter().enumerate() {
            // Each token is penalised once, however often it occurred.
            if let Some(logit) = logits
                .get_mut(*token as usize)
                .filter(|_| !recent[..i].contains(token))
            {
                let penalty = self.options.repeat_penalty;
                *logit = if *logit > 0.0 {
                    *logit / penalty
                } else {
                    *logit * penalty
                };
            }
        }
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let random = self.uniform();
        let o = &self.options;
        let list = &mut self.candidates;
        list.clear();
        list.extend(logits.iter().zip(0..).map(|(l, id)| (*l, id)));
        let by_logit = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if o.top_k > 0 && o.top_k < list.len() {
            list.select_nth_unstable_by(o.top_k - 1, by_logit);
            list.truncate(o.top_k);
        }
        list.sort_unstable_by(by_logit);
        let top = list[0].0;
        // The filters use the distribution without temperature; the draw uses the one with temperature.
        let total: f64 = list.iter().map(|(l, _)| f64::from(l - top).exp()).sum();
        let mut cumulative = 0.0;
        let mut keep = 0;
        for (logit, _) in list.iter() {
            let relative = f64::from(logit - top).exp();
            if keep > 0 && (cumulative >= f64::from(o.top_p) || relative < f64::from(o.min_p)) {
                break;
            }
            cumulative += relative / total;
            keep += 1;
        }
        list.truncate(keep);
        let weight = |logit: f32| f64::from((logit - top) / o.temperature).exp();
        let mut left = random * list.iter().map(|(l, _)| weight(*l)).sum::<f64>();
        for (logit, id) in list.iter() {
            left -= weight(*logit);
            if left < 0.0 {
                return *id;
            }
        }
        list[list.len() - 1].1
    }

    /// A number from 0 to 1, 1 excluded (splitmix64).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The most likely token; the lowest id among equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (logit, id) in logits.iter().zip(0..) {
        if *logit > best.0 {
            best = (*logit, id);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, -1.0, 3.0];

    fn counts(options: SamplerOptions) -> [usize; 5] {
        let mut sampler = Sampler::new(options);
        let mut counts = [0; 5];
        for _ in 0..20_000 {
            counts[sampler.sample(&LOGITS, &[]) as usize] += 1;
        }
        counts
    }

    fn open() -> SamplerOptions {
        SamplerOptions {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..SamplerOptions::default()
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let found = counts(open());
        let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        for (count, logit) in found.iter().zip(LOGITS) {
            let expect = logit.exp() / total * 20_000.0;
            assert!(
                (*count as f32 - expect).abs() < 5.0 * expect.sqrt() + 5.0,
                "{found:?}"
            );
        }
    }

    #[test]
    fn each_cut_removes_what_it_says() {
        let kept = |options| counts(options).map(|n| n > 0);
        assert_eq!(
            kept(SamplerOptions { top_k: 3, ..open() }),
            [false, true, true, false, true]
        );
        assert_eq!(
            kept(SamplerOptions {
                top_p: 0.5,
                ..open()
            }),
            [false, true, false, false, true]
        );
        assert_eq!(
            kept(SamplerOptions {
                min_p: 0.3,
                ..open()
            }),
            [false, true, true, false, true]
        );
        assert_eq!(
            kept(SamplerOptions {
                temperature: 0.0,
                ..open()
            }),
            [false, true, false, false, false]
        );
    }

    #[test]
    fn a_seed_is_a_sequence() {
        let run = |seed| {
            let mut sampler = Sampler::new(SamplerOptions { seed, ..open() });
            (0..32)
                .map(|_| sampler.sample(&LOGITS, &[]))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn the_penalty_counts_recent_tokens_once() {
        let options = SamplerOptions {
            temperature: 0.0,
            repeat_penalty: 1.4,
            repeat_last_n: 2,
            ..open()
        };
        let mut sampler = Sampler::new(options);
        assert_eq!(sampler.sample(&LOGITS, &[1, 1]), 4);
        assert_eq!(
            sampler.sample(&LOGITS, &[1, 1, 4, 4]),
            1,
            "only the last two count"
        );
        assert_eq!(sampler.sample(&LOGITS, &[]), 1);
    }
}
