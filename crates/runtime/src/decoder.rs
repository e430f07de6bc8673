//! `Decoder`: builds and runs the steps of a decoder's module and keeps their outputs.

use crate::memory::MemoryUsage;
use crate::module::Module;
use crate::options::{RunnerOptions, StepSize};
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::{Backend, LogitsMode, NodeProfile, RunMode, Runnable, StepOptions, StepOutputs};
use graph::Graph;
use kv::{CacheEntry, Step};
use std::sync::Arc;

/// The forward of a decoder with its current step and outputs, which `Runner` and `BatchRunner` are built on.
pub(crate) struct Decoder {
    forward: Runnable,
    weights_bytes: usize,
    options: StepOptions,
    vocab: usize,
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
        let weights_bytes = module.weights_bytes();
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

    /// The number of tokens in the vocabulary.
    pub(crate) fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// The maximum number of tokens in a step.
    pub(crate) fn max_step_tokens(&self) -> usize {
        self.options.max_tokens
    }

    pub(crate) fn graph(&self) -> &Graph {
        self.forward.graph()
    }

    /// Changes the run mode of later steps.
    pub(crate) fn set_run_mode(&mut self, mode: RunMode) -> Result<(), RuntimeError> {
        self.options.mode = mode;
        Ok(self.forward.prepare(&self.options)?)
    }

    /// The run mode of steps.
    pub(crate) fn run_mode(&self) -> RunMode {
        self.forward.dispatcher().mode()
    }

    /// The number of recordings, and the maximum number.
    pub(crate) fn captures(&self) -> (usize, usize) {
        let dispatcher = self.forward.dispatcher();
        (self.forward.captures(), dispatcher.descriptors())
    }

    /// The number of steps that no recording from before them served.
    pub(crate) fn missed_recordings(&self) -> usize {
        self.forward.missed_recordings()
    }

    pub(crate) fn set_profiling(&mut self, on: bool) {
        self.forward.set_profiling(on);
    }

    pub(crate) fn profile(&self) -> Vec<NodeProfile> {
        self.forward.profile()
    }

    /// The memory in use now; `kv` is the bytes of keys and values.
    pub(crate) fn memory(&self, kv: usize) -> MemoryUsage {
        MemoryUsage {
            weights: self.weights_bytes,
            kv,
            arena: self.forward.arena_bytes(),
            packed: self.forward.packed_bytes(),
        }
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
