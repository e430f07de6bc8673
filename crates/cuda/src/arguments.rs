//! The arguments of the kernels, field by field as the structures of the same names in `kernels/`.

use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Segment {
    pub(crate) codes: u64,
    pub(crate) scales: u64,
    pub(crate) bias: u64,
    pub(crate) out: u64,
    pub(crate) n: u32,
    pub(crate) tiles: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct LinearArgs {
    pub(crate) x: u64,
    pub(crate) norm: u64,
    pub(crate) residual: u64,
    pub(crate) staged: u64,
    pub(crate) segments: [Segment; 3],
    pub(crate) count: u32,
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) pairs: u32,
    pub(crate) ranges: u32,
    pub(crate) pairs_per_range: u32,
    pub(crate) activation: u32,
    pub(crate) gated: u32,
    pub(crate) eps: f32,
    pub(crate) tiles: u32,
    pub(crate) swizzled: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct GatherArgs {
    pub(crate) codes: u64,
    pub(crate) scales: u64,
    pub(crate) index: u64,
    pub(crate) out: u64,
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) pairs: u32,
    pub(crate) format: u32,
    pub(crate) wide: u32,
    pub(crate) n: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct NormArgs {
    pub(crate) x: u64,
    pub(crate) weight: u64,
    pub(crate) bias: u64,
    pub(crate) out: u64,
    pub(crate) rows: u32,
    pub(crate) n: u32,
    pub(crate) eps: f32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct MapArgs {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) out: u64,
    pub(crate) n: u64,
    pub(crate) period: u64,
    pub(crate) map: u32,
    pub(crate) activation: u32,
    pub(crate) number: f32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct TableArgs {
    pub(crate) position: u64,
    pub(crate) frequency: u64,
    pub(crate) out: u64,
    pub(crate) rows: u32,
    pub(crate) half: u32,
    pub(crate) wide: u32,
    pub(crate) magnitude: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct RopeArgs {
    pub(crate) x: u64,
    pub(crate) table: u64,
    pub(crate) out: u64,
    pub(crate) rows: u32,
    pub(crate) heads: u32,
    pub(crate) dim: u32,
    pub(crate) rotated: u32,
    pub(crate) interleaved: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct WriteArgs {
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) step: u64,
    pub(crate) layers: u64,
    pub(crate) table: u64,
    pub(crate) layer: u32,
    pub(crate) tokens: u32,
    pub(crate) kv_heads: u32,
    pub(crate) key_dim: u32,
    pub(crate) value_dim: u32,
    pub(crate) rotated: u32,
    pub(crate) interleaved: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct AttendArgs {
    pub(crate) q: u64,
    pub(crate) out: u64,
    pub(crate) step: u64,
    pub(crate) layers: u64,
    pub(crate) partial: u64,
    pub(crate) counters: u64,
    pub(crate) table: u64,
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) key_table: u64,
    pub(crate) layer: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) key_dim: u32,
    pub(crate) value_dim: u32,
    pub(crate) rotated: u32,
    pub(crate) interleaved: u32,
    pub(crate) group: u32,
    pub(crate) lots: u32,
    pub(crate) lot: u32,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct PersistentOp {
    /// `LinearArgs`, or `AttendArgs` and room for a layer and its plan.
    pub(crate) body: [u64; 28],
    pub(crate) inputs: [u64; 3],
    pub(crate) outputs: [u64; 3],
    pub(crate) attends: u32,
    pub(crate) groups: u32,
    pub(crate) unused: [u32; 2],
    pub(crate) parts: [u32; 16],
}

impl PersistentOp {
    pub(crate) fn new<A: Pod>(arguments: &A) -> PersistentOp {
        let mut op = PersistentOp::zeroed();
        let bytes = bytemuck::bytes_of(arguments);
        bytemuck::cast_slice_mut(&mut op.body)[..bytes.len()].copy_from_slice(bytes);
        op
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct PersistentArgs {
    pub(crate) ops: u64,
    pub(crate) state: u64,
    pub(crate) count: u32,
    pub(crate) attend_offset: u32,
    pub(crate) tables: [u64; 2],
    pub(crate) rotated: u32,
    pub(crate) most_tiles: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct BestArgs {
    pub(crate) logits: u64,
    pub(crate) parts: u64,
    pub(crate) out: u64,
    pub(crate) arrived: u64,
    pub(crate) width: u32,
    pub(crate) k: u32,
    pub(crate) part_count: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct PlainAttentionArgs {
    pub(crate) q: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) mask: u64,
    pub(crate) out: u64,
    pub(crate) q_token: u64,
    pub(crate) q_head: u64,
    pub(crate) k_token: u64,
    pub(crate) k_head: u64,
    pub(crate) v_token: u64,
    pub(crate) v_head: u64,
    pub(crate) out_token: u64,
    pub(crate) out_head: u64,
    pub(crate) mask_query: u64,
    pub(crate) mask_key: u64,
    pub(crate) keys: u32,
    pub(crate) group: u32,
    pub(crate) dim: u32,
    pub(crate) value_dim: u32,
    pub(crate) causal: u32,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct StridedArgs {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) dims: [u64; 3],
    pub(crate) from_strides: [u64; 3],
    pub(crate) to_strides: [u64; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct PairArgs {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) out: u64,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) a_row: u64,
    pub(crate) a_column: u64,
    pub(crate) b_row: u64,
    pub(crate) b_column: u64,
    pub(crate) function: u32,
    pub(crate) unused: u32,
}
