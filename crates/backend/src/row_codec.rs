//! The reference encoder and decoder of KV rows. Every backend's kernels must give the same results.

use crate::{e4m3, hadamard};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kv::{KvStorage, QuantGroup};

/// Rows of at most this many elements are transformed without an allocation.
const STACK_ROW: usize = 512;
/// Elements of a Q4 row whose 4-bit codes share sixteen bytes.
const NIBBLE_BLOCK: usize = 32;

/// Encodes a row; `out` has [`KvStorage::row_bytes`] bytes.
pub fn encode(storage: KvStorage, row: &[f32], out: &mut [u8]) {
    debug_assert_eq!(out.len(), storage.row_bytes(row.len()));
    match storage {
        KvStorage::F32 => {
            for (x, bytes) in row.iter().zip(out.as_chunks_mut().0) {
                *bytes = x.to_le_bytes();
            }
        }
        KvStorage::F16 => {
            // In chunks, because the conversion needs f16 slices and `out` may not be aligned for them.
            let mut halves = [f16::ZERO; 64];
            for (from, to) in row.chunks(64).zip(out.chunks_mut(128)) {
                halves[..from.len()].convert_from_f32_slice(from);
                for (half, bytes) in halves.iter().zip(to.as_chunks_mut().0) {
                    *bytes = half.to_le_bytes();
                }
            }
        }
        KvStorage::BF16 => {
            for (x, bytes) in row.iter().zip(out.as_chunks_mut().0) {
                *bytes = bf16::from_f32(*x).to_le_bytes();
            }
        }
        KvStorage::F8E4M3 => {
            for (x, code) in row.iter().zip(out) {
                *code = e4m3::encode(*x);
            }
        }
        KvStorage::Q8(group) => {
            let (params, codes) = out.split_at_mut(row.len().div_ceil(group.len()) * 4);
            for (g, elements) in row.chunks(group.len()).enumerate() {
                let affine = Affine::fit(elements, 255.0, &mut params[g * 4..g * 4 + 4]);
                let codes = &mut codes[g * group.len()..][..elements.len()];
                affine.codes(elements, codes);
            }
        }
        KvStorage::Q4Rotated => {
            let mut buffer = [0.0; STACK_ROW];
            let mut large = vec![];
            let rotated = match row.len() <= STACK_ROW {
                true => &mut buffer[..row.len()],
                false => {
                    large.resize(row.len(), 0.0);
                    &mut large[..]
                }
            };
            rotated.copy_from_slice(row);
            hadamard(rotated);
            encode_nibbles(QuantGroup::G32, rotated, out, Affine::search);
        }
        KvStorage::Q4(group) => encode_nibbles(group, row, out, |elements, params| {
            Affine::fit(elements, 15.0, params)
        }),
    }
}

/// Encodes a row in codes of four bits. `fit` chooses the map of a group and writes its parameters.
fn encode_nibbles(
    group: QuantGroup,
    row: &[f32],
    out: &mut [u8],
    fit: impl Fn(&[f32], &mut [u8]) -> Affine,
) {
    let (params, codes) = out.split_at_mut(row.len().div_ceil(group.len()) * 4);
    for (g, elements) in row.chunks(group.len()).enumerate() {
        let affine = fit(elements, &mut params[g * 4..g * 4 + 4]);
        let codes = codes[g * group.len() / 2..].chunks_exact_mut(NIBBLE_BLOCK / 2);
        for (elements, codes) in elements.chunks(NIBBLE_BLOCK).zip(codes) {
            let mut block = [0; NIBBLE_BLOCK];
            affine.codes(elements, &mut block[..elements.len()]);
            let (low, high) = block.split_at(NIBBLE_BLOCK / 2);
            for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                *code = low | high << 4;
            }
        }
    }
}

