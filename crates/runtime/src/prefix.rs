//! `PromptPrefix`: a frozen prompt prefix that several runners share.

use crate::{Model, RuntimeError, RuntimeErrorKind};
use kv::SharedPrefix;
use std::fmt;

/// A frozen prompt prefix that several runners share.
#[derive(Clone)]
pub struct PromptPrefix {
    pub(crate) shared: SharedPrefix,
    tokens: Vec<u32>,
    /// Fingerprint of the model that computed the rows.
    fingerprint: u64,
}

impl fmt::Debug for PromptPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PromptPrefix({} tokens)", self.tokens.len())
    }
}

impl PromptPrefix {
    /// The prefix of these tokens, whose rows `model` computed.
    pub(crate) fn new(shared: SharedPrefix, tokens: Vec<u32>, model: &Model) -> PromptPrefix {
        PromptPrefix {
            shared,
            tokens,
            fingerprint: model.fingerprint(),
        }
    }

    /// The tokens of the prefix.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the prefix has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Bytes of its keys and values, allocated once for all runners.
    pub fn resident_bytes(&self) -> usize {
        self.shared.resident_bytes()
    }

    /// Returns an error if another model computed the rows.
    pub(crate) fn check_model(&self, model: &Model) -> Result<(), RuntimeError> {
        if self.fingerprint != model.fingerprint() {
            let reason = "the shared prefix belongs to another model".to_owned();
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        Ok(())
    }
}

/// The length of the common prefix of two token sequences.
pub fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
