//! The decode loop: [`Sequence`] is what generates, and `step` advances many of them with one forward.
//!
//! Every way of generating is a caller of `step`: [`Generator`](crate::Generator) runs it on the caller's thread, the
//! [`Engine`](crate::Engine) on its own. So a constraint, speculation, log-probabilities, stop strings and context shifts work the
//! same in all of them.

mod constraint;
mod logprobs;
mod sequence;
mod step;

pub(crate) use constraint::MaskWorker;
pub use constraint::TokenConstraint;
pub use logprobs::{GeneratedToken, TokenLogprobs};
pub use sequence::{Owned, Sequence};
pub(crate) use step::{DecodeStep, StepEvent};
