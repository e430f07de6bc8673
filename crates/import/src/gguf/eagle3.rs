//! Lowers a GGUF file of the architecture `eagle3`: a draft head that works on the features of another model.

use base::DType;
use graph::ops::{Activation, RopeLayout};

use super::architecture_keys::Keys;
use super::error::GgufError;
use super::file::{Gguf, GgufTensor};
use super::spec::TrackedTensors;
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::{DraftHead, LoweredModel, Method};
use crate::model_facts::ModelFacts;
use crate::transformer::{
    AttentionSpec, Biases, ContextMode, Eagle3Spec, LayerSpec, Mlp, Norm, NormKind, NormPlacement,
    RopeScaling, RopeSpec, TransformerSpec, build_eagle3,
};

pub(super) const ARCHITECTURE: &str = "eagle3";

/// Lowers a head to the methods `forward` and `fuse`.
pub(super) fn lower(file: &Gguf) -> Result<LoweredModel, ImportError> {
    let keys = Keys {
        metadata: &file.metadata,
        prefix: ARCHITECTURE,
    };
    for key in ["norm_before_residual", "norm_before_fc"] {
        let name = keys.name(key);
        if file.metadata.bool(&name)? == Some(true) {
            return Err(ImportError::unsupported(format!("{name} = true")));
        }
    }
    let source = TrackedTensors::new(file);
    let name = keys.name("target_layers");
    let target_layers = file.metadata.usizes(&name)?;
    let target_layers = target_layers.filter(|layers| !layers.is_empty());
    let target_layers = target_layers.ok_or_else(|| GgufError::missing(&name))?;
    let target_tokens = target_tokens(&source)?;
    let hidden_size = keys.size("embedding_length")?;
    let target_hidden_size = keys.optional_size("target_hidden_size")?;
    let target_hidden_size = target_hidden_size.unwrap_or(hidden_size);
    let context_length = keys.size("context_length")?;
    let heads = keys.size("attention.head_count")?;
    let key_dim = match keys.optional_size("attention.key_length")? {
        Some(dim) => dim,
        None => hidden_size / heads,
    };
    let eps = keys.positive("attention.layer_norm_rms_epsilon")?;
    let transformer = TransformerSpec {
        vocab_size: target_tokens.len(),
        hidden_size,
        embedding_scale: None,
        learned_positions: None,
        embedding_norm: false,
        context: ContextMode::Cached,
        norm: Norm {
            kind: NormKind::Rms,
            eps: eps.unwrap_or(1e-5),
        },
        norm_places: NormPlacement::Pre,
        qk_norm: false,
        biases: Biases::default(),
        mlp: Mlp::Gated(Activation::Silu),
        ropes: vec![RopeSpec {
            layout: RopeLayout::Interleaved,
            dim: key_dim,
            base: keys.positive("rope.freq_base")?.unwrap_or(10000.0),
            scaling: RopeScaling::None,
            attention_factor: 1.0,
        }],
        final_softcap: None,
        layers: vec![LayerSpec {
            attention: AttentionSpec {
                heads,
                kv_heads: keys
                    .optional_size("attention.head_count_kv")?
                    .unwrap_or(heads),
                key_dim,
                value_dim: key_dim,
                window: None,
                scale: 1.0 / (key_dim as f32).sqrt(),
                softcap: None,
            },
            rope: Some(0),
            mlp_size: keys.size("feed_forward_length")?,
        }],
    };
    let mut facts = ModelFacts::of(&transformer, context_length, None);
    // The head has no tokens of its own: runners of decoders refuse it.
    facts.vocab_size = 0;
    let spec = Eagle3Spec {
        transformer,
        taps: target_layers.len(),
        target_hidden_size,
    };
    let graphs = build_eagle3(&spec, &|name| source.weight(name))?;
    // The target's embedding is used, of which this is a copy.
    source.weight("token_embd.weight");
    if let Some(name) = source.unused() {
        let (name, architecture) = (name.to_owned(), ARCHITECTURE.to_owned());
        return Err(ImportErrorDetail::UnusedTensor { name, architecture }.into());
    }
    let method = |graph: graph::Graph| Method {
        name: graph.name().to_owned(),
        graph,
    };
    Ok(LoweredModel {
        name: file.metadata.str("general.name")?.map(str::to_owned),
        architecture: ARCHITECTURE.to_owned(),
        methods: graphs.map(method).to_vec(),
        facts,
        draft_head: Some(DraftHead {
            target_layers,
            target_hidden_size,
            target_tokens,
        }),
    })
}

/// The tokens of the target, from `d2t`; as many as the head has rows if the vocabulary is not reduced.
fn target_tokens(source: &TrackedTensors<'_>) -> Result<Vec<u32>, ImportError> {
    let Some(tensor) = source.file.tensor("d2t") else {
        let output = source.file.tensor("output.weight");
        let output = output.ok_or_else(|| ImportError::missing_tensor("output.weight"))?;
        let rows = output.shape.first().copied().unwrap_or(0);
        return Ok((0..u32::try_from(rows).unwrap_or(0)).collect());
    };
    source.weight("d2t");
    let wrong = |id: i64| ImportError::value("d2t", format!("has the token {id}"));
    let ids: Vec<i64> = integers(tensor)?;
    let id = |id: i64| u32::try_from(id).map_err(|_| wrong(id));
    ids.into_iter().map(id).collect()
}

fn integers(tensor: &GgufTensor) -> Result<Vec<i64>, ImportError> {
    let bytes = &tensor.data[..];
    match tensor.dtype {
        DType::I32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            Ok(words.map(|word| i32::from_le_bytes(*word).into()).collect())
        }
        DType::I64 => {
            let words = bytes.as_chunks::<8>().0.iter();
            Ok(words.map(|word| i64::from_le_bytes(*word)).collect())
        }
        other => Err(ImportError::value(
            "d2t",
            format!("is {other}, must be i32 or i64"),
        )),
    }
}
