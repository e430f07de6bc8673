//! The forwards of a runner: tokens of any sequences and trees of candidates in one step.

use super::BatchRunner;
use super::candidates::{CandidateNode, Candidates};
use crate::RuntimeError;
use crate::speculative::TreeProposal;
use backend::{LogitsMode, RowOutputs};
use kv::{MAX_SEQUENCES, Role, SeqId, StepToken};

/// One token of a batched step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchToken {
    /// The sequence that it continues.
    pub seq: SeqId,
    /// The token id.
    pub id: u32,
    /// Whether the logits after it are computed and kept as the sequence's.
    pub logits: bool,
}

/// Where recurrent layers keep their states while tokens of a prompt are fed.
#[derive(Clone, Copy, Default)]
pub(crate) struct KeptStates<'a> {
    /// Lengths of the prompt, ascending.
    pub(crate) lengths: &'a [usize],
    /// Tokens of the prompt that were fed before.
    pub(crate) fed: usize,
}

impl KeptStates<'_> {
    /// The indices of the tokens after which states are kept, of `count` tokens.
    fn tokens(self, count: usize) -> impl Iterator<Item = usize> {
        let fed = self.fed;
        let inside = self
            .lengths
            .iter()
            .filter(move |n| **n > fed && **n <= fed + count);
        inside.map(move |length| length - fed - 1)
    }
}

/// The outputs of tokens that are fed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedOutputs {
    /// None.
    None,
    /// Those after the last token, which are kept as the sequence's.
    Last,
    /// Those after every token, until the next step ([`BatchRunner::step_rows`]); and the last ones as before.
    All,
}

/// What one sequence feeds in a forward. Its pending token is fed before its tokens, or is the root of its tree.
#[derive(Clone, Copy)]
pub(crate) enum Feed<'a> {
    /// The pending token, if there is one, and these tokens.
    Tokens {
        seq: SeqId,
        tokens: &'a [u32],
        outputs: FeedOutputs,
        kept_states: KeptStates<'a>,
    },
    /// A tree of candidates. They stay until a path of them is committed.
    Tree { seq: SeqId, tree: &'a TreeProposal },
}

impl Feed<'_> {
    fn seq(&self) -> SeqId {
        match self {
            Feed::Tokens { seq, .. } | Feed::Tree { seq, .. } => *seq,
        }
    }
}

impl BatchRunner {
    /// Runs one forward over tokens of any sequences. The pending token of a sequence is fed before its tokens.
    pub fn step(&mut self, tokens: &[BatchToken]) -> Result<(), RuntimeError> {
        self.step_wanted(tokens, &[], LogitsMode::Logits)
    }

    /// Runs one forward that feeds tokens and verifies a tree for each of these sequences. The candidates stay until a path
    /// of them is committed.
    pub fn step_trees(
        &mut self,
        tokens: &[BatchToken],
        trees: &[(SeqId, &TreeProposal)],
    ) -> Result<(), RuntimeError> {
        self.step_wanted(tokens, trees, LogitsMode::Logits)
    }

    /// Runs a step as [`step_trees`](BatchRunner::step_trees) does, and computes only the wanted outputs of its rows.
    pub fn step_wanted(
        &mut self,
        tokens: &[BatchToken],
        trees: &[(SeqId, &TreeProposal)],
        wanted: LogitsMode,
    ) -> Result<(), RuntimeError> {
        let sequences = tokens.iter().map(|token| token.seq);
        let sequences = sequences.chain(trees.iter().map(|(seq, _)| *seq));
        let pending = self.take_all_pending(sequences);
        if pending.is_empty() {
            return self.run_after(&pending, (tokens, &[]), trees, wanted);
        }
        let tokens = [&pending[..], tokens].concat();
        self.run_after(&pending, (&tokens, &[]), trees, wanted)
    }

    /// Runs one forward for these sequences, each of which occurs once. After an error, the sequences are as they were.
    pub(crate) fn forward(
        &mut self,
        parts: &[Feed<'_>],
        wanted: LogitsMode,
    ) -> Result<(), RuntimeError> {
        let mut tokens = vec![];
        let mut kept = vec![];
        let mut trees = vec![];
        let pending = self.take_all_pending(parts.iter().map(Feed::seq));
        for part in parts {
            match *part {
                Feed::Tree { seq, tree } => trees.push((seq, tree)),
                Feed::Tokens {
                    seq,
                    tokens: ids,
                    outputs,
                    kept_states,
                } => {
                    let is_pending = pending.iter().any(|token| token.seq == seq);
                    let first_id = tokens.len() + usize::from(is_pending);
                    let own = kept_states.tokens(ids.len());
                    kept.extend(own.map(|token| (first_id + token) as u32));
                    let first = pending.iter().filter(|token| token.seq == seq);
                    let ids = first.map(|token| token.id).chain(ids.iter().copied());
                    let token = |id| BatchToken {
                        seq,
                        id,
                        logits: outputs == FeedOutputs::All,
                    };
                    tokens.extend(ids.map(token));
                    if let Some(last) = tokens.last_mut().filter(|last| last.seq == seq) {
                        last.logits = outputs != FeedOutputs::None;
                    }
                }
            }
        }
        self.run_after(&pending, (&tokens, &kept), &trees, wanted)
    }

    /// The outputs after the tokens of a sequence in the last step that had them computed.
    pub(crate) fn step_rows(&self, seq: SeqId) -> impl ExactSizeIterator<Item = RowOutputs<'_>> {
        let own = (0..)
            .zip(&self.row_owners)
            .filter(move |(_, owner)| **owner == seq);
        let own: Vec<usize> = own.map(|(row, _)| row).collect();
        own.into_iter().map(|row| self.decoder.outputs.row(row))
    }

