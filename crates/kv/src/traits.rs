//! The traits of a cache: [`Cache`], [`SeqCache`] and [`TreeCache`] for runners, [`CacheManager`] for a forward.

use crate::{KvError, Step, StepPlan};
use std::any::Any;
use std::ops::RangeBounds;

/// The operations that every kind of cache has.
pub trait Cache {
    /// Whether `n` more tokens fit.
    fn can_extend(&self, n: u32) -> bool;
    /// The maximum number of cells.
    fn capacity(&self) -> u32;
    /// Cells in use now.
    fn len(&self) -> u32;
    /// Whether no cell is in use.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Removes all tokens; the storage stays allocated.
    fn clear(&mut self);
    /// Removes all tokens after the first `len`.
    fn rewind(&mut self, len: u32) -> Result<(), KvError>;
}

/// The number of a sequence in a cache.
pub type SeqId = u32;

/// A cache of many sequences.
pub trait SeqCache: Cache {
    /// Declares the sequence of every token of the next forward. A forward consumes the declaration, whether it
    /// succeeds or fails.
    fn begin_step(&mut self, seqs: &[SeqId]) -> Result<(), KvError>;
    /// Makes `dst` share the cells of `src` at these positions. Copies no rows.
    fn seq_cp(
        &mut self,
        src: SeqId,
        dst: SeqId,
        positions: impl RangeBounds<u32>,
    ) -> Result<(), KvError>
    where
        Self: Sized;
    /// Removes these positions from `seq`. A cell that no sequence holds becomes free.
    fn seq_rm(&mut self, seq: SeqId, positions: impl RangeBounds<u32>) -> Result<(), KvError>
    where
        Self: Sized;
    /// Removes all sequences except `seq`.
    fn seq_keep(&mut self, seq: SeqId) -> Result<(), KvError>;
    /// The number of tokens in a sequence.
    fn seq_len(&self, seq: SeqId) -> Result<u32, KvError>;
    /// The position of the next token of a sequence; `None` for an empty sequence, which may begin anywhere.
    fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError>;
}

/// The row copies that compact an accepted path: row `base + i` becomes a copy of row `rows[i]`.
///
/// `rows` is ascending and `rows[i] >= base + i`, so copying in order needs no second buffer. Rows are counted from the end of a shared
/// prefix, which is never moved. In a ring, row `r` is at `r mod slots`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatherPlan {
    /// First target row.
    pub base: u32,
    /// The source row of each target row.
    pub rows: Vec<u32>,
}

/// A cache of committed tokens followed by a tree of candidates.
pub trait TreeCache: Cache {
    /// Declares candidates as the tokens of the next forward. Each entry is the candidate's parent among all candidates
    /// so far, or `None` for a candidate that follows the committed tokens.
    fn propose(&mut self, parents: &[Option<u32>]) -> Result<(), KvError>;
    /// Commits a chain of candidates and removes the others. The returned row copies must be made before the next
    /// forward; [`CacheSession::accept`](crate::CacheSession::accept) does both.
    ///
    /// # Errors
    /// `NotAChain` if a candidate is not a computed child of the one before it; `StepPending` if further candidates are
    /// declared.
    fn commit_path(&mut self, accepted: &[u32]) -> Result<GatherPlan, KvError>;
}

/// The interface between a cache and a forward. Object-safe, so that one executable works with every kind of cache.
pub trait CacheManager: Cache + Any + Send {
    /// Builds the declared step in `step` from the declaration and the positions of its tokens. A cache of one sequence
    /// needs no declaration. Reuses the memory of `step`.
    fn declared(&self, positions: &[i32], step: &mut Step) -> Result<(), KvError>;

    /// Whether a step is declared that no forward has consumed.
    fn is_declared(&self) -> bool;

    /// Plans the cells that the tokens of a step are written to and the rows that each token attends to. Does not
    /// change the cache; reuses the memory of `plan`.
    fn plan(&self, step: &Step, plan: &mut StepPlan) -> Result<(), KvError>;

    /// Plans the declared step at these positions.
    fn plan_declared(&self, positions: &[i32], plan: &mut StepPlan) -> Result<(), KvError> {
        let mut step = std::mem::take(&mut plan.declared);
        let planned = self.declared(positions, &mut step);
        let planned = planned.and_then(|()| self.plan(&step, plan));
        plan.declared = step;
        planned
    }

    /// Adds the tokens of a planned step to the cache. Called after the forward succeeded.
    fn commit(&mut self, plan: &StepPlan);

    /// Ends a step that could not be planned (`None`) or whose forward failed, possibly after it wrote rows. Tokens
    /// from before the step stay in the cache.
    fn abort(&mut self, plan: Option<&StepPlan>);
}
