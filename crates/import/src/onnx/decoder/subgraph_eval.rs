//! Extracts, lowers and evaluates a part of a model with given input values.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::DType;
use graph::{Bindings, Data, Graph, TensorId, TensorKind, Value};

use crate::error::ImportError;
use crate::model_description::ModelDescription;
use crate::onnx::file::{Onnx, Port};
use crate::onnx::lower::lower_with;
use crate::onnx::schema::DimProto;
use crate::stored_type::StoredType;

/// Limit on the elements of all tensors evaluated for one step.
const MAX_ELEMENTS: usize = 1 << 28;

/// Replacement of a tensor that the model would compute.
#[derive(Clone, Debug)]
pub(super) enum Substitute {
    /// Given elements.
    Value(Value),
    /// A real tensor of this shape whose elements must not be read.
    Shape(Vec<usize>),
}

/// The elements of some tensors computed by the model, with other tensors replaced.
pub(super) fn evaluate_subgraph(
    file: &Onnx,
    substitutes: &BTreeMap<String, Substitute>,
    wanted: &[&str],
) -> Result<Vec<Value>, ImportError> {
    let part = extract_subgraph(file, substitutes, wanted);
    let fixed = substitutes
        .iter()
        .filter_map(|(name, substitute)| match substitute {
            Substitute::Value(value) => Some((name.clone(), value.clone())),
            Substitute::Shape(_) => None,
        });
    let graph = lower_with(&part, &fixed.collect())?;
    evaluate(&graph).map_err(|reason| ImportError::value("a mask of attention", reason))
}

/// Extracts the nodes between the substituted and the wanted tensors as a model of its own.
fn extract_subgraph(
    file: &Onnx,
    substitutes: &BTreeMap<String, Substitute>,
    wanted: &[&str],
) -> Onnx {
    let mut needed: HashSet<&str> = wanted.iter().copied().collect();
    let mut nodes = vec![];
    for node in file.nodes.iter().rev() {
        let open = |name: &String| needed.contains(&name[..]) && !substitutes.contains_key(name);
        if node.outputs.iter().any(open) {
            needed.extend(node.inputs.iter().map(|name| &name[..]));
            nodes.push(node.clone());
        }
    }
    nodes.reverse();
    // A result that is substituted must not be defined a second time by its node.
    for name in nodes.iter_mut().flat_map(|node| &mut node.outputs) {
        if substitutes.contains_key(name) {
            name.clear();
        }
    }
    let needed_cuts = substitutes
        .iter()
        .filter(|(name, _)| needed.contains(&name[..]));
    let inputs = needed_cuts.map(|(name, substitute)| match substitute {
        Substitute::Value(value) => port(name, kind(value.dtype()), &value.shape),
        Substitute::Shape(shape) => port(name, StoredType::F32, shape),
    });
    let tensors = file.tensors.iter();
    let tensors = tensors.filter(|(name, _)| needed.contains(&name[..]));
    Onnx {
        inputs: inputs.collect(),
        outputs: wanted
            .iter()
            .map(|name| port(name, StoredType::F32, &[]))
            .collect(),
        tensors: tensors.map(|(name, t)| (name.clone(), t.clone())).collect(),
        nodes,
        description: ModelDescription::default(),
        ir_version: file.ir_version,
        producer: file.producer.clone(),
        opsets: file.opsets.clone(),
    }
}

fn port(name: &str, kind: StoredType, shape: &[usize]) -> Port {
    Port {
        name: name.to_owned(),
        dtype: "",
        shape: vec![],
        kind: Some(kind),
        dims: Some(shape.iter().map(|n| DimProto::Number(*n as i64)).collect()),
    }
}

fn kind(dtype: DType) -> StoredType {
    match dtype {
        DType::I32 => StoredType::I32,
        DType::I64 => StoredType::I64,
        DType::Bool => StoredType::Bool,
        _ => StoredType::F32,
    }
}

/// Evaluates the outputs of a graph without dynamic sizes with the reference evaluators of its ops.
fn evaluate(graph: &Graph) -> Result<Vec<Value>, String> {
    let mut needed: HashSet<TensorId> = graph.outputs().iter().copied().collect();
    for node in graph.nodes().iter().rev() {
        if needed.contains(&node.output) {
            needed.extend(&node.inputs);
        }
    }
    let mut values: HashMap<TensorId, Value> = HashMap::new();
    let mut left = MAX_ELEMENTS;
    let mut shape_of = |id: TensorId| {
        let name = &graph.tensor(id).name;
        let dims = graph.tensor(id).ty.dims(&Bindings::default());
        let dims = dims.ok_or_else(|| format!("{name} has no fixed shape"))?;
        let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        left = elements
            .and_then(|elements| left.checked_sub(elements))
            .ok_or_else(|| format!("is too large to evaluate: {name} has shape {dims:?}"))?;
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
