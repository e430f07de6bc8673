//! A second backend in one file: reference arithmetic over a storage of its own. It passes the decoder suite and uses
//! nothing but the public library, so it shows what an outside backend must implement.

use kvark::backend::{
    Backend, BackendError, BackendErrorKind, CacheBuilderRegistry, CacheStep, CompileOptions,
    Executable, FrozenKv, KvBytes, RowBlock, TraceCallback, check_storage, conformance, row_codec,
};
use kvark::cache::{
    CacheConfig, CellRun, Compaction, GatherPlan, KvError, KvStorage, NO_CELL, Side,
};
use kvark::graph::ops::{AttendedRow, Op, UpdateAndAttend, attend_row};
use kvark::graph::{Data, Graph, Tensor, TensorId, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// Layer, whether it is a value, and head of a row.
type Place = (usize, bool, usize);

/// Encoded rows by place and cell, in a map.
#[derive(Clone)]
struct ToyKv {
    config: CacheConfig,
    /// The cells of a shared prefix in each layer, which come first.
    frozen: Vec<u32>,
    rows: HashMap<(Place, u32), Vec<u8>>,
}

fn place(layer: usize, side: Side, head: usize) -> Place {
    (layer, side == Side::Value, head)
}

impl ToyKv {
    fn places(&self) -> Vec<Place> {
        let mut places = vec![];
        for (layer, facts) in self.config.layers.iter().enumerate() {
            for head in 0..facts.kv_heads {
                places.extend([(layer, false, head), (layer, true, head)]);
            }
        }
        places
    }

    fn storage(&self, place: Place) -> KvStorage {
        let side = if place.1 { Side::Value } else { Side::Key };
        self.config.storage(place.0, side)
    }

    fn decoded(&self, place: Place, cell: u32) -> Vec<f32> {
        let layer = &self.config.layers[place.0];
        let dim = if place.1 {
            layer.value_dim
        } else {
            layer.key_dim
        };
        let mut row = vec![0.0; dim];
        row_codec::decode(self.storage(place), &self.rows[&(place, cell)], &mut row);
        row
    }
}

impl KvBytes for ToyKv {
    fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn resident_bytes(&self) -> usize {
        self.rows.values().map(Vec::len).sum()
    }

    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError> {
        for place in self.places() {
            // A ring has row `r` at `r mod slots`, after the frozen cells.
            let frozen = self.frozen[place.0];
            let ring = self
                .config
                .growth(&self.config.layers[place.0])
                .max_rows_per_sequence;
            for (to, from) in (gather.base..).zip(&gather.rows) {
                let row = self.rows[&(place, frozen + from % ring)].clone();
                self.rows.insert((place, frozen + to % ring), row);
            }
        }
        Ok(())
    }

    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError> {
        for place in self.places() {
            let Some(order) = order.layer(place.0) else {
                continue;
            };
            let frozen = self.frozen[place.0];
            let row = |cell: &u32| self.rows.get(&(place, frozen + *cell)).cloned();
            let moved: Vec<Option<Vec<u8>>> = order.iter().map(row).collect();
            self.rows
                .retain(|(known, cell), _| *known != place || *cell < frozen);
            for (cell, row) in (frozen..).zip(moved) {
                self.rows.extend(row.map(|row| ((place, cell), row)));
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
        let mut out = out.chunks_mut(self.config.row_bytes(layer, side));
        for head in 0..self.config.layers[layer].kv_heads {
            for cell in runs.iter().flat_map(CellRun::cells) {
                let row = &self.rows[&(place(layer, side, head), cell)];
                let to = out.next().expect("a place for every row");
                to.copy_from_slice(row);
            }
        }
        Ok(())
    }

    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError> {
        for block in blocks {
            let row = self.config.row_bytes(block.layer, block.side);
            for head in 0..self.config.layers[block.layer].kv_heads {
                let rows = block.bytes.get(head * block.head_stride..);
                let rows = rows.unwrap_or_default().chunks(row);
                let cells = block.runs.iter().flat_map(CellRun::cells);
                for (cell, bytes) in cells.zip(rows) {
                    let place = place(block.layer, block.side, head);
                    self.rows.insert((place, cell), bytes.to_vec());
                }
            }
        }
        Ok(())
    }

    fn freeze(&mut self, cells: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError> {
        self.frozen = cells.to_vec();
        Ok(Arc::new(FrozenToy(self.clone())))
    }
}

/// A frozen copy. Frozen rows are never written, so a copy is equivalent to sharing.
struct FrozenToy(ToyKv);

impl FrozenKv for FrozenToy {
    fn open(self: Arc<Self>, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        Ok(Box::new(ToyKv {
            config: config.clone(),
            ..self.0.clone()
        }))
    }

    fn resident_bytes(&self) -> usize {
        self.0.resident_bytes()
    }
}

struct Toy;

impl Toy {
    fn new() -> Toy {
        let registered =
            CacheBuilderRegistry::global().register("toy", |config| Ok(ToyKv::new(config)));
        registered.expect("no other backend is called so");
        Toy
    }
}

impl ToyKv {
    fn new(config: &CacheConfig) -> Box<ToyKv> {
        Box::new(ToyKv {
            config: config.clone(),
            frozen: vec![0; config.layers.len()],
            rows: HashMap::new(),
        })
    }
}

impl Backend for Toy {
    fn id(&self) -> &'static str {
        "toy"
    }

    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        Ok(ToyKv::new(config))
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        _: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let lacking = graph.nodes().iter().find(|n| n.op.name() == "cum_sum");
        match lacking {
            None => Ok(Box::new(ToyExecutable(graph))),
            Some(node) => Err(BackendErrorKind::Unsupported {
                backend: self.id(),
                node: graph.node_name(node).to_owned(),
                op: node.op.name(),
                reason: "running sums are not implemented".into(),
            }
            .into()),
        }
    }
}

struct ToyExecutable(Arc<Graph>);

impl Executable for ToyExecutable {
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        check_storage::<ToyKv>(bytes)
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
        let mut cache = cache.map(CacheStep::downcast::<ToyKv>).transpose()?;
        let graph = &self.0;
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| &v.shape[..]).collect();
        let bindings = graph.bind(&shapes)?;
        let constant = |tensor: &Tensor| {
            let bytes = tensor.constant()?;
            let shape = tensor.ty.dims(&bindings)?;
            let data = Data::from_bytes(tensor.ty.dtype, bytes, shape.iter().product())?;
            Some(Value { shape, data })
        };
        let mut values: Vec<Option<Value>> = graph.tensors().iter().map(constant).collect();
        for (id, value) in graph.inputs().iter().zip(inputs) {
            values[id.0 as usize] = Some(value.clone());
        }
        for node in graph.nodes() {
            let output = &graph.tensor(node.output).ty;
            let shape = output.dims(&bindings).expect("bound sizes");
            let operand = |id: &TensorId| values[id.0 as usize].as_ref().expect("computed");
            let operands: Vec<&Value> = node.inputs.iter().map(operand).collect();
            let result = match (&node.op, &mut cache) {
                (Op::UpdateAndAttend(op), Some(step)) => attend(op, &operands, step),
                (op, _) => op
                    .evaluate(&operands, &shape, &bindings)
                    .expect("the suite's operands fit"),
            };
            values[node.output.0 as usize] = Some(result);
        }
        let output = |id: &TensorId| values[id.0 as usize].clone().expect("computed");
        Ok(graph.outputs().iter().map(output).collect())
    }

    fn arena_bytes(&self) -> usize {
        0
    }
}

