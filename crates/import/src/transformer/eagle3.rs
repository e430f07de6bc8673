//! Builds the graphs of an Eagle3 head: one decoder layer over pairs of a token's embedding and a feature.
//!
//! ```text
//! graph fuse(features: f32[T, taps · width]) -> hidden: f32[T, width]
//! graph forward(embedded: f32[T, width], hidden: f32[T, width], position: i32[T], rows: i32[R])
//!     -> (logits: f32[R, draft vocabulary], next: f32[R, width])
//! ```
//!
//! `next` takes the place of the feature for the token that follows.

use base::DType;
use graph::ops::{Concat, GatherRows, Linear};
use graph::{Graph, GraphBuilder};

use super::build::{StepInputs, TransformerBuilder};
use super::check::check;
use super::weights::{self, Weights};
use super::{TransformerSpec, Weight};
use crate::error::ImportError;

/// A head: a transformer of one layer, whose vocabulary is the reduced one, and the number of tapped layers.
pub(crate) struct Eagle3Spec {
    pub(crate) transformer: TransformerSpec,
    pub(crate) taps: usize,
    pub(crate) target_hidden_size: usize,
    /// The residual stream begins with the normalised feature, not with the feature itself.
    pub(crate) norm_before_residual: bool,
}

/// Builds `forward` and `fuse`.
pub(crate) fn build_eagle3(
    spec: &Eagle3Spec,
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<[Graph; 2], ImportError> {
    let Eagle3Spec {
        transformer,
        taps,
        target_hidden_size,
        norm_before_residual,
    } = spec;
    check(transformer)?;
    let width = transformer.hidden_size;

    let mut fuse = GraphBuilder::new("fuse");
    let step = fuse.symbol("T");
    let wide = taps * target_hidden_size;
    let features = fuse.input("features", DType::F32, [step, wide.into()]);
    let weight = Weights::new(lookup).required("fc.weight")?;
    let weight = weights::matrix(&mut fuse, "fc.weight", weight, [width, wide])?;
    let fused = fuse.node("fc", Linear::default(), &[features, weight])?;
    let fuse = fuse.finish(&[fused])?;

    let mut graph = GraphBuilder::new("forward");
    let step = graph.symbol("T");
    let wanted = graph.symbol("R");
    let embedded = graph.input("embedded", DType::F32, [step, width.into()]);
    let hidden = graph.input("hidden", DType::F32, [step, width.into()]);
    let position = graph.input("position", DType::I32, [step]);
    let rows = graph.input("rows", DType::I32, [wanted]);
    let inputs = StepInputs {
        step,
        position,
        third: rows,
    };
    let mut head = TransformerBuilder::new(transformer, lookup, graph, inputs);
    let token = head.norm("blk.0.attn_norm", embedded)?;
    let feature = head.norm("blk.0.attn_norm_2", hidden)?;
    let pair = head.node("blk.0.pair", Concat { axis: 1 }, &[token, feature])?;
    let layer = &transformer.layers[0];
    let attention = layer.attention().expect("a draft head attends");
    let attended = head.attention("blk.0.", 0, (layer, attention), pair)?;
    let residual = if *norm_before_residual {
        feature
    } else {
        hidden
    };
    let mixed = head.add("blk.0.attn_residual", residual, attended)?;
    // Only the wanted rows go on.
    let mixed = head.node("wanted", GatherRows, &[mixed, rows])?;
    let normed = head.norm("blk.0.ffn_norm", mixed)?;
    let inner = head.mlp("blk.0.", layer.mlp_size, normed)?;
    let next = head.add("blk.0.ffn_residual", mixed, inner)?;
    let normed = head.norm("output_norm", next)?;
    let output = head.projection("output", transformer.vocab_size)?;
    let logits = head.linear(output, normed, false)?;
    Ok([head.graph.finish(&[logits, next])?, fuse])
}
