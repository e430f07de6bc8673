//! The arguments of the kernels, field by field as the structures of the same names in `kernels/`.
//!
//! [`layout_checks`] has the compiler of the kernels compare the layouts.

use bytemuck::{Pod, Zeroable};
use std::fmt::Write;
use std::mem::offset_of;

/// Declares structures of arguments and lists their layouts.
macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Pod, Zeroable)]
            pub(crate) struct $name {
                $($(#[$field_doc])* pub(crate) $field: $type,)*
            }
        )*

        const LAYOUTS: &[Layout] = &[$(Layout {
            name: stringify!($name),
            bytes: size_of::<$name>(),
            offsets: &[$((stringify!($field), offset_of!($name, $field)),)*],
        },)*];
    };
}

/// The layout of a structure.
struct Layout {
    name: &'static str,
    bytes: usize,
    /// The offset of each field.
    offsets: &'static [(&'static str, usize)],
}

/// Fields that structures of the kernels do not have: padding, and the body of an operation, which is a union there.
const RUST_ONLY: [&str; 2] = ["unused", "body"];

/// Assertions in C++ that the structures of a source have the layouts of those here. `__INTADDR__` is NVRTC's name of what `offsetof`
/// is made of; it has no `offsetof` without header files.
pub(crate) fn layout_checks(source: &str) -> String {
    let mut text = String::new();
    for layout in LAYOUTS {
        let name = layout.name;
        if !source.contains(&format!("struct {name} {{")) {
            continue;
        }
        let _ = writeln!(
            text,
            "static_assert(sizeof({name}) == {}, \"{name}\");",
            layout.bytes
        );
        let compared = layout
            .offsets
            .iter()
            .filter(|(field, _)| !RUST_ONLY.contains(field));
        for (field, offset) in compared {
            let _ = writeln!(
                text,
                "static_assert(__INTADDR__(&(({name}*)0)->{field}) == {offset}, \"{name}.{field}\");"
            );
        }
    }
    text
}

