//! Options and result of a lowering, the same for every format.

use graph::Graph;

use crate::model_facts::ModelFacts;

/// A model file lowered to graphs.
#[derive(Clone, Debug)]
pub struct LoweredModel {
    /// The name the file gives the model.
    pub name: Option<String>,
    /// The architecture, as the file calls it.
    pub architecture: String,
    /// Entry points.
    pub methods: Vec<Method>,
    /// Facts that caches and runners need.
    pub facts: ModelFacts,
    /// Set if the model is a draft head, which works on the features of another model.
    pub draft_head: Option<DraftHead>,
}

/// A draft head: what it needs of its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftHead {
    /// The target's layers whose inputs are the features, in the order in which the head takes them.
    pub target_layers: Vec<usize>,
    /// Width of the target's residual stream.
    pub target_hidden_size: usize,
    /// The token of the target for each token of the head's vocabulary.
    pub target_tokens: Vec<u32>,
}

/// One entry point of a model.
#[derive(Clone, Debug)]
pub struct Method {
    /// The name callers use.
    pub name: String,
    /// The computation.
    pub graph: Graph,
}

/// Options of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Context length that will be used; `None` for that of the file.
    ///
    /// LongRoPE models (Phi-3 with 128k context) have one set of frequencies for short contexts and one for long ones;
    /// this option selects the set.
    pub context_length: Option<usize>,
    /// Keep the inputs and outputs of exported decoders instead of rewriting them for runners.
    pub as_exported: bool,
    /// Build decoders without head and caches, so that they return hidden states (GGUF only).
    pub hidden_states: bool,
    /// Layers whose inputs a decoder returns for every token, as further outputs after the logits (GGUF only).
    pub feature_layers: Vec<usize>,
}
