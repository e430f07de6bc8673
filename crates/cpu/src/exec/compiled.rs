//! Replays a tape: every node resolved once per plan, every result at its planned place in one arena.

use super::call::{Addresses, Call};
use super::constants::Constants;
use super::forms::WeightForms;
use super::join::{Group, Next, Then, join, look_ahead};
use super::profile::{Profile, Work};
use super::{input_address, named, value_at};
use crate::aligned::Aligned;
use crate::isa::Isa;
use crate::kernels::Context;
use crate::kernels::packed::{After, Gate, TOGETHER};
use crate::threads::Threads;
use backend::{BackendError, CacheStep, CompileOptions, Executable, NodeTime};
use graph::plan::{MemoryPlan, Place};
use graph::{Bindings, Graph, Node, NodeId, TensorId, TensorKind, Value};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Tapes kept at once: a decode step, a full prefill chunk and a few odd lengths.
const TAPES: usize = 8;

/// The fast executor.
pub(crate) struct Compiled {
    graph: Arc<Graph>,
    constants: Constants,
    threads: Threads,
    isa: Isa,
    /// The memory that plans lay their tensors out in; it grows to the largest plan seen.
    arena: Aligned,
    /// Most recently used first.
    tapes: Vec<Tape>,
    /// What was measured, while calls are.
    profile: Option<Profile>,
}

/// A graph resolved for inputs of certain shapes.
struct Tape {
    shapes: Vec<Vec<usize>>,
    bindings: Bindings,
    calls: Vec<Entry>,
    /// Where every operand, result and work space of the calls is, and behind them the graph's outputs.
    locations: Vec<Location>,
    /// The same as addresses; those of the caller's inputs are of the last run.
    addresses: Vec<*const u8>,
    /// The arena that the addresses were made for.
    arena: *mut u8,
    /// The places in `locations` that are a caller's input.
    inputs: Vec<usize>,
    outputs: Range<usize>,
}

// SAFETY: addresses point into the constants and the arena, which the executable owns, or are made anew for a run.
unsafe impl Send for Tape {}

pub(super) struct Entry {
    pub(super) call: Call,
    pub(super) node: NodeId,
    /// Operands, and behind them result and work space.
    pub(super) operands: Range<usize>,
    /// Calls from this one on that run as one, itself among them.
    pub(super) group: Group,
    /// What is read next, where this call reads much, and only once.
    pub(super) next: Option<Next>,
}

/// Where a tensor is, as far as it is known before the run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    None,
    Fixed(*const u8),
    Arena(usize),
    Input { index: usize, offset: usize },
}

impl Compiled {
    pub(crate) fn new(
        graph: Arc<Graph>,
        threads: Threads,
        isa: Isa,
        options: &CompileOptions,
    ) -> Result<Compiled, BackendError> {
        let context = Context {
            isa,
            threads: &threads,
        };
        let constants = Constants::new(&graph, &context, options)?;
        Ok(Compiled {
            graph,
            constants,
            threads,
            isa,
            arena: Aligned::default(),
            tapes: Vec::new(),
            profile: None,
        })
    }

    /// Brings the tape for these inputs to the front, making it if need be, and gives it their addresses.
    fn select_tape(&mut self, inputs: &[Value]) -> Result<(), BackendError> {
        let same = |tape: &Tape| {
            let mut shapes = tape.shapes.iter().zip(inputs);
            tape.shapes.len() == inputs.len() && shapes.all(|(shape, v)| *shape == v.shape)
        };
        match self.tapes.iter().position(same) {
            Some(i) => self.tapes[..=i].rotate_right(1),
            None => {
                let tape = self.record(inputs.iter().map(|v| v.shape.clone()).collect())?;
                self.tapes.truncate(TAPES - 1);
                self.tapes.insert(0, tape);
            }
        }
        self.tapes[0].resolve(self.arena.as_mut_ptr(), inputs);
        Ok(())
    }

