//! The plan of a step, which the bookkeeping hands to a backend: integers only.

use crate::candidate_tree::{Node, StepTree};
use crate::window::{LayerWindow, seen};
use crate::{KvError, KvErrorKind, LayerConfig, Step};
use std::ops::Range;

/// Consecutive positions stored in consecutive cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRun {
    /// Position of the first token.
    pub position: u32,
    /// Cell of the first token.
    pub cell: u32,
    /// Tokens in the run.
    pub len: u32,
}

impl CellRun {
    /// The positions of the run.
    pub fn positions(&self) -> Range<u32> {
        self.position..self.position + self.len
    }

    /// The cells of the run.
    pub fn cells(&self) -> Range<u32> {
        self.cell..self.cell + self.len
    }

    /// The part of the run at these positions, if any.
    pub fn clip(&self, positions: &Range<u32>) -> Option<CellRun> {
        let start = self.position.max(positions.start);
        let end = (self.position + self.len).min(positions.end);
        (start < end).then(|| CellRun {
            position: start,
            cell: self.cell + (start - self.position),
            len: end - start,
        })
    }

    /// Whether `next` begins where this run ends, in position and in cell.
    pub fn continues_with(&self, next: &CellRun) -> bool {
        next.position == self.position + self.len && next.cell == self.cell + self.len
    }
}

/// Appends a run to a list in position order and merges it with the last run if they are adjacent.
pub(crate) fn push_run(runs: &mut Vec<CellRun>, run: CellRun) {
    match runs.last_mut() {
        _ if run.len == 0 => {}
        Some(last) if last.continues_with(&run) => last.len += run.len,
        _ => runs.push(run),
    }
}

/// The rows that each query of a step attends to.
///
/// A *run list* locates the positions of one sequence: runs in position order, each position at most once. A query sees
/// a range of positions of one list. The size of this structure is proportional to the sequences (or tree nodes) and
/// runs of a step, not to tokens × cells. Position order is a total order, so attention that follows it gives the same
/// bits wherever the cells are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttentionSpans {
    runs: Vec<CellRun>,
    /// List `i` is `runs[ends[i - 1]..ends[i]]`.
    ends: Vec<u32>,
    queries: Vec<QueryView>,
}

/// What one query sees: a range of positions of one run list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryView {
    /// The run list.
    pub list: u32,
    /// The latest positions of the list that the query sees.
    pub positions: Range<u32>,
    /// The query sees the positions below this one too; at most the first of `positions`.
    pub sinks: u32,
}

impl QueryView {
    /// The number of positions that the query sees, if its list has all of them.
    pub fn len(&self) -> usize {
        self.positions.len() + self.sinks as usize
    }

