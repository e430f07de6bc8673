//! `LayerWindow`: the positions that the queries of a layer see.

use crate::RingPolicy;
use std::ops::Range;

/// The window of a layer: a query sees the last `len` positions, its own included, and the first `sinks` of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerWindow {
    pub(crate) len: u32,
    pub(crate) sinks: u32,
}

impl LayerWindow {
    /// The latest positions that the query at `position` sees.
    pub(crate) fn latest(self, position: u32) -> Range<u32> {
        (position + 1).saturating_sub(self.len)..position + 1
    }

    /// The rows of a sequence's ring, those of its sinks included.
    pub(crate) fn slots(self, ring: RingPolicy) -> u32 {
        ring.slots(self.len).saturating_add(self.sinks)
    }
}

/// The positions of a layer that the query at `position` sees: the latest ones, and the number of the first ones besides.
pub(crate) fn seen(window: Option<LayerWindow>, position: u32) -> (Range<u32>, u32) {
    let Some(window) = window else {
        return (0..position + 1, 0);
    };
    let latest = window.latest(position);
    match latest.start <= window.sinks {
        true => (0..latest.end, 0),
        false => (latest, window.sinks),
    }
}
