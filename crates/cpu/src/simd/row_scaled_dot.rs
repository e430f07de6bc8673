//! Dot products with row-scaled weights.
//!
//! A weight is `scale · (quant - centre) + min` in two-byte integers; the inputs of a group share scale and min. An
//! activation is `128 · high + low`, where both bytes are within -64 to 63. The sum of a group then fits two bytes for
//! either byte, and one instruction multiplies it with the scale and the sum of the activations with the min. All sums
//! are exact, so all tiers compute the same.
//!
//! A weight with a byte quant is `quant · factor / 128`, rounded to a two-byte integer before it is multiplied.

use super::{BlockScaledDot, Generic, LANES};

/// The largest magnitude of a row-scaled activation: its high byte is at most 63.
pub(crate) const MAX_ROW_SCALED: f32 = 8127.0;

/// A tier's dot products for row-scaled weights.
pub(crate) trait RowScaledDot: BlockScaledDot {
    /// The sums of a group, for high and for low bytes.
    type Planes: Copy;
    /// The sums of groups times their scales plus mins, for high and for low bytes.
    type Totals: Copy;

    fn zero_planes(self) -> Self::Planes;
    /// The sums of a group before its first product. With `CENTRED` quants, the number at `activations` is followed by
    /// two that are the sums of the activations times minus the centre; a tier adds them here or in
    /// [`add_scaled`](Self::add_scaled).
    ///
    /// # Safety
    /// Four numbers must be readable at `activations` if `CENTRED`.
    unsafe fn begin_group<const CENTRED: bool>(self, activations: *const i32) -> Self::Planes;
    /// Adds the products of a line of quants below 64 with activations `4 · INDEX` to `4 · INDEX + 3` of a block: 32
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
    /// As [`dot_planes`](Self::dot_planes), for two lines and the same activations.
    ///
    /// # Safety
    /// As for [`dot_planes`](Self::dot_planes).
    #[inline(always)]
    unsafe fn dot_planes_of_two<const INDEX: usize>(
        self,
        sums: [Self::Planes; 2],
        lines: [Self::Line; 2],
        block: *const u8,
    ) -> [Self::Planes; 2] {
        // SAFETY: as the caller guarantees.
        unsafe {
            [
                self.dot_planes::<INDEX>(sums[0], lines[0], block),
                self.dot_planes::<INDEX>(sums[1], lines[1], block),
            ]
        }
    }
    /// Adds the sums of two parts of a group.
    fn add_planes(self, a: Self::Planes, b: Self::Planes) -> Self::Planes;
    fn zero_totals(self) -> Self::Totals;
    /// Adds a group: its sums times the scales, and the sums of its activations times the mins. `factors` has sixteen
    /// pairs of scale and min; `activations` has the sums of the high and of the low bytes, times 65536.
    ///
    /// # Safety
    /// Two numbers must be readable at `activations`, four if `CENTRED`.
    unsafe fn add_scaled<const CENTRED: bool>(
        self,
        totals: Self::Totals,
        sums: Self::Planes,
        factors: Self::Line,
        activations: *const i32,
    ) -> Self::Totals;
    fn add_totals(self, a: Self::Totals, b: Self::Totals) -> Self::Totals;
    /// Adds products of two-byte weights with pairs of activation bytes, both widened to two bytes: the pair of high bytes
    /// is at `pairs`, that of low bytes after it.
    ///
    /// # Safety
    /// Eight bytes must be readable at `pairs`.
    unsafe fn dot_words(
        self,
        totals: Self::Totals,
        weights: Self::Line,
        pairs: *const u8,
    ) -> Self::Totals;
    /// As [`dot_words`](Self::dot_words), for two lines of weights and the same activations.
    ///
    /// # Safety
    /// As for [`dot_words`](Self::dot_words).
    #[inline(always)]
    unsafe fn dot_words_of_two(
        self,
        totals: [Self::Totals; 2],
        weights: [Self::Line; 2],
        pairs: *const u8,
    ) -> [Self::Totals; 2] {
        // SAFETY: as the caller guarantees.
        unsafe {
            [
                self.dot_words(totals[0], weights[0], pairs),
                self.dot_words(totals[1], weights[1], pairs),
            ]
        }
    }
    /// Stores sixteen integral numbers of magnitude up to [`MAX_ROW_SCALED`] as [`dot_words`](Self::dot_words) reads them:
    /// of every four numbers the pairs of the first and third, then those of the second and fourth.
    ///
    /// # Safety
    /// 64 bytes must be writable.
    unsafe fn store_word_pairs(self, values: Self::V, to: *mut u8);
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
    /// `low | shifted bits & MASK`, where the bits are shifted left by `LEFT`, or right if it is negative.
    fn merge_bits<const LEFT: i32, const MASK: u8>(
        self,
        low: Self::Line,
        bits: Self::Line,
    ) -> Self::Line;

