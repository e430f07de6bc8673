//! A GPU: its context, its kernels and its memory.

use crate::compile::{self, Unit};
use crate::error::{CudaError, CudaErrorKind, check, driver};
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The oldest CUDA version that a driver must support, as the driver counts versions.
const OLDEST_DRIVER: i32 = 12000;
/// The first version with `cuEventElapsedTime_v2`.
const FIRST_EVENT_TIMES: i32 = 12080;

/// An opened device. Every call makes its context current on the calling thread first.
pub(crate) struct Device {
    context: sys::CUcontext,
    handle: sys::CUdevice,
    /// For copies that are waited for at once.
    pub(crate) stream: Stream,
    pub(crate) facts: DeviceFacts,
    /// Whether the driver has the functions that measure kernels.
    pub(crate) measures: bool,
    cubin_folder: Option<PathBuf>,
    functions: Mutex<HashMap<(Unit, &'static str), Function>>,
    modules: Mutex<HashMap<Unit, Module>>,
}

/// Name, architecture and sizes of a device.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Its architecture, such as `sm_90`.
    pub arch: String,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Its number of multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of dynamic shared memory that a block may have.
    pub shared_memory: usize,
    /// The CUDA version that the driver supports.
    pub driver: String,
}

#[derive(Clone, Copy)]
struct Module(sys::CUmodule);

/// A kernel.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) handle: sys::CUfunction,
    /// Whether it may start before the kernel before it ends.
    pub(crate) overlaps: bool,
}

// SAFETY: the driver's handles may be used from any thread; the context is made current before every use.
unsafe impl Send for Device {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Send for Module {}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn check_driver(version: i32) -> Result<(), CudaError> {
    match version < OLDEST_DRIVER {
        true => Err(CudaErrorKind::OldDriver {
            found: version_text(version),
            needed: "12.0",
        }
        .into()),
        false => Ok(()),
    }
}

fn check_capability(name: &str, (major, minor): (i32, i32)) -> Result<(), CudaError> {
    match major < 8 {
        true => Err(CudaErrorKind::OldDevice {
            name: name.to_owned(),
            found: format!("{major}.{minor}"),
        }
        .into()),
        false => Ok(()),
    }
}

impl Device {
    /// Opens a device of the machine.
    pub(crate) fn open(
        ordinal: i32,
        cubin_folder: Option<PathBuf>,
    ) -> Result<Arc<Device>, CudaError> {
        // SAFETY: loading the driver's library has no preconditions.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaErrorKind::NoDriver.into());
        }
        // SAFETY: the calls below write to the variables that they are given, and the driver checks their other arguments.
        unsafe {
            match sys::cuInit(0) {
                sys::CUresult::CUDA_ERROR_NO_DEVICE => return Err(CudaErrorKind::NoDevice.into()),
                result => check("cuInit", result)?,
            }
            let mut version = 0;
            driver!(cuDriverGetVersion(&mut version))?;
            check_driver(version)?;
            let mut count = 0;
            driver!(cuDeviceGetCount(&mut count))?;
            if count <= ordinal {
                return Err(CudaErrorKind::NoDevice.into());
            }
            let mut handle = 0;
            driver!(cuDeviceGet(&mut handle, ordinal))?;
            let mut name = [0; 128];
            driver!(cuDeviceGetName(name.as_mut_ptr(), 128, handle))?;
            let name: Vec<u8> = name
                .iter()
                .take_while(|c| **c != 0)
                .map(|c| *c as u8)
                .collect();
            let name = String::from_utf8_lossy(&name).into_owned();
            use sys::CUdevice_attribute as Attribute;
            let attribute = |which| {
                let mut value = 0;
                driver!(cuDeviceGetAttribute(&mut value, which, handle))?;
                Ok::<i32, CudaError>(value)
            };
            let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            check_capability(&name, (major, minor))?;
            let multiprocessors =
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
            let shared =
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
            let mut context = std::ptr::null_mut();
            driver!(cuDevicePrimaryCtxRetain(&mut context, handle))?;
            driver!(cuCtxSetCurrent(context))?;
            let device = Device {
                context,
                handle,
                stream: Stream::new()?,
                facts: DeviceFacts {
                    name,
                    arch: format!("sm_{major}{minor}"),
                    capability: (major, minor),
                    multiprocessors,
                    shared_memory: shared as usize - STATIC_SHARED,
                    driver: version_text(version),
                },
                measures: version >= FIRST_EVENT_TIMES,
                cubin_folder,
                functions: Mutex::default(),
                modules: Mutex::default(),
            };
            Ok(Arc::new(device))
        }
    }

