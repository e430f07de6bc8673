//! A decoder's module: builds steps, runs them, keeps their outputs.

use crate::memory::StepSize;
use crate::module::MethodId;
use crate::{MemoryUsage, Model, Module, ModuleOptions, Policy, RuntimeError, RuntimeErrorKind};
use backend::{Backend, NodeProfile, RunMode, StepOptions, StepOutputs};
use graph::Graph;
use kv::{BackendOptions, Step};

/// What runners and branches run their steps on.
pub(crate) struct Decoder {
    module: Module,
    forward: MethodId,
    options: StepOptions,
    vocab: usize,
    /// The step in the making; its memory is reused.
    pub(crate) step: Step,
    /// The outputs of the last step.
    pub(crate) outputs: StepOutputs,
}

impl Decoder {
    /// Compiles a model, bound to the cache of a session, for steps of up to this size over so many sequences.
    pub(crate) fn load(
        model: &Model,
        backend: &dyn Backend,
        policy: &Policy,
        size: StepSize,
        sequences: usize,
        session: BackendOptions,
    ) -> Result<Decoder, RuntimeError> {
        let options = ModuleOptions {
            backend: session,
            compile: policy.compile.clone(),
        };
        let mut module = Module::from_artifact(model.artifact(), backend, &options)?;
        let forward = module.method("forward")?;
        let options = StepOptions {
            mode: policy.compile.step_mode(),
            max_sequences: sequences,
            query_len: 1,
            max_tokens: size.tokens,
            max_rows: size.rows,
        };
        module.prepare(forward, &options)?;
        Ok(Decoder {
            module,
            forward,
            options,
            vocab: model.facts().vocab_size,
            step: Step::default(),
            outputs: StepOutputs::default(),
        })
    }

    /// Runs the step that was built.
    pub(crate) fn run(&mut self) -> Result<(), RuntimeError> {
        self.module
            .run_step(self.forward, &self.step, &mut self.outputs)
    }

    /// Refuses a token that is none of the model's.
    pub(crate) fn check(&self, ids: impl Iterator<Item = u32>) -> Result<(), RuntimeError> {
        check_ids(ids, self.vocab)
    }

    /// Most tokens of a step.
    pub(crate) fn batch(&self) -> usize {
        self.options.max_tokens
    }

    pub(crate) fn graph(&self) -> &Graph {
        self.module.graph(self.forward)
    }

    /// Runs steps in another mode from now on.
    pub(crate) fn set_run_mode(&mut self, mode: RunMode) -> Result<(), RuntimeError> {
        self.options.mode = mode;
        self.module.prepare(self.forward, &self.options)
    }

    /// The mode that steps are run in.
    pub(crate) fn run_mode(&self) -> RunMode {
        self.module.dispatcher(self.forward).mode()
    }

    /// Recordings made so far, and how many there can be.
    pub(crate) fn captures(&self) -> (usize, usize) {
        let dispatcher = self.module.dispatcher(self.forward);
        (self.module.captures(), dispatcher.descriptors())
    }

    pub(crate) fn set_profiling(&mut self, on: bool) {
        self.module.set_profiling(on);
    }

    pub(crate) fn profile(&self) -> Vec<NodeProfile> {
        self.module.profile()
    }

    /// Bytes held now, with these of keys and values.
    pub(crate) fn memory(&self, kv: usize) -> MemoryUsage {
        MemoryUsage {
            weights: self.module.weights_bytes(),
            kv,
            arena: self.module.arena_bytes(),
            packed: self.module.packed_bytes(),
        }
    }
}

/// Every id must be one of the model's.
pub(crate) fn check_ids(
    mut ids: impl Iterator<Item = u32>,
    vocab: usize,
) -> Result<(), RuntimeError> {
    match ids.find(|id| *id as usize >= vocab) {
        Some(id) => Err(RuntimeErrorKind::UnknownToken { id, vocab }.into()),
        None => Ok(()),
    }
}
