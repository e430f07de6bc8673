//! `EagerCache`: one of kvark's caches for a forward that Python runs, layer by layer, on its own tensors.
//!
//! The cache decides where rows go and what is visible, and the CPU backend stores them. Python computes attention.

use crate::error::{Error, Result};
use kvark::backend::{Cpu, KvBytes, RowBlock};
use kvark::cache::{
    CacheConfig, CacheEntry, CacheRegistry, CacheSession, CellRun, Cells, Contiguous, KvError,
    KvStorage, LayerConfig, RingPolicy, SeqId, Side, StepPlan, Tree, make_decode_session,
    make_seq_session, make_tree_session,
};
use numpy::{
    PyArray1, PyArray2, PyArray3, PyArrayMethods, PyReadonlyArray3, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

enum Kind {
    Contiguous(CacheSession<Contiguous>),
    Cells(CacheSession<Cells>),
    Tree(CacheSession<Tree>),
}

/// The step whose layers are being served.
struct CurrentStep {
    positions: Vec<i32>,
    plan: StepPlan,
}

/// Keys, values, mask and the number of the mask: layers of one class have the same.
type Fetched<'py> = (
    Bound<'py, PyArray3<f32>>,
    Bound<'py, PyArray3<f32>>,
    Bound<'py, PyArray2<bool>>,
    usize,
);

/// One of kvark's caches for a forward that Python runs.
#[pyclass(frozen, module = "kvark")]
pub struct EagerCache {
    kind: Kind,
    entry: Arc<CacheEntry>,
    config: CacheConfig,
    step: Mutex<Option<CurrentStep>>,
}

#[pymethods]
impl EagerCache {
    /// A cache of a kind (`contiguous`, `cells` or `tree`). `layers` has heads, key size, value size and window of each
    /// layer. With `ring`, layers with a window keep only its rows and `ring` more.
    #[new]
    #[pyo3(signature = (kind, layers, capacity, *, ring=None, preallocate=false))]
    fn new(
        kind: &str,
        layers: Vec<(usize, usize, usize, Option<u32>)>,
        capacity: u32,
        ring: Option<u32>,
        preallocate: bool,
    ) -> Result<EagerCache> {
        // Creating the backend registers its cache storage.
        let cpu = Cpu::new().map_err(Error::argument)?;
        let layer = |(kv_heads, key_dim, value_dim, window)| LayerConfig {
            kv_heads,
            key_dim,
            value_dim,
            window,
            sinks: 0,
        };
        let layers = layers.into_iter().map(layer).collect();
        let mut config = CacheConfig::new(capacity, layers);
        config.key_storage = KvStorage::F32;
        config.value_storage = KvStorage::F32;
        config.ring = ring.map(|slack| RingPolicy {
            max_step: slack,
            max_rewind: slack,
        });
        if preallocate {
            config.initial_cells = capacity;
        }
        let id = kvark::backend::Backend::id(&cpu);
        let (kind, key) = match kind {
            "contiguous" => {
                let (session, _) = make_decode_session(id, &config).map_err(cache_error)?;
                let key = session.key().clone();
                (Kind::Contiguous(session), key)
            }
            "cells" => {
                let (session, _) = make_seq_session(id, &config).map_err(cache_error)?;
                let key = session.key().clone();
                (Kind::Cells(session), key)
            }
            "tree" => {
                let (session, _) = make_tree_session(id, &config).map_err(cache_error)?;
                let key = session.key().clone();
                (Kind::Tree(session), key)
            }
            other => {
                return Err(Error::argument(format!(
                    "there is no cache kind {other:?}; the kinds are \"contiguous\", \"cells\" and \"tree\""
                )));
            }
        };
        Ok(EagerCache {
            entry: CacheRegistry::global().get(&key).map_err(cache_error)?,
            kind,
            config,
            step: Mutex::new(None),
        })
    }

