//! The executable: one set of weights, one arena and one step buffer, and a recording for every size of step.

use crate::best::{ranked_tokens, token_of};
use crate::device::{Buffer, Device};
use crate::error::{CudaError, CudaErrorKind};
use crate::kv::CudaKv;
use crate::machine::{ExecState, Recording, Start};
use crate::profile::LaunchProfile;
use crate::tape::Tape;
use ::kv::KvBytes;
use backend::{
    BackendError, BackendErrorKind, BatchDescriptor, CacheStep, CaptureSizes, CompileOptions,
    Dispatch, Dispatcher, DispatcherOptions, Executable, ExecutorKind, GraphSupport, NodeProfile,
    Replay, ReplayWrapper, RunMode, ShapeCache, StepOptions, StepOutputs, TraceCallback,
    check_storage,
};
use graph::{Graph, Value};
use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::Arc;

/// The environment variable that names the most that steps are recorded as: `never`, `uniform_single`, `uniform_batch` or
/// `always`. For tests of how run modes are downgraded.
pub const SUPPORT_VARIABLE: &str = "KVARK_CUDA_GRAPHS";

/// A graph on a GPU.
///
/// A step that is dispatched to [`RunMode::Full`] replays one captured graph; a step of [`RunMode::Piecewise`] replays the
/// captured pieces between attention nodes, whose kernels are launched on their own. Any other step launches its kernels
/// one by one.
pub(crate) struct CudaExecutable {
    full: ReplayWrapper<Recording>,
    pieces: ReplayWrapper<Recording>,
    odd: ShapeCache<Tape>,
    machine: ExecState,
    support: GraphSupport,
    start_up: StartUp,
}

/// The sizes and modes that the caller announced for its steps; all of them are recorded before the first step.
#[derive(Default)]
struct StartUp {
    mode: Option<RunMode>,
    options: Cell<Option<StepOptions>>,
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

impl CudaExecutable {
    pub(crate) fn new(
        graph: Arc<Graph>,
        device: &Arc<Device>,
        options: &CompileOptions,
    ) -> Result<CudaExecutable, BackendError> {
        let support = std::env::var_os(SUPPORT_VARIABLE);
        let support = graph_support(support.as_deref().map(OsStr::to_string_lossy).as_deref());
        let support = support.map_err(BackendErrorKind::from)?;
        Ok(CudaExecutable {
            full: ReplayWrapper::new(RunMode::Full),
            pieces: ReplayWrapper::new(RunMode::Piecewise),
            odd: ShapeCache::default(),
            machine: ExecState::new(graph, device, options)?,
            support,
            start_up: StartUp::default(),
        })
    }

    fn record(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError> {
        let wrapper = match mode {
            RunMode::Full => &mut self.full,
            RunMode::Piecewise => &mut self.pieces,
            _ => return Ok(()),
        };
        let sizes = [batch.tokens, batch.tokens, batch.rows];
        let machine = &mut self.machine;
        wrapper.capture(batch, vec![], || machine.record(sizes, mode))
    }

    /// Records every step that may come, the largest first.
    fn record_all(&mut self, mode: RunMode) -> Result<(), BackendError> {
        let Some(options) = self.start_up.options.get() else {
            return Ok(());
        };
        let (max_tokens, max_rows) = (options.max_tokens, options.max_rows);
        let (sizes, max_padding) = self.capture_sizes(&options);
        let dispatcher = Dispatcher::new(DispatcherOptions {
            mode,
            sizes,
            max_sequences: options.max_sequences,
            max_query_len: options.max_query_len,
            max_padding,
        });
        for Dispatch { mode, batch } in dispatcher.captures() {
            // Steps with more rows than the longest step may have do not come; those with fewer are padded.
            let powers = std::iter::successors(Some(1), |rows: &usize| rows.checked_mul(2));
            let below = powers.take_while(|rows| *rows < batch.tokens);
            let mut rows: Vec<usize> = below.chain([0, batch.tokens]).collect();
            rows.retain(|rows| *rows < 2 * max_rows.max(1));
            rows.sort_unstable_by(|a, b| b.cmp(a));
            for rows in rows {
                if batch.tokens <= max_tokens {
                    self.record(mode, BatchDescriptor { rows, ..batch })?;
                }
            }
        }
        Ok(())
    }

    fn run_values(
        &mut self,
        inputs: &[Value],
        mut cache: Option<CacheStep<'_, CudaKv>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| &v.shape[..]).collect();
        let bytes: Vec<base::Bytes> = inputs.iter().map(|value| value.data.to_bytes()).collect();
        let bytes: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
        let machine = &mut self.machine;
        let tape = machine.cached_tape(&mut self.odd, &shapes)?;
        machine.fill(&tape.layout, &bytes, cache.as_mut())?;
        // Filling may have moved the step buffer.
        let tape = machine.cached_tape(&mut self.odd, &shapes)?;
        let start = match trace {
            Some(trace) => Start::Traced(trace),
            None => Start::Launches,
        };
        machine.start(tape, start)?;
        machine.values(tape)
    }
}

impl Executable for CudaExecutable {
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        check_storage::<CudaKv>(bytes)
    }

    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        if trace.is_some() && self.machine.executor == ExecutorKind::Compiled {
            return Err(BackendErrorKind::TraceUnsupported.into());
        }
        let cache = cache.map(CacheStep::downcast::<CudaKv>).transpose()?;
        self.run_values(inputs, cache, trace)
    }

