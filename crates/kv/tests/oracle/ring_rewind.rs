//! The rewinds that a floor computed from the current length gets wrong, as the public ExecuTorch code has it.
//!
//! After a rewind the rows after the new length are still those of the longer past, and they lie where older positions
//! lay. The floor must therefore follow the high water: with the length it comes down again at each rewind, and two
//! rewinds in a row reach rows that are gone.

use crate::facts::config;
use kv::{Cache, CacheManager, Contiguous, RingPolicy, StepPlan};

/// A cache with one ring, and the position that each of its rows holds.
struct Ring {
    cache: Contiguous,
    window: u32,
    policy: RingPolicy,
    rows: Vec<u32>,
}

impl Ring {
    fn new(window: u32, policy: RingPolicy) -> Ring {
        Ring {
            cache: Contiguous::new(&config(64, &[Some((window, 0))], Some(policy))),
            window,
            policy,
            rows: vec![u32::MAX; policy.slots(window) as usize],
        }
    }

    fn decode_to(&mut self, len: u32) {
        let mut plan = StepPlan::default();
        for position in self.cache.len()..len {
            self.cache
                .plan_declared(&[position as i32], &mut plan)
                .unwrap();
            self.rows[plan.layer(0).writes[0] as usize] = position;
            self.cache.commit(&plan);
        }
    }

    /// Whether a token at position `len` would find a row of another position in its window.
    fn reads_stale(&self, len: u32) -> bool {
        (len.saturating_sub(self.window - 1)..len)
            .any(|p| self.rows[p as usize % self.rows.len()] != p)
    }

    /// The floor that follows the length.
    fn floor_of_length(&self) -> u32 {
        let len = self.cache.len();
        if len <= self.policy.slots(self.window) {
            0
        } else {
            len - self.policy.slack()
        }
    }
}

#[test]
fn a_second_rewind_reads_stale_rows_below_the_first_floor() {
    let policy = RingPolicy {
        max_step: 4,
        max_rewind: 3,
    };
    let mut ring = Ring::new(5, policy);
    ring.decode_to(12);
    assert_eq!(ring.cache.rewind_floor(), 8);
    ring.cache.rewind(8).unwrap();
    // Eight tokens fit in eight rows, so a floor computed from the length alone would allow any rewind; but rows 0 to 3
    // hold positions 8 to 11.
    assert_eq!(ring.floor_of_length(), 0);
    assert_eq!(ring.rows, [8, 9, 10, 11, 4, 5, 6, 7]);
    for to in 1..8 {
        assert!(ring.reads_stale(to), "a token at {to} misses a row");
        assert_eq!(
            ring.cache.rewind(to).unwrap_err().to_string(),
            format!("cannot rewind to {to}: the shortest possible length is 8")
        );
    }
    assert!(!ring.reads_stale(8));
}

#[test]
fn decoding_again_does_not_lower_the_floor() {
    let policy = RingPolicy {
        max_step: 4,
        max_rewind: 4,
    };
    let mut ring = Ring::new(3, policy);
    ring.decode_to(20);
    ring.cache.rewind(16).unwrap();
    ring.decode_to(18);
    // The floor of the length would be 14, and position 12 was overwritten by position 18 of the first past.
    assert_eq!(
        (ring.floor_of_length(), ring.cache.rewind_floor()),
        (14, 16)
    );
    assert!(ring.reads_stale(14) && ring.reads_stale(15));
    assert!(ring.cache.rewind(15).is_err());
    ring.cache.rewind(16).unwrap();
    assert!(!ring.reads_stale(16));
}

/// All pasts of two rewinds over small rings: what is refused is exactly what would read a stale row (but for the
/// beginning, which needs no row and which `clear` gives).
#[test]
fn the_floor_refuses_exactly_the_stale_rewinds() {
    let (mut refused, mut missed) = (0, 0);
    for (window, slack) in (2..6).flat_map(|w| (1..6).map(move |s| (w, s))) {
        let policy = RingPolicy {
            max_step: 1,
            max_rewind: slack,
        };
        for (first, back) in (1..20).flat_map(|f| (0..=slack).map(move |b| (f, b))) {
            for again in 0..4 {
                let mut ring = Ring::new(window, policy);
                ring.decode_to(first);
                if ring.cache.rewind(first.saturating_sub(back)).is_err() {
                    continue;
                }
                ring.decode_to(ring.cache.len() + again);
                for to in 1..=ring.cache.len() {
                    let stale = ring.reads_stale(to);
                    let error = ring.cache.clone().rewind(to).is_err();
                    assert_eq!(error, stale, "window {window}, slack {slack}, to {to}");
                    refused += u32::from(stale);
                    missed += u32::from(stale && to >= ring.floor_of_length());
                }
            }
        }
    }
    assert!(
        missed > 0 && missed < refused,
        "the floor of the length lets {missed} of {refused} stale rewinds pass"
    );
}
