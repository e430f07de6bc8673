//! Dot products with row-scaled weights.
//!
//! A weight is `scale · quant + min` in two-byte integers; the inputs of a group share scale and min. An activation is
//! `128 · high + low`, where both bytes are within -64 to 64. The sum of a group then fits two bytes for either byte,
//! and one instruction multiplies it with the scale and the sum of the activations with the min. All sums are exact, so
//! all tiers compute the same.

use super::{Generic, IntDot, LANES};

/// The largest magnitude of a row-scaled activation.
pub(crate) const MAX_ROW_SCALED: f32 = 8191.0;

/// A tier's dot products for row-scaled weights.
pub(crate) trait RowScaledDot: IntDot {
    /// The sums of a group, for high and for low bytes.
    type Planes: Copy;
    /// The sums of groups times their scales plus mins, for high and for low bytes.
    type Totals: Copy;

    fn zero_planes(self) -> Self::Planes;
    /// Adds the products of a line of quants below sixteen with activations `4 · INDEX` to `4 · INDEX + 3` of a block: 32
    /// high bytes, then 32 low ones.
    ///
    /// # Safety
    /// 64 bytes must be readable at `block`, and `INDEX` be below eight.
    unsafe fn dot_planes<const INDEX: usize>(
        self,
        sums: Self::Planes,
        line: Self::Line,
        block: *const u8,
    ) -> Self::Planes;
    /// Adds the sums of two parts of a group.
    fn add_planes(self, a: Self::Planes, b: Self::Planes) -> Self::Planes;
    fn zero_totals(self) -> Self::Totals;
    /// Adds a group: its sums times the scales, and the sums of its activations times the mins. `factors` has sixteen
    /// pairs of scale and min; `activations` has the sums of the high and of the low bytes, times 65536.
    ///
    /// # Safety
    /// 64 bytes must be readable at `factors`, and both sums at `activations`.
    unsafe fn add_scaled(
        self,
        totals: Self::Totals,
        sums: Self::Planes,
        factors: *const u8,
        activations: *const [i32; 2],
    ) -> Self::Totals;
    /// `128 · high + low` as f32.
    fn totals_to_f32(self, totals: Self::Totals) -> Self::V;
    /// Stores integral numbers of magnitude up to [`MAX_ROW_SCALED`] as sixteen high and sixteen low bytes.
    ///
    /// # Safety
    /// Sixteen bytes must be writable at both addresses.
    unsafe fn store_planes(self, values: Self::V, high: *mut u8, low: *mut u8);
    /// The sum of sixteen signed bytes.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at `bytes`.
    unsafe fn sum_of_bytes(self, bytes: *const u8) -> i32;
    /// Gathers a line: four bytes from each of sixteen addresses, `stride` bytes apart.
    ///
    /// # Safety
    /// All addresses must be readable and within 2 GiB, and 64 bytes be writable at `to`.
    unsafe fn gather_line(self, from: *const u8, stride: usize, to: *mut u8);
}

impl RowScaledDot for Generic {
    type Planes = [[i32; LANES]; 2];
    type Totals = [[i32; LANES]; 2];

    #[inline(always)]
    fn zero_planes(self) -> Self::Planes {
        [[0; LANES]; 2]
    }

    #[inline(never)]
    unsafe fn dot_planes<const INDEX: usize>(
        self,
        mut sums: Self::Planes,
        line: Self::Line,
        block: *const u8,
    ) -> Self::Planes {
        for (plane, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller guarantees both planes.
            let x: [i8; 4] = unsafe { block.add(32 * plane + 4 * INDEX).cast::<[i8; 4]>().read() };
            for (sum, w) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
                for (w, x) in w.iter().zip(x) {
                    *sum += i32::from(*w) * i32::from(x);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn add_planes(self, a: Self::Planes, b: Self::Planes) -> Self::Planes {
        std::array::from_fn(|plane| std::array::from_fn(|i| a[plane][i] + b[plane][i]))
    }

    #[inline(always)]
    fn zero_totals(self) -> Self::Totals {
        [[0; LANES]; 2]
    }

    #[inline(never)]
    unsafe fn add_scaled(
        self,
        mut totals: Self::Totals,
        sums: Self::Planes,
        factors: *const u8,
        activations: *const [i32; 2],
    ) -> Self::Totals {
        // SAFETY: the caller guarantees sixteen pairs.
        let (factors, activations) = unsafe {
            let factors = factors.cast::<[[i16; 2]; LANES]>();
            (factors.read_unaligned(), activations.read())
        };
        for plane in 0..2 {
            for (lane, [scale, min]) in factors.into_iter().enumerate() {
                totals[plane][lane] += i32::from(scale) * sums[plane][lane]
                    + i32::from(min) * (activations[plane] >> 16);
            }
        }
        totals
    }

    #[inline(always)]
    fn totals_to_f32(self, [high, low]: Self::Totals) -> Self::V {
        std::array::from_fn(|i| high[i] as f32 * 128.0 + low[i] as f32)
    }

    #[inline(always)]
    unsafe fn store_planes(self, values: Self::V, high: *mut u8, low: *mut u8) {
        for (i, x) in values.into_iter().enumerate() {
            let x = x as i32;
            let top = (x + 64) >> 7;
            // SAFETY: the caller guarantees sixteen bytes.
            unsafe {
                high.add(i).write(top as u8);
                low.add(i).write((x - (top << 7)) as u8);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_of_bytes(self, bytes: *const u8) -> i32 {
        // SAFETY: as the caller guarantees.
        let bytes = unsafe { bytes.cast::<[i8; LANES]>().read() };
        bytes.into_iter().map(i32::from).sum()
    }

    #[inline(always)]
    unsafe fn gather_line(self, from: *const u8, stride: usize, to: *mut u8) {
        for lane in 0..LANES {
            // SAFETY: as the caller guarantees.
            unsafe {
                let four: [u8; 4] = from.add(lane * stride).cast::<[u8; 4]>().read();
                to.cast::<[u8; 4]>().add(lane).write(four);
            }
        }
    }
}
