//! `Module`: the compiled methods of a model, bound to a session's cache.

use crate::{RuntimeError, RuntimeErrorKind};
use backend::{Backend, CompileOptions, Runnable};
use graph::Value;
use import::Artifact;
use kv::{BackendOptions, CacheEntry, CacheRegistry};
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
/// ([`Runnable::run_step`]).
pub struct Module {
    methods: Vec<(String, Runnable)>,
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
        for method in &artifact.methods {
            let graph = Arc::new(method.graph.clone());
            let executable = backend.compile(graph.clone(), options)?;
            let runnable = Runnable::bind(graph, executable, cache.clone())?;
            methods.push((method.name.clone(), runnable));
        }
        Ok(Module { methods })
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

    /// A method, for its steps, its graph and its measurements.
    pub fn runnable(&mut self, MethodId(method): MethodId) -> &mut Runnable {
        &mut self.methods[method].1
    }

    /// The method of this name alone.
    ///
    /// # Errors
    /// `UnknownMethod` if the model has no such method.
    pub(crate) fn into_method(mut self, name: &str) -> Result<Runnable, RuntimeError> {
        let MethodId(method) = self.method(name)?;
        Ok(self.methods.swap_remove(method).1)
    }
}