    /// Makes the device's context current on this thread.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as the device lives.
        unsafe { driver!(cuCtxSetCurrent(self.context)) }
    }

    /// Bytes of free memory.
    pub(crate) fn free_memory(&self) -> Option<u64> {
        self.bind().ok()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both variables are written by the call.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check("cuMemGetInfo", result).ok().map(|()| free as u64)
    }

    /// A kernel of a unit, which is compiled and loaded at its first use.
    pub(crate) fn function(&self, unit: Unit, name: &'static str) -> Result<Function, CudaError> {
        let mut functions = self.functions.lock().expect("no holder panics");
        if let Some(function) = functions.get(&(unit, name)) {
            return Ok(*function);
        }
        let module = self.module(unit)?;
        let text = CString::new(name).expect("a name without zero bytes");
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and never unloaded; `function` is written by the call.
        unsafe { driver!(cuModuleGetFunction(&mut function, module.0, text.as_ptr())) }?;
        let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function was just found.
        unsafe {
            driver!(cuFuncSetAttribute(
                function,
                shared,
                self.facts.shared_memory as i32
            ))
        }?;
        let function = Function {
            name,
            handle: function,
            overlaps: self.facts.capability >= (9, 0),
        };
        functions.insert((unit, name), function);
        Ok(function)
    }

    fn module(&self, unit: Unit) -> Result<Module, CudaError> {
        let mut modules = self.modules.lock().expect("no holder panics");
        if let Some(module) = modules.get(&unit) {
            return Ok(*module);
        }
        let cubin = compile::cached(unit, &self.facts.arch, self.cubin_folder.as_deref())?;
        self.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the cubin is complete machine code as NVRTC made it.
        unsafe { driver!(cuModuleLoadData(&mut module, cubin.as_ptr().cast())) }?;
        modules.insert(unit, Module(module));
        Ok(Module(module))
    }

    /// Copies bytes to the device and waits for it.
    ///
    /// # Safety
    /// `to` must be the address of at least `from.len()` bytes on this device.
    pub(crate) unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller guarantees the target, and the source is a slice that lives until the copy is complete.
        unsafe {
            driver!(cuMemcpyHtoDAsync_v2(
                to,
                from.as_ptr().cast(),
                from.len(),
                self.stream.0
            ))
        }?;
        self.stream.wait()
    }

    /// Copies bytes from the device and waits for it.
    ///
    /// # Safety
    /// `from` must be the address of at least `to.len()` bytes on this device.
    pub(crate) unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller guarantees the source, and the target is a slice that lives until the copy is complete.
        unsafe {
            driver!(cuMemcpyDtoHAsync_v2(
                to.as_mut_ptr().cast(),
                from,
                to.len(),
                self.stream.0
            ))
        }?;
        self.stream.wait()
    }

    /// Copies bytes on the device and waits for it.
    ///
    /// # Safety
    /// Both addresses must have at least `len` bytes on this device, and the ranges must not overlap.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, len: usize) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller guarantees both ranges.
        unsafe { driver!(cuMemcpyDtoDAsync_v2(to, from, len, self.stream.0)) }?;
        self.stream.wait()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the context was retained when the device was opened, and nothing of this device is left.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

/// The most bytes of static shared memory that a kernel has.
const STATIC_SHARED: usize = 10752;

