//! `Compiled`: an executable of any backend.

use crate::{
    BackendError, BackendErrorKind, BatchDescriptor, CacheStep, CaptureSizes, Dispatch, Executable,
    GraphSupport, NodeProfile, OutputCallback, RunMode, StepOptions, StepOutputs, TraceCallback,
};
use graph::{Value, ValueRef};
use kv::{KvBytes, StepPlan};
use std::any::{Any, type_name};

/// A compiled graph of any backend. It downcasts the cache bytes to the backend's own storage type once per step.
pub struct Compiled(Box<dyn Erased>);

impl Compiled {
    /// Wraps a backend's executable.
    pub fn new(executable: impl Executable + 'static) -> Compiled {
        Compiled(Box::new(executable))
    }

    /// Computes the graph's outputs from tensors. Calls `trace`, if there is one, with the result of every node.
    pub fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        self.0.run(inputs, cache, trace)
    }

    /// Computes the graph's outputs from borrowed tensors and calls `output` with each.
    pub fn run_borrowed(
        &mut self,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        self.0.run_borrowed(inputs, cache, output)
    }

    /// Runs the planned step of a decoder.
    pub fn run_step(
        &mut self,
        dispatch: Dispatch,
        cache: CacheStep<'_>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        self.0.run_step(dispatch, cache, outputs)
    }

    /// Whether the executable can work on this KV storage.
    pub(crate) fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        self.0.takes(bytes)
    }

    pub(crate) fn plain(&self) -> &dyn Plain {
        self.0.plain()
    }

    pub(crate) fn plain_mut(&mut self) -> &mut dyn Plain {
        self.0.plain_mut()
    }
}

/// An [`Executable`] with its storage type erased.
trait Erased: Send {
    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError>;

    fn run_borrowed(
        &mut self,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError>;

    fn run_step(
        &mut self,
        dispatch: Dispatch,
        cache: CacheStep<'_>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError>;

    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError>;

    fn plain(&self) -> &dyn Plain;

    fn plain_mut(&mut self) -> &mut dyn Plain;
}

/// The functions of an executable that do not use a cache.
pub(crate) trait Plain {
    fn graph_support(&self) -> GraphSupport;
    fn splits_attention(&self) -> bool;
    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>);
    fn set_step_mode(&mut self, mode: RunMode);
    fn capture(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError>;
    fn captures(&self) -> usize;
    fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError>;
    fn set_profiling(&mut self, on: bool);
    fn profile(&self) -> Vec<NodeProfile>;
    fn arena_bytes(&self) -> usize;
    fn packed_bytes(&self) -> usize;
}

impl<E: Executable> Plain for E {
    fn graph_support(&self) -> GraphSupport {
        Executable::graph_support(self)
    }

    fn splits_attention(&self) -> bool {
        Executable::splits_attention(self)
    }

    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>) {
        Executable::capture_sizes(self, options)
    }

    fn set_step_mode(&mut self, mode: RunMode) {
        Executable::set_step_mode(self, mode);
    }

    fn capture(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError> {
        Executable::capture(self, mode, batch)
    }

    fn captures(&self) -> usize {
        Executable::captures(self)
    }

    fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError> {
        Executable::reserve(self, shapes)
    }

    fn set_profiling(&mut self, on: bool) {
        Executable::set_profiling(self, on);
    }

    fn profile(&self) -> Vec<NodeProfile> {
        Executable::profile(self)
    }

    fn arena_bytes(&self) -> usize {
        Executable::arena_bytes(self)
    }

    fn packed_bytes(&self) -> usize {
        Executable::packed_bytes(self)
    }
}

impl<E: Executable> Erased for E {
    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        let cache = match cache {
            Some(CacheStep { plan, bytes }) => Some(own(plan, bytes)?),
            None => None,
        };
        match trace {
            Some(trace) => Executable::run_traced(self, inputs, cache, trace),
            None => Executable::run(self, inputs, cache),
        }
    }

    fn run_borrowed(
        &mut self,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        let cache = match cache {
            Some(CacheStep { plan, bytes }) => Some(own(plan, bytes)?),
            None => None,
        };
        Executable::run_borrowed(self, inputs, cache, output)
    }

    fn run_step(
        &mut self,
        dispatch: Dispatch,
        CacheStep { plan, bytes }: CacheStep<'_>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        Executable::run_step(self, dispatch, own(plan, bytes)?, outputs)
    }

    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        let any: &dyn Any = bytes;
        any.is::<E::Kv>()
            .then_some(())
            .ok_or_else(mismatch::<E::Kv>)
    }

    fn plain(&self) -> &dyn Plain {
        self
    }

    fn plain_mut(&mut self) -> &mut dyn Plain {
        self
    }
}

/// Downcasts the cache bytes of a step to the backend's own storage.
fn own<'a, K: KvBytes>(
    plan: &'a StepPlan,
    bytes: &'a mut dyn KvBytes,
) -> Result<CacheStep<'a, K>, BackendError> {
    let bytes: &mut dyn Any = bytes;
    match bytes.downcast_mut() {
        Some(bytes) => Ok(CacheStep { plan, bytes }),
        None => Err(mismatch::<K>()),
    }
}

fn mismatch<K>() -> BackendError {
    let storage = type_name::<K>().rsplit("::").next().unwrap_or_default();
    let reason = format!("it belongs to another backend: {storage} is needed");
    BackendErrorKind::CacheMismatch(reason).into()
}
