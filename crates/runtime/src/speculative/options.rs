//! `SpecOptions`: the caller's choices for speculative decoding.

use crate::{RuntimeError, RuntimeErrorKind};
use base::named_enum;

named_enum! {
    /// What proposes candidates.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum SpecType {
        /// Earlier occurrences of the last tokens in prompt and answer; needs no second model.
        Ngram = "ngram",
        /// A smaller model with the same vocabulary.
        Draft = "draft",
        /// An Eagle3 head, which works on features of the target.
        Eagle3 = "eagle3",
        /// The MTP head that the model's own file carries, or an assistant in a file of its own, which works on the model's last state.
        Mtp = "mtp",
        /// Everything that is there, where it pays: sizes are chosen round by round from measured costs.
        #[default]
        Auto = "auto",
    }
}

/// The caller's choices for speculative decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecOptions {
    /// What proposes candidates.
    pub kind: SpecType,
    /// The maximum number of candidates in a round.
    pub max_candidates: usize,
    /// The maximum number of tokens that a round can accept.
    pub max_depth: usize,
    /// The maximum number of children of a candidate.
    pub top_k: usize,
    /// Keep what each round proposed and accepted.
    pub trace: bool,
    /// Text that the answer is expected to have parts of, such as a file that it changes. It is searched as the prompt is.
    pub prediction: Vec<u32>,
}

impl Default for SpecOptions {
    fn default() -> SpecOptions {
        SpecOptions {
            kind: SpecType::Auto,
            max_candidates: 8,
            max_depth: 8,
            top_k: 3,
            trace: false,
            prediction: vec![],
        }
    }
}

impl SpecOptions {
    /// Checks the numbers, for steps of at most `max_step` tokens.
    ///
    /// # Errors
    /// `InvalidOptions` with the first number that is out of range.
    pub fn check(&self, max_step: usize) -> Result<(), RuntimeError> {
        let invalid = |reason: String| Err(RuntimeErrorKind::InvalidOptions(reason).into());
        let numbers = [
            ("a speculation depth", self.max_depth),
            ("a tree", self.max_candidates),
            ("a top-k of candidates", self.top_k),
        ];
        for (name, number) in numbers {
            if number == 0 {
                return invalid(format!(
                    "{name} of 0 proposes nothing: it must be at least 1"
                ));
            }
        }
        if self.max_candidates >= max_step {
            return invalid(format!(
                "a tree of {} candidates and its root does not fit in a step of {max_step} tokens",
                self.max_candidates
            ));
        }
        Ok(())
    }
}
