//! First-fit placement of buffers with known lifetimes in one arena.

use std::cmp::Reverse;

/// Alignment of every offset in bytes: a cache line, so that vector loads never straddle lines.
pub const ALIGNMENT: usize = 64;

/// A range of the arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First byte.
    pub offset: usize,
    /// Bytes in use, before rounding up.
    pub len: usize,
}

/// A buffer with its lifetime: first and last step, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) len: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Lifetime {
    fn size(&self) -> usize {
        self.len.next_multiple_of(ALIGNMENT)
    }

    fn overlaps(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The order in which buffers are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementOrder {
    /// By first use.
    ByFirstUse,
    /// Largest first.
    BySize,
    /// Buffers alive at the memory peak first, the largest of them first.
    ByPeak,
    /// The best order so far, with the buffers at the top of the arena moved to the front.
    Refined,
}

/// Size of an arena and the offset of every buffer in it.
pub(super) struct Placement {
    pub(super) bytes: usize,
    pub(super) slots: Vec<Slot>,
}

/// Tries several orders and returns the smallest arena, with the size of each attempt. Stops when the lower bound is
/// reached.
pub(super) fn best_placement(
    buffers: &[Lifetime],
    bound: usize,
) -> (Placement, Vec<(PlacementOrder, usize)>) {
    let mut sequence = order(buffers, PlacementOrder::ByFirstUse);
    let mut best = place_first_fit(buffers, &sequence);
    let mut attempts = vec![(PlacementOrder::ByFirstUse, best.bytes)];
    for next_order in [PlacementOrder::BySize, PlacementOrder::ByPeak] {
        if best.bytes == bound {
            return (best, attempts);
        }
        let other = order(buffers, next_order);
        let placement = place_first_fit(buffers, &other);
        attempts.push((next_order, placement.bytes));
        if placement.bytes < best.bytes {
            (best, sequence) = (placement, other);
        }
    }
    let mut slots = best.slots.clone();
    let mut bytes = best.bytes;
    for _ in 0..MAX_REFINEMENTS {
        if best.bytes == bound {
            break;
        }
        // Stable sort: buffers that end at the top of the arena come first, the others keep their order.
        sequence.sort_by_key(|i| slots[*i].offset + buffers[*i].size() != bytes);
        let placement = place_first_fit(buffers, &sequence);
        attempts.push((PlacementOrder::Refined, placement.bytes));
        (slots, bytes) = (placement.slots.clone(), placement.bytes);
        if placement.bytes < best.bytes {
            best = placement;
        }
    }
    (best, attempts)
}

/// Limit on refinements of an order.
const MAX_REFINEMENTS: usize = 8;

fn order(buffers: &[Lifetime], next_order: PlacementOrder) -> Vec<usize> {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    let size = |i: usize| Reverse(buffers[i].size());
    match next_order {
        PlacementOrder::ByFirstUse | PlacementOrder::Refined => {}
        PlacementOrder::BySize => order.sort_by_key(|i| size(*i)),
        PlacementOrder::ByPeak => {
            let peak = peak_bytes(buffers);
            order.sort_by_key(|i| (Reverse(peak[*i]), size(*i)));
        }
    }
    order
}

/// For each buffer, the most bytes alive at any step of its lifetime.
fn peak_bytes(buffers: &[Lifetime]) -> Vec<usize> {
    let alive = |step: usize| -> usize {
        let at = |b: &&Lifetime| b.first <= step && step <= b.last;
        buffers.iter().filter(at).map(Lifetime::size).sum()
    };
    // The live bytes only grow at a buffer's first step.
    let mut steps: Vec<usize> = buffers.iter().map(|b| b.first).collect();
    steps.dedup();
    let totals: Vec<(usize, usize)> = steps.into_iter().map(|s| (s, alive(s))).collect();
    let most = |b: &Lifetime| {
        let during = totals
            .iter()
            .filter(|(step, _)| b.first <= *step && *step <= b.last);
        during.map(|(_, total)| *total).max().unwrap_or(0)
    };
    buffers.iter().map(most).collect()
}

/// First-fit: every buffer goes to the lowest gap between already placed buffers with an overlapping lifetime.
fn place_first_fit(buffers: &[Lifetime], order: &[usize]) -> Placement {
    let mut bytes = 0;
    let mut slots = vec![Slot { offset: 0, len: 0 }; buffers.len()];
    // Placed buffers by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
    for &i in order {
        let buffer = &buffers[i];
        let mut offset = 0;
        for other in &placed {
            if !buffers[*other].overlaps(buffer) {
                continue;
            }
            let start = slots[*other].offset;
            if start >= offset + buffer.size() {
                break;
            }
            offset = offset.max(start + buffers[*other].size());
        }
        slots[i] = Slot {
            offset,
            len: buffer.len,
        };
        bytes = bytes.max(offset + buffer.size());
        let at = placed.partition_point(|other| slots[*other].offset <= offset);
        placed.insert(at, i);
    }
    Placement { bytes, slots }
}

/// Largest sum of sizes alive at once, a lower bound of the arena.
pub(super) fn lower_bound(buffers: &[Lifetime]) -> usize {
    // The live bytes only grow at a buffer's first step.
    let mut ends: Vec<(usize, usize)> = buffers.iter().map(|b| (b.last, b.size())).collect();
    ends.sort_unstable();
    let mut starts: Vec<&Lifetime> = buffers.iter().collect();
    starts.sort_by_key(|b| b.first);
    let (mut live, mut most, mut ended) = (0, 0, 0);
    for buffer in starts {
        while ends[ended].0 < buffer.first {
            live -= ends[ended].1;
            ended += 1;
        }
        live += buffer.size();
        most = most.max(live);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_alive_overlaps(parts in prop::collection::vec((1usize..500, 0usize..30, 0usize..8), 1..60)) {
            let mut buffers: Vec<Lifetime> = parts
                .iter()
                .map(|&(len, first, lasts)| Lifetime { len, first, last: first + lasts })
                .collect();
            buffers.sort_by_key(|b| b.first);
            let naive = (0..40).map(|step| {
                let live = buffers.iter().filter(|b| (b.first..=b.last).contains(&step));
                live.map(Lifetime::size).sum::<usize>()
            });
            prop_assert_eq!(lower_bound(&buffers), naive.max().unwrap());
            let (best, _) = best_placement(&buffers, lower_bound(&buffers));
            let plain = [PlacementOrder::ByFirstUse, PlacementOrder::BySize, PlacementOrder::ByPeak];
            let plain = plain.map(|next_order| place_first_fit(&buffers, &order(&buffers, next_order)));
            prop_assert!(plain.iter().all(|placement| best.bytes <= placement.bytes));
            for placement in plain.iter().chain([&best]) {
                prop_assert!(placement.bytes >= lower_bound(&buffers));
                for (i, a) in buffers.iter().enumerate() {
                    prop_assert!(placement.slots[i].offset.is_multiple_of(ALIGNMENT));
                    prop_assert!(placement.slots[i].offset + a.size() <= placement.bytes);
                    for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                        let (x, y) = (placement.slots[i].offset, placement.slots[j].offset);
                        prop_assert!(!a.overlaps(b) || x + a.size() <= y || y + b.size() <= x);
                    }
                }
            }
        }
    }
}
