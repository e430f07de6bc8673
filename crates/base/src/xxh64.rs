//! The XXH64 checksum. It runs at memory speed and detects damage, not deliberate changes.

/// The XXH64 checksum of `bytes`. To chain several parts, pass the checksum of one as the seed of the next.
pub fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh64::xxh64(bytes, seed)
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
