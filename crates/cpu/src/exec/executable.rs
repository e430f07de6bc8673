//! The CPU's executable: one set of weights and one arena, and a tape for every size of step.

use super::constants::Constants;
use super::profile::Profile;
use super::tape::{ExecState, Fusion, Tape};
use crate::aligned::AlignedBuffer;
use crate::isa::Isa;
use crate::kernels::Context;
use crate::kv::CpuKv;
use crate::thread_pool::ThreadPool;
use backend::{
    BackendError, BackendErrorKind, BatchDescriptor, CacheStep, CaptureSizes, CompileOptions,
    Dispatch, Executable, ExecutorKind, GraphSupport, NodeProfile, OutputCallback, Replay,
    ReplayWrapper, RunMode, ShapeCache, StepOptions, StepOutputs, TraceCallback, check_storage,
};
use graph::{Graph, Value, ValueRef};
use kv::{KvBytes, Step};
use std::sync::Arc;

/// Padding may take up to one part in this many of a recorded size: padded rows cost as much as real ones.
const MAX_PADDING: usize = 8;

/// A graph on the CPU.
///
/// A step that is dispatched to [`RunMode::Full`] replays a tape of its descriptor; a step of [`RunMode::Piecewise`] replays
/// a tape whose attention nodes are resolved again. Any other step runs node by node if [`RunMode::None`] was requested;
/// otherwise it replays a tape of its own size, of which the last few are cached.
pub(crate) struct CpuExecutable {
    machine: ExecState,
    /// Whether steps and graphs without a descriptor run node by node.
    eager: bool,
    full: ReplayWrapper<Tape>,
    pieces: ReplayWrapper<Tape>,
    odd: ShapeCache<Tape>,
    encoded: EncodedStep,
}

impl CpuExecutable {
    pub(crate) fn new(
        graph: Arc<Graph>,
        threads: Arc<ThreadPool>,
        isa: Isa,
        options: &CompileOptions,
    ) -> Result<CpuExecutable, BackendError> {
        let context = Context {
            isa,
            threads: &threads,
        };
        let constants = Constants::new(&graph, &context, options)?;
        Ok(CpuExecutable {
            machine: ExecState {
                graph,
                constants,
                threads,
                isa,
                arena: AlignedBuffer::default(),
                profile: None,
            },
            eager: options.executor == ExecutorKind::Interpreted,
            full: ReplayWrapper::new(RunMode::Full),
            pieces: ReplayWrapper::new(RunMode::Piecewise),
            odd: ShapeCache::default(),
            encoded: EncodedStep::default(),
        })
    }

    /// Runs the graph on tensors where they are, and calls `output` with its outputs where they are.
    fn run_views(
        &mut self,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        let mut cache = cache.map(CacheStep::downcast::<CpuKv>).transpose()?;
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| v.shape).collect();
        let addresses: Vec<*const u8> = inputs.iter().map(|v| v.data.as_ptr()).collect();
        let mut eager;
        let tape = if self.eager || trace.is_some() {
            eager = self.machine.record(&shapes, Fusion::None)?;
            &mut eager
        } else {
            self.machine.tape(&mut self.odd, &shapes)?
        };
        // SAFETY: the shapes and types are the inputs' own, which `Runnable` has checked.
        unsafe { tape.run(&mut self.machine, &addresses, &mut cache, trace)? };
        tape.view_outputs(&self.machine.graph, output);
        Ok(())
    }
}

impl Executable for CpuExecutable {
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        check_storage::<CpuKv>(bytes)
    }

    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        if trace.is_some() && !self.eager {
            return Err(BackendErrorKind::TraceUnsupported.into());
        }
        let inputs: Vec<ValueRef<'_>> = inputs.iter().map(Value::view).collect();
        let mut outputs = vec![];
        self.run_views(&inputs, cache, trace, &mut |_, view| {
            outputs.push(view.to_value())
        })?;
        Ok(outputs)
    }

    fn run_borrowed(
        &mut self,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        self.run_views(inputs, cache, None, output)
    }

    fn run_step(
        &mut self,
        dispatch: Dispatch,
        cache: CacheStep<'_>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let cache = cache.downcast::<CpuKv>()?;
        let CpuExecutable {
            machine,
            eager,
            full,
            pieces,
            odd,
            encoded,
        } = self;
        encoded.set(cache.plan.step());
        let work = StepWork {
            machine,
            odd: (!*eager).then_some(odd),
            encoded,
            cache: Some(cache),
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
        GraphSupport::Always
    }

    fn splits_attention(&self) -> bool {
        true
    }

    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>) {
        let (sequences, query) = (options.max_sequences, options.max_query_len);
        let sizes = CaptureSizes::dense(sequences, query, options.max_tokens);
        (sizes, Some(MAX_PADDING))
    }

    fn set_step_mode(&mut self, mode: RunMode) {
        self.eager = mode == RunMode::None;
    }

    fn capture(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError> {
        let (wrapper, fusion) = match mode {
            RunMode::Full => (&mut self.full, Fusion::Whole),
            RunMode::Piecewise => (&mut self.pieces, Fusion::Pieces),
            _ => return Ok(()),
        };
        let sizes = [batch.tokens, batch.tokens, batch.rows];
        let machine = &mut self.machine;
        wrapper.capture(batch, vec![], || machine.record_step(sizes, fusion))
    }

    fn captures(&self) -> usize {
        self.full.counts().captures + self.pieces.counts().captures
    }

    fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError> {
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        self.machine.tape(&mut self.odd, &shapes)?;
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) {
        self.machine.profile = on.then(Profile::default);
    }

    fn profile(&self) -> Vec<NodeProfile> {
        let profile = self.machine.profile.as_ref();
        profile.map_or_else(Vec::new, Profile::get)
    }

    fn arena_bytes(&self) -> usize {
        self.machine.arena.len()
    }

    fn packed_bytes(&self) -> usize {
        self.machine.constants.packed_bytes()
    }
}

