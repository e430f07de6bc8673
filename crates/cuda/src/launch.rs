//! Kernel calls, and graphs of them that are captured once and replayed.

use crate::device::{Device, Function, Stream};
use crate::error::{CudaError, driver};
use cudarc::driver::sys;
use std::ffi::c_void;

/// A kernel call with its arguments: one structure, passed by value.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) grid: [u32; 2],
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    /// Whether its blocks wait for each other, so that all of them must be resident.
    cooperative: bool,
    arguments: Box<[u64]>,
}

impl Launch {
    pub(crate) fn new<A: bytemuck::NoUninit>(
        function: Function,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
        arguments: &A,
    ) -> Launch {
        let bytes = bytemuck::bytes_of(arguments);
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Launch {
            function,
            grid,
            threads,
            shared,
            cooperative: false,
            arguments: words.into(),
        }
    }

    /// The same call, which starts when all its blocks can be resident.
    pub(crate) fn cooperative(self) -> Launch {
        Launch {
            cooperative: true,
            ..self
        }
    }

    /// Starts the kernel on the device's own stream and waits for it.
    ///
    /// # Safety
    /// As [`start`](Self::start).
    pub(crate) unsafe fn run(&self, device: &Device) -> Result<(), CudaError> {
        device.bind()?;
        // SAFETY: the caller guarantees the arguments.
        unsafe { self.start(&device.stream)? };
        device.stream.wait()
    }

    /// Starts the kernel on a stream.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, and the memory that they name must be valid until the kernel ends. The
    /// device's context must be current.
    pub(crate) unsafe fn start(&self, stream: &Stream) -> Result<(), CudaError> {
        let [x, y] = self.grid;
        if x == 0 || y == 0 {
            return Ok(());
        }
        let mut arguments = [self.arguments.as_ptr().cast_mut().cast::<c_void>()];
        // The kernel may start before the one before it ends; it waits for that end itself. Devices older than sm_90
        // ignore it.
        let overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let cooperative = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { cooperative: 1 },
        };
        let mut attributes = [overlap, cooperative];
        // A launch passes only the attributes that it needs.
        let attributes = match (self.function.overlaps, self.cooperative) {
            (true, true) => &mut attributes[..],
            (true, false) => &mut attributes[..1],
            (false, true) => &mut attributes[1..],
            (false, false) => &mut attributes[..0],
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream.0,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the caller guarantees the arguments, and the driver copies them during the call.
        unsafe {
            driver!(cuLaunchKernelEx(
                &config,
                self.function.handle,
                arguments.as_mut_ptr(),
                std::ptr::null_mut()
            ))
        }
    }
}

/// A captured graph of kernel calls.
pub(crate) struct CapturedGraph(sys::CUgraphExec);

// SAFETY: the graph is used by its owner alone.
unsafe impl Send for CapturedGraph {}

impl CapturedGraph {
    /// Captures the calls; they do not run.
    ///
    /// # Safety
    /// As [`Launch::start`], until the last replay.
    pub(crate) unsafe fn capture(
        stream: &Stream,
        launches: &[Launch],
    ) -> Result<CapturedGraph, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream exists and no capture is under way on it.
        unsafe { driver!(cuStreamBeginCapture_v2(stream.0, mode)) }?;
        // SAFETY: the caller guarantees the arguments.
        let started = launches
            .iter()
            .try_for_each(|launch| unsafe { launch.start(stream) });
        let mut graph = std::ptr::null_mut();
        // SAFETY: a capture is under way; `graph` is written by the call.
        let ended = unsafe { driver!(cuStreamEndCapture(stream.0, &mut graph)) };
        let mut exec = std::ptr::null_mut();
        let made = started.and(ended).and_then(|()| {
            // SAFETY: the graph was captured above; `exec` is written by the call.
            unsafe { driver!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)) }
        });
        // A capture whose calls failed may have given a graph too.
        if !graph.is_null() {
            // SAFETY: an executable graph does not need the graph that it was made from, and nothing else has it.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        made?;
        Ok(CapturedGraph(exec))
    }

    /// Starts the captured calls as one launch.
    ///
    /// # Safety
    /// As [`capture`](CapturedGraph::capture).
    pub(crate) unsafe fn start(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the caller guarantees the arguments of the captured calls.
        unsafe { driver!(cuGraphLaunch(self.0, stream.0)) }
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: the graph was instantiated by `capture` and its work was waited for.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}
