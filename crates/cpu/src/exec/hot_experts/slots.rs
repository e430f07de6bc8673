//! How a budget is divided into slots, and which expert leaves its slot when another is needed.

use super::ExpertLayer;
use super::companions::Companions;

/// The slots of experts: experts of the same size share a class of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotPlan {
    pub(super) classes: Vec<SlotClass>,
    /// The class of each layer.
    pub(super) layers: Vec<usize>,
    /// Bytes of what is known of the experts' companions.
    companion_bytes: usize,
}

/// Slots of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotClass {
    pub(super) slot_bytes: usize,
    pub(super) slots: usize,
    /// The number of experts of this size.
    experts: usize,
    /// Experts of this size that one token of a layer uses.
    used: usize,
}

impl SlotPlan {
    /// A plan in which all experts have a slot.
    fn whole(layers: &[ExpertLayer]) -> SlotPlan {
        let mut classes: Vec<SlotClass> = Vec::new();
        let class = |layer: &ExpertLayer| {
            let slot_bytes = layer.slot_bytes();
            let same = classes.iter().position(|c| c.slot_bytes == slot_bytes);
            let at = same.unwrap_or_else(|| {
                classes.push(SlotClass {
                    slot_bytes,
                    slots: 0,
                    experts: 0,
                    used: 0,
                });
                classes.len() - 1
            });
            let class = &mut classes[at];
            class.experts += layer.count;
            class.slots += layer.count;
            class.used = class.used.max(layer.used.min(layer.count));
            at
        };
        let layers: Vec<usize> = layers.iter().map(class).collect();
        SlotPlan {
            classes,
            layers,
            companion_bytes: 0,
        }
    }

    /// Divides a budget so that all classes hold about the same fraction of their experts. `None` if there are no experts, or all of them
    /// fit.
    ///
    /// # Errors
    /// The smallest possible budget, if the budget is smaller.
    pub(crate) fn new(layers: &[ExpertLayer], budget: usize) -> Result<Option<SlotPlan>, usize> {
        let mut plan = SlotPlan::whole(layers);
        if plan.bytes() <= budget {
            return Ok(None);
        }
        let minimum = SlotPlan::minimum(layers);
        let mut rest = budget.checked_sub(minimum).ok_or(minimum)?;
        for class in &mut plan.classes {
            class.slots = class.used;
        }
        plan.companion_bytes = companion_bytes(layers);
        loop {
            let open = plan.classes.iter_mut();
            let open = open.filter(|c| c.slots < c.experts && c.slot_bytes <= rest);
            // The class with the smallest fraction, compared without divisions.
            let next = open.min_by(|a, b| (a.slots * b.experts).cmp(&(b.slots * a.experts)));
            let Some(class) = next else {
                return Ok(Some(plan));
            };
            class.slots += 1;
            rest -= class.slot_bytes;
        }
    }

    /// The smallest budget for these layers.
    pub(crate) fn minimum(layers: &[ExpertLayer]) -> usize {
        let classes = SlotPlan::whole(layers).classes;
        let slots: usize = classes.iter().map(|c| c.used * c.slot_bytes).sum();
        slots + companion_bytes(layers)
    }

    /// Bytes of slots for all experts of these layers.
    pub(crate) fn all_bytes(layers: &[ExpertLayer]) -> usize {
        SlotPlan::whole(layers).bytes()
    }

    /// Bytes of all slots and of what is known of the experts' companions.
    pub(crate) fn bytes(&self) -> usize {
        self.slot_bytes() + self.companion_bytes
    }

    /// Bytes of all slots.
    pub(super) fn slot_bytes(&self) -> usize {
        self.classes.iter().map(|c| c.slots * c.slot_bytes).sum()
    }
}

fn companion_bytes(layers: &[ExpertLayer]) -> usize {
    let counts: Vec<usize> = layers.iter().map(|layer| layer.count).collect();
    Companions::bytes(&counts)
}

/// An expert's uses in the last calls of its layer, a bit each, the newest lowest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    bits: u64,
}

impl History {
    /// The number of calls that a history remembers.
    const CALLS: u32 = u64::BITS;

    /// Begins a call in which the expert is not used yet.
    pub(super) fn begin(&mut self) {
        self.bits <<= 1;
    }

    pub(super) fn mark_used(&mut self) {
        self.bits |= 1;
    }

    /// The share of the remembered calls that used the expert, of this number of calls in all.
    pub(super) fn frequency(self, calls: u64) -> u32 {
        let calls = calls.clamp(1, u64::from(Self::CALLS)) as u32;
        self.bits.count_ones() * 1000 / calls
    }
}

/// How much an expert in a slot is worth keeping; the least goes first.
///
/// The expert with the lowest frequency goes first. Of experts with the same frequency, the most recently used goes first: layers run in
/// a cycle, so its layer is the last to run again. A prompt that uses every expert therefore keeps a part of them, instead of
/// replacing each just before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Worth {
    pub(super) frequency: u32,
    pub(super) last_use: std::cmp::Reverse<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::TensorId;

    fn layer(count: usize, used: usize, bytes: usize) -> ExpertLayer {
        ExpertLayer {
            node: 0,
            weights: [TensorId(0); 3],
            sizes: [bytes / 2, bytes / 4, bytes / 4],
            count,
            used,
        }
    }

    #[test]
    fn classes_get_the_same_fraction_of_their_experts() {
        let layers = [layer(32, 4, 1024), layer(32, 4, 2048), layer(32, 4, 1024)];
        let all = SlotPlan::all_bytes(&layers);
        assert_eq!(all, 64 * 1024 + 32 * 2048);
        let minimum = SlotPlan::minimum(&layers);
        assert_eq!(minimum, 4 * 1024 + 4 * 2048 + 3 * 32 * 32);
        assert_eq!(SlotPlan::new(&layers, all), Ok(None));
        assert_eq!(SlotPlan::new(&layers, minimum - 1), Err(minimum));
        let half = SlotPlan::new(&layers, all / 2 + 3 * 32 * 32)
            .unwrap()
            .unwrap();
        assert_eq!(
            half.classes.iter().map(|c| c.slots).collect::<Vec<_>>(),
            [32, 16]
        );
        assert_eq!(half.layers, [0, 1, 0]);
        for budget in (minimum..all).step_by(777) {
            let plan = SlotPlan::new(&layers, budget).unwrap().unwrap();
            assert!(plan.bytes() <= budget && budget - plan.bytes() < 2048);
        }
    }

    #[test]
    fn the_rare_go_before_the_frequent_and_the_newest_of_equals() {
        let mut histories = [History::default(); 2];
        for call in 0..100 {
            histories.iter_mut().for_each(History::begin);
            histories[0].mark_used();
            if call % 4 == 0 {
                histories[1].mark_used();
            }
        }
        assert_eq!(histories[0].frequency(100), 1000);
        assert_eq!(histories[1].frequency(100), 250);
        let worth = |frequency, last| Worth {
            frequency,
            last_use: std::cmp::Reverse(last),
        };
        assert!(worth(250, 9) < worth(1000, 3));
        assert!(worth(250, 9) < worth(250, 3));
    }
}
