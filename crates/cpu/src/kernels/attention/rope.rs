//! Rotary embedding and its table. Scalar loops over slices: the compiler vectorises them, and they are a small part of
//! a step.

use crate::kernels::rearrange::gather::IndexValues;
use crate::kernels::{Context, SendPtr, for_row_ranges};
use base::DType;
use graph::ops::RopeLayout;

/// Rotates the first `rotated` elements of every head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rope {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) rotated: usize,
    pub(crate) layout: RopeLayout,
}

impl Rope {
    /// # Safety
    /// `x` and `out` must hold `tokens · heads · dim` elements and `table` `tokens · rotated`; `out` may be `x`.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        table: *const f32,
        out: *mut f32,
    ) {
        let width = self.heads * self.dim;
        // SAFETY: the caller guarantees the table.
        let rotation = unsafe { self.rotation(table) };
        let (x, out) = (SendPtr(x.cast_mut()), SendPtr(out));
        for_row_ranges(ctx, self.tokens, width, &|start, end| {
            for token in start..end {
                // SAFETY: the caller guarantees `tokens` rows; `copy` allows `x` to be `out`.
                let row = unsafe {
                    let to = out.at(token * width);
                    std::ptr::copy(x.at(token * width), to, width);
                    std::slice::from_raw_parts_mut(to, width)
                };
                for head in row.chunks_exact_mut(self.dim) {
                    rotation.rotate(token, head);
                }
            }
        });
    }

    /// The rotation alone, for callers that rotate rows as they read them.
    ///
    /// # Safety
    /// `table` must hold `tokens · rotated` elements for as long as the rotation is used.
    pub(crate) unsafe fn rotation<'a>(self, table: *const f32) -> Rotation<'a> {
        // SAFETY: as the caller guarantees.
        let table = unsafe { std::slice::from_raw_parts(table, self.tokens * self.rotated) };
        Rotation { rope: self, table }
    }
}

/// The rotation of a step's tokens.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    rope: Rope,
    table: &'a [f32],
}

impl Rotation<'_> {
    /// Rotates one head of a token.
    pub(crate) fn rotate(&self, token: usize, head: &mut [f32]) {
        let rotated = self.rope.rotated;
        let head = &mut head[..rotated];
        let (cos, sin) = self.table[token * rotated..][..rotated].split_at(rotated / 2);
        match self.rope.layout {
            RopeLayout::Interleaved => {
                for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    let [x, y] = *pair;
                    *pair = [x * cos - y * sin, y * cos + x * sin];
                }
            }
            RopeLayout::Halves => {
                let (first, second) = head.split_at_mut(rotated / 2);
                for (((x, y), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
                }
            }
        }
    }
}

/// The table of cosines and sines of every position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeTable {
    pub(crate) tokens: usize,
    pub(crate) half: usize,
    pub(crate) magnitude: f32,
    /// Type of the positions.
    pub(crate) position: DType,
}

impl RopeTable {
    /// # Safety
    /// `position` must hold `tokens` numbers, `frequency` `half`, and `out` `tokens · 2 · half`.
    pub(crate) unsafe fn run(&self, position: *const u8, frequency: *const f32, out: *mut f32) {
        let position = IndexValues {
            at: position,
            dtype: self.position,
        };
        // SAFETY: the caller guarantees both.
        let (frequency, out) = unsafe {
            (
                std::slice::from_raw_parts(frequency, self.half),
                std::slice::from_raw_parts_mut(out, self.tokens * 2 * self.half),
            )
        };
        let rows = out.chunks_exact_mut((2 * self.half).max(1));
        for (token, row) in rows.enumerate() {
            // SAFETY: the caller guarantees `tokens` numbers.
            let p = unsafe { position.get(token) } as f32;
            let (cos, sin) = row.split_at_mut(self.half);
            for ((f, cos), sin) in frequency.iter().zip(cos).zip(sin) {
                let angle = p * f;
                *cos = angle.cos() * self.magnitude;
                *sin = angle.sin() * self.magnitude;
            }
        }
    }
}
