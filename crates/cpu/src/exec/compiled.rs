//! Replays a tape: every node resolved once per plan, every result at its planned place in one arena.

use super::{Addresses, Call, Constants, input_address, named, output_value};
use crate::isa::Isa;
use crate::kernels::Context;
use crate::threads::Threads;
use backend::{BackendError, BackendErrorKind, CacheStep, Executable};
use graph::plan::{MemoryPlan, Place};
use graph::{Bindings, Graph, NodeId, TensorId, Value};
use std::sync::Arc;

/// Tapes kept at once: a decode step, a full prefill chunk and a few odd lengths.
const TAPES: usize = 8;

/// The fast executor.
pub(crate) struct Compiled {
    graph: Arc<Graph>,
    constants: Constants,
    threads: Threads,
    isa: Isa,
    arena: Arena,
    /// Most recently used first.
    tapes: Vec<Tape>,
}

/// A graph resolved for concrete symbols.
struct Tape {
    plan: MemoryPlan,
    calls: Vec<Entry>,
}

struct Entry {
    call: Call,
    node: NodeId,
    inputs: [Location; 4],
    output: Location,
    scratch: Location,
}

/// Where an operand is, as far as it is known before the run.
#[derive(Clone, Copy)]
enum Location {
    None,
    Fixed(*const u8),
    Arena(usize),
    Input { index: usize, offset: usize },
}

// SAFETY: fixed locations point into constants, which the executable owns and nobody writes.
unsafe impl Send for Location {}

impl Compiled {
    pub(crate) fn new(graph: Arc<Graph>, threads: Threads, isa: Isa) -> Compiled {
        let constants = Constants::new(&graph);
        Compiled {
            graph,
            constants,
            threads,
            isa,
            arena: Arena::default(),
            tapes: Vec::new(),
        }
    }

    /// Brings the tape for these symbols to the front, making it if need be.
    fn select_tape(&mut self, bindings: Bindings) -> Result<(), BackendError> {
        if let Some(i) = self
            .tapes
            .iter()
            .position(|tape| tape.plan.bindings == bindings)
        {
            self.tapes[..=i].rotate_right(1);
            return Ok(());
        }
        let tape = self.record(bindings)?;
        self.arena.ensure(tape.plan.arena_bytes)?;
        self.tapes.truncate(TAPES - 1);
        self.tapes.insert(0, tape);
        Ok(())
    }

    fn record(&self, bindings: Bindings) -> Result<Tape, BackendError> {
        let graph = &*self.graph;
        let resolved: Result<Vec<Call>, BackendError> = graph
            .nodes()
            .iter()
            .map(|node| Call::new(graph, node, &bindings))
            .collect();
        let resolved = resolved?;
        let threads = self.threads.count();
        let plan = MemoryPlan::new(graph, bindings, |node| resolved[node].scratch(threads))?;
        let locate = |id: TensorId| match plan.place(id) {
            Place::Input { index, offset } => Location::Input { index, offset },
            Place::Constant { id, offset } => {
                Location::Fixed(self.constants.address(id).wrapping_add(offset))
            }
            Place::Arena(slot) => Location::Arena(slot.offset),
        };
        let entry = |(i, call): (usize, Call)| {
            let node = &graph.nodes()[i];
            let mut inputs = [Location::None; 4];
            for (to, id) in inputs.iter_mut().zip(&node.inputs) {
                *to = locate(*id);
            }
            let scratch = plan
                .scratch(i)
                .map_or(Location::None, |slot| Location::Arena(slot.offset));
            Entry {
                call,
                node: NodeId(i as u32),
                inputs,
                output: locate(node.output),
                scratch,
            }
        };
        // Aliases were resolved by the plan and do nothing.
        let calls = resolved
            .into_iter()
            .enumerate()
            .filter(|(_, call)| !matches!(call, Call::Alias { .. }));
        let calls = calls.map(entry).collect();
        Ok(Tape { plan, calls })
    }
}

impl Executable for Compiled {
    fn run(
        &mut self,
        inputs: &[Value],
        mut cache: Option<CacheStep<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| &v.shape[..]).collect();
        self.select_tape(self.graph.bind(&shapes)?)?;
        let (graph, tape, arena) = (&*self.graph, &self.tapes[0], self.arena.base());
        let ctx = Context {
            isa: self.isa,
            threads: &self.threads,
        };
        let address = |location: Location| match location {
            Location::None => std::ptr::null(),
            Location::Fixed(p) => p,
            // SAFETY: the plan's offsets lie inside the arena, which is at least as large as the plan.
            Location::Arena(offset) => unsafe { arena.add(offset).cast_const() },
            Location::Input { index, offset } => input_address(&inputs[index]).wrapping_add(offset),
        };
        for entry in &tape.calls {
            let at = Addresses {
                inputs: entry.inputs.map(address),
                output: address(entry.output).cast_mut(),
                scratch: address(entry.scratch).cast_mut(),
            };
            // SAFETY: the plan keeps every operand whole until its last use and lets a result share memory only where
            // its op allows; a computed result is never planned into an input or a constant.
            unsafe { entry.call.run(&ctx, at, &mut cache) }
                .map_err(|e| named(graph, graph.node(entry.node), e))?;
        }
        let output = |id: &TensorId| {
            let at = match tape.plan.place(*id) {
                Place::Input { index, offset } => address(Location::Input { index, offset }),
                Place::Constant { id, offset } => self.constants.address(id).wrapping_add(offset),
                Place::Arena(slot) => address(Location::Arena(slot.offset)),
            };
            // SAFETY: outputs live to the end of the plan.
            unsafe { output_value(graph, *id, &tape.plan.bindings, at) }
        };
        Ok(graph.outputs().iter().map(output).collect())
    }

    fn arena_bytes(&self) -> usize {
        self.arena.lines.len() * size_of::<Line>()
    }
}

/// The memory that plans lay their tensors out in; it grows to the largest plan seen.
#[derive(Default)]
struct Arena {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read and written through raw addresses")] [u64; 8]);

impl Arena {
    fn ensure(&mut self, bytes: usize) -> Result<(), BackendError> {
        let lines = bytes.div_ceil(size_of::<Line>());
        if lines > self.lines.len() {
            // Nothing in the arena outlives a step, so the old contents need not be kept.
            self.lines = Vec::new();
            self.lines
                .try_reserve_exact(lines)
                .map_err(|_| BackendErrorKind::OutOfMemory(bytes))?;
            self.lines.resize(lines, Line::default());
        }
        Ok(())
    }

    fn base(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}
