//! `.pt2`: programs that `torch.export` saved, with their weights.
//!
//! The file is a stored zip. Reading checks every number before it is used; weights stay where the file has them.
//!
//! ```no_run
//! use import::pt2::Pt2;
//! let file = Pt2::open("model.pt2".as_ref())?;
//! for program in &file.programs {
//!     println!("{}: {} nodes, torch {}", program.name, program.nodes(), program.torch_version);
//!     println!("not known to kvark: {:?}", program.unknown_ops());
//! }
//! # Ok::<(), import::ImportError>(())
//! ```

mod archive;
mod decoder;
mod extra_files;
mod inline;
mod lower;
mod read;
mod schema;
mod size_expr;
mod tensor;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use base::Bytes;

use crate::ImportError;
pub use extra_files::ExtraFiles;
pub use lower::lower;
pub use tensor::Pt2Tensor;

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
    graph: schema::Graph,
    signature: schema::Signature,
}

impl Pt2 {
    /// Maps the file at `path` and reads it. Weights are not touched.
    pub fn open(path: &Path) -> Result<Pt2, ImportError> {
        let read = || Pt2::parse(&Bytes::map(path)?);
        read().map_err(|error: ImportError| error.in_file(path))
    }

    /// Reads a whole file held in `bytes`; weights are views into it.
    pub fn parse(bytes: &Bytes) -> Result<Pt2, ImportError> {
        read::read(bytes)
    }

    /// Whether the bytes begin as a zip does.
    pub fn is_zip(bytes: &[u8]) -> bool {
        bytes.starts_with(b"PK\x03\x04")
    }
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

    /// Ops that kvark has no lowering for, each with the first node that needs it.
    pub fn unknown_ops(&self) -> Vec<(&str, &str)> {
        let mut first = HashMap::new();
        let live = lower::live(&self.graph);
        let unknown = self.graph.nodes.iter().zip(live);
        let unknown = unknown.filter(|(node, live)| *live && !lower::is_known(node.op()));
        for (node, _) in unknown {
            first.entry(node.op()).or_insert(node.name());
        }
        let mut list: Vec<_> = first.into_iter().collect();
        list.sort_unstable();
        list
    }
}
