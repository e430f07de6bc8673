//! `.pt2`: programs that `torch.export` saved, with their weights.
//!
//! The file is a stored zip. Reading checks every number before it is used; weights are views into the file.
//!
//! ```no_run
//! use import::pt2::Pt2;
//! let file = Pt2::open("model.pt2".as_ref())?;
//! for program in &file.programs {
//!     println!("{}: {} nodes, torch {}", program.name, program.nodes(), program.torch_version);
//!     println!("unsupported ops: {:?}", program.unknown_ops());
//! }
//! # Ok::<(), import::ImportError>(())
//! ```

mod archive;
mod bind_sizes;
mod decoder;
mod extra_files;
mod file;
mod inline;
mod lower;
mod read;
pub(crate) mod schema;
mod size_expr;
mod size_tree;
mod tensor;
#[cfg(test)]
mod tests;
mod weight_products;

use std::collections::{BTreeMap, HashMap};

use graph::Graph;

use crate::by_shape::ShapedMethod;
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::{ImportOptions, LoweredModel, Method};
pub use extra_files::ExtraFiles;
pub use file::{Program, Pt2};
use lower::{Pt2Lowering, aliases, op_traits, user_inputs};
pub use tensor::Pt2Tensor;

impl Program {
    /// Ops without a lowering rule, each with the first node that needs it.
    pub fn unknown_ops(&self) -> Vec<(&str, &str)> {
        let mut first = HashMap::new();
        let live = aliases::live(self);
        let unsupported = self.graph.nodes.iter().zip(live);
        let unsupported =
            unsupported.filter(|(node, live)| *live && !lower::is_supported(node.op()));
        for (node, _) in unsupported {
            first.entry(node.op()).or_insert(node.name());
        }
        let mut list: Vec<_> = first.into_iter().collect();
        list.sort_unstable();
        list
    }
}

/// Lowers a file to a model with one method per program.
///
/// A program that attends over caches becomes the decoder that runners expect, unless the options ask for it as exported.
pub fn lower(file: &Pt2, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    for program in &file.programs {
        let dependent = program.graph.nodes.iter();
        let dependent = dependent
            .zip(aliases::live(program))
            .filter(|(_, live)| *live);
        if let Some((node, _)) = dependent
            .into_iter()
            .find(|(n, _)| op_traits::is_data_dependent(n.op()))
        {
            let (node, op) = (node.name().to_owned(), node.op().to_owned());
            let reason = "the shape of its result depends on data; only shapes that follow from the shapes of the inputs are supported".into();
            return Err(ImportErrorDetail::Op { node, op, reason }.into());
        }
    }
    let unsupported: Vec<String> = file.programs.iter().flat_map(unsupported).collect();
    if !unsupported.is_empty() {
        let ops = unsupported.join(", ");
        return Err(ImportErrorDetail::UnknownOps { ops }.into());
    }
    let mut methods = Vec::with_capacity(file.programs.len());
    let mut shaped: Vec<ShapedMethod> = vec![];
    let mut facts = None;
    for program in &file.programs {
        let name = program.name.clone();
        let graph = match decoder::shape(program).filter(|_| !options.as_exported) {
            Some(shape) => {
                let (graph, found) = decoder::lower(program, &shape, &file.extra, options)?;
                facts.get_or_insert(found);
                graph
            }
            None => match plain(program) {
                Ok(graph) => graph,
                Err(error) if options.by_shape && decoder::position(program).is_none() => {
                    shaped.push(program.shaped_method(error)?);
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        methods.push(Method { name, graph });
    }
    let facts = match facts {
        Some(facts) => facts,
        None => decoder::bare_facts(&methods, &file.extra)?,
    };
    Ok(LoweredModel {
        name: Some(file.name.clone()).filter(|name| !name.is_empty()),
        architecture: file
            .extra
            .architecture()
            .unwrap_or_else(|| "torch.export".into()),
        methods,
        shaped,
        facts,
        draft_head: None,
    })
}

/// Lowers the program of this name, which has no graph for all shapes, for inputs of these shapes.
pub(crate) fn specialise(
    file: &Pt2,
    name: &str,
    shapes: &[&[usize]],
) -> Result<Graph, ImportError> {
    let program = file.programs.iter().find(|program| program.name == name);
    let program =
        program.ok_or_else(|| ImportError::value(format!("method {name:?}"), "is unknown"))?;
    specialise_program(program, shapes)
}

/// Lowers a program for inputs of these shapes.
pub(crate) fn specialise_program(
    program: &Program,
    shapes: &[&[usize]],
) -> Result<Graph, ImportError> {
    let graph = plain(&program.with_shapes(shapes)?)?;
    match graph.states() {
        [] => Ok(graph),
        [state, ..] => {
            let what = format!(
                "{}, which writes to {:?} and is lowered for the shapes of its inputs,",
                program.name, state.name
            );
            Err(ImportError::unsupported(what))
        }
    }
}

fn unsupported(program: &Program) -> Vec<String> {
    let list = program.unknown_ops().into_iter();
    list.map(|(op, node)| format!("{op} (node {node} of {})", program.name))
        .collect()
}

/// Lowers a program with its exported inputs and outputs.
fn plain(program: &Program) -> Result<Graph, ImportError> {
    let mut lower = Pt2Lowering::new(program, &BTreeMap::new())?;
    for name in user_inputs(program)? {
        let meta = lower.input_meta(name)?;
        let (dtype, shape) = lower.input_type(name, meta)?;
        let id = lower.builder.input(name, dtype, shape);
        lower.values.insert(name.to_owned(), id);
    }
    let position = decoder::position(program);
    lower.position = position.and_then(|name| Some((name.to_owned(), *lower.values.get(name)?)));
    lower.declare_states()?;
    lower.nodes()?;
    let outputs = lower.all_outputs()?;
    Ok(lower.into_builder().finish(&outputs)?)
}
