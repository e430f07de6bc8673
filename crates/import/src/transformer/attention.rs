//! Builds the attention of a layer, cached or within the step.

use std::collections::HashMap;

use base::{Bytes, DType};
use graph::ops::{
    Attention, Binary, BinaryFunction, Compare, CompareFunction, Permute, Reshape, UpdateAndAttend,
};
use graph::{GraphBuilder, TensorId};

use super::{AttentionSpec, ContextMode};
use crate::error::ImportError;

/// Queries, keys and values, `[T, heads, dim]` each, and sinks.
pub(super) struct TokenMajorQkv {
    pub(super) q: TensorId,
    pub(super) k: TensorId,
    pub(super) v: TensorId,
    /// A sink for each query head, `[heads]`.
    pub(super) sinks: Option<TensorId>,
}

/// Builds the attention nodes of all layers and their masks.
pub(super) struct AttentionBuilder {
    context: ContextMode,
    position: TensorId,
    /// Text number of each token, for an uncached context.
    text: TensorId,
    /// Masks by window, built on first use.
    masks: HashMap<Option<u32>, TensorId>,
}

impl AttentionBuilder {
    pub(super) fn new(
        context: ContextMode,
        position: TensorId,
        text: TensorId,
    ) -> AttentionBuilder {
        AttentionBuilder {
            context,
            position,
            text,
            masks: HashMap::new(),
        }
    }

    /// Attention output of a layer with this cache, `[T, heads, dim]`.
    pub(super) fn node(
        &mut self,
        graph: &mut GraphBuilder,
        name: &str,
        cache_id: u32,
        spec: &AttentionSpec,
        TokenMajorQkv { q, k, v, sinks }: TokenMajorQkv,
    ) -> Result<TensorId, ImportError> {
        let causal = match self.context {
            ContextMode::Cached => {
                let op = UpdateAndAttend {
                    cache_id,
                    scale: spec.scale,
                    softcap: spec.softcap,
                };
                let operands = [q, k, v, self.position].into_iter().chain(sinks);
                let operands: Vec<TensorId> = operands.collect();
                return Ok(graph.node(name, op, &operands)?);
            }
            ContextMode::Uncached { causal } => causal,
        };
        if sinks.is_some() {
            let what = "hidden states of a model with attention sinks";
            return Err(ImportError::unsupported(what));
        }
        let mask = self.mask(graph, spec.window)?;
        let op = Attention {
            scale: spec.scale,
            causal,
            softcap: spec.softcap,
            token_major: false,
        };
        let swap = || Permute {
            axes: vec![1, 0, 2],
        };
        let q = graph.node(&format!("{name}.q"), swap(), &[q])?;
        let k = graph.node(&format!("{name}.k"), swap(), &[k])?;
        let v = graph.node(&format!("{name}.v"), swap(), &[v])?;
        let attended = graph.node(&format!("{name}.heads"), op, &[q, k, v, mask])?;
        Ok(graph.node(name, swap(), &[attended])?)
    }

    /// Boolean mask by query and key: true if both tokens are of one text and within the window.
    fn mask(
        &mut self,
        graph: &mut GraphBuilder,
        window: Option<u32>,
    ) -> Result<TensorId, ImportError> {
        if let Some(mask) = self.masks.get(&window) {
            return Ok(*mask);
        }
        let mask = match window {
            None => {
                let [row, column] = pair(graph, "text", self.text)?;
                let function = CompareFunction::Eq;
                graph.node("same_text", Compare { function }, &[row, column])?
            }
            Some(window) => {
                let same = self.mask(graph, None)?;
                let [row, column] = pair(graph, "position", self.position)?;
                let function = BinaryFunction::Sub;
                let distance = graph.node("distance", Binary { function }, &[row, column])?;
                let size = Bytes::from_slice(&[window.min(i32::MAX as u32) as i32]);
                let size = graph.constant("window", DType::I32, &[1], size)?;
                let function = CompareFunction::Lt;
                let near = graph.node("near", Compare { function }, &[distance, size])?;
                let function = BinaryFunction::And;
                graph.node("near_same_text", Binary { function }, &[same, near])?
            }
        };
        self.masks.insert(window, mask);
        Ok(mask)
    }
}

/// A vector `[T]` as `[T, 1]` and as `[1, T]`.
fn pair(
    graph: &mut GraphBuilder,
    name: &str,
    vector: TensorId,
) -> Result<[TensorId; 2], ImportError> {
    let len = graph.ty(vector).shape[0];
    let shape = vec![len, 1.into()];
    let row = graph.node(&format!("{name}.row"), Reshape { shape }, &[vector])?;
    let shape = vec![1.into(), len];
    let column = graph.node(&format!("{name}.column"), Reshape { shape }, &[vector])?;
    Ok([row, column])
}
