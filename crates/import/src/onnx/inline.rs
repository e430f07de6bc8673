//! Inlines model-local functions, and gives the bodies of conditions and loops names of their own.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::file::{Branch, Node};
use super::schema::{
    Attribute, AttributeValue, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfo,
};
use super::tensor::{ExternalDataFiles, OnnxTensor};
use crate::error::ImportError;

/// Limit on nested function calls; deeper nesting means recursion.
const MAX_NESTED: usize = 32;

/// Limit on the nodes after inlining: nested functions can expand a small file beyond available memory.
const MAX_NODES: usize = 1 << 18;

/// Domain, name and overload of a function.
type Key<'a> = (&'a str, &'a str, &'a str);

pub(super) struct Inliner<'a> {
    functions: HashMap<Key<'a>, &'a FunctionProto>,
    opsets: &'a BTreeMap<String, i64>,
    folder: &'a mut ExternalDataFiles,
    /// Whether an op is lowered as it is, so that a function of its name is not inlined.
    is_supported: fn(&str) -> bool,
    nodes: Vec<Node>,
    /// Nodes made so far, also those of bodies.
    count: usize,
    /// Initialisers of bodies.
    pub(super) tensors: Vec<(String, OnnxTensor)>,
}

/// Maps names and attributes of a function body to the caller's.
struct Scope<'s> {
    /// Prefix of names that are defined in the body.
    prefix: String,
    /// Names of the function's operands and results in the body, mapped to the caller's names.
    names: HashMap<&'s str, String>,
    attributes: Vec<&'s Attribute>,
    opsets: &'s BTreeMap<String, i64>,
    depth: usize,
    /// For a body: the names that it defines, and the scope of all others.
    branch: Option<(HashSet<&'s str>, &'s Scope<'s>)>,
}

impl<'a> Inliner<'a> {
    pub(super) fn new(
        model: &'a ModelProto,
        opsets: &'a BTreeMap<String, i64>,
        folder: &'a mut ExternalDataFiles,
        is_supported: fn(&str) -> bool,
    ) -> Inliner<'a> {
        let key = |f: &'a FunctionProto| (&f.domain[..], &f.name[..], &f.overload[..]);
        Inliner {
            functions: model.functions.iter().map(|f| (key(f), f)).collect(),
            opsets,
            folder,
            is_supported,
            nodes: vec![],
            count: 0,
            tensors: vec![],
        }
    }

    /// Inlines all functions except those that are supported as ops.
    pub(super) fn expand(&mut self, nodes: &[NodeProto]) -> Result<Vec<Node>, ImportError> {
        let scope = Scope {
            prefix: String::new(),
            names: HashMap::new(),
            attributes: vec![],
            opsets: self.opsets,
            depth: 0,
            branch: None,
        };
        for node in nodes {
            self.node(node, &scope)?;
        }
        Ok(std::mem::take(&mut self.nodes))
    }

    fn node(&mut self, node: &NodeProto, scope: &Scope<'_>) -> Result<(), ImportError> {
        let label = format!("{}{}", scope.prefix, node.label());
        let op = node.op();
        let wrong = |reason: String| ImportError::malformed(format!("node {label} ({op})"), reason);
        let rename = |list: &[String]| -> Vec<String> {
            list.iter().map(|name| scope.rename(name)).collect()
        };
        let (mut inputs, outputs) = (rename(&node.inputs), rename(&node.outputs));
        let attributes: Vec<Attribute> = node
            .attributes
            .iter()
            .filter_map(|attribute| scope.resolve(attribute))
            .collect();
        let key = (&node.domain[..], &node.op_type[..], &node.overload[..]);
        match self.functions.get(&key).copied() {
            Some(function) if !(self.is_supported)(&op) => {
                if scope.depth == MAX_NESTED {
                    return Err(wrong(
                        "is nested too deeply; recursive functions are not supported".into(),
                    ));
                }
                if inputs.len() > function.inputs.len() || outputs.len() > function.outputs.len() {
                    let reason = format!(
                        "has {} operands and {} results, but its function has {} and {}",
                        inputs.len(),
                        outputs.len(),
                        function.inputs.len(),
                        function.outputs.len()
                    );
                    return Err(wrong(reason));
                }
                let mut names = HashMap::new();
                for (inner, outer) in function.inputs.iter().zip(&inputs) {
                    names.insert(&inner[..], outer.clone());
                }
                // Operands that the caller omits are omitted in the body too.
                for inner in &function.inputs[inputs.len()..] {
                    names.insert(&inner[..], String::new());
                }
                for (inner, outer) in function.outputs.iter().zip(&outputs) {
                    if !outer.is_empty() {
                        names.insert(&inner[..], outer.clone());
                    }
                }
                let own = function.defaults.iter();
                let own = own.filter(|d| attributes.iter().all(|a| a.name != d.name));
                // Result names are unique; node names need not be.
                let result = node.outputs.iter().find(|name| !name.is_empty());
                let result = result.map_or(node.label(), |name| name);
                let inner = Scope {
                    prefix: format!("{}{result}/", scope.prefix),
                    names,
                    attributes: attributes.iter().chain(own).collect(),
                    opsets: &function.opsets,
                    depth: scope.depth + 1,
                    branch: None,
                };
                for node in &function.nodes {
                    self.node(node, &inner)?;
                }
            }
            _ => {
                if self.count == MAX_NODES {
                    return Err(wrong(format!(
                        "exceeds the limit of {MAX_NODES} nodes after inlining functions"
                    )));
                }
                let domain = match &node.domain[..] {
                    "ai.onnx" => "",
                    domain => domain,
                };
                let version = scope.opsets.get(domain);
                let version = version.or_else(|| self.opsets.get(domain)).copied();
                let mut tensors = vec![];
                for attribute in &attributes {
                    if let AttributeValue::Tensor(tensor) = &attribute.value {
                        let stored = OnnxTensor::new(tensor, self.folder)?;
                        tensors.push((attribute.name.clone(), stored));
                    }
                }
                let has_bodies = |a: &Attribute| matches!(a.value, AttributeValue::Graph(_));
                let mut branches = vec![];
                if attributes.iter().any(has_bodies) {
                    branches = self.branches(node, &attributes, scope)?;
                    // The tensors that a body reads are appended to the operands; the first two operands of a loop may be omitted.
                    if op == "Loop" && inputs.len() < 2 {
                        inputs.resize(2, String::new());
                    }
                    inputs.extend(captured(&branches));
                }
                self.count += 1;
                self.nodes.push(Node {
                    label,
                    op,
                    version: version.unwrap_or(1),
                    inputs,
                    outputs,
                    attributes,
                    tensors,
                    branches,
                });
            }
        }
        Ok(())
    }
}

