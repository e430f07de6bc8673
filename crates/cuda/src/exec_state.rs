//! The memory that tapes are made for and run on, and the ways to run them.

use crate::arguments::KvLayer;
use crate::attention::can_tile;
use crate::calls::Addresses;
use crate::device::{Buffer, Device, Pinned, Stream};
use crate::error::{CudaError, driver};
use crate::executable::Piece;
use crate::kv::CudaKv;
use crate::launch::Launch;
use crate::persistent::flagged_bytes;
use crate::plan;
use crate::profile::LaunchProfile;
use crate::step_layout::StepLayout;
use crate::tape::{Planned, Tape, attention_memory};
use crate::weights::Constants;
use backend::{BackendError, CacheStep, CompileOptions, ExecutorKind, TraceCallback};
use base::DType;
use graph::{Bindings, Data, Graph, Value};
use kv::StepPlan;
use std::sync::Arc;

/// Bytes of the step buffer for the runs and items of plans, beyond a few words a token.
const PLAN_BYTES: usize = 256 * 1024;

/// The state that all tapes of an executable share.
pub(crate) struct ExecState {
    pub(crate) graph: Arc<Graph>,
    pub(crate) constants: Constants,
    pub(crate) arena: Buffer,
    /// The inputs and the plan of a step, filled from `staging`.
    pub(crate) step: Buffer,
    pub(crate) staging: Pinned,
    /// Partial attention results and the counters of their arrival.
    pub(crate) partial: Buffer,
    pub(crate) counters: Buffer,
    /// The flagged words of the persistent kernel.
    pub(crate) flagged: Buffer,
    /// The most likely tokens of parts of rows of logits, and the counters of the parts that were ranked.
    pub(crate) topk: Buffer,
    pub(crate) arrived: Buffer,
    /// Results on the host.
    pub(crate) results: Pinned,
    pub(crate) words: Vec<u32>,
    /// Whether nodes are fused.
    pub(crate) executor: ExecutorKind,
    /// Whether items of attention may have several queries.
    pub(crate) tiled: bool,
    /// Measurements of kernels, if they are measured. Then they are launched one by one.
    pub(crate) profile: Option<LaunchProfile>,
    /// Counts the changes of addresses.
    pub(crate) generation: u64,
    pub(crate) stream: Stream,
    pub(crate) device: Arc<Device>,
}