    fn run_step(
        &mut self,
        dispatch: Dispatch,
        cache: CacheStep<'_>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let cache = cache.downcast::<CudaKv>()?;
        let step = cache.plan.step();
        let sizes = [step.len(), step.len(), step.rows().len()];
        let (tokens, wanted) = (step.real_len(), step.wanted_rows());
        let CudaExecutable {
            full,
            pieces,
            odd,
            machine,
            ..
        } = self;
        machine.device.bind()?;
        machine.fill_step(sizes, cache)?;
        let work = StepWork {
            machine,
            odd,
            sizes,
            tokens,
            wanted,
            outputs,
        };
        let mut whole = FullGraph {
            work: PiecewiseGraph(work),
            pieces,
            dispatch,
        };
        full.run(Some(dispatch), &mut whole)
    }

    fn graph_support(&self) -> GraphSupport {
        self.support
    }

    fn splits_attention(&self) -> bool {
        true
    }

    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>) {
        self.start_up.options.set(Some(*options));
        let (sequences, query) = (options.max_sequences, options.max_query_len);
        let sizes = CaptureSizes::sparse(sequences, query, options.max_tokens);
        (sizes, None)
    }

    fn set_step_mode(&mut self, mode: RunMode) {
        self.start_up.mode = Some(mode);
    }

    fn capture(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError> {
        // The first decode to be recorded is that of all sequences; everything else is recorded with it.
        if let Some(mode) = self.start_up.mode.take() {
            let before = self.machine.generation;
            self.record_all(mode)?;
            if self.machine.generation != before {
                // Memory has grown, and what was recorded for it before is of no use.
                self.full.clear();
                self.pieces.clear();
                self.record_all(mode)?;
            }
        }
        self.record(mode, batch)
    }

    fn captures(&self) -> usize {
        self.full.counts().captures + self.pieces.counts().captures
    }

    fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError> {
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        self.machine.cached_tape(&mut self.odd, &shapes)?;
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) {
        let measures = on && self.machine.device.measures;
        self.machine.profile = measures.then(LaunchProfile::default);
    }

    fn profile(&self) -> Vec<NodeProfile> {
        let profile = self.machine.profile.as_ref();
        profile.map_or(vec![], |profile| profile.nodes().to_vec())
    }

    fn arena_bytes(&self) -> usize {
        let machine = &self.machine;
        let buffers = [
            &machine.arena,
            &machine.step,
            &machine.partial,
            &machine.counters,
            &machine.flagged,
            &machine.best,
            &machine.arrived,
        ];
        buffers.map(Buffer::len).iter().sum()
    }

    fn packed_bytes(&self) -> usize {
        self.machine.constants.bytes()
    }
}

impl ExecState {
    /// The tape of these input shapes. Tapes from before memory moved are forgotten.
    fn cached_tape<'a>(
        &mut self,
        tapes: &'a mut ShapeCache<Tape>,
        shapes: &[&[usize]],
    ) -> Result<&'a Tape, BackendError> {
        tapes.retain(|tape| tape.generation == self.generation);
        Ok(tapes.get_or_make(shapes, || self.tape(shapes))?)
    }
}

