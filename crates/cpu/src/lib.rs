//! The CPU backend: kernels for every instruction-set tier, a thread pool, KV storage, and the executable.
//!
//! All `unsafe` code of the CPU side is in this crate. Kernels take raw addresses, because a result may be planned into
//! the memory of an operand that it consumes; `graph::plan` states why that is sound, and a property test checks it
//! there.

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        unused_mut,
        reason = "some helpers are those of x86-64 tiers"
    )
)]

mod aligned;
mod exec;
mod exiting_allocator;
mod isa;
mod kernels;
mod kv;
mod prefetch;
mod roofline;
mod simd;
mod thread_pool;

pub use exiting_allocator::ExitingAllocator;
pub use isa::{ISA_VARIABLE, Isa, UnknownIsa};
pub use kernels::matmul::quantised::packed_file::remove_stale_packed_files as tidy_packed;
pub use kernels::matmul::quantised::portable::{PackedWeightKind, PlainPanel, plain_panels};
pub use roofline::Probe;

use ::kv::{CacheBuilderRegistry, CacheConfig, FrozenKv, KvBytes, KvError};
use backend::{
    Backend, BackendError, CompileOptions, Executable, Footprint, FootprintRequest, ReplayWrapper,
};
use base::Bytes;
use exec::{CpuRecorder, ExpertPlan, PlannedStep, WeightLayouts};
use graph::{Graph, TensorId};
use std::sync::Arc;
use thread_pool::ThreadPool;

/// The CPU with one tier of kernels.
pub struct Cpu {
    isa: Isa,
}

impl Cpu {
    /// The backend's name.
    pub const ID: &'static str = "cpu";

    /// The backend with the CPU's best tier, or the one that [`ISA_VARIABLE`] names; registers its caches.
    pub fn new() -> Result<Cpu, UnknownIsa> {
        Ok(Cpu::with_isa(Isa::detect()?))
    }

    /// The backend with a chosen tier; registers its caches.
    pub fn with_isa(isa: Isa) -> Cpu {
        let make = |config: &CacheConfig| -> Result<Box<dyn KvBytes>, KvError> {
            Ok(Box::new(kv::CpuKv::new(config)?))
        };
        // A foreign backend that took the name keeps it: executables refuse its bytes by name.
        _ = CacheBuilderRegistry::global().register(Cpu::ID, make);
        Cpu { isa }
    }

    /// The tier in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Measures the limits of `threads` threads for a model with `weights_bytes` bytes of weights, from which a lower bound of
    /// a step's time follows. A large model is read from memory, a small one from a cache.
    pub fn probe(&self, threads: usize, weights_bytes: usize) -> Probe {
        Probe::measure(self.isa, threads.max(1), weights_bytes)
    }

    /// The number of threads if the compile options do not set one.
    pub fn default_threads() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}

impl Backend for Cpu {
    fn id(&self) -> &'static str {
        Cpu::ID
    }

    fn kernels(&self) -> String {
        format!("{}-{}", Cpu::ID, self.isa.name())
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let threads = ThreadPool::shared(options.threads.unwrap_or_else(Cpu::default_threads));
        let recorder = CpuRecorder::new(graph, threads, self.isa, options)?;
        Ok(Box::new(ReplayWrapper::new(recorder, options)))
    }

    fn shared(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(Cpu { isa: self.isa }))
    }

    fn sees_first_positions(&self) -> bool {
        true
    }

    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        Ok(Box::new(kv::CpuKv::new(config)?))
    }

    fn freeze_rows(
        &self,
        config: &CacheConfig,
        cells: &[u32],
        rows: &[[Bytes; 2]],
    ) -> Result<Arc<dyn FrozenKv>, KvError> {
        Ok(Arc::new(kv::FrozenCpuKv::new(config, cells, rows)))
    }

    fn footprint(
        &self,
        graph: &Graph,
        request: &FootprintRequest<'_>,
    ) -> Result<Footprint, BackendError> {
        let layouts = WeightLayouts::new(
            graph,
            self.isa,
            request.options.precision,
            request.is_weight,
        );
        let threads = request.options.threads.unwrap_or_else(Cpu::default_threads);
        let PlannedStep {
            calls,
            memory: arena,
            ..
        } = PlannedStep::new(graph, request.bindings, &layouts, threads)?;
        let experts = ExpertPlan::new(graph, &layouts, request.is_weight, request.options)?;
        let mut packed = layouts.bytes(graph, &calls);
        for (i, tensor) in graph.tensors().iter().enumerate() {
            let realigned = exec::realigned_bytes(tensor);
            if realigned > 0 {
                *packed.entry(TensorId(i as u32)).or_default() += realigned;
            }
        }
        let mut mapped = exec::mapped_bytes(graph, request.bindings, &layouts, request.is_weight);
        for id in experts.on_demand() {
            packed.remove(&id);
            mapped.retain(|(mapped, _)| *mapped != id);
            mapped.push((id, 0));
        }
        let packed = packed.into_iter().collect();
        Ok(Footprint {
            arena,
            packed,
            host: vec![],
            mapped,
            experts: experts.footprint(),
            kv: request.kv_layout(),
        })
    }

    fn free_memory(&self) -> Option<u64> {
        Some(base::available_memory()?.bytes)
    }

    fn memory_bound(&self) -> base::MemoryBound {
        base::available_memory().map_or(base::MemoryBound::Free, |memory| memory.bound)
    }
}
