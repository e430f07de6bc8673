//! What a runner may ask of each kind of cache, and what a forward asks of all.

use crate::{KvError, Step, StepPlan};
use std::any::Any;
use std::ops::RangeBounds;

/// What every cache offers to the host loop.
pub trait Cache {
    /// Whether `n` more tokens fit.
    fn can_extend(&self, n: u32) -> bool;
    /// Most cells the cache may hold.
    fn capacity(&self) -> u32;
    /// Cells in use now.
    fn len(&self) -> u32;
    /// Whether nothing is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Forgets everything; storage stays for reuse.
    fn clear(&mut self);
    /// Forgets all but the first `len` tokens.
    fn rewind(&mut self, len: u32) -> Result<(), KvError>;
}

/// A sequence's number.
pub type SeqId = u32;

/// Many sequences in one cache.
pub trait SeqCache: Cache {
    /// Declares the sequence of every token of the next forward. Each forward, successful or not, spends one
    /// declaration.
    fn begin_step(&mut self, seqs: &[SeqId]) -> Result<(), KvError>;
    /// Lets `dst` share what `src` holds at these positions; no bytes move.
    fn seq_cp(
        &mut self,
        src: SeqId,
        dst: SeqId,
        positions: impl RangeBounds<u32>,
    ) -> Result<(), KvError>
    where
        Self: Sized;
    /// Takes these positions out of `seq`; a cell that no sequence holds any more is free.
    fn seq_rm(&mut self, seq: SeqId, positions: impl RangeBounds<u32>) -> Result<(), KvError>
    where
        Self: Sized;
    /// Frees all sequences but one.
    fn seq_keep(&mut self, seq: SeqId) -> Result<(), KvError>;
    /// Tokens that a sequence holds.
    fn seq_len(&self, seq: SeqId) -> Result<u32, KvError>;
    /// The position that a sequence continues at; `None` for one that holds nothing and may begin anywhere.
    fn seq_next(&self, seq: SeqId) -> Result<Option<u32>, KvError>;
}

/// Rows to copy once an accepted path is known: row `base + i` becomes a copy of row `rows[i]`.
///
/// `rows` ascend and none lies before its target, so that copying in order needs no second buffer. Rings have the row of
/// cell `c` at `c mod slots`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatherPlan {
    /// First target row.
    pub base: u32,
    /// The source of each target.
    pub rows: Vec<u32>,
}

/// A committed prefix with a tree of candidates behind it.
pub trait TreeCache: Cache {
    /// Appends candidates as the next forward's tokens: per candidate its parent among all candidates so far, or `None`
    /// for one that follows the prefix.
    fn propose(&mut self, parents: &[Option<u32>]) -> Result<(), KvError>;
    /// Makes a chain of candidates part of the prefix and forgets the others. The returned rows must be gathered before
    /// the next forward; [`CacheSession::accept`](crate::CacheSession::accept) does both.
    fn commit_path(&mut self, accepted: &[u32]) -> Result<GatherPlan, KvError>;
}

/// What a forward needs of a cache. Object-safe, so that one executable serves every kind.
pub trait Bookkeeping: Cache + Any + Send {
    /// Completes the step that the verbs declared with the positions of its tokens; a cache of one sequence needs no
    /// declaration. Changes nothing but `step`, whose memory is reused.
    fn declared(&self, positions: &[i32], step: &mut Step) -> Result<(), KvError>;

    /// Whether a verb has declared a step that no forward has used.
    fn is_declared(&self) -> bool;

    /// Where the tokens of a step go and what each may see. Changes nothing but `plan`, whose memory is reused.
    fn plan(&self, step: &Step, plan: &mut StepPlan) -> Result<(), KvError>;

    /// Plans the declared step at these positions.
    fn plan_declared(&self, positions: &[i32], plan: &mut StepPlan) -> Result<(), KvError> {
        let mut step = std::mem::take(&mut plan.declared);
        let planned = self.declared(positions, &mut step);
        let planned = planned.and_then(|()| self.plan(&step, plan));
        plan.declared = step;
        planned
    }

    /// Makes a planned step part of the cache, once its forward has succeeded.
    fn commit(&mut self, plan: &StepPlan);

    /// Ends a step that was not planned (`None`) or whose forward failed after rows may have been written. What was
    /// held before stays held.
    fn abort(&mut self, plan: Option<&StepPlan>);
}
