//! The block formats against another implementation, bit for bit.

use std::path::Path;

use base::{Bytes, DType, quant};

#[test]
fn every_format_expands_to_the_expected_bits() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quant");
    for dtype in DType::ALL.into_iter().filter(|t| t.is_real()) {
        let file = Bytes::map(&folder.join(format!("{dtype}.bin"))).unwrap();
        let blocks = file.len() / (dtype.block_bytes() + 4 * dtype.block_len());
        assert!(blocks >= 16, "{dtype}");
        let (packed, expected) = file.split_at(blocks * dtype.block_bytes());

        let mut out = vec![0.0; blocks * dtype.block_len()];
        quant::dequantise(dtype, packed, &mut out).unwrap();
        let (expected, rest) = expected.as_chunks::<4>();
        assert!(rest.is_empty() && expected.len() == out.len(), "{dtype}");
        for (i, (got, &want)) in out.iter().zip(expected).enumerate() {
            let want = f32::from_le_bytes(want);
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{dtype} element {i}: {got} is not {want}"
            );
        }
    }
}
