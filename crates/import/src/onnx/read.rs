//! Reads an ONNX file: parses it, inlines functions and sorts the nodes topologically.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use base::Bytes;

use super::file::{Node, Onnx, Port};
use super::inline::Inliner;
use super::schema::{DimProto, GraphProto, ModelProto, ValueInfo};
use super::tensor::{ExternalDataFiles, OnnxTensor, kind};
use super::topological_sort;
use crate::error::ImportError;
use crate::model_description::ModelDescription;

/// The newest supported IR version. Newer versions may change the meaning of fields.
const NEWEST_IR: i64 = 14;

/// The newest supported version of the default op set.
const NEWEST_OPSET: i64 = 28;

/// Reads a model. `is_supported` says which ops are lowered as they are; other ops are inlined if the model defines them
/// as functions.
pub(super) fn read(
    bytes: Bytes,
    folder: Option<&Path>,
    is_supported: fn(&str) -> bool,
) -> Result<Onnx, ImportError> {
    let wrong = |reason: String| ImportError::malformed("the model", reason);
    let model = ModelProto::read(bytes).map_err(wrong)?;
    if model.ir_version < 1 {
        return Err(wrong("has no IR version, so it is not an ONNX file".into()));
    }
    if model.ir_version > NEWEST_IR {
        let what = format!("IR version {}", model.ir_version);
        return Err(ImportError::unsupported(what));
    }
    let mut opsets = model.opsets.clone();
    if let Some(version) = opsets.remove("ai.onnx") {
        opsets.insert(String::new(), version);
    }
    if let Some(newer) = opsets.get("").filter(|v| **v > NEWEST_OPSET) {
        return Err(ImportError::unsupported(format!("opset {newer}")));
    }
    let graph = model.graph.as_ref();
    let graph = graph.ok_or_else(|| wrong("has no graph".into()))?;
    if graph.has_sparse {
        return Err(ImportError::unsupported("a sparse initialiser"));
    }
    let mut folder = ExternalDataFiles::new(folder);
    let mut tensors = initializers(graph, &mut folder)?;
    let mut inliner = Inliner::new(&model, &opsets, &mut folder, is_supported);
    let nodes = inliner.expand(&graph.nodes)?;
    tensors.extend(inliner.tensors);
    let ports = |list: &[ValueInfo]| list.iter().map(port).collect::<Result<Vec<_>, _>>();
    let (mut inputs, outputs) = (ports(&graph.inputs)?, ports(&graph.outputs)?);
    // Early IR versions also list initialisers as inputs, of which they are the default values.
    inputs.retain(|input| !tensors.contains_key(&input.name));
    distinct("input", &inputs)?;
    distinct("output", &outputs)?;
    let given = inputs.iter().map(|input| &input.name[..]);
    let given = given.chain(tensors.keys().map(|name| &name[..]));
    let mut nodes = topological_sort::sorted(nodes, given, &outputs)?;
    leave_out_unused(&mut nodes, &outputs);
    Ok(Onnx {
        description: ModelDescription {
            graph_name: graph.name.clone(),
            graph_description: graph.doc_string.clone(),
            producer_name: model.producer_name.clone(),
            domain: model.domain.clone(),
            version: model.model_version,
            description: model.doc_string.clone(),
            properties: model.metadata.clone(),
        },
        ir_version: model.ir_version,
        producer: [&model.producer_name[..], &model.producer_version]
            .join(" ")
            .trim()
            .to_owned(),
        opsets,
        inputs,
        outputs,
        tensors,
        nodes,
    })
}

/// Clears the names of optional results that no node and no output uses, so that rules need not compute them.
fn leave_out_unused(nodes: &mut [Node], outputs: &[Port]) {
    let taken = nodes.iter().flat_map(|node| &node.inputs);
    let given = outputs.iter().map(|output| &output.name);
    let used: HashSet<String> = taken.chain(given).cloned().collect();
    for node in nodes {
        let further = node.outputs.iter_mut().skip(1);
        further
            .filter(|name| !used.contains(*name))
            .for_each(String::clear);
    }
}

fn initializers(
    graph: &GraphProto,
    folder: &mut ExternalDataFiles,
) -> Result<BTreeMap<String, OnnxTensor>, ImportError> {
    let mut tensors = BTreeMap::new();
    for tensor in &graph.initializers {
        let stored = OnnxTensor::new(tensor, folder)?;
        if tensors.insert(tensor.name.clone(), stored).is_some() {
            let what = format!("initialiser {:?}", tensor.name);
            return Err(ImportError::malformed(what, "is defined twice"));
        }
    }
    Ok(tensors)
}

fn port(info: &ValueInfo) -> Result<Port, ImportError> {
    if info.name.is_empty() {
        return Err(ImportError::malformed("an input or output", "has no name"));
    }
    let text = |dim: &DimProto| match dim {
        DimProto::Number(n) => n.to_string(),
        DimProto::Symbol(name) => name.clone(),
        DimProto::Unknown => "?".to_owned(),
    };
    let kind = info.data_type.and_then(|code| kind(code).ok());
    Ok(Port {
        name: info.name.clone(),
        dtype: kind.map_or("unknown", |kind| kind.name()),
        shape: info.dims.iter().flatten().map(text).collect(),
        kind,
        dims: info.dims.clone(),
    })
}

fn distinct(what: &str, ports: &[Port]) -> Result<(), ImportError> {
    let mut seen = HashMap::new();
    for port in ports {
        if seen.insert(&port.name[..], ()).is_some() {
            let what = format!("{what} {:?}", port.name);
            return Err(ImportError::malformed(what, "is defined twice"));
        }
    }
    Ok(())
}
