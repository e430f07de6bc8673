//! `BlockFormat`: the layout of a block, its codes, and the functions that read it.

/// The most elements of a block.
pub const MAX_LEN: usize = 256;

/// A format of quantised weights.
///
/// A block holds `len` elements in `bytes` bytes. An element is `scale · value + min`, where the value is an integer that
/// follows from the element's code ([`Codes`]), and scale and min are those of the element's group.
///
/// The format's Rust ([`unpack`](Self::unpack)) and its device code ([`element`](Self::element)) read the same numbers out of a
/// block; everything else that decodes, packs or multiplies weights is derived from them.
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    /// The lower-case name used in text forms and messages.
    pub name: &'static str,
    /// The number in GGUF files.
    pub number: u32,
    /// Elements of a block, at most [`MAX_LEN`].
    pub len: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The codes of elements.
    pub codes: Codes,
    /// Elements that share scale and min: 16 or 32.
    pub group: usize,
    /// Whether the scale and min of a group are those of the block times small integers.
    pub two_level: bool,
    /// Whether elements have a min.
    pub mins: bool,
    /// Where the codes start, if a block is its f16 scale, its f16 min where it has one, and 32 codes of four bits, of
    /// elements `i` and `i + 16` in byte `i`.
    pub nibbles_at: Option<usize>,
    /// Reads a block of `bytes` bytes. Numbers that the format does not have are left as they are.
    pub unpack: fn(&[u8], &mut QuantBlock),
    /// How blocks are written, for formats that weights are encoded in.
    pub pack: Option<Pack>,
    /// Statements that read element `e` of the block at `b` into `q.code`, `q.scale` and `q.min`, in the common subset of C
    /// and CUDA C++. They may call `half_at`, `u16_at` and `u32_at`, and read [`grid`](Self::grid).
    pub element: &'static str,
    /// A table of 16-bit numbers that the statements read as `NAME_grid`; empty if there is none.
    pub grid: &'static [u16],
}

/// Writes blocks.
#[derive(Clone, Copy, Debug)]
pub struct Pack {
    /// The smallest and the largest factor of a group of a two-level format; factors of mins begin at 0.
    pub scales: [i32; 2],
    /// Writes the numbers that [`unpack`](BlockFormat::unpack) reads to `bytes` bytes.
    pub write: fn(&QuantBlock, &mut [u8]),
}

/// How codes become values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Unsigned integers: the value is the code minus `zero`.
    Unsigned {
        /// Bits of a code: two to six.
        bits: u32,
        /// The code of zero.
        zero: i32,
    },
    /// Signed bytes, which are the values.
    Signed,
    /// Four bits, which index the values.
    Table(&'static [i8; 16]),
}

/// The numbers of one block.
#[derive(Clone, Copy, Debug)]
pub struct QuantBlock {
    /// A code for each element.
    pub codes: [u8; MAX_LEN],
    /// The scale of the block.
    pub scale: f32,
    /// The min of the block.
    pub min: f32,
    /// The factors of the scale, one for each group of a two-level format.
    pub scales: [i8; MAX_LEN / 16],
    /// The factors of the min, one for each group of a two-level format.
    pub mins: [i8; MAX_LEN / 16],
}

impl Default for QuantBlock {
    fn default() -> QuantBlock {
        QuantBlock {
            codes: [0; MAX_LEN],
            scale: 0.0,
            min: 0.0,
            scales: [0; MAX_LEN / 16],
            mins: [0; MAX_LEN / 16],
        }
    }
}

impl BlockFormat {
    /// A format of one scale for a block of 32, without a min. Formats override what differs.
    pub(super) const PLAIN: BlockFormat = BlockFormat {
        name: "",
        number: 0,
        len: 32,
        bytes: 0,
        codes: Codes::Signed,
        group: 32,
        two_level: false,
        mins: false,
        nibbles_at: None,
        unpack: |_, _| {},
        pack: None,
        element: "",
        grid: &[],
    };

    /// A format of two levels of scales for a block of 256, without mins.
    pub(super) const TWO_LEVEL: BlockFormat = BlockFormat {
        len: MAX_LEN,
        two_level: true,
        ..BlockFormat::PLAIN
    };

    /// Scale and min of a group; the min is zero if the format has none.
    #[inline]
    pub fn factors(&self, block: &QuantBlock, group: usize) -> [f32; 2] {
        let (mut scale, mut min) = (block.scale, block.min);
        if self.two_level {
            scale *= f32::from(block.scales[group]);
            min *= f32::from(block.mins[group]);
        }
        [scale, if self.mins { min } else { 0.0 }]
    }

