//! The reference encoder and decoder of KV rows. Every backend's kernels must give the same results.

use crate::e4m3;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kv::KvStorage;

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
                for (x, code) in elements.iter().zip(&mut codes[g * group.len()..]) {
                    *code = affine.code(*x);
                }
            }
        }
        KvStorage::Q4(group) => {
            let (params, codes) = out.split_at_mut(row.len().div_ceil(group.len()) * 4);
            codes.fill(0);
            for (g, elements) in row.chunks(group.len()).enumerate() {
                let affine = Affine::fit(elements, 15.0, &mut params[g * 4..g * 4 + 4]);
                for (x, i) in elements.iter().zip(g * group.len()..) {
                    codes[nibble(i).0] |= affine.code(*x) << nibble(i).1;
                }
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
            for (x, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                *x = f16::from_le_bytes(*bytes).to_f32();
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
        KvStorage::Q8(group) | KvStorage::Q4(group) => {
            let (params, codes) = bytes.split_at(row.len().div_ceil(group.len()) * 4);
            for (i, x) in row.iter_mut().enumerate() {
                let code = match storage {
                    KvStorage::Q8(_) => codes[i],
                    _ => codes[nibble(i).0] >> nibble(i).1 & 15,
                };
                *x = Affine::read(&params[i / group.len() * 4..]).value(code);
            }
        }
    }
}

/// Byte and shift of the 4-bit code of element `i`.
fn nibble(i: usize) -> (usize, u32) {
    (
        i / NIBBLE_BLOCK * NIBBLE_BLOCK / 2 + i % (NIBBLE_BLOCK / 2),
        if i % NIBBLE_BLOCK < NIBBLE_BLOCK / 2 {
            0
        } else {
            4
        },
    )
}

/// The affine map `scale · code + offset` of one group, with its parameters rounded as they are stored.
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
        let offset = f16::from_f32(low);
        let scale = f16::from_f32((high - offset.to_f32()) / max_code);
        params[..2].copy_from_slice(&scale.to_le_bytes());
        params[2..].copy_from_slice(&offset.to_le_bytes());
        Affine {
            scale: scale.to_f32(),
            offset: offset.to_f32(),
            max_code,
        }
    }

    fn read(params: &[u8]) -> Affine {
        let at = |i: usize| f16::from_le_bytes([params[i], params[i + 1]]).to_f32();
        Affine {
            scale: at(0),
            offset: at(2),
            max_code: 0.0,
        }
    }

    fn code(&self, x: f32) -> u8 {
        // A group of equal elements has scale zero. The quotient is then NaN, which casts to code zero.
        ((x - self.offset) / self.scale)
            .round()
            .clamp(0.0, self.max_code) as u8
    }

    fn value(&self, code: u8) -> f32 {
        self.scale * f32::from(code) + self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::TestRng;

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
            assert_eq!(back, [0.5; 64], "{storage}: equal elements are exact");
        }
    }
}