    /// Whether the query sees nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl AttentionSpans {
    /// Removes all lists and queries; keeps the allocations.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.ends.clear();
        self.queries.clear();
    }

    /// Starts a new run list and returns its number. Runs pushed from now on belong to it.
    pub(crate) fn open_list(&mut self) -> u32 {
        self.ends.push(self.runs.len() as u32);
        self.ends.len() as u32 - 1
    }

    /// Appends a run to the last list and merges it with the run before if they are adjacent.
    pub(crate) fn push_run(&mut self, run: CellRun) {
        let first = if self.ends.len() == 1 {
            0
        } else {
            self.ends[self.ends.len() - 2]
        };
        let joins = self.runs.len() as u32 > first
            && self
                .runs
                .last()
                .is_some_and(|last| last.continues_with(&run));
        match self.runs.last_mut() {
            _ if run.len == 0 => {}
            Some(last) if joins => last.len += run.len,
            _ => self.runs.push(run),
        }
        *self.ends.last_mut().expect("a list is open") = self.runs.len() as u32;
    }

    /// Appends the next query.
    pub(crate) fn push_query(&mut self, list: u32, (positions, sinks): (Range<u32>, u32)) {
        self.queries.push(QueryView {
            list,
            positions,
            sinks,
        });
    }

    /// Appends padding: a query that sees nothing.
    pub(crate) fn push_padding(&mut self) {
        self.push_query(0, (0..0, 0));
    }

    /// Copies `other`, in which no window narrows a query, with every query narrowed to a window.
    pub(crate) fn narrow_from(&mut self, other: &AttentionSpans, window: Option<LayerWindow>) {
        self.runs.clone_from(&other.runs);
        self.ends.clone_from(&other.ends);
        self.queries.clear();
        self.queries.extend(other.queries.iter().map(|q| {
            let narrowed = q.positions.end.checked_sub(1).map(|own| seen(window, own));
            let (positions, sinks) = narrowed.unwrap_or((0..0, 0));
            QueryView {
                list: q.list,
                positions,
                sinks,
            }
        }));
    }

    /// The queries in token order.
    pub fn queries(&self) -> &[QueryView] {
        &self.queries
    }

    /// The runs of a list.
    pub fn run_list(&self, list: u32) -> &[CellRun] {
        let start = if list == 0 {
            0
        } else {
            self.ends[list as usize - 1] as usize
        };
        &self.runs[start..self.ends[list as usize] as usize]
    }

    /// The runs that query `i` sees.
    pub fn runs(&self, i: usize) -> impl Iterator<Item = CellRun> + '_ {
        let query = &self.queries[i];
        let list = self.run_list(query.list).iter();
        let sinks = 0..query.sinks;
        let first = list.clone().filter_map(move |run| run.clip(&sinks));
        first.chain(list.filter_map(|run| run.clip(&query.positions)))
    }

    /// Whether query `i` sees `cell`: one element of the dense mask.
    pub fn sees(&self, i: usize, cell: u32) -> bool {
        self.runs(i).any(|run| run.cells().contains(&cell))
    }

    /// The boolean mask `[queries, cells]`, for backends that need a dense one.
    pub fn dense_mask(&self, cells: u32) -> Vec<bool> {
        let mut mask = vec![false; self.queries.len() * cells as usize];
        for (i, row) in mask.chunks_mut(cells.max(1) as usize).enumerate() {
            for run in self.runs(i) {
                row[run.cell as usize..(run.cell + run.len) as usize].fill(true);
            }
        }
        mask
    }

    /// Whether all queries share one list of at most one run and see one range of it, as in plain decode and prefill.
    pub fn is_single_run(&self) -> bool {
        let sinks = self.queries.iter().any(|query| query.sinks > 0);
        self.ends.len() <= 1 && self.runs.len() <= 1 && !sinks
    }
}

/// The cell number of a token whose row is not written.
pub const NO_CELL: u32 = u32::MAX;

/// The state that a token continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSource {
    /// Zeros: the token is the first of its sequence, or padding.
    Zero,
    /// The state after the token before it in the step.
    Previous,
    /// A stored state. An earlier token of the step may write it.
    Cell(u32),
}

/// The plan of one step for the layers of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerPlan {
    /// The cell that each token's row, or the state after it, is written to; [`NO_CELL`] for padding and for states that nobody
    /// needs after the step.
    pub writes: Vec<u32>,
    /// The rows that the tokens attend to, their own included. Empty in layers with states.
    pub visible: AttentionSpans,
    /// In layers with states, the state that each token continues.
    pub sources: Vec<StateSource>,
    /// Cells of snapshots that the step may overwrite.
    pub(crate) evicted: Vec<u32>,
    /// Cells that the layer's pool must have before rows are written.
    pub cells: u32,
}

/// The plan of one step. Planning into the same value again reuses its memory.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// The step that was planned.
    pub(crate) step: Step,
    /// The last declared step; kept so that its allocation is reused.
    pub(crate) declared: Step,
    /// One plan per layer class.
    pub(crate) classes: Vec<LayerPlan>,
    /// The class of each layer.
    pub(crate) class_of: Vec<u16>,
    /// Scratch of the planner.
    pub(crate) scratch: Vec<u64>,
    /// Scratch of the tree planner: the candidates after the step.
    pub(crate) nodes: Vec<Node>,
    /// The candidates of the step's sequences in a pool of cells.
    pub(crate) trees: Vec<StepTree>,
}

