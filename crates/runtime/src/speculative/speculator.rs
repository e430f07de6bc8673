//! `Speculator`: the speculation of one sequence, round by round.

use super::adaptive::{Benefit, Calibration, best_size};
use super::costs::VerifyCosts;
use super::drafter::{DraftSequence, Drafter};
use super::ngram::NgramProposer;
use super::options::{SpecOptions, SpecType};
use super::proposal::{FeatureRows, Proposal};
use super::stats::{DepthStats, RoundTrace, SpecStats};
use super::tree_proposal::{TreeProposal, VerifyResult};
use crate::{RuntimeError, RuntimeErrorKind};
use kv::SeqId;
use std::time::{Duration, Instant};

/// A proposer is free below this cost, in seconds.
const MIN_COST: f64 = 5e-4;
/// No further proposer is asked if one expects more accepted tokens than this.
const ENOUGH_TOKENS: f32 = 2.5;
/// A second child of a candidate is rarely chosen: it is proposed only if a row costs less than this part of a forward.
const MAX_TREE_ROW: f64 = 0.12;
/// The weight of a new measurement in a proposer's usual time.
const NEW_WEIGHT: f64 = 0.1;

/// The speculation of one sequence: its proposers, what they proposed, and how it went.
pub struct Speculator {
    options: SpecOptions,
    /// A draft is the last one.
    proposers: Vec<Source>,
    /// `None` verifies everything that is proposed.
    costs: Option<VerifyCosts>,
    /// The proposal of this round, before nodes were left out.
    proposed: TreeProposal,
    /// The tree that is verified.
    tree: TreeProposal,
    /// The proposer of this round's tree.
    active: Option<usize>,
    /// Expected tokens per second with that tree.
    rate: f64,
    /// The candidates that fit in this round, and the rows of other sequences in its forward.
    candidates: usize,
    others: usize,
    propose_time: Duration,
    stats: SpecStats,
}

/// A source of candidates.
enum Proposer {
    Ngram(NgramProposer),
    Draft(DraftSequence),
}

impl Proposer {
    /// The name in reports.
    fn name(&self) -> &'static str {
        match self {
            Proposer::Ngram(_) => SpecType::Ngram.name(),
            Proposer::Draft(draft) => draft.drafter().kind().name(),
        }
    }
}

/// The state of a sequence at the beginning of a round of speculation.
pub(crate) struct RoundInput<'a> {
    /// All tokens of the sequence; the last one is the root of the tree.
    pub(crate) history: &'a [u32],
    /// The maximum number of tokens of the tree, the root included.
    pub(crate) room: usize,
    /// The rows of other sequences in the forward.
    pub(crate) others: usize,
    /// The target's features of the tokens that it computed since the last proposal.
    pub(crate) features: Option<&'a FeatureRows>,
}

