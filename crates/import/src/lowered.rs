//! Options and result of a lowering, the same for every format.

use graph::Graph;

use crate::by_shape::ShapedMethod;
use crate::error::ImportError;
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
    /// Entry points without a graph for all shapes; none unless the options accept them.
    pub shaped: Vec<ShapedMethod>,
    /// Facts that caches and runners need.
    pub facts: ModelFacts,
    /// Set if the model is a draft head, which works on the features of another model.
    pub draft_head: Option<DraftHead>,
}

/// The kinds of draft heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// A file of its own, which takes the inputs of several layers.
    Eagle3,
    /// A block of the model's file behind its last layer, which takes the model's last state.
    Mtp,
    /// A file of its own, which takes the model's last state, and attends to keys and values of the model.
    Assistant,
}

/// A draft head: what it needs of its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftHead {
    /// Its kind.
    pub kind: HeadKind,
    /// The target's layers whose inputs are the features, in the order in which the head takes them.
    pub target_layers: FeatureLayers,
    /// Width of the target's residual stream.
    pub target_hidden_size: usize,
    /// The caches of the target whose new keys and values are features too; none for heads with keys and values of their own.
    pub target_caches: Vec<kv::LayerConfig>,
    /// The token of the target for each token of the head's vocabulary.
    pub target_tokens: Vec<u32>,
}

impl DraftHead {
    /// The widths of the target's features: of each layer's input, then of the keys and of the values of each cache.
    pub fn feature_widths(&self) -> Vec<usize> {
        let layers = std::iter::repeat_n(self.target_hidden_size, self.target_layers.len());
        let caches = self.target_caches.iter();
        let rows = caches.flat_map(|c| [c.kv_heads * c.key_dim, c.kv_heads * c.value_dim]);
        layers.chain(rows).collect()
    }
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
    /// Accept methods that have no graph for all shapes of their inputs ([`ShapedMethod`]).
    pub by_shape: bool,
    /// Lower the MTP head that a model's file carries in the place of the model (GGUF only).
    pub mtp_head: bool,
    /// Build decoders without head and caches, so that they return hidden states (GGUF only).
    pub hidden_states: bool,
    /// Layers whose inputs a decoder returns for every token, as further outputs after the logits (GGUF, and `.pt2` files
    /// that were exported with them).
    pub feature_layers: FeatureLayers,
}

/// Layers of a decoder whose inputs are the features that a draft head works on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FeatureLayers {
    /// None: the decoder computes no features.
    #[default]
    None,
    /// These, in this order.
    Listed(Vec<usize>),
    /// Layers 2, L/2 and L − 3 of L, which a head uses that names none.
    Standard,
    /// The normalised last state, for the MTP head that the model's file carries; none if the file carries none.
    Mtp,
    /// The normalised last state, and then the new keys and values of the last layers that have some of their own: for each entry, of
    /// the last such layer with a window (`true`) or without one.
    WithKeysAndValues(Vec<bool>),
}

impl FeatureLayers {
    /// The number of layers.
    pub fn len(&self) -> usize {
        match self {
            FeatureLayers::None => 0,
            FeatureLayers::Listed(list) => list.len(),
            FeatureLayers::Standard => 3,
            FeatureLayers::Mtp | FeatureLayers::WithKeysAndValues(_) => 1,
        }
    }

    /// Whether no features are wanted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The layers of a decoder that has this many. This number itself stands for the model's head, whose input is the normalised last
    /// state.
    ///
    /// # Errors
    /// `Value` if the decoder has no such layer.
    pub fn resolve(&self, layers: usize) -> Result<Vec<usize>, ImportError> {
        let wrong = |reason| ImportError::value("a layer of the features", reason);
        let found = match self {
            FeatureLayers::None => vec![],
            FeatureLayers::Mtp | FeatureLayers::WithKeysAndValues(_) => return Ok(vec![layers]),
            FeatureLayers::Listed(list) => list.clone(),
            FeatureLayers::Standard if layers < 4 => {
                let reason = format!("is L - 3 of L layers, and the model has {layers} layers");
                return Err(wrong(reason));
            }
            FeatureLayers::Standard => vec![2, layers / 2, layers - 3],
        };
        match found.iter().find(|layer| **layer >= layers) {
            Some(layer) => Err(wrong(format!(
                "is {layer}, and the model has {layers} layers"
            ))),
            None => Ok(found),
        }
    }
}
