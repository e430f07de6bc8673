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

/// Numbers as weights have them: most small, some large, and blocks of zeros and of one number.
fn weights(n: usize) -> Vec<f32> {
    let mut state = 7u64;
    let mut uniform = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let normal = (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0);
    let mut all: Vec<f32> = normal.map(|x| 0.02 * x * (1.0 + 0.1 * x * x)).collect();
    all[256..512].fill(0.0);
    all[512..768].fill(-0.25);
    all[768..1024].iter_mut().for_each(|x| *x = x.abs());
    all
}

#[test]
fn what_is_written_is_what_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quant");
    for dtype in DType::ALL.into_iter().filter(|t| t.is_real()) {
        let Some((format, pack)) = dtype.format().and_then(|f| Some((f, f.pack?))) else {
            continue;
        };
        let file = Bytes::map(&folder.join(format!("{dtype}.bin"))).unwrap();
        let blocks = file.len() / (format.bytes + 4 * format.len);
        for bytes in file[..blocks * format.bytes].chunks_exact(format.bytes) {
            let (mut block, mut again) = (quant::QuantBlock::default(), vec![0xaa; format.bytes]);
            (format.unpack)(bytes, &mut block);
            (pack.write)(&block, &mut again);
            assert_eq!(bytes, again, "{dtype}");
        }
    }
}

#[test]
fn weights_are_encoded_closely() {
    let values = weights(1 << 14);
    let power: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let power = power / values.len() as f64;
    // The squared error may be this share of the mean square.
    let table = [
        (DType::F32, 0.0),
        (DType::F16, 1e-7),
        (DType::BF16, 1e-5),
        (DType::Q8_0, 3e-5),
        (DType::Q6_K, 3e-4),
        (DType::Q5_K, 9e-4),
        (DType::Q5_1, 1.2e-3),
        (DType::Q5_0, 1.5e-3),
        (DType::IQ4_XS, 4e-3),
        (DType::IQ4_NL, 4e-3),
        (DType::Q4_K, 3.6e-3),
        (DType::Q4_1, 4.5e-3),
        (DType::Q4_0, 6e-3),
        (DType::Q3_K, 2e-2),
        (DType::Q2_K, 6e-2),
    ];
    for (dtype, share) in table {
        assert!(quant::can_quantise(dtype), "{dtype}");
        let mut bytes = vec![0; values.len() / dtype.block_len() * dtype.block_bytes()];
        quant::quantise(dtype, &values, &mut bytes).unwrap();
        let error = quant::mean_squared_error(dtype, &values, &bytes).unwrap() / power;
        assert!(error <= share, "{dtype}: {error:e}");
        let mut decoded = vec![1.0; values.len()];
        quant::dequantise(dtype, &bytes, &mut decoded).unwrap();
        assert!(decoded[256..512].iter().all(|x| *x == 0.0), "{dtype}");
    }
    let mut out = [0; 18];
    let error = quant::quantise(DType::Q4_0, &values[..31], &mut out).unwrap_err();
    assert!(error.to_string().contains("32 elements"), "{error}");
}
