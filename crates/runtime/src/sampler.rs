//! `Sampler`: samples the next token from logits. The stages are in files of their own and run in llama.cpp's default
//! order: logit bias, penalties, DRY, top-k, typical-p, top-p, min-p, XTC, temperature.

mod candidates;
mod dry;
mod logit_bias;
mod min_p;
mod options;
mod penalties;
mod random;
mod sequence_breakers;
mod temperature;
mod top_k;
mod top_p;
mod typical_p;
mod xtc;

#[cfg(test)]
mod tests;

use backend::{RowOutputs, Wanted};
use candidates::Candidate;
use dry::DryPenalty;
pub use options::SamplerOptions;
use random::Random;
pub use sequence_breakers::{DEFAULT_SEQUENCE_BREAKERS, sequence_breakers};

/// Samples tokens; holds its random state and scratch.
#[derive(Clone)]
pub struct Sampler {
    options: SamplerOptions,
    random: Random,
    dry: Option<DryPenalty>,
    /// Scratch: a copy of the logits for the stages that change them.
    adjusted: Vec<f32>,
    /// Scratch: the recent tokens, sorted.
    recent: Vec<u32>,
    /// Scratch: the tokens that the filters have left, the most likely first.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler with the seed of the options.
    pub fn new(options: SamplerOptions) -> Sampler {
        Sampler {
            random: Random::new(options.seed),
            dry: DryPenalty::new(&options),
            options,
            adjusted: Vec::new(),
            recent: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// The options.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Changes the options of later samples. The sequence of random numbers goes on unless the seed is another one.
    pub fn set_options(&mut self, options: SamplerOptions) {
        if options.seed != self.options.seed {
            self.random = Random::new(options.seed);
        }
        self.dry = DryPenalty::new(&options);
        self.options = options;
    }

    /// The outputs of a row that the next sample needs: the most likely token, the `top_k` most likely ones, or all logits
    /// where a stage before top-k changes them or there is no top-k.
    pub fn wanted(&self) -> Wanted {
        match self.options.top_k {
            _ if self.changes_logits() => Wanted::Logits,
            _ if self.takes_the_best() => Wanted::Argmax,
            0 => Wanted::Logits,
            k => Wanted::TopK(k),
        }
    }

    /// Samples the token after `history` from its logits. Of equal logits, the lower id is preferred.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> u32 {
        self.sample_row(RowOutputs::Logits(logits), history)
    }

    /// Samples the token after `history` from the outputs of its row. The best tokens give the same token as all logits,
    /// if they are those of [`wanted`](Sampler::wanted); otherwise the token is drawn from those that are there.
    ///
    /// # Panics
    /// If the row is empty.
    pub fn sample_row(&mut self, row: RowOutputs<'_>, history: &[u32]) -> u32 {
        match row {
            RowOutputs::Best(best) if self.takes_the_best() => best[0].id,
            RowOutputs::Best(best) => {
                self.candidates.clear();
                self.candidates.extend_from_slice(best);
                if self.options.top_k > 0 {
                    self.candidates.truncate(self.options.top_k);
                }
                self.draw()
            }
            RowOutputs::Logits(logits) => {
                let mut adjusted = std::mem::take(&mut self.adjusted);
                let logits = if self.changes_logits() {
                    adjusted.clear();
                    adjusted.extend_from_slice(logits);
                    self.adjust(&mut adjusted, history);
                    &adjusted
                } else {
                    logits
                };
                let token = if self.takes_the_best() {
                    backend::argmax(logits)
                } else {
                    top_k::fill(&mut self.candidates, logits, self.options.top_k);
                    self.draw()
                };
                self.adjusted = adjusted;
                token
            }
        }
    }

    fn changes_logits(&self) -> bool {
        let o = &self.options;
        !o.logit_bias.is_empty() || penalties::are_on(o) || self.dry.is_some()
    }

    fn adjust(&mut self, logits: &mut [f32], history: &[u32]) {
        logit_bias::apply(logits, &self.options.logit_bias);
        penalties::apply(logits, history, &self.options, &mut self.recent);
        if let Some(dry) = &mut self.dry {
            dry.apply(logits, history);
        }
    }

    /// Whether the result is the most likely token: no stage can remove that one, and none draws.
    fn takes_the_best(&self) -> bool {
        let o = &self.options;
        let removes_the_best = o.typical_p < 1.0 || o.xtc_probability > 0.0;
        o.top_k == 1 || (o.temperature <= 0.0 && !removes_the_best)
    }

    /// Draws one of the candidates, which are those that top-k has left.
    fn draw(&mut self) -> u32 {
        let o = &self.options;
        // The first number of a token decides the draw, whichever other stages need one.
        let random = match o.temperature > 0.0 {
            true => self.random.uniform(),
            false => 0.0,
        };
        let list = &mut self.candidates;
        typical_p::filter(list, o.typical_p);
        top_p::filter(list, o.top_p);
        min_p::filter(list, o.min_p);
        if o.xtc_probability > 0.0 {
            let chance = self.random.uniform();
            xtc::filter(list, o.xtc_probability, o.xtc_threshold, chance);
        }
        temperature::draw(list, o.temperature, random)
    }
}
