//! Computes the masks of constraints on a thread of their own, while the forward runs.

use super::request::TokenConstraint;
use crate::{RuntimeError, RuntimeErrorKind};
use std::sync::mpsc::{Receiver, Sender, channel};

type Boxed = Box<dyn TokenConstraint>;
type Answer = (Boxed, Result<Vec<u32>, String>);

/// A constraint of a running request.
pub(super) struct ConstraintState {
    /// `None` while the worker has it.
    constraint: Option<Boxed>,
    answer: Option<Receiver<Answer>>,
    /// The mask of the next token, once it is computed.
    mask: Option<Vec<u32>>,
}

impl ConstraintState {
    pub(super) fn new(constraint: Boxed) -> ConstraintState {
        ConstraintState {
            constraint: Some(constraint),
            answer: None,
            mask: None,
        }
    }

    /// Sets the logits of tokens that are not allowed to negative infinity.
    pub(super) fn apply(&mut self, logits: &mut [f32]) -> Result<(), RuntimeError> {
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
    pub(super) fn accept(&mut self, token: u32) -> Result<bool, RuntimeError> {
        let constraint = self.constraint.as_mut().expect("the mask was taken");
        constraint.accept(token).map_err(constraint_error)?;
        Ok(constraint.is_complete())
    }
}

/// The thread that computes masks.
pub(super) struct MaskWorker {
    jobs: Sender<(Boxed, Sender<Answer>)>,
    vocab: usize,
}

impl MaskWorker {
    /// Starts the thread. It ends when the worker is dropped. Without a thread, masks are computed when they are used.
    pub(super) fn start(vocab: usize) -> MaskWorker {
        let (jobs, receiver) = channel::<(Boxed, Sender<Answer>)>();
        let work = move || {
            for (mut constraint, answer) in receiver {
                let mask = compute(&mut constraint, vocab);
                _ = answer.send((constraint, mask));
            }
        };
        let thread = std::thread::Builder::new().name("kvark-masks".to_owned());
        _ = thread.spawn(work);
        MaskWorker { jobs, vocab }
    }

    /// Starts to compute the next mask of a constraint.
    pub(super) fn begin(&self, state: &mut ConstraintState) {
        if state.mask.is_some() {
            return;
        }
        let Some(constraint) = state.constraint.take() else {
            return;
        };
        let (sender, receiver) = channel();
        match self.jobs.send((constraint, sender)) {
            Ok(()) => state.answer = Some(receiver),
            Err(unsent) => {
                let mut constraint = unsent.0.0;
                state.mask = compute(&mut constraint, self.vocab).ok();
                state.constraint = Some(constraint);
            }
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
