//! `Module`: the compiled methods of a model, bound to a session's cache.

use crate::{RuntimeError, RuntimeErrorKind};
use backend::{
    Backend, CompileOptions, Dispatcher, NodeProfile, Runnable, StepOptions, StepOutputs,
};
use graph::{Graph, Value};
use import::Artifact;
use kv::{BackendOptions, CacheEntry, CacheRegistry, Step};
use std::path::Path;
use std::sync::Arc;

/// The options of a module load.
#[derive(Clone, Debug, Default)]
pub struct ModuleOptions {
    /// The cache session that the module is bound to.
    pub backend: BackendOptions,
    /// The compile options of its graphs.
    pub compile: CompileOptions,
}

/// The number of a method in a module, resolved from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodId(usize);

/// The compiled methods of a model. They run on tensors ([`execute`](Module::execute)) or, for decoders, on steps
/// ([`run_step`](Module::run_step)).
pub struct Module {
    methods: Vec<(String, Runnable)>,
    weights_bytes: usize,
}

impl Module {
    /// Loads a model file.
    pub fn load(
        path: &Path,
        backend: &dyn Backend,
        options: &ModuleOptions,
    ) -> Result<Module, RuntimeError> {
        Module::from_artifact(crate::Model::open(path, None)?.artifact(), backend, options)
    }

    /// Compiles an imported model and binds it to the cache registered under the options' key.
    pub fn from_artifact(
        artifact: &Artifact,
        backend: &dyn Backend,
        options: &ModuleOptions,
    ) -> Result<Module, RuntimeError> {
        let key = options.backend.cache_key.as_ref();
        let cache = key.map(|key| CacheRegistry::global().get(key));
        Module::bind(artifact, backend, &options.compile, cache.transpose()?)
    }

    /// Compiles an imported model and binds it to a cache.
    pub fn bind(
        artifact: &Artifact,
        backend: &dyn Backend,
        options: &CompileOptions,
        cache: Option<Arc<CacheEntry>>,
    ) -> Result<Module, RuntimeError> {
        let mut methods = Vec::new();
        let mut weights_bytes = 0;
        for method in &artifact.methods {
            let graph = Arc::new(method.graph.clone());
            weights_bytes += graph.constant_bytes();
            let executable = backend.compile(graph.clone(), options)?;
            let runnable = Runnable::bind(graph, executable, cache.clone())?;
            methods.push((method.name.clone(), runnable));
        }
        Ok(Module {
            methods,
            weights_bytes,
        })
    }

    /// The method of this name.
    ///
    /// # Errors
    /// `UnknownMethod` if the model has no such method.
    pub fn method(&self, name: &str) -> Result<MethodId, RuntimeError> {
        let found = self.methods.iter().position(|(known, _)| known == name);
        let found = found.ok_or_else(|| RuntimeErrorKind::UnknownMethod(name.to_owned()))?;
        Ok(MethodId(found))
    }

    /// Runs a method on its inputs.
    pub fn execute(&mut self, method: &str, inputs: &[Value]) -> Result<Vec<Value>, RuntimeError> {
        let method = self.method(method)?;
        Ok(self.runnable(method).run(inputs)?)
    }

    /// Runs one step of a decoder's method and returns the wanted outputs of its rows. After an error, the cache holds
    /// the tokens that it held before.
    pub fn run_step(
        &mut self,
        method: MethodId,
        step: &Step,
        outputs: &mut StepOutputs,
    ) -> Result<(), RuntimeError> {
        Ok(self.runnable(method).run_step(step, outputs)?)
    }

    /// Allocates the memory for steps of a decoder's method and records the common decode sizes. Call it again to
    /// change the options.
    pub fn prepare(&mut self, method: MethodId, options: &StepOptions) -> Result<(), RuntimeError> {
        Ok(self.runnable(method).prepare(options)?)
    }

    /// The method of this name alone.
    ///
    /// # Errors
    /// `UnknownMethod` if the model has no such method.
    pub(crate) fn into_method(mut self, name: &str) -> Result<Runnable, RuntimeError> {
        let MethodId(method) = self.method(name)?;
        Ok(self.methods.swap_remove(method).1)
    }

    /// Bytes of the model's constants.
    pub fn weights_bytes(&self) -> usize {
        self.weights_bytes
    }

    fn runnable(&mut self, MethodId(method): MethodId) -> &mut Runnable {
        &mut self.methods[method].1
    }

    /// The dispatcher of a method's steps.
    pub fn dispatcher(&self, MethodId(method): MethodId) -> &Dispatcher {
        self.methods[method].1.dispatcher()
    }

    /// The graph of a method.
    pub fn graph(&self, MethodId(method): MethodId) -> &Graph {
        self.methods[method].1.graph()
    }

    fn sum(&self, of: impl Fn(&Runnable) -> usize) -> usize {
        self.methods.iter().map(|(_, runnable)| of(runnable)).sum()
    }

    /// Bytes of packed weights.
    pub fn packed_bytes(&self) -> usize {
        self.sum(Runnable::packed_bytes)
    }

    /// The number of recorded steps.
    pub fn captures(&self) -> usize {
        self.sum(Runnable::captures)
    }

    /// The number of a method's steps that no recording from before them served.
    pub fn missed_recordings(&self, MethodId(method): MethodId) -> usize {
        self.methods[method].1.missed_recordings()
    }

    /// Starts or stops measuring nodes.
    pub fn set_profiling(&mut self, on: bool) {
        for (_, runnable) in &mut self.methods {
            runnable.set_profiling(on);
        }
    }

    /// The measurements since profiling was started.
    pub fn profile(&self) -> Vec<NodeProfile> {
        let runnables = self.methods.iter().map(|(_, runnable)| runnable);
        runnables.flat_map(Runnable::profile).collect()
    }

    /// Bytes of activations and scratch allocated now.
    pub fn arena_bytes(&self) -> usize {
        self.sum(Runnable::arena_bytes)
    }
}
