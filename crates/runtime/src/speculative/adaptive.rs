//! Chooses the size of a tree by expected tokens per time: measured costs of forwards, and how often estimates came true.

use super::costs::VerifyCosts;
use super::tree_proposal::TreeProposal;

/// Whether a proposer that costs time has paid: the tokens that it added to rounds, against the tokens that the time it took
/// would have given without it.
#[derive(Clone, Debug)]
pub(super) struct Benefit {
    /// Running means over the rounds of this trial and those after it, if it passed.
    added: f64,
    spent: f64,
    rounds: usize,
    /// Rounds left in which it is not asked.
    pause: usize,
    next_pause: usize,
}

/// Rounds before a proposer is judged, at first and after a pause.
const TRIAL: usize = 4;
/// The first pause and the longest one, in rounds: each pause is twice as long as the one before it.
const FIRST_PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 512;
/// The weight of a round in the running means. Acceptance varies more than time does.
const ROUND_WEIGHT: f64 = 0.15;
/// Gains below this are within the error of the measurement.
const LEAST_GAIN: f64 = 1.03;

impl Benefit {
    pub(super) fn new() -> Benefit {
        Benefit {
            added: 0.0,
            spent: 0.0,
            rounds: 0,
            pause: 0,
            next_pause: FIRST_PAUSE,
        }
    }

    /// Whether to ask the proposer in this round.
    pub(super) fn asks(&mut self) -> bool {
        let asks = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        asks
    }

    /// Records a round in which the proposer was asked: the tokens it added, and the tokens that its time would have given.
    pub(super) fn record(&mut self, added: f64, spent: f64) {
        self.rounds += 1;
        let weight = (1.0 / self.rounds as f64).max(ROUND_WEIGHT);
        self.added += weight * (added - self.added);
        self.spent += weight * (spent - self.spent);
        if self.rounds < TRIAL {
            return;
        }
        if self.added >= LEAST_GAIN * self.spent {
            self.next_pause = FIRST_PAUSE;
            return;
        }
        self.pause = self.next_pause;
        self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        (self.added, self.spent, self.rounds) = (0.0, 0.0, 0);
    }
}

/// How often candidates with a given estimate were accepted.
#[derive(Clone, Debug)]
pub(super) struct Calibration {
    /// Accepted and tried candidates by estimate, with decay.
    buckets: [(f64, f64); BUCKETS],
}

const BUCKETS: usize = 10;
/// An estimate counts as this many tries.
const PRIOR_TRIES: f64 = 3.0;
/// Old tries lose this part of their weight with every new one.
const DECAY: f64 = 0.97;

impl Calibration {
    pub(super) fn new() -> Calibration {
        Calibration {
            buckets: [(0.0, 0.0); BUCKETS],
        }
    }

    fn bucket(estimate: f32) -> usize {
        ((estimate * BUCKETS as f32) as usize).min(BUCKETS - 1)
    }

    /// The estimate, corrected by what was seen.
    fn corrected(&self, estimate: f32) -> f32 {
        let (hits, tries) = self.buckets[Calibration::bucket(estimate)];
        let prior = f64::from(estimate) * PRIOR_TRIES;
        ((hits + prior) / (tries + PRIOR_TRIES)) as f32
    }

    /// Learns from a candidate whose parent was accepted.
    pub(super) fn learn(&mut self, estimate: f32, accepted: bool) {
        let (hits, tries) = &mut self.buckets[Calibration::bucket(estimate)];
        *hits = *hits * DECAY + f64::from(u8::from(accepted));
        *tries = *tries * DECAY + 1.0;
    }

    /// The corrected likelihood of every node of a tree.
    pub(super) fn likelihoods(&self, tree: &TreeProposal) -> Vec<f32> {
        let estimates = tree.probabilities().iter();
        let corrected: Vec<f32> = estimates.map(|p| self.corrected(*p)).collect();
        tree.cumulative(&corrected)
    }
}

