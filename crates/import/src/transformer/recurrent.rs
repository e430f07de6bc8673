//! Blocks with a state: gated short convolutions, Mamba-2 and gated delta nets.

use std::ops::Range;

use graph::TensorId;
use graph::ops::{
    Activation, Binary, BinaryFunction, CausalConv, Gated, HeadSharing, LinearAttention, Reshape,
    RmsNorm, Slice, Unary, UnaryFunction,
};

use super::build::TransformerBuilder;
use super::weights;
use super::{ScanRule, ScanSpec, Weight};
use crate::error::ImportError;

impl TransformerBuilder<'_> {
    /// A causal convolution of a gated input, whose result is gated again.
    pub(super) fn short_conv(
        &mut self,
        prefix: &str,
        index: usize,
        taps: usize,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let width = self.spec.hidden_size;
        let prefix = format!("{prefix}shortconv.");
        let parts = [("gate", width), ("output_gate", width), ("input", width)];
        let parts = self.projections(&prefix, "in_proj", parts)?;
        let mut projected = vec![];
        for part in parts {
            projected.push(self.linear(part, normed, false)?);
        }
        let x = self.mul(&format!("{prefix}gated"), projected[0], projected[2])?;
        let (cache_id, activation) = (self.cache_ids[index], None);
        let conv = CausalConv {
            cache_id,
            activation,
        };
        let mixed = self.causal_conv(&format!("{prefix}conv"), conv, [width, taps], x)?;
        let mixed = self.mul(&format!("{prefix}conv.gated"), projected[1], mixed)?;
        let output = self.projection(&format!("{prefix}out_proj"), width)?;
        self.linear(output, mixed, false)
    }

    /// A causal convolution of queries, keys and values, and a scan over them.
    pub(super) fn scan(
        &mut self,
        prefix: &str,
        index: usize,
        scan: &ScanSpec,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let prefix = format!("{prefix}ssm_");
        let cache_id = self.cache_ids[index];
        let conv = CausalConv {
            cache_id,
            activation: Some(Activation::Silu),
        };
        let gated = match scan.rule {
            ScanRule::Mamba2 => self.mamba2(&prefix, conv, scan, normed)?,
            ScanRule::GatedDelta(sharing) => {
                self.gated_delta(&prefix, conv, (scan, sharing), normed)?
            }
        };
        let output = self.projection(&format!("{prefix}out"), self.spec.hidden_size)?;
        self.linear(output, gated, false)
    }

    fn mamba2(
        &mut self,
        prefix: &str,
        conv: CausalConv,
        scan: &ScanSpec,
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let (keys, values, heads) = (scan.keys(), scan.values(), scan.heads);
        let parts = [("z", values), ("xbc", scan.channels()), ("dt", heads)];
        let [z, xbc, dt] = self.projections(prefix, "in", parts)?;
        let z = self.linear(z, normed, false)?;
        let xbc = self.linear(xbc, normed, false)?;
        let dt = self.linear(dt, normed, false)?;
        let cache_id = conv.cache_id + 1;
        let sizes = [scan.channels(), scan.taps];
        let xbc = self.causal_conv(&format!("{prefix}conv1d"), conv, sizes, xbc)?;
        let x = self.slice(&format!("{prefix}x"), xbc, 1, 0..values)?;
        let k = self.slice(&format!("{prefix}b"), xbc, 1, values..values + keys)?;
        let q = self.slice(
            &format!("{prefix}c"),
            xbc,
            1,
            values + keys..values + 2 * keys,
        )?;
        let dt = self.step_sizes(prefix, dt, heads)?;
        let a = self.head_numbers(&format!("{prefix}a"), [heads, 1])?;
        let decay = self.mul_row(&format!("{prefix}decay"), dt, a, heads)?;
        let x = self.heads(prefix, "x", x, [heads, scan.value_dim])?;
        let factor = self.heads(prefix, "dt", dt, [heads, 1])?;
        let v = self.mul(&format!("{prefix}x.scaled"), x, factor)?;
        let k = self.heads(prefix, "b", k, [scan.groups, scan.key_dim])?;
        let q = self.heads(prefix, "c", q, [scan.groups, scan.key_dim])?;
        let attend = LinearAttention {
            cache_id,
            scale: 1.0,
            sharing: HeadSharing::Blocks,
        };
        let operands = [q, k, v, decay, self.position];
        let y = self.node(&format!("{prefix}scan"), attend, &operands)?;
        let d = self.head_numbers(&format!("{prefix}d"), [heads, 1])?;
        let skipped = self.mul(&format!("{prefix}x.skipped"), x, d)?;
        let y = self.add(&format!("{prefix}scan.skipped"), y, skipped)?;
        let y = self.joined(&format!("{prefix}scan.joined"), y, values)?;
        let function = Activation::Silu;
        let y = self.node(&format!("{prefix}gated"), Gated { function }, &[z, y])?;
        self.norm_by_group(prefix, y, [scan.groups, values / scan.groups])
    }

    fn gated_delta(
        &mut self,
        prefix: &str,
        conv: CausalConv,
        (scan, sharing): (&ScanSpec, HeadSharing),
        normed: TensorId,
    ) -> Result<TensorId, ImportError> {
        let (keys, values, heads) = (scan.keys(), scan.values(), scan.heads);
        let block = prefix.trim_end_matches("ssm_").to_owned();
        let qkv = self.projection(&format!("{block}attn_qkv"), scan.channels())?;
        let qkv = self.linear(qkv, normed, false)?;
        let z = self.projection(&format!("{block}attn_gate"), values)?;
        let z = self.linear(z, normed, false)?;
        let [beta, alpha] = self.delta_gates(prefix, scan, normed)?;
        let cache_id = conv.cache_id + 1;
        let sizes = [scan.channels(), scan.taps];
        let qkv = self.causal_conv(&format!("{prefix}conv1d"), conv, sizes, qkv)?;
        let q = self.slice(&format!("{prefix}q"), qkv, 1, 0..keys)?;
        let k = self.slice(&format!("{prefix}k"), qkv, 1, keys..2 * keys)?;
        let v = self.slice(&format!("{prefix}v"), qkv, 1, 2 * keys..2 * keys + values)?;
        let q = self.unit_heads(prefix, "q", q, [scan.groups, scan.key_dim])?;
        let k = self.unit_heads(prefix, "k", k, [scan.groups, scan.key_dim])?;
        let v = self.heads(prefix, "v", v, [heads, scan.value_dim])?;
        let function = UnaryFunction::Activation(Activation::Sigmoid);
        let beta = self.node(&format!("{prefix}beta.open"), Unary { function }, &[beta])?;
        let dt = self.step_sizes(prefix, alpha, heads)?;
        let a = self.head_numbers(&format!("{prefix}a"), [heads, 1])?;
        let decay = self.mul_row(&format!("{prefix}decay"), dt, a, heads)?;
        let attend = LinearAttention {
            cache_id,
            scale: (1.0 / (scan.key_dim as f64).sqrt()) as f32,
            sharing,
        };
        let operands = [q, k, v, decay, self.position, beta];
        let y = self.node(&format!("{prefix}scan"), attend, &operands)?;
        let y = self.rms_norm(&format!("{prefix}norm"), y, scan.value_dim)?;
        let y = self.joined(&format!("{prefix}scan.joined"), y, values)?;
        let function = Activation::Silu;
        self.node(&format!("{prefix}gated"), Gated { function }, &[z, y])
    }

    /// `beta`, the gate of each head's updates, and `alpha`, from which its decay is computed: projections of their own, or one in which the
    /// heads of a key have both, one after the other.
    fn delta_gates(
        &mut self,
        prefix: &str,
        scan: &ScanSpec,
        normed: TensorId,
    ) -> Result<[TensorId; 2], ImportError> {
        let both = format!("{prefix}ba");
        if self.weights.optional(&format!("{both}.weight")).is_none() {
            let beta = self.projection(&format!("{prefix}beta"), scan.heads)?;
            let beta = self.linear(beta, normed, false)?;
            let alpha = self.projection(&format!("{prefix}alpha"), scan.heads)?;
            return Ok([beta, self.linear(alpha, normed, false)?]);
        }
        let shared = scan.heads / scan.groups;
        let projected = self.projection(&both, 2 * scan.heads)?;
        let projected = self.linear(projected, normed, false)?;
        let pairs = self.heads(prefix, "ba", projected, [scan.groups, 2 * shared])?;
        let mut part = |name: &str, range| {
            let part = self.slice(&format!("{prefix}{name}.heads"), pairs, 2, range)?;
            self.joined(&format!("{prefix}{name}"), part, scan.heads)
        };
        Ok([part("beta", 0..shared)?, part("alpha", shared..2 * shared)?])
    }

    /// `softplus(x + bias)`: how far a token moves each head's state.
    fn step_sizes(
        &mut self,
        prefix: &str,
        x: TensorId,
        heads: usize,
    ) -> Result<TensorId, ImportError> {
        let bias = self.named_vector(&format!("{prefix}dt.bias"), heads)?;
        let sum = self.add(&format!("{prefix}dt.biased"), x, bias)?;
        let function = UnaryFunction::Softplus;
        self.node(&format!("{prefix}dt.steps"), Unary { function }, &[sum])
    }

    /// A causal convolution with the weight of this name, and with its bias if there is one.
    fn causal_conv(
        &mut self,
        name: &str,
        op: CausalConv,
        shape: [usize; 2],
        x: TensorId,
    ) -> Result<TensorId, ImportError> {
        let weight_name = format!("{name}.weight");
        let weight = self.weights.required(&weight_name)?;
        let weight = weights::f32_matrix(&mut self.graph, &weight_name, &weight, shape)?;
        let mut operands = vec![x, weight, self.position];
        let bias_name = format!("{name}.bias");
        if let Some(bias) = self.weights.optional(&bias_name) {
            operands.push(self.vector(&bias_name, &bias, shape[0])?);
        }
        self.node(name, op, &operands)
    }

    /// One number for each head, as a column.
    fn head_numbers(&mut self, name: &str, shape: [usize; 2]) -> Result<TensorId, ImportError> {
        let weight = self.weights.required(name)?;
        // Some files have a vector.
        let weight = match weight.shape[..] {
            [heads] => Weight {
                shape: vec![heads, 1],
                ..weight
            },
            _ => weight,
        };
        weights::f32_matrix(&mut self.graph, name, &weight, shape)
    }

    /// RMS norm of each group, with a weight for every element.
    fn norm_by_group(
        &mut self,
        prefix: &str,
        x: TensorId,
        [groups, width]: [usize; 2],
    ) -> Result<TensorId, ImportError> {
        let name = format!("{prefix}norm");
        let weight_name = format!("{name}.weight");
        let weight = self.weights.required(&weight_name)?;
        let weight = match weight.shape[..] {
            [all] if all == groups * width => Weight {
                shape: vec![groups, width],
                ..weight
            },
            _ => weight,
        };
        let weight = weights::f32_matrix(&mut self.graph, &weight_name, &weight, [groups, width])?;
        let eps = self.spec.norm.eps;
        let ones = self.filled(width, 1.0)?;
        let heads = self.heads(prefix, "groups", x, [groups, width])?;
        let normed = self.node(&format!("{name}.groups"), RmsNorm { eps }, &[heads, ones])?;
        let scaled = self.mul(&format!("{name}.scaled"), normed, weight)?;
        self.joined(&name, scaled, groups * width)
    }

    /// Heads divided by their lengths.
    fn unit_heads(
        &mut self,
        prefix: &str,
        name: &str,
        x: TensorId,
        [heads, dim]: [usize; 2],
    ) -> Result<TensorId, ImportError> {
        let x = self.heads(prefix, name, x, [heads, dim])?;
        // The mean of squares is their sum divided by the size.
        let eps = self.spec.norm.eps / dim as f32;
        let weight = self.filled(dim, (1.0 / (dim as f64).sqrt()) as f32)?;
        self.node(
            &format!("{prefix}{name}.unit"),
            RmsNorm { eps },
            &[x, weight],
        )
    }

    /// `[T, heads, dim]` as `[T, width]`.
    fn joined(&mut self, name: &str, x: TensorId, width: usize) -> Result<TensorId, ImportError> {
        let shape = vec![self.step, width.into()];
        self.node(name, Reshape { shape }, &[x])
    }

    /// Each row times the numbers of a column.
    fn mul_row(
        &mut self,
        name: &str,
        x: TensorId,
        column: TensorId,
        width: usize,
    ) -> Result<TensorId, ImportError> {
        let shape = vec![width.into()];
        let row = self.node(&format!("{name}.row"), Reshape { shape }, &[column])?;
        self.mul(name, x, row)
    }

    fn mul(&mut self, name: &str, a: TensorId, b: TensorId) -> Result<TensorId, ImportError> {
        let function = BinaryFunction::Mul;
        self.node(name, Binary { function }, &[a, b])
    }

    /// A part of the last axis.
    pub(super) fn slice(
        &mut self,
        name: &str,
        x: TensorId,
        axis: usize,
        range: Range<usize>,
    ) -> Result<TensorId, ImportError> {
        let op = Slice {
            axis,
            start: range.start.into(),
            len: range.len().into(),
            step: 1,
        };
        self.node(name, op, &[x])
    }
}
