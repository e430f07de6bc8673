//! Which memory every memory-bound op of a tape prefetches for the next one.

use super::call::Call;
use super::tape_call::{Location, NextReads, TapeCall, TapeOp};
use crate::kernels::matmul::is_memory_bound;
use crate::kernels::matmul::quantised;
use graph::passes::FusedKind;

/// Records on every memory-bound op what the next such op reads, so that it is prefetched meanwhile. The last op prefetches
/// for the first: the next step replays the same tape.
pub(super) fn plan_prefetches(
    ops: &mut [TapeOp],
    calls: &[TapeCall],
    locations: &[Location],
    threads: usize,
) {
    let address = |entry: &TapeCall| match locations[entry.operands.start + 1] {
        Location::Fixed(p) => Some(p as usize),
        _ => None,
    };
    // The spans of the products' weights, if the products are memory-bound.
    let weights = |products: &[TapeCall], gated: bool| {
        if let [entry] = products
            && let Call::HalfLinear(op, _) = &entry.call
        {
            return is_memory_bound(op.m).then_some(op.prefetch_spans(address(entry)?, threads));
        }
        let part = |entry: &TapeCall| {
            let op = entry.call.quantised_product()?;
            let op = Some(op).filter(|op| is_memory_bound(op.m))?;
            Some((op, address(entry)?))
        };
        let parts: Option<Vec<_>> = products.iter().map(part).collect();
        parts.map(|parts| quantised::prefetch_spans(&parts, gated, threads))
    };
    let mut reads = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let (products, gated) = match &op.kind {
            FusedKind::Product(product) => (product.products.len(), product.gate.is_some()),
            _ => (1, false),
        };
        let first = op.calls.start + op.prologue_len();
        if let Some(spans) = weights(&calls[first..first + products], gated) {
            reads.push((i, NextReads::Weights(spans)));
        } else if let Call::CachedAttention(attention) = &calls[first].call
            && is_memory_bound(attention.tokens)
        {
            reads.push((i, NextReads::Attention(first)));
        }
    }
    let at: Vec<usize> = reads.iter().map(|(i, _)| *i).collect();
    for (k, (_, next)) in reads.into_iter().enumerate() {
        let previous = at[(k + at.len() - 1) % at.len()];
        ops[previous].prefetch = Some(next);
    }
}
