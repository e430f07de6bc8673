//! Eagle3 draft heads: what every format has to say about one, and its lowering.

use graph::ops::{Activation, RopeLayout};

use crate::error::ImportError;
use crate::lowered::{DraftHead, FeatureLayers, HeadKind, LoweredModel, Method};
use crate::model_facts::ModelFacts;
use crate::transformer::{
    AttentionSpec, Biases, ContextMode, Eagle3Spec, KvSource, LayerSpec, Mixer, Mlp, Norm,
    NormKind, NormPlacement, QkNorm, RopeScaling, RopeSpec, TransformerSpec, Weight, build_eagle3,
};

/// The architecture's name.
pub(crate) const ARCHITECTURE: &str = "eagle3";

/// Parameters of a head, from any format.
pub(crate) struct HeadParameters {
    pub(crate) name: Option<String>,
    pub(crate) hidden_size: usize,
    pub(crate) mlp_size: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) eps: f32,
    pub(crate) rope_layout: RopeLayout,
    pub(crate) rope_base: f32,
    pub(crate) context_length: usize,
    /// The residual stream begins with the normalised feature, not with the feature itself.
    pub(crate) norm_before_residual: bool,
    pub(crate) target_layers: FeatureLayers,
    pub(crate) target_hidden_size: usize,
    /// The token of the target for each row of the head.
    pub(crate) target_tokens: Vec<u32>,
}

/// Lowers a head to the methods `forward` and `fuse`. `lookup` returns a weight by its GGUF name.
pub(crate) fn lower(
    head: HeadParameters,
    lookup: &dyn Fn(&str) -> Option<Weight>,
) -> Result<LoweredModel, ImportError> {
    let transformer = TransformerSpec {
        vocab_size: head.target_tokens.len(),
        hidden_size: head.hidden_size,
        embedding_scale: None,
        learned_positions: None,
        embedding_norm: false,
        context: ContextMode::Cached,
        norm: Norm {
            kind: NormKind::Rms,
            eps: head.eps,
        },
        norm_places: NormPlacement::Pre,
        qk_norm: QkNorm::None,
        value_norm: false,
        per_layer_input: None,
        layer_scales: false,
        sinks: false,
        biases: Biases::default(),
        mlp: Mlp::Gated(Activation::Silu),
        ropes: vec![RopeSpec {
            layout: head.rope_layout,
            dim: head.key_dim,
            base: head.rope_base,
            scaling: RopeScaling::None,
            attention_factor: 1.0,
        }],
        residual_scale: None,
        logit_scale: None,
        final_softcap: None,
        layers: vec![LayerSpec {
            mixer: Mixer::Attention(AttentionSpec {
                heads: head.heads,
                kv_heads: head.kv_heads,
                key_dim: head.key_dim,
                value_dim: head.key_dim,
                window: None,
                scale: 1.0 / (head.key_dim as f32).sqrt(),
                softcap: None,
                output_gate: false,
                latent: None,
            }),
            rope: Some(0),
            mlp_size: head.mlp_size,
            experts: None,
            kv: KvSource::Projected,
        }],
    };
    let mut facts = ModelFacts::of(&transformer, head.context_length, None);
    // The head has no tokens of its own: runners of decoders refuse it.
    facts.vocab_size = 0;
    let spec = Eagle3Spec {
        transformer,
        taps: head.target_layers.len(),
        target_hidden_size: head.target_hidden_size,
        norm_before_residual: head.norm_before_residual,
    };
    let method = |graph: graph::Graph| Method {
        name: graph.name().to_owned(),
        graph,
    };
    Ok(LoweredModel {
        name: head.name,
        architecture: ARCHITECTURE.to_owned(),
        methods: build_eagle3(&spec, lookup)?.map(method).to_vec(),
        shaped: vec![],
        facts,
        draft_head: Some(DraftHead {
            kind: HeadKind::Eagle3,
            target_layers: head.target_layers,
            target_hidden_size: head.target_hidden_size,
            target_caches: vec![],
            target_tokens: head.target_tokens,
        }),
    })
}

/// The numbers of a stored `d2t`.
pub(crate) fn integers(dtype: base::DType, bytes: &[u8]) -> Result<Vec<i64>, ImportError> {
    match dtype {
        base::DType::I32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            Ok(words.map(|word| i32::from_le_bytes(*word).into()).collect())
        }
        base::DType::I64 => {
            let words = bytes.as_chunks::<8>().0.iter();
            Ok(words.map(|word| i64::from_le_bytes(*word)).collect())
        }
        other => Err(ImportError::value(
            "d2t",
            format!("is {other}, must be i32 or i64"),
        )),
    }
}

/// A token's number from `d2t`.
pub(crate) fn token(id: i64) -> Result<u32, ImportError> {
    let token = u32::try_from(id)
        .ok()
        .filter(|id| i32::try_from(*id).is_ok());
    token.ok_or_else(|| ImportError::value("d2t", format!("has the token {id}")))
}
