//! Splices: tokens are replaced within a sequence, and rows of the tokens after them are moved instead of computed again.

use super::BatchRunner;
use crate::{RuntimeError, RuntimeErrorKind};
use backend::{KeyRotations, RowSpan};
use base::named_enum;
use kv::SeqId;
use std::ops::Range;

/// The part of the tokens after an edit that a splice computes again unless the caller says otherwise: the first 15 %.
pub const SPLICE_SHARE: f32 = 0.15;

named_enum! {
    /// Why rows of a sequence are not those that its tokens have when all of them are computed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Approximation {
        /// They were computed after other tokens and moved.
        Moved = "moved",
        /// They were stored in a smaller type for some time.
        Stored = "stored",
    }
}

/// The rows of a sequence that are an approximation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inexact {
    /// The number of tokens before the first such row.
    pub from: usize,
    /// The cause. A sequence whose rows have both was moved.
    pub cause: Approximation,
}

/// The tokens of a sequence after a splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceReport {
    /// Those before the edit, whose rows stayed.
    pub kept: usize,
    /// Those that were computed.
    pub computed: usize,
    /// Those whose rows were moved.
    pub moved: usize,
}

impl BatchRunner {
    /// The rows of a sequence or retained prefix that are an approximation; `None` if all have the bits of a computed sequence.
    pub fn inexact(&self, seq: SeqId) -> Option<Inexact> {
        self.states.get(seq as usize)?.inexact
    }

    /// Marks the rows of a sequence from one on as an approximation.
    pub(crate) fn mark_inexact(&mut self, seq: SeqId, from: usize, cause: Approximation) {
        let inexact = &mut self.states[seq as usize].inexact;
        *inexact = Some(match *inexact {
            None => Inexact { from, cause },
            Some(before) => Inexact {
                from: before.from.min(from),
                cause: match (before.cause, cause) {
                    (Approximation::Stored, Approximation::Stored) => Approximation::Stored,
                    _ => Approximation::Moved,
                },
            },
        });
    }

    /// Checks that the rows of this model's sequences can be moved to other positions.
    ///
    /// # Errors
    /// `Backend` with the reason if they cannot.
    pub fn check_splice(&self) -> Result<(), RuntimeError> {
        self.check_no_sinks()?;
        if self.stream_window().is_some() {
            let reason = "the rows of streams are not spliced: their older tokens are gone";
            return Err(RuntimeErrorKind::InvalidOptions(reason.to_owned()).into());
        }
        self.rotations().map(|_| ())
    }

    fn rotations(&self) -> Result<KeyRotations, RuntimeError> {
        let layers = self.cache.config()?.layers.len();
        Ok(KeyRotations::from_graph(
            self.decoder.forward.graph(),
            layers,
        )?)
    }

    /// Appends tokens of a sequence or retained prefix to another sequence, with their rows as they are, but for keys, which are rotated
    /// to their new positions. They are an approximation of the rows that the tokens have there.
    ///
    /// # Errors
    /// `Backend` if the model's keys cannot be rotated, `Cache` if there is no room or the kind of cache cannot take rows. Nothing has
    /// changed then.
    pub fn append_rows_of(
        &mut self,
        src: SeqId,
        range: Range<usize>,
        dst: SeqId,
    ) -> Result<(), RuntimeError> {
        let tokens = self.fed_tokens(src).get(range.clone());
        let tokens = tokens.ok_or_else(|| {
            let Range { start, end } = range.clone();
            RuntimeErrorKind::InvalidOptions(format!("tokens {start} to {end} are not there"))
        })?;
        let tokens = tokens.to_vec();
        let rotations = self.rotations()?;
        let span = RowSpan::read(&*self.cache, src, range.start as u32..range.end as u32)?;
        self.append_span(span, &rotations, &tokens, dst)
    }

    fn append_span(
        &mut self,
        span: RowSpan,
        rotations: &KeyRotations,
        tokens: &[u32],
        seq: SeqId,
    ) -> Result<(), RuntimeError> {
        let len = self.fed_tokens(seq).len();
        assert!(!self.is_pending(seq), "rows follow rows");
        span.append(rotations, &*self.cache, seq, len as u32)?;
        let state = &mut self.states[seq as usize];
        state.tokens.extend_from_slice(tokens);
        state.row.clear();
        state.features = None;
        self.mark_inexact(seq, len, Approximation::Moved);
        Ok(())
    }

