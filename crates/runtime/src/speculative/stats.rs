//! `SpecStats`: counts and times of speculation in one generation.

use std::time::Duration;

/// Counts and times of speculation in one generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecStats {
    /// Forwards of the target.
    pub rounds: usize,
    /// Candidates that were verified.
    pub drafted: usize,
    /// Candidates that were accepted.
    pub accepted: usize,
    /// Tokens that the rounds gave, bonus tokens included.
    pub tokens: usize,
    /// By the depth of candidates, from 1 on.
    pub by_depth: Vec<DepthStats>,
    /// Time spent on proposals.
    pub propose_time: Duration,
    /// Time spent on verifying forwards.
    pub verify_time: Duration,
    /// The rounds, if they were traced.
    pub trace: Vec<RoundTrace>,
}

/// Acceptance at one depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepthStats {
    /// Candidates at this depth.
    pub drafted: usize,
    /// Rounds that accepted one.
    pub accepted: usize,
}

/// One round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTrace {
    /// What proposed the tree; `None` if nothing was asked.
    pub proposer: Option<&'static str>,
    /// The tokens of the verified tree; the first is the root.
    pub tokens: Vec<u32>,
    /// Their parents.
    pub parents: Vec<Option<u32>>,
    /// The estimate of each that it is accepted if its parent is.
    pub probabilities: Vec<f32>,
    /// The accepted nodes, the root included.
    pub accepted: Vec<u32>,
    /// The token after them.
    pub bonus: u32,
    /// Time of the proposal.
    pub propose_time: Duration,
    /// Time of the forward.
    pub verify_time: Duration,
}

impl SpecStats {
    /// The mean number of tokens that a round gave, the bonus token included; `None` without rounds.
    pub fn mean_accepted_length(&self) -> Option<f64> {
        let known = self.rounds > 0;
        known.then(|| self.tokens as f64 / self.rounds as f64)
    }

    /// Adds what another generation did.
    pub fn add(&mut self, other: &SpecStats) {
        self.rounds += other.rounds;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.tokens += other.tokens;
        let depths = self.by_depth.len().max(other.by_depth.len());
        self.by_depth.resize(depths, DepthStats::default());
        for (own, other) in self.by_depth.iter_mut().zip(&other.by_depth) {
            own.drafted += other.drafted;
            own.accepted += other.accepted;
        }
        self.propose_time += other.propose_time;
        self.verify_time += other.verify_time;
        self.trace.extend_from_slice(&other.trace);
    }
}
