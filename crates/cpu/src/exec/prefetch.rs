//! Which memory every memory-bound call of a tape prefetches for the next one.

use super::call::Call;
use super::fusion::{FusedEpilogue, product};
use super::tape_call::{Location, NextReads, TapeCall};
use crate::kernels::matmul::is_memory_bound;
use crate::kernels::matmul::quantised;

/// Records on every memory-bound group what the next such group reads, so that it is prefetched meanwhile. The last
/// group prefetches for the first: the next step replays the same tape.
pub(super) fn plan_prefetches(calls: &mut [TapeCall], locations: &[Location], threads: usize) {
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
            let op = product(&entry.call).filter(|op| is_memory_bound(op.m))?;
            Some((op, address(entry)?))
        };
        let parts: Option<Vec<_>> = products.iter().map(part).collect();
        parts.map(|parts| quantised::prefetch_spans(&parts, gated, threads))
    };
    let mut reads = Vec::new();
    let mut i = 0;
    while i < calls.len() {
        let group = calls[i].group;
        let products = &calls[i + usize::from(group.has_prologue)..][..group.products];
        let gated = matches!(group.epilogue, FusedEpilogue::Gate(..));
        if let Some(spans) = weights(products, gated) {
            reads.push((i, NextReads::Weights(spans)));
        } else if let Call::CachedAttention(op) = &products[0].call
            && is_memory_bound(op.tokens)
        {
            reads.push((i, NextReads::Attention(i + usize::from(group.has_prologue))));
        }
        i += group.len();
    }
    let at: Vec<usize> = reads.iter().map(|(i, _)| *i).collect();
    for (k, (_, next)) in reads.into_iter().enumerate() {
        let previous = at[(k + at.len() - 1) % at.len()];
        calls[previous].prefetch = Some(next);
    }
}
