//! Builds the graph of an assistant: a draft head of a few layers that have queries of their own, and the target's keys and values.
//!
//! ```text
//! graph forward(embedded: f32[T, target], hidden: f32[T, target], rows_kv: f32[T, ..], query_position: i32[T], position: i32[T],
//!               rows: i32[R]) -> (logits: f32[R, vocabulary], next: f32[R, target])
//! ```
//!
//! A row of a step has the embedding of a token, the target's normalised state before that token, and the keys and values that the target
//! computed with this state, at `position`; for each cache its keys, then its values. Queries are rotated to `query_position`. `next`
//! takes the place of the state for the token that follows.

use base::DType;
use graph::ops::{Concat, GatherRows, Reshape, Scale};
use graph::{Graph, GraphBuilder};

use super::build::{StepInputs, TransformerBuilder};
use super::check::check;
use super::{TransformerSpec, Weight};
use crate::error::ImportError;

/// Builds `forward`, for a target whose residual stream has this width; `caches` are those that the layers of `spec` name.
pub(crate) fn build_assistant(
    spec: &TransformerSpec,
    target_width: usize,
    caches: &[kv::LayerConfig],
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<Graph, ImportError> {
    check(spec)?;
    let widths = caches
        .iter()
        .flat_map(|c| [(c.kv_heads, c.key_dim), (c.kv_heads, c.value_dim)]);
    let widths: Vec<(usize, usize)> = widths.collect();
    let shared: usize = widths.iter().map(|(heads, dim)| heads * dim).sum();

    let mut graph = GraphBuilder::new("forward");
    let step = graph.symbol("T");
    let wanted = graph.symbol("R");
    let embedded = graph.input("embedded", DType::F32, [step, target_width.into()]);
    let hidden = graph.input("hidden", DType::F32, [step, target_width.into()]);
    let rows_kv = graph.input("rows_kv", DType::F32, [step, shared.into()]);
    let query_position = graph.input("query_position", DType::I32, [step]);
    let position = graph.input("position", DType::I32, [step]);
    let rows = graph.input("rows", DType::I32, [wanted]);
    let inputs = StepInputs {
        step,
        position,
        third: rows,
    };
    let mut head = TransformerBuilder::new(spec, lookup, graph, inputs);
    // The attention has its own copy: only rotations use this one.
    head.position = query_position;
    let mut start = 0;
    let mut parts = vec![];
    for (i, (heads, dim)) in widths.into_iter().enumerate() {
        let name = format!("rows_kv.{i}");
        let part = head.slice(&name, rows_kv, 1, start..start + heads * dim)?;
        let shape = vec![step, heads.into(), dim.into()];
        parts.push(head.node(&format!("{name}.heads"), Reshape { shape }, &[part])?);
        start += heads * dim;
    }
    head.given = parts.chunks_exact(2).map(|kv| [kv[0], kv[1]]).collect();

    let factor = (target_width as f64).sqrt() as f32;
    let token = head.node("embedded.scaled", Scale { factor }, &[embedded])?;
    let pair = head.node("pair", Concat { axis: 1 }, &[token, hidden])?;
    let before = head.projection("nextn.pre_projection", spec.hidden_size)?;
    let mut x = head.linear(before, pair, false)?;
    let last = spec.layers.len().saturating_sub(1);
    for (i, layer) in spec.layers.iter().enumerate() {
        let prefix = format!("blk.{i}.");
        x = head.mixing_half(&prefix, i, layer, x)?;
        if i == last {
            // Only the wanted rows go on.
            x = head.node("wanted", GatherRows, &[x, rows])?;
        }
        x = head.feed_forward_half(&prefix, layer, x)?;
        x = head.scale_layer(i, x)?;
    }
    let normed = head.norm("output_norm", x)?;
    let table = head.embedding_table()?;
    let logits = head.logits(table, normed)?;
    let after = head.projection("nextn.post_projection", target_width)?;
    let next = head.linear(after, normed, false)?;
    Ok(head.graph.finish(&[logits, next])?)
}