/// One step, as every mode runs it; its inputs and its plan are in the step buffer.
struct StepWork<'a> {
    machine: &'a mut ExecState,
    odd: &'a mut ShapeCache<Tape>,
    sizes: [usize; 3],
    /// Tokens that are not padding, and rows that are wanted.
    tokens: usize,
    wanted: usize,
    outputs: &'a mut StepOutputs,
}

impl StepWork<'_> {
    /// Launches the kernels one by one.
    fn run(&mut self) -> Result<(), BackendError> {
        let shapes = self.sizes.each_ref().map(std::slice::from_ref);
        let before = self.machine.step.address();
        let tape = self.machine.cached_tape(self.odd, &shapes)?;
        self.machine.keep_step(before)?;
        self.machine.start(tape, Start::Launches)?;
        let outputs = tape.outputs.clone();
        self.copy_outputs(&outputs)
    }

    fn record(&mut self, mode: RunMode) -> Result<Recording, BackendError> {
        let before = self.machine.step.address();
        let recording = self.machine.record(self.sizes, mode)?;
        self.machine.keep_step(before)?;
        Ok(recording)
    }

    fn replay(&mut self, recording: &mut Recording, mode: RunMode) -> Result<(), BackendError> {
        if recording.tape.generation != self.machine.generation {
            *recording = self.record(mode)?;
        }
        self.machine
            .start(&recording.tape, Start::Pieces(&recording.pieces))?;
        self.copy_outputs(&recording.tape.outputs)
    }

    /// Copies the outputs that are wanted: of the first, rows of logits or their best tokens; of the others, a row for each
    /// token.
    fn copy_outputs(&mut self, outputs: &[(u64, usize)]) -> Result<(), BackendError> {
        let (address, bytes) = outputs[0];
        let width = bytes / 4 / self.sizes[2].max(1);
        match ranked_tokens(self.outputs.wanted(), width) {
            Some(k) => {
                let keys = self.machine.best_keys(address, self.wanted, width, k)?;
                let best = keys.iter().map(|key| token_of(*key));
                self.outputs.fill_best(self.wanted, width, best);
            }
            None => {
                let logits = self.machine.result((address, self.wanted * width * 4))?;
                self.outputs.fill(self.wanted, width, floats(logits));
            }
        }
        let mut features: Vec<(Vec<f32>, usize)> = Vec::new();
        for &(address, bytes) in &outputs[1..] {
            let width = bytes / 4 / self.sizes[0].max(1);
            let rows = self.machine.result((address, self.tokens * width * 4))?;
            features.push((floats(rows).to_vec(), width));
        }
        if !features.is_empty() {
            let features: Vec<_> = features.iter().map(|(f, width)| (&f[..], *width)).collect();
            self.outputs.fill_features(self.tokens, &features);
        }
        Ok(())
    }
}

/// Numbers of a result. No bytes may lie at any address.
fn floats(bytes: &[u8]) -> &[f32] {
    match bytes.is_empty() {
        true => &[],
        false => bytemuck::cast_slice(bytes),
    }
}

/// A step whose pieces between attention nodes are recorded.
struct PiecewiseGraph<'a>(StepWork<'a>);

impl Replay for PiecewiseGraph<'_> {
    type Recording = Recording;
    type Error = BackendError;

    fn run(&mut self) -> Result<(), BackendError> {
        self.0.run()
    }

    fn record(&mut self) -> Result<Recording, BackendError> {
        self.0.record(RunMode::Piecewise)
    }

    fn replay(&mut self, recording: &mut Recording) -> Result<(), BackendError> {
        self.0.replay(recording, RunMode::Piecewise)
    }
}

/// A step that is recorded whole, over one whose pieces are.
struct FullGraph<'a> {
    work: PiecewiseGraph<'a>,
    pieces: &'a mut ReplayWrapper<Recording>,
    dispatch: Dispatch,
}

impl Replay for FullGraph<'_> {
    type Recording = Recording;
    type Error = BackendError;

    fn run(&mut self) -> Result<(), BackendError> {
        self.pieces.run(Some(self.dispatch), &mut self.work)
    }

    fn record(&mut self) -> Result<Recording, BackendError> {
        self.work.0.record(RunMode::Full)
    }

    fn replay(&mut self, recording: &mut Recording) -> Result<(), BackendError> {
        self.work.0.replay(recording, RunMode::Full)
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
