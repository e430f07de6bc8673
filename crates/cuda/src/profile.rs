//! The time of a step's kernels, measured by events.

use crate::device::Stream;
use crate::error::{CudaError, driver};
use crate::tape::Tape;
use backend::{ExpertUse, NodeProfile, NodeProfiles};
use cudarc::driver::sys;
use graph::Graph;
use std::time::Duration;

/// Measurements by kernel and label, in the order in which they were first run.
#[derive(Default)]
pub(crate) struct LaunchProfile(pub(crate) NodeProfiles);

impl LaunchProfile {
    /// Starts the kernels of a tape one by one, with an event after each, and waits for them.
    ///
    /// # Safety
    /// As [`Launch::start`](crate::launch::Launch::start).
    pub(crate) unsafe fn run(
        &mut self,
        graph: &Graph,
        tape: &Tape,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let mut before = Event::recorded(stream)?;
        let mut events = Vec::new();
        for call in &tape.calls {
            let last = call.launches.len().saturating_sub(1);
            for (i, launch) in call.launches.iter().enumerate() {
                // SAFETY: the caller guarantees the arguments.
                unsafe { launch.start(stream)? };
                let after = Event::recorded(stream)?;
                let label = label(graph.node_name(&graph.nodes()[call.node]));
                let work = if i == last { call.work } else { (0, 0) };
                events.push((launch.function.name, label, work, after));
            }
        }
        stream.wait()?;
        for (kernel, label, (bytes, macs), after) in events {
            let time = before.until(&after)?;
            self.0.add(NodeProfile {
                op: kernel,
                label,
                runs: 1,
                time,
                bytes,
                macs,
                is_f32: false,
                experts: ExpertUse::default(),
            });
            before = after;
        }
        Ok(())
    }
}

/// A node's name without its layer number.
fn label(name: &str) -> String {
    let mut label = String::new();
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if label.ends_with('*') => {}
            true => label.push('*'),
            false => label.push(c),
        }
    }
    label
}

/// A point in the work of a stream.
struct Event(sys::CUevent);

impl Event {
    fn recorded(stream: &Stream) -> Result<Event, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` is written by the call.
        unsafe { driver!(cuEventCreate(&mut event, 0)) }?;
        let event = Event(event);
        // SAFETY: both exist.
        unsafe { driver!(cuEventRecord(event.0, stream.0)) }?;
        Ok(event)
    }

    fn until(&self, later: &Event) -> Result<Duration, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded and waited for; the time is written by the call.
        unsafe { driver!(cuEventElapsedTime_v2(&mut milliseconds, self.0, later.0)) }?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1000.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was created by `recorded`.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