/// How the kernels of a tape are started.
pub(crate) enum Start<'a> {
    Pieces(&'a [Piece]),
    Launches,
    Traced(TraceCallback<'a>),
}

impl<'a> Start<'a> {
    /// Starts what was captured; launches the kernels if nothing was.
    pub(crate) fn of(pieces: Option<&'a [Piece]>) -> Start<'a> {
        pieces.map_or(Start::Launches, Start::Pieces)
    }
}

impl ExecState {
    /// The constants of a graph on a device; the other memory is allocated as tapes need it.
    pub(crate) fn new(
        graph: Arc<Graph>,
        device: &Arc<Device>,
        options: &CompileOptions,
    ) -> Result<ExecState, BackendError> {
        device.bind()?;
        let constants = Constants::new(&graph, device, options)?;
        let (partial, counters) = attention_memory(&graph);
        let flagged = match options.executor {
            ExecutorKind::Compiled => flagged_bytes(&graph, &device.facts),
            ExecutorKind::Interpreted => 0,
        };
        Ok(ExecState {
            constants,
            arena: Buffer::new(device, 0)?,
            step: Buffer::new(device, 0)?,
            staging: Pinned::new(device, 0)?,
            partial: Buffer::new(device, partial)?,
            counters: Buffer::new(device, counters * 4)?,
            flagged: Buffer::new(device, flagged)?,
            topk: Buffer::new(device, 0)?,
            arrived: Buffer::new(device, 0)?,
            results: Pinned::new(device, 0)?,
            words: Vec::new(),
            executor: options.executor,
            tiled: can_tile(&graph, device.facts.shared_memory),
            profile: None,
            generation: 0,
            stream: Stream::new()?,
            device: device.clone(),
            graph,
        })
    }

    /// Makes the tape for these sizes, and grows the memory if necessary.
    pub(crate) fn tape(&mut self, bindings: Bindings) -> Result<Tape, BackendError> {
        self.device.bind()?;
        let facts = &self.device.facts;
        let planned = Planned::new(&self.graph, &self.constants, bindings, self.executor, facts)?;
        if planned.memory.arena_bytes > self.arena.len() {
            // Nothing in the arena outlives a step, so the old contents are dropped.
            self.stream.wait()?;
            self.arena = Buffer::new(&self.device, 0)?;
            self.arena = Buffer::new(&self.device, planned.memory.arena_bytes)?;
            self.generation += 1;
        }
        let tokens = planned.layout.inputs.iter().map(|range| range.len()).max();
        // A token has a write, a range and an item in every class of layers; two classes are usual.
        let plans = tokens.unwrap_or(0) * 24 + PLAN_BYTES;
        self.grow_step(planned.layout.plans + plans)?;
        let addresses = Addresses {
            arena: self.arena.address(),
            step: self.step.address(),
            partial: self.partial.address(),
            counters: self.counters.address(),
            flagged: self.flagged.address(),
        };
        planned.tape(
            &self.graph,
            &self.device,
            &self.constants,
            addresses,
            self.tiled,
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

    /// Copies inputs and the plan to the step buffer; the copy is on the executable's stream.
    pub(crate) fn fill(
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
            append_plans(layout, plan, bytes, self.tiled, &mut words);
        }
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        self.grow_step(bytes.len())?;
        self.staging.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let (to, from) = (self.step.address(), self.staging.bytes().as_ptr().cast());
        // SAFETY: both buffers have at least this size, and every step waits for the stream before they change again.
        let copied = unsafe { driver!(cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.stream.0)) };
        self.words = words;
        Ok(copied?)
    }

    /// Starts the work of a tape.
    pub(crate) fn start(&mut self, tape: &Tape, start: Start<'_>) -> Result<(), BackendError> {
        if let Some(profile) = &mut self.profile {
            // SAFETY: as below.
            unsafe { profile.run(&self.graph, tape, &self.stream)? };
            return Ok(());
        }
        // SAFETY: the tape's addresses are those of this machine's memory: callers compare generations.
        unsafe {
            let run = |launches: &[Launch]| {
                let mut launches = launches.iter();
                launches.try_for_each(|launch| launch.start(&self.stream))
            };
            match start {
                Start::Pieces(pieces) => {
                    for piece in pieces {
                        match piece {
                            Piece::Captured(graph) => graph.start(&self.stream)?,
                            Piece::Launched(launches) => run(launches)?,
                        }
                    }
                }
                Start::Launches => run(&tape.whole)?,
                Start::Traced(trace) => {
                    for call in &tape.calls {
                        run(&call.launches)?;
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

    /// Makes room for results on the host.
    pub(crate) fn grow_results(&mut self, bytes: usize) -> Result<(), CudaError> {
        if bytes > self.results.bytes().len() {
            self.stream.wait()?;
            self.results = Pinned::new(&self.device, bytes.next_power_of_two())?;
        }
        Ok(())
    }

    /// Copies an output to the host and waits for the step.
    pub(crate) fn result(&mut self, (address, bytes): (u64, usize)) -> Result<&[u8], BackendError> {
        self.grow_results(bytes)?;
        if bytes > 0 {
            let to = self.results.bytes_mut().as_mut_ptr().cast();
            // SAFETY: the output has this size, and so has the host's memory, which is read after the wait.
            unsafe { driver!(cuMemcpyDtoHAsync_v2(to, address, bytes, self.stream.0)) }?;
        }
        self.stream.wait()?;
        Ok(&self.results.bytes()[..bytes])
    }

    /// All outputs of a run.
    pub(crate) fn values(&mut self, tape: &Tape) -> Result<Vec<Value>, BackendError> {
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

/// Appends the plan of every class of layers, and fills the table of layers.
fn append_plans(
    layout: &StepLayout,
    plan: &StepPlan,
    kv: &CudaKv,
    tiled: bool,
    words: &mut Vec<u32>,
) {
    let mut known: Vec<(*const kv::LayerPlan, u32)> = Vec::new();
    for id in 0..layout.layer_count().min(plan.layers()) {
        let layer = plan.layer(id);
        let place = known.iter().find(|(known, _)| std::ptr::eq(*known, layer));
        let header = match place {
            Some((_, header)) => *header,
            None => {
                let header = match kv.is_state(id) {
                    true => plan::encode_states(layer, words),
                    false => plan::encode(layer, tiled, words),
                };
                known.push((layer, header));
                header
            }
        };
        let entry = kv.entry(id, header);
        let at = layout.layers / 4 + id * size_of::<KvLayer>() / 4;
        let to = &mut words[at..at + size_of::<KvLayer>() / 4];
        bytemuck::cast_slice_mut::<u32, u8>(to).copy_from_slice(bytemuck::bytes_of(&entry));
    }
}
