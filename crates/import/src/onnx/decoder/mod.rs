//! Recognises decoders among ONNX models: their caches and their attention over them.
//!
//! An exported decoder takes its caches as inputs and returns them as outputs. Runners keep them behind
//! [`UpdateAndAttend`](graph::ops::UpdateAndAttend) instead, so every attention over a cache is found
//! and its window determined; cache tensors, indices and masks are then unused.

mod attention_site;
mod cache_inputs;
mod cache_view;
pub(super) mod lower;
mod mask;
mod mask_probe;
mod position_tensors;
mod subgraph_eval;

pub use cache_inputs::{CacheInputs, CacheLayout, cache_layers, discover_kv_layers};

use graph::Graph;

use super::file::Onnx;
use crate::cache_configs::caches;
use crate::error::ImportError;
use crate::genai::{DecoderNames, GenAi};
use crate::model_facts::{DEFAULT_CONTEXT_LENGTH, ModelFacts};
use attention_site::AttentionSite;
use mask_probe::{AttentionWindow, MaskProbe};

/// A model that turns tokens into logits over caches.
pub(super) struct OnnxDecoder<'a> {
    pub(super) names: DecoderNames,
    pub(super) caches: Vec<CacheInputs>,
    /// Attention sites with their windows.
    pub(super) sites: Vec<(AttentionSite<'a>, AttentionWindow)>,
    /// Tensors that the model computes and that hold the positions of the step's tokens.
    pub(super) positions: Vec<&'a str>,
    /// Maximum number of positions: the limit of its buffers and tables, and of the mask probe.
    pub(super) limit: usize,
}

/// Limit on the positions of a mask probe. Masks on decomposed scores need more memory, so their limit is lower.
const MAX_POSITIONS: usize = 1 << 17;
const MAX_POSITIONS_BY_SCORES: usize = 1 << 14;

impl OnnxDecoder<'_> {
    /// Facts that caches and runners need, with the context length that the configuration states.
    pub(super) fn facts(
        &self,
        graph: &Graph,
        context: Option<usize>,
    ) -> Result<ModelFacts, ImportError> {
        let mut layers = caches(graph)?;
        for (layer, cache) in layers.iter_mut().zip(0..) {
            let mut windows = self.sites.iter().filter(|(site, _)| site.cache == cache);
            let window = |found: Option<&(AttentionSite<'_>, AttentionWindow)>| {
                found.and_then(|(_, s)| s.window)
            };
            layer.window = window(windows.next());
            if windows.any(|site| window(Some(site)) != layer.window) {
                let what = format!("cache {:?}", self.caches[cache].key);
                return Err(ImportError::value(what, "is attended with two windows"));
            }
        }
        let logits = graph
            .outputs()
            .first()
            .map(|id| &graph.tensor(*id).ty.shape);
        let vocab = logits.and_then(|shape| shape.last()?.as_const());
        Ok(ModelFacts {
            pooling: None,
            caches: layers,
            context_length: context.unwrap_or(DEFAULT_CONTEXT_LENGTH).min(self.limit),
            context_stated: context.is_some(),
            vocab_size: vocab.unwrap_or(0),
            context_limit: Some(self.limit),
            ..ModelFacts::none()
        })
    }
}

/// Whether a model is a decoder: it takes tokens and caches and returns logits.
pub(super) fn names(
    file: &Onnx,
    genai: Option<&GenAi>,
) -> Result<Option<(DecoderNames, Vec<CacheInputs>)>, ImportError> {
    let names = genai.map_or_else(DecoderNames::default, |config| config.names.clone());
    let takes = |name: &str| file.inputs.iter().any(|port| port.name == name);
    let gives = |name: &str| file.outputs.iter().any(|port| port.name == name);
    if !takes(&names.input_ids) || !gives(&names.logits) {
        return Ok(None);
    }
    let caches = cache_layers(file, &names)?;
    Ok(Some((names, caches)).filter(|(_, caches)| !caches.is_empty()))
}

/// Analyses the attention of a decoder.
pub(super) fn find<'a>(
    file: &'a Onnx,
    names: DecoderNames,
    caches: &'a [CacheInputs],
) -> Result<OnnxDecoder<'a>, ImportError> {
    let (sites, presents) = attention_site::sites(file, caches)?;
    if let Some(cache) = (0..caches.len()).find(|id| sites.iter().all(|site| site.cache != *id)) {
        let what = format!("cache {:?}", caches[cache].key);
        return Err(ImportError::value(
            what,
            "is attended by no node that kvark recognises",
        ));
    }
    let rows = caches.iter().filter_map(|cache| cache.form.fixed_rows());
    let long = |cache: &&CacheInputs| cache.form.fixed_rows() > Some(MAX_POSITIONS);
    if let Some(cache) = caches.iter().find(long) {
        let what = format!("cache {:?}", cache.key);
        let reason = format!("has more than {MAX_POSITIONS} rows");
        return Err(ImportError::value(what, reason));
    }
    let most = match sites.iter().any(AttentionSite::is_decomposed) {
        true => MAX_POSITIONS_BY_SCORES,
        false => MAX_POSITIONS,
    };
    let mut look = MaskProbe {
        file,
        names: &names,
        caches,
        presents: &presents,
        sites: &sites,
        max_positions: rows.min().unwrap_or(most).min(most),
    };
    let positions = look.positions()?;
    let counted = positions.iter().copied().chain([&names.position_ids[..]]);
    let tables = tables(file, &sites, &counted.collect::<Vec<_>>());
    look.max_positions = tables
        .into_iter()
        .chain([look.max_positions])
        .min()
        .unwrap_or(0);
    if look.max_positions == 0 {
        return Err(ImportError::value("the model", "has tables without rows"));
    }
    let (windows, limit) = (look.windows()?, look.max_positions);
    Ok(OnnxDecoder {
        sites: sites.into_iter().zip(windows).collect(),
        caches: caches.to_vec(),
        positions,
        names,
        limit,
    })
}

/// Rows of the tables that positions are looked up in.
fn tables(file: &Onnx, sites: &[AttentionSite<'_>], positions: &[&str]) -> Vec<usize> {
    let rows = |name: &str| file.tensors.get(name)?.shape.first().copied();
    let gathered = file.nodes.iter().filter(|node| node.op == "Gather");
    let by_position = |name: &String| positions.contains(&&name[..]);
    let gathered = gathered.filter(|node| node.inputs.get(1).is_some_and(by_position));
    let gathered = gathered.filter_map(|node| rows(node.inputs.first()?));
    let rotated = sites.iter().filter_map(|site| rows(site.rotary?.cos));
    gathered.chain(rotated).collect()
}

#[cfg(test)]
mod tests;
