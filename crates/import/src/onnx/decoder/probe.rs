//! What a part of a model computes at given sizes: the part alone, lowered and evaluated.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::DType;
use graph::{Bindings, Data, Graph, TensorId, TensorKind, Value};

use crate::ImportError;
use crate::element::Kind;
use crate::onnx::schema::DimProto;
use crate::onnx::{Onnx, Port, lower_with};

/// Elements that are computed at one place, of all tensors together.
const MOST_ELEMENTS: usize = 1 << 28;

/// What stands for a tensor instead of what the model computes.
#[derive(Clone, Debug)]
pub(super) enum Cut {
    /// These elements.
    Value(Value),
    /// Reals of this shape that nothing may depend on.
    Shape(Vec<usize>),
}

/// The elements of some tensors, with others cut off.
pub(super) fn probe(
    file: &Onnx,
    cuts: &BTreeMap<String, Cut>,
    wanted: &[&str],
) -> Result<Vec<Value>, ImportError> {
    let part = part(file, cuts, wanted);
    let fixed = cuts.iter().filter_map(|(name, cut)| match cut {
        Cut::Value(value) => Some((name.clone(), value.clone())),
        Cut::Shape(_) => None,
    });
    let graph = lower_with(&part, &fixed.collect())?;
    evaluate(&graph).map_err(|reason| ImportError::value("a mask of attention", reason))
}

/// The nodes between the cuts and what is wanted, as a model of its own.
fn part(file: &Onnx, cuts: &BTreeMap<String, Cut>, wanted: &[&str]) -> Onnx {
    let mut needed: HashSet<&str> = wanted.iter().copied().collect();
    let mut nodes = vec![];
    for node in file.nodes.iter().rev() {
        let open = |name: &String| needed.contains(&name[..]) && !cuts.contains_key(name);
        if node.outputs.iter().any(open) {
            needed.extend(node.inputs.iter().map(|name| &name[..]));
            nodes.push(node.clone());
        }
    }
    nodes.reverse();
    // A node whose other result is cut off would give it a second time.
    for name in nodes.iter_mut().flat_map(|node| &mut node.outputs) {
        if cuts.contains_key(name) {
            name.clear();
        }
    }
    let needed_cuts = cuts.iter().filter(|(name, _)| needed.contains(&name[..]));
    let inputs = needed_cuts.map(|(name, cut)| match cut {
        Cut::Value(value) => port(name, kind(value.dtype()), &value.shape),
        Cut::Shape(shape) => port(name, Kind::F32, shape),
    });
    let tensors = file.tensors.iter();
    let tensors = tensors.filter(|(name, _)| needed.contains(&name[..]));
    Onnx {
        inputs: inputs.collect(),
        outputs: wanted
            .iter()
            .map(|name| port(name, Kind::F32, &[]))
            .collect(),
        tensors: tensors.map(|(name, t)| (name.clone(), t.clone())).collect(),
        nodes,
        name: file.name.clone(),
        ir_version: file.ir_version,
        producer: file.producer.clone(),
        opsets: file.opsets.clone(),
        metadata: BTreeMap::new(),
    }
}

fn port(name: &str, kind: Kind, shape: &[usize]) -> Port {
    Port {
        name: name.to_owned(),
        dtype: "",
        shape: vec![],
        kind: Some(kind),
        dims: Some(shape.iter().map(|n| DimProto::Number(*n as i64)).collect()),
    }
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::I32 => Kind::I32,
        DType::I64 => Kind::I64,
        DType::Bool => Kind::Bool,
        _ => Kind::F32,
    }
}

/// The outputs of a graph of fixed sizes, by the ops' own evaluators; only what they depend on is computed.
fn evaluate(graph: &Graph) -> Result<Vec<Value>, String> {
    let mut needed: HashSet<TensorId> = graph.outputs().iter().copied().collect();
    for node in graph.nodes().iter().rev() {
        if needed.contains(&node.output) {
            needed.extend(&node.inputs);
        }
    }
    let mut values: HashMap<TensorId, Value> = HashMap::new();
    let mut left = MOST_ELEMENTS;
    let mut shape_of = |id: TensorId| {
        let name = &graph.tensor(id).name;
        let dims = graph.tensor(id).ty.dims(&Bindings::default());
        let dims = dims.ok_or_else(|| format!("{name} has no fixed shape"))?;
        let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        left = elements
            .and_then(|elements| left.checked_sub(elements))
            .ok_or_else(|| format!("is too large to look into: {name} has {dims:?} elements"))?;
        Ok::<_, String>(dims)
    };
    for &id in &needed {
        let tensor = graph.tensor(id);
        match &tensor.kind {
            TensorKind::Constant(bytes) => {
                let shape = shape_of(id)?;
                let elements = shape.iter().product();
                let data = Data::from_bytes(tensor.ty.dtype, bytes, elements);
                let data = data.ok_or_else(|| format!("{} is quantised", tensor.name))?;
                values.insert(id, Value { shape, data });
            }
            TensorKind::Input => {
                return Err(format!(
                    "depends on more than positions: on {}",
                    tensor.name
                ));
            }
            TensorKind::Value(_) => {}
        }
    }
    for node in graph.nodes() {
        if needed.contains(&node.output) {
            let operands: Vec<&Value> = node.inputs.iter().map(|id| &values[id]).collect();
            let shape = shape_of(node.output)?;
            let result = node.op.evaluate(&operands, &shape, &Bindings::default())?;
            values.insert(node.output, result);
        }
    }
    let outputs = graph.outputs().iter();
    Ok(outputs.map(|id| values[id].clone()).collect())
}
