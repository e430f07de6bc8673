//! A tape: every node of a graph resolved for one size of step, every result at its planned place in one arena.

use super::call::{Addresses, Call, CallError, FusibleCalls};
use super::constants::Constants;
use super::prefetch::plan_prefetches;
use super::profile::{WorkEstimate, measurement};
use super::tape_call::{Location, NextReads, TapeCall, TapeOp};
use super::weight_layouts::WeightLayouts;
use super::{named, value_at, with_view};
use crate::aligned::AlignedBuffer;
use crate::isa::Isa;
use crate::kernels::Context;
use crate::kernels::matmul::Gate;
use crate::kernels::matmul::quantised::MAX_FUSED_PRODUCTS;
use crate::kv::CpuKv;
use crate::thread_pool::ThreadPool;
use backend::{BackendError, CacheStep, NodeProfiles, OutputCallback, TraceCallback};
use graph::ops::Op;
use graph::passes::{FusedKind, FusedOp, FusedProduct, fuse};
use graph::plan::{MemoryPlan, Place};
use graph::{Bindings, Graph, Node, NodeId, TensorId, TensorKind};
use kv::Side;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What tapes are recorded from and run on: one set of weights and one arena for all of them.
pub(super) struct ExecState {
    pub(super) graph: Arc<Graph>,
    pub(super) constants: Constants,
    pub(super) threads: Arc<ThreadPool>,
    pub(super) isa: Isa,
    /// The memory of planned tensors; it grows to the largest plan.
    pub(super) arena: AlignedBuffer,
    /// Measurements, while profiling is on.
    pub(super) profile: Option<NodeProfiles>,
}

/// Which calls of a tape run as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fusion {
    /// All calls that can be fused.
    Whole,
    /// Only calls between two attention nodes, which are resolved again in every step.
    Pieces,
    /// No calls: every node runs on its own, so that its result can be traced.
    None,
}

/// A graph resolved for inputs of certain shapes.
pub(crate) struct Tape {
    bindings: Bindings,
    fusion: Fusion,
    ops: Vec<TapeOp>,
    calls: Vec<TapeCall>,
    /// The location of every operand, result and scratch buffer of the calls, followed by the graph's outputs.
    locations: Vec<Location>,
    /// The same as addresses; those of the caller's inputs are from the last run.
    addresses: Vec<*const u8>,
    /// The arena that the addresses were made for.
    arena: *mut u8,
    /// The indices in `locations` that refer to a caller's input.
    inputs: Vec<usize>,
    outputs: Range<usize>,
    /// The number of elements of each output, and of one of its rows.
    output_sizes: Vec<(usize, usize)>,
}

// SAFETY: addresses point into the constants and the arena, which the executable owns, or are set again for every run.
unsafe impl Send for Tape {}

impl ExecState {
    fn context(&self) -> Context<'_> {
        Context {
            isa: self.isa,
            threads: &self.threads,
        }
    }

    /// Resolves and plans the graph for inputs of these shapes, and grows the arena if necessary.
    pub(super) fn record(
        &mut self,
        shapes: &[&[usize]],
        fusion: Fusion,
    ) -> Result<Tape, BackendError> {
        let graph = &*self.graph;
        let bindings = graph.bind(shapes)?;
        let layouts = self.constants.layouts();
        let PlannedStep {
            calls: resolved,
            ops: fused,
            memory: plan,
        } = PlannedStep::new(graph, bindings, layouts, self.threads.count())?;
        let context = Context {
            isa: self.isa,
            threads: &self.threads,
        };
        for (node, call) in graph.nodes().iter().zip(&resolved) {
            self.constants.pack_for(node, call, &context)?;
        }
        if plan.arena_bytes > self.arena.len() {
            // Nothing in the arena outlives a step, so the old contents are dropped.
            self.arena = AlignedBuffer::default();
            self.arena = AlignedBuffer::new(plan.arena_bytes)?;
        }
        let locate = |id: TensorId| match plan.place(id) {
            Place::Input { index, offset } => Location::Input { index, offset },
            Place::Constant { id, offset } => {
                Location::Fixed(self.constants.address(id).wrapping_add(offset))
            }
            Place::Arena(slot) => Location::Arena(slot.offset),
        };
        let mut locations = Vec::new();
        let mut calls = Vec::new();
        // The first call of every node, if it has one.
        let mut starts = Vec::with_capacity(resolved.len() + 1);
        for (i, call) in resolved.into_iter().enumerate() {
            starts.push(calls.len());
            if matches!(call, Call::Alias) && fusion != Fusion::None {
                // An alias is resolved by the memory plan.
                continue;
            }
            let node = &graph.nodes()[i];
            let start = locations.len();
            for (operand, id) in node.inputs.iter().enumerate() {
                locations.push(match graph.tensor(*id).kind {
                    TensorKind::Constant(_) => {
                        Location::Fixed(self.constants.operand(&call, operand, *id))
                    }
                    _ => locate(*id),
                });
            }
            let operands = start..locations.len();
            let scratch = plan.scratch(i).map(|slot| Location::Arena(slot.offset));
            locations.extend([locate(node.output), scratch.unwrap_or(Location::None)]);
            calls.push(TapeCall {
                call,
                node: NodeId(i as u32),
                operands,
            });
        }
        starts.push(calls.len());
        let mut ops = tape_ops(fused, &starts, fusion);
        if fusion != Fusion::None {
            plan_prefetches(&mut ops, &calls, &locations, self.threads.count());
        }
        let start = locations.len();
        locations.extend(graph.outputs().iter().map(|id| locate(*id)));
        let size = |id: &TensorId| {
            let dims = graph.tensor(*id).ty.dims(&bindings);
            dims.map_or((0, 0), |dims| {
                (dims.iter().product(), dims.last().copied().unwrap_or(1))
            })
        };
        let output_sizes = graph.outputs().iter().map(size).collect();
        let inputs = (0..locations.len())
            .filter(|i| matches!(locations[*i], Location::Input { .. }))
            .collect();
        Ok(Tape {
            bindings,
            fusion,
            ops,
            calls,
            addresses: Vec::new(),
            arena: std::ptr::null_mut(),
            inputs,
            outputs: start..locations.len(),
            output_sizes,
            locations,
        })
    }
}

