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