/// Decodes a row that [`encode`] wrote.
pub fn decode(storage: KvStorage, bytes: &[u8], row: &mut [f32]) {
    match storage {
        KvStorage::F32 => {
            for (x, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                *x = f32::from_le_bytes(*bytes);
            }
        }
        KvStorage::F16 => {
            let mut halves = [f16::ZERO; 64];
            for (to, from) in row.chunks_mut(64).zip(bytes.chunks(128)) {
                let halves = &mut halves[..to.len()];
                for (half, bytes) in halves.iter_mut().zip(from.as_chunks().0) {
                    *half = f16::from_le_bytes(*bytes);
                }
                halves.convert_to_f32_slice(to);
            }
        }
        KvStorage::BF16 => {
            for (x, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                *x = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        KvStorage::F8E4M3 => {
            for (x, code) in row.iter_mut().zip(bytes) {
                *x = e4m3::decode(*code);
            }
        }
        KvStorage::Q4Rotated => {
            decode(KvStorage::Q4(QuantGroup::G32), bytes, row);
            hadamard(row);
        }
        KvStorage::Q8(group) => {
            let (params, codes) = bytes.split_at(row.len().div_ceil(group.len()) * 4);
            let groups = row.chunks_mut(group.len()).zip(params.chunks_exact(4));
            for ((row, params), codes) in groups.zip(codes.chunks(group.len())) {
                Affine::read(params).values(codes, row);
            }
        }
        KvStorage::Q4(group) => {
            let (params, codes) = bytes.split_at(row.len().div_ceil(group.len()) * 4);
            let groups = row.chunks_mut(group.len()).zip(params.chunks_exact(4));
            for ((row, params), codes) in groups.zip(codes.chunks(group.len() / 2)) {
                let affine = Affine::read(params);
                let blocks = row.chunks_mut(NIBBLE_BLOCK);
                for (row, codes) in blocks.zip(codes.chunks(NIBBLE_BLOCK / 2)) {
                    let mut block = [0; NIBBLE_BLOCK];
                    let (low, high) = block.split_at_mut(NIBBLE_BLOCK / 2);
                    for ((code, low), high) in codes.iter().zip(low).zip(high) {
                        (*low, *high) = (code & 15, code >> 4);
                    }
                    affine.values(&block, row);
                }
            }
        }
    }
}

/// How far [`Affine::search`] moves the ends of a group's range inwards, as parts of the range, before it fits the map to the codes.
const TRIMMED_ENDS: [[f32; 2]; 4] = [[0.01, 0.01], [0.06, 0.0], [0.0, 0.06], [0.05, 0.05]];
/// How often it fits the map to the codes of the one before.
const REFITS: usize = 2;

/// The affine map `scale · code + offset` of one group, with its parameters rounded as they are stored.
#[derive(Clone, Copy)]
struct Affine {
    scale: f32,
    offset: f32,
    max_code: f32,
}

impl Affine {
    /// Fits the map to the range of the elements, for codes from 0 to `max_code`, and writes its parameters as two f16.
    fn fit(elements: &[f32], max_code: f32, params: &mut [u8]) -> Affine {
        let low = elements.iter().fold(f32::INFINITY, |a, b| a.min(*b));
        let high = elements.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let offset = f16::from_f32(low).to_f32();
        let affine = Affine::rounded((high - offset) / max_code, offset, max_code);
        affine.write(params);
        affine
    }

    /// Chooses a map for codes of four bits by the least squares of what the codes are off: of the range of the elements, of ranges whose
    /// ends are a little trimmed, and of the maps that fit their codes best.
    fn search(elements: &[f32], params: &mut [u8]) -> Affine {
        let mut best = Affine::fit(elements, 15.0, params);
        if elements.len() > NIBBLE_BLOCK {
            return best;
        }
        let (low, range) = (best.offset, best.scale * best.max_code);
        let mut codes = [0.0; NIBBLE_BLOCK];
        let mut least = best.squares(elements, &mut codes);
        for [from_low, from_high] in TRIMMED_ENDS {
            let scale = range * (1.0 - from_low - from_high) / best.max_code;
            let mut map = Affine::rounded(scale, low + range * from_low, best.max_code);
            for refit in 0..=REFITS {
                // A NaN is never less.
                let squares = map.squares(elements, &mut codes);
                if squares < least {
                    (best, least) = (map, squares);
                }
                if refit < REFITS {
                    map = map.refitted(elements, &codes);
                }
            }
        }
        best.write(params);
        best
    }

    /// A map with its parameters rounded as they are stored.
    fn rounded(scale: f32, offset: f32, max_code: f32) -> Affine {
        Affine {
            scale: f16::from_f32(scale).to_f32(),
            offset: f16::from_f32(offset).to_f32(),
            max_code,
        }
    }

    fn write(&self, params: &mut [u8]) {
        params[..2].copy_from_slice(&f16::from_f32(self.scale).to_le_bytes());
        params[2..].copy_from_slice(&f16::from_f32(self.offset).to_le_bytes());
    }

    /// The sum of the squares of what the elements' codes are off, and the codes.
    fn squares(&self, elements: &[f32], codes: &mut [f32; NIBBLE_BLOCK]) -> f32 {
        let inverse = 1.0 / self.scale;
        let mut sums = [0.0; 4];
        for (i, (x, code)) in elements.iter().zip(codes).enumerate() {
            let quotient = ((x - self.offset) * inverse).max(0.0).min(self.max_code);
            *code = (quotient + 0.5) as u32 as f32;
            let off = self.scale * *code + self.offset - x;
            sums[i % 4] += off * off;
        }
        sums.iter().sum()
    }

    /// The map that is off the elements by the least squares with these codes; NaN if all codes are equal.
    fn refitted(&self, elements: &[f32], codes: &[f32; NIBBLE_BLOCK]) -> Affine {
        let n = elements.len() as f32;
        let (mut xs, mut cs, mut xc, mut cc) = (0.0, 0.0, 0.0, 0.0);
        for (x, code) in elements.iter().zip(codes) {
            xs += x;
            cs += code;
            xc += x * code;
            cc += code * code;
        }
        let scale = (n * xc - xs * cs) / (n * cc - cs * cs);
        Affine::rounded(scale, (xs - scale * cs) / n, self.max_code)
    }

    fn read(params: &[u8]) -> Affine {
        let at = |i: usize| f16::from_le_bytes([params[i], params[i + 1]]).to_f32();
        Affine {
            scale: at(0),
            offset: at(2),
            max_code: 0.0,
        }
    }

    /// The codes of elements: the nearest ones, and of two that are equally near the larger. A group of equal elements has scale
    /// zero; its quotients are NaN, which becomes code zero.
    fn codes(&self, elements: &[f32], codes: &mut [u8]) {
        // Adding 2^23 leaves an integer in the low bits. It rounds ties to even numbers, hence the correction.
        const SHIFT: f32 = 8_388_608.0;
        for (x, code) in elements.iter().zip(codes) {
            let quotient = ((x - self.offset) / self.scale).max(0.0).min(self.max_code);
            let rounded = (quotient + SHIFT) - SHIFT;
            let tie = f32::from(u8::from(quotient - rounded == 0.5));
            *code = (rounded + tie + SHIFT).to_bits() as u8;
        }
    }

    /// The elements of codes.
    fn values(&self, codes: &[u8], elements: &mut [f32]) {
        for (x, code) in elements.iter_mut().zip(codes) {
            *x = self.scale * f32::from(*code) + self.offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::TestRng;

    /// Codes are those of rounding element by element, ties and equal elements included.
    #[test]
    fn codes_are_the_nearest() {
        let mut noise = TestRng::new(8);
        for max_code in [15.0, 255.0] {
            for case in 0..2000 {
                let mut elements = noise.units(40);
                match case % 4 {
                    0 => elements.fill(0.25),
                    // Multiples of half a step.
                    1 => elements
                        .iter_mut()
                        .for_each(|x| *x = (*x * 64.0).round() / 128.0),
                    _ => {}
                }
                let affine = Affine::fit(&elements, max_code, &mut [0; 4]);
                let mut codes = [9; 40];
                affine.codes(&elements, &mut codes);
                for (x, code) in elements.iter().zip(codes) {
                    let quotient = (x - affine.offset) / affine.scale;
                    let expected = quotient.round().clamp(0.0, max_code) as u8;
                    assert_eq!(code, expected, "{x} of {elements:?}");
                }
            }
        }
        let affine = Affine {
            scale: 1.0,
            offset: 0.0,
            max_code: 255.0,
        };
        let halves: Vec<f32> = (0..520).map(|i| i as f32 * 0.5 - 2.0).collect();
        let mut codes = vec![0; halves.len()];
        affine.codes(&halves, &mut codes);
        for (x, code) in halves.iter().zip(codes) {
            assert_eq!(code, x.round().clamp(0.0, 255.0) as u8, "{x}");
        }
    }

    #[test]
    fn rows_come_back_within_their_type_s_step() {
        let mut noise = TestRng::new(3);
        for storage in KvStorage::ALL {
            for dim in [1, 8, 16, 20, 36, 64, 80, 128] {
                let row: Vec<f32> = noise.units(dim).iter().map(|x| x * 3.0 + 1.0).collect();
                let mut bytes = vec![0; storage.row_bytes(dim)];
                let mut back = vec![0.0; dim];
                encode(storage, &row, &mut bytes);
                decode(storage, &bytes, &mut back);
                let step = match storage {
                    KvStorage::F32 => 0.0,
                    KvStorage::F16 => 4.0 / 2048.0,
                    KvStorage::BF16 => 4.0 / 256.0,
                    KvStorage::F8E4M3 => 4.0 / 16.0,
                    KvStorage::Q8(_) => 6.0 / 255.0,
                    KvStorage::Q4(_) => 6.0 / 15.0,
                    // Every element of the transformed row may be half a step off.
                    KvStorage::Q4Rotated => 8.0 * 6.0 / 15.0,
                };
                for (x, y) in row.iter().zip(&back) {
                    assert!(
                        (x - y).abs() <= step * 0.51 + step * 0.02,
                        "{storage} dim {dim}: {x} became {y}"
                    );
                }
            }
            let mut bytes = vec![0; storage.row_bytes(64)];
            let mut back = vec![9.0; 64];
            encode(storage, &[0.5; 64], &mut bytes);
            decode(storage, &bytes, &mut back);
            match storage.rotated() {
                None => assert_eq!(back, [0.5; 64], "{storage}: equal elements are exact"),
                // They are one large element and zeros.
                Some(_) => assert!(back.iter().all(|x| (x - 0.5).abs() < 0.2), "{back:?}"),
            }
        }
    }
}
