//! The ring layers of a cache of one sequence: which positions they hold, and in which cells.

use crate::plan::LayerClasses;
use crate::sequence_rows::first_restorable_position;
use crate::window::{LayerWindow, seen};
use crate::{CacheConfig, CellRun, KvError, KvErrorKind, PrefixCells, RingPolicy, SequenceRows};
use std::ops::Range;

/// The state of the rings of one sequence. A ring of `slots` rows stores position `p` in row `p mod slots`; positions
/// are counted from the end of the shared prefix, if there is one. The rows of sinks come before the ring, whose positions are counted
/// from their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingState {
    /// `None` if no layer is a ring.
    policy: Option<RingPolicy>,
    /// Length of the shared prefix.
    base: u32,
    /// The cells of the shared prefix in the layers with each window.
    shared: Vec<SharedCells>,
    /// One past the highest position written since the last clear. Rings may have overwritten the rows that are `slots`
    /// or more positions before it.
    high_water: u32,
}

/// The cells of a shared prefix in the layers with one window.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedCells {
    window: Option<LayerWindow>,
    runs: Vec<CellRun>,
    cells: u32,
}

impl RingState {
    /// Empty rings after a shared prefix, which may be empty.
    pub(crate) fn new(
        prefix: &PrefixCells,
        config: &CacheConfig,
        classes: &LayerClasses,
    ) -> RingState {
        let any = classes.windows.iter().any(Option::is_some);
        let shared = |(class, window): (usize, &Option<LayerWindow>)| {
            let (runs, cells) = prefix.of_class(classes, class);
            SharedCells {
                window: *window,
                runs: runs.to_vec(),
                cells,
            }
        };
        let classes = classes.windows.iter().enumerate();
        let shared = classes.filter(|_| !prefix.is_empty()).map(shared);
        RingState {
            policy: config.ring.filter(|_| any),
            base: prefix.len(),
            shared: shared.collect(),
            high_water: prefix.len(),
        }
    }

    /// Length of the shared prefix.
    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    /// The maximum number of tokens that may be written past the end of the sequence before a commit: the slack of the
    /// rings, or `u32::MAX` without rings.
    pub(crate) fn max_uncommitted(&self) -> u32 {
        self.policy.map_or(u32::MAX, |ring| ring.slack())
    }

    /// Returns `StepTooLong` if `tokens` exceeds [`max_uncommitted`](RingState::max_uncommitted).
    pub(crate) fn check(&self, tokens: usize) -> Result<(), KvError> {
        let max = self.max_uncommitted();
        match tokens as u64 > u64::from(max) {
            true => Err(KvErrorKind::StepTooLong { tokens, max }.into()),
            false => Ok(()),
        }
    }

    /// Records that positions before `end` have been written.
    pub(crate) fn mark_written(&mut self, end: u32) {
        self.high_water = self.high_water.max(end);
    }

    /// Records that the cache holds only the shared prefix.
    pub(crate) fn clear(&mut self) {
        self.high_water = self.base;
    }

    /// The shortest length that rings with these windows can be rewound to.
    pub(crate) fn floor(&self, classes: &LayerClasses) -> u32 {
        let floor = |(window, ring): (LayerWindow, RingPolicy)| match self.high_water - self.base
            <= window.slots(ring)
        {
            true => self.base,
            false => self.high_water - ring.slack(),
        };
        let windows = classes.windows.iter().flatten();
        let rings = windows.filter_map(|window| Some((*window, self.policy?)));
        rings.map(floor).max().unwrap_or(self.base).max(self.base)
    }

    /// The first position that a layer with this window holds, but for sinks.
    pub(crate) fn first(&self, window: Option<LayerWindow>) -> u32 {
        let map = self.layer_map(window);
        match self.high_water - self.base <= map.slots.saturating_add(map.sinks) {
            true => map.shared.first().map_or(self.base, |run| run.position),
            false => self.high_water - map.slots,
        }
    }

    /// The location of the rows of the first `len` positions.
    pub(crate) fn held(&self, len: u32, classes: &LayerClasses) -> SequenceRows {
        let mut held = SequenceRows::new(len, classes.class_of.clone());
        for window in &classes.windows {
            let ring = self.layer_map(*window);
            let first = self.first(*window);
            let sinks = ring.runs(0..ring.sinks.min(first).min(len));
            held.push(sinks.chain(ring.runs(first..len)), ring.cells(len));
        }
        held
    }

