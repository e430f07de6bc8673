//! The error type of the crate.

use backend::BackendErrorKind;
use cudarc::driver::sys::CUresult;
use kv::{KvError, KvErrorKind};

/// The environment variable with the path of NVRTC's library.
pub const NVRTC_VARIABLE: &str = "KVARK_NVRTC";

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
        NVRTC_VARIABLE
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
    /// The backend's name is taken.
    #[error("the caches of the GPU could not be registered: {0}")]
    Register(String),
    /// An environment variable has a value that it does not take.
    #[error("{variable} is {found:?}, must be one of {values}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        found: String,
        /// The values that it takes.
        values: String,
    },
    /// The device has too little free memory.
    #[error("out of GPU memory: {} could not be allocated", base::size_text(*.0 as u64))]
    OutOfMemory(usize),
    /// The host has too little free memory that can be page-locked.
    #[error("out of memory: {} of page-locked memory could not be allocated for experts", base::size_text(*.0 as u64))]
    OutOfHostMemory(usize),
    /// The device does not work any more: everything on it fails until the program is started again.
    #[error("the GPU was lost ({error}): start the program again, or use --device cpu")]
    DeviceLost {
        /// The driver's name of the error.
        error: String,
    },
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

/// Calls a function of the driver, and turns its result into an error that names it.
macro_rules! driver {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::error::check(
            stringify!($function),
            cudarc::driver::sys::$function($($argument),*),
        )
    };
}

pub(crate) use driver;

/// Turns the driver's result into an error that names the call.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let error = format!("{result:?}");
    // Its versions are no names for a user.
    let call = call.trim_end_matches("_v2");
    Err(CudaError(match is_lost(result) {
        true => CudaErrorKind::DeviceLost { error },
        false => CudaErrorKind::Driver { call, error },
    }))
}

/// Whether a context is unusable after this error.
fn is_lost(error: CUresult) -> bool {
    use CUresult::*;
    matches!(
        error,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_an_error_of_its_own() {
        assert!(check("cuInit", CUresult::CUDA_SUCCESS).is_ok());
        let lost = check("cuGraphLaunch", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).unwrap_err();
        assert!(
            matches!(lost.kind(), CudaErrorKind::DeviceLost { .. }),
            "{lost}"
        );
        let error = BackendErrorKind::from(lost);
        assert!(error.to_string().contains("the GPU was lost"), "{error}");
        let other = check("cuGraphLaunch", CUresult::CUDA_ERROR_INVALID_VALUE).unwrap_err();
        assert_eq!(other.to_string(), "cuGraphLaunch: CUDA_ERROR_INVALID_VALUE");
    }
}
