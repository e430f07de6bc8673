//! The reference backend: runs every op with its evaluator and stores cached rows in vectors. Slow; the oracle for the
//! others.

use crate::{
    Backend, BackendError, BackendErrorKind, CacheStep, CompileOptions, Executable, TraceCallback,
    check_storage, row_codec,
};
use graph::ops::{
    AttendedRow, CausalConv, LinearAttention, Op, UpdateAndAttend, attend_row_with_sink,
};
use graph::{Data, Graph, TensorId, Value};
use kv::{
    CacheBuilderRegistry, CacheConfig, CellRun, Compaction, FrozenKv, GatherPlan, KvBytes, KvError,
    KvStorage, NO_CELL, RowBlock, Side, StateSource,
};
use std::sync::Arc;

/// The reference backend.
pub struct Reference;

impl Reference {
    /// The backend's name.
    pub const ID: &'static str = "reference";

    /// Creates the backend and registers its builder of KV bytes.
    pub fn new() -> Reference {
        // A foreign backend that took the name keeps it: executables refuse its bytes by name.
        _ = CacheBuilderRegistry::global()
            .register(Reference::ID, |config| Ok(ReferenceKv::new(config)));
        Reference
    }
}

impl Default for Reference {
    fn default() -> Reference {
        Reference::new()
    }
}

impl Backend for Reference {
    fn id(&self) -> &'static str {
        Reference::ID
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        _: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let values = graph
            .tensors()
            .iter()
            .map(|t| t.constant().map(|bytes| constant_value(t, bytes)))
            .collect();
        Ok(Box::new(ReferenceExecutable { graph, values }))
    }

    fn shared(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(Reference))
    }

    fn sees_first_positions(&self) -> bool {
        true
    }

    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        Ok(ReferenceKv::new(config))
    }

    fn free_memory(&self) -> Option<u64> {
        Some(base::available_memory()?.bytes)
    }

    fn memory_bound(&self) -> base::MemoryBound {
        base::available_memory().map_or(base::MemoryBound::Free, |memory| memory.bound)
    }
}

struct ReferenceExecutable {
    graph: Arc<Graph>,
    /// One entry per tensor. Dequantised constants are kept between runs.
    values: Vec<Option<Value>>,
}

impl Executable for ReferenceExecutable {
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        check_storage::<ReferenceKv>(bytes)
    }

    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        trace: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        if trace.is_some() {
            return Err(BackendErrorKind::TraceUnsupported.into());
        }
        let mut cache = cache.map(CacheStep::downcast::<ReferenceKv>).transpose()?;
        let graph = self.graph.clone();
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| &v.shape[..]).collect();
        let bindings = graph.bind(&shapes)?;
        for (id, value) in graph.inputs().iter().zip(inputs) {
            self.values[id.0 as usize] = Some(value.clone());
        }
        for node in graph.nodes() {
            let fail = |reason: String| BackendErrorKind::Node {
                node: graph.node_name(node).to_owned(),
                op: node.op.name(),
                reason,
            };
            let output = &graph.tensor(node.output).ty;
            let shape = output
                .dims(&bindings)
                .ok_or_else(|| fail("its shape has no value".into()))?;
            let operands: Vec<&Value> = node.inputs.iter().map(|id| self.value(*id)).collect();
            let result = match (&node.op, &mut cache) {
                (Op::UpdateAndAttend(op), Some(step)) => update_and_attend(op, &operands, step)?,
                (Op::CausalConv(op), Some(step)) => causal_conv(op, &operands, step)?,
                (Op::LinearAttention(op), Some(step)) => linear_attention(op, &operands, step)?,
                _ => node
                    .op
                    .evaluate(&operands, &shape, &bindings)
                    .map_err(fail)?,
            };
            self.values[node.output.0 as usize] = Some(result);
        }
        Ok(graph
            .outputs()
            .iter()
            .map(|id| self.value(*id).clone())
            .collect())
    }

    fn arena_bytes(&self) -> usize {
        0
    }
}

impl ReferenceExecutable {
    fn value(&self, id: TensorId) -> &Value {
        self.values[id.0 as usize]
            .as_ref()
            .expect("a verified graph computes before it reads")
    }
}