/// The work estimate of calls that ran as one.
fn work(graph: &Graph, calls: &[TapeCall], cache: &Option<CacheStep<'_, CpuKv>>) -> WorkEstimate {
    let one = |entry: &TapeCall| match (&entry.call, cache) {
        (Call::CachedAttention(op), Some(step)) => {
            let config = kv::KvBytes::config(step.bytes);
            let storage = [Side::Key, Side::Value].map(|side| config.storage(op.cache_id, side));
            WorkEstimate::of_attention(&op.attend, step.plan.layer(op.cache_id), storage)
        }
        (call, _) => WorkEstimate::of(graph, graph.node(entry.node), call),
    };
    calls
        .iter()
        .map(one)
        .fold(WorkEstimate::default(), |a, b| WorkEstimate {
            bytes: a.bytes + b.bytes,
            macs: a.macs + b.macs,
            ..b
        })
}

/// The ops of a tape, of which node `i` has the calls `starts[i]..starts[i + 1]`.
fn tape_ops(fused: Vec<FusedOp>, starts: &[usize], fusion: Fusion) -> Vec<TapeOp> {
    let is_kept = |op: &FusedOp| match fusion {
        Fusion::Whole => true,
        // The attention is a call between two recorded pieces, and the calls before it end the first.
        Fusion::Pieces => !matches!(op.kind, FusedKind::Attention { .. }),
        Fusion::None => false,
    };
    let one = |node: usize| FusedOp {
        nodes: node..node + 1,
        kind: FusedKind::Node,
    };
    let ops = fused.into_iter().flat_map(|op| match is_kept(&op) {
        true => vec![op],
        false => op.nodes.map(one).collect(),
    });
    let ops = ops.map(|op| TapeOp {
        calls: starts[op.nodes.start]..starts[op.nodes.end],
        kind: op.kind,
        prefetch: None,
    });
    ops.filter(|op| !op.calls.is_empty()).collect()
}

/// Every node's kernel under concrete symbols, which of them run as one, and the memory of their results.
pub(crate) struct PlannedStep {
    pub(crate) calls: Vec<Call>,
    ops: Vec<FusedOp>,
    pub(crate) memory: MemoryPlan,
}

impl PlannedStep {
    /// Resolves the kernels, fuses them and plans their memory. The plan suits every run mode: what is fused in one of
    /// them is kept apart in all.
    pub(crate) fn new(
        graph: &Graph,
        bindings: Bindings,
        layouts: &WeightLayouts,
        threads: usize,
    ) -> Result<PlannedStep, BackendError> {
        let calls: Result<Vec<Call>, BackendError> = graph
            .nodes()
            .iter()
            .map(|node| Call::new(graph, node, &bindings, layouts))
            .collect();
        let calls = calls?;
        let ops = fuse(graph, &bindings, &FusibleCalls(&calls));
        let scratch = |node: usize| calls[node].scratch(threads);
        let memory = MemoryPlan::fused(graph, bindings, scratch, &ops)?;
        Ok(PlannedStep { calls, ops, memory })
    }
}

