//! `kvark inspect`: what is in a model file.

use crate::args::ModelArgs;
use crate::output;
use anyhow::{Result, bail};
use clap::Args;
use kvark::gguf::{Array, Gguf, Tensor, Value as Meta};
use kvark::{Artifact, Format, Graph, ImportErrorKind, RuntimeErrorKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Elements shown of an array, and characters of a string.
const SHOWN: (usize, usize) = (6, 60);

/// Show a model file's metadata, tensors, ops and methods
#[derive(Args)]
#[command(
    after_help = "Weights are not read. A file that kvark cannot run is shown too, with the reason.

Examples:
  kvark inspect model.gguf
  kvark inspect model.gguf --graph
  kvark inspect smollm2 --json"
)]
pub(crate) struct Inspect {
    #[command(flatten)]
    model: ModelArgs,
    /// Print the graph that is run, one line a node
    #[arg(long)]
    graph: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A file, and the model in it when kvark can build it.
struct Found {
    gguf: Gguf,
    artifact: Result<Artifact, String>,
}

impl Inspect {
    pub(crate) fn execute(self) -> Result<()> {
        let found = Found::open(&self.model.path()?)?;
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            writeln!(out, "{}", found.json(self.graph))?;
        } else if self.graph {
            match &found.artifact {
                Ok(artifact) => {
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
    fn open(path: &Path) -> Result<Found> {
        let mut artifact = match kvark::open_artifact(path, None) {
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
        let gguf = match artifact.as_mut().ok().and_then(|a| a.gguf.take()) {
            Some(gguf) => gguf,
            None => Gguf::open(path)?,
        };
        Ok(Found { gguf, artifact })
    }

    fn architecture(&self) -> Option<&str> {
        let name = self.gguf.metadata.str("general.architecture");
        name.ok().flatten()
    }

    fn methods(&self) -> impl Iterator<Item = (&str, &Graph)> {
        let methods = self.artifact.iter().flat_map(|a| &a.methods);
        methods.map(|method| (method.name.as_str(), &method.graph))
    }

    /// How often each op occurs, over all methods.
    fn ops(&self) -> BTreeMap<&'static str, usize> {
        let mut ops = BTreeMap::new();
        for node in self.methods().flat_map(|(_, graph)| graph.nodes()) {
            *ops.entry(node.op.name()).or_default() += 1;
        }
        ops
    }

    fn parameters(&self) -> usize {
        self.gguf.tensors.iter().map(Tensor::len).sum()
    }

    fn json(&self, graph: bool) -> Value {
        let metadata = self.gguf.metadata.iter();
        let metadata: Map<String, Value> = metadata
            .map(|(key, value)| (key.to_owned(), json_of(value)))
            .collect();
        let tensor = |t: &Tensor| json!({ "name": t.name, "dtype": t.dtype.to_string(), "shape": t.shape, "bytes": t.data.len() });
        let method = |(name, g): (&str, &Graph)| {
            let list = |ids: &[_]| -> Vec<Value> { ids.iter().map(|id| typed(g, *id)).collect() };
            let mut method =
                json!({ "name": name, "inputs": list(g.inputs()), "outputs": list(g.outputs()) });
            if graph {
                method["graph"] = g.to_string().into();
            }
            method
        };
        let facts = self.artifact.as_ref().ok().map(|a| &a.facts);
        json!({
            "format": Format::Gguf.name(),
            "version": self.gguf.version,
            "architecture": self.architecture(),
            "runs": self.artifact.is_ok(),
            "problem": self.artifact.as_ref().err(),
            "parameters": self.parameters(),
            "context_length": facts.map(|f| f.context_length),
            "vocab_size": facts.map(|f| f.vocab_size),
            "metadata": metadata,
            "ops": self.ops(),
            "methods": self.methods().map(method).collect::<Vec<_>>(),
            "tensors": self.gguf.tensors.iter().map(tensor).collect::<Vec<_>>(),
        })
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Gguf {
            version,
            metadata,
            tensors,
            ..
        } = &self.gguf;
        let weights: u64 = tensors.iter().map(|t| t.data.len() as u64).sum();
        writeln!(out, "format        {} {version}", Format::Gguf.name())?;
        writeln!(
            out,
            "architecture  {}",
            self.architecture().unwrap_or("not named")
        )?;
        writeln!(
            out,
            "parameters    {} in {} tensors, {}",
            self.parameters(),
            tensors.len(),
            output::bytes(weights)
        )?;
        match &self.artifact {
            Err(reason) => writeln!(out, "cannot be run: {reason}")?,
            Ok(Artifact { facts, .. }) => {
                writeln!(out, "context       {} tokens", facts.context_length)?;
                writeln!(out, "vocabulary    {} tokens", facts.vocab_size)?;
                writeln!(out, "KV caches     {}", facts.caches.len())?;
            }
        }
        writeln!(out, "\nmetadata")?;
        for (key, value) in metadata.iter() {
            writeln!(out, "  {key} = {}", short(value))?;
        }
        writeln!(out, "\ntensors")?;
        let width = tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
        for tensor in tensors {
            let dims: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let (name, dtype) = (&tensor.name, tensor.dtype.to_string());
            writeln!(out, "  {name:width$}  {dtype:7} [{}]", dims.join(", "))?;
        }
        if self.artifact.is_ok() {
            writeln!(out, "\nops")?;
            for (name, count) in self.ops() {
                writeln!(out, "  {count:>6}  {name}")?;
            }
            writeln!(out, "\nmethods")?;
            for (name, graph) in self.methods() {
                let list =
                    |ids: &[_]| -> Vec<String> { ids.iter().map(|id| graph.typed(*id)).collect() };
                let (inputs, outputs) = (list(graph.inputs()), list(graph.outputs()));
                writeln!(
                    out,
                    "  {name}({}) -> {}",
                    inputs.join(", "),
                    outputs.join(", ")
                )?;
            }
        }
        Ok(())
    }
}

/// A method's input or output.
fn typed(graph: &Graph, id: kvark::TensorId) -> Value {
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

/// The decimal number that an `f32` was most likely written as; `null` when it is not finite.
fn number(x: f32) -> Value {
    x.to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

/// A metadata value, in full.
fn json_of(value: &Meta) -> Value {
    match value {
        Meta::F32(x) => number(*x),
        Meta::F64(x) => json!(x),
        Meta::Bool(x) => json!(x),
        Meta::String(x) => json!(x),
        Meta::Array(array) => elements(array, usize::MAX).into(),
        Meta::U64(x) => json!(x),
        integer => json!(integer.as_integer().and_then(|i| i64::try_from(i).ok())),
    }
}

/// The first `most` elements.
fn elements(array: &Array, most: usize) -> Vec<Value> {
    macro_rules! list {
        ($v:expr) => {
            $v.iter().take(most).map(|x| json!(x)).collect()
        };
    }
    match array {
        Array::U8(v) => list!(v),
        Array::I8(v) => list!(v),
        Array::U16(v) => list!(v),
        Array::I16(v) => list!(v),
        Array::U32(v) => list!(v),
        Array::I32(v) => list!(v),
        Array::U64(v) => list!(v),
        Array::I64(v) => list!(v),
        Array::F32(v) => v.iter().take(most).map(|x| number(*x)).collect(),
        Array::F64(v) => list!(v),
        Array::Bool(v) => list!(v),
        Array::String(v) => list!(v),
    }
}

/// A metadata value on part of a line.
fn short(value: &Meta) -> String {
    let (most_elements, most_chars) = SHOWN;
    let clip = |text: String| match text.char_indices().nth(most_chars) {
        Some((end, _)) => format!("{}... ({} characters)", &text[..end], text.chars().count()),
        None => text,
    };
    match value {
        Meta::String(text) => clip(format!("{text:?}")),
        Meta::Array(array) => {
            let shown = elements(array, most_elements);
            let shown: Vec<String> = shown.iter().map(|v| clip(v.to_string())).collect();
            let more = if array.len() > most_elements {
                ", ..."
            } else {
                ""
            };
            let (len, kind) = (array.len(), array.type_name());
            format!("[{}{more}] ({len} of {kind})", shown.join(", "))
        }
        other => json_of(other).to_string(),
    }
}