    /// # Safety
    /// 64 bytes must be writable at `to`.
    unsafe fn store_bytes(self, line: Self::Line, to: *mut u8);
    /// 32 unsigned bytes as 16-bit numbers.
    ///
    /// # Safety
    /// 32 bytes must be readable.
    unsafe fn widen_u8(self, from: *const u8) -> Self::Line;
    /// Sixteen signed bytes as 32-bit numbers.
    ///
    /// # Safety
    /// Sixteen bytes must be readable.
    unsafe fn widen_i8(self, from: *const u8) -> Self::Line;
    /// Sixteen unsigned 16-bit numbers as 32-bit numbers.
    ///
    /// # Safety
    /// 32 bytes must be readable.
    unsafe fn widen_u16(self, from: *const u8) -> Self::Line;
    fn splat_16(self, value: i16) -> Self::Line;
    fn add_16(self, a: Self::Line, b: Self::Line) -> Self::Line;
    fn sub_16(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// `a · b / 2^15` of signed 16-bit numbers, rounded to the nearest.
    fn mul_high_rounded(self, a: Self::Line, b: Self::Line) -> Self::Line;
    fn shift_left_16(self, a: Self::Line, bits: u32) -> Self::Line;
    /// 16-bit numbers without their low bytes.
    fn high_bytes(self, a: Self::Line) -> Self::Line;
    /// An arithmetic shift.
    fn shift_right_16(self, a: Self::Line, bits: u32) -> Self::Line;
    fn shift_left_32(self, a: Self::Line, bits: u32) -> Self::Line;
    /// The low halves of the 32-bit numbers of one line and the high halves of another.
    fn select_halves(self, low: Self::Line, high: Self::Line) -> Self::Line;
}

/// A line from 16-bit numbers made one by one.
#[inline(always)]
fn from_16(number: impl Fn(usize) -> i16) -> [u8; 4 * LANES] {
    let mut line = [0; 4 * LANES];
    for (i, two) in line.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        *two = number(i).to_le_bytes();
    }
    line
}

/// A 16-bit number of a line.
#[inline(always)]
fn number_16(line: &[u8; 4 * LANES], i: usize) -> i16 {
    i16::from_le_bytes([line[2 * i], line[2 * i + 1]])
}

impl RowScaledDot for Generic {
    type Planes = [[i32; LANES]; 2];
    type Totals = [[i32; LANES]; 2];

    #[inline(always)]
    fn zero_planes(self) -> Self::Planes {
        [[0; LANES]; 2]
    }

