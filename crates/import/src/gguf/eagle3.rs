//! Lowers a GGUF file of the architecture `eagle3`: a draft head that works on the features of another model.

use graph::ops::RopeLayout;

use super::architecture_keys::Keys;
use super::error::GgufError;
use super::file::Gguf;
use super::spec::TrackedTensors;
use crate::eagle3::{self, HeadParameters};
use crate::error::{ImportError, ImportErrorDetail};
use crate::lowered::{FeatureLayers, LoweredModel};

pub(super) use crate::eagle3::ARCHITECTURE;

/// Lowers a head to the methods `forward` and `fuse`.
pub(super) fn lower(file: &Gguf) -> Result<LoweredModel, ImportError> {
    let keys = Keys {
        metadata: &file.metadata,
        prefix: ARCHITECTURE,
    };
    let flag = |key: &str| file.metadata.bool(&keys.name(key));
    if flag("norm_before_fc")? == Some(true) {
        let name = keys.name("norm_before_fc");
        return Err(ImportError::unsupported(format!("{name} = true")));
    }
    let source = TrackedTensors::new(file);
    let name = keys.name("target_layers");
    let target_layers = file.metadata.usizes(&name)?;
    let target_layers = target_layers.filter(|layers| !layers.is_empty());
    let target_layers = target_layers.ok_or_else(|| GgufError::missing(&name))?;
    let hidden_size = keys.size("embedding_length")?;
    let heads = keys.size("attention.head_count")?;
    let key_dim = keys.optional_size("attention.key_length")?;
    let kv_heads = keys.optional_size("attention.head_count_kv")?;
    let target_hidden_size = keys.optional_size("target_hidden_size")?;
    let head = HeadParameters {
        name: file.metadata.str("general.name")?.map(str::to_owned),
        hidden_size,
        mlp_size: keys.size("feed_forward_length")?,
        heads,
        kv_heads: kv_heads.unwrap_or(heads),
        key_dim: key_dim.unwrap_or(hidden_size / heads),
        eps: keys
            .positive("attention.layer_norm_rms_epsilon")?
            .unwrap_or(1e-5),
        rope_layout: RopeLayout::Interleaved,
        rope_base: keys.positive("rope.freq_base")?.unwrap_or(10000.0),
        context_length: keys.size("context_length")?,
        norm_before_residual: flag("norm_before_residual")?.unwrap_or(false),
        target_layers: FeatureLayers::Listed(target_layers),
        target_hidden_size: target_hidden_size.unwrap_or(hidden_size),
        target_tokens: target_tokens(&source)?,
    };
    let lowered = eagle3::lower(head, &|name| source.weight(name))?;
    // The target's embedding is used, of which this is a copy.
    source.weight("token_embd.weight");
    if let Some(name) = source.unused() {
        let (name, architecture) = (name.to_owned(), ARCHITECTURE.to_owned());
        return Err(ImportErrorDetail::UnusedTensor { name, architecture }.into());
    }
    Ok(lowered)
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
    let ids = eagle3::integers(tensor.dtype, &tensor.data)?.into_iter();
    ids.map(eagle3::token).collect()
}
