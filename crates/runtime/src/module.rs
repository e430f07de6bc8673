//! A loaded model: methods by name, each bound to the session's cache.

use crate::{RuntimeError, RuntimeErrorKind};
use backend::{Backend, CompileOptions, NodeTime, Runnable};
use graph::{Graph, Value};
use import::Artifact;
use kv::{BackendOptions, CacheRegistry};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// What a load is told.
#[derive(Clone, Debug, Default)]
pub struct ModuleOptions {
    /// The session that the module belongs to.
    pub backend: BackendOptions,
    /// How its graphs are compiled.
    pub compile: CompileOptions,
}

/// The methods of a model, ready to run. [`execute`](Module::execute) is the only way in.
pub struct Module {
    methods: HashMap<String, Runnable>,
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
        let cache = options
            .backend
            .cache_key
            .as_ref()
            .map(|key| CacheRegistry::global().get(key))
            .transpose()?;
        let mut methods = HashMap::new();
        let mut weights_bytes = 0;
        for method in &artifact.methods {
            let graph = Arc::new(method.graph.clone());
            weights_bytes += graph.constant_bytes();
            let executable = backend.compile(graph.clone(), &options.compile)?;
            methods.insert(
                method.name.clone(),
                Runnable::bind(graph, executable, cache.clone())?,
            );
        }
        Ok(Module {
            methods,
            weights_bytes,
        })
    }

    /// Runs a method on its inputs.
    pub fn execute(&mut self, method: &str, inputs: &[Value]) -> Result<Vec<Value>, RuntimeError> {
        Ok(self.method(method)?.run(inputs)?)
    }

    /// Bytes of the model's constants.
    pub fn weights_bytes(&self) -> usize {
        self.weights_bytes
    }

    /// Makes all memory for steps of a method with inputs of these shapes, where the backend plans it.
    pub fn reserve(&mut self, method: &str, shapes: &[Vec<usize>]) -> Result<(), RuntimeError> {
        Ok(self.method(method)?.reserve(shapes)?)
    }

    fn method(&mut self, method: &str) -> Result<&mut Runnable, RuntimeError> {
        let found = self.methods.get_mut(method);
        Ok(found.ok_or_else(|| RuntimeErrorKind::UnknownMethod(method.to_owned()))?)
    }

    /// The graph of a method.
    pub fn graph(&self, method: &str) -> Result<&Graph, RuntimeError> {
        let found = self.methods.get(method);
        let found = found.ok_or_else(|| RuntimeErrorKind::UnknownMethod(method.to_owned()))?;
        Ok(found.graph())
    }

    /// Bytes of weights held in another layout besides the model's own.
    pub fn packed_bytes(&self) -> usize {
        self.methods.values().map(Runnable::packed_bytes).sum()
    }

    /// Measures every node from now on, or no longer.
    pub fn set_profiling(&mut self, on: bool) {
        let methods = self.methods.values_mut();
        methods.for_each(|method| method.set_profiling(on));
    }

    /// Where the time went since profiling began.
    pub fn profile(&self) -> Vec<NodeTime> {
        self.methods.values().flat_map(Runnable::profile).collect()
    }

    /// Bytes of activations and scratch held now.
    pub fn arena_bytes(&self) -> usize {
        self.methods.values().map(Runnable::arena_bytes).sum()
    }
}