/// Stores the rows of the step and computes attention over the rows that each query sees.
fn attend(op: &UpdateAndAttend, operands: &[&Value], step: &mut CacheStep<'_, ToyKv>) -> Value {
    let id = op.cache_id as usize;
    let (plan, kv) = (step.plan.layer(id), &mut *step.bytes);
    let layer = kv.config.layers[id];
    let [q, k, v] = [0, 1, 2].map(|i| operands[i].as_f32().expect("inferred as f32"));
    for (side, dim, rows) in [
        (Side::Key, layer.key_dim, k),
        (Side::Value, layer.value_dim, v),
    ] {
        for (i, row) in rows.chunks(dim).enumerate() {
            let cell = plan.writes[i / layer.kv_heads];
            if cell != NO_CELL {
                let place = place(id, side, i % layer.kv_heads);
                let mut encoded = vec![0; kv.config.row_bytes(id, side)];
                row_codec::encode(kv.storage(place), row, &mut encoded);
                kv.rows.insert((place, cell), encoded);
            }
        }
    }
    let heads = operands[0].shape[1];
    let queries = plan.visible.queries().len();
    let mut out = vec![0.0; queries * heads * layer.value_dim];
    let rows = q.chunks(layer.key_dim).zip(out.chunks_mut(layer.value_dim));
    for (i, (query, out)) in rows.enumerate() {
        let head = i % heads / (heads / layer.kv_heads);
        let cells = plan.visible.runs(i / heads).flat_map(|run| run.cells());
        let row = |cell| [false, true].map(|is_value| kv.decoded((id, is_value, head), cell));
        let seen: Vec<[Vec<f32>; 2]> = cells.map(row).collect();
        let attended: Vec<AttendedRow<'_>> = seen
            .iter()
            .map(|[key, value]| AttendedRow {
                key,
                value,
                bias: 0.0,
            })
            .collect();
        attend_row(op.scoring(), query, &attended, out);
    }
    Value::f32([queries, heads, layer.value_dim], out)
}

#[test]
fn a_backend_in_one_file_passes_the_decoder_suite() {
    let cases = conformance::decoder(&Toy::new(), &CompileOptions::default(), 0.0).unwrap();
    assert!(cases > 400, "the suite ran only {cases} cases");
}

#[test]
fn an_op_that_a_backend_lacks_is_refused_by_name() {
    let error = conformance::primitives(&Toy::new(), &CompileOptions::default(), 0.0).unwrap_err();
    let expect =
        "the toy backend does not support cum_sum (node y): running sums are not implemented";
    assert!(error.contains(expect), "{error}");
}
