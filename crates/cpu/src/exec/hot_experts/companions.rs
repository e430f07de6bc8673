//! `Companions`: which experts the next layer is likely to use, learned from the steps so far.

/// How often each expert of the next layer was used in the same step as each expert of a layer.
///
/// Only steps in which a layer uses few experts count and are predicted: a prompt uses nearly all.
pub(super) struct Companions {
    /// Experts of the next layer.
    next: usize,
    /// A row of counts for each expert of the layer.
    counts: Box<[u8]>,
}

impl Companions {
    pub(super) fn new(count: usize, next: usize) -> Companions {
        Companions {
            next,
            counts: vec![0; count * next].into(),
        }
    }

    /// Bytes of the counts of layers with these numbers of experts, the first of which follows the last one.
    pub(super) fn bytes(counts: &[usize]) -> usize {
        let next = counts.iter().cycle().skip(1);
        counts.iter().zip(next).map(|(own, next)| own * next).sum()
    }

    /// Learns that a step used these experts of the layer and those of the next layer.
    pub(super) fn learn(&mut self, used: &[u32], next: &[u32]) {
        for expert in used {
            let start = *expert as usize * self.next;
            let row = &mut self.counts[start..start + self.next];
            if next.iter().any(|index| row[*index as usize] == u8::MAX) {
                row.iter_mut().for_each(|count| *count /= 2);
            }
            next.iter().for_each(|index| row[*index as usize] += 1);
        }
    }

    /// Of the experts of the next layer that are `absent`, those that were used most with these experts: `limit` at most, the most
    /// frequent first.
    pub(super) fn likely(
        &self,
        used: &[u32],
        limit: usize,
        absent: &dyn Fn(u32) -> bool,
    ) -> Vec<u32> {
        let score = |index: usize| {
            let count = |expert: &u32| u32::from(self.counts[*expert as usize * self.next + index]);
            used.iter().map(count).sum::<u32>()
        };
        let candidates = (0..self.next).filter(|index| absent(*index as u32));
        let scores = candidates.map(|index| (score(index), index as u32));
        let mut scores: Vec<(u32, u32)> = scores.filter(|(score, _)| *score > 0).collect();
        scores.sort_unstable_by_key(|(score, index)| (std::cmp::Reverse(*score), *index));
        scores.truncate(limit);
        scores.into_iter().map(|(_, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_companions_are_likely() {
        let mut companions = Companions::new(4, 3);
        let likely = |companions: &Companions, used: &[u32], limit| {
            companions.likely(used, limit, &|_| true)
        };
        assert_eq!(likely(&companions, &[0, 1], 2), []);
        companions.learn(&[0, 1], &[2]);
        companions.learn(&[0, 3], &[1]);
        companions.learn(&[0, 1], &[2]);
        assert_eq!(likely(&companions, &[0], 2), [2, 1]);
        assert_eq!(likely(&companions, &[0], 1), [2]);
        assert_eq!(likely(&companions, &[3], 2), [1]);
        assert_eq!(companions.likely(&[0], 2, &|expert| expert != 2), [1]);
        assert_eq!(likely(&companions, &[2], 2), []);
        // Old counts are halved before they overflow.
        for _ in 0..1000 {
            companions.learn(&[1], &[0, 1]);
        }
        assert_eq!(likely(&companions, &[1], 3), [0, 1]);
        assert_eq!(Companions::bytes(&[4, 3, 2]), 12 + 6 + 8);
    }
}
