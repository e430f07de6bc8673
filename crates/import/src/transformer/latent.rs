//! Attention over latent rows (MLA), in its absorbed form: all heads attend to one row of each token.
//!
//! A head's key is a matrix times the latent row, and so is its value. The product of a query and such a key is the product of the
//! transposed matrix times the query and the latent row; the weighted sum of values is the matrix times the sum of latent rows.

use base::{Bytes, DType};
use graph::TensorId;
use graph::ops::{Concat, Linear, Reshape, Rope};

use super::attention::TokenMajorQkv;
use super::build::TransformerBuilder;
use super::weights::{self, Weights, floats};
use super::{AttentionSpec, LatentSpec, LayerSpec, Weight};
use crate::error::{ImportError, ImportErrorDetail};

impl TransformerBuilder<'_> {
    pub(super) fn latent_attention(
        &mut self,
        prefix: &str,
        index: usize,
        (layer, spec, latent): (&LayerSpec, &AttentionSpec, LatentSpec),
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let (heads, rank) = (spec.heads, spec.value_dim);
        let [to_keys, to_values] = self.head_matrices(prefix, heads, rank, latent)?;
        let q = self.latent_queries(prefix, (spec, latent), to_keys, normed)?;

        let name = format!("{prefix}attn_kv_a_mqa");
        let both = self.projection(&name, spec.key_dim)?;
        let both = self.linear(both, normed, false)?;
        let row = self.slice(&format!("{prefix}attn_kv_a"), both, 1, 0..rank)?;
        let row = self.rms_norm(&format!("{prefix}attn_kv_a_norm"), row, rank)?;
        let turned = self.slice(&format!("{name}.rope"), both, 1, rank..spec.key_dim)?;
        let k = self.node(
            &format!("{prefix}attn_k"),
            Concat { axis: 1 },
            &[turned, row],
        )?;
        let k = self.heads(prefix, "attn_k", k, [1, spec.key_dim])?;
        let v = self.heads(prefix, "attn_v", row, [1, rank])?;
        let q = self.turn(&format!("{prefix}attn_q.rotated"), q, layer.rope)?;
        let k = self.turn(&format!("{prefix}attn_k.rotated"), k, layer.rope)?;
        self.stored.push([k, v]);

        let operands = TokenMajorQkv {
            q,
            k,
            v,
            sinks: None,
        };
        let cache = self.cache_ids[index];
        let name = format!("{prefix}attn");
        let attended = self
            .attend
            .node(&mut self.graph, &name, cache, spec, operands)?;
        let shape = vec![self.step, (heads * rank).into()];
        let name = format!("{prefix}attn.latent");
        let attended = self.node(&name, Reshape { shape }, &[attended])?;
        let values = format!("{prefix}attn_v_b");
        let joined = self.by_head(&values, to_values, attended, |head| {
            head * rank..(head + 1) * rank
        })?;
        let output = self.projection(&format!("{prefix}attn_output"), self.spec.hidden_size)?;
        self.linear(output, joined, self.spec.biases.output)
    }

    /// The queries of all heads before their rotation, each the part that is rotated and its product with the head's matrix.
    fn latent_queries(
        &mut self,
        prefix: &str,
        (spec, latent): (&AttentionSpec, LatentSpec),
        to_keys: Vec<Weight>,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let (heads, plain) = (spec.heads, latent.plain_dim);
        let own = plain + latent.rotated_dim;
        let queries = match latent.query_rank {
            None => {
                let queries = self.projection(&format!("{prefix}attn_q"), heads * own)?;
                self.linear(queries, normed, false)?
            }
            Some(rank) => {
                let row = self.projection(&format!("{prefix}attn_q_a"), rank)?;
                let row = self.linear(row, normed, false)?;
                let row = self.rms_norm(&format!("{prefix}attn_q_a_norm"), row, rank)?;
                let queries = self.projection(&format!("{prefix}attn_q_b"), heads * own)?;
                self.linear(queries, row, false)?
            }
        };
        let absorbed = self.by_head(&format!("{prefix}attn_k_b"), to_keys, queries, |head| {
            head * own..head * own + plain
        })?;
        let absorbed = self.heads(prefix, "attn_k_b", absorbed, [heads, spec.value_dim])?;
        let queries = self.heads(prefix, "attn_q", queries, [heads, own])?;
        let turned = self.slice(&format!("{prefix}attn_q.rope"), queries, 2, plain..own)?;
        let name = format!("{prefix}attn_q.latent");
        self.node(&name, Concat { axis: 2 }, &[turned, absorbed])
    }

    /// Rotates the first elements of heads.
    fn turn(
        &mut self,
        name: &str,
        x: TensorId,
        rope: Option<usize>,
    ) -> Result<TensorId, ImportError> {
        let Some(rope) = rope else {
            return Ok(x);
        };
        let layout = self.spec.ropes[rope].layout;
        let table = self.rope_table(rope)?;
        self.node(name, Rope { layout }, &[x, table])
    }

    /// The product of each head's part of the rows with its matrix, side by side.
    fn by_head(
        &mut self,
        name: &str,
        matrices: Vec<Weight>,
        rows: TensorId,
        part: impl Fn(usize) -> std::ops::Range<usize>,
    ) -> Result<TensorId, ImportError> {
        let mut products = Vec::with_capacity(matrices.len());
        for (head, matrix) in matrices.into_iter().enumerate() {
            let range = part(head);
            let shape = [matrix.shape[0], range.len()];
            let x = self.slice(&format!("{name}.{head}.x"), rows, 1, range)?;
            let weight = format!("{name}.{head}.weight");
            let matrix = weights::matrix(&mut self.graph, &weight, matrix, shape)?;
            products.push(self.node(&format!("{name}.{head}"), Linear::default(), &[x, matrix])?);
        }
        self.node(name, Concat { axis: 1 }, &products)
    }

    /// The matrix of each head from its query to latent rows, and from latent rows to its value. Older files have both as one tensor
    /// from latent rows to keys and values.
    fn head_matrices(
        &self,
        prefix: &str,
        heads: usize,
        rank: usize,
        latent: LatentSpec,
    ) -> Result<[Vec<Weight>; 2], ImportError> {
        let (plain, value) = (latent.plain_dim, latent.head_value_dim);
        let name = format!("{prefix}attn_kv_b.weight");
        let split = format!("{prefix}attn_k_b.weight");
        let joined = self.weights.optional(&name);
        let Some(joined) = joined.filter(|_| self.weights.optional(&split).is_none()) else {
            let values = format!("{prefix}attn_v_b.weight");
            return Ok([
                matrices(&split, self.weights.required(&split)?, [heads, rank, plain])?,
                matrices(
                    &values,
                    self.weights.required(&values)?,
                    [heads, value, rank],
                )?,
            ]);
        };
        let (each, all) = (plain + value, heads * (plain + value));
        let part = |start, count| Weights::part(&name, &joined, start, count, all);
        let mut result = [vec![], vec![]];
        for head in 0..heads {
            let keys = part(head * each, plain)?;
            result[0].push(transposed(&name, &keys, [plain, rank])?);
            result[1].push(part(head * each + plain, value)?);
        }
        Ok(result)
    }
}

