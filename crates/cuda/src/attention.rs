//! The kernel calls of attention over cached rows.

use crate::arguments::{AttendArgs, WriteArgs};
use crate::calls::CallMaker;
use crate::compile::Unit;
use crate::launch::Launch;
use crate::plan::{PART, TILE};
use backend::BackendError;
use graph::ops::{Op, RopeLayout, UpdateAndAttend};
use graph::passes::{FusedKind, FusedOp};
use graph::{Graph, TensorId};

/// Query heads of a block in steps of many tokens, one for each tile of queries.
const TILED_HEADS: usize = 4;

/// Bytes of shared memory of the attention kernel: fragments of queries and of weights, 1,024 bytes for 16 rows and 16 columns.
pub(crate) fn attention_shared(key_dim: usize, tiled: bool) -> usize {
    let tiles = if tiled { TILED_HEADS } else { 1 };
    (key_dim.div_ceil(16) + PART as usize / 16) * tiles * 1024
}

/// Whether a device with this much shared memory can take several queries of the graph's attention at once.
pub(crate) fn can_tile(graph: &Graph, shared_memory: usize) -> bool {
    backend::attention_nodes(graph).all(|(node, _)| {
        let key = &graph.tensor(node.inputs[1]).ty.shape;
        let dim = key.last().and_then(|dim| dim.as_const());
        dim.is_some_and(|dim| attention_shared(dim, true) <= shared_memory)
    })
}

/// The rotations that an attention does itself.
pub(crate) fn rotations(fused: &FusedOp) -> &[usize] {
    match &fused.kind {
        FusedKind::Attention { rotations } => rotations,
        _ => &[],
    }
}

/// The arguments of attention over cached rows.
pub(crate) struct Attention {
    /// Queries and keys before their rotation, and values.
    pub(crate) operands: [TensorId; 3],
    pub(crate) write: WriteArgs,
    pub(crate) attend: AttendArgs,
    /// Whether the attention stores the rows of its step itself.
    pub(crate) alone: bool,
}

impl CallMaker<'_> {
    /// The rotation of an operand of attention: the operand before it, its table and its layout.
    fn rotation(&self, fused: &FusedOp, operand: TensorId) -> (TensorId, u64, [u32; 2]) {
        let nodes = self.graph.nodes();
        let rotation = rotations(fused).iter().map(|i| &nodes[*i]);
        match rotation
            .into_iter()
            .find(|node| node.output == operand)
            .map(|node| (&node.op, node))
        {
            Some((Op::Rope(op), node)) => {
                let rotated = self.shape(node.inputs[1])[1] as u32;
                let interleaved = (op.layout == RopeLayout::Interleaved).into();
                let table = self.address(node.inputs[1]);
                (node.inputs[0], table, [rotated, interleaved])
            }
            _ => (operand, 0, [0, 0]),
        }
    }

    /// The operands of attention before the rotations that it does, and the arguments of its kernels. Heads are in lots of at
    /// most 16.
    pub(crate) fn attention_arguments(&self, op: &UpdateAndAttend, fused: &FusedOp) -> Attention {
        let node = &self.graph.nodes()[fused.nodes.end - 1];
        let inputs = &node.inputs;
        let (queries, query_table, query_layout) = self.rotation(fused, inputs[0]);
        let (keys, key_table, key_layout) = self.rotation(fused, inputs[1]);
        let [q, k, v] = [0, 1, 2].map(|i| self.shape(inputs[i]));
        let (tokens, heads, kv_heads) = (q[0], q[1], k[1]);
        let (key_dim, value_dim) = (k[2], v[2]);
        let layers = self.layers();
        let write = WriteArgs {
            keys: self.address(keys),
            values: self.address(inputs[2]),
            step: self.addresses.step,
            layers,
            table: key_table,
            layer: op.cache_id,
            tokens: tokens as u32,
            kv_heads: kv_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            rotated: key_layout[0],
            interleaved: key_layout[1],
            unused: 0,
        };
        // The row of a single token is stored by the attention itself.
        let alone = tokens == 1 && (key_table == 0 || key_layout == query_layout);
        let shared_by = heads / kv_heads;
        let lots = shared_by.div_ceil(TILE);
        let attend = AttendArgs {
            q: self.address(queries),
            out: self.address(node.output),
            step: self.addresses.step,
            layers,
            partial: self.addresses.partial,
            counters: self.addresses.counters,
            table: query_table,
            keys: if alone { write.keys } else { 0 },
            values: if alone { write.values } else { 0 },
            key_table,
            sinks: inputs.get(4).map_or(0, |sinks| self.address(*sinks)),
            layer: op.cache_id,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            rotated: query_layout[0],
            interleaved: query_layout[1],
            group: shared_by as u32,
            lots: lots as u32,
            lot: shared_by.div_ceil(lots) as u32,
            scale: op.scale,
            softcap: op.softcap.unwrap_or(0.0),
        };
        Attention {
            operands: [queries, keys, inputs[2]],
            write,
            attend,
            alone,
        }
    }

    /// Attention with the rotations fused into it, after the other nodes of its op.
    pub(crate) fn attention(
        &self,
        op: &UpdateAndAttend,
        fused: &FusedOp,
    ) -> Result<Vec<Launch>, BackendError> {
        let nodes = self.graph.nodes();
        let mut launches = Vec::new();
        let before = fused.nodes.start..fused.nodes.end - 1;
        for i in before.filter(|i| !rotations(fused).contains(i)) {
            launches.extend(self.node(&nodes[i])?);
        }
        let Attention {
            write,
            mut attend,
            alone,
            ..
        } = self.attention_arguments(op, fused);
        let (tokens, kv_heads, key_dim) = (
            write.tokens as usize,
            write.kv_heads as usize,
            write.key_dim,
        );
        let rows = 2 * tokens * kv_heads;
        let function = self.device.function(Unit::General, "write_kv")?;
        let blocks = [rows.div_ceil(4) as u32, 1];
        let stored = Launch::new(function, blocks, 128, 4 * 4 * key_dim, &write);
        let shared_by = attend.group as usize;
        // The rows of a tile are heads of one query; in steps of many tokens also queries, with a tile for each head.
        let several = tokens >= TILE && self.tiled;
        let most = 2 * self.device.facts.multiprocessors as usize;
        if !alone {
            launches.push(stored);
        }
        for (kernel, tiled, tile) in [
            ("attend_few", false, TILE),
            ("attend_many", true, TILED_HEADS),
        ] {
            if tiled && !several {
                continue;
            }
            let lots = shared_by.div_ceil(tile);
            (attend.lots, attend.lot) = (lots as u32, shared_by.div_ceil(lots) as u32);
            let blocks = (tokens * kv_heads * lots * 16).min(most);
            let function = self.device.function(Unit::General, kernel)?;
            let shared = attention_shared(key_dim as usize, tiled);
            launches.push(Launch::new(
                function,
                [blocks as u32, 1],
                256,
                shared as u32,
                &attend,
            ));
        }
        Ok(launches)
    }
}