impl Inliner<'_> {
    /// The bodies of a node, with names that are unique in the model.
    fn branches(
        &mut self,
        node: &NodeProto,
        attributes: &[Attribute],
        scope: &Scope<'_>,
    ) -> Result<Vec<Branch>, ImportError> {
        let label = format!("{}{}", scope.prefix, node.label());
        let op = node.op();
        let wrong = |reason: String| ImportError::malformed(format!("node {label} ({op})"), reason);
        if scope.depth == MAX_NESTED {
            return Err(wrong("is nested too deeply".into()));
        }
        let mut branches = vec![];
        for attribute in attributes {
            let AttributeValue::Graph(bytes) = &attribute.value else {
                continue;
            };
            let graph = GraphProto::parse(bytes.clone()).map_err(wrong)?;
            let stored = graph.initializers.iter().map(|tensor| &tensor.name[..]);
            let made = graph.nodes.iter().flat_map(|node| &node.outputs);
            let given = graph.inputs.iter().map(|input| &input.name[..]);
            let defined = stored.chain(made.map(|name| &name[..])).chain(given);
            let result = node.outputs.iter().find(|name| !name.is_empty());
            let result = result.map_or(node.label(), |name| name);
            let inner = Scope {
                prefix: format!("{}{result}/{}/", scope.prefix, attribute.name),
                names: HashMap::new(),
                attributes: scope.attributes.clone(),
                opsets: scope.opsets,
                depth: scope.depth + 1,
                branch: Some((defined.collect(), scope)),
            };
            for tensor in &graph.initializers {
                let stored = OnnxTensor::new(tensor, self.folder)?;
                self.tensors.push((inner.rename(&tensor.name), stored));
            }
            let outside = std::mem::take(&mut self.nodes);
            for node in &graph.nodes {
                self.node(node, &inner)?;
            }
            let nodes = std::mem::replace(&mut self.nodes, outside);
            let names = |ports: &[ValueInfo]| -> Vec<String> {
                let names = ports.iter().map(|port| inner.rename(&port.name));
                names.collect()
            };
            branches.push(Branch {
                name: attribute.name.clone(),
                inputs: names(&graph.inputs),
                outputs: names(&graph.outputs),
                nodes,
            });
        }
        Ok(branches)
    }
}

/// Names that bodies read and do not define.
fn captured(branches: &[Branch]) -> Vec<String> {
    let nodes = || branches.iter().flat_map(|branch| &branch.nodes);
    let given = branches.iter().flat_map(|branch| &branch.inputs);
    let made = nodes().flat_map(|node| &node.outputs);
    let made: HashSet<&String> = made.chain(given).collect();
    let read = nodes().flat_map(|node| &node.inputs);
    let read = read.chain(branches.iter().flat_map(|branch| &branch.outputs));
    let mut seen = HashSet::new();
    let outside = read.filter(|name| !name.is_empty() && !made.contains(name));
    outside.filter(|name| seen.insert(*name)).cloned().collect()
}

impl Scope<'_> {
    /// The name in the model of a name in this scope.
    fn rename(&self, name: &str) -> String {
        match (self.names.get(name), &self.branch) {
            _ if name.is_empty() => String::new(),
            (Some(outer), _) => outer.clone(),
            (None, Some((defined, outside))) if !defined.contains(name) => outside.rename(name),
            _ => format!("{}{name}", self.prefix),
        }
    }

    /// Resolves a reference to an attribute of the function; `None` if the caller gives no value and there is no default.
    fn resolve(&self, attribute: &Attribute) -> Option<Attribute> {
        let AttributeValue::Reference(name) = &attribute.value else {
            return Some(attribute.clone());
        };
        let given = self.attributes.iter().find(|a| a.name == *name)?;
        Some(Attribute {
            name: attribute.name.clone(),
            value: given.value.clone(),
        })
    }
}