    #[inline(always)]
    unsafe fn begin_group<const CENTRED: bool>(self, activations: *const i32) -> Self::Planes {
        if CENTRED {
            // SAFETY: the caller guarantees four numbers.
            [2, 3].map(|i| [unsafe { activations.add(i).read() }; LANES])
        } else {
            [[0; LANES]; 2]
        }
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
    unsafe fn add_scaled<const CENTRED: bool>(
        self,
        mut totals: Self::Totals,
        sums: Self::Planes,
        factors: Self::Line,
        activations: *const i32,
    ) -> Self::Totals {
        // SAFETY: the caller guarantees two numbers.
        let activations = unsafe { activations.cast::<[i32; 2]>().read() };
        for plane in 0..2 {
            for lane in 0..LANES {
                let [scale, min] = [0, 1].map(|i| i32::from(number_16(&factors, 2 * lane + i)));
                totals[plane][lane] += scale * sums[plane][lane] + min * (activations[plane] >> 16);
            }
        }
        totals
    }

    #[inline(always)]
    fn add_totals(self, a: Self::Totals, b: Self::Totals) -> Self::Totals {
        self.add_planes(a, b)
    }

    #[inline(never)]
    unsafe fn dot_words(
        self,
        mut totals: Self::Totals,
        weights: Self::Line,
        pairs: *const u8,
    ) -> Self::Totals {
        // SAFETY: the caller guarantees both pairs.
        let x: [[i16; 2]; 2] = unsafe { pairs.cast::<[[i16; 2]; 2]>().read_unaligned() };
        for (totals, x) in totals.iter_mut().zip(x) {
            for (lane, total) in totals.iter_mut().enumerate() {
                for (i, x) in x.into_iter().enumerate() {
                    *total += i32::from(number_16(&weights, 2 * lane + i)) * i32::from(x);
                }
            }
        }
        totals
    }

    #[inline(never)]
    unsafe fn store_word_pairs(self, values: Self::V, to: *mut u8) {
        for (quad, four) in values.as_chunks::<4>().0.iter().enumerate() {
            let planes = four.map(|x| {
                let x = x as i32;
                let top = (x + 64) >> 7;
                [top as i16, (x - (top << 7)) as i16]
            });
            for (i, [first, second]) in [[0, 2], [1, 3]].into_iter().enumerate() {
                let pairs = [0, 1].map(|plane| [planes[first][plane], planes[second][plane]]);
                // SAFETY: the caller guarantees 64 bytes, eight for each pair of numbers.
                unsafe {
                    let to = to.add(16 * quad + 8 * i);
                    to.cast::<[[i16; 2]; 2]>().write_unaligned(pairs);
                }
            }
        }
    }

    #[inline(never)]
    fn totals_to_f32(self, [high, low]: Self::Totals) -> Self::V {
        std::array::from_fn(|i| high[i] as f32 * 128.0 + low[i] as f32)
    }

    #[inline(never)]
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

    #[inline(never)]
    fn merge_bits<const LEFT: i32, const MASK: u8>(
        self,
        low: Self::Line,
        bits: Self::Line,
    ) -> Self::Line {
        std::array::from_fn(|i| {
            let shifted = if LEFT >= 0 {
                bits[i] << LEFT
            } else {
                bits[i] >> -LEFT
            };
            low[i] | shifted & MASK
        })
    }

    #[inline(always)]
    unsafe fn store_bytes(self, line: Self::Line, to: *mut u8) {
        // SAFETY: the caller guarantees 64 bytes.
        unsafe { to.cast::<Self::Line>().write_unaligned(line) }
    }

    #[inline(never)]
    unsafe fn widen_u8(self, from: *const u8) -> Self::Line {
        // SAFETY: the caller guarantees 32 bytes.
        from_16(|i| unsafe { i16::from(from.add(i).read()) })
    }

    #[inline(never)]
    unsafe fn widen_i8(self, from: *const u8) -> Self::Line {
        // SAFETY: the caller guarantees sixteen bytes.
        let byte = |i: usize| i32::from(unsafe { from.cast::<i8>().add(i).read() });
        from_16(|i| (byte(i / 2) >> (i % 2 * 16)) as i16)
    }

    #[inline(never)]
    unsafe fn widen_u16(self, from: *const u8) -> Self::Line {
        // SAFETY: the caller guarantees 32 bytes.
        let number = |i: usize| unsafe { from.cast::<i16>().add(i).read_unaligned() };
        from_16(|i| if i % 2 == 0 { number(i / 2) } else { 0 })
    }

    #[inline(never)]
    fn splat_16(self, value: i16) -> Self::Line {
        from_16(|_| value)
    }

    #[inline(never)]
    fn add_16(self, a: Self::Line, b: Self::Line) -> Self::Line {
        from_16(|i| number_16(&a, i).wrapping_add(number_16(&b, i)))
    }

    #[inline(never)]
    fn sub_16(self, a: Self::Line, b: Self::Line) -> Self::Line {
        from_16(|i| number_16(&a, i).wrapping_sub(number_16(&b, i)))
    }

    #[inline(never)]
    fn mul_high_rounded(self, a: Self::Line, b: Self::Line) -> Self::Line {
        from_16(|i| {
            let product = i32::from(number_16(&a, i)) * i32::from(number_16(&b, i));
            (((product >> 14) + 1) >> 1) as i16
        })
    }

    #[inline(never)]
    fn shift_left_16(self, a: Self::Line, bits: u32) -> Self::Line {
        from_16(|i| number_16(&a, i) << bits)
    }

    #[inline(never)]
    fn high_bytes(self, a: Self::Line) -> Self::Line {
        from_16(|i| number_16(&a, i) & !0xff)
    }

    #[inline(never)]
    fn shift_right_16(self, a: Self::Line, bits: u32) -> Self::Line {
        from_16(|i| number_16(&a, i) >> bits)
    }

    #[inline(never)]
    fn shift_left_32(self, a: Self::Line, bits: u32) -> Self::Line {
        let mut line = a;
        for four in line.as_chunks_mut::<4>().0 {
            *four = (u32::from_le_bytes(*four) << bits).to_le_bytes();
        }
        line
    }

    #[inline(never)]
    fn select_halves(self, low: Self::Line, high: Self::Line) -> Self::Line {
        std::array::from_fn(|i| if i % 4 < 2 { low[i] } else { high[i] })
    }
}
