//! Places buffers with known lifetimes in one arena.

use super::{ALIGNMENT, Slot};

/// Memory that is needed from one step to another, both included.
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
pub enum Packing {
    /// As they come to life.
    ByBirth,
    /// The largest first.
    BySize,
}

/// Bytes of an arena and the place of every buffer in it.
pub(super) struct Packed {
    pub(super) bytes: usize,
    pub(super) slots: Vec<Slot>,
}

/// First-fit: every buffer goes to the lowest gap between those that live at the same time and were placed before.
pub(super) fn pack(buffers: &[Lifetime], packing: Packing) -> Packed {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    if packing == Packing::BySize {
        order.sort_by_key(|i| std::cmp::Reverse(buffers[*i].size()));
    }
    let mut bytes = 0;
    let mut slots = vec![Slot { offset: 0, len: 0 }; buffers.len()];
    // Placed buffers by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
    for i in order {
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
    Packed { bytes, slots }
}

/// The largest sum of sizes alive at once: no arena can be smaller.
pub(super) fn lower_bound(buffers: &[Lifetime]) -> usize {
    // What is alive grows only where a buffer begins.
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
            for packing in [Packing::ByBirth, Packing::BySize] {
                let packed = pack(&buffers, packing);
                prop_assert!(packed.bytes >= lower_bound(&buffers));
                for (i, a) in buffers.iter().enumerate() {
                    prop_assert!(packed.slots[i].offset.is_multiple_of(ALIGNMENT));
                    prop_assert!(packed.slots[i].offset + a.size() <= packed.bytes);
                    for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                        let (x, y) = (packed.slots[i].offset, packed.slots[j].offset);
                        prop_assert!(!a.overlaps(b) || x + a.size() <= y || y + b.size() <= x);
                    }
                }
            }
        }
    }
}
