//! `Decoder`: builds and runs the steps of a decoder's module and keeps their outputs.

use crate::module::Module;
use crate::options::{RunnerOptions, StepSize};
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::{Backend, LogitsMode, Runnable, StepOptions, StepOutputs};
use kv::{CacheEntry, Step};
use std::sync::Arc;

/// The forward of a decoder with its current step and outputs, which `Runner` and `BatchRunner` are built on.
pub(crate) struct Decoder {
    pub(crate) forward: Runnable,
    pub(crate) weights_bytes: usize,
    pub(crate) options: StepOptions,
    pub(crate) vocab: usize,
    /// The step that is being built; its memory is reused.
    pub(crate) step: Step,
    /// The outputs of the last step.
    pub(crate) outputs: StepOutputs,
}

impl Decoder {
    /// Compiles a model and binds it to a cache, for steps of up to this size, this many sequences, and this many tokens of
    /// each in a decode.
    pub(crate) fn load(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        size: StepSize,
        (sequences, max_query_len): (usize, usize),
        cache: Arc<CacheEntry>,
    ) -> Result<Decoder, RuntimeError> {
        let (artifact, compile) = (model.artifact(), &options.compile);
        let module = Module::bind(artifact, backend, compile, Some(cache))?;
        let methods = artifact.methods.iter();
        let weights_bytes = methods.map(|method| method.graph.constant_bytes()).sum();
        let mut forward = module.into_method("forward")?;
        let step_options = StepOptions {
            mode: options.compile.step_mode(),
            max_sequences: sequences,
            max_query_len,
            max_tokens: size.tokens,
            max_rows: size.rows,
            record_all: options.compile.record_all,
        };
        forward.prepare(&step_options)?;
        Ok(Decoder {
            forward,
            weights_bytes,
            options: step_options,
            vocab: model.facts().vocab_size,
            step: Step::default(),
            outputs: StepOutputs::default(),
        })
    }

    /// Runs the step that was built and keeps the wanted outputs of its rows.
    pub(crate) fn run(&mut self, wanted: LogitsMode) -> Result<(), RuntimeError> {
        self.outputs.want(wanted);
        Ok(self.forward.run_step(&self.step, &mut self.outputs)?)
    }

    /// Returns an error for a token id outside the vocabulary.
    pub(crate) fn check_ids(&self, ids: impl Iterator<Item = u32>) -> Result<(), RuntimeError> {
        check_token_ids(ids, self.vocab)
    }
}

/// Returns an error if a token id is outside the vocabulary.
pub(crate) fn check_token_ids(
    mut ids: impl Iterator<Item = u32>,
    vocab: usize,
) -> Result<(), RuntimeError> {
    match ids.find(|id| *id as usize >= vocab) {
        Some(id) => Err(RuntimeErrorKind::UnknownToken { id, vocab }.into()),
        None => Ok(()),
    }
}