    /// Resolves and plans the graph for inputs of these shapes, and makes the arena large enough.
    fn record(&mut self, shapes: Vec<Vec<usize>>) -> Result<Tape, BackendError> {
        let graph = &*self.graph;
        let bindings = graph.bind(&shapes.iter().map(|s| &s[..]).collect::<Vec<_>>())?;
        let forms = self.constants.forms();
        let (resolved, plan) = plan_step(graph, bindings, forms, self.threads.count())?;
        let context = Context {
            isa: self.isa,
            threads: &self.threads,
        };
        for (node, call) in graph.nodes().iter().zip(&resolved) {
            self.constants.provide(node, call, &context)?;
        }
        if plan.arena_bytes > self.arena.len() {
            // Nothing in the arena outlives a step, so the old contents need not be kept.
            self.arena = Aligned::default();
            self.arena = Aligned::new(plan.arena_bytes)?;
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
        for (i, call) in resolved.into_iter().enumerate() {
            if let Call::Alias { .. } = call {
                // Resolved by the plan.
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
            calls.push(Entry {
                call,
                node: NodeId(i as u32),
                operands,
                group: Group::ONE,
                next: None,
            });
        }
        join(graph, &mut calls, &locations, self.threads.count());
        look_ahead(&mut calls, &locations, self.threads.count());
        let start = locations.len();
        locations.extend(graph.outputs().iter().map(|id| locate(*id)));
        let inputs = (0..locations.len())
            .filter(|i| matches!(locations[*i], Location::Input { .. }))
            .collect();
        Ok(Tape {
            shapes,
            bindings,
            calls,
            addresses: Vec::new(),
            arena: std::ptr::null_mut(),
            inputs,
            outputs: start..locations.len(),
            locations,
        })
    }
}

/// What calls that ran as one had to read and to multiply.
fn work(graph: &Graph, calls: &[Entry], cache: &Option<CacheStep<'_>>) -> Work {
    let one = |entry: &Entry| match (&entry.call, cache) {
        (Call::Attend(op), Some(step)) => {
            let config = step.bytes.config();
            let storage = [config.key_storage, config.value_storage];
            Work::of_attention(&op.attend, step.plan.layer(op.cache_id), storage)
        }
        (call, _) => Work::of(graph, graph.node(entry.node), call),
    };
    calls.iter().map(one).fold(Work::default(), |a, b| Work {
        bytes: a.bytes + b.bytes,
        macs: a.macs + b.macs,
        floats: b.floats,
    })
}

/// Every node's kernel under concrete symbols, and a place for all that they compute.
pub(crate) fn plan_step(
    graph: &Graph,
    bindings: Bindings,
    forms: &WeightForms,
    threads: usize,
) -> Result<(Vec<Call>, MemoryPlan), BackendError> {
    let calls: Result<Vec<Call>, BackendError> = graph
        .nodes()
        .iter()
        .map(|node| Call::new(graph, node, &bindings, forms))
        .collect();
    let calls = calls?;
    let plan = MemoryPlan::new(graph, bindings, |node| calls[node].scratch(threads))?;
    Ok((calls, plan))
}

impl Tape {
    fn addresses(&self, entry: &Entry) -> Addresses<'_> {
        let end = entry.operands.end;
        Addresses {
            inputs: &self.addresses[entry.operands.clone()],
            output: self.addresses[end].cast_mut(),
            scratch: self.addresses[end + 1].cast_mut(),
        }
    }

    /// Runs products as one, with what is done before and with them.
    ///
    /// # Safety
    /// As for [`Call::run`], for each; they must be a group.
    unsafe fn run_products(&self, ctx: &Context<'_>, group: Group, calls: &[Entry]) {
        let (norm, calls) = calls.split_at(usize::from(group.before));
        let (products, then) = calls.split_at(group.together);
        let before = norm.first().and_then(|entry| {
            let at = self.addresses(entry);
            entry.call.norm(at)
        });
        let mut all: [_; TOGETHER] = std::array::from_fn(|i| {
            let entry = &products[i.min(products.len() - 1)];
            (&entry.call, self.addresses(entry))
        });
        let all = &mut all[..products.len()];
        let after = match (then, group.then) {
            ([then], Then::Add(addend)) => {
                let at = self.addresses(then);
                After::Add {
                    addend: at.inputs[addend].cast(),
                    out: at.output.cast(),
                }
            }
            ([then], Then::Gate(activation, gate)) => {
                let scratch = all[1].1.scratch;
                if gate == 1 {
                    all.swap(0, 1);
                }
                all[1].1.scratch = scratch;
                let out = self.addresses(then).output;
                let places = [all[0].1.output, all[1].1.output];
                After::Gate(Gate {
                    activation,
                    out: out.cast(),
                    // Where the result is not.
                    room: places[usize::from(places[1] != out)].cast(),
                })
            }
            _ => After::Nothing,
        };
        // SAFETY: as the caller vouches; of calls that run as one, every result lives beside the last product's work
        // space, or the calls would not be a group.
        unsafe { Call::run_together(ctx, before, all, after) };
    }

    /// Makes the addresses for an arena and a run's inputs.
    fn resolve(&mut self, arena: *mut u8, inputs: &[Value]) {
        let address = |location: &Location| match *location {
            Location::None => std::ptr::null(),
            Location::Fixed(p) => p,
            Location::Arena(offset) => arena.wrapping_add(offset).cast_const(),
            Location::Input { index, offset } => input_address(&inputs[index]).wrapping_add(offset),
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

impl Executable for Compiled {
    fn run(
        &mut self,
        inputs: &[Value],
        mut cache: Option<CacheStep<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        self.select_tape(inputs)?;
        let (graph, tape) = (&*self.graph, &self.tapes[0]);
        let ctx = Context {
            isa: self.isa,
            threads: &self.threads,
        };
        let mut calls = &tape.calls[..];
        while let [entry, ..] = calls {
            let (now, later) = calls.split_at(entry.group.len());
            calls = later;
            let started = self.profile.as_ref().map(|_| Instant::now());
            match &entry.next {
                Some(Next::Weights(stretches)) => self.threads.read_ahead(stretches),
                Some(Next::Attention(i)) => tape.calls[*i].call.read_ahead(&ctx, &cache),
                None => {}
            }
            // The plan keeps every operand whole until its last use and lets a result share memory only where its op
            // allows; no result is planned into an input or a constant.
            // SAFETY: addresses are the plan's, inside an arena as large as the plan.
            unsafe {
                let last = &now[now.len() - 1];
                let done = match now {
                    [entry] => entry.call.run(&ctx, tape.addresses(entry), &mut cache),
                    [rotation, attend] if matches!(attend.call, Call::Attend(_)) => {
                        let from = (&rotation.call, tape.addresses(rotation));
                        let at = tape.addresses(attend);
                        attend.call.run_rotated(&ctx, from, at, &mut cache)
                    }
                    _ => {
                        tape.run_products(&ctx, entry.group, now);
                        Ok(())
                    }
                };
                done.map_err(|e| named(graph, graph.node(last.node), e))?;
            }
            if let (Some(profile), Some(started)) = (&mut self.profile, started) {
                let time = started.elapsed();
                // Called after what it is for.
                let (before, others) = now.split_at(usize::from(entry.group.before));
                let nodes = others.iter().chain(before);
                let nodes: Vec<&Node> = nodes.map(|entry| graph.node(entry.node)).collect();
                profile.add(graph, &nodes, time, work(graph, now, &cache));
            }
        }
        let addresses = &tape.addresses[tape.outputs.clone()];
        // SAFETY: outputs live to the end of the plan.
        let output = |(id, at): (&TensorId, &*const u8)| unsafe {
            value_at(graph, *id, &tape.bindings, *at)
        };
        Ok(graph.outputs().iter().zip(addresses).map(output).collect())
    }

    fn reserve(&mut self, shapes: &[Vec<usize>]) -> Result<(), BackendError> {
        if !self.tapes.iter().any(|tape| tape.shapes == shapes) {
            let tape = self.record(shapes.to_vec())?;
            self.tapes.truncate(TAPES - 1);
            self.tapes.push(tape);
        }
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) {
        self.profile = on.then(Profile::default);
    }

    fn profile(&self) -> Vec<NodeTime> {
        self.profile.as_ref().map_or_else(Vec::new, Profile::get)
    }

    fn arena_bytes(&self) -> usize {
        self.arena.len()
    }

    fn packed_bytes(&self) -> usize {
        self.constants.packed_bytes()
    }
}