arguments! {
    Segment {
        codes: u64, scales: u64, bias: u64, out: u64, n: u32, tiles: u32,
    }

    LinearArgs {
        x: u64, norm: u64, residual: u64, staged: u64, segments: [Segment; 3], count: u32, rows: u32, k: u32,
        pairs: u32, ranges: u32, pairs_per_range: u32, activation: u32, gated: u32, eps: f32, tiles: u32,
        swizzled: u32, unused: u32,
    }

    GatherArgs {
        codes: u64, scales: u64, index: u64, out: u64, rows: u32, k: u32, pairs: u32, format: u32, wide: u32,
        n: u32,
    }

    NormArgs {
        x: u64, weight: u64, bias: u64, out: u64, rows: u32, n: u32, eps: f32, unused: u32,
    }

    MapArgs {
        a: u64, b: u64, out: u64, n: u64, repeat: u64, period: u64, map: u32, activation: u32, number: f32, swapped: u32,
    }

    TableArgs {
        position: u64, frequency: u64, out: u64, rows: u32, half: u32, wide: u32, magnitude: f32,
    }

    RopeArgs {
        x: u64, table: u64, out: u64, rows: u32, heads: u32, dim: u32, rotated: u32, interleaved: u32,
        unused: u32,
    }

    WriteArgs {
        keys: u64, values: u64, step: u64, layers: u64, table: u64, layer: u32, tokens: u32, kv_heads: u32,
        key_dim: u32, value_dim: u32, rotated: u32, interleaved: u32, unused: u32,
    }

    AttendArgs {
        q: u64, out: u64, step: u64, layers: u64, partial: u64, counters: u64, table: u64, keys: u64,
        values: u64, key_table: u64, sinks: u64, layer: u32, heads: u32, kv_heads: u32, key_dim: u32, value_dim: u32,
        rotated: u32, interleaved: u32, group: u32, lots: u32, lot: u32, scale: f32, softcap: f32,
    }

    RouteArgs {
        logits: u64, bias: u64, out: u64, rows: u32, experts: u32, used: u32, sigmoid: u32, normalise: u32,
        groups: u32, used_groups: u32, scale: f32,
    }

    /// Some pairs of one expert, as the device lists them.
    ExpertChunk {
        expert: u32, first: u32, count: u32, unused: u32,
    }

    ExpertLists {
        chunk_count: u64, chunks: u64, pairs: u64, experts: u64,
    }

    ListArgs {
        weights: u64, lists: ExpertLists, rows: u32, experts: u32, slots: u32, chunk: u32,
    }

    ExpertArgs {
        linear: LinearArgs, lists: ExpertLists, slots: u32, unused: u32,
    }

    GatedRowsArgs {
        gate: u64, up: u64, staged: u64, rows: u32, k: u32, pairs: u32, function: u32, alpha: f32, limit: f32,
    }

    CombineArgs {
        weights: u64, products: u64, pair_experts: u64, out: u64, rows: u32, experts: u32, slots: u32, n: u32,
    }

    PersistentOp {
        /// `LinearArgs`, or `AttendArgs` and room for a layer and its plan.
        body: [u64; 30], inputs: [u64; 3], outputs: [u64; 3], attends: u32, groups: u32, unused: [u32; 2],
        parts: [u32; 16],
    }

    PersistentArgs {
        ops: u64, state: u64, count: u32, attend_offset: u32, tables: [u64; 2], rotated: u32, most_tiles: u32,
    }

    TopKArgs {
        logits: u64, parts: u64, out: u64, arrived: u64, width: u32, k: u32, part_count: u32, unused: u32,
    }

    ConvArgs {
        x: u64, weight: u64, bias: u64, out: u64, step: u64, layers: u64, layer: u32, tokens: u32, channels: u32,
        taps: u32, activation: u32, unused: u32,
    }

    LinearAttentionArgs {
        q: u64, k: u64, v: u64, decay: u64, beta: u64, out: u64, step: u64, layers: u64, layer: u32, tokens: u32,
        groups: u32, heads: u32, depth: u32, width: u32, turns: u32, scale: f32,
    }

    PlainAttentionArgs {
        q: u64, k: u64, v: u64, mask: u64, out: u64, q_token: u64, q_head: u64, k_token: u64, k_head: u64,
        v_token: u64, v_head: u64, out_token: u64, out_head: u64, mask_query: u64, mask_key: u64, keys: u32,
        group: u32, dim: u32, value_dim: u32, causal: u32, scale: f32, softcap: f32, unused: u32,
    }

    WindowSizes {
        from: [u32; 3], to: [u32; 3], size: [u32; 3], stride: [u32; 3], dilation: [u32; 3], before: [u32; 3],
    }

    ConvolveArgs {
        x: u64, weight: u64, bias: u64, residual: u64, out: u64, positions: u64, channels: u32, inner: u32, outputs: u32,
        per_group: u32, activation: u32, blocks: u32, w: WindowSizes,
    }

    PoolArgs {
        x: u64, out: u64, elements: u64, sum: u32, unused: u32, w: WindowSizes,
    }

    SoftmaxArgs {
        x: u64, out: u64, len: u64, stride: u64, lines: u64, log: u32, unused: u32,
    }

    ReduceArgs {
        x: u64, out: u64, len: u64, stride: u64, lines: u64, mean: u32, unused: u32,
    }

    StridedArgs {
        from: u64, to: u64, dims: [u64; 3], from_strides: [u64; 3], to_strides: [u64; 3],
    }

    PairArgs {
        a: u64, b: u64, out: u64, rows: u64, columns: u64, a_row: u64, a_column: u64, b_row: u64, b_column: u64,
        function: u32, unused: u32,
    }

    PackArgs {
        from: u64, codes: u64, scales: u64, row_bytes: u64, n: u32, k: u32, pairs: u32, file: u32, format: u32,
        unused: u32,
    }

    CopyArgs {
        to: u64, from: u64, rows: u64, to_stride: u64, from_stride: u64, count: u32, row_bytes: u32, base: u32,
        ring: u32, in_place: u32, unused: u32,
    }

    /// Where the kernels find a layer of a cache.
    KvLayer {
        keys: u64, values: u64, frozen_keys: u64, frozen_values: u64, rows: u32, frozen_rows: u32,
        frozen_cells: u32, plan: u32, key_storage: u32, value_storage: u32, key_row: u32, value_row: u32,
    }
}

impl PersistentOp {
    pub(crate) fn new<A: Pod>(arguments: &A) -> PersistentOp {
        let mut op = PersistentOp::zeroed();
        let bytes = bytemuck::bytes_of(arguments);
        bytemuck::cast_slice_mut(&mut op.body)[..bytes.len()].copy_from_slice(bytes);
        op
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Unit;

    /// The compiler of the kernels compares what it finds by name; this says that it finds every structure.
    #[test]
    fn every_structure_is_compared_in_some_unit() {
        let checks: String = Unit::all()
            .map(|unit| layout_checks(&unit.source()))
            .collect();
        for layout in LAYOUTS {
            let name = layout.name;
            assert!(
                checks.contains(&format!("static_assert(sizeof({name})")),
                "{name}"
            );
        }
    }
}
