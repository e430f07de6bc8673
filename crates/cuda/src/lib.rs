//! The CUDA backend: kernels compiled at first use, weights and KV on the device, and steps that are captured graphs.
//!
//! The driver and the run-time compiler (NVRTC) are loaded when a device is opened, so that nothing of CUDA is needed to
//! build. `unsafe` code calls the driver: a block says which fact makes its addresses and sizes right.

mod arguments;
mod attention;
mod calls;
mod compile;
mod device;
mod error;
mod exec_state;
mod executable;
mod experts;
mod format;
mod kv;
mod launch;
mod persistent;
mod plan;
mod products;
mod profile;
mod recurrent;
mod step_layout;
mod support;
mod tape;
mod topk;
mod uncached;
mod weights;
mod windows;

pub use compile::{Compiled, KERNELS_VARIABLE, Unit, compile, sources_checksum};
pub use device::DeviceFacts;
pub use error::{CudaError, CudaErrorKind, NVRTC_VARIABLE};
pub use executable::SUPPORT_VARIABLE;
pub use format::DeviceFormat;

use ::kv::{CacheBuilderRegistry, CacheConfig, KvBytes, KvError, KvErrorKind, KvStorage};
use backend::{
    Backend, BackendError, BackendErrorKind, CompileOptions, Executable, Footprint,
    FootprintRequest, ReplayWrapper,
};
use device::Device;
use exec_state::ExecState;
use executable::CudaRecorder;
use graph::{Graph, Node, TensorId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use weights::PackedShape;

/// A GPU.
pub struct Cuda {
    device: Arc<Device>,
}

impl Cuda {
    /// The backend's name.
    pub const ID: &'static str = "cuda";

    /// Opens the first GPU and registers its caches. Compiled kernels are kept in `cubin_folder`, if there is one.
    ///
    /// # Errors
    /// Without a driver, with one that is too old, and without a GPU of compute capability 8.0 or later.
    pub fn new(cubin_folder: Option<PathBuf>) -> Result<Cuda, CudaError> {
        let device = Device::open(0, cubin_folder)?;
        let owner = device.clone();
        let make = move |config: &CacheConfig| -> Result<Box<dyn KvBytes>, KvError> {
            check_sinks(config)?;
            Ok(Box::new(kv::CudaKv::new(config, &owner)))
        };
        // All opened devices have the one primary context, so the builder of the first serves the others.
        let registered = CacheBuilderRegistry::global().register(Cuda::ID, make);
        registered.map_err(|error| CudaErrorKind::Register(error.to_string()))?;
        Ok(Cuda { device })
    }

    /// Whether there is a kernel for a node of `graph`, on any GPU.
    pub fn has_kernel_for(graph: &Graph, node: &Node) -> bool {
        support::has_kernel(graph, node)
    }

    /// Name, architecture and sizes of the device.
    pub fn facts(&self) -> &DeviceFacts {
        &self.device.facts
    }
}

/// Returns an error for layers with sinks: a query of the kernels sees one range of positions.
fn check_sinks(config: &CacheConfig) -> Result<(), KvError> {
    match config.has_sinks() {
        true => Err(KvErrorKind::Sinks {
            operation: "seen by CUDA's kernels",
        }
        .into()),
        false => Ok(()),
    }
}

impl Backend for Cuda {
    fn id(&self) -> &'static str {
        Cuda::ID
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        check_options(options)?;
        let state = ExecState::new(graph, &self.device, options)?;
        let recorder = CudaRecorder::new(state)?;
        Ok(Box::new(ReplayWrapper::new(recorder, options)))
    }

    fn has_kernel(&self, graph: &Graph, node: &Node) -> bool {
        Cuda::has_kernel_for(graph, node)
    }

    fn shared(&self) -> Option<Arc<dyn Backend>> {
        let device = self.device.clone();
        Some(Arc::new(Cuda { device }))
    }

    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        check_sinks(config)?;
        Ok(Box::new(kv::CudaKv::new(config, &self.device)))
    }

    fn footprint(
        &self,
        graph: &Graph,
        request: &FootprintRequest<'_>,
    ) -> Result<Footprint, BackendError> {
        check_options(request.options)?;
        let shapes: BTreeMap<TensorId, PackedShape> =
            weights::packed_shapes(graph, request.is_weight)
                .into_iter()
                .collect();
        let layers = request.options.host_expert_layers;
        let [packed, host] =
            weights::placement(graph, request.is_weight, &request.bindings, layers);
        let format = |id: TensorId| shapes.get(&id).map(|shape| shape.format);
        let (executor, facts) = (request.options.executor, &self.device.facts);
        let (_, arena) = products::plan_ops(graph, request.bindings, executor, &format, facts)?;
        Ok(Footprint {
            arena,
            packed,
            host,
            mapped: vec![],
            experts: None,
            kv: request.kv_layout(),
        })
    }

    fn stores(&self, storage: KvStorage) -> bool {
        storage.rotated().is_none()
    }

    fn free_memory(&self) -> Option<u64> {
        self.device.free_memory()
    }

    fn has_own_memory(&self) -> bool {
        true
    }
}

/// Returns an error for options that the GPU cannot follow.
fn check_options(options: &CompileOptions) -> Result<(), BackendError> {
    match options.expert_budget {
        None => Ok(()),
        Some(_) => {
            let reason = "a budget for experts needs the CPU: a GPU reads experts from the host's memory instead (--cpu-moe)";
            Err(BackendErrorKind::Options(reason.to_owned()).into())
        }
    }
}
