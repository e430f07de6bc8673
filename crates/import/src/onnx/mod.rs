//! `.onnx`: models of the Open Neural Network Exchange, with their weights inside the file or in external data files.
//!
//! Reading checks every number before it is used; weights are views into the file.
//!
//! ```no_run
//! use import::onnx::Onnx;
//! let file = Onnx::open("model.onnx".as_ref())?;
//! for input in &file.inputs {
//!     println!("{}: {}[{}]", input.name, input.dtype, input.shape.join(", "));
//! }
//! println!("unsupported ops: {:?}", file.unknown_ops());
//! # Ok::<(), import::ImportError>(())
//! ```

mod decoder;
mod file;
mod inline;
mod lower;
mod mat_mul_nbits;
mod proto;
mod read;
mod schema;
mod tensor;
mod topological_sort;

use std::collections::BTreeMap;
use std::path::Path;

use base::Bytes;
use graph::{Graph, Value};

use crate::by_shape::ShapedMethod;
use crate::error::ImportError;
use crate::genai::GenAi;
use crate::lowered::{ImportOptions, LoweredModel, Method};
use crate::model_facts::ModelFacts;
use crate::stages::{InputType, Stage};
pub use decoder::{CacheInputs, CacheLayout, cache_layers, discover_kv_layers};
pub use file::{Onnx, Port};
pub use lower::lower_with;
pub(crate) use lower::stages::StageStart;
pub use tensor::{OnnxTensor, read_tensor};

/// The name of a file's only method.
const METHOD: &str = "forward";

impl Onnx {
    /// Maps the file at `path` and reads it. Weights are not touched.
    pub fn open(path: &Path) -> Result<Onnx, ImportError> {
        let read = || Onnx::parse(Bytes::map(path)?, path.parent());
        read().map_err(|error: ImportError| error.in_file(path))
    }

    /// Reads a whole file held in `bytes`; weights are views into it, or into files of `folder`.
    pub fn parse(bytes: Bytes, folder: Option<&Path>) -> Result<Onnx, ImportError> {
        read::read(bytes, folder, lower::is_supported)
    }

    /// The method in the place of a graph for all shapes, which failed with `error`.
    fn shaped_method(&self, error: ImportError) -> Result<ShapedMethod, ImportError> {
        let inputs: Option<Vec<_>> = self.inputs.iter().map(Port::info).collect();
        let outputs: Option<Vec<_>> = self.outputs.iter().map(Port::output_info).collect();
        match (inputs, outputs) {
            (Some(inputs), Some(outputs)) => {
                ShapedMethod::in_place_of(error, METHOD, inputs, outputs)
            }
            _ => Err(error),
        }
    }

    /// The ops that kvark does not support, each with the first node that uses it.
    pub fn unknown_ops(&self) -> BTreeMap<&str, &str> {
        lower::unsupported_ops(self.nodes.iter())
    }
}

/// Lowers a model with its exported inputs and outputs for inputs of these shapes, in the order of the file. Inputs in `fixed` become
/// constants.
pub(crate) fn specialise(
    file: &Onnx,
    shapes: &[&[usize]],
    fixed: &BTreeMap<String, Value>,
) -> Result<Graph, ImportError> {
    lower::lower_for(file, fixed, Some(shapes))
}

/// Lowers a stage of a model with its exported inputs and outputs: the first, or the one that follows a cut.
pub(crate) fn stage(
    file: &Onnx,
    from: Option<&StageStart>,
    inputs: &[InputType],
) -> Result<Stage, ImportError> {
    lower::stages::lower_stage(file, from, inputs)
}

/// Lowers a model to one method, `forward`.
///
/// A model that attends over caches becomes the decoder that runners expect, unless the options ask for it as exported.
pub fn lower(
    file: &Onnx,
    genai: Option<&GenAi>,
    options: &ImportOptions,
) -> Result<LoweredModel, ImportError> {
    let found = match options.as_exported {
        true => None,
        false => decoder::names(file, genai)?,
    };
    let mut shaped = vec![];
    let (graph, facts) = match found {
        Some((names, caches)) => {
            let context = genai.and_then(|config| config.context_length);
            let decoder = decoder::find(file, names, &caches)?;
            let graph = decoder::lower::lower(file, &decoder)?;
            let facts = decoder.facts(&graph, context)?;
            (Some(graph), facts)
        }
        None => {
            let graph = match lower_with(file, &BTreeMap::new()) {
                Ok(graph) => Some(graph),
                Err(error) if options.by_shape => {
                    shaped.push(file.shaped_method(error)?);
                    None
                }
                Err(error) => return Err(error),
            };
            (graph, ModelFacts::none())
        }
    };
    let architecture = genai.map_or("onnx", |config| &config.model_type[..]);
    let method = |graph: Graph| Method {
        name: METHOD.to_owned(),
        graph,
    };
    Ok(LoweredModel {
        name: Some(file.description.graph_name.clone()).filter(|name| !name.is_empty()),
        architecture: architecture.to_owned(),
        methods: graph.map(method).into_iter().collect(),
        shaped,
        facts,
        draft_head: None,
    })
}
