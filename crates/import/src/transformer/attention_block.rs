//! The attention block of a layer: projections, norms and rotary embeddings of queries and keys, and the output projection.

use base::{Bytes, DType};
use graph::TensorId;
use graph::ops::{
    Activation, Binary, BinaryFunction, LayerNorm, Reshape, RmsNorm, Rope, RopeTable, Unary,
    UnaryFunction,
};

use super::attention::TokenMajorQkv;
use super::build::TransformerBuilder;
use super::linear::Projection;
use super::weights;
use super::{AttentionSpec, KvSource, LayerSpec, QkNorm};
use crate::error::ImportError;

impl TransformerBuilder<'_> {
    pub(super) fn attention(
        &mut self,
        prefix: &str,
        index: usize,
        (layer, spec): (&LayerSpec, &AttentionSpec),
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        if let Some(latent) = spec.latent {
            return self.latent_attention(prefix, index, (layer, spec, latent), normed);
        }
        let gated = if spec.output_gate { 2 } else { 1 };
        let (q_rows, k_rows) = (
            gated * spec.heads * spec.key_dim,
            spec.kv_heads * spec.key_dim,
        );
        let v_rows = spec.kv_heads * spec.value_dim;
        let parts = [("attn_q", q_rows), ("attn_k", k_rows), ("attn_v", v_rows)];
        let projections: Vec<Projection> = match layer.kv {
            KvSource::Projected => self.projections(prefix, "attn_qkv", parts)?.into(),
            KvSource::KeysAsValues => vec![
                self.projection(&format!("{prefix}attn_q"), q_rows)?,
                self.projection(&format!("{prefix}attn_k"), k_rows)?,
            ],
            KvSource::Layer(_) | KvSource::Given(_) => {
                vec![self.projection(&format!("{prefix}attn_q"), q_rows)?]
            }
        };

        // Consecutive products of the same rows are fused by the backend.
        let bias = self.spec.biases.qkv;
        let mut projected = Vec::with_capacity(projections.len());
        for projection in projections {
            projected.push(self.linear(projection, normed, bias)?);
        }
        let q = [spec.heads, spec.key_dim];
        let (queries, gate) = match spec.output_gate {
            true => {
                let (queries, gate) = self.queries_and_gate(prefix, projected[0], q)?;
                (queries, Some(gate))
            }
            false => (projected[0], None),
        };
        let q = self.rotated(prefix, "attn_q", queries, q, layer.rope)?;
        let [k, v] = match layer.kv {
            KvSource::Layer(source) => self.stored[source],
            KvSource::Given(cache) => self.given[cache],
            _ => {
                let (k, v) = (projected[1], *projected.last().expect("keys and values"));
                let shape = [spec.kv_heads, spec.key_dim];
                let k = self.rotated(prefix, "attn_k", k, shape, layer.rope)?;
                let mut v = self.heads(prefix, "attn_v", v, [spec.kv_heads, spec.value_dim])?;
                if self.spec.value_norm {
                    let ones = self.filled(spec.value_dim, 1.0)?;
                    let eps = self.spec.norm.eps;
                    v = self.node(&format!("{prefix}attn_v_norm"), RmsNorm { eps }, &[v, ones])?;
                }
                [k, v]
            }
        };
        self.stored.push([k, v]);

        let sinks = match self.spec.sinks {
            true => {
                let sinks = format!("{prefix}attn_sinks.weight");
                Some(self.named_vector(&sinks, spec.heads)?)
            }
            false => None,
        };
        let heads = TokenMajorQkv { q, k, v, sinks };
        let name = format!("{prefix}attn");
        let cache = self.cache_ids[index];
        let attended = self
            .attend
            .node(&mut self.graph, &name, cache, spec, heads)?;
        let width = spec.heads * spec.value_dim;
        let shape = vec![self.step, width.into()];
        let name = format!("{prefix}attn.joined");
        let mut joined = self.node(&name, Reshape { shape }, &[attended])?;
        if let Some(gate) = gate {
            let function = BinaryFunction::Mul;
            joined = self.node(
                &format!("{prefix}attn.gated"),
                Binary { function },
                &[joined, gate],
            )?;
        }
        let output = self.projection(&format!("{prefix}attn_output"), self.spec.hidden_size)?;
        self.linear(output, joined, self.spec.biases.output)
    }

    /// Queries, and the gate of the result: each head has its query and then its gate.
    fn queries_and_gate(
        &mut self,
        prefix: &str,
        x: TensorId,
        [heads, dim]: [usize; 2],
    ) -> Result<(TensorId, TensorId), ImportError> {
        let pairs = self.heads(prefix, "attn_q.pairs", x, [heads, 2 * dim])?;
        let queries = self.slice(&format!("{prefix}attn_q.queries"), pairs, 2, 0..dim)?;
        let gate = self.slice(&format!("{prefix}attn_q.gate"), pairs, 2, dim..2 * dim)?;
        let shape = vec![self.step, (heads * dim).into()];
        let gate = self.node(
            &format!("{prefix}attn_gate.joined"),
            Reshape { shape },
            &[gate],
        )?;
        let function = UnaryFunction::Activation(Activation::Sigmoid);
        let gate = self.node(&format!("{prefix}attn_gate"), Unary { function }, &[gate])?;
        Ok((queries, gate))
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
        let norm = format!("{prefix}{name}_norm");
        let x = match self.spec.qk_norm {
            QkNorm::Row => self.rms_norm(&norm, x, shape[0] * shape[1])?,
            _ => x,
        };
        let mut x = self.heads(prefix, name, x, shape)?;
        match self.spec.qk_norm {
            QkNorm::Head => x = self.rms_norm(&norm, x, shape[1])?,
            QkNorm::HeadIfPresent => {
                if self.weights.optional(&format!("{norm}.weight")).is_some() {
                    x = self.rms_norm(&norm, x, shape[1])?;
                }
            }
            QkNorm::LayerByHead => x = self.layer_norm_by_head(&norm, x, shape)?,
            QkNorm::RotatedHead | QkNorm::Row | QkNorm::None => {}
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
        match self.spec.qk_norm {
            QkNorm::RotatedHead => self.rms_norm(&norm, x, shape[1]),
            _ => Ok(x),
        }
    }

    /// Layer norm of each head, multiplied by the head's own weight; `x` itself if the file has no weights of this name.
    fn layer_norm_by_head(
        &mut self,
        name: &str,
        x: TensorId,
        shape: [usize; 2],
    ) -> Result<TensorId, ImportError> {
        let weight_name = format!("{name}.weight");
        let Some(weight) = self.weights.optional(&weight_name) else {
            return Ok(x);
        };
        let eps = self.spec.norm.eps;
        let (ones, zeros) = (self.filled(shape[1], 1.0)?, self.filled(shape[1], 0.0)?);
        let normed = format!("{name}.normalised");
        let x = self.node(&normed, LayerNorm { eps }, &[x, ones, zeros])?;
        let weight = weights::f32_matrix(&mut self.graph, &weight_name, &weight, shape)?;
        let function = BinaryFunction::Mul;
        self.node(name, Binary { function }, &[x, weight])
    }

    pub(super) fn heads(
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
    pub(super) fn rope_table(&mut self, index: usize) -> Result<TensorId, ImportError> {
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

    /// A constant vector of one repeated value.
    pub(super) fn filled(&mut self, len: usize, value: f32) -> Result<TensorId, ImportError> {
        let mut known = self.filled.iter();
        if let Some((.., vector)) = known.find(|(n, v, _)| (*n, *v) == (len, value)) {
            return Ok(*vector);
        }
        let data = Bytes::from_slice(&vec![value; len]);
        let name = match value {
            0.0 => format!("zeros.{len}"),
            1.0 => format!("ones.{len}"),
            other => format!("filled.{len}.{other}"),
        };
        let vector = self.graph.constant(&name, DType::F32, &[len], data)?;
        self.filled.push((len, value, vector));
        Ok(vector)
    }
}
