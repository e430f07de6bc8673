//! `Contiguous`: a cache of one sequence, for prefill and plain decode. Full layers and ring layers share one length.

use crate::plan::{LayerClasses, LayerPlan};
use crate::ring::RingState;
use crate::step::{StepToken, no_candidates};
use crate::window::{LayerWindow, seen};
use crate::{
    Cache, CacheConfig, CacheManager, KvError, KvErrorKind, PrefixCells, Prefixed, Restorable,
    SavedPositions, SeqId, SequenceRows, Step, StepPlan,
};

/// A cache of one sequence.
///
/// In a *flat* layer, position `p` is stored in cell `p`. If the configuration has a
/// [`RingPolicy`](crate::RingPolicy), a layer with a window is a *ring*: it has `slots = window − 1 + slack` rows and
/// stores position `p` in cell `p mod slots`. Without one, it keeps all rows and only the queries are narrowed. After a
/// shared prefix, the private rows of a ring layer form a second ring, stored after the frozen rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contiguous {
    capacity: u32,
    len: u32,
    rings: RingState,
    classes: LayerClasses,
}

impl Contiguous {
    /// An empty cache for these layers.
    pub fn new(config: &CacheConfig) -> Contiguous {
        Contiguous::on(config, &PrefixCells::default())
    }

    /// A cache whose first tokens are a shared, read-only prefix, which may be empty.
    pub(crate) fn on(config: &CacheConfig, prefix: &PrefixCells) -> Contiguous {
        let classes = LayerClasses::new(&config.layers);
        Contiguous {
            capacity: config.capacity,
            len: prefix.len(),
            rings: RingState::new(prefix, config, &classes),
            classes,
        }
    }

    /// The shortest length that `rewind` accepts.
    pub fn rewind_floor(&self) -> u32 {
        self.rings.floor(&self.classes)
    }

    /// The maximum number of tokens in one step.
    pub fn max_step(&self) -> u32 {
        self.rings.max_uncommitted()
    }

    fn check(&self, tokens: &[StepToken]) -> Result<(), KvError> {
        no_candidates(tokens)?;
        let needed = self.len as u64 + tokens.len() as u64;
        if needed > self.capacity as u64 {
            return Err(KvErrorKind::Full {
                needed,
                capacity: self.capacity,
            }
            .into());
        }
        self.rings.check(tokens.len())?;
        for (index, (token, expected)) in tokens.iter().zip(self.len..).enumerate() {
            check_only_sequence(token.seq)?;
            token.check_position(index, expected)?;
        }
        Ok(())
    }

    fn plan_class(&self, window: Option<LayerWindow>, tokens: u32, plan: &mut LayerPlan) {
        let end = self.len + tokens;
        plan.visible.clear();
        plan.writes.clear();
        let list = plan.visible.open_list();
        let ring = self.rings.layer_map(window);
        ring.seen_runs(window, self.len, end)
            .for_each(|run| plan.visible.push_run(run));
        plan.writes.extend((self.len..end).map(|p| ring.cell(p)));
        plan.cells = ring.cells(end);
        for position in self.len..end {
            plan.visible.push_query(list, seen(window, position));
        }
    }
}

impl Prefixed for Contiguous {
    const KIND: &'static str = "contiguous";

    fn after_prefix(config: &CacheConfig, prefix: &PrefixCells) -> Result<Contiguous, KvError> {
        let cache = Contiguous::on(config, prefix);
        cache.classes.check_no_states(Self::KIND)?;
        cache.classes.check_no_sinks("put after a prefix")?;
        Ok(cache)
    }
}

impl Cache for Contiguous {
    fn can_extend(&self, n: u32) -> bool {
        n <= self.capacity - self.len
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn len(&self) -> u32 {
        self.len
    }

    fn clear(&mut self) {
        self.len = self.rings.base();
        self.rings.clear();
    }

    fn rewind(&mut self, len: u32) -> Result<(), KvError> {
        let floor = self.rewind_floor();
        if len > self.len {
            return Err(KvErrorKind::RewindForward {
                to: len,
                len: self.len,
            }
            .into());
        }
        if len < floor {
            return Err(KvErrorKind::RewindTooFar { to: len, floor }.into());
        }
        self.len = len;
        Ok(())
    }
}

impl Restorable for Contiguous {
    fn sequence_rows(&self, seq: SeqId) -> Result<SequenceRows, KvError> {
        check_only_sequence(seq)?;
        Ok(self.rings.held(self.len, &self.classes))
    }

    fn plan_restore(
        &self,
        seq: SeqId,
        len: u32,
        saved: SavedPositions<'_>,
    ) -> Result<(Contiguous, SequenceRows), KvError> {
        check_only_sequence(seq)?;
        let mut after = self.clone();
        after
            .rings
            .restore(len, self.capacity, saved.first, &self.classes)?;
        after.len = len;
        let held = after.sequence_rows(seq)?;
        Ok((after, held))
    }

    fn forget(&mut self, _: SeqId) {
        self.clear();
    }
}

/// Returns an error for any sequence but 0, the only one.
pub(crate) fn check_only_sequence(seq: SeqId) -> Result<(), KvError> {
    match seq {
        0 => Ok(()),
        _ => Err(KvErrorKind::UnknownSequence { seq, max: 1 }.into()),
    }
}

impl CacheManager for Contiguous {
    fn declared(&self, positions: &[i32], step: &mut Step) -> Result<(), KvError> {
        step.at(positions);
        Ok(())
    }

    fn is_declared(&self) -> bool {
        false
    }

    fn plan(&self, step: &Step, plan: &mut StepPlan) -> Result<(), KvError> {
        self.classes.check_no_states("contiguous")?;
        let tokens = step.real()?;
        self.check(tokens)?;
        plan.reset(step, &self.classes);
        for (class, window) in plan.classes.iter_mut().zip(&self.classes.windows) {
            self.plan_class(*window, tokens.len() as u32, class);
            (tokens.len()..step.len()).for_each(|_| class.push_padding());
        }
        Ok(())
    }

    fn commit(&mut self, plan: &StepPlan) {
        self.len += plan.step.real_len() as u32;
        self.rings.mark_written(self.len);
    }

    fn abort(&mut self, plan: Option<&StepPlan>) {
        // The failed step may have overwritten the oldest rows of the rings.
        if let Some(plan) = plan {
            self.rings
                .mark_written(self.len + plan.step.real_len() as u32);
        }
    }
}

#[cfg(test)]
mod tests;
