//! Reads a `.pt2` archive: programs with their weights.

use std::collections::BTreeMap;
use std::path::Path;

use base::Bytes;

use super::archive::Archive;
use super::extra_files::{self, ExtraFiles};
use super::file::{Program, Pt2};
use super::inline::inline;
use super::schema::{Argument, ExportedProgram, Graph, InputSpec, PayloadConfig};
use super::tensor::Pt2Tensor;
use super::weight_products::join_int8_products;
use crate::error::ImportError;

/// Supported major version of the schema; minor versions only add fields.
const SCHEMA: u64 = 8;
/// Name of a single program in the archive, and the method name kvark gives it.
const SINGLE_PROGRAM: (&str, &str) = ("model", "forward");
/// Limit on the length of names, above what PyTorch generates.
const MAX_NAME: usize = 400;

impl Pt2 {
    /// Maps the file at `path` and reads it. Weights are not touched.
    pub fn open(path: &Path) -> Result<Pt2, ImportError> {
        let read = || Pt2::parse(&Bytes::map(path)?);
        read().map_err(|error: ImportError| error.in_file(path))
    }

    /// Reads a whole file held in `bytes`; weights are views into it.
    pub fn parse(bytes: &Bytes) -> Result<Pt2, ImportError> {
        read(bytes)
    }

    /// Whether the bytes begin with the magic of a zip archive.
    pub fn is_zip(bytes: &[u8]) -> bool {
        bytes.starts_with(b"PK\x03\x04")
    }
}

fn read(bytes: &Bytes) -> Result<Pt2, ImportError> {
    let archive = Archive::open(bytes)?;
    let says = |member: &str, wanted: &[u8]| match archive.need(member) {
        Ok(found) if found.trim_ascii() == wanted => Ok(()),
        Ok(found) => {
            let found = String::from_utf8_lossy(&found[..found.len().min(20)]).into_owned();
            let wanted = String::from_utf8_lossy(wanted);
            let reason = format!("contains {found:?}, must be {wanted:?}");
            Err(ImportError::malformed(format!("{member:?}"), reason))
        }
        Err(error) => Err(error),
    };
    says("archive_format", b"pt2")?;
    says("byteorder", b"little")?;

    let names = archive.under("models/");
    let names = names.iter().filter_map(|name| name.strip_suffix(".json"));
    let mut programs: Vec<Program> = names
        .map(|name| program(&archive, name))
        .collect::<Result<_, _>>()?;
    if programs.is_empty() {
        return Err(ImportError::malformed(
            "the archive",
            "has no program in models/",
        ));
    }
    let mut names = extra_files::size_names(&archive)?;
    for program in &mut programs {
        program.size_names = names.remove(&program.name).unwrap_or_default();
    }
    Ok(Pt2 {
        name: archive.root.clone(),
        programs,
        extra: ExtraFiles::read(&archive)?,
    })
}

fn program(archive: &Archive, name: &str) -> Result<Program, ImportError> {
    let member = format!("models/{name}.json");
    let wrong = |reason: String| ImportError::malformed(format!("{member:?}"), reason);
    let ExportedProgram {
        graph_module,
        range_constraints,
        schema_version: version,
        torch_version,
    } = archive.json(&member)?;
    if version.major != SCHEMA {
        let (major, minor) = (version.major, version.minor);
        let reason = format!("has schema {major}.{minor}, but only {SCHEMA}.x is supported");
        return Err(wrong(reason));
    }
    let (graph, signature) = (graph_module.graph, graph_module.signature);
    let mut graph = inline(graph).map_err(&wrong)?;
    if let Some(odd) = odd_name(&graph) {
        let start: String = odd.chars().take(40).collect();
        return Err(wrong(format!(
            "has a value with the invalid name {start:?}"
        )));
    }
    let tensors = tensors(archive, name, &signature.input_specs)?;
    join_int8_products(&mut graph, &tensors);
    let ranges = range_constraints.into_iter().map(|(name, range)| {
        let (min, max) = (range.min_val.unwrap_or(0), range.max_val);
        (name, (min, max.unwrap_or(i64::MAX)))
    });
    Ok(Program {
        name: if name == SINGLE_PROGRAM.0 {
            SINGLE_PROGRAM.1
        } else {
            name
        }
        .to_owned(),
        schema_version: (version.major, version.minor),
        torch_version: torch_version
            .chars()
            .filter(|c| !c.is_control())
            .take(40)
            .collect(),
        ranges: ranges.collect(),
        size_names: BTreeMap::new(),
        tensors,
        graph,
        signature,
    })
}

/// A name that is too long or has control characters; error messages quote names.
fn odd_name(graph: &Graph) -> Option<&str> {
    let values = graph
        .tensor_values
        .keys()
        .chain(graph.sym_int_values.keys());
    let nodes = graph.nodes.iter();
    let results = nodes.clone().flat_map(|node| &node.outputs);
    let names = results.flat_map(Argument::names);
    let names = names.chain(nodes.flat_map(|node| [node.name(), node.op()]));
    let mut names = names.chain(values.map(|name| &name[..]));
    names.find(|name| name.len() > MAX_NAME || name.contains(char::is_control))
}

/// The weights and constants among the program's inputs.
fn tensors(
    archive: &Archive,
    program: &str,
    inputs: &[InputSpec],
) -> Result<BTreeMap<String, Pt2Tensor>, ImportError> {
    let folder = |kind: &str| -> Result<_, ImportError> {
        let member = format!("data/{kind}/{program}_{kind}_config.json");
        let config = match archive.get(&member) {
            Some(_) => archive.json::<PayloadConfig>(&member)?.config,
            None => BTreeMap::new(),
        };
        Ok((format!("data/{kind}/"), config))
    };
    let folders = [folder("weights")?, folder("constants")?];
    let mut found = BTreeMap::new();
    for input in inputs {
        if let InputSpec::CustomObj(_) | InputSpec::Token(_) = input {
            return Err(ImportError::unsupported(
                "a program with custom objects or tokens as inputs",
            ));
        }
        let Some((arg, name)) = input.weight() else {
            continue;
        };
        let wrong = |reason: String| ImportError::malformed(format!("tensor {name:?}"), reason);
        let payload = folders
            .iter()
            .find_map(|(folder, config)| Some((folder, config.get(name)?)));
        let Some((folder, payload)) = payload else {
            return Err(wrong(
                "is not listed in the archive's weights or constants".into(),
            ));
        };
        let path = format!("{folder}{}", payload.path_name);
        let Some(meta) = payload.tensor_meta.as_ref().filter(|_| !payload.use_pickle) else {
            return Err(wrong("is pickled, which is not supported".into()));
        };
        let storage = archive.get(&path);
        let storage =
            storage.ok_or_else(|| wrong(format!("is missing: the archive has no {path:?}")))?;
        let stored = Pt2Tensor::new(name, meta, storage).map_err(wrong)?;
        found.insert(arg.name.clone(), stored);
    }
    Ok(found)
}