pub(crate) fn constant_value(tensor: &graph::Tensor, bytes: &base::Bytes) -> Value {
    let shape = tensor
        .ty
        .dims(&Default::default())
        .expect("constants have fixed shapes");
    let elements = shape.iter().product();
    let data =
        Data::from_bytes(tensor.ty.dtype, bytes, elements).expect("the builder checked the size");
    Value { shape, data }
}

fn update_and_attend(
    op: &UpdateAndAttend,
    operands: &[&Value],
    step: &mut CacheStep<'_, ReferenceKv>,
) -> Result<Value, BackendError> {
    let bytes = &mut *step.bytes;
    let plan = step.plan.layer(op.cache_id as usize);
    let [q, k, v] = [0, 1, 2].map(|i| operands[i].as_f32().expect("inferred as f32"));
    let sinks = operands
        .get(4)
        .map(|sinks| sinks.as_f32().expect("inferred as f32"));
    let layer = bytes.config.layers[op.cache_id as usize];
    let [keys, values] = &mut bytes.pools[op.cache_id as usize];
    for (pool, data) in [(&mut *keys, k), (&mut *values, v)] {
        pool.ensure(plan.cells)?;
        pool.write(&plan.writes, data);
    }
    let heads = operands[0].shape[1];
    let queries = plan.visible.queries().len();
    let mut out = vec![0.0; queries * heads * layer.value_dim];
    let rows = q.chunks(layer.key_dim).zip(out.chunks_mut(layer.value_dim));
    for (i, (query, out)) in rows.enumerate() {
        let kv_head = i % heads / (heads / layer.kv_heads);
        let cells = plan.visible.runs(i / heads).flat_map(|run| run.cells());
        let attended: Vec<AttendedRow<'_>> = cells
            .map(|c| AttendedRow {
                key: keys.row(kv_head, c),
                value: values.row(kv_head, c),
                bias: 0.0,
            })
            .collect();
        let sink = sinks.map(|sinks| sinks[i % heads]);
        attend_row_with_sink(op.scoring(), query, &attended, sink, out);
    }
    Ok(Value::f32([queries, heads, layer.value_dim], out))
}

fn causal_conv(
    op: &CausalConv,
    operands: &[&Value],
    step: &mut CacheStep<'_, ReferenceKv>,
) -> Result<Value, BackendError> {
    let [x, weight] = [0, 1].map(|i| operands[i].as_f32().expect("inferred as f32"));
    let bias = operands
        .get(3)
        .map(|bias| bias.as_f32().expect("inferred as f32"));
    let (tokens, channels) = operands[0].rows();
    let mut out = vec![0.0; tokens * channels];
    run_states(step, op.cache_id, |token, _, state| {
        let rows = token * channels..(token + 1) * channels;
        op.step(state, &x[rows.clone()], weight, bias, &mut out[rows]);
    })?;
    Ok(Value::f32([tokens, channels], out))
}

fn linear_attention(
    op: &LinearAttention,
    operands: &[&Value],
    step: &mut CacheStep<'_, ReferenceKv>,
) -> Result<Value, BackendError> {
    let numbers = |i: usize| {
        let operand = operands.get(i)?;
        Some(operand.as_f32().expect("inferred as f32"))
    };
    let [q, k, v, decay] = [0, 1, 2, 3].map(|i| numbers(i).expect("four operands"));
    let beta = numbers(5);
    let (&[tokens, groups, depth], &[_, heads, width]) =
        (&operands[0].shape[..], &operands[2].shape[..])
    else {
        unreachable!("inferred with three dimensions");
    };
    let mut out = vec![0.0; tokens * heads * width];
    run_states(step, op.cache_id, |token, head, state| {
        let group = token * groups + op.sharing.group(head, heads, groups);
        let keys = group * depth..(group + 1) * depth;
        let head = token * heads + head;
        let values = head * width..(head + 1) * width;
        op.step(
            state,
            [&q[keys.clone()], &k[keys], &v[values.clone()]],
            decay[head],
            beta.map(|beta| beta[head]),
            &mut out[values],
        );
    })?;
    Ok(Value::f32([tokens, heads, width], out))
}

