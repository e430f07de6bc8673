//! Measures the calls of a tape.

use super::call::Call;
use crate::kernels::attention::cached::CachedAttention;
use backend::{ExpertUse, NodeProfile};
use graph::{Bindings, Graph, Node};
use kv::{KvStorage, LayerPlan};
use std::time::Duration;

/// A measurement of nodes that were run together.
pub(crate) fn measurement(
    graph: &Graph,
    nodes: &[&Node],
    time: Duration,
    work: WorkEstimate,
) -> NodeProfile {
    let labels = nodes.iter().map(|node| label(graph.node_name(node)));
    NodeProfile {
        op: nodes[0].op.name(),
        label: labels.collect::<Vec<_>>().join(" + "),
        runs: nodes.len() as u64,
        time,
        bytes: work.bytes,
        macs: work.macs,
        is_f32: work.floats,
        experts: work.experts,
    }
}

/// The name with `*` for every number of its own: `blk.3.attn_q` and `blk.4.attn_q` are one kind.
fn label(name: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts = name
        .split('.')
        .map(|part| if number(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// The bytes and multiply-accumulates that a call needs at least.
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkEstimate {
    pub(crate) bytes: u64,
    pub(crate) macs: u64,
    /// Whether the multiplications are f32.
    pub(crate) floats: bool,
    /// Uses of experts, if only some of them are in memory.
    pub(crate) experts: ExpertUse,
}

impl WorkEstimate {
    /// The estimate of a product: its weight, if it is a constant. Other calls read data that is in the cache.
    pub(crate) fn of(graph: &Graph, node: &Node, call: &Call) -> WorkEstimate {
        if let Call::Experts(op) = call {
            let (bytes, macs) = op.work();
            return WorkEstimate {
                bytes: bytes as u64,
                macs: macs as u64,
                floats: !op.is_quantised(),
                ..WorkEstimate::default()
            };
        }
        let [m, n, k] = match call {
            Call::HalfLinear(op, _) => [op.m, op.n, op.k],
            Call::QuantisedLinear(op, _) => [op.m, op.n, op.k],
            #[cfg(target_arch = "x86_64")]
            Call::AmxLinear(op, _) => [op.m, op.n, op.k],
            Call::MatMul(op) => [op.m * op.batch.len(), op.n, op.k],
            _ => return WorkEstimate::default(),
        };
        let weight = graph.tensor(node.inputs[1]);
        let bytes = weight.constant().and(weight.ty.bytes(&Bindings::default()));
        WorkEstimate {
            bytes: bytes.unwrap_or(0) as u64,
            macs: (m * n * k) as u64,
            floats: !matches!(call, Call::QuantisedLinear(..)),
            ..WorkEstimate::default()
        }
    }

    /// The estimate of an attention: every visible row is read once and multiplied with each query that sees it.
    pub(crate) fn of_attention(
        attend: &CachedAttention,
        plan: &LayerPlan,
        storage: [KvStorage; 2],
    ) -> WorkEstimate {
        let queries = plan.visible.queries().iter();
        let seen = queries.map(|query| query.len() as u64);
        let (all, most) = seen.fold((0, 0), |(all, most), n| (all + n, n.max(most)));
        let dims = (attend.key_dim + attend.value_dim) as u64;
        let [keys, values] = storage;
        let row = keys.row_bytes(attend.key_dim) + values.row_bytes(attend.value_dim);
        WorkEstimate {
            bytes: most * (attend.kv_heads * row) as u64,
            macs: all * attend.heads as u64 * dims,
            floats: true,
            ..WorkEstimate::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_a_label() {
        assert_eq!(label("blk.12.attn_q"), "blk.*.attn_q");
        assert_eq!(label("token_embd"), "token_embd");
        assert_eq!(label("linear_3"), "linear_3");
    }
}