/// Proposes a tree for each sequence. Sequences that ask the same draft share its forwards: one for each level.
///
/// # Errors
/// Those of a draft's forward, for each sequence.
pub(crate) fn propose_trees(
    rounds: &mut [(&mut Speculator, RoundInput<'_>)],
) -> Vec<Result<(), RuntimeError>> {
    let mut results: Vec<_> = rounds.iter().map(|_| Ok(())).collect();
    let begun = rounds.iter_mut().enumerate();
    let mut asked: Vec<(usize, Proposal<'_>)> = begun
        .filter_map(|(index, (speculator, input))| Some((index, speculator.begin_round(input)?)))
        .collect();
    while let Some((first, _)) = asked.first() {
        let draft = |index: usize| rounds[index].0.draft().expect("it was asked");
        let drafter = draft(*first).drafter().clone();
        let same = |(index, _): &mut (usize, _)| draft(*index).is_of(&drafter);
        let together: Vec<(usize, Proposal<'_>)> = asked.extract_if(.., same).collect();
        let asked: Vec<(SeqId, &Proposal<'_>)> = together
            .iter()
            .map(|(index, proposal)| (draft(*index).seq(), proposal))
            .collect();
        let begun = Instant::now();
        let trees = drafter.propose(&asked);
        let time = begun.elapsed();
        for ((index, _), tree) in together.iter().zip(trees) {
            let speculator = &mut rounds[*index].0;
            speculator.propose_time += time;
            results[*index] = tree.map(|tree| {
                let draft = speculator.proposers.len() - 1;
                speculator.consider(draft, tree, time / together.len() as u32);
            });
        }
    }
    results
}

struct Source {
    proposer: Proposer,
    calibration: Calibration,
    benefit: Benefit,
    /// The number of proposals.
    asked: usize,
    /// Its usual time for a proposal, in seconds, and the usual depth of its trees.
    cost: f64,
    depth: f64,
    /// Whether it was asked in this round, and in the round before it.
    in_round: bool,
    followed: bool,
}

impl Source {
    /// Whether its time in this round is the usual one. The first proposal computes the prompt, and one after a pause computes
    /// what was generated in between.
    fn is_usual(&self) -> bool {
        self.in_round && self.followed
    }

    /// Records the time of a proposal.
    fn record_cost(&mut self, seconds: f64, depth: u32) {
        self.asked += 1;
        if self.asked <= 2 {
            (self.cost, self.depth) = (seconds, f64::from(depth));
        } else if self.is_usual() {
            let mean = |mean: f64, new: f64| mean + NEW_WEIGHT * (new - mean);
            self.cost = mean(self.cost, seconds.min(3.0 * self.cost));
            self.depth = mean(self.depth, depth.into());
        }
    }

    fn costs_time(&self) -> bool {
        self.cost > MIN_COST
    }
}

impl Speculator {
    /// The speculation of a new sequence.
    ///
    /// # Errors
    /// `InvalidOptions` if the options need a draft model and there is none.
    pub fn new(
        options: &SpecOptions,
        costs: &VerifyCosts,
        draft: Option<&Drafter>,
    ) -> Result<Speculator, RuntimeError> {
        let ngram = || Proposer::Ngram(NgramProposer::new(&options.prediction));
        let drafter = || {
            draft
                .map(|draft| draft.sequence().map(Proposer::Draft))
                .transpose()
        };
        let proposers = match options.kind {
            SpecType::Ngram => vec![ngram()],
            SpecType::Draft | SpecType::Eagle3 | SpecType::Mtp => {
                let wanted = match options.kind {
                    SpecType::Eagle3 => "an Eagle3 head",
                    SpecType::Mtp => "the model's own MTP head",
                    _ => "a draft model",
                };
                let missing = || {
                    let reason = format!("speculation with {wanted} needs one: name it");
                    RuntimeErrorKind::InvalidOptions(reason)
                };
                if draft.is_none_or(|draft| draft.kind() != options.kind) {
                    return Err(missing().into());
                }
                vec![drafter()?.ok_or_else(missing)?]
            }
            SpecType::Auto => [Some(ngram()), drafter()?].into_iter().flatten().collect(),
        };
        let source = |proposer| Source {
            proposer,
            calibration: Calibration::new(),
            benefit: Benefit::new(),
            asked: 0,
            cost: 0.0,
            depth: 0.0,
            in_round: false,
            followed: false,
        };
        Ok(Speculator {
            costs: (options.kind == SpecType::Auto).then(|| costs.clone()),
            options: options.clone(),
            proposers: proposers.into_iter().map(source).collect(),
            proposed: TreeProposal::new(0),
            tree: TreeProposal::new(0),
            active: None,
            rate: 0.0,
            candidates: 0,
            others: 0,
            propose_time: Duration::ZERO,
            stats: SpecStats::default(),
        })
    }

    /// The sequence of the draft, if there is one.
    fn draft(&self) -> Option<&DraftSequence> {
        match &self.proposers.last()?.proposer {
            Proposer::Draft(draft) => Some(draft),
            Proposer::Ngram(_) => None,
        }
    }

    /// Whether proposals need the target's features.
    pub(crate) fn needs_features(&self) -> bool {
        self.draft()
            .is_some_and(|draft| draft.drafter().needs_features())
    }

    /// The position of the first token whose features are still needed.
    pub(crate) fn features_from(&self) -> usize {
        self.draft()
            .map_or(usize::MAX, DraftSequence::features_from)
    }

    /// Begins a round, and asks the proposers that need no forward. Returns what the draft is asked, if it is.
    fn begin_round<'a>(&mut self, input: &RoundInput<'a>) -> Option<Proposal<'a>> {
        let started = Instant::now();
        let others = input.others;
        let curve = self.costs.as_ref().map(|costs| costs.curve(others + 5));
        // The seconds of a forward without candidates.
        let plain = curve.as_ref().map(|curve| curve[others]);
        let chain_only = curve.is_some_and(|curve| {
            curve[others + 4] - curve[others] > 4.0 * MAX_TREE_ROW * curve[others]
        });
        self.others = others;
        self.candidates = self
            .options
            .max_candidates
            .min(input.room.saturating_sub(1));
        let root = *input.history.last().expect("a sequence has a token");
        self.proposed = TreeProposal::new(root);
        self.tree = TreeProposal::new(root);
        (self.active, self.rate) = (None, 0.0);
        for source in &mut self.proposers {
            source.followed = std::mem::replace(&mut source.in_round, false);
        }
        let mut asked = None;
        for index in 0..self.proposers.len() {
            let source = &mut self.proposers[index];
            if self.candidates == 0 || (plain.is_some() && !source.benefit.asks()) {
                continue;
            }
            // A level whose best node is less likely than this costs more than the token it may give.
            let level = source.cost / source.depth.max(1.0);
            let proposal = Proposal {
                history: input.history,
                max_candidates: self.candidates,
                max_depth: self.options.max_depth.min(self.candidates),
                top_k: match chain_only && source.costs_time() {
                    true => 1,
                    false => self.options.top_k,
                },
                min_likelihood: plain.map_or(0.0, |plain| (level / plain) as f32),
                features: input.features,
            };
            let Proposer::Ngram(ngram) = &mut source.proposer else {
                asked = Some(proposal);
                break;
            };
            let begun = Instant::now();
            let tree = ngram.propose(&proposal);
            if self.consider(index, tree, begun.elapsed()) {
                break;
            }
        }
        self.propose_time = started.elapsed();
        asked
    }

    /// Takes the tree of a proposer, which took `time`, if it pays more than those before it. Returns whether no further
    /// proposer needs to be asked.
    fn consider(&mut self, index: usize, tree: TreeProposal, time: Duration) -> bool {
        let candidates = self.candidates;
        let source = &mut self.proposers[index];
        source.in_round = true;
        source.record_cost(time.as_secs_f64(), tree.max_depth());
        let (likelihoods, (size, rate)) = match &self.costs {
            None => {
                let likelihoods = tree.cumulative(tree.probabilities());
                (likelihoods, (candidates, 1.0))
            }
            Some(costs) => {
                let likelihoods = source.calibration.likelihoods(&tree);
                let spent = source.cost;
                let size = best_size(&likelihoods, costs, candidates, spent, self.others);
                (likelihoods, size)
            }
        };
        let max_depth = self.options.max_depth.min(candidates);
        let selected = tree.select(size, max_depth, &likelihoods);
        let pays = selected.len() > 1 && rate > self.rate;
        if pays || self.active.is_none() {
            self.active = Some(index);
            self.proposed = tree;
            self.tree = selected;
            self.rate = rate;
        }
        // A long repetition needs no second opinion.
        let expected: f32 = likelihoods[1..].iter().sum();
        pays && expected > ENOUGH_TOKENS
    }

    /// The tree that is verified in this round.
    pub(crate) fn tree(&self) -> &TreeProposal {
        &self.tree
    }

    /// Records a verified round, whose forward had `rows` rows for all sequences and took `time`.
    pub(crate) fn finish_round(&mut self, result: &VerifyResult, rows: usize, time: Duration) {
        if let Some(costs) = &self.costs {
            costs.record(rows, time);
            let candidates = self.tree.len() - 1;
            let others = rows.saturating_sub(candidates + 1);
            let curve = costs.curve(rows.max(1));
            let (plain, verified) = (curve[others.min(curve.len() - 1)], curve[curve.len() - 1]);
            // Tokens of all sequences per second without this speculation.
            let rate = (1 + others) as f64 / plain;
            for (index, source) in self.proposers.iter_mut().enumerate() {
                // A proposal that is free is made in every round, to learn whether it would have been accepted.
                if !source.is_usual() || !source.costs_time() {
                    continue;
                }
                let (added, extra) = match self.active == Some(index) {
                    true => (result.accepted.len() - 1, verified - plain),
                    false => (0, 0.0),
                };
                let spent = rate * (source.cost + extra);
                source.benefit.record(added as f64, spent);
            }
        }
        self.learn(result);
        let stats = &mut self.stats;
        stats.rounds += 1;
        stats.drafted += self.tree.len() - 1;
        stats.accepted += result.accepted.len() - 1;
        stats.tokens += result.accepted.len();
        let depths = self.tree.max_depth() as usize;
        if stats.by_depth.len() < depths {
            stats.by_depth.resize(depths, DepthStats::default());
        }
        for depth in &self.tree.depths()[1..] {
            stats.by_depth[*depth as usize - 1].drafted += 1;
        }
        for depth in 1..result.accepted.len() {
            stats.by_depth[depth - 1].accepted += 1;
        }
        stats.propose_time += self.propose_time;
        stats.verify_time += time;
        if self.options.trace {
            let active = self.active.map(|active| &self.proposers[active]);
            stats.trace.push(RoundTrace {
                proposer: active.map(|source| source.proposer.name()),
                tokens: self.tree.tokens().to_vec(),
                parents: self.tree.parents().to_vec(),
                probabilities: self.tree.probabilities().to_vec(),
                accepted: result.accepted.clone(),
                bonus: result.bonus,
                propose_time: self.propose_time,
                verify_time: time,
            });
        }
    }

    /// Learns which children of accepted nodes were chosen, also those that were left out of the verified tree.
    fn learn(&mut self, result: &VerifyResult) {
        let Some(active) = self.active else {
            return;
        };
        let source = &mut self.proposers[active];
        let chain = result.accepted[1..].iter();
        let chain = chain.map(|node| self.tree.tokens()[*node as usize]);
        let mut node = 0;
        for token in chain.chain([result.bonus]) {
            let mut chosen = None;
            for child in self.proposed.children(node) {
                let hit = self.proposed.tokens()[child as usize] == token;
                let estimate = self.proposed.probabilities()[child as usize];
                source.calibration.learn(estimate, hit);
                chosen = chosen.or(hit.then_some(child));
            }
            match chosen {
                Some(child) => node = child,
                None => break,
            }
        }
    }

    /// The last round, if rounds are traced.
    pub(crate) fn last_round(&self) -> Option<&RoundTrace> {
        self.stats.trace.last()
    }

    /// What speculation has done so far.
    pub fn stats(&self) -> &SpecStats {
        &self.stats
    }
}