    /// Changes the tokens of a sequence to `new`. Of those that both texts have after the edit the first part, `share`, is computed again, and
    /// so is the last token; the rows of the others are moved. `progress` hears the number of tokens computed so far. If the window of a
    /// layer has lost what the edit's place sees, tokens before the edit are computed again too.
    ///
    /// # Errors
    /// Those of [`append_rows_of`](BatchRunner::append_rows_of), before anything has changed, and those of a forward: the sequence then ends
    /// where it stopped.
    pub fn splice(
        &mut self,
        seq: SeqId,
        new: &[u32],
        share: f32,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<SpliceReport, RuntimeError> {
        let fed = self.fed_tokens(seq).to_vec();
        let edit = Edit::between(&fed, new);
        let rotations = self.rotations()?;
        let again = recomputed(edit.after, share);
        let at = edit.inserted.end + again;
        let most = new.len().saturating_sub(at + 1);
        let count = (edit.after - again).min(most);
        let from = edit.removed.end + again;
        let moved = from..from + count;
        let span = RowSpan::read(&*self.cache, seq, moved.start as u32..moved.end as u32)?;
        let last = new.len().saturating_sub(1);
        let kept = self.restorable(seq, edit.removed.start.min(last))?;
        self.rewind(seq, kept)?;
        let mut report = SpliceReport {
            kept,
            ..SpliceReport::default()
        };
        if at > kept {
            let mut handle = self.sequence(seq);
            let fed_all = handle.feed(&new[kept..at], &mut progress)?;
            report.computed = self.fed_tokens(seq).len() - kept;
            if !fed_all {
                return Ok(report);
            }
        }
        if count > 0 {
            self.append_span(span, &rotations, &fed[moved], seq)?;
            report.moved = count;
        }
        let rest = &new[self.fed_tokens(seq).len()..];
        if !rest.is_empty() {
            let before = report.computed;
            let mut handle = self.sequence(seq);
            handle.feed(rest, |done| progress(before + done))?;
            report.computed = self.fed_tokens(seq).len() - kept - count;
        }
        Ok(report)
    }
}

/// The difference between two texts in their middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The tokens of the old text that are not in the new one.
    pub removed: Range<usize>,
    /// The tokens of the new text in their place.
    pub inserted: Range<usize>,
    /// The number of tokens that both have after that.
    pub after: usize,
}

/// The most tokens at the end of a text that may differ: a template ends the last message otherwise than its generation ended.
const MAX_LOOSE_END: usize = 8;

impl Edit {
    /// Finds the edit between two texts, which may also differ in a few tokens at their ends.
    pub fn between(old: &[u32], new: &[u32]) -> Edit {
        let kept = crate::common_prefix_len(old, new);
        let (old_rest, new_rest) = (&old[kept..], &new[kept..]);
        let ends = 0..=MAX_LOOSE_END;
        let ends = ends.clone().flat_map(|a| ends.clone().map(move |b| (a, b)));
        let same = ends.filter_map(|(a, b)| {
            let a = old_rest.len().checked_sub(a)?;
            let b = new_rest.len().checked_sub(b)?;
            let pairs = old_rest[..a].iter().rev().zip(new_rest[..b].iter().rev());
            Some((pairs.take_while(|(x, y)| x == y).count(), a, b))
        });
        let (after, a, b) = same.max().unwrap_or((0, old_rest.len(), new_rest.len()));
        Edit {
            removed: kept..kept + a - after,
            inserted: kept..kept + b - after,
            after,
        }
    }
}

/// The number of tokens of `len` after an edit that are computed again.
pub fn recomputed(len: usize, share: f32) -> usize {
    ((len as f32 * share.clamp(0.0, 1.0)).ceil() as usize).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_found_behind_loose_ends() {
        let old: Vec<u32> = (0..50).collect();
        let cut = [&old[..10], &old[20..], &[90, 91]].concat();
        let edit = |removed, inserted, after| Edit {
            removed,
            inserted,
            after,
        };
        assert_eq!(Edit::between(&old, &cut), edit(10..20, 10..10, 30));
        let replaced = [&old[..10], &[70, 71, 72], &old[20..45]].concat();
        assert_eq!(Edit::between(&old, &replaced), edit(10..20, 10..13, 25));
        assert_eq!(Edit::between(&old, &old), edit(50..50, 50..50, 0));
        assert_eq!(Edit::between(&[], &[5]).after, 0);
        assert_eq!(
            [recomputed(10, 0.15), recomputed(3, 1.0), recomputed(5, 0.0)],
            [2, 3, 0]
        );
    }
}
