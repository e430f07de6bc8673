//! The CPU's executable: one set of weights and one arena, and a tape for every size of step.

use super::constants::Constants;
use super::mapped::MappedWeights;
use super::tape::{ExecState, Fusion, Tape};
use crate::aligned::AlignedBuffer;
use crate::isa::Isa;
use crate::kernels::Context;
use crate::kv::CpuKv;
use crate::thread_pool::ThreadPool;
use backend::{
    BackendError, CacheStep, CaptureSizes, CompileOptions, NodeProfile, NodeProfiles,
    OutputCallback, Replay, RunMode, StepInputs, StepOptions, StepOutputs, TraceCallback,
};
use graph::{Graph, ValueRef};
use std::sync::Arc;

/// Padding may take up to one part in this many of a recorded size: padded rows cost as much as real ones.
const MAX_PADDING: usize = 8;

/// A graph on the CPU. A recording is a tape; a tape of [`RunMode::Piecewise`] resolves its attention nodes again in every step.
pub(crate) struct CpuRecorder {
    state: ExecState,
    encoded: StepInputs,
    mapped: MappedWeights,
}

impl CpuRecorder {
    pub(crate) fn new(
        graph: Arc<Graph>,
        threads: Arc<ThreadPool>,
        isa: Isa,
        options: &CompileOptions,
    ) -> Result<CpuRecorder, BackendError> {
        let context = Context {
            isa,
            threads: &threads,
        };
        let constants = Constants::new(&graph, &context, options)?;
        let mapped = MappedWeights::new(&graph, constants.layouts());
        Ok(CpuRecorder {
            state: ExecState {
                graph,
                constants,
                threads,
                isa,
                arena: AlignedBuffer::default(),
                profile: None,
            },
            encoded: StepInputs::default(),
            mapped,
        })
    }
}

impl Replay for CpuRecorder {
    type Recording = Tape;
    type Kv = CpuKv;

    const RESOLVES_EVERY_RUN: bool = true;
    const RECORDS_AT_START: bool = false;

    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>) {
        let (sequences, query) = (options.max_sequences, options.max_query_len);
        let sizes = CaptureSizes::dense(sequences, query, options.max_tokens);
        (sizes, Some(MAX_PADDING))
    }

    fn record(&mut self, shapes: &[&[usize]], mode: RunMode) -> Result<Tape, BackendError> {
        let fusion = match mode {
            RunMode::None => Fusion::None,
            RunMode::Piecewise => Fusion::Pieces,
            _ => Fusion::Whole,
        };
        self.state.record(shapes, fusion)
    }

    fn replay_step(
        &mut self,
        tape: &mut Tape,
        cache: CacheStep<'_, CpuKv>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let step = cache.plan.step();
        let (tokens, wanted) = (step.real_len(), step.wanted_rows());
        self.encoded.set(step);
        let inputs = self.encoded.0.each_ref();
        let inputs = inputs.map(|input| input.as_ptr().cast());
        // SAFETY: recordings are stored by the sizes of their inputs, and `Runnable` has checked that a decoder's are i32.
        unsafe { tape.run(&mut self.state, &inputs, &mut Some(cache), None)? };
        self.mapped.gathered(tokens);
        let (logits, width) = tape.rows(0);
        outputs.fill(wanted, width, logits);
        let features: Vec<_> = (1..tape.output_count()).map(|i| tape.rows(i)).collect();
        outputs.fill_features(tokens, &features);
        Ok(())
    }

    /// Reads the inputs where they are and calls `output` with the outputs where they are.
    fn replay(
        &mut self,
        tape: &mut Tape,
        inputs: &[ValueRef<'_>],
        mut cache: Option<CacheStep<'_, CpuKv>>,
        trace: Option<TraceCallback<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        let addresses: Vec<*const u8> = inputs.iter().map(|v| v.data.as_ptr()).collect();
        // SAFETY: the shapes are those of the recording, and `Runnable` has checked the types.
        unsafe { tape.run(&mut self.state, &addresses, &mut cache, trace)? };
        let rows = inputs.iter().map(|input| input.shape.iter().product());
        self.mapped.gathered(rows.max().unwrap_or(0));
        tape.view_outputs(&self.state.graph, output);
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) {
        self.state.profile = on.then(NodeProfiles::default);
    }

    fn profile(&self) -> Vec<NodeProfile> {
        let profile = self.state.profile.as_ref();
        profile.map_or(vec![], |profile| profile.all().to_vec())
    }

    fn arena_bytes(&self) -> usize {
        self.state.arena.len()
    }

    fn packed_bytes(&self) -> usize {
        self.state.constants.packed_bytes()
    }
}
