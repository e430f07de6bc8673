//! `DraftModel`: a smaller model with the same vocabulary that proposes candidates.

use super::level_search::{grow_tree, most_likely};
use super::proposer::{Proposal, Proposer};
use super::tree_proposal::TreeProposal;
use crate::batch_runner::{BatchRunner, CandidateLevel};
use crate::memory::MemoryUsage;
use crate::options::RunnerOptions;
use crate::runner::common_prefix_len;
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::Backend;
use kv::SeqId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A draft model with its own cache. All sequences of a target share it, each with a sequence of its own.
#[derive(Clone)]
pub struct DraftModel(Arc<Mutex<DraftState>>);

struct DraftState {
    runner: BatchRunner,
    /// The sequences that proposers use.
    taken: Vec<SeqId>,
    max_sequences: usize,
}

impl DraftModel {
    /// Loads a draft for a target. Its cache has the size of the target's.
    ///
    /// # Errors
    /// `InvalidOptions` if the vocabularies differ: a token must have the same number and the same text in both.
    pub fn new(
        draft: &Model,
        target: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
    ) -> Result<DraftModel, RuntimeError> {
        check_vocabulary(draft, target)?;
        let longest = draft.facts().context_length;
        let context = options.context.unwrap_or(target.facts().context_length);
        let options = RunnerOptions {
            context: Some(context.min(longest)),
            pool_cells: Some(options.pool_cells.unwrap_or(context)),
            ..options.clone()
        };
        let runner = BatchRunner::with_trees(draft, backend, &options, sequences, 0, 16)?;
        Ok(DraftModel(Arc::new(Mutex::new(DraftState {
            runner,
            taken: vec![],
            max_sequences: sequences,
        }))))
    }

    /// The memory in use now.
    pub fn memory(&self) -> Result<MemoryUsage, RuntimeError> {
        self.lock().runner.memory()
    }

    fn lock(&self) -> MutexGuard<'_, DraftState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A proposer for one sequence.
    pub(super) fn proposer(&self) -> Result<Box<dyn Proposer>, RuntimeError> {
        let mut state = self.lock();
        let free = (0..state.max_sequences as u32).find(|seq| !state.taken.contains(seq));
        let seq = free.ok_or_else(|| {
            let reason = format!("the draft model has {} sequences", state.max_sequences);
            RuntimeErrorKind::InvalidOptions(reason)
        })?;
        state.taken.push(seq);
        let model = self.clone();
        Ok(Box::new(DraftProposer { model, seq }))
    }
}

/// Returns an error unless every token has the same number and text in both models.
fn check_vocabulary(draft: &Model, target: &Model) -> Result<(), RuntimeError> {
    let differs = |reason: String| {
        let reason = format!("the draft model has another vocabulary than the model: {reason}");
        Err(RuntimeErrorKind::InvalidOptions(reason).into())
    };
    let sizes = [draft, target].map(|model| model.facts().vocab_size);
    if sizes[0] != sizes[1] {
        return differs(format!("{} tokens, not {}", sizes[0], sizes[1]));
    }
    let (Ok(own), Ok(other)) = (draft.tokenizer(), target.tokenizer()) else {
        return Ok(());
    };
    for id in 0..sizes[0] as u32 {
        let [own, other] = [own, other].map(|tokenizer| tokenizer.token_bytes(id));
        if own != other {
            let text = |bytes: Option<&[u8]>| {
                let bytes = bytes.unwrap_or_default();
                format!("{:?}", String::from_utf8_lossy(bytes))
            };
            let (own, other) = (text(own), text(other));
            return differs(format!("token {id} is {own}, not {other}"));
        }
    }
    Ok(())
}

/// Proposes from the draft's probabilities: each level of the tree is one forward of the draft.
struct DraftProposer {
    model: DraftModel,
    seq: SeqId,
}

impl Drop for DraftProposer {
    fn drop(&mut self) {
        let mut state = self.model.lock();
        _ = state.runner.remove(self.seq);
        state.taken.retain(|seq| *seq != self.seq);
    }
}

impl Proposer for DraftProposer {
    fn name(&self) -> &'static str {
        "draft"
    }

    fn propose(
        &mut self,
        proposal: &Proposal<'_>,
        tree: &mut TreeProposal,
    ) -> Result<(), RuntimeError> {
        let mut state = self.model.lock();
        let runner = &mut state.runner;
        follow(runner, self.seq, proposal.history)?;
        if runner.logits(self.seq).is_empty() {
            return Ok(());
        }
        // The candidates stay: the next proposal commits those that the target accepted.
        grow(runner, self.seq, proposal, tree)
    }
}

/// Makes a sequence of the draft hold all tokens of `history`, with logits after the last one. Leaves it without logits if
/// the draft's context is too small.
fn follow(runner: &mut BatchRunner, seq: SeqId, history: &[u32]) -> Result<(), RuntimeError> {
    let held = runner.tokens(seq).len();
    let next = history
        .get(held..)
        .filter(|_| history[..held] == *runner.tokens(seq));
    runner.commit_matching(seq, next.unwrap_or_default())?;
    let same = common_prefix_len(runner.tokens(seq), history).min(history.len() - 1);
    if same < runner.tokens(seq).len() {
        let floor = runner.rewind_floor(seq)?;
        runner.rewind(seq, if same < floor { 0 } else { same })?;
    }
    let missing = &history[runner.tokens(seq).len()..];
    if runner.can_extend(missing.len())? {
        runner.sequence(seq).feed(missing, &mut |_| true)?;
    }
    Ok(())
}

/// Grows the tree from the draft's probabilities.
fn grow(
    runner: &mut BatchRunner,
    seq: SeqId,
    proposal: &Proposal<'_>,
    tree: &mut TreeProposal,
) -> Result<(), RuntimeError> {
    let root = most_likely(runner.logits(seq), proposal.top_k);
    let mut computed = 0;
    grow_tree(proposal, tree, root, |level| {
        let nodes = level.tokens.len();
        // Layers with a window have room for as many candidates as a step has tokens.
        let fits = computed as usize + nodes <= runner.max_step_tokens();
        if !fits || !runner.can_extend(nodes)? {
            return Ok(None);
        }
        let candidates = CandidateLevel {
            seq,
            tokens: &level.tokens,
            parents: &level.parents,
        };
        runner.step_candidates(&[candidates])?;
        let candidates = computed..computed + nodes as u32;
        computed = candidates.end;
        let children = |node| most_likely(runner.candidate_logits(seq, node), proposal.top_k);
        Ok(Some(candidates.map(children).collect()))
    })
}
