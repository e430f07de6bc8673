//! The GPU's executable: one set of weights, one arena and one step buffer, and a recording for every size of step.

use crate::device::Buffer;
use crate::error::{CudaError, CudaErrorKind};
use crate::exec_state::{ExecState, Start};
use crate::kv::CudaKv;
use crate::launch::{CapturedGraph, Launch};
use crate::profile::LaunchProfile;
use crate::tape::Tape;
use crate::topk::{ranked_tokens, token_of};
use backend::{
    BackendError, BackendErrorKind, CacheStep, CaptureSizes, GraphSupport, NodeProfile,
    OutputCallback, Replay, RunMode, StepInputs, StepOptions, StepOutputs, TraceCallback,
};
use graph::ValueRef;
use std::ffi::OsStr;

/// The environment variable that names the most that steps are recorded as: `never`, `uniform_single`, `uniform_batch` or
/// `always`. For tests of how run modes are downgraded.
pub const SUPPORT_VARIABLE: &str = "KVARK_CUDA_GRAPHS";

/// A graph on a GPU.
pub(crate) struct CudaRecorder {
    state: ExecState,
    support: GraphSupport,
}

/// The kernel calls of a graph for inputs of certain shapes, and what was captured of them.
pub(crate) struct Recording {
    tape: Tape,
    mode: RunMode,
    /// One captured graph, or those between attention nodes. `None` if the kernels are launched one by one.
    pieces: Option<Vec<Piece>>,
}

/// A part of a recording.
pub(crate) enum Piece {
    Captured(CapturedGraph),
    /// The calls of an attention node.
    Launched(Vec<Launch>),
}

/// The values of [`SUPPORT_VARIABLE`].
const SUPPORT: [(&str, GraphSupport); 4] = [
    ("never", GraphSupport::Never),
    ("uniform_single", GraphSupport::UniformSingleToken),
    ("uniform_batch", GraphSupport::UniformBatch),
    ("always", GraphSupport::Always),
];

/// The support that a value of [`SUPPORT_VARIABLE`] names. All of it without a value.
fn graph_support(value: Option<&str>) -> Result<GraphSupport, CudaError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(GraphSupport::Always);
    };
    let named = SUPPORT.iter().find(|(name, _)| *name == value);
    let unknown = || CudaErrorKind::Variable {
        variable: SUPPORT_VARIABLE,
        found: value.to_owned(),
        values: SUPPORT.map(|(name, _)| name).join(", "),
    };
    Ok(named.ok_or_else(unknown)?.1)
}

impl CudaRecorder {
    pub(crate) fn new(state: ExecState) -> Result<CudaRecorder, BackendError> {
        let support = std::env::var_os(SUPPORT_VARIABLE);
        let support = graph_support(support.as_deref().map(OsStr::to_string_lossy).as_deref());
        let support = support.map_err(BackendErrorKind::from)?;
        Ok(CudaRecorder { state, support })
    }

    /// Makes a recording again if memory has moved since it was made. Its memory was allocated then, so nothing moves now.
    fn refresh(&mut self, recording: &mut Recording) -> Result<(), BackendError> {
        if recording.tape.generation != self.state.generation {
            recording.tape = self.state.tape(recording.tape.bindings)?;
            if recording.pieces.take().is_some() {
                self.capture(recording)?;
            }
        }
        Ok(())
    }

    /// Copies the wanted outputs: of the first, rows of logits or their most likely tokens; of the others, a row for each token.
    fn copy_outputs(
        &mut self,
        tape: &Tape,
        (tokens, wanted): (usize, usize),
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let state = &mut self.state;
        let [padded_tokens, _, padded_rows] = tape.layout.step_sizes();
        let (address, bytes) = tape.outputs[0];
        let width = bytes / 4 / padded_rows.max(1);
        match ranked_tokens(outputs.wanted(), width) {
            Some(k) => {
                let keys = state.topk_keys(address, wanted, width, k)?;
                let topk = keys.iter().map(|key| token_of(*key));
                outputs.fill_topk(wanted, width, topk);
            }
            None => {
                let logits = state.result((address, wanted * width * 4))?;
                outputs.fill(wanted, width, floats(logits));
            }
        }
        let mut features: Vec<(Vec<f32>, usize)> = Vec::new();
        for &(address, bytes) in &tape.outputs[1..] {
            let width = bytes / 4 / padded_tokens.max(1);
            let rows = state.result((address, tokens * width * 4))?;
            features.push((floats(rows).to_vec(), width));
        }
        let features: Vec<_> = features.iter().map(|(f, width)| (&f[..], *width)).collect();
        outputs.fill_features(tokens, &features);
        Ok(())
    }
}

impl Replay for CudaRecorder {
    type Recording = Recording;
    type Kv = CudaKv;

    const RESOLVES_EVERY_RUN: bool = false;
    const RECORDS_AT_START: bool = true;