    /// Makes the rings those of a restored sequence of `len` tokens, of which every layer has rows from its first position on.
    ///
    /// # Errors
    /// `PrefixReadOnly` after a shared prefix, `Full` if the tokens do not fit, and `SavedRows` if a layer lacks rows of its window.
    pub(crate) fn restore(
        &mut self,
        len: u32,
        capacity: u32,
        first: &[u32],
        classes: &LayerClasses,
    ) -> Result<(), KvError> {
        if self.base() > 0 {
            let tokens = self.base();
            return Err(KvErrorKind::PrefixReadOnly { tokens }.into());
        }
        if len > capacity {
            let needed = len.into();
            return Err(KvErrorKind::Full { needed, capacity }.into());
        }
        self.clear();
        self.mark_written(len);
        for (class, window) in classes.windows.iter().enumerate() {
            let kept = window.filter(|w| self.max_uncommitted() < u32::MAX && w.sinks == 0);
            let seen = kept.map_or(0, |w| w.latest(len).start);
            let layers = classes.class_of.iter().zip(first).enumerate();
            let of_class = layers.filter(|(_, (c, _))| usize::from(**c) == class);
            let first =
                first_restorable_position(of_class.map(|(i, (_, first))| (i, *first)), seen)?;
            self.mark_lost_before(first, *window);
        }
        Ok(())
    }

    /// Marks the rows before `first` as lost in layers with this window: raises `high_water` as if later tokens had
    /// overwritten them.
    fn mark_lost_before(&mut self, first: u32, window: Option<LayerWindow>) {
        if first > 0 {
            self.mark_written(first.saturating_add(self.layer_map(window).slots));
        }
    }

    /// The map from positions to cells of a layer with this window.
    pub(crate) fn layer_map(&self, window: Option<LayerWindow>) -> RingMap<'_> {
        let ring = window.zip(self.policy);
        let slots = ring.map(|(w, ring)| ring.slots(w.len));
        let shared = self.shared.iter().find(|shared| shared.window == window);
        RingMap {
            slots: slots.unwrap_or(u32::MAX),
            sinks: ring.map_or(0, |(w, _)| w.sinks),
            base: self.base,
            shared: shared.map_or(&[], |shared| &shared.runs),
            shared_cells: shared.map_or(0, |shared| shared.cells),
        }
    }
}

/// Maps the positions of one layer to cells: modulo `slots` in a ring, unchanged in a flat layer. Positions of the shared prefix are in
/// its cells, which come before the others.
#[derive(Clone, Copy)]
pub(crate) struct RingMap<'a> {
    /// Rows of the ring itself.
    slots: u32,
    /// Rows before it, which stay.
    sinks: u32,
    base: u32,
    shared: &'a [CellRun],
    shared_cells: u32,
}

impl<'a> RingMap<'a> {
    /// The cell of a position after the shared prefix.
    pub(crate) fn cell(&self, position: u32) -> u32 {
        let own = position - self.base;
        let row = match own.checked_sub(self.sinks) {
            Some(own) => self.sinks + own % self.slots,
            None => own,
        };
        self.shared_cells + row
    }

    /// Cells that must exist to store the positions before `end`.
    pub(crate) fn cells(&self, end: u32) -> u32 {
        self.shared_cells + (end - self.base).min(self.slots.saturating_add(self.sinks))
    }

    /// The runs of the positions before `end` that queries from `first` on see.
    pub(crate) fn seen_runs(
        self,
        window: Option<LayerWindow>,
        first: u32,
        end: u32,
    ) -> impl Iterator<Item = CellRun> + 'a {
        let (latest, sinks) = seen(window, first);
        self.runs(0..sinks).chain(self.runs(latest.start..end))
    }

    /// The runs of these positions, which the ring holds.
    pub(crate) fn runs(self, positions: Range<u32>) -> impl Iterator<Item = CellRun> + 'a {
        let mut position = positions.start.max(self.base);
        let (end, seen) = (positions.end, positions.clone());
        let own = std::iter::from_fn(move || {
            let own = position - self.base;
            let left = match own.checked_sub(self.sinks) {
                Some(own) => self.slots - own % self.slots,
                None => self.sinks - own,
            };
            let run = CellRun {
                position,
                cell: self.cell(position),
                len: left.min(end.saturating_sub(position)),
            };
            position += run.len;
            (run.len > 0).then_some(run)
        });
        let shared = self.shared.iter();
        shared.filter_map(move |run| run.clip(&seen)).chain(own)
    }
}
