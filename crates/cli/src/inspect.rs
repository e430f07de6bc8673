//! `kvark inspect`: shows the contents of a model file, a snapshot or a prefix file.

mod contents;
mod prefix;
mod saved;

use crate::args::ModelArgs;
use crate::output;
use anyhow::{Result, bail};
use clap::Args;
use contents::{Contents, Exported, TensorRow};
use kvark::RuntimeErrorKind;
use kvark::cache::LayerConfig;
use kvark::graph::Graph;
use kvark::inference::{TensorDim, TensorInfo};
use kvark::model::{Artifact, FeatureLayers, ImportErrorKind, OpenOptions, ShapedMethod};
use kvark::snapshot::{PrefixFile, Snapshot};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Maximum number of array elements and of string characters shown.
const SHOWN: (usize, usize) = (6, 60);

/// Show what is in a model file, a snapshot or a prefix file
#[derive(Args)]
#[command(
    after_help = "Weights are not read. A file that kvark cannot run is also shown, with the reason.

Examples:
  kvark inspect model.gguf
  kvark inspect model.gguf --graph
  kvark inspect model.pt2
  kvark inspect model.onnx
  kvark inspect genai-folder
  kvark inspect detector.onnx --graph --dim height=640 --dim width=640
  kvark inspect talk.kv
  kvark inspect doc.kvp
  kvark inspect smollm2 --json"
)]
pub(crate) struct Inspect {
    #[command(flatten)]
    model: ModelArgs,
    /// Print the optimised graph, one line per node
    #[arg(long)]
    graph: bool,
    /// Dynamic size of the inputs, for a model whose graph is made for the shapes of each run's inputs
    #[arg(long = "dim", value_name = "NAME=N", value_parser = crate::exec::dim)]
    dims: Vec<(String, usize)>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Contents of a file, and the imported model or the reason why the import failed.
struct Found {
    contents: Contents,
    artifact: Result<Artifact, String>,
}

impl Inspect {
    pub(crate) fn execute(self) -> Result<()> {
        let path = self.model.path()?;
        if path.is_file() && Snapshot::is_at(&path).unwrap_or(false) {
            if self.graph {
                bail!("there is no graph: {} is a snapshot", path.display());
            }
            return saved::show(&path, self.json);
        }
        if path.is_file() && PrefixFile::is_at(&path).unwrap_or(false) {
            if self.graph {
                bail!("there is no graph: {} is a prefix", path.display());
            }
            return prefix::show(&path, self.json);
        }
        let found = Found::open(&path, self.dims)?;
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            writeln!(out, "{}", found.json(self.graph))?;
        } else if self.graph {
            match &found.artifact {
                Ok(artifact) => {
                    if let Some(method) = artifact.shaped.first() {
                        let sizes = method.dynamic_sizes().join(", ");
                        bail!(
                            "the graph of {} is made for the shapes of each run's inputs: set {sizes} with --dim",
                            method.name
                        );
                    }
                    for method in &artifact.methods {
                        write!(out, "{}", method.graph)?;
                    }
                }
                Err(reason) => bail!("there is no graph: {reason}"),
            }
        } else {
            found.print(&mut out)?;
        }
        out.flush()?;
        Ok(())
    }
}

impl Found {
    fn open(path: &Path, sizes: Vec<(String, usize)>) -> Result<Found> {
        let options = OpenOptions {
            by_shape: true,
            sizes,
            ..OpenOptions::default()
        };
        let artifact = match kvark::model::open_artifact_with(path, &options) {
            Ok(artifact) => Ok(artifact),
            Err(error) => match error.kind() {
                // Then the file cannot be shown either.
                RuntimeErrorKind::Import(cause)
                    if matches!(
                        cause.kind(),
                        ImportErrorKind::Io
                            | ImportErrorKind::UnknownFormat
                            | ImportErrorKind::Malformed
                    ) =>
                {
                    return Err(error.into());
                }
                _ => Err(error.to_string()),
            },
        };
        let contents = Contents::read(path, artifact.as_ref().ok())?;
        Ok(Found { contents, artifact })
    }

    fn methods(&self) -> impl Iterator<Item = (&str, &Graph)> {
        let methods = self.artifact.iter().flat_map(|a| &a.methods);
        methods.map(|method| (method.name.as_str(), &method.graph))
    }

    fn shaped(&self) -> impl Iterator<Item = &ShapedMethod> {
        self.artifact.iter().flat_map(|a| &a.shaped)
    }