/// The matrices of a tensor that has one for each head.
fn matrices(name: &str, weight: Weight, shape: [usize; 3]) -> Result<Vec<Weight>, ImportError> {
    if weight.shape != shape {
        return Err(ImportErrorDetail::Shape {
            name: name.to_owned(),
            found: weight.shape,
            wanted: shape.to_vec(),
        }
        .into());
    }
    let [heads, rows, columns] = shape;
    let all = heads * rows;
    let weight = Weight {
        shape: vec![all, columns],
        ..weight
    };
    let each = (0..heads).map(|head| Weights::part(name, &weight, head * rows, rows, all));
    each.collect()
}

/// A matrix with rows and columns exchanged, in f32: blocks of quantised rows cannot be transposed.
fn transposed(name: &str, weight: &Weight, shape: [usize; 2]) -> Result<Weight, ImportError> {
    let [rows, columns] = shape;
    if weight.shape != shape {
        return Err(ImportErrorDetail::Shape {
            name: name.to_owned(),
            found: weight.shape.clone(),
            wanted: shape.to_vec(),
        }
        .into());
    }
    let values = floats(name, weight)?;
    let all = (0..columns).flat_map(|j| (0..rows).map(move |i| i * columns + j));
    let data: Vec<f32> = all.map(|at| values[at]).collect();
    Ok(Weight {
        dtype: DType::F32,
        shape: vec![columns, rows],
        data: Some(Bytes::from_slice(&data)),
    })
}
