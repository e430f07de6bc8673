//! One sequence: plain decode and prefill, with full layers and sliding windows under one logical length.

use crate::plan::{Classes, LayerPlan};
use crate::{Bookkeeping, Cache, CacheConfig, KvError, KvErrorKind, RingPolicy, Run, StepPlan};

/// A single sequence.
///
/// In a *flat* layer the token at position `p` lies in cell `p`. A layer with a window is a *ring* when the
/// configuration says how far steps and rewinds may reach: it keeps `window − 1 + slack` rows, position `p` in cell
/// `p mod slots`. Otherwise it keeps all rows and narrows what is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contiguous {
    capacity: u32,
    len: u32,
    /// One past the last position ever written since the last clear: what rings may have overwritten.
    high_water: u32,
    /// What lies before this belongs to a shared prefix and cannot be given up.
    base: u32,
    ring: Option<RingPolicy>,
    classes: Classes,
}

impl Contiguous {
    /// An empty cache for these layers.
    pub fn new(config: &CacheConfig) -> Contiguous {
        Contiguous::behind(0, config)
    }

    /// A cache whose first `base` tokens are a shared prefix.
    pub(crate) fn behind(base: u32, config: &CacheConfig) -> Contiguous {
        let classes = Classes::new(config.layers.iter().map(|l| l.window));
        let ring = config
            .ring
            .filter(|_| classes.windows.iter().any(Option::is_some));
        Contiguous {
            capacity: config.capacity,
            len: base,
            high_water: base,
            base,
            ring,
            classes,
        }
    }

    /// The shortest length that `rewind` can go back to.
    pub fn rewind_floor(&self) -> u32 {
        let ring_floor = |(window, ring): (u32, RingPolicy)| {
            if self.high_water <= ring.slots(window) {
                0
            } else {
                self.high_water - ring.slack()
            }
        };
        self.rings()
            .map(ring_floor)
            .max()
            .unwrap_or(0)
            .max(self.base)
    }

    /// Most tokens in one step.
    pub fn max_step(&self) -> u32 {
        self.ring.map_or(u32::MAX, |ring| ring.slack())
    }

    fn rings(&self) -> impl Iterator<Item = (u32, RingPolicy)> + '_ {
        let ring = self.ring;
        self.classes
            .windows
            .iter()
            .filter_map(move |window| window.zip(ring))
    }

    fn check(&self, positions: &[i32]) -> Result<(), KvError> {
        if positions.is_empty() {
            return Err(KvErrorKind::EmptyStep.into());
        }
        let needed = self.len as u64 + positions.len() as u64;
        if needed > self.capacity as u64 {
            return Err(KvErrorKind::Full {
                needed,
                capacity: self.capacity,
            }
            .into());
        }
        if positions.len() as u64 > self.max_step() as u64 {
            return Err(KvErrorKind::StepTooLong {
                tokens: positions.len(),
                most: self.max_step(),
            }
            .into());
        }
        for (index, (&found, expected)) in positions.iter().zip(self.len..).enumerate() {
            if i64::from(found) != i64::from(expected) {
                return Err(KvErrorKind::Position {
                    index,
                    found: found.into(),
                    expected,
                }
                .into());
            }
        }
        Ok(())
    }

    fn plan_class(&self, window: Option<u32>, tokens: u32, plan: &mut LayerPlan) {
        let end = self.len + tokens;
        plan.visible.clear();
        plan.writes.clear();
        let list = plan.visible.open_list();
        match window.zip(self.ring) {
            None => {
                plan.visible.push_run(Run {
                    position: 0,
                    cell: 0,
                    len: end,
                });
                plan.writes.extend(self.len..end);
                plan.cells = end;
            }
            Some((window, ring)) => {
                let slots = ring.slots(window);
                let mut position = (self.len + 1).saturating_sub(window);
                while position < end {
                    let cell = position % slots;
                    let len = (slots - cell).min(end - position);
                    plan.visible.push_run(Run {
                        position,
                        cell,
                        len,
                    });
                    position += len;
                }
                plan.writes.extend((self.len..end).map(|p| p % slots));
                plan.cells = end.min(slots);
            }
        }
        for seen in self.len + 1..=end {
            let first = window.map_or(0, |w| seen.saturating_sub(w));
            plan.visible.push_query(list, first..seen);
        }
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
        (self.len, self.high_water) = (self.base, self.base);
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

impl Bookkeeping for Contiguous {
    fn plan(&self, positions: &[i32], plan: &mut StepPlan) -> Result<(), KvError> {
        self.check(positions)?;
        let tokens = positions.len() as u32;
        plan.reset(tokens, &self.classes);
        for (class, window) in plan.classes.iter_mut().zip(&self.classes.windows) {
            self.plan_class(*window, tokens, class);
        }
        Ok(())
    }

    fn commit(&mut self, plan: &StepPlan) {
        self.len += plan.tokens;
        self.high_water = self.high_water.max(self.len);
    }

    fn abort(&mut self, plan: Option<&StepPlan>) {
        // The failed step may have written its rows, over the oldest ones of a ring.
        if let Some(plan) = plan {
            self.high_water = self.high_water.max(self.len + plan.tokens);
        }
    }
}

#[cfg(test)]
mod tests;
