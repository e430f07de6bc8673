//! Which memory every memory-bound call of a tape prefetches for the next one.

use super::call::Call;
use super::fusion::{Then, product};
use super::tape::{Entry, Location};
use crate::kernels::matmul::quantised;
use crate::kernels::matmul::reads_once;
use crate::prefetch::Stretches;

/// What threads bring near while a call runs, because the next that reads much will read it.
pub(super) enum Next {
    /// Stretches of weights, of every thread.
    Weights(Vec<Stretches>),
    /// What this call of the tape sees of its cache.
    Attention(usize),
}

/// Tells every group of products, and every attention, what the next one reads, and the last what the first one does: the
/// next step is like this.
pub(super) fn look_ahead(calls: &mut [Entry], locations: &[Location], threads: usize) {
    let address = |entry: &Entry| match locations[entry.operands.start + 1] {
        Location::Fixed(p) => Some(p as usize),
        _ => None,
    };
    // What the threads read of some products' weights, where these are read once.
    let weights = |products: &[Entry], gated: bool| {
        if let [entry] = products
            && let Call::Linear(op, _) = &entry.call
        {
            return reads_once(op.m).then_some(op.reading(address(entry)?, threads));
        }
        let part = |entry| {
            let op = product(entry).filter(|op| reads_once(op.m))?;
            Some((op, address(entry)?))
        };
        let parts: Option<Vec<_>> = products.iter().map(part).collect();
        parts.map(|parts| quantised::reading(&parts, gated, threads))
    };
    let mut reading = Vec::new();
    let mut i = 0;
    while i < calls.len() {
        let group = calls[i].group;
        let together = &calls[i + usize::from(group.before)..][..group.together];
        let gated = matches!(group.then, Then::Gate(..));
        if let Some(stretches) = weights(together, gated) {
            reading.push((i, Next::Weights(stretches)));
        } else if let Call::Attend(op) = &together[0].call
            && reads_once(op.tokens)
        {
            reading.push((i, Next::Attention(i + usize::from(group.before))));
        }
        i += group.len();
    }
    let at: Vec<usize> = reading.iter().map(|(i, _)| *i).collect();
    for (k, (_, next)) in reading.into_iter().enumerate() {
        let before = at[(k + at.len() - 1) % at.len()];
        calls[before].next = Some(next);
    }
}
