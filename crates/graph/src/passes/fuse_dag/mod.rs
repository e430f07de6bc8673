//! Recognises activations, gates, norms, rotary embeddings, softmax and soft caps that a model decomposed into arithmetic.

mod activation;
mod norm;
mod product;
mod rope;
mod softmax;

use super::rewrite::rewrite;
use crate::GraphError;
use crate::graph::Graph;
use crate::ops::Op;

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| match &node.op {
        Op::Binary(_) | Op::Scale(_) => activation::gelu(view, node)
            .or_else(|| activation::silu(view, node))
            .or_else(|| activation::hard_swish(view, node))
            .or_else(|| activation::gated(view, node))
            .or_else(|| norm::layer_norm(view, node))
            .or_else(|| norm::rms_norm(view, node))
            .or_else(|| norm::with_weight(view, node))
            .or_else(|| norm::with_bias(view, node))
            .or_else(|| softmax::softmax(view, node))
            .or_else(|| softmax::soft_cap(view, node))
            .or_else(|| rope::rope(view, node)),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
