//! The executable: one set of weights, one arena and one step buffer, and a recording for every size of step.

use crate::device::{Buffer, CapturedGraph, Device, Launch, Pinned, Stream};
use crate::error::{CudaError, check};
use crate::kv::{CudaKv, LayerEntry};
use crate::plan;
use crate::tape::{Addresses, Planned, StepLayout, Tape, attention_memory};
use crate::weights::Constants;
use backend::{
    BackendError, BackendErrorKind, BatchDescriptor, CacheStep, CompileOptions, Dispatch,
    Executable, ExecutorKind, GraphSupport, Replay, ReplayWrapper, RunMode, StepOutputs,
    TraceCallback,
};
use base::DType;
use cudarc::driver::sys;
use graph::{Data, Graph, Value};
use kv::{Step, StepPlan};
use std::sync::Arc;

/// The most tapes kept for step sizes without a descriptor.
const ODD_TAPES: usize = 8;
/// Bytes of the step buffer for the runs and items of plans, beyond a few words a token.
const PLAN_BYTES: usize = 256 * 1024;

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
    odd: OddTapes,
    machine: Machine,
    support: GraphSupport,
}

/// What tapes are made for and run on.
struct Machine {
    graph: Arc<Graph>,
    constants: Constants,
    arena: Buffer,
    /// The inputs and the plan of a step, filled from `staging`.
    step: Buffer,
    staging: Pinned,
    /// Partial attention results and the counters of their arrival.
    partial: Buffer,
    counters: Buffer,
    /// Results on the host.
    results: Pinned,
    words: Vec<u32>,
    /// Whether nodes are fused.
    fuse: bool,
    /// Counts the changes of addresses.
    generation: u64,
    stream: Stream,
    device: Arc<Device>,
}

/// A tape and what was captured of it.
struct Recording {
    tape: Tape,
    pieces: Vec<Piece>,
}

/// A part of a recording.
enum Piece {
    Captured(CapturedGraph),
    /// The calls of an attention node.
    Launched(Vec<Launch>),
}