    /// Number of nodes per op, over all methods.
    fn ops(&self) -> BTreeMap<&'static str, usize> {
        let mut ops = BTreeMap::new();
        for node in self.methods().flat_map(|(_, graph)| graph.nodes()) {
            *ops.entry(node.op.name()).or_default() += 1;
        }
        ops
    }

    fn json(&self, graph: bool) -> Value {
        let contents = &self.contents;
        let metadata = contents.metadata.iter();
        let metadata: Map<String, Value> = metadata
            .map(|(key, value, _)| (key.clone(), value.clone()))
            .collect();
        let tensor = |t: &TensorRow| json!({ "name": t.name, "dtype": t.dtype, "shape": t.shape, "bytes": t.bytes });
        let program = |p: &Exported| {
            let ops: Map<String, Value> = p
                .ops
                .iter()
                .map(|(op, n)| (op.clone(), (*n).into()))
                .collect();
            let unknown = p
                .unknown
                .iter()
                .map(|(op, node)| json!({ "op": op, "node": node }));
            json!({
                "name": p.name,
                "inputs": p.inputs,
                "outputs": p.outputs,
                "ops": ops,
                "unknown_ops": unknown.collect::<Vec<_>>(),
            })
        };
        let method = |(name, g): (&str, &Graph)| {
            let list = |ids: &[_]| -> Vec<Value> { ids.iter().map(|id| typed(g, *id)).collect() };
            let mut method = json!({ "name": name, "inputs": list(g.caller_inputs()), "outputs": list(g.caller_outputs()) });
            if !g.states().is_empty() {
                method["states"] = states(g).into();
            }
            if graph {
                method["graph"] = g.to_string().into();
            }
            method
        };
        let shaped = |method: &ShapedMethod| {
            let list = |infos: &[TensorInfo]| infos.iter().map(described).collect::<Vec<_>>();
            json!({
                "name": method.name,
                "inputs": list(&method.inputs),
                "outputs": list(&method.outputs),
                "planned_by_shape": method.reason,
            })
        };
        let facts = self.artifact.as_ref().ok().map(|a| &a.facts);
        json!({
            "format": contents.format.name(),
            "version": contents.version.parse::<u64>().map_or_else(|_| json!(contents.version), Value::from),
            "architecture": contents.architecture,
            "runs": self.artifact.is_ok(),
            "problem": self.artifact.as_ref().err(),
            "parameters": contents.parameters(),
            "context_length": facts.map(|f| f.context_length),
            "vocab_size": facts.map(|f| f.vocab_size),
            "pooling": facts.and_then(|f| f.pooling).map(kvark::embed::Pooling::name),
            "metadata": metadata,
            "ops": self.ops(),
            "methods": self.methods().map(method).chain(self.shaped().map(shaped)).collect::<Vec<_>>(),
            "tensors": contents.tensors.iter().map(tensor).collect::<Vec<_>>(),
            "programs": contents.programs.iter().map(program).collect::<Vec<_>>(),
        })
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let contents = &self.contents;
        writeln!(
            out,
            "format        {} {}",
            contents.format.name(),
            contents.version
        )?;
        let architecture = contents.architecture.as_deref();
        writeln!(out, "architecture  {}", architecture.unwrap_or("not named"))?;
        writeln!(
            out,
            "parameters    {} in {} tensors, {}",
            contents.parameters(),
            contents.tensors.len(),
            output::bytes(contents.bytes())
        )?;
        match &self.artifact {
            Err(reason) => writeln!(out, "cannot be run: {reason}")?,
            Ok(Artifact { facts, .. }) if facts.is_decoder() => {
                writeln!(out, "context       {} tokens", facts.context_length)?;
                writeln!(out, "vocabulary    {} tokens", facts.vocab_size)?;
                writeln!(out, "KV caches     {}", facts.caches.len())?;
                for (layers, cache) in alike(&facts.caches) {
                    writeln!(out, "  {layers:<11} {cache}")?;
                }
            }
            Ok(Artifact {
                facts,
                draft_head: Some(head),
                ..
            }) => {
                let needs = match &head.target_layers {
                    FeatureLayers::Listed(list) => {
                        let list: Vec<String> = list.iter().map(usize::to_string).collect();
                        format!("the inputs of its layers {}", list.join(", "))
                    }
                    FeatureLayers::WithKeysAndValues(_) => {
                        "its last state, and the keys and values of its last layers".to_owned()
                    }
                    _ => "the inputs of its layers 2, L/2 and L - 3 of L".to_owned(),
                };
                writeln!(
                    out,
                    "draft head    of a model of width {}, with {needs}",
                    head.target_hidden_size,
                )?;
                let tokens = head.target_tokens.len();
                writeln!(out, "vocabulary    {tokens} of the model's tokens")?;
                writeln!(out, "context       {} tokens", facts.context_length)?;
                writeln!(out, "KV caches     {}", facts.caches.len())?;
            }
            Ok(Artifact { facts, .. }) => {
                if let Some(pooling) = facts.pooling {
                    writeln!(out, "text          up to {} tokens", facts.context_length)?;
                    let (size, how) = (facts.hidden_size, pooling.name());
                    writeln!(out, "embedding     {size} elements, pooling {how}")?;
                    writeln!(out, "KV caches     none")?;
                }
            }
        }
        for (name, op, node) in contents.unknown_ops() {
            writeln!(out, "unknown op    {op} (node {node} of {name})")?;
        }
        for program in &contents.programs {
            for (side, list) in [("inputs", &program.inputs), ("outputs", &program.outputs)] {
                if !list.is_empty() {
                    writeln!(out, "\n{side}")?;
                }
                for port in list {
                    writeln!(out, "  {port}")?;
                }
            }
        }
        writeln!(out, "\nmetadata")?;
        for (key, _, short) in &contents.metadata {
            writeln!(out, "  {key} = {short}")?;
        }
        writeln!(out, "\ntensors")?;
        let tensors = &contents.tensors;
        let width = tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
        for tensor in tensors {
            let dims: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let (name, dtype) = (&tensor.name, &tensor.dtype);
            writeln!(out, "  {name:width$}  {dtype:7} [{}]", dims.join(", "))?;
        }
        let has_graphs = self.artifact.is_ok() && self.shaped().next().is_none();
        for program in contents.programs.iter().filter(|_| !has_graphs) {
            writeln!(out, "\nops of {}", program.name)?;
            for (op, count) in &program.ops {
                writeln!(out, "  {count:>6}  {op}")?;
            }
        }
        if self.artifact.is_ok() {
            if has_graphs {
                writeln!(out, "\nops")?;
            }
            for (name, count) in self.ops() {
                writeln!(out, "  {count:>6}  {name}")?;
            }
            writeln!(out, "\nmethods")?;
            for (name, graph) in self.methods() {
                let list =
                    |ids: &[_]| -> Vec<String> { ids.iter().map(|id| graph.typed(*id)).collect() };
                let (inputs, outputs) = (list(graph.caller_inputs()), list(graph.caller_outputs()));
                writeln!(
                    out,
                    "  {name}({}) -> {}",
                    inputs.join(", "),
                    outputs.join(", ")
                )?;
                for (state, id) in graph.states().iter().zip(graph.state_inputs()) {
                    let ty = graph.type_text(&graph.tensor(*id).ty);
                    writeln!(out, "    keeps {}: {ty}", state.name)?;
                }
            }
            for method in self.shaped() {
                let list = |infos: &[TensorInfo]| -> Vec<String> {
                    infos.iter().map(TensorInfo::to_string).collect()
                };
                let (inputs, outputs) = (list(&method.inputs), list(&method.outputs));
                let (name, inputs, outputs) = (&method.name, inputs.join(", "), outputs.join(", "));
                writeln!(out, "  {name}({inputs}) -> {outputs}")?;
                let reason = &method.reason;
                writeln!(
                    out,
                    "    is planned for the shapes of each run's inputs: {reason}"
                )?;
            }
        }
        Ok(())
    }
}

