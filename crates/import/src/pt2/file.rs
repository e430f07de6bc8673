//! A parsed `.pt2` file.

use std::collections::BTreeMap;

use super::extra_files::ExtraFiles;
use super::schema;
use super::tensor::Pt2Tensor;

/// A `.pt2` file.
#[derive(Clone, Debug)]
pub struct Pt2 {
    /// The archive's own name for itself.
    pub name: String,
    /// The programs, by name; one saved alone is called `forward`.
    pub programs: Vec<Program>,
    /// What kvark's exporter put in beside the programs.
    pub extra: ExtraFiles,
}

/// One exported program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The method's name.
    pub name: String,
    /// Version of the schema it was written in.
    pub schema_version: (u64, u64),
    /// The PyTorch that wrote it.
    pub torch_version: String,
    /// Parameters, buffers and constants, by the names that the graph has for them.
    pub tensors: BTreeMap<String, Pt2Tensor>,
    /// Smallest and largest value of each dynamic size.
    pub ranges: BTreeMap<String, (i64, i64)>,
    pub(super) graph: schema::Graph,
    pub(super) signature: schema::Signature,
}

impl Program {
    /// How many nodes the exported graph has.
    pub fn nodes(&self) -> usize {
        self.graph.nodes.len()
    }

    /// How often each op occurs, by PyTorch's name without `torch.ops.`.
    pub fn ops(&self) -> BTreeMap<&str, usize> {
        let mut ops = BTreeMap::new();
        for node in &self.graph.nodes {
            *ops.entry(node.op()).or_default() += 1;
        }
        ops
    }
}
