//! `Speculation`: what the sequences of one runner share when they speculate.

use crate::error::Result;
use crate::loaded::Loaded;
use crate::options::GenerationOptions;
use kvark::BatchRunner;
use kvark::generate::{Sampler, SamplerOptions, SeqId, Sequence};
use kvark::speculative::{Drafter, SpecOptions, SpecType, Speculator, VerifyCosts};

/// The draft and the measured costs of a runner, made by the first generation that needs them.
#[derive(Default)]
pub(crate) struct Speculation {
    draft: Option<Drafter>,
    costs: Option<VerifyCosts>,
}

impl Speculation {
    fn speculator(
        &mut self,
        loaded: &Loaded,
        runner: &mut BatchRunner,
        sequences: usize,
        options: &SpecOptions,
    ) -> Result<Speculator> {
        options.check(runner.max_step_tokens())?;
        if self.draft.is_none() && options.kind != SpecType::Ngram {
            self.draft = loaded.drafter(sequences)?;
        }
        if self.costs.is_none() && options.kind == SpecType::Auto && runner.holds_candidates() {
            self.costs = Some(runner.verify_costs(None, options.max_candidates)?);
        }
        let costs = self.costs.get_or_insert_default();
        Ok(Speculator::new(options, costs, self.draft.as_ref())?)
    }

    /// A generation on a sequence of the runner, after these tokens.
    pub(crate) fn sequence(
        &mut self,
        loaded: &Loaded,
        (runner, sequences): (&mut BatchRunner, usize),
        seq: SeqId,
        prompt: Vec<u32>,
        options: &GenerationOptions,
        seed: u64,
    ) -> Result<Sequence<'static>> {
        let sampler = Sampler::new(SamplerOptions {
            seed,
            ..options.sampling.clone()
        });
        let constraint = match &options.grammar {
            Some(source) => Some(loaded.grammars()?.constraint(source)?),
            None => None,
        };
        let speculator = match &options.speculation {
            Some(spec) => Some(self.speculator(loaded, runner, sequences, spec)?),
            None => None,
        };
        let held = [runner.tokens(seq), &prompt].concat();
        let generate = options.bounded(&loaded.model, &held);
        Ok(Sequence::new(seq, prompt, sampler, &generate)
            .with_constraint(constraint)
            .with_logprobs(options.logprobs)
            .with_speculator(speculator))
    }
}
