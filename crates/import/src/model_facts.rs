//! Facts about a model that caches and runners need.

use crate::transformer::TransformerSpec;

/// Context length of a model whose file states none.
pub(crate) const DEFAULT_CONTEXT_LENGTH: usize = 4096;

/// Properties of the model, as opposed to the caller's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// One entry for each cache id.
    pub caches: Vec<kv::LayerConfig>,
    /// Context length in positions.
    pub context_length: usize,
    /// Whether the file states the context length; otherwise it is a default.
    pub context_stated: bool,
    /// Vocabulary size; 0 if the model is not a decoder.
    pub vocab_size: usize,
    /// Width of the residual stream; 0 if the file does not state it.
    pub hidden_size: usize,
    /// Maximum number of tokens per step, if the graph has a limit.
    pub max_step: Option<usize>,
    /// Maximum number of positions that the graph can compute, if its buffers or tables have a limit.
    pub context_limit: Option<usize>,
    /// Pooling of hidden states, for models that return hidden states instead of logits.
    pub pooling: Option<Pooling>,
}

/// How the hidden states of a text are pooled into one pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Mean over all tokens.
    Mean,
    /// First token, the `[CLS]` of BERT.
    Cls,
    /// Last token.
    Last,
}

impl Pooling {
    /// Every pooling.
    pub const ALL: [Pooling; 3] = [Pooling::Mean, Pooling::Cls, Pooling::Last];

    /// The name used in messages and flags.
    pub const fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
        }
    }
}

impl ModelFacts {
    /// Facts of a model that is not a decoder.
    pub(crate) fn none() -> ModelFacts {
        ModelFacts {
            caches: vec![],
            context_length: DEFAULT_CONTEXT_LENGTH,
            context_stated: false,
            vocab_size: 0,
            hidden_size: 0,
            max_step: None,
            context_limit: None,
            pooling: None,
        }
    }

    /// Facts of a transformer; `pooling` is set for models that return hidden states.
    pub(crate) fn of(
        spec: &TransformerSpec,
        context_length: usize,
        pooling: Option<Pooling>,
    ) -> ModelFacts {
        let decodes = spec.decodes();
        ModelFacts {
            caches: spec.caches(),
            context_length,
            context_stated: true,
            vocab_size: if decodes { spec.vocab_size } else { 0 },
            hidden_size: spec.hidden_size,
            max_step: None,
            context_limit: spec.learned_positions.filter(|_| !decodes),
            pooling,
        }
    }

    /// Whether the model computes logits from tokens, as runners require.
    pub fn is_decoder(&self) -> bool {
        self.vocab_size > 0
    }
}
