//! A parsed `.pt2` file.

use std::collections::BTreeMap;

use super::extra_files::ExtraFiles;
use super::schema;
use super::tensor::Pt2Tensor;
use super::weight_products::join_int8_products;

/// A `.pt2` file.
#[derive(Clone, Debug)]
pub struct Pt2 {
    /// The archive's name.
    pub name: String,
    /// The programs, by name; a single program is called `forward`.
    pub programs: Vec<Program>,
    /// Files stored by kvark's exporter.
    pub extra: ExtraFiles,
}

/// One exported program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The method's name.
    pub name: String,
    /// Major and minor version of the schema.
    pub schema_version: (u64, u64),
    /// Version of PyTorch that wrote the program.
    pub torch_version: String,
    /// Parameters, buffers and constants, by their names in the graph.
    pub tensors: BTreeMap<String, Pt2Tensor>,
    /// Smallest and largest value of each dynamic size.
    pub ranges: BTreeMap<String, (i64, i64)>,
    /// Names of dynamic sizes, by the file's own names, if it was written by kvark's exporter.
    pub size_names: BTreeMap<String, String>,
    pub(super) graph: schema::Graph,
    pub(super) signature: schema::Signature,
}

impl Program {
    /// A program of another format, in this one's terms.
    pub(crate) fn from_parts(
        name: String,
        tensors: BTreeMap<String, Pt2Tensor>,
        ranges: BTreeMap<String, (i64, i64)>,
        mut graph: schema::Graph,
        signature: schema::Signature,
    ) -> Program {
        join_int8_products(&mut graph, &tensors);
        Program {
            name,
            schema_version: (0, 0),
            torch_version: String::new(),
            tensors,
            ranges,
            size_names: BTreeMap::new(),
            graph,
            signature,
        }
    }

    /// The number of nodes of the exported graph.
    pub fn nodes(&self) -> usize {
        self.graph.nodes.len()
    }

    /// The number of nodes of each op, by PyTorch's name without `torch.ops.`.
    pub fn ops(&self) -> BTreeMap<&str, usize> {
        let mut ops = BTreeMap::new();
        for node in &self.graph.nodes {
            *ops.entry(node.op()).or_default() += 1;
        }
        ops
    }
}
