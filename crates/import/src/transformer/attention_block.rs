//! The attention block of a layer: projections, norms and rotary embeddings of queries and keys, and the output projection.

use base::{Bytes, DType};
use graph::TensorId;
use graph::ops::{Reshape, RmsNorm, Rope, RopeTable};

use super::attention::TokenMajorQkv;
use super::build::TransformerBuilder;
use super::linear::Projection;
use super::{KvSource, LayerSpec};
use crate::error::ImportError;

impl TransformerBuilder<'_> {
    pub(super) fn attention(
        &mut self,
        prefix: &str,
        index: usize,
        layer: &LayerSpec,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let spec = &layer.attention;
        let (q_rows, k_rows) = (spec.heads * spec.key_dim, spec.kv_heads * spec.key_dim);
        let v_rows = spec.kv_heads * spec.value_dim;
        let parts = [("attn_q", q_rows), ("attn_k", k_rows), ("attn_v", v_rows)];
        let projections: Vec<Projection> = match layer.kv {
            KvSource::Projected => self.projections(prefix, "attn_qkv", parts)?.into(),
            KvSource::KeysAsValues => vec![
                self.projection(&format!("{prefix}attn_q"), q_rows)?,
                self.projection(&format!("{prefix}attn_k"), k_rows)?,
            ],
            KvSource::Layer(_) => vec![self.projection(&format!("{prefix}attn_q"), q_rows)?],
        };

        // Consecutive products of the same rows are fused by the backend.
        let bias = self.spec.biases.qkv;
        let mut projected = Vec::with_capacity(projections.len());
        for projection in projections {
            projected.push(self.linear(projection, normed, bias)?);
        }
        let q = [spec.heads, spec.key_dim];
        let q = self.rotated(prefix, "attn_q", projected[0], q, layer.rope)?;
        let [k, v] = match layer.kv {
            KvSource::Layer(source) => self.stored[source],
            _ => {
                let (k, v) = (projected[1], *projected.last().expect("keys and values"));
                let shape = [spec.kv_heads, spec.key_dim];
                let k = self.rotated(prefix, "attn_k", k, shape, layer.rope)?;
                let mut v = self.heads(prefix, "attn_v", v, [spec.kv_heads, spec.value_dim])?;
                if self.spec.value_norm {
                    let ones = self.ones(spec.value_dim)?;
                    let eps = self.spec.norm.eps;
                    v = self.node(&format!("{prefix}attn_v_norm"), RmsNorm { eps }, &[v, ones])?;
                }
                [k, v]
            }
        };
        self.stored.push([k, v]);

        let heads = TokenMajorQkv { q, k, v };
        let name = format!("{prefix}attn");
        let cache = self.cache_ids[index];
        let attended = self
            .attend
            .node(&mut self.graph, &name, cache, spec, heads)?;
        let width = spec.heads * spec.value_dim;
        let shape = vec![self.step, width.into()];
        let name = format!("{prefix}attn.joined");
        let joined = self.node(&name, Reshape { shape }, &[attended])?;
        let output = self.projection(&format!("{prefix}attn_output"), self.spec.hidden_size)?;
        self.linear(output, joined, self.spec.biases.output)
    }

    /// Queries or keys by head, normalised and rotated if the model does so.
    fn rotated(
        &mut self,
        prefix: &str,
        name: &str,
        x: TensorId,
        shape: [usize; 2],
        rope: Option<usize>,
    ) -> Result<TensorId, ImportError> {
        let mut x = self.heads(prefix, name, x, shape)?;
        if self.spec.qk_norm {
            let name = format!("{prefix}{name}_norm");
            x = self.rms_norm(&name, x, shape[1])?;
        }
        if let Some(rope) = rope {
            let layout = self.spec.ropes[rope].layout;
            let table = self.rope_table(rope)?;
            x = self.node(
                &format!("{prefix}{name}.rotated"),
                Rope { layout },
                &[x, table],
            )?;
        }
        Ok(x)
    }

    fn heads(
        &mut self,
        prefix: &str,
        name: &str,
        x: TensorId,
        [heads, dim]: [usize; 2],
    ) -> Result<TensorId, ImportError> {
        let shape = vec![self.step, heads.into(), dim.into()];
        self.node(&format!("{prefix}{name}.heads"), Reshape { shape }, &[x])
    }

    /// The table of a rotary embedding, one for all layers that share it.
    fn rope_table(&mut self, index: usize) -> Result<TensorId, ImportError> {
        if let Some(table) = self.tables[index] {
            return Ok(table);
        }
        let rope = &self.spec.ropes[index];
        let name = match index {
            0 => "rope".to_owned(),
            index => format!("rope.{index}"),
        };
        let frequencies = rope.frequencies();
        if !frequencies.iter().all(|f| f.is_finite()) {
            let reason = "has frequencies that are not finite";
            return Err(ImportError::value("the rotary embedding", reason));
        }
        let frequency = self.graph.constant(
            &format!("{name}.frequency"),
            DType::F32,
            &[frequencies.len()],
            Bytes::from_slice(&frequencies),
        )?;
        let magnitude = rope.magnitude();
        let table = self.node(&name, RopeTable { magnitude }, &[self.position, frequency])?;
        self.tables[index] = Some(table);
        Ok(table)
    }

    /// A vector of ones.
    fn ones(&mut self, len: usize) -> Result<TensorId, ImportError> {
        if let Some((_, ones)) = self.ones.iter().find(|(known, _)| *known == len) {
            return Ok(*ones);
        }
        let data = Bytes::from_slice(&vec![1f32; len]);
        let ones = self
            .graph
            .constant(&format!("ones.{len}"), DType::F32, &[len], data)?;
        self.ones.push((len, ones));
        Ok(ones)
    }
}