/// The tensors that a method keeps between runs.
fn states(graph: &Graph) -> Vec<Value> {
    let pairs = graph.states().iter().zip(graph.state_inputs());
    let named = pairs.map(|(state, id)| {
        let mut typed = typed(graph, *id);
        typed["name"] = state.name.clone().into();
        typed
    });
    named.collect()
}

/// A method's input or output.
fn typed(graph: &Graph, id: kvark::graph::TensorId) -> Value {
    let tensor = graph.tensor(id);
    // `dtype[a, b]`, where symbols have names.
    let text = graph.type_text(&tensor.ty);
    let dims = text.split_once('[').map_or("", |(_, dims)| dims);
    let dims = dims
        .trim_end_matches(']')
        .split(", ")
        .filter(|d| !d.is_empty());
    let dims = dims.map(|d| d.parse::<u64>().map_or_else(|_| d.into(), Value::from));
    json!({
        "name": tensor.name,
        "dtype": tensor.ty.dtype.to_string(),
        "shape": dims.collect::<Vec<_>>(),
    })
}

/// An input or output of a method without a graph.
fn described(info: &TensorInfo) -> Value {
    let dims = info.shape.iter().map(|dim| match dim {
        TensorDim::Fixed(n) => json!(n),
        TensorDim::Dynamic(name) => json!(name),
    });
    json!({
        "name": info.name,
        "dtype": info.dtype.to_string(),
        "shape": dims.collect::<Vec<_>>(),
    })
}

/// Describes runs of layers with equal caches: layer numbers, heads and dimensions.
fn alike(caches: &[LayerConfig]) -> Vec<(String, String)> {
    let mut first = 0;
    let run = |run: &[LayerConfig]| {
        let (start, end) = (first, first + run.len() - 1);
        first = end + 1;
        let numbers = match start == end {
            true => start.to_string(),
            false => format!("{start} to {end}"),
        };
        let one = &run[0];
        let window = one
            .window
            .map_or_else(String::new, |n| format!(", a window of {n}"));
        let (heads, keys, values) = (one.kv_heads, one.key_dim, one.value_dim);
        let text = format!("heads {heads}, keys of {keys}, values of {values}{window}");
        (numbers, text)
    };
    caches.chunk_by(|a, b| a == b).map(run).collect()
}