/// The number of candidates that gives the most expected tokens per second, and this rate: the most likely nodes of a tree, or
/// none.
/// `spent` is the seconds that the proposal took, `others` the rows of other sequences in the same forward.
pub(super) fn best_size(
    likelihoods: &[f32],
    costs: &VerifyCosts,
    max: usize,
    spent: f64,
    others: usize,
) -> (usize, f64) {
    let mut sorted: Vec<f32> = likelihoods[1..].to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.truncate(max);
    let curve = costs.curve(others + sorted.len() + 1).split_off(others);
    let mut expected = 1.0 + others as f64;
    let mut best = (expected / (curve[0] + spent), 0);
    for (index, likelihood) in sorted.iter().enumerate() {
        expected += f64::from(*likelihood);
        let rate = expected / (curve[index + 1] + spent);
        // A gain of less than 3 % is within the error of the measurement.
        if rate > best.0 * 1.03 || (best.1 > 0 && rate > best.0) {
            best = (rate, index + 1);
        }
    }
    (best.1, best.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn costs(measured: &[(usize, u64)]) -> VerifyCosts {
        let costs = VerifyCosts::default();
        for (rows, millis) in measured {
            costs.record(*rows, Duration::from_millis(*millis));
        }
        costs
    }

    #[test]
    fn costs_between_sizes_are_interpolated() {
        let curve = costs(&[(1, 10), (5, 18), (9, 16)]).curve(12);
        let millis: Vec<i64> = curve.iter().map(|t| (t * 1e3).round() as i64).collect();
        assert_eq!(millis, [10, 12, 14, 16, 18, 18, 18, 18, 18, 18, 20, 21]);
    }

    #[test]
    fn the_size_follows_likelihoods_and_costs() {
        let cheap = costs(&[(1, 10), (9, 12)]);
        let dear = costs(&[(1, 10), (9, 90)]);
        let likely = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];
        assert_eq!(best_size(&likely, &cheap, 8, 0.0, 0).0, 8);
        assert_eq!(best_size(&likely, &cheap, 4, 0.0, 0).0, 4);
        assert_eq!(best_size(&likely, &dear, 8, 0.0, 0).0, 0);
        assert_eq!(
            best_size(&likely, &cheap, 8, 0.0, 8).0,
            0,
            "rows are dear from 9 on"
        );
        let unlikely = [1.0, 0.01, 0.001];
        assert_eq!(best_size(&unlikely, &cheap, 8, 0.0, 0).0, 0);
        assert_eq!(best_size(&[1.0], &cheap, 8, 0.0, 0).0, 0);
    }

    #[test]
    fn a_proposer_that_does_not_pay_is_asked_rarely() {
        let mut benefit = Benefit::new();
        let asked = (0..400).filter(|_| {
            let asks = benefit.asks();
            if asks {
                benefit.record(0.1, 0.4);
            }
            asks
        });
        // Four rounds at first, and after each pause of 16, 32, 64 and 128 rounds.
        assert_eq!(asked.count(), 20);
        // It pays from now on: after a few trials it is asked in every round.
        let asked = (0..2000).filter(|_| {
            let asks = benefit.asks();
            if asks {
                benefit.record(1.5, 0.4);
            }
            asks
        });
        assert!(asked.count() > 1000);
        assert!(benefit.asks());
    }

    #[test]
    fn a_trial_is_judged_by_its_own_rounds() {
        let mut benefit = Benefit::new();
        (0..TRIAL).for_each(|_| benefit.record(0.0, 100.0));
        (0..FIRST_PAUSE).for_each(|_| assert!(!benefit.asks()));
        for added in [0.0, 0.0, 2.0, 1.0] {
            assert!(benefit.asks());
            benefit.record(added, 0.5);
        }
        assert!(benefit.asks());
    }

    #[test]
    fn estimates_are_corrected_by_what_came_true() {
        let mut calibration = Calibration::new();
        assert!((calibration.corrected(0.95) - 0.95).abs() < 1e-6);
        (0..60).for_each(|_| calibration.learn(0.95, false));
        assert!(calibration.corrected(0.95) < 0.15);
        (0..60).for_each(|_| calibration.learn(0.95, true));
        assert!(calibration.corrected(0.95) > 0.8);
        assert!((calibration.corrected(0.5) - 0.5).abs() < 1e-6);
    }
}