    /// Removes the pending tokens of sequences, for a step that feeds them.
    fn take_all_pending(&mut self, sequences: impl Iterator<Item = SeqId>) -> Vec<BatchToken> {
        let mut pending = vec![];
        for seq in sequences {
            let id = self.take_pending(seq);
            pending.extend(id.map(|id| BatchToken {
                seq,
                id,
                logits: false,
            }));
        }
        pending
    }

    /// Checks and runs tokens, with the pending ones that were taken among them, and trees. Recurrent layers keep their states after the
    /// tokens `kept`. After an error they are pending again.
    fn run_after(
        &mut self,
        pending: &[BatchToken],
        (tokens, kept): (&[BatchToken], &[u32]),
        trees: &[(SeqId, &TreeProposal)],
        wanted: LogitsMode,
    ) -> Result<(), RuntimeError> {
        let of_trees = trees.iter().flat_map(|(_, tree)| tree.tokens());
        let ids = tokens.iter().map(|token| token.id);
        let checked = self.decoder.check_ids(ids.chain(of_trees.copied()));
        let levels: Vec<_> = trees.iter().map(CandidateLevel::of_tree).collect();
        let ran = checked.and_then(|()| self.run((tokens, kept), &levels, wanted));
        if ran.is_err() {
            for token in pending {
                self.append(token.seq, token.id);
            }
        }
        ran
    }

    /// Computes candidates of a sequence. Parents are among all its candidates since the last commit.
    pub(crate) fn step_candidates(
        &mut self,
        levels: &[CandidateLevel<'_>],
    ) -> Result<(), RuntimeError> {
        let ids = levels.iter().flat_map(|level| level.tokens);
        self.decoder.check_ids(ids.copied())?;
        self.run((&[], &[]), levels, LogitsMode::Logits)
    }

    /// Runs one forward. The caller has checked the token ids and taken the pending tokens.
    fn run(
        &mut self,
        (tokens, kept): (&[BatchToken], &[u32]),
        levels: &[CandidateLevel<'_>],
        wanted: LogitsMode,
    ) -> Result<(), RuntimeError> {
        self.next.clear();
        let sequences = &self.states[..MAX_SEQUENCES as usize];
        let held = sequences.iter().map(|state| state.tokens.len());
        self.next.extend(held.map(|tokens| tokens as i32));
        let step = &mut self.decoder.step;
        step.clear();
        for token in tokens {
            // The cache returns an error for an unknown sequence.
            let next = self.next.get_mut(token.seq as usize);
            let position = next.map_or(0, |next| std::mem::replace(next, *next + 1));
            let row = step.push(StepToken {
                id: token.id,
                position,
                seq: token.seq,
                role: Role::Next,
            });
            if token.logits {
                step.want(row);
            }
        }
        kept.iter().for_each(|token| step.keep_state(*token));
        let mut rows = tokens.iter().filter(|token| token.logits).count();
        let mut added = Vec::with_capacity(levels.len());
        for level in levels {
            // The cache returns an error for an unknown sequence and for an unknown parent.
            let state = self.states.get(level.seq as usize);
            let mut candidates = state.map_or_else(Candidates::default, |s| s.candidates.clone());
            let base = state.map_or(0, |state| state.tokens.len());
            candidates.last_step = candidates.nodes.len();
            (candidates.first_row, candidates.first_token) = (rows, step.len());
            candidates.step = self.steps + 1;
            for (&id, &parent) in level.tokens.iter().zip(level.parents) {
                let above = parent.and_then(|parent| candidates.nodes.get(parent as usize));
                let depth = above.map_or(0, |above| above.depth + 1);
                let row = step.push(StepToken {
                    id,
                    position: (base + depth as usize) as i32,
                    seq: level.seq,
                    role: Role::Candidate { parent },
                });
                step.want(row);
                candidates.nodes.push(CandidateNode { id, parent, depth });
            }
            rows += level.tokens.len();
            added.push((level.seq, candidates));
        }
        self.decoder.run(wanted)?;
        self.steps += 1;
        for (index, token) in tokens.iter().enumerate() {
            let state = &mut self.states[token.seq as usize];
            if let Some(features) = &mut state.features {
                let row = self.decoder.outputs.features(index);
                features.push(state.tokens.len(), row);
            }
            state.tokens.push(token.id);
            state.row.clear();
        }
        for (seq, candidates) in added {
            self.states[seq as usize].candidates = candidates;
        }
        self.row_owners.clear();
        let owners = tokens.iter().filter(|token| token.logits);
        self.row_owners.extend(owners.map(|token| token.seq));
        // Of several logits rows of a sequence, the last one is kept.
        let wanted = tokens.iter().filter(|token| token.logits).count();
        let rows = tokens.iter().rev().filter(|token| token.logits);
        for (row, token) in (0..wanted).rev().zip(rows) {
            let kept = &mut self.states[token.seq as usize].row;
            if kept.is_empty() {
                kept.copy(self.decoder.outputs.row(row));
            }
        }
        Ok(())
    }
}

/// New candidates of a sequence, each with its parent.
#[derive(Clone, Copy)]
pub(crate) struct CandidateLevel<'a> {
    pub(crate) seq: SeqId,
    pub(crate) tokens: &'a [u32],
    pub(crate) parents: &'a [Option<u32>],
}

impl<'a> CandidateLevel<'a> {
    /// All candidates of a tree.
    fn of_tree((seq, tree): &(SeqId, &'a TreeProposal)) -> CandidateLevel<'a> {
        CandidateLevel {
            seq: *seq,
            tokens: tree.tokens(),
            parents: tree.parents(),
        }
    }
}