    /// Decodes one block of `bytes` bytes to `len` elements; `block` is overwritten.
    ///
    /// Arithmetic is `f32` in one order (scale times value, then min), so that all callers get the same bits.
    pub(super) fn decode(&self, bytes: &[u8], block: &mut QuantBlock, out: &mut [f32]) {
        (self.unpack)(bytes, block);
        for (group, out) in out.chunks_exact_mut(self.group).enumerate() {
            let factors = self.factors(block, group);
            let codes = &block.codes[group * self.group..][..self.group];
            match self.codes {
                Codes::Unsigned { zero, .. } => {
                    self.scale_codes(factors, codes, out, |code| i32::from(code) - zero)
                }
                Codes::Signed => {
                    self.scale_codes(factors, codes, out, |code| i32::from(code as i8))
                }
                Codes::Table(values) => self.scale_codes(factors, codes, out, |code| {
                    i32::from(values[usize::from(code & 15)])
                }),
            }
        }
    }

    /// Writes a block of one of the formats that are their f16 scale, their f16 min where they have one, and codes of four bits or
    /// signed bytes (`Q4_0`, `Q4_1`, `Q8_0`); `code` gives the code of an element.
    pub fn encode(&self, [scale, min]: [f32; 2], code: impl Fn(usize) -> u8, out: &mut [u8]) {
        let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
        out[..2].copy_from_slice(&half(scale));
        if self.mins {
            out[2..4].copy_from_slice(&half(min));
        }
        match self.nibbles_at {
            Some(at) => {
                for (i, byte) in out[at..].iter_mut().enumerate() {
                    *byte = code(i) & 15 | code(i + 16) << 4;
                }
            }
            None => {
                debug_assert_eq!((self.codes, self.bytes), (Codes::Signed, 2 + self.len));
                for (i, byte) in out[2..].iter_mut().enumerate() {
                    *byte = code(i);
                }
            }
        }
    }

    #[inline(always)]
    fn scale_codes(
        &self,
        [scale, min]: [f32; 2],
        codes: &[u8],
        out: &mut [f32],
        value: impl Fn(u8) -> i32,
    ) {
        let elements = out.iter_mut().zip(codes);
        if self.mins {
            elements.for_each(|(out, code)| *out = scale * value(*code) as f32 + min);
        } else {
            // Adding a min of zero would change negative zeros.
            elements.for_each(|(out, code)| *out = scale * value(*code) as f32);
        }
    }
}

/// The f16 at byte `at`.
#[inline]
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    half_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Converts an f16 to f32, without a branch for finite values.
#[inline(always)]
pub fn half_to_f32(bits: u16) -> f32 {
    // Corrects the difference of the exponent biases.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    let finite = (f32::from_bits(rest << 13) * SCALE).to_bits();
    let not_finite = 0x7f80_0000 | rest << 13;
    let magnitude = if rest < 0x7c00 { finite } else { not_finite };
    f32::from_bits(sign | magnitude)
}

/// Writes an f16 at byte `at`.
pub(super) fn put_half(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(x).to_le_bytes());
}

/// The inverse of [`nibbles`].
pub(super) fn put_nibbles(codes: &[u8], bytes: &mut [u8]) {
    for (i, byte) in bytes[..16].iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[16 + i] << 4;
    }
}

/// Sixteen low nibbles, then sixteen high nibbles.
#[inline]
pub(super) fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (i, byte) in bytes[..16].iter().enumerate() {
        codes[i] = byte & 15;
        codes[16 + i] = byte >> 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn half_equals_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            let same = found.to_bits() == expected.to_bits();
            assert!(same || found.is_nan() && expected.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn formats_are_consistent() {
        for format in DType::ALL.into_iter().filter_map(DType::format) {
            let name = format.name;
            assert!(matches!(format.group, 16 | 32), "{name}");
            assert!(format.len.is_multiple_of(format.group), "{name}");
            assert_eq!(format.two_level, format.len == MAX_LEN, "{name}");
            let mut block = QuantBlock::default();
            (format.unpack)(&vec![0xff; format.bytes], &mut block);
            let most = match format.codes {
                Codes::Unsigned { bits, .. } => (1 << bits) - 1,
                Codes::Signed => 255,
                Codes::Table(_) => 15,
            };
            let codes = &block.codes[..format.len];
            assert!(codes.iter().all(|code| *code <= most), "{name}");
        }
    }
}