/// Calls `update` with every token and head, and the state that it replaces.
fn run_states(
    step: &mut CacheStep<'_, ReferenceKv>,
    cache_id: u32,
    mut update: impl FnMut(usize, usize, &mut [f32]),
) -> Result<(), BackendError> {
    let plan = step.plan.layer(cache_id as usize);
    let pools = &mut step.bytes.pools[cache_id as usize];
    pools
        .iter_mut()
        .try_for_each(|pool| pool.ensure(plan.cells))?;
    let [_, pool] = pools;
    for head in 0..pool.heads {
        let mut state = vec![0.0; pool.dim];
        let mut encoded = vec![0; pool.storage.row_bytes(pool.dim)];
        for (token, (source, cell)) in plan.sources.iter().zip(&plan.writes).enumerate() {
            match *source {
                StateSource::Zero => state.fill(0.0),
                StateSource::Previous => {}
                StateSource::Cell(cell) => state.copy_from_slice(pool.row(head, cell)),
            }
            update(token, head, &mut state);
            // Rounded after every token, stored or not.
            row_codec::encode(pool.storage, &state, &mut encoded);
            row_codec::decode(pool.storage, &encoded, &mut state);
            if *cell != NO_CELL {
                pool.set(head, *cell, |bytes| bytes.copy_from_slice(&encoded));
            }
        }
    }
    Ok(())
}

/// The KV storage of the reference backend: encoded rows and their decoded values.
#[derive(Clone)]
pub(crate) struct ReferenceKv {
    config: CacheConfig,
    /// Keys and values of each layer.
    pools: Vec<[ReferencePool; 2]>,
}

impl ReferenceKv {
    fn new(config: &CacheConfig) -> Box<ReferenceKv> {
        let pools = config.layers.iter().enumerate().map(|(id, l)| {
            let pool = |dim, storage| ReferencePool {
                heads: l.kv_heads,
                dim,
                storage,
                frozen: 0,
                ring: config.growth(l).max_rows_per_sequence as usize,
                cells: vec![],
            };
            [
                pool(l.key_dim, config.storage(id, Side::Key)),
                pool(l.value_dim, config.storage(id, Side::Value)),
            ]
        });
        Box::new(ReferenceKv {
            config: config.clone(),
            pools: pools.collect(),
        })
    }
}

impl KvBytes for ReferenceKv {
    fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn resident_bytes(&self) -> usize {
        self.pools
            .iter()
            .flatten()
            .map(ReferencePool::resident_bytes)
            .sum()
    }

    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError> {
        let mut pools = self.pools.iter_mut().flatten();
        pools.try_for_each(|pool| pool.gather_into(gather.base, &gather.rows))
    }

    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError> {
        for (layer, pools) in self.pools.iter_mut().enumerate() {
            if let Some(order) = order.layer(layer) {
                pools.iter_mut().try_for_each(|pool| pool.reorder(order))?;
            }
        }
        Ok(())
    }

    fn read_rows(
        &self,
        layer: usize,
        side: Side,
        runs: &[CellRun],
        out: &mut [u8],
    ) -> Result<(), KvError> {
        let pool = &self.pools[layer][side as usize];
        // States have no keys.
        let mut out = out.chunks_mut(pool.row_bytes().max(1));
        let heads = if pool.dim > 0 { pool.heads } else { 0 };
        for head in 0..heads {
            for cell in runs.iter().flat_map(CellRun::cells) {
                let row = out.next().expect("a place for every row");
                pool.read_row(head, cell, row);
            }
        }
        Ok(())
    }

    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError> {
        for block in blocks {
            let pool = &mut self.pools[block.layer][block.side as usize];
            pool.ensure(block.cells)?;
            for head in 0..pool.heads {
                let rows = block.bytes.get(head * block.head_stride..);
                let rows = rows.unwrap_or_default().chunks(pool.row_bytes().max(1));
                for (cell, row) in block.runs.iter().flat_map(CellRun::cells).zip(rows) {
                    pool.set(head, cell, |bytes| bytes.copy_from_slice(row));
                }
            }
        }
        Ok(())
    }

