//! Recognises masks that only hide the future, however they are made, and turns them into a flag of attention.

mod meaning;

use super::fuse_chain::HIDDEN;
use super::rewrite::{Patch, PatchBuilder, View, rewrite};
use crate::GraphError;
use crate::graph::{Graph, Node};
use crate::ops::{Attention, Op};
use meaning::{Affine, Meaning, Truth};

pub(super) fn run(graph: &mut Graph) -> Result<bool, GraphError> {
    rewrite(graph, |view, node| match &node.op {
        Op::Attention(op) => absorbed(view, node, op),
        _ => None,
    })
}

/// Attention without a mask that hides nothing, or nothing but the future.
fn absorbed(view: &View<'_>, node: &Node, op: &Attention) -> Option<Patch> {
    let &[q, k, v, mask] = &node.inputs[..] else {
        return None;
    };
    let seen = match Meaning::of(view, mask)? {
        Meaning::Truth(truth) => truth,
        Meaning::Level { truth, yes, no } if yes == 0.0 && no <= HIDDEN => truth,
        Meaning::Level { truth, yes, no } if no == 0.0 && yes <= HIDDEN => truth.not(),
        Meaning::Level { yes, no, .. } if yes == 0.0 && no == 0.0 => Truth::Always,
        _ => return None,
    };
    let causal = match seen {
        Truth::Always => op.causal,
        // Column − row ≤ 0.
        Truth::AtMostZero(affine) if affine == Affine::axis(0, 1) + Affine::axis(1, -1) => true,
        _ => return None,
    };
    PatchBuilder::new(view, node).replace(
        Attention {
            causal,
            ..op.clone()
        },
        &[q, k, v],
    )
}