/// A step as the graph's three inputs.
#[derive(Default)]
struct EncodedStep {
    inputs: [Vec<i32>; 3],
    /// The number of rows whose outputs the caller wants.
    wanted: usize,
    /// The number of tokens without padding.
    tokens: usize,
}

impl EncodedStep {
    fn set(&mut self, step: &Step) {
        let [tokens, positions, rows] = &mut self.inputs;
        tokens.clear();
        tokens.extend(step.tokens().iter().map(|token| token.id as i32));
        positions.clear();
        positions.extend(step.tokens().iter().map(|token| token.position));
        rows.clear();
        rows.extend(step.rows().iter().map(|row| *row as i32));
        self.wanted = step.wanted_rows();
        self.tokens = step.real_len();
    }

    fn sizes(&self) -> [usize; 3] {
        self.inputs.each_ref().map(Vec::len)
    }
}

impl ExecState {
    /// The tape of these input shapes.
    fn tape<'a>(
        &mut self,
        tapes: &'a mut ShapeCache<Tape>,
        shapes: &[&[usize]],
    ) -> Result<&'a mut Tape, BackendError> {
        tapes.get_or_make(shapes, || self.record(shapes, Fusion::Whole))
    }

    /// Records a tape for steps with these numbers of tokens, positions and rows.
    fn record_step(&mut self, sizes: [usize; 3], fusion: Fusion) -> Result<Tape, BackendError> {
        let shapes = sizes.each_ref().map(std::slice::from_ref);
        self.record(&shapes, fusion)
    }
}

/// One step, as every mode runs it.
struct StepWork<'a, 'c> {
    machine: &'a mut ExecState,
    /// The tapes of sizes without a descriptor; `None` to run node by node.
    odd: Option<&'a mut ShapeCache<Tape>>,
    encoded: &'a EncodedStep,
    cache: Option<CacheStep<'c, CpuKv>>,
    outputs: &'a mut StepOutputs,
}

impl StepWork<'_, '_> {
    /// Runs the step without a recording.
    fn run(&mut self) -> Result<(), BackendError> {
        let sizes = self.encoded.sizes();
        match self.odd.take() {
            Some(odd) => {
                let shapes = sizes.each_ref().map(std::slice::from_ref);
                let tape = self.machine.tape(odd, &shapes)?;
                self.replay(tape)
            }
            None => {
                let mut tape = self.machine.record_step(sizes, Fusion::None)?;
                self.replay(&mut tape)
            }
        }
    }

    /// Replays a tape of the step's sizes and copies the outputs that are wanted.
    fn replay(&mut self, tape: &mut Tape) -> Result<(), BackendError> {
        let inputs = self.encoded.inputs.each_ref();
        let inputs = inputs.map(|input| input.as_ptr().cast());
        // SAFETY: tapes are stored by the sizes of their inputs, and `Runnable` has checked that a decoder's are i32.
        unsafe { tape.run(self.machine, &inputs, &mut self.cache, None)? };
        let (logits, width) = tape.rows(0);
        self.outputs.fill(self.encoded.wanted, width, logits);
        if tape.output_count() > 1 {
            let features: Vec<_> = (1..tape.output_count()).map(|i| tape.rows(i)).collect();
            self.outputs.fill_features(self.encoded.tokens, &features);
        }
        Ok(())
    }

    fn record(&mut self, fusion: Fusion) -> Result<Tape, BackendError> {
        self.machine.record_step(self.encoded.sizes(), fusion)
    }
}

/// A step whose pieces between attention nodes are recorded.
struct PiecewiseGraph<'a, 'c>(StepWork<'a, 'c>);

impl Replay for PiecewiseGraph<'_, '_> {
    type Recording = Tape;
    type Error = BackendError;

    fn run(&mut self) -> Result<(), BackendError> {
        self.0.run()
    }

    fn record(&mut self) -> Result<Tape, BackendError> {
        self.0.record(Fusion::Pieces)
    }

    fn replay(&mut self, tape: &mut Tape) -> Result<(), BackendError> {
        self.0.replay(tape)
    }
}

/// A step that is recorded whole, over one whose pieces are.
struct FullGraph<'a, 'c> {
    work: PiecewiseGraph<'a, 'c>,
    pieces: &'a mut ReplayWrapper<Tape>,
    dispatch: Dispatch,
}

impl Replay for FullGraph<'_, '_> {
    type Recording = Tape;
    type Error = BackendError;

    fn run(&mut self) -> Result<(), BackendError> {
        self.pieces.run(Some(self.dispatch), &mut self.work)
    }

    fn record(&mut self) -> Result<Tape, BackendError> {
        self.work.0.record(Fusion::Whole)
    }

    fn replay(&mut self, tape: &mut Tape) -> Result<(), BackendError> {
        self.work.0.replay(tape)
    }
}