impl Tape {
    fn addresses(&self, entry: &TapeCall) -> Addresses<'_> {
        let end = entry.operands.end;
        Addresses {
            inputs: &self.addresses[entry.operands.clone()],
            output: self.addresses[end].cast_mut(),
            scratch: self.addresses[end + 1].cast_mut(),
        }
    }

    /// Runs products with their prologue and epilogue.
    ///
    /// # Safety
    /// As for [`Call::run`], for each call; the calls must be those of the fused product.
    unsafe fn run_products(
        &self,
        graph: &Graph,
        ctx: &Context<'_>,
        fused: &FusedProduct,
        calls: &[TapeCall],
    ) {
        let (norm, calls) = calls.split_at(fused.norm.iter().len());
        let (products, then) = calls.split_at(fused.products.len());
        let prologue = norm.first().and_then(|entry| {
            let at = self.addresses(entry);
            entry.call.norm(at)
        });
        let mut all: [_; MAX_FUSED_PRODUCTS] = std::array::from_fn(|i| {
            let entry = &products[i.min(products.len() - 1)];
            (&entry.call, entry.call.operands(self.addresses(entry)))
        });
        let all = &mut all[..products.len()];
        let gate = match (then, fused.residual) {
            ([sum], Some((_, residual))) => {
                let at = self.addresses(sum);
                let product = &mut all[0].1;
                product.epilogue.residual = at.inputs[residual].cast();
                product.out = at.output.cast();
                None
            }
            ([gate], None) => {
                let Op::Gated(op) = &graph.node(gate.node).op else {
                    unreachable!("two products are gated")
                };
                let scratch = all[1].1.scratch;
                if fused.products[0] > fused.products[1] {
                    all.swap(0, 1);
                }
                all[1].1.scratch = scratch;
                let out = self.addresses(gate).output.cast();
                let product_outputs = [all[0].1.out, all[1].1.out];
                Some(Gate {
                    activation: op.function,
                    out,
                    // The product's output buffer that the result does not occupy.
                    scratch: product_outputs[usize::from(product_outputs[1] != out)],
                })
            }
            _ => None,
        };
        // SAFETY: as the caller guarantees; the plan keeps the buffers of a fused op apart, also its results and the last
        // product's scratch.
        unsafe { Call::run_fused(ctx, prologue, all, gate) };
    }

    /// Sets the addresses for an arena and a run's inputs.
    fn resolve(&mut self, arena: *mut u8, inputs: &[*const u8]) {
        let address = |location: &Location| match *location {
            Location::None => std::ptr::null(),
            Location::Fixed(p) => p,
            Location::Arena(offset) => arena.wrapping_add(offset).cast_const(),
            Location::Input { index, offset } => inputs[index].wrapping_add(offset),
        };
        if self.addresses.is_empty() || self.arena != arena {
            self.arena = arena;
            self.addresses.clear();
            self.addresses.extend(self.locations.iter().map(address));
        } else {
            for i in &self.inputs {
                self.addresses[*i] = address(&self.locations[*i]);
            }
        }
    }
}

impl Tape {
    /// Runs the tape on inputs of its shapes; `trace` receives every call's result.
    ///
    /// # Safety
    /// The inputs must have the shapes that the tape was recorded for and the graph's types.
    pub(super) unsafe fn run(
        &mut self,
        state: &mut ExecState,
        inputs: &[*const u8],
        cache: &mut Option<CacheStep<'_, CpuKv>>,
        mut trace: Option<TraceCallback<'_>>,
    ) -> Result<(), BackendError> {
        self.resolve(state.arena.as_mut_ptr(), inputs);
        let (graph, tape) = (&*state.graph, &*self);
        let ctx = state.context();
        let mut measured = state.profile.is_some().then(Vec::new);
        for op in &tape.ops {
            let now = &tape.calls[op.calls.clone()];
            let started = measured.as_ref().map(|_| Instant::now());
            match &op.prefetch {
                Some(NextReads::Weights(spans)) => state.threads.set_next_spans(spans),
                Some(NextReads::Attention(i)) => tape.calls[*i].call.plan_prefetch(&ctx, cache),
                None => {}
            }
            // The plan keeps every operand whole until its last use and lets a result share memory only where its op
            // allows; no result is planned into an input or a constant.
            // SAFETY: addresses are the plan's, inside an arena as large as the plan, and the caller's inputs.
            unsafe {
                let last = &now[now.len() - 1];
                let done = match (&op.kind, now) {
                    (_, [entry]) if tape.is_between_pieces(entry) => {
                        let node = graph.node(entry.node);
                        let layouts = state.constants.layouts();
                        let call = Call::new(graph, node, &tape.bindings, layouts)?;
                        call.run(&ctx, tape.addresses(entry), cache)
                    }
                    (FusedKind::Product(fused), [_, _, ..]) => {
                        tape.run_products(graph, &ctx, fused, now);
                        Ok(())
                    }
                    (FusedKind::Attention { rotations }, [before @ .., attend]) => {
                        tape.run_attention(&ctx, rotations, before, attend, cache)
                    }
                    (_, [entry]) if matches!(entry.call, Call::Experts(_)) => {
                        tape.run_experts(&ctx, state, entry, cache)
                    }
                    (_, [entry, ..]) => entry.call.run(&ctx, tape.addresses(entry), cache),
                    (_, []) => Ok(()),
                };
                done.map_err(|e| named(graph, graph.node(last.node), e))?;
            }
            if let (Some(measured), Some(started)) = (&mut measured, started) {
                let mut work = work(graph, now, cache);
                if let Some(experts) = state.constants.hot_experts() {
                    let last = &now[now.len() - 1];
                    work.experts = experts.last_uses(last.node.0 as usize);
                }
                measured.push((op, started.elapsed(), work));
            }
            if let (Some(trace), [entry]) = (&mut trace, now) {
                let node = graph.node(entry.node);
                let at = tape.addresses[entry.operands.end];
                // SAFETY: the call has just computed the result.
                let value = unsafe { value_at(graph, node.output, &tape.bindings, at) };
                trace(graph.node_name(node), node.op.name(), &value);
            }
        }
        if let (Some(profile), Some(measured)) = (&mut state.profile, measured) {
            for (op, time, work) in measured {
                // The op is labelled by the calls it serves, so the prologue's name comes last.
                let (prologue, others) = tape.calls[op.calls.clone()].split_at(op.prologue_len());
                let nodes = others.iter().chain(prologue);
                let nodes: Vec<&Node> = nodes.map(|entry| graph.node(entry.node)).collect();
                profile.add(measurement(graph, &nodes, time, work));
            }
        }
        Ok(())
    }