impl LayerPlan {
    /// Appends a padding token: its row is not written and it attends to nothing.
    pub(crate) fn push_padding(&mut self) {
        self.writes.push(NO_CELL);
        self.visible.push_padding();
    }

    /// Appends a padding token of a layer with states.
    pub(crate) fn push_state_padding(&mut self) {
        self.writes.push(NO_CELL);
        self.sources.push(StateSource::Zero);
    }
}

impl StepPlan {
    /// The step that was planned.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// The plan for cache id `layer`.
    pub fn layer(&self, layer: usize) -> &LayerPlan {
        &self.classes[self.class_of[layer] as usize]
    }

    /// Number of cache ids the plan covers.
    pub fn layers(&self) -> usize {
        self.class_of.len()
    }

    /// Prepares the plan for a step with these classes; keeps the allocations.
    pub(crate) fn reset(&mut self, step: &Step, classes: &LayerClasses) {
        self.step.clone_from(step);
        self.classes
            .resize_with(classes.windows.len(), LayerPlan::default);
        self.class_of.clone_from(&classes.class_of);
    }

    /// Copies the plan of the first class with rows to the others and narrows every class's queries to its window.
    pub(crate) fn narrow_classes(&mut self, classes: &LayerClasses) {
        let plans = self.classes.iter_mut().zip(&classes.windows).enumerate();
        let mut rows = plans.filter(|(class, _)| classes.states != Some(*class));
        let Some((_, (first, own))) = rows.next() else {
            return;
        };
        for (_, (plan, window)) in rows {
            plan.writes.clone_from(&first.writes);
            plan.cells = first.cells;
            plan.visible.narrow_from(&first.visible, *window);
        }
        if let Some(window) = *own {
            let full = std::mem::take(&mut first.visible);
            first.visible.narrow_from(&full, Some(window));
        }
    }
}

/// The layer classes of a cache: its distinct attention windows, one class for all layers with states, and the class of each
/// layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerClasses {
    /// The window of each class; `None` for the class of states.
    pub(crate) windows: Vec<Option<LayerWindow>>,
    pub(crate) class_of: Vec<u16>,
    /// The class of the layers with states.
    pub(crate) states: Option<usize>,
}

impl LayerClasses {
    pub(crate) fn new(layers: &[LayerConfig]) -> LayerClasses {
        let mut classes = LayerClasses {
            windows: vec![],
            class_of: vec![],
            states: None,
        };
        for layer in layers {
            let known = match layer.is_state() {
                true => classes.states,
                false => classes.rows_with_window(layer.layer_window()),
            };
            let class = known.unwrap_or(classes.windows.len());
            if known.is_none() {
                classes.windows.push(layer.layer_window());
            }
            if layer.is_state() {
                classes.states = Some(class);
            }
            classes.class_of.push(class as u16);
        }
        classes
    }

    /// The class of the layers that have rows and this window.
    pub(crate) fn rows_with_window(&self, window: Option<LayerWindow>) -> Option<usize> {
        let mut all = self.windows.iter().enumerate();
        all.position(|(class, other)| *other == window && self.states != Some(class))
    }

    /// The first class of layers that have rows.
    pub(crate) fn first_rows(&self) -> Option<usize> {
        (0..self.windows.len()).find(|class| self.states != Some(*class))
    }

    /// Returns an error if layers have sinks, in a kind of cache that holds none.
    pub(crate) fn check_no_sinks(&self, operation: &'static str) -> Result<(), KvError> {
        let mut windows = self.windows.iter().flatten();
        match windows.any(|window| window.sinks > 0) {
            true => Err(KvErrorKind::Sinks { operation }.into()),
            false => Ok(()),
        }
    }

    /// Returns an error if layers have states, in a kind of cache that holds none.
    pub(crate) fn check_no_states(&self, kind: &'static str) -> Result<(), KvError> {
        let operation = "hold the states of recurrent layers: use a cells cache";
        match self.states {
            Some(_) => Err(KvErrorKind::Unsupported { kind, operation }.into()),
            None => Ok(()),
        }
    }
}
