//! Which prefixes left memory, and why.

use base::named_enum;
use std::collections::VecDeque;
use std::time::Instant;

/// The number of evictions that are listed one by one. All are counted.
const MAX_LISTED: usize = 32;

named_enum! {
    /// Why a prefix left memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EvictionReason {
        /// A prompt or a step needed its cells.
        Room = "room",
        /// As many prefixes are retained as there may be.
        Count = "count",
    }
}

/// A prefix that left memory.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// Its tokens.
    pub tokens: usize,
    /// Why it left.
    pub reason: EvictionReason,
    /// The rung that still has it; `None` if it will be computed again.
    pub kept_on: Option<String>,
    /// When it left.
    pub at: Instant,
}

/// All evictions of an engine by reason, and the last ones.
#[derive(Clone, Debug, Default)]
pub struct EvictionLog {
    counts: [u64; EvictionReason::ALL.len()],
    last: VecDeque<Eviction>,
}

impl EvictionLog {
    pub(super) fn add(&mut self, eviction: Eviction) {
        self.counts[eviction.reason as usize] += 1;
        if self.last.len() == MAX_LISTED {
            self.last.pop_front();
        }
        self.last.push_back(eviction);
    }

    /// The number of evictions.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The number of evictions of a reason.
    pub fn count(&self, reason: EvictionReason) -> u64 {
        self.counts[reason as usize]
    }

    /// The last evictions, the latest one first.
    pub fn last(&self) -> impl Iterator<Item = &Eviction> {
        self.last.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_evictions_count_and_the_last_ones_are_listed() {
        let mut log = EvictionLog::default();
        for tokens in 0..MAX_LISTED + 3 {
            let reason = match tokens % 2 {
                0 => EvictionReason::Room,
                _ => EvictionReason::Count,
            };
            log.add(Eviction {
                tokens,
                reason,
                kept_on: None,
                at: Instant::now(),
            });
        }
        assert_eq!(log.total(), MAX_LISTED as u64 + 3);
        assert_eq!(log.count(EvictionReason::Count), MAX_LISTED as u64 / 2 + 1);
        let listed: Vec<usize> = log.last().map(|eviction| eviction.tokens).collect();
        assert_eq!(listed.len(), MAX_LISTED);
        assert_eq!((listed[0], listed[MAX_LISTED - 1]), (MAX_LISTED + 2, 3));
    }
}
