//! The kernel calls of ops whose memory is a state.

use crate::arguments::{ConvArgs, LinearAttentionArgs};
use crate::calls::{CallMaker, activation_code};
use crate::compile::Unit;
use crate::launch::Launch;
use backend::BackendError;
use graph::Node;
use graph::ops::{CausalConv, HeadSharing, LinearAttention};

/// Threads of a block.
const THREADS: u32 = 128;
/// Lanes that share a column of a state, as `STATE_LANES` in the kernels.
const STATE_LANES: usize = 8;
/// Taps of the kernel for few taps, and the most taps.
const FEW_TAPS: usize = 4;
pub(crate) const MAX_TAPS: usize = 16;
/// The kernels of linear attention, and the most elements of a key that each takes.
const SCANS: [(usize, &str); 4] = [
    (32, "linear_attention_32"),
    (64, "linear_attention_64"),
    (128, "linear_attention_128"),
    (256, "linear_attention_256"),
];
/// The most elements of a key.
pub(crate) const MAX_SCAN_DEPTH: usize = SCANS[SCANS.len() - 1].0;

impl CallMaker<'_> {
    /// The address of the table of the cache's layers.
    pub(crate) fn layers(&self) -> u64 {
        self.addresses.step + self.layout.layers as u64
    }

    pub(crate) fn causal_conv(
        &self,
        node: &Node,
        op: &CausalConv,
    ) -> Result<Vec<Launch>, BackendError> {
        let inputs = &node.inputs;
        let (tokens, channels) = self.rows(inputs[0]);
        let (_, taps) = self.rows(inputs[1]);
        if taps > MAX_TAPS {
            let reason = format!("it has {taps} taps, and the kernel takes at most {MAX_TAPS}");
            return Err(self.unsupported(node, &reason));
        }
        let arguments = ConvArgs {
            x: self.address(inputs[0]),
            weight: self.address(inputs[1]),
            bias: inputs.get(3).map_or(0, |bias| self.address(*bias)),
            out: self.address(node.output),
            step: self.addresses.step,
            layers: self.layers(),
            layer: op.cache_id,
            tokens: tokens as u32,
            channels: channels as u32,
            taps: taps as u32,
            activation: activation_code(op.activation),
            unused: 0,
        };
        let kernel = match taps <= FEW_TAPS {
            true => "causal_conv_few",
            false => "causal_conv_many",
        };
        let blocks = channels.div_ceil(THREADS as usize);
        self.general(kernel, blocks, THREADS, &arguments)
    }

    pub(crate) fn linear_attention(
        &self,
        node: &Node,
        op: &LinearAttention,
    ) -> Result<Vec<Launch>, BackendError> {
        let inputs = &node.inputs;
        let [q, v] = [inputs[0], inputs[2]].map(|id| self.shape(id));
        let (&[tokens, groups, depth], &[_, heads, width]) = (&q[..], &v[..]) else {
            unreachable!("inferred with three dimensions")
        };
        let kernel = SCANS.iter().find(|(most, _)| depth <= *most);
        let Some((_, kernel)) = kernel else {
            let reason = format!(
                "its keys have {depth} elements, and the kernel takes at most {MAX_SCAN_DEPTH}"
            );
            return Err(self.unsupported(node, &reason));
        };
        let arguments = LinearAttentionArgs {
            q: self.address(inputs[0]),
            k: self.address(inputs[1]),
            v: self.address(inputs[2]),
            decay: self.address(inputs[3]),
            beta: inputs.get(5).map_or(0, |beta| self.address(*beta)),
            out: self.address(node.output),
            step: self.addresses.step,
            layers: self.layers(),
            layer: op.cache_id,
            tokens: tokens as u32,
            groups: groups as u32,
            heads: heads as u32,
            depth: depth as u32,
            width: width as u32,
            turns: (op.sharing == HeadSharing::Turns).into(),
            scale: op.scale,
        };
        let columns = THREADS as usize / STATE_LANES;
        let grid = [width.div_ceil(columns) as u32, heads as u32];
        let function = self.device.function(Unit::General, kernel)?;
        Ok(vec![Launch::new(function, grid, THREADS, 0, &arguments)])
    }
}
