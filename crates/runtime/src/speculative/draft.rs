//! `DraftModel`: a smaller model with the same vocabulary that proposes candidates.

use super::drafter::{Draft, DraftPart};
use super::level_search::{Children, TreeLevel, most_likely};
use super::proposal::Proposal;
use crate::batch_runner::{BatchRunner, CandidateLevel, Feed, FeedOutputs, KeptStates};
use crate::options::RunnerOptions;
use crate::{Model, RuntimeError, RuntimeErrorKind, common_prefix_len};
use backend::{Backend, LogitsMode};
use kv::SeqId;
use std::ops::Range;

/// A draft model with its own cache.
pub(super) struct DraftModel {
    runner: BatchRunner,
}

impl DraftModel {
    /// Loads a draft for a target. Its cache has the size of the target's.
    ///
    /// # Errors
    /// `InvalidOptions` if the vocabularies differ: a token must have the same number and the same text in both.
    pub(super) fn new(
        draft: &Model,
        target: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
    ) -> Result<DraftModel, RuntimeError> {
        check_vocabulary(draft, target)?;
        let longest = draft.facts().context_length;
        let context = options.context_of(target.facts());
        let options = RunnerOptions {
            context: Some(context.min(longest)),
            pool_cells: Some(options.pool_cells.unwrap_or(context)),
            prefix: None,
            kv_policy: options.kv_policy.without_stream(),
            ..options.clone()
        };
        let runner = BatchRunner::with_trees(draft, backend, &options, sequences, 0, 16)?;
        Ok(DraftModel { runner })
    }
}

impl Draft for DraftModel {
    fn max_step_tokens(&self) -> usize {
        self.runner.max_step_tokens()
    }

    fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        self.runner.can_extend(n)
    }

    fn follow(
        &mut self,
        seq: SeqId,
        proposal: &Proposal<'_>,
    ) -> Result<Option<Range<usize>>, RuntimeError> {
        let (runner, history) = (&mut self.runner, proposal.history);
        let held = runner.tokens(seq).len();
        let next = history
            .get(held..)
            .filter(|_| history[..held] == *runner.tokens(seq));
        runner.commit_matching(seq, next.unwrap_or_default())?;
        let same = common_prefix_len(runner.tokens(seq), history).min(history.len() - 1);
        if same < runner.tokens(seq).len() {
            let same = runner.restorable(seq, same)?;
            runner.rewind(seq, same)?;
        }
        Ok(Some(runner.tokens(seq).len()..history.len()))
    }

    fn feed(
        &mut self,
        parts: &[DraftPart<'_, Range<usize>>],
    ) -> Result<Vec<Children>, RuntimeError> {
        let feeds = parts.iter().map(|part| Feed::Tokens {
            seq: part.seq,
            tokens: &part.proposal.history[part.rows.clone()],
            outputs: match part.rows.end == part.proposal.history.len() {
                true => FeedOutputs::Last,
                false => FeedOutputs::None,
            },
            kept_states: KeptStates::default(),
        });
        self.runner
            .forward(&feeds.collect::<Vec<_>>(), LogitsMode::Logits)?;
        let children = parts
            .iter()
            .map(|part| most_likely(self.runner.logits(part.seq), part.proposal.top_k));
        Ok(children.collect())
    }

    fn expand(
        &mut self,
        parts: &[DraftPart<'_, TreeLevel>],
    ) -> Result<Vec<Vec<Children>>, RuntimeError> {
        let levels = parts.iter().map(|part| CandidateLevel {
            seq: part.seq,
            tokens: &part.rows.tokens,
            parents: &part.rows.parents,
        });
        self.runner.step_candidates(&levels.collect::<Vec<_>>())?;
        let runner = &self.runner;
        let children = parts.iter().map(|part| {
            let logits = runner.last_candidate_logits(part.seq);
            logits
                .map(|logits| most_likely(logits, part.proposal.top_k))
                .collect()
        });
        Ok(children.collect())
    }

    fn remove(&mut self, seq: SeqId) {
        // Removing all tokens of a sequence cannot fail.
        _ = self.runner.remove(seq);
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
