//! Graphs bound to a cache on the GPU.

use backend::{Backend, CompileOptions, Runnable};
use cuda::Cuda;
use graph::Graph;
use kv::{CacheKey, CacheRegistry};
use std::sync::Arc;

/// Compiles a graph and binds it to the cache of a session, which must not have ended yet.
pub(crate) fn runnable(cuda: &Cuda, graph: &Arc<Graph>, cache: Option<CacheKey>) -> Runnable {
    let cache = CacheRegistry::global().get(&cache.unwrap()).unwrap();
    let options = CompileOptions::default();
    let executable = cuda.compile(graph.clone(), &options).unwrap();
    Runnable::bind(graph.clone(), executable, Some(cache)).unwrap()
}