    fn graph_support(&self) -> GraphSupport {
        self.support
    }

    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>) {
        let (sequences, query) = (options.max_sequences, options.max_query_len);
        let sizes = CaptureSizes::sparse(sequences, query, options.max_tokens);
        (sizes, None)
    }

    fn record(&mut self, shapes: &[&[usize]], mode: RunMode) -> Result<Recording, BackendError> {
        let bindings = self.state.graph.bind(shapes)?;
        Ok(Recording {
            tape: self.state.tape(bindings)?,
            mode,
            pieces: None,
        })
    }

    /// Captures the kernel calls: all of them as one graph, or those between attention nodes.
    fn capture(&mut self, recording: &mut Recording) -> Result<(), BackendError> {
        if recording.pieces.is_some() || recording.mode == RunMode::None {
            return Ok(());
        }
        let (tape, stream) = (&recording.tape, &self.state.stream);
        let mut pieces = Vec::new();
        let mut launches: Vec<Launch> = Vec::new();
        let captured = |launches: &mut Vec<Launch>| {
            let launches = std::mem::take(launches);
            // SAFETY: the calls use the executable's memory, which outlives its recordings; if it moves, the generation
            // changes and nothing of this recording is replayed.
            unsafe { CapturedGraph::capture(stream, &launches) }.map(Piece::Captured)
        };
        if recording.mode != RunMode::Piecewise {
            launches.clone_from(&tape.whole);
        }
        let pieced = recording.mode == RunMode::Piecewise;
        for call in tape.calls.iter().filter(|_| pieced) {
            if call.attends {
                if !launches.is_empty() {
                    pieces.push(captured(&mut launches)?);
                }
                pieces.push(Piece::Launched(call.launches.clone()));
            } else {
                launches.extend(call.launches.iter().cloned());
            }
        }
        if !launches.is_empty() {
            pieces.push(captured(&mut launches)?);
        }
        recording.pieces = Some(pieces);
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.state.generation
    }

    fn replay_step(
        &mut self,
        recording: &mut Recording,
        mut cache: CacheStep<'_, CudaKv>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        self.state.device.bind()?;
        let step = cache.plan.step();
        let counts = (step.real_len(), step.wanted_rows());
        let mut inputs = StepInputs::default();
        inputs.set(step);
        let bytes = inputs.0.each_ref().map(|input| bytemuck::cast_slice(input));
        let layout = &recording.tape.layout;
        self.state.fill(layout, &bytes, Some(&mut cache))?;
        self.refresh(recording)?;
        let start = Start::of(recording.pieces.as_deref());
        self.state.start(&recording.tape, start)?;
        self.copy_outputs(&recording.tape, counts, outputs)
    }

    fn replay(
        &mut self,
        recording: &mut Recording,
        inputs: &[ValueRef<'_>],
        mut cache: Option<CacheStep<'_, CudaKv>>,
        trace: Option<TraceCallback<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        self.state.device.bind()?;
        let bytes: Vec<&[u8]> = inputs.iter().map(|value| value.data.as_bytes()).collect();
        let layout = &recording.tape.layout;
        self.state.fill(layout, &bytes, cache.as_mut())?;
        self.refresh(recording)?;
        let start = match trace {
            Some(trace) => Start::Traced(trace),
            None => Start::of(recording.pieces.as_deref()),
        };
        self.state.start(&recording.tape, start)?;
        for (index, value) in self.state.values(&recording.tape)?.iter().enumerate() {
            output(index, value.view());
        }
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) {
        let measures = on && self.state.device.measures;
        self.state.profile = measures.then(LaunchProfile::default);
    }

    fn profile(&self) -> Vec<NodeProfile> {
        let profile = self.state.profile.as_ref();
        profile.map_or(vec![], |profile| profile.0.all().to_vec())
    }

    fn arena_bytes(&self) -> usize {
        let state = &self.state;
        let buffers = [
            &state.arena,
            &state.step,
            &state.partial,
            &state.counters,
            &state.flagged,
            &state.topk,
            &state.arrived,
        ];
        buffers.map(Buffer::len).iter().sum()
    }

    fn packed_bytes(&self) -> usize {
        self.state.constants.bytes()
    }
}

/// Numbers of a result. No bytes may lie at any address.
fn floats(bytes: &[u8]) -> &[f32] {
    match bytes.is_empty() {
        true => &[],
        false => bytemuck::cast_slice(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_support_is_refused_with_the_values() {
        for (name, support) in SUPPORT {
            assert_eq!(graph_support(Some(name)).unwrap(), support);
        }
        for nothing in [None, Some("")] {
            assert_eq!(graph_support(nothing).unwrap(), GraphSupport::Always);
        }
        for wrong in ["nver", "Never", "uniform"] {
            let error = graph_support(Some(wrong)).unwrap_err().to_string();
            for part in [
                SUPPORT_VARIABLE,
                wrong,
                "never, uniform_single, uniform_batch, always",
            ] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
