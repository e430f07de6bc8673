//! Activations as integers of fifteen bits, with a scale for every 32 of them.

use super::super::format::{BLOCK, Form, LINE};
use crate::isa::IntegerKernel;
use crate::simd::{LANES, LARGEST_ACTIVATION, Whole};

/// What a group of activations contributes besides its integers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Group {
    /// `activation = scale · integer`.
    pub(super) scale: f32,
    /// What the mins of the weights are multiplied with: the sum of the activations.
    pub(super) sum: f32,
    /// What the zero of the weights adds to the integer sums.
    pub(super) offset: i32,
    _pad: u32,
}

impl Group {
    #[inline(always)]
    fn new(scale: f32, sum: f32, offset: i32) -> Group {
        Group {
            scale,
            sum,
            offset,
            _pad: 0,
        }
    }
}

/// Where a step's quantised activations are.
///
/// Rows are taken sixteen at a time, or all of them where there are fewer: block by block, what belongs to these rows lies
/// together. So rows of a tile are a fixed distance apart. Behind the last block there is room for the rows that a kernel
/// may read without need.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    blocks: *mut u8,
    groups: *mut Group,
    form: Form,
    layout: Layout,
}

/// The sizes of quantised activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Rows that lie together.
    pub(super) together: usize,
    rows: usize,
    blocks_per_row: usize,
    groups_per_row: usize,
}

// SAFETY: rows are written by one task each before any task reads them.
unsafe impl Send for Activations {}
// SAFETY: as above.
unsafe impl Sync for Activations {}

/// Most rows that lie together.
pub(super) const TOGETHER: usize = 16;

impl Layout {
    /// For `m` rows of `k` activations, in full sixteens where asked for.
    pub(super) fn new(form: &Form, m: usize, k: usize, full: bool) -> Layout {
        let together = if full { TOGETHER } else { m.clamp(1, TOGETHER) };
        Layout {
            together,
            rows: m.next_multiple_of(together),
            blocks_per_row: k / BLOCK,
            groups_per_row: k / form.group,
        }
    }

    /// Bytes of all blocks, and of all groups.
    fn parts(&self) -> (usize, usize) {
        (
            (self.rows * self.blocks_per_row + TOGETHER) * LINE,
            (self.rows * self.groups_per_row + TOGETHER) * size_of::<Group>(),
        )
    }

    /// Bytes of all activations.
    pub(super) fn bytes(&self) -> usize {
        let (blocks, groups) = self.parts();
        (blocks + groups).next_multiple_of(LINE)
    }
}

impl Activations {
    /// Lays the rows out from `scratch` on, a multiple of 64.
    pub(super) fn at(scratch: *mut u8, form: Form, layout: Layout) -> Activations {
        let (blocks, _) = layout.parts();
        Activations {
            blocks: scratch,
            groups: scratch.wrapping_add(blocks).cast(),
            form,
            layout,
        }
    }

    /// A row and those behind it in its sixteen.
    ///
    /// # Safety
    /// The row must be laid out.
    #[inline(always)]
    pub(super) unsafe fn rows(&self, row: usize) -> Rows {
        let Layout {
            together,
            blocks_per_row,
            groups_per_row,
            ..
        } = self.layout;
        let (first, within) = (row / together * together, row % together);
        // SAFETY: as the caller vouches.
        unsafe {
            Rows {
                blocks: self.blocks.add((first * blocks_per_row + within) * LINE),
                groups: self.groups.add(first * groups_per_row + within),
                together,
            }
        }
    }
}

/// Rows that lie together.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    blocks: *mut u8,
    groups: *mut Group,
    together: usize,
}

impl Rows {
    /// A block of the first row; the same block of the next is a line behind.
    ///
    /// # Safety
    /// The row must have the block.
    #[inline(always)]
    pub(super) unsafe fn block(&self, block: usize) -> *mut u8 {
        // SAFETY: as the caller vouches.
        unsafe { self.blocks.add(block * self.together * LINE) }
    }

    /// A group of the first row; the same group of the next is behind it.
    ///
    /// # Safety
    /// The row must have the group.
    #[inline(always)]
    pub(super) unsafe fn group(&self, group: usize) -> *mut Group {
        // SAFETY: as the caller vouches.
        unsafe { self.groups.add(group * self.together) }
    }
}

/// Quantises one row.
pub(super) struct Quantise {
    pub(super) x: *const f32,
    pub(super) row: usize,
    pub(super) to: Activations,
}

/// Below this, a block is nothing: its reciprocal would not be finite.
const NOTHING: f32 = 1e-30;

impl IntegerKernel for Quantise {
    type Output = ();

    #[inline(always)]
    fn run<S: Whole>(self, s: S) {
        let Form {
            group, zero, mins, ..
        } = self.to.form;
        let largest = LARGEST_ACTIVATION;
        // SAFETY: whoever made the kernel vouches for a row of `k` activations, a multiple of the block, and for the row laid out.
        unsafe {
            let to = self.to.rows(self.row);
            for block in 0..self.to.layout.blocks_per_row {
                let at = self.x.add(block * BLOCK);
                let (a, b) = (s.load(at), s.load(at.add(LANES)));
                let magnitudes = s.max(s.max(a, s.sub(s.zero(), a)), s.max(b, s.sub(s.zero(), b)));
                let top = s.largest(magnitudes);
                let (scale, inverse) = if top < NOTHING {
                    (0.0, 0.0)
                } else {
                    (top / largest, largest / top)
                };
                let (p, q) = (
                    s.round(s.mul(a, s.splat(inverse))),
                    s.round(s.mul(b, s.splat(inverse))),
                );
                s.arrange([p, q], to.block(block));
                // Sums of integers this small are exact. Weights with mins have no zero.
                let of = |activations, integers| {
                    if mins {
                        (s.sum(activations), 0)
                    } else {
                        (0.0, -zero * s.sum(integers) as i32)
                    }
                };
                let (first, second) = (of(a, p), of(b, q));
                if group == BLOCK {
                    let (sum, offset) = (first.0 + second.0, first.1 + second.1);
                    to.group(block).write(Group::new(scale, sum, offset));
                } else {
                    let (low, high) = (to.group(2 * block), to.group(2 * block + 1));
                    low.write(Group::new(scale, first.0, first.1));
                    high.write(Group::new(scale, second.0, second.1));
                }
            }
        }
    }
}