    fn freeze(&mut self, cells: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError> {
        // Frozen rows are never written, so a copy behaves like a shared prefix.
        for (pools, cells) in self.pools.iter_mut().zip(cells) {
            for pool in pools {
                pool.cells.truncate(*cells as usize);
                pool.frozen = *cells as usize;
            }
        }
        let frozen = Arc::new(self.clone());
        *self = frozen.opened(&self.config);
        Ok(frozen)
    }
}

impl ReferenceKv {
    /// A copy of the frozen rows, followed by none of its own.
    fn opened(&self, config: &CacheConfig) -> ReferenceKv {
        let mut kv = ReferenceKv::new(config);
        for (layer, (to, from)) in kv.pools.iter_mut().zip(&self.pools).enumerate() {
            for (to, from) in to.iter_mut().zip(from) {
                to.cells.clone_from(&from.cells);
                // States are copied: they are the cache's own.
                to.frozen = match config.layers[layer].is_state() {
                    true => 0,
                    false => from.frozen,
                };
            }
        }
        *kv
    }
}

#[derive(Clone)]
struct ReferencePool {
    heads: usize,
    dim: usize,
    storage: KvStorage,
    /// The cells of a shared prefix, which come first.
    frozen: usize,
    ring: usize,
    cells: Vec<ReferenceCell>,
}

#[derive(Clone)]
struct ReferenceCell {
    /// The encoded rows, `[heads, row]`.
    encoded: Vec<u8>,
    /// The decoded values, `[heads, dim]`.
    values: Vec<f32>,
}

impl ReferencePool {
    fn row(&self, head: usize, cell: u32) -> &[f32] {
        &self.cells[cell as usize].values[head * self.dim..][..self.dim]
    }

    fn row_bytes(&self) -> usize {
        self.storage.row_bytes(self.dim)
    }

    /// Changes the encoded row of a cell and updates its decoded values.
    fn set(&mut self, head: usize, cell: u32, change: impl FnOnce(&mut [u8])) {
        let (row, dim) = (self.row_bytes(), self.dim);
        let cell = &mut self.cells[cell as usize];
        let encoded = &mut cell.encoded[head * row..][..row];
        change(encoded);
        row_codec::decode(self.storage, encoded, &mut cell.values[head * dim..][..dim]);
    }

    /// Grows the pool to at least `cells` cells.
    fn ensure(&mut self, cells: u32) -> Result<(), KvError> {
        let wanted = self.cells.len().max(cells as usize);
        let empty = ReferenceCell {
            encoded: vec![0; self.heads * self.row_bytes()],
            values: vec![0.0; self.heads * self.dim],
        };
        self.cells.resize(wanted, empty);
        Ok(())
    }

    /// Stores token-major rows `[tokens, heads, dim]`, token `i` in `cells[i]`, converted to the storage type. A row whose cell is
    /// [`NO_CELL`](kv::NO_CELL) is not stored.
    fn write(&mut self, cells: &[u32], data: &[f32]) {
        let rows = data.chunks(self.heads * self.dim);
        for (&cell, row) in cells.iter().zip(rows).filter(|(cell, _)| **cell != NO_CELL) {
            for (head, row) in row.chunks(self.dim).enumerate() {
                let storage = self.storage;
                self.set(head, cell, |bytes| row_codec::encode(storage, row, bytes));
            }
        }
    }

    /// Copies cell `rows[i]` to cell `base + i`, in order; `rows[i] >= base + i`. In a ring, cell numbers are taken modulo its
    /// size.
    fn gather_into(&mut self, base: u32, rows: &[u32]) -> Result<(), KvError> {
        for (to, from) in (base as usize..).zip(rows) {
            let from = self.frozen + *from as usize % self.ring;
            self.cells[self.frozen + to % self.ring] = self.cells[from].clone();
        }
        Ok(())
    }

    /// Moves the row of cell `order[i]` to cell `i`.
    fn reorder(&mut self, order: &[u32]) -> Result<(), KvError> {
        let own = self.cells.split_off(self.frozen);
        self.cells
            .extend(order.iter().map(|old| own[*old as usize].clone()));
        Ok(())
    }

    /// Copies one head's encoded row of a cell to `out`.
    fn read_row(&self, head: usize, cell: u32, out: &mut [u8]) {
        let row = self.row_bytes();
        out.copy_from_slice(&self.cells[cell as usize].encoded[head * row..][..row]);
    }

    /// Bytes allocated now.
    fn resident_bytes(&self) -> usize {
        self.cells.len() * self.heads * self.row_bytes()
    }
}

impl FrozenKv for ReferenceKv {
    fn open(self: Arc<Self>, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        Ok(Box::new(self.opened(config)))
    }

    fn resident_bytes(&self) -> usize {
        KvBytes::resident_bytes(self)
    }
}
