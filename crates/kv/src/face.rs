//! The two sides of a bookkeeping kind: what a runner may ask, and what a forward asks.

use crate::{KvError, StepPlan};
use std::any::Any;

/// What every cache offers to the host loop.
pub trait Cache {
    /// Whether `n` more tokens fit.
    fn can_extend(&self, n: u32) -> bool;
    /// Most cells the cache may hold.
    fn capacity(&self) -> u32;
    /// Tokens held now.
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

/// What a forward needs of a cache. Object-safe, so that one executable serves every kind.
pub trait Bookkeeping: Cache + Any + Send {
    /// Where the tokens of a step go and what each may see. Changes nothing.
    ///
    /// `positions` holds one position per token of the step.
    fn plan(&self, positions: &[i32]) -> Result<StepPlan, KvError>;

    /// Makes a planned step part of the cache, once its forward has succeeded.
    fn commit(&mut self, plan: &StepPlan);
}