    /// Runs experts on those that are in memory, if only some are.
    ///
    /// # Safety
    /// As for [`Call::run`].
    unsafe fn run_experts(
        &self,
        ctx: &Context<'_>,
        state: &ExecState,
        entry: &TapeCall,
        cache: &mut Option<CacheStep<'_, CpuKv>>,
    ) -> Result<(), CallError> {
        let at = self.addresses(entry);
        let mut experts = state.constants.hot_experts();
        let hot = experts.as_mut();
        let hot = hot.and_then(|experts| experts.begin(entry.node.0 as usize));
        // SAFETY: as the caller guarantees.
        unsafe {
            match (&entry.call, hot) {
                (Call::Experts(op), Some(mut hot)) => Ok(op.run(ctx, &mut hot, at.experts())?),
                (call, _) => call.run(ctx, at, cache),
            }
        }
    }

    /// Runs the calls before an attention, except the rotation of its keys, and the attention, which rotates them.
    ///
    /// # Safety
    /// As for [`Call::run`], for each call.
    unsafe fn run_attention(
        &self,
        ctx: &Context<'_>,
        rotations: &[usize],
        before: &[TapeCall],
        attend: &TapeCall,
        cache: &mut Option<CacheStep<'_, CpuKv>>,
    ) -> Result<(), CallError> {
        let mut keys = None;
        for entry in before {
            let at = self.addresses(entry);
            match rotations.contains(&(entry.node.0 as usize)) {
                true => keys = Some((&entry.call, at)),
                // SAFETY: as the caller guarantees.
                false => unsafe { entry.call.run(ctx, at, cache)? },
            }
        }
        let keys = keys.expect("a fused attention rotates its keys");
        // SAFETY: as the caller guarantees; nothing has overwritten the keys.
        unsafe {
            attend
                .call
                .run_rotated(ctx, keys, self.addresses(attend), cache)
        }
    }

    /// Whether a call is resolved again in every step, between recorded pieces.
    fn is_between_pieces(&self, entry: &TapeCall) -> bool {
        self.fusion == Fusion::Pieces && matches!(entry.call, Call::CachedAttention(_))
    }

    /// Calls `output` with a view of each of the graph's outputs, where a run left them.
    pub(super) fn view_outputs(&self, graph: &Graph, output: OutputCallback<'_>) {
        let addresses = &self.addresses[self.outputs.clone()];
        for (index, (id, at)) in graph.outputs().iter().zip(addresses).enumerate() {
            // SAFETY: outputs live to the end of the plan.
            unsafe { with_view(graph, *id, &self.bindings, *at, |view| output(index, view)) };
        }
    }

    /// An output where a run left it: rows of f32, and the elements of a row.
    pub(super) fn rows(&self, output: usize) -> (&[f32], usize) {
        let (len, width) = self.output_sizes[output];
        if len == 0 {
            return (&[], width);
        }
        let at = self.addresses[self.outputs.start + output].cast();
        // SAFETY: outputs live to the end of the plan, and the arena as long as nothing else is run.
        (unsafe { std::slice::from_raw_parts(at, len) }, width)
    }

    /// The number of outputs.
    pub(super) fn output_count(&self) -> usize {
        self.output_sizes.len()
    }
}