/// A stream that does not wait for the default stream.
pub(crate) struct Stream(pub(crate) sys::CUstream);

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A new stream of the current context.
    pub(crate) fn new() -> Result<Stream, CudaError> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is written by the call.
        unsafe { driver!(cuStreamCreate(&mut stream, flags)) }?;
        Ok(Stream(stream))
    }

    /// Waits until the work of the stream is complete.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream exists.
        unsafe { driver!(cuStreamSynchronize(self.0)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was created by `new` and is not used afterwards.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// Memory of a device.
pub(crate) struct Buffer {
    address: u64,
    len: usize,
    device: Arc<Device>,
}

impl Buffer {
    /// Allocates `len` bytes, all zero.
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Buffer, CudaError> {
        device.bind()?;
        let mut address = 0;
        if len > 0 {
            // SAFETY: `address` is written by the call.
            match unsafe { sys::cuMemAlloc_v2(&mut address, len) } {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(CudaErrorKind::OutOfMemory(len).into());
                }
                result => check("cuMemAlloc", result)?,
            }
        }
        let buffer = Buffer {
            address,
            len,
            device: device.clone(),
        };
        if len > 0 {
            // SAFETY: the memory was just allocated.
            unsafe { driver!(cuMemsetD8Async(address, 0, len, device.stream.0)) }?;
            device.stream.wait()?;
        }
        Ok(buffer)
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len > 0 && self.device.bind().is_ok() {
            // SAFETY: the memory was allocated by `new`. All work on it was waited for.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked memory of the host, from which copies need no staging.
pub(crate) struct Pinned {
    address: *mut u8,
    len: usize,
    device: Arc<Device>,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `len` bytes, all zero.
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Pinned, CudaError> {
        device.bind()?;
        let mut address: *mut c_void = std::ptr::null_mut();
        if len > 0 {
            // SAFETY: `address` is written by the call.
            unsafe { driver!(cuMemHostAlloc(&mut address, len, 0)) }?;
            // SAFETY: the memory was just allocated.
            unsafe { address.cast::<u8>().write_bytes(0, len) };
        }
        Ok(Pinned {
            address: address.cast(),
            len,
            device: device.clone(),
        })
    }

    /// Allocates `len` bytes that kernels can read and write, and returns them with their address on the device.
    pub(crate) fn mapped(device: &Arc<Device>, len: usize) -> Result<(Pinned, u64), CudaError> {
        device.bind()?;
        let mut address: *mut c_void = std::ptr::null_mut();
        let mut on_device = 0;
        if len > 0 {
            let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP;
            // SAFETY: `address` is written by the call.
            match unsafe { sys::cuMemHostAlloc(&mut address, len, flags) } {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(CudaErrorKind::OutOfHostMemory(len).into());
                }
                result => check("cuMemHostAlloc", result)?,
            }
        }
        let pinned = Pinned {
            address: address.cast(),
            len,
            device: device.clone(),
        };
        if len > 0 {
            // SAFETY: the memory was just allocated, with a mapping for the device.
            unsafe {
                address.cast::<u8>().write_bytes(0, len);
                driver!(cuMemHostGetDevicePointer_v2(&mut on_device, address, 0))?;
            }
        }
        Ok((pinned, on_device))
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.len {
            0 => &[],
            // SAFETY: the memory has this size and is initialised.
            len => unsafe { std::slice::from_raw_parts(self.address, len) },
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.len {
            0 => &mut [],
            // SAFETY: as above, and it is borrowed mutably.
            len => unsafe { std::slice::from_raw_parts_mut(self.address, len) },
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.len > 0 && self.device.bind().is_ok() {
            // SAFETY: the memory was allocated by `new`, and copies from it were waited for.
            let _ = unsafe { sys::cuMemFreeHost(self.address.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_drivers_and_devices_are_named_with_what_is_needed() {
        let old = check_driver(11080).unwrap_err();
        assert!(matches!(old.kind(), CudaErrorKind::OldDriver { .. }));
        let text = old.to_string();
        assert!(text.contains("11.8") && text.contains("12.0"), "{text}");
        assert!(check_driver(12000).is_ok());
        let old = check_capability("Tesla T4", (7, 5)).unwrap_err();
        assert!(matches!(old.kind(), CudaErrorKind::OldDevice { .. }));
        let text = old.to_string();
        assert!(text.contains("Tesla T4") && text.contains("7.5"), "{text}");
        assert!(check_capability("NVIDIA A100", (8, 0)).is_ok());
    }
}
