//! Constraints on the tokens of a generation. Their masks are computed on a thread of their own, while the forward runs.

use crate::{RuntimeError, RuntimeErrorKind};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Restricts the tokens of a generation, for example to those that a grammar allows. Its masks are computed while the
/// forward runs.
pub trait TokenConstraint: Send {
    /// Clears the bit of every token that cannot be next; bit `id % 32` of word `id / 32` is set on entry.
    ///
    /// # Errors
    /// A message if the constraint cannot continue.
    fn restrict(&mut self, allowed: &mut [u32]) -> Result<(), String>;

    /// Appends a sampled token.
    ///
    /// # Errors
    /// A message if the token is not allowed.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Whether the text is complete and nothing can follow it.
    fn is_complete(&mut self) -> bool;
}

type Boxed = Box<dyn TokenConstraint>;
type Answer = (Boxed, Result<Vec<u32>, String>);

/// A constraint of a running request.
pub(crate) struct ConstraintState {
    /// `None` while the worker has it.
    constraint: Option<Boxed>,
    answer: Option<Receiver<Answer>>,
    /// The mask of the next token, once it is computed.
    mask: Option<Vec<u32>>,
}

impl ConstraintState {
    pub(crate) fn new(constraint: Boxed) -> ConstraintState {
        ConstraintState {
            constraint: Some(constraint),
            answer: None,
            mask: None,
        }
    }

    /// Sets the logits of tokens that are not allowed to negative infinity.
    pub(crate) fn apply(&mut self, logits: &mut [f32]) -> Result<(), RuntimeError> {
        let mask = self.take_mask(logits.len())?;
        let mut any = false;
        for (id, logit) in logits.iter_mut().enumerate() {
            match mask[id / 32] >> (id % 32) & 1 {
                0 => *logit = f32::NEG_INFINITY,
                _ => any = true,
            }
        }
        match any {
            true => Ok(()),
            false => Err(constraint_error("no token can follow".to_owned())),
        }
    }

    fn take_mask(&mut self, vocab: usize) -> Result<Vec<u32>, RuntimeError> {
        if let Some(answer) = self.answer.take() {
            let (constraint, mask) = answer
                .recv()
                .map_err(|_| constraint_error("its computation panicked".to_owned()))?;
            self.constraint = Some(constraint);
            self.mask = Some(mask.map_err(constraint_error)?);
        }
        if let Some(mask) = self.mask.take() {
            return Ok(mask);
        }
        let constraint = self.constraint.as_mut().expect("the worker gave it back");
        compute(constraint, vocab).map_err(constraint_error)
    }

    /// Appends a sampled token. Returns whether the text is complete.
    pub(crate) fn accept(&mut self, token: u32) -> Result<bool, RuntimeError> {
        let constraint = self.constraint.as_mut().expect("the mask was taken");
        constraint.accept(token).map_err(constraint_error)?;
        Ok(constraint.is_complete())
    }
}

/// Computes masks on a thread that the first constraint starts. The thread ends when the worker is dropped.
pub(crate) struct MaskWorker {
    /// `None` if the thread did not start: masks are then computed when they are used.
    jobs: OnceLock<Option<Sender<Job>>>,
    vocab: usize,
}

type Job = (Boxed, Sender<Answer>);

impl MaskWorker {
    pub(crate) fn new(vocab: usize) -> MaskWorker {
        MaskWorker {
            jobs: OnceLock::new(),
            vocab,
        }
    }

    fn jobs(&self) -> Option<&Sender<Job>> {
        let start = || {
            let (jobs, receiver) = channel::<Job>();
            let vocab = self.vocab;
            let work = move || {
                for (mut constraint, answer) in receiver {
                    let mask = compute(&mut constraint, vocab);
                    _ = answer.send((constraint, mask));
                }
            };
            let thread = std::thread::Builder::new().name("kvark-masks".to_owned());
            thread.spawn(work).is_ok().then_some(jobs)
        };
        self.jobs.get_or_init(start).as_ref()
    }

    /// Starts to compute the next mask of a constraint.
    pub(crate) fn begin(&self, state: &mut ConstraintState) {
        let Some(jobs) = self.jobs().filter(|_| state.mask.is_none()) else {
            return;
        };
        let Some(constraint) = state.constraint.take() else {
            return;
        };
        let (sender, receiver) = channel();
        match jobs.send((constraint, sender)) {
            Ok(()) => state.answer = Some(receiver),
            // The thread has gone: the mask is computed when it is used.
            Err(unsent) => state.constraint = Some(unsent.0.0),
        }
    }
}

fn compute(constraint: &mut Boxed, vocab: usize) -> Result<Vec<u32>, String> {
    let mut mask = vec![u32::MAX; vocab.div_ceil(32)];
    constraint.restrict(&mut mask)?;
    Ok(mask)
}

fn constraint_error(message: String) -> RuntimeError {
    RuntimeErrorKind::Constraint(message).into()
}
