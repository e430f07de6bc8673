//! What the rings of a cache's windowed layers keep of one sequence.

use crate::plan::LayerClasses;
use crate::{CacheConfig, KvError, KvErrorKind, RingPolicy, Run};
use std::ops::Range;

/// How far back the rings of one sequence reach. A ring of `slots` rows has position `p` in row `p mod slots`, counted
/// from the end of a shared prefix where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingState {
    /// `None` when no layer is a ring.
    policy: Option<RingPolicy>,
    /// Positions before this lie in a shared prefix.
    base: u32,
    /// One past the last position ever written since the last clear: what rings may have overwritten.
    high_water: u32,
}

impl RingState {
    /// The rings behind a shared prefix of `base` tokens.
    pub(crate) fn new(base: u32, config: &CacheConfig, classes: &LayerClasses) -> RingState {
        let any = classes.windows.iter().any(Option::is_some);
        RingState {
            policy: config.ring.filter(|_| any),
            base,
            high_water: base,
        }
    }

    /// Most tokens that may be written behind the sequence before it is known which of them stay.
    pub(crate) fn max_uncommitted(&self) -> u32 {
        self.policy.map_or(u32::MAX, |ring| ring.slack())
    }

    /// Refuses more tokens than that.
    pub(crate) fn check(&self, tokens: usize) -> Result<(), KvError> {
        let max = self.max_uncommitted();
        match tokens as u64 > u64::from(max) {
            true => Err(KvErrorKind::StepTooLong { tokens, max }.into()),
            false => Ok(()),
        }
    }

    /// Positions before `end` have been written.
    pub(crate) fn mark_written(&mut self, end: u32) {
        self.high_water = self.high_water.max(end);
    }

    /// Nothing but the shared prefix is held.
    pub(crate) fn clear(&mut self) {
        self.high_water = self.base;
    }

    /// The shortest length that the rings of these windows can go back to.
    pub(crate) fn floor(&self, classes: &LayerClasses) -> u32 {
        let floor = |(window, ring): (u32, RingPolicy)| match self.high_water - self.base
            <= ring.slots(window)
        {
            true => self.base,
            false => self.high_water - ring.slack(),
        };
        let windows = classes.windows.iter().flatten();
        let rings = windows.filter_map(|window| Some((*window, self.policy?)));
        rings.map(floor).max().unwrap_or(self.base).max(self.base)
    }

    /// The first position that a layer with this window holds.
    pub(crate) fn first(&self, window: Option<u32>) -> u32 {
        let slots = self.layer_map(window).slots;
        match self.high_water - self.base <= slots {
            true => self.base.saturating_sub(slots),
            false => self.high_water - slots,
        }
    }

    /// Layers with this window hold nothing before `first`, as though what lay there had been overwritten.
    pub(crate) fn mark_lost_before(&mut self, first: u32, window: Option<u32>) {
        if first > 0 {
            self.mark_written(first.saturating_add(self.layer_map(window).slots));
        }
    }

    /// Where a layer with this window has its rows.
    pub(crate) fn layer_map(&self, window: Option<u32>) -> RingMap {
        let slots = window.zip(self.policy).map(|(w, ring)| ring.slots(w));
        RingMap {
            slots: slots.unwrap_or(u32::MAX),
            base: self.base,
        }
    }
}

/// Where one layer has its rows.
#[derive(Clone, Copy)]
pub(crate) struct RingMap {
    slots: u32,
    base: u32,
}

impl RingMap {
    /// Rows of the shared prefix, which come before all others.
    fn shared(&self) -> u32 {
        self.base.min(self.slots)
    }

    /// The row of a position.
    pub(crate) fn cell(&self, position: u32) -> u32 {
        match position.checked_sub(self.base) {
            Some(own) => self.shared() + own % self.slots,
            None => position % self.slots,
        }
    }

    /// Rows that must exist for positions before `end`.
    pub(crate) fn cells(&self, end: u32) -> u32 {
        self.shared() + (end - self.base).min(self.slots)
    }

    /// The runs of these positions.
    pub(crate) fn runs(self, positions: Range<u32>) -> impl Iterator<Item = Run> {
        let mut position = positions.start;
        std::iter::from_fn(move || {
            let (from, end) = match position < self.base {
                true => (0, positions.end.min(self.base)),
                false => (self.base, positions.end),
            };
            let left = self.slots - (position - from) % self.slots;
            let run = Run {
                position,
                cell: self.cell(position),
                len: left.min(end.saturating_sub(position)),
            };
            position += run.len;
            (run.len > 0).then_some(run)
        })
    }
}
