//! Builds the graph of an MTP head: the decoder layer behind a model's last one, over pairs of a token and a state of the model.
//!
//! ```text
//! graph forward(tokens: i32[T], hidden: f32[T, width], position: i32[T], rows: i32[R])
//!     -> (logits: f32[R, vocabulary], next: f32[R, width])
//! ```
//!
//! `hidden` is the model's normalised last state of the token before each of `tokens`. `next` is the head's own normalised state,
//! and takes the place of the model's for the token that follows.

use base::DType;
use graph::ops::{Concat, GatherRows};
use graph::{Graph, GraphBuilder};

use super::build::{StepInputs, TransformerBuilder};
use super::check::check;
use super::{NormPlacement, TransformerSpec, Weight};
use crate::error::ImportError;

/// Builds `forward`: `spec` has the head's layer alone, which is block `block` of the file.
///
/// Head, table and last norm are the model's where the block has none of its own.
pub(crate) fn build_mtp(
    spec: &TransformerSpec,
    block: usize,
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<Graph, ImportError> {
    check(spec)?;
    let [layer] = &spec.layers[..] else {
        unreachable!("an MTP head is one layer");
    };
    if spec.norm_places == NormPlacement::Parallel || layer.attention().is_none() {
        return Err(ImportError::unsupported("an MTP head of such layers"));
    }
    let width = spec.hidden_size;
    let mut graph = GraphBuilder::new("forward");
    let step = graph.symbol("T");
    let wanted = graph.symbol("R");
    let tokens = graph.input("tokens", DType::I32, [step]);
    let hidden = graph.input("hidden", DType::F32, [step, width.into()]);
    let position = graph.input("position", DType::I32, [step]);
    let rows = graph.input("rows", DType::I32, [wanted]);
    let inputs = StepInputs {
        step,
        position,
        third: rows,
    };
    let mut head = TransformerBuilder::new(spec, lookup, graph, inputs);
    let prefix = format!("blk.{block}.");
    let part = |name: &str| format!("{prefix}nextn.{name}");

    let own_table = head.optional_vocabulary_matrix(&part("embed_tokens.weight"))?;
    let table = match own_table {
        Some(table) => table,
        None => head.embedding_table()?,
    };
    let embedded = head.node(&part("embed_tokens"), GatherRows, &[table, tokens])?;
    let token = head.norm(&part("enorm"), embedded)?;
    let state = head.norm(&part("hnorm"), hidden)?;
    let pair = head.node(&part("pair"), Concat { axis: 1 }, &[token, state])?;
    let projection = head.projection(&part("eh_proj"), width)?;
    let mixed = head.linear(projection, pair, false)?;
    let mixed = head.mixing_half(&prefix, 0, layer, mixed)?;
    // Only the wanted rows go on.
    let mixed = head.node("wanted", GatherRows, &[mixed, rows])?;
    let last = head.feed_forward_half(&prefix, layer, mixed)?;
    let own_norm = part("shared_head_norm");
    let next = match head.weights.optional(&format!("{own_norm}.weight")) {
        Some(_) => head.norm(&own_norm, last)?,
        None => head.norm("output_norm", last)?,
    };
    let own_head = head.optional_vocabulary_matrix(&part("shared_head_head.weight"))?;
    let output = match own_head {
        Some(own) => Some(own),
        None => head.optional_vocabulary_matrix("output.weight")?,
    };
    // A model without a head has its embedding table in the head's place, also where the block has a table of its own.
    let output = match (output, own_table) {
        (Some(output), _) => output,
        (None, None) => table,
        (None, Some(_)) => head.embedding_table()?,
    };
    let logits = head.logits(output, next)?;
    Ok(head.graph.finish(&[logits, next])?)
}
