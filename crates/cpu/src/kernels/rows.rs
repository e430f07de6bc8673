//! Kernels that work row by row: normalisation and gathering.

use super::format::{Format, with_format};
use super::index::Integers;
use super::{Context, Shared, over_rows, split};
use crate::isa::Kernel;
use crate::simd::{LANES, Simd};
use base::DType;

/// How a row is normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) eps: f32,
    /// Layer norm: subtract the mean and add a bias.
    pub(crate) centred: bool,
}

impl Norm {
    /// # Safety
    /// `x` and `out` must hold `rows · width` elements, `weight` (and `bias` when centred) `width`; `out` may be `x`.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        weight: *const f32,
        bias: *const f32,
        out: *mut f32,
    ) {
        let (x, out) = (Shared(x.cast_mut()), Shared(out));
        let (weight, bias) = (Shared(weight.cast_mut()), Shared(bias.cast_mut()));
        over_rows(ctx, self.rows, self.width, &|start, end| {
            for row in start..end {
                // SAFETY: the caller vouches for `rows` rows, the weight and the bias.
                unsafe {
                    let (x, out) = (x.at(row * self.width), out.at(row * self.width));
                    self.row(ctx, x, weight.at(0), bias.at(0), out);
                }
            }
        });
    }

    /// Normalises one row.
    ///
    /// # Safety
    /// As for [`run`](Norm::run), for a row.
    pub(crate) unsafe fn row(
        &self,
        ctx: &Context<'_>,
        x: *const f32,
        weight: *const f32,
        bias: *const f32,
        out: *mut f32,
    ) {
        ctx.isa.run(NormRow {
            op: *self,
            x,
            weight,
            bias,
            out,
        });
    }
}

struct NormRow {
    op: Norm,
    x: *const f32,
    weight: *const f32,
    bias: *const f32,
    out: *mut f32,
}

impl Kernel for NormRow {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.op.width as f32;
        // SAFETY: `Norm::run`'s caller vouches for a row of `x` and `out` and for `weight` and `bias`.
        unsafe {
            let mean = if self.op.centred {
                self.sum::<S, false>(s, s.zero()) / width
            } else {
                0.0
            };
            let shift = s.splat(mean);
            let square = self.sum::<S, true>(s, shift);
            let inverse = s.splat(1.0 / (square / width + self.op.eps).sqrt());
            let (chunks, tail) = split(self.op.width);
            for chunk in 0..chunks {
                let at = chunk * LANES;
                let scaled = s.mul(
                    s.mul(s.sub(s.load(self.x.add(at)), shift), inverse),
                    s.load(self.weight.add(at)),
                );
                let result = if self.op.centred {
                    s.add(scaled, s.load(self.bias.add(at)))
                } else {
                    scaled
                };
                s.store(self.out.add(at), result);
            }
            let at = chunks * LANES;
            if tail > 0 {
                let x = s.sub(s.load_part(self.x.add(at), tail), shift);
                let scaled = s.mul(s.mul(x, inverse), s.load_part(self.weight.add(at), tail));
                let bias = if self.op.centred {
                    s.load_part(self.bias.add(at), tail)
                } else {
                    s.zero()
                };
                s.store_part(self.out.add(at), s.add(scaled, bias), tail);
            }
        }
    }
}

impl NormRow {
    /// The sum of the row's elements less `shift`, to the first or second power.
    ///
    /// # Safety
    /// A row must be readable at `x`.
    #[inline(always)]
    unsafe fn sum<S: Simd, const SQUARED: bool>(&self, s: S, shift: S::V) -> f32 {
        let (chunks, tail) = split(self.op.width);
        let mut sum = s.zero();
        // SAFETY: the caller vouches for the row; `lanes` holds sixteen.
        unsafe {
            for chunk in 0..chunks {
                let x = s.sub(s.load(self.x.add(chunk * LANES)), shift);
                sum = s.add(sum, if SQUARED { s.mul(x, x) } else { x });
            }
            if tail > 0 {
                let x = s.sub(s.load_part(self.x.add(chunks * LANES), tail), shift);
                // The empty lanes hold the shift now, not zero.
                let mut lanes = [0.0; LANES];
                s.store_part(
                    lanes.as_mut_ptr(),
                    if SQUARED { s.mul(x, x) } else { x },
                    tail,
                );
                sum = s.add(sum, s.load(lanes.as_ptr()));
            }
        }
        s.sum(sum)
    }
}

/// `out[i] = table[index[i]]`, decoded to f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    pub(crate) count: usize,
    pub(crate) table_rows: usize,
    pub(crate) width: usize,
    pub(crate) table: DType,
    /// Type of the indices.
    pub(crate) index: DType,
}

impl Gather {
    /// # Safety
    /// `table` must hold `table_rows` rows, `index` `count` numbers and `out` `count · width` elements.
    pub(crate) unsafe fn run(
        &self,
        ctx: &Context<'_>,
        table: *const u8,
        index: *const u8,
        out: *mut f32,
    ) -> Result<(), String> {
        let index = Integers {
            at: index,
            dtype: self.index,
        };
        let row_bytes = self
            .table
            .row_bytes(self.width)
            .expect("the table's rows are whole blocks");
        for i in 0..self.count {
            // SAFETY: the caller vouches for `count` numbers.
            let row = unsafe { index.get(i) };
            let Some(row) = usize::try_from(row).ok().filter(|r| *r < self.table_rows) else {
                return Err(format!(
                    "index {row} is outside a table of {} rows",
                    self.table_rows
                ));
            };
            // SAFETY: `row` is in the table and `i` in the output.
            unsafe {
                let (from, to) = (table.add(row * row_bytes), out.add(i * self.width));
                if self.table == DType::F32 {
                    // The source is an activation when rows are picked for the head: it may be moved over itself.
                    std::ptr::copy(from, to.cast::<u8>(), row_bytes);
                } else {
                    with_format!(self.table, F => ctx.isa.run(DecodeRow::<F>(from, to, self.width, Default::default())));
                }
            }
        }
        Ok(())
    }
}

struct DecodeRow<F>(*const u8, *mut f32, usize, std::marker::PhantomData<F>);

impl<F: Format> Kernel for DecodeRow<F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DecodeRow(from, to, width, _) = self;
        let (blocks, tail) = (width / F::LEN, width % F::LEN);
        // SAFETY: `Gather::run` passes a whole row on both sides; only plain formats have a tail, which is decoded into
        // a buffer of its own.
        unsafe {
            for block in 0..blocks {
                F::decode(s, from.add(block * F::BYTES), to.add(block * F::LEN));
            }
            if tail > 0 {
                let mut bytes = [0u8; 4 * LANES];
                let mut lanes = [0.0f32; LANES];
                std::ptr::copy_nonoverlapping(
                    from.add(blocks * F::BYTES),
                    bytes.as_mut_ptr(),
                    tail * F::BYTES / F::LEN,
                );
                F::decode(s, bytes.as_ptr(), lanes.as_mut_ptr());
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), to.add(blocks * F::LEN), tail);
            }
        }
    }
}