    /// Stores the rows of a layer and returns the rows and the mask of the queries. `k` and `v` are `[heads, tokens, size]`.
    fn update_and_fetch<'py>(
        &self,
        py: Python<'py>,
        layer: usize,
        k: PyReadonlyArray3<'py, f32>,
        v: PyReadonlyArray3<'py, f32>,
        positions: Vec<i32>,
    ) -> Result<Fetched<'py>> {
        if layer >= self.config.layers.len() {
            let n = self.config.layers.len();
            return Err(Error::argument(format!(
                "layer {layer} of a cache of {n} layers"
            )));
        }
        self.check(&k, layer, Side::Key, positions.len())?;
        self.check(&v, layer, Side::Value, positions.len())?;
        let (k, v) = (bytes_of(&k), bytes_of(&v));
        let mut step = self.current();
        self.write(&mut step, layer, &k, &v, positions)?;
        let plan = &step.as_ref().expect("a step was planned").plan;
        let columns = self.columns(plan, layer)?;
        let state = self.entry.try_lock().map_err(cache_error)?;
        let read = |side| self.read(py, &*state.bytes, layer, side, &columns);
        let (keys, values) = (read(Side::Key)?, read(Side::Value)?);
        let mask = mask(plan, layer, &columns);
        let width = columns.iter().map(|run| run.len as usize).sum::<usize>();
        let queries = plan.layer(layer).visible.queries().len();
        let mask = PyArray1::from_vec(py, mask).reshape([queries, width])?;
        let class =
            (0..plan.layers()).find(|other| std::ptr::eq(plan.layer(*other), plan.layer(layer)));
        Ok((keys, values, mask, class.unwrap_or(layer)))
    }

    /// Declares the sequence of every token of the next step.
    fn begin_step(&self, sequences: Vec<SeqId>) -> Result<()> {
        self.change(|kind| match kind {
            Kind::Cells(session) => session.begin_step(&sequences),
            _ => Ok(()),
        })
    }

    /// Declares candidates as the tokens of the next step, by their parents.
    fn propose(&self, parents: Vec<Option<u32>>) -> Result<()> {
        let Kind::Tree(_) = &self.kind else {
            return Err(Error::argument("only a tree takes candidates"));
        };
        self.change(|kind| match kind {
            Kind::Tree(session) => session.propose(&parents),
            _ => Ok(()),
        })
    }

    /// Commits a path of candidates and removes the others.
    fn accept(&self, path: Vec<u32>) -> Result<()> {
        let Kind::Tree(_) = &self.kind else {
            return Err(Error::argument("only a tree takes candidates"));
        };
        self.change(|kind| match kind {
            Kind::Tree(session) => session.accept(&path),
            _ => Ok(()),
        })
    }

    /// Makes `dst` share the cells of `src` below position `end`.
    #[pyo3(signature = (src, dst, end=None))]
    fn seq_cp(&self, src: SeqId, dst: SeqId, end: Option<u32>) -> Result<()> {
        let cells = self.cells()?;
        self.change(|_| cells.seq_cp(src, dst, 0..end.unwrap_or(u32::MAX)))
    }

    /// Removes positions from a sequence.
    #[pyo3(signature = (seq, start=0, end=None))]
    fn seq_rm(&self, seq: SeqId, start: u32, end: Option<u32>) -> Result<()> {
        let cells = self.cells()?;
        self.change(|_| cells.seq_rm(seq, start..end.unwrap_or(u32::MAX)))
    }

    /// The number of tokens of a sequence.
    fn seq_len(&self, seq: SeqId) -> Result<u32> {
        self.cells()?.seq_len(seq).map_err(cache_error)
    }

    /// Removes all tokens after the first `length`.
    fn rewind(&self, length: u32) -> Result<()> {
        self.change(|kind| match kind {
            Kind::Contiguous(session) => session.rewind(length),
            Kind::Cells(session) => session.rewind(length),
            Kind::Tree(session) => session.rewind(length),
        })
    }

    /// Removes all tokens.
    fn clear(&self) -> Result<()> {
        self.change(|kind| match kind {
            Kind::Contiguous(session) => session.clear(),
            Kind::Cells(session) => session.clear(),
            Kind::Tree(session) => session.clear(),
        })
    }

    /// Whether `n` more tokens fit.
    #[pyo3(signature = (n=1))]
    fn can_extend(&self, n: u32) -> Result<bool> {
        let fits = match &self.kind {
            Kind::Contiguous(session) => session.can_extend(n),
            Kind::Cells(session) => session.can_extend(n),
            Kind::Tree(session) => session.can_extend(n),
        };
        fits.map_err(cache_error)
    }

    #[getter]
    fn capacity(&self) -> u32 {
        self.config.capacity
    }

    /// Cells in use.
    fn __len__(&self) -> Result<usize> {
        let len = match &self.kind {
            Kind::Contiguous(session) => session.len(),
            Kind::Cells(session) => session.len(),
            Kind::Tree(session) => session.len(),
        };
        Ok(len.map_err(cache_error)? as usize)
    }
}

impl EagerCache {
    fn current(&self) -> MutexGuard<'_, Option<CurrentStep>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a cache operation. The current step is over then.
    fn change(
        &self,
        operation: impl FnOnce(&Kind) -> std::result::Result<(), KvError>,
    ) -> Result<()> {
        *self.current() = None;
        operation(&self.kind).map_err(cache_error)
    }

    fn cells(&self) -> Result<&CacheSession<Cells>> {
        match &self.kind {
            Kind::Cells(session) => Ok(session),
            _ => Err(Error::argument("only cells have sequences")),
        }
    }

    /// The sizes of a layer's side: heads and elements of a row.
    fn sizes(&self, layer: usize, side: Side) -> (usize, usize) {
        let layer = &self.config.layers[layer];
        match side {
            Side::Key => (layer.kv_heads, layer.key_dim),
            Side::Value => (layer.kv_heads, layer.value_dim),
        }
    }