/// How the kernels of a tape are started.
enum Start<'a> {
    Pieces(&'a [Piece]),
    Launches,
    Traced(TraceCallback<'a>),
}

impl CudaExecutable {
    pub(crate) fn new(
        graph: Arc<Graph>,
        device: &Arc<Device>,
        options: &CompileOptions,
    ) -> Result<CudaExecutable, BackendError> {
        device.bind()?;
        let constants = Constants::new(&graph, device, options)?;
        let (partial, counters) = attention_memory(&graph);
        let support = match std::env::var(SUPPORT_VARIABLE).as_deref() {
            Ok("never") => GraphSupport::Never,
            Ok("uniform_single") => GraphSupport::UniformSingleToken,
            Ok("uniform_batch") => GraphSupport::UniformBatch,
            _ => GraphSupport::Always,
        };
        Ok(CudaExecutable {
            full: ReplayWrapper::new(RunMode::Full),
            pieces: ReplayWrapper::new(RunMode::Piecewise),
            odd: OddTapes::default(),
            machine: Machine {
                constants,
                arena: Buffer::new(device, 0)?,
                step: Buffer::new(device, 0)?,
                staging: Pinned::new(device, 0)?,
                partial: Buffer::new(device, partial)?,
                counters: Buffer::new(device, counters * 4)?,
                results: Pinned::new(device, 0)?,
                words: Vec::new(),
                fuse: options.executor == ExecutorKind::Compiled,
                generation: 0,
                stream: Stream::new()?,
                device: device.clone(),
                graph,
            },
            support,
        })
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
        let tape = self.odd.get(machine, &shapes)?;
        machine.fill(&tape.layout, &bytes, cache.as_mut())?;
        // Filling may have moved the step buffer.
        let tape = self.odd.get(machine, &shapes)?;
        let start = match trace {
            Some(trace) => Start::Traced(trace),
            None => Start::Launches,
        };
        machine.start(tape, start)?;
        machine.values(tape)
    }
}

impl Executable for CudaExecutable {
    type Kv = CudaKv;

    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_, CudaKv>>,
    ) -> Result<Vec<Value>, BackendError> {
        self.run_values(inputs, cache, None)
    }

    fn run_traced(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_, CudaKv>>,
        trace: TraceCallback<'_>,
    ) -> Result<Vec<Value>, BackendError> {
        if self.machine.fuse {
            return Err(BackendErrorKind::TraceUnsupported.into());
        }
        self.run_values(inputs, cache, Some(trace))
    }

    fn run_step(
        &mut self,
        dispatch: Dispatch,
        cache: CacheStep<'_, CudaKv>,
        outputs: &mut StepOutputs,
    ) -> Result<(), BackendError> {
        let step = cache.plan.step();
        let sizes = [step.len(), step.len(), step.rows().len()];
        let wanted = step.wanted_rows();
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
            wanted,
            outputs,
        };
        let mut whole = Whole {
            work: Pieces(work),
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

    fn capture(&mut self, mode: RunMode, batch: BatchDescriptor) -> Result<(), BackendError> {
        let wrapper = match mode {
            RunMode::Full => &mut self.full,
            RunMode::Piecewise => &mut self.pieces,
            _ => return Ok(()),
        };
        let sizes = [batch.tokens, batch.tokens, batch.rows];
        let machine = &mut self.machine;
        wrapper.capture(batch, vec![], || machine.record(sizes, mode))
    }

    fn captures(&self) -> usize {
        self.full.counts().captures + self.pieces.counts().captures
    }

    fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError> {
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        self.odd.get(&mut self.machine, &shapes)?;
        Ok(())
    }

    fn arena_bytes(&self) -> usize {
        let machine = &self.machine;
        machine.arena.len() + machine.step.len() + machine.partial.len() + machine.counters.len()
    }

    fn packed_bytes(&self) -> usize {
        self.machine.constants.bytes()
    }
}

impl Machine {
    /// Makes the tape for inputs of these shapes, and grows the memory if necessary.
    fn tape(&mut self, shapes: &[&[usize]]) -> Result<Tape, BackendError> {
        self.device.bind()?;
        let planned = Planned::new(&self.graph, &self.constants, shapes, self.fuse)?;
        if planned.memory.arena_bytes > self.arena.len() {
            // Nothing in the arena outlives a step, so the old contents are dropped.
            self.stream.wait()?;
            self.arena = Buffer::new(&self.device, 0)?;
            self.arena = Buffer::new(&self.device, planned.memory.arena_bytes)?;
            self.generation += 1;
        }
        let tokens = planned.layout.inputs.iter().map(|range| range.len()).max();
        // A token has a write and an item in every class of layers; two classes are usual.
        let plans = tokens.unwrap_or(0) * 20 + PLAN_BYTES;
        self.grow_step(planned.layout.plans + plans)?;
        let addresses = Addresses {
            arena: self.arena.address(),
            step: self.step.address(),
            partial: self.partial.address(),
            counters: self.counters.address(),
        };
        planned.tape(
            &self.graph,
            &self.device,
            &self.constants,
            addresses,
            self.generation,
        )
    }

    fn grow_step(&mut self, bytes: usize) -> Result<(), CudaError> {
        if bytes > self.step.len() {
            self.stream.wait()?;
            self.step = Buffer::new(&self.device, bytes)?;
            self.staging = Pinned::new(&self.device, bytes)?;
            self.generation += 1;
        }
        Ok(())
    }

    fn step_tape(&mut self, sizes: [usize; 3]) -> Result<Tape, BackendError> {
        let shapes = sizes.each_ref().map(std::slice::from_ref);
        self.tape(&shapes)
    }

    /// Captures the work of a step of these sizes.
    fn record(&mut self, sizes: [usize; 3], mode: RunMode) -> Result<Recording, BackendError> {
        let tape = self.step_tape(sizes)?;
        let mut pieces = Vec::new();
        let mut launches: Vec<Launch> = Vec::new();
        let capture = |launches: &mut Vec<Launch>| {
            let launches = std::mem::take(launches);
            // SAFETY: the calls use the executable's memory, which outlives its recordings; if it moves, the generation
            // changes and nothing of this recording is replayed.
            unsafe { CapturedGraph::capture(&self.stream, &launches) }.map(Piece::Captured)
        };
        for call in &tape.calls {
            if call.attends && mode == RunMode::Piecewise {
                if !launches.is_empty() {
                    pieces.push(capture(&mut launches)?);
                }
                pieces.push(Piece::Launched(call.launches.clone()));
            } else {
                launches.extend(call.launches.iter().cloned());
            }
        }
        if !launches.is_empty() {
            pieces.push(capture(&mut launches)?);
        }
        Ok(Recording { tape, pieces })
    }

    /// Encodes a step of a decoder and its plan into the step buffer.
    fn fill_step(
        &mut self,
        sizes: [usize; 3],
        mut cache: CacheStep<'_, CudaKv>,
    ) -> Result<(), BackendError> {
        let layout = StepLayout::of_step(&self.graph, sizes);
        let inputs = encoded(cache.plan.step());
        let bytes = inputs.each_ref().map(|input| bytemuck::cast_slice(input));
        self.fill(&layout, &bytes, Some(&mut cache))
    }

    /// Copies inputs and the plan to the step buffer; the copy is on the executable's stream.
    fn fill(
        &mut self,
        layout: &StepLayout,
        inputs: &[&[u8]],
        cache: Option<&mut CacheStep<'_, CudaKv>>,
    ) -> Result<(), BackendError> {
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        words.resize(layout.plans / 4, 0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for (range, input) in layout.inputs.iter().zip(inputs) {
            bytes[range.start..][..input.len()].copy_from_slice(input);
        }
        if let Some(CacheStep { plan, bytes }) = cache {
            bytes.ensure(plan)?;
            append_plans(layout, plan, bytes, &mut words);
        }
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        self.grow_step(bytes.len())?;
        self.staging.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: both buffers have at least this size, and every step waits for the stream before they change again.
        let copied = check("cuMemcpyHtoDAsync", unsafe {
            let from = self.staging.bytes().as_ptr().cast();
            sys::cuMemcpyHtoDAsync_v2(self.step.address(), from, bytes.len(), self.stream.0)
        });
        self.words = words;
        Ok(copied?)
    }

    /// Starts the work of a tape.
    fn start(&self, tape: &Tape, start: Start<'_>) -> Result<(), BackendError> {
        // SAFETY: the tape's addresses are those of this machine's memory: callers compare generations.
        unsafe {
            match start {
                Start::Pieces(pieces) => {
                    for piece in pieces {
                        match piece {
                            Piece::Captured(graph) => graph.start(&self.stream)?,
                            Piece::Launched(launches) => {
                                launches
                                    .iter()
                                    .try_for_each(|launch| launch.start(&self.stream))?;
                            }
                        }
                    }
                }
                Start::Launches => {
                    let launches = tape.calls.iter().flat_map(|call| &call.launches);
                    launches
                        .into_iter()
                        .try_for_each(|launch| launch.start(&self.stream))?;
                }
                Start::Traced(trace) => {
                    for call in &tape.calls {
                        call.launches
                            .iter()
                            .try_for_each(|launch| launch.start(&self.stream))?;
                        self.stream.wait()?;
                        let node = &self.graph.nodes()[call.node];
                        let ty = &self.graph.tensor(node.output).ty;
                        let bytes = ty.bytes(&tape.bindings).unwrap_or(0);
                        let mut result = vec![0; bytes];
                        if bytes > 0 {
                            self.device.download(call.result, &mut result)?;
                        }
                        let shape = ty.dims(&tape.bindings).expect("resolved by the tape");
                        let value = value(ty.dtype, shape, &result);
                        trace(self.graph.node_name(node), node.op.name(), &value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies an output to the host and waits for the step.
    fn result(&mut self, (address, bytes): (u64, usize)) -> Result<&[u8], BackendError> {
        if bytes > self.results.bytes().len() {
            self.stream.wait()?;
            self.results = Pinned::new(&self.device, bytes.next_power_of_two())?;
        }
        if bytes > 0 {
            // SAFETY: the output has this size, and so has the host's memory, which is read after the wait.
            check("cuMemcpyDtoHAsync", unsafe {
                let to = self.results.bytes_mut().as_mut_ptr().cast();
                sys::cuMemcpyDtoHAsync_v2(to, address, bytes, self.stream.0)
            })?;
        }
        self.stream.wait()?;
        Ok(&self.results.bytes()[..bytes])
    }

    /// All outputs of a run.
    fn values(&mut self, tape: &Tape) -> Result<Vec<Value>, BackendError> {
        let mut values = Vec::new();
        for (i, output) in tape.outputs.iter().enumerate() {
            let bytes = self.result(*output)?.to_vec();
            let ty = &self.graph.tensor(self.graph.outputs()[i]).ty;
            let shape = ty.dims(&tape.bindings).expect("resolved by the tape");
            values.push(value(ty.dtype, shape, &bytes));
        }
        if tape.outputs.is_empty() {
            self.stream.wait()?;
        }
        Ok(values)
    }
}

fn value(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Value {
    let elements = shape.iter().product();
    let data = match dtype {
        DType::Bool => Data::Bool(bytes.iter().map(|b| *b != 0).collect()),
        dtype => Data::from_bytes(dtype, bytes, elements).expect("a compute type of this size"),
    };
    Value { shape, data }
}

/// A step as the graph's three inputs.
fn encoded(step: &Step) -> [Vec<i32>; 3] {
    let tokens = step.tokens();
    [
        tokens.iter().map(|token| token.id as i32).collect(),
        tokens.iter().map(|token| token.position).collect(),
        step.rows().iter().map(|row| *row as i32).collect(),
    ]
}

/// Appends the plan of every class of layers, and fills the table of layers.
fn append_plans(layout: &StepLayout, plan: &StepPlan, kv: &CudaKv, words: &mut Vec<u32>) {
    let mut known: Vec<(*const kv::LayerPlan, u32)> = Vec::new();
    for id in 0..layout.layer_count().min(plan.layers()) {
        let layer = plan.layer(id);
        let place = known.iter().find(|(known, _)| std::ptr::eq(*known, layer));
        let header = match place {
            Some((_, header)) => *header,
            None => {
                let header = plan::encode(layer, words);
                known.push((layer, header));
                header
            }
        };
        let entry = kv.entry(id, header);
        let at = layout.layers / 4 + id * size_of::<LayerEntry>() / 4;
        let to = &mut words[at..at + size_of::<LayerEntry>() / 4];
        bytemuck::cast_slice_mut::<u32, u8>(to).copy_from_slice(bytemuck::bytes_of(&entry));
    }
}

/// Tapes by the shapes of their inputs, the most recently used first.
#[derive(Default)]
struct OddTapes(Vec<(Vec<Vec<usize>>, Tape)>);

impl OddTapes {
    fn get(&mut self, machine: &mut Machine, shapes: &[&[usize]]) -> Result<&Tape, BackendError> {
        self.0
            .retain(|(_, tape)| tape.generation == machine.generation);
        match self.0.iter().position(|(known, _)| known == shapes) {
            Some(i) => self.0[..=i].rotate_right(1),
            None => {
                let tape = machine.tape(shapes)?;
                self.0.truncate(ODD_TAPES - 1);
                let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
                self.0.insert(0, (shapes, tape));
            }
        }
        Ok(&self.0[0].1)
    }
}

/// One step, as every mode runs it; its inputs and its plan are in the step buffer.
struct StepWork<'a> {
    machine: &'a mut Machine,
    odd: &'a mut OddTapes,
    sizes: [usize; 3],
    wanted: usize,
    outputs: &'a mut StepOutputs,
}

impl StepWork<'_> {
    /// Launches the kernels one by one.
    fn run(&mut self) -> Result<(), BackendError> {
        let shapes = self.sizes.each_ref().map(std::slice::from_ref);
        let before = self.machine.step.address();
        let tape = self.odd.get(self.machine, &shapes)?;
        self.machine.keep_step(before)?;
        self.machine.start(tape, Start::Launches)?;
        let output = tape.outputs[0];
        self.finish(output)
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
        self.finish(recording.tape.outputs[0])
    }

    /// Copies the outputs that are wanted.
    fn finish(&mut self, (address, bytes): (u64, usize)) -> Result<(), BackendError> {
        let width = bytes / 4 / self.sizes[2].max(1);
        let bytes = self.machine.result((address, self.wanted * width * 4))?;
        // No bytes may lie at any address.
        let logits: &[f32] = match bytes.is_empty() {
            true => &[],
            false => bytemuck::cast_slice(bytes),
        };
        self.outputs.fill(self.wanted, width, logits);
        Ok(())
    }
}

impl Machine {
    /// Copies the step again if its buffer has moved since it was filled.
    fn keep_step(&mut self, before: u64) -> Result<(), CudaError> {
        if before == self.step.address() {
            return Ok(());
        }
        self.stream.wait()?;
        // SAFETY: the step buffer only grows, so it holds what the words hold.
        unsafe {
            self.device
                .upload(self.step.address(), bytemuck::cast_slice(&self.words))
        }
    }
}

/// A step whose pieces between attention nodes are recorded.
struct Pieces<'a>(StepWork<'a>);

impl Replay for Pieces<'_> {
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
struct Whole<'a> {
    work: Pieces<'a>,
    pieces: &'a mut ReplayWrapper<Recording>,
    dispatch: Dispatch,
}

impl Replay for Whole<'_> {
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
