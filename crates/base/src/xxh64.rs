//! The XXH64 checksum. It runs at memory speed and detects damage, not deliberate changes.

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

/// The XXH64 checksum of `bytes`. To chain several parts, pass the checksum of one as the seed of the next.
pub fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let (stripes, rest) = bytes.as_chunks::<32>();
    let mut hash = match stripes.is_empty() {
        true => seed.wrapping_add(P5),
        false => {
            let start = [P1.wrapping_add(P2), P2, 0, P1.wrapping_neg()];
            let lanes = stripes.iter().fold(
                start.map(|lane| seed.wrapping_add(lane)),
                |lanes, stripe| {
                    let words = stripe.as_chunks::<8>().0;
                    [0, 1, 2, 3].map(|i| round(lanes[i], u64::from_le_bytes(words[i])))
                },
            );
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| lanes[i].rotate_left([1, 7, 12, 18][i]));
            let sum = a.wrapping_add(b).wrapping_add(c).wrapping_add(d);
            lanes.into_iter().fold(sum, |hash, lane| {
                let mixed = (hash ^ round(0, lane)).wrapping_mul(P1);
                mixed.wrapping_add(P4)
            })
        }
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash.rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
    }
    let (halves, rest) = rest.as_chunks::<4>();
    for half in halves {
        hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(P1);
        hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(P5);
        hash = hash.rotate_left(11).wrapping_mul(P1);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P2);
    hash = (hash ^ hash >> 29).wrapping_mul(P3);
    hash ^ hash >> 32
}

/// Mixes one word into a lane. For a fixed lane, different words give different results.
fn round(lane: u64, word: u64) -> u64 {
    let mixed = lane.wrapping_add(word.wrapping_mul(P2));
    mixed.rotate_left(31).wrapping_mul(P1)
}

#[cfg(test)]
mod tests {
    use super::xxh64;

    /// Made with the Python package xxhash.
    #[test]
    fn checksums_are_those_of_the_specification() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let table = [
            (0, 0, 0xef46_db37_51d8_e999),
            (0, 7, 0x95f0_626f_6f0a_4409),
            (1, 0, 0xe934_a84a_db05_2768),
            (4, 0, 0xffce_d860_4453_cc1e),
            (31, 0, 0xc346_d2b5_9b4d_8ee1),
            (32, 0, 0xcbf5_9c51_16ff_32b4),
            (47, 99, 0x68d2_25b9_778a_4a94),
            (1000, 0, 0x6ef4_36b0_0eba_4078),
            (1000, 0x1234_5678_9abc_def0, 0x62d1_4b92_1284_017a),
        ];
        for (len, seed, expect) in table {
            assert_eq!(
                xxh64(&bytes[..len], seed),
                expect,
                "{len} bytes, seed {seed}"
            );
        }
    }
}
