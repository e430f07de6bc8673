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
    BackendError, CacheStep, CaptureSizes, CompileOptions, NodeProfile, OutputCallback, Replay,
    RunMode, StepOptions, StepOutputs, TraceCallback,
};
use graph::{Graph, ValueRef};
use kv::Step;
use std::sync::Arc;

/// Padding may take up to one part in this many of a recorded size: padded rows cost as much as real ones.
const MAX_PADDING: usize = 8;

/// A graph on the CPU. A recording is a tape; a tape of [`RunMode::Piecewise`] resolves its attention nodes again in every step.
pub(crate) struct CpuRecorder {
    state: ExecState,
    encoded: EncodedStep,
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
        Ok(CpuRecorder {
            state: ExecState {
                graph,
                constants,
                threads,
                isa,
                arena: AlignedBuffer::default(),
                profile: None,
            },
            encoded: EncodedStep::default(),
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
        let (logits, width) = tape.rows(0);
        outputs.fill(wanted, width, logits);
        if tape.output_count() > 1 {
            let features: Vec<_> = (1..tape.output_count()).map(|i| tape.rows(i)).collect();
            outputs.fill_features(tokens, &features);
        }
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
        tape.view_outputs(&self.state.graph, output);
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) {
        self.state.profile = on.then(Profile::default);
    }

    fn profile(&self) -> Vec<NodeProfile> {
        let profile = self.state.profile.as_ref();
        profile.map_or_else(Vec::new, Profile::get)
    }

    fn arena_bytes(&self) -> usize {
        self.state.arena.len()
    }

    fn packed_bytes(&self) -> usize {
        self.state.constants.packed_bytes()
    }
}

/// A step as the graph's three inputs; their memory is reused.
#[derive(Default)]
struct EncodedStep([Vec<i32>; 3]);

impl EncodedStep {
    fn set(&mut self, step: &Step) {
        let [tokens, positions, rows] = &mut self.0;
        tokens.clear();
        tokens.extend(step.tokens().iter().map(|token| token.id as i32));
        positions.clear();
        positions.extend(step.tokens().iter().map(|token| token.position));
        rows.clear();
        rows.extend(step.rows().iter().map(|row| *row as i32));
    }
}