    fn check(
        &self,
        rows: &PyReadonlyArray3<'_, f32>,
        layer: usize,
        side: Side,
        tokens: usize,
    ) -> Result<()> {
        let (heads, dim) = self.sizes(layer, side);
        match rows.shape() == [heads, tokens, dim] {
            true => Ok(()),
            false => Err(Error::argument(format!(
                "rows of layer {layer} are {:?}, must be [{heads}, {tokens}, {dim}]",
                rows.shape()
            ))),
        }
    }

    /// Stores the rows of a layer. Positions that are not those of the current step begin another one.
    fn write(
        &self,
        step: &mut Option<CurrentStep>,
        layer: usize,
        k: &[u8],
        v: &[u8],
        positions: Vec<i32>,
    ) -> Result<()> {
        let mut state = self.entry.try_lock().map_err(cache_error)?;
        match step {
            Some(step) if step.positions == positions => {
                write(&step.plan, &mut *state.bytes, layer, k, v).map_err(cache_error)
            }
            _ => {
                *step = None;
                let plan = state.run_declared(&positions, |plan, bytes| {
                    write(plan, bytes, layer, k, v)?;
                    Ok::<_, KvError>(plan.clone())
                });
                let plan = plan.map_err(cache_error)?;
                *step = Some(CurrentStep { positions, plan });
                Ok(())
            }
        }
    }

    /// The rows that a layer holds, in the order in which they are returned: by position in a ring, by cell otherwise. Free
    /// cells are left out.
    fn columns(&self, plan: &StepPlan, layer: usize) -> Result<Vec<CellRun>> {
        let layer_plan = plan.layer(layer);
        let window = self.config.layers[layer].window;
        let slots = window.zip(self.config.ring).map(|(w, ring)| ring.slots(w));
        let whole = |len| CellRun {
            cell: 0,
            position: 0,
            len,
        };
        if let (Kind::Cells(session), None) = (&self.kind, slots) {
            let held = session.with(|cells| cells.ref_counts().to_vec());
            let held = (0..).zip(held.map_err(cache_error)?);
            let cell = |(cell, _)| CellRun {
                cell,
                position: 0,
                len: 1,
            };
            return Ok(held.filter(|(_, n)| *n > 0).map(cell).collect());
        }
        let (Kind::Contiguous(_), Some(slots)) = (&self.kind, slots) else {
            return Ok(vec![whole(layer_plan.cells)]);
        };
        let last = plan
            .step()
            .tokens()
            .iter()
            .map(|token| token.position)
            .max();
        let end = last.map_or(0, |position| position as u32 + 1);
        let row = |position| CellRun {
            cell: position % slots,
            position,
            len: 1,
        };
        Ok((end.saturating_sub(slots)..end).map(row).collect())
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        bytes: &dyn KvBytes,
        layer: usize,
        side: Side,
        columns: &[CellRun],
    ) -> Result<Bound<'py, PyArray3<f32>>> {
        let (heads, dim) = self.sizes(layer, side);
        let rows = columns.iter().map(|run| run.len as usize).sum::<usize>();
        let mut encoded = vec![0; heads * rows * dim * 4];
        bytes
            .read_rows(layer, side, columns, &mut encoded)
            .map_err(cache_error)?;
        let numbers = encoded.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let numbers = PyArray1::from_vec(py, numbers.collect());
        Ok(numbers.reshape([heads, rows, dim])?)
    }
}

/// Stores the rows of a layer where the plan says.
fn write(
    plan: &StepPlan,
    bytes: &mut dyn KvBytes,
    layer: usize,
    k: &[u8],
    v: &[u8],
) -> std::result::Result<(), KvError> {
    let layer_plan = plan.layer(layer);
    let run = |cell: &u32| CellRun {
        cell: *cell,
        position: 0,
        len: 1,
    };
    let runs: Vec<CellRun> = layer_plan.writes.iter().map(run).collect();
    let heads = bytes.config().layers[layer].kv_heads;
    let blocks = [(Side::Key, k), (Side::Value, v)].map(|(side, bytes)| RowBlock {
        layer,
        side,
        runs: &runs,
        cells: layer_plan.cells,
        head_stride: bytes.len() / heads,
        bytes,
    });
    bytes.write_rows(&blocks)
}

/// Which columns each query sees, row by row.
fn mask(plan: &StepPlan, layer: usize, columns: &[CellRun]) -> Vec<bool> {
    let visible = &plan.layer(layer).visible;
    let cells = columns.iter().flat_map(CellRun::cells);
    let cells: Vec<u32> = cells.collect();
    let queries = visible.queries().len();
    (0..queries)
        .flat_map(|query| cells.iter().map(move |cell| visible.sees(query, *cell)))
        .collect()
}

fn bytes_of(rows: &PyReadonlyArray3<'_, f32>) -> Vec<u8> {
    let numbers = rows.as_array();
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn cache_error(error: KvError) -> Error {
    kvark::RuntimeError::from(error).into()
}
