//! The error type of the crate.

use backend::BackendErrorKind;
use cudarc::driver::sys::CUresult;
use kv::{KvError, KvErrorKind};

/// A device that could not be opened, or a call to it that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct CudaError(CudaErrorKind);

/// Why a device could not be opened or a call to it failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaErrorKind {
    /// The driver's library is not installed.
    #[error(
        "no CUDA driver was found on this machine: install NVIDIA's driver, or use --device cpu"
    )]
    NoDriver,
    /// The driver is older than the oldest that is supported.
    #[error(
        "the CUDA driver supports CUDA {found}, and {needed} or later is needed: install a newer driver"
    )]
    OldDriver {
        /// The version that the driver supports.
        found: String,
        /// The oldest supported version.
        needed: &'static str,
    },
    /// The driver reports no device.
    #[error("the CUDA driver reports no GPU")]
    NoDevice,
    /// The device lacks bf16 tensor cores.
    #[error("{name} has compute capability {found}, and 8.0 or later is needed: use --device cpu")]
    OldDevice {
        /// The device's name.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// The run-time compiler's library is not installed.
    #[error(
        "CUDA's run-time compiler (libnvrtc) was not found: install the package cuda-nvrtc, or set {} to its path",
        crate::compile::NVRTC_VARIABLE
    )]
    NoCompiler,
    /// A kernel did not compile.
    #[error("the kernels of {unit} could not be compiled for {arch}: {log}")]
    Compile {
        /// The unit of kernels.
        unit: String,
        /// The architecture.
        arch: String,
        /// The first line of the compiler's log.
        log: String,
    },
    /// The device has too little free memory.
    #[error("out of GPU memory: {} could not be allocated", base::size_text(*.0 as u64))]
    OutOfMemory(usize),
    /// The driver reported an error.
    #[error("{call}: {error}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// The driver's name of the error.
        error: String,
    },
}

impl CudaError {
    /// Why it failed.
    pub fn kind(&self) -> &CudaErrorKind {
        &self.0
    }
}

impl From<CudaErrorKind> for CudaError {
    fn from(kind: CudaErrorKind) -> CudaError {
        CudaError(kind)
    }
}

impl From<CudaError> for KvError {
    fn from(error: CudaError) -> KvError {
        match error.0 {
            CudaErrorKind::OutOfMemory(bytes) => KvErrorKind::OutOfMemory(bytes).into(),
            kind => KvErrorKind::Device(kind.to_string()).into(),
        }
    }
}

impl From<CudaError> for BackendErrorKind {
    fn from(error: CudaError) -> BackendErrorKind {
        match error.0 {
            CudaErrorKind::OutOfMemory(bytes) => BackendErrorKind::OutOfMemory(bytes),
            kind => KvError::from(CudaError(kind)).into(),
        }
    }
}

/// Turns the driver's result into an error that names the call.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(CudaErrorKind::Driver {
            call,
            error: format!("{error:?}"),
        }
        .into()),
    }
}
