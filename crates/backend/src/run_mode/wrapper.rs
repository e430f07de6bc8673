//! `ReplayWrapper`: an executable that records a graph's work once for each size and replays it from then on.

use super::{
    BatchDescriptor, CaptureSizes, Dispatch, Dispatcher, DispatcherOptions, GraphSupport, RunMode,
    ShapeCache,
};
use crate::{
    BackendError, BackendErrorKind, CacheStep, CompileOptions, Executable, ExecutorKind,
    NodeProfile, OutputCallback, StepOptions, StepOutputs, TraceCallback, check_storage,
};
use graph::{Value, ValueRef};
use kv::KvBytes;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A backend records the work of a graph and replays it; `ReplayWrapper` does the rest. The backend defines its recording (a tape on the CPU, a
/// captured graph on a GPU).
pub trait Replay: Send {
    /// The recorded work of a graph for inputs of certain shapes.
    type Recording: Send;
    /// The backend's storage of keys and values.
    type Kv: KvBytes;

    /// Whether work of [`RunMode::None`] is resolved in every run, and nothing of it is stored.
    const RESOLVES_EVERY_RUN: bool;
    /// Whether all descriptors are recorded before the first step. Otherwise these are the decodes of one sequence and of all.
    const RECORDS_AT_START: bool;

    /// The steps that can be recorded as a whole. The pieces between attention nodes always can.
    fn graph_support(&self) -> GraphSupport {
        GraphSupport::Always
    }

    /// The sizes to record for steps with these options, and the padding limit of [`DispatcherOptions`].
    fn capture_sizes(&self, options: &StepOptions) -> (CaptureSizes, Option<usize>);

    /// Records the work for inputs of these shapes and allocates the memory that the work needs.
    fn record(
        &mut self,
        shapes: &[&[usize]],
        mode: RunMode,
    ) -> Result<Self::Recording, BackendError>;

    /// Makes a recording that will be replayed often as fast as it can be.
    fn capture(&mut self, recording: &mut Self::Recording) -> Result<(), BackendError> {
        let _ = recording;
        Ok(())
    }

    /// Counts how often memory has moved: recordings from before are made again when they are replayed.
    fn generation(&self) -> u64 {
        0
    }

    /// Replays a step of a decoder and writes the wanted outputs of its rows to `outputs`.
    fn replay_step(
        &mut self,
        recording: &mut Self::Recording,
        cache: CacheStep<'_, Self::Kv>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError>;

    /// Replays a run on tensors of the recording's shapes and types, and calls `output` with the outputs.
    fn replay(
        &mut self,
        recording: &mut Self::Recording,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_, Self::Kv>>,
        trace: Option<TraceCallback<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError>;

    /// Starts or stops measuring nodes, and discards earlier measurements.
    fn set_profiling(&mut self, on: bool);

    /// The measurements since profiling was started, in execution order.
    fn profile(&self) -> Vec<NodeProfile>;

    /// Bytes of activations and scratch allocated now.
    fn arena_bytes(&self) -> usize;

    /// Bytes of packed weights, not counting the graph's constants.
    fn packed_bytes(&self) -> usize;
}

/// Why a step cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A new descriptor came after the time to record.
    #[error("{batch:?} was not recorded at start-up, and nothing is recorded after it")]
    CaptureDisabled {
        /// The descriptor that the step was dispatched to.
        batch: BatchDescriptor,
    },
}

/// An executable over a backend's recordings. A step that is dispatched to [`RunMode::Full`] or [`RunMode::Piecewise`] replays the
/// recording of its mode and descriptor. Any other step, and a run on tensors, replays a recording of its shapes, of which the last
/// few are stored.
pub struct ReplayWrapper<R: Replay> {
    recorder: R,
    /// Whether runs on tensors are interpreted node by node.
    is_interpreted: bool,
    /// The mode of steps.
    mode: RunMode,
    by_batch: HashMap<(RunMode, BatchDescriptor), R::Recording>,
    by_shape: ShapeCache<R::Recording>,
    /// The work of the last run that was resolved for it alone.
    resolved: Option<R::Recording>,
    /// Whether a descriptor without a recording is an error.
    is_closed: bool,
    captures: usize,
    missed: usize,
}

impl<R: Replay> ReplayWrapper<R> {
    /// An executable without recordings.
    pub fn new(recorder: R, options: &CompileOptions) -> ReplayWrapper<R> {
        let is_interpreted = options.executor == ExecutorKind::Interpreted;
        ReplayWrapper {
            recorder,
            is_interpreted,
            mode: match is_interpreted {
                true => RunMode::None,
                false => RunMode::Full,
            },
            by_batch: HashMap::new(),
            by_shape: ShapeCache::default(),
            resolved: None,
            is_closed: false,
            captures: 0,
            missed: 0,
        }
    }

    /// Records a descriptor if it is new.
    fn capture(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError> {
        if let Entry::Vacant(entry) = self.by_batch.entry((mode, batch)) {
            entry.insert(record_batch(&mut self.recorder, mode, batch)?);
            self.captures += 1;
        }
        Ok(())
    }

    /// Records all descriptors of a dispatcher that steps of these options can have.
    fn capture_all(
        &mut self,
        dispatcher: &Dispatcher,
        options: &StepOptions,
    ) -> Result<(), BackendError> {
        for Dispatch { mode, batch } in dispatcher.captures(options.max_rows) {
            if batch.tokens <= options.max_tokens {
                self.capture(mode, batch)?;
            }
        }
        Ok(())
    }

    /// The recording for inputs of these shapes, and whether it was there.
    fn by_shape(
        &mut self,
        shapes: &[&[usize]],
        mode: RunMode,
    ) -> Result<(&mut R, &mut R::Recording), BackendError> {
        let recorder = &mut self.recorder;
        if mode == RunMode::None && R::RESOLVES_EVERY_RUN {
            let resolved = self.resolved.insert(recorder.record(shapes, mode)?);
            return Ok((recorder, resolved));
        }
        let make = || recorder.record(shapes, mode);
        let (recording, is_new) = self.by_shape.get_or_make(shapes, make)?;
        // A shape that comes a second time is expected again.
        if !is_new && mode != RunMode::None {
            recorder.capture(recording)?;
        }
        Ok((recorder, recording))
    }

    fn run_views(
        &mut self,
        inputs: &[ValueRef<'_>],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
        output: OutputCallback<'_>,
    ) -> Result<(), BackendError> {
        if trace.is_some() && !self.is_interpreted {
            return Err(BackendErrorKind::TraceUnsupported.into());
        }
        let cache = cache.map(CacheStep::downcast::<R::Kv>).transpose()?;
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| v.shape).collect();
        let mode = match self.is_interpreted {
            true => RunMode::None,
            false => RunMode::Full,
        };
        let (recorder, recording) = self.by_shape(&shapes, mode)?;
        recorder.replay(recording, inputs, cache, trace, output)
    }
}

/// Records the steps of a descriptor, which will be replayed often.
fn record_batch<R: Replay>(
    recorder: &mut R,
    mode: RunMode,
    batch: BatchDescriptor,
) -> Result<R::Recording, BackendError> {
    let sizes = [batch.tokens, batch.tokens, batch.rows];
    let mut recording = recorder.record(&sizes.each_ref().map(std::slice::from_ref), mode)?;
    recorder.capture(&mut recording)?;
    Ok(recording)
}

impl<R: Replay> Executable for ReplayWrapper<R> {
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        check_storage::<R::Kv>(bytes)
    }

    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
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

    fn prepare(&mut self, options: &StepOptions) -> Result<Dispatcher, BackendError> {
        let longest = [options.max_tokens, options.max_tokens, options.max_rows];
        let longest = longest.each_ref().map(std::slice::from_ref);
        let (sizes, max_padding) = self.recorder.capture_sizes(options);
        let support = self.recorder.graph_support();
        let mode = options.mode.downgrade(support, true, options.max_query_len);
        if mode != self.mode {
            self.by_shape = ShapeCache::default();
            self.mode = mode;
        }
        // The memory of the longest step serves all others.
        self.by_shape(&longest, mode.stored())?;
        let dispatcher = Dispatcher::new(DispatcherOptions {
            mode,
            sizes,
            max_sequences: options.max_sequences,
            max_query_len: options.max_query_len,
            max_padding,
        });
        self.is_closed = false;
        if R::RECORDS_AT_START || options.record_all {
            let before = self.recorder.generation();
            self.capture_all(&dispatcher, options)?;
            if self.recorder.generation() != before {
                self.by_batch.clear();
                self.capture_all(&dispatcher, options)?;
            }
            self.is_closed = options.record_all;
            return Ok(dispatcher);
        }
        for sequences in [options.max_sequences, 1] {
            let Dispatch { mode, batch } = dispatcher.dispatch(BatchDescriptor::decode(sequences));
            if mode != RunMode::None && batch.tokens <= options.max_tokens {
                self.capture(mode, batch)?;
            }
        }
        Ok(dispatcher)
    }

    fn run_step(
        &mut self,
        Dispatch { mode, batch }: Dispatch,
        cache: CacheStep<'_>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let cache = cache.downcast::<R::Kv>()?;
        if mode == RunMode::None {
            self.missed += usize::from(self.mode != RunMode::None);
            let step = cache.plan.step();
            let sizes = [step.len(), step.len(), step.rows().len()];
            let shapes = sizes.each_ref().map(std::slice::from_ref);
            let (recorder, recording) = self.by_shape(&shapes, self.mode.stored())?;
            return recorder.replay_step(recording, cache, outputs);
        }
        let recording = match self.by_batch.entry((mode, batch)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if self.is_closed => {
                return Err(BackendErrorKind::from(ReplayError::CaptureDisabled { batch }).into());
            }
            Entry::Vacant(entry) => {
                (self.captures, self.missed) = (self.captures + 1, self.missed + 1);
                entry.insert(record_batch(&mut self.recorder, mode, batch)?)
            }
        };
        self.recorder.replay_step(recording, cache, outputs)
    }

    fn captures(&self) -> usize {
        self.captures
    }

    fn missed_recordings(&self) -> usize {
        self.missed
    }

    fn set_profiling(&mut self, on: bool) {
        self.recorder.set_profiling(on);
    }

    fn profile(&self) -> Vec<NodeProfile> {
        self.recorder.profile()
    }

    fn arena_bytes(&self) -> usize {
        self.recorder.arena_bytes()
    }

    fn packed_bytes(&self) -> usize {
        self.recorder.packed_bytes()
    }
}

#[cfg(test)]
mod tests;
