//! Good files read back as written; every way a file can be wrong has its message.

use std::borrow::Cow;

use base::{Bytes, DType};

use super::test_writer::{Writer, string};
use super::{Array, Gguf, GgufError, GgufErrorKind, Value};

const F32: u32 = 0;
const F16: u32 = 1;
const Q8_0: u32 = 8;
const Q4_K: u32 = 12;

fn parse(file: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::parse(Bytes::from(file))
}

/// A file with something of everything in it.
fn sample() -> Writer {
    Writer::new()
        .entry("general.architecture", Value::String("llama".into()))
        .entry("general.alignment", Value::U32(32))
        .entry("a.bool", Value::Bool(true))
        .entry("a.f64", Value::F64(0.5))
        .entry("a.i8", Value::I8(-1))
        .entry(
            "a.strings",
            Value::Array(Array::String(["a", ""].iter().collect())),
        )
        .entry("a.i32s", Value::Array(Array::I32(vec![1, -2])))
        .entry("a.bools", Value::Array(Array::Bool(vec![true, false])))
        .tensor("norm", &[3], F32, 0)
        .tensor("up", &[32, 2], Q8_0, 32)
        .data(&[7; 32 + 2 * 34])
}

#[test]
fn a_good_file_reads_back() {
    for version in [2, 3] {
        let mut writer = sample();
        writer.version = version;
        let file = parse(&writer.finish()).unwrap();
        assert_eq!(file.version, version);
        assert_eq!(file.metadata.len(), 8);
        let (key, value) = file.metadata.iter().nth(3).unwrap();
        assert_eq!((key, value), ("a.f64", &Value::F64(0.5)));

        let up = file.tensor("up").unwrap();
        assert_eq!((up.dtype, &up.shape[..]), (DType::Q8_0, &[2, 32][..]));
        assert_eq!((up.data.len(), up.len()), (68, 64));
        let norm = &file.tensors[0];
        assert_eq!((norm.dtype, norm.shape.as_slice()), (DType::F32, &[3][..]));
        assert_eq!(norm.data.len(), 12);
        assert!(file.tensor("down").is_none());
    }
}

#[test]
fn tensors_may_be_stored_in_any_order_and_with_any_alignment() {
    let mut writer = Writer::new()
        .entry("general.alignment", Value::U64(64))
        .tensor("second", &[1], F32, 64)
        .tensor("scalar", &[], F32, 128)
        .tensor("first", &[2, 1, 4, 2], F32, 0)
        .data(&[1; 64])
        .data(&[2; 64])
        .data(&[3; 4]);
    writer.alignment = 64;
    let file = parse(&writer.finish()).unwrap();
    assert_eq!(file.tensor("first").unwrap().shape, [2, 4, 1, 2]);
    assert_eq!(&file.tensor("first").unwrap().data[..], [1; 64]);
    assert_eq!(&file.tensor("second").unwrap().data[..], [2; 4]);
    assert_eq!(&file.tensor("scalar").unwrap().data[..], [3; 4]);
    assert!(file.tensor("scalar").unwrap().shape.is_empty());
}

#[test]
fn a_file_without_tensors_may_end_before_the_padding() {
    let file = parse(&Writer::new().entry("k", Value::U8(1)).finish()).unwrap();
    assert!(file.tensors.is_empty());
    assert_eq!(file.metadata.u32("k").unwrap(), Some(1));
}

#[test]
fn tokens_that_are_not_utf8_still_load() {
    let mut body = 8u32.to_le_bytes().to_vec();
    body.extend(1u64.to_le_bytes());
    body.extend(string(b"a\xff"));
    let file = parse(&Writer::new().raw_entry(b"tokens", 9, &body).finish()).unwrap();
    let tokens = file.metadata.strings("tokens").unwrap().unwrap();
    assert_eq!((tokens.len(), tokens.get(0)), (1, Some("a\u{fffd}")));
}

#[test]
fn every_prefix_of_a_good_file_is_refused() {
    let file = sample().finish();
    for len in 0..file.len() {
        let kind = parse(&file[..len]).unwrap_err().kind();
        let expected = match len {
            0 => &[GgufErrorKind::Magic][..],
            _ => &[
                GgufErrorKind::Truncated,
                GgufErrorKind::Count,
                GgufErrorKind::Layout,
            ],
        };
        assert!(expected.contains(&kind), "{len} bytes: {kind:?}");
    }
}

#[test]
fn no_single_changed_byte_panics() {
    let file = sample().finish();
    for at in 0..file.len() {
        for byte in [0, 1, 7, 0x20, 0x7f, 0x80, 0xff] {
            let mut changed = file.clone();
            changed[at] = byte;
            let _ = parse(&changed);
        }
    }
}

#[test]
fn typed_getters_convert_what_fits_and_name_what_does_not() {
    let file = parse(&sample().finish()).unwrap();
    let m = &file.metadata;
    assert_eq!(m.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(m.usize("general.alignment").unwrap(), Some(32));
    assert_eq!(m.u64("general.alignment").unwrap(), Some(32));
    assert_eq!(m.bool("a.bool").unwrap(), Some(true));
    assert_eq!(m.f32("a.f64").unwrap(), Some(0.5));
    assert_eq!(m.bools("a.bools").unwrap(), Some(&[true, false][..]));
    assert!(matches!(
        m.i32s("a.i32s").unwrap(),
        Some(Cow::Borrowed(&[1, -2]))
    ));
    assert_eq!(m.str("absent").unwrap(), None);
    assert_eq!(m.usizes("absent").unwrap(), None);

    let table: &[(GgufError, &str)] = &[
        (
            m.u32("general.architecture").unwrap_err(),
            "metadata key general.architecture is string, not a u32",
        ),
        (
            m.u32("a.i8").unwrap_err(),
            "metadata key a.i8 holds -1, which does not fit a u32",
        ),
        (
            m.f32("general.alignment").unwrap_err(),
            "metadata key general.alignment is u32, not an f32",
        ),
        (
            m.strings("a.i32s").unwrap_err(),
            "metadata key a.i32s is array of i32, not an array of string",
        ),
        (
            m.usizes("a.i32s").unwrap_err(),
            "metadata key a.i32s holds -2, which does not fit an array of usize",
        ),
        (
            m.i32s("a.strings").unwrap_err(),
            "metadata key a.strings is array of string, not an array of i32",
        ),
        (
            m.f32s("a.bool").unwrap_err(),
            "metadata key a.bool is bool, not an array of f32",
        ),
    ];
    for (error, message) in table {
        assert_eq!(error.to_string(), *message);
        assert_eq!(error.kind(), GgufErrorKind::WrongType);
    }
    let missing = GgufError::missing("k");
    assert_eq!(missing.kind(), GgufErrorKind::MissingKey);
    assert_eq!(missing.to_string(), "metadata key k is missing");
}

#[test]
fn open_names_the_file() {
    let error = Gguf::open("no/such.gguf".as_ref()).unwrap_err();
    assert_eq!(error.kind(), GgufErrorKind::Io);
    assert!(error.to_string().starts_with("cannot read no/such.gguf: "));
    let error = Gguf::open("src/lib.rs".as_ref()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "src/lib.rs: not a GGUF file: it starts with \"//! Imports mode\" instead of \"GGUF\""
    );
}

#[test]
fn names_in_messages_are_cut_and_escaped() {
    let name = format!("\x1b[31m{}", "x".repeat(5000));
    let file = Writer::new().tensor(&name, &[1], 16, 0).finish();
    let message = parse(&file).unwrap_err().to_string();
    assert!(message.starts_with("tensor \\u{1b}[31mxxx"), "{message}");
    assert!(message.ends_with("xxx...") && message.len() < 1100);
}

fn with_version(version: u32) -> Vec<u8> {
    let mut writer = sample();
    writer.version = version;
    writer.finish()
}

fn with_alignment(value: Value) -> Vec<u8> {
    let writer = Writer::new().entry("general.alignment", value);
    writer.finish()
}

/// A file with one tensor of these dimensions and type, and no data.
fn with_tensor(dims: &[u64], code: u32) -> Vec<u8> {
    Writer::new().tensor("t", dims, code, 0).finish()
}

/// A file whose one metadata value has these bytes.
fn with_value(code: u32, body: &[u8]) -> Vec<u8> {
    Writer::new().raw_entry(b"k", code, body).finish()
}

fn array_header(code: u32, len: u64) -> Vec<u8> {
    [&code.to_le_bytes()[..], &len.to_le_bytes()].concat()
}

#[test]
fn wrong_files_say_what_is_wrong() {
    use GgufErrorKind as K;
    let max = u64::MAX;
    let table: Vec<(Vec<u8>, K, &str)> = vec![
        (vec![], K::Magic, "not a GGUF file: it is empty"),
        (
            b"# My model\n".to_vec(),
            K::Magic,
            "not a GGUF file: it starts with \"# My model\\n\" instead of \"GGUF\"",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0".to_vec(),
            K::Magic,
            "not a GGUF file but a Git LFS pointer to one; fetch the model itself (git lfs pull)",
        ),
        (
            b"GG".to_vec(),
            K::Truncated,
            "the file is truncated: it has 2 bytes and ends inside the magic (4 bytes from byte 0)",
        ),
        (
            with_version(3u32.swap_bytes()),
            K::BigEndian,
            "the file is big-endian GGUF (version 3); kvark reads little-endian files",
        ),
        (
            with_version(1),
            K::Version,
            "GGUF version 1 is not supported; kvark reads versions 2 and 3",
        ),
        (
            with_version(4),
            K::Version,
            "GGUF version 4 is not supported; kvark reads versions 2 and 3",
        ),
        (
            Writer::new().finish_with_counts((max, 0)),
            K::Count,
            "the file is truncated or damaged: the tensor count is 18446744073709551615, but the remaining 8 bytes can hold at most 0",
        ),
        (
            Writer::new().finish_with_counts((0, 7)),
            K::Count,
            "the file is truncated or damaged: the metadata key count is 7, but the remaining 0 bytes can hold at most 0",
        ),
        (
            // Plausible until the metadata has been read.
            Writer::new()
                .entry("k", Value::String("x".repeat(30)))
                .finish_with_counts((2, 1)),
            K::Count,
            "the file is truncated or damaged: the tensor count is 2, but the remaining 0 bytes can hold at most 0",
        ),
        (
            Writer::new().raw_entry(b"k\xff", 0, &[1]).finish(),
            K::Utf8,
            "the name of metadata key #0 is not UTF-8 (byte 1 of \"k\u{fffd}\")",
        ),
        (
            with_value(8, &string(b"\xc3")),
            K::Utf8,
            "the value of metadata key k is not UTF-8 (byte 0 of \"\u{fffd}\")",
        ),
        (
            with_value(8, &max.to_le_bytes()),
            K::Truncated,
            "the file is truncated: it has 45 bytes and ends inside the value of metadata key k (18446744073709551615 bytes from byte 45)",
        ),
        (
            with_value(13, &[0; 8]),
            K::Value,
            "metadata key k has value type 13, which GGUF does not define",
        ),
        (
            with_value(7, &[2]),
            K::Value,
            "metadata key k holds 2 where a bool (0 or 1) belongs",
        ),
        (
            with_value(9, &[&array_header(7, 2)[..], &[1, 9]].concat()),
            K::Value,
            "metadata key k holds 9 where a bool (0 or 1) belongs",
        ),
        (
            with_value(9, &array_header(9, 1)),
            K::Value,
            "metadata key k is an array of arrays, which kvark does not read",
        ),
        (
            with_value(9, &array_header(77, 1)),
            K::Value,
            "metadata key k has value type 77, which GGUF does not define",
        ),
        (
            with_value(9, &array_header(6, max / 2)),
            K::Count,
            "the file is truncated or damaged: the array length of metadata key k is 9223372036854775807, but the remaining 0 bytes can hold at most 0",
        ),
        (
            with_value(9, &[&array_header(8, 2)[..], &[0; 15]].concat()),
            K::Count,
            "the file is truncated or damaged: the array length of metadata key k is 2, but the remaining 15 bytes can hold at most 1",
        ),
        (
            Writer::new()
                .entry("k", Value::U8(1))
                .entry("k", Value::U8(2))
                .finish(),
            K::Duplicate,
            "metadata key k occurs twice",
        ),
        (
            with_alignment(Value::U32(0)),
            K::Alignment,
            "general.alignment is 0, not a power of two from 1 to 16777216",
        ),
        (
            with_alignment(Value::U32(24)),
            K::Alignment,
            "general.alignment is 24, not a power of two from 1 to 16777216",
        ),
        (
            with_alignment(Value::U64(1 << 63)),
            K::Alignment,
            "general.alignment is 9223372036854775808, not a power of two from 1 to 16777216",
        ),
        (
            with_alignment(Value::F32(32.0)),
            K::WrongType,
            "metadata key general.alignment is f32, not an alignment",
        ),
        (
            Writer::new()
                .raw_tensor(b"t\xff", 1, &[1], F32, 0)
                .data(&[0; 4])
                .finish(),
            K::Utf8,
            "the name of tensor #0 is not UTF-8 (byte 1 of \"t\u{fffd}\")",
        ),
        (
            Writer::new().raw_tensor(b"t", 5, &[1; 5], F32, 0).finish(),
            K::Shape,
            "tensor t has 5 dimensions; the most is 4",
        ),
        (
            with_tensor(&[4, 0], F32),
            K::Shape,
            "tensor t has dimension 1 equal to 0",
        ),
        (
            with_tensor(&[1 << 40, 1 << 40], F32),
            K::Shape,
            "tensor t has shape [1099511627776, 1099511627776] (innermost first), whose size overflows",
        ),
        (
            // The elements can be counted but not their bytes.
            with_tensor(&[1 << 62, 1], F32),
            K::Shape,
            "tensor t has shape [4611686018427387904, 1] (innermost first), whose size overflows",
        ),
        (
            with_tensor(&[128, 2], Q4_K),
            K::Shape,
            "tensor t has rows of 128 elements, not whole q4_k blocks of 256",
        ),
        (
            with_tensor(&[], Q8_0),
            K::Shape,
            "tensor t has rows of 1 elements, not whole q8_0 blocks of 32",
        ),
        (
            Writer::new()
                .tensor("blk.0.ffn_up.weight", &[256], 17, 0)
                .finish(),
            K::TensorType,
            "tensor blk.0.ffn_up.weight has type iq2_xs, which kvark cannot read",
        ),
        (
            with_tensor(&[256], 1000),
            K::TensorType,
            "tensor t has type number 1000, which kvark cannot read",
        ),
        (
            Writer::new()
                .tensor("t", &[1], F32, 4)
                .data(&[0; 8])
                .finish(),
            K::Layout,
            "tensor t has offset 4, not a multiple of the alignment 32",
        ),
        (
            with_tensor(&[1], F16),
            K::Truncated,
            "the file is truncated: it has 57 bytes, and its tensors need 66; the first one that is not complete is t",
        ),
        (
            Writer::new()
                .tensor("t", &[5], F32, 0)
                .data(&[0; 19])
                .finish(),
            K::Truncated,
            "the file is truncated: it has 83 bytes, and its tensors need 84; the first one that is not complete is t",
        ),
        (
            Writer::new()
                .tensor("t", &[8], F32, max - 31)
                .data(&[0; 64])
                .finish(),
            K::Layout,
            "tensor t takes 32 bytes from offset 18446744073709551584, but there are only 64 bytes of tensor data",
        ),
        (
            Writer::new()
                .tensor("a", &[8], F32, 32)
                .tensor("b", &[9], F32, 0)
                .data(&[0; 64])
                .finish(),
            K::Layout,
            "tensor a at offset 32 overlaps tensor b, which ends at 36",
        ),
        (
            Writer::new()
                .tensor("a", &[1], F32, 0)
                .tensor("a", &[1], F32, 32)
                .data(&[0; 64])
                .finish(),
            K::Duplicate,
            "tensor a occurs twice",
        ),
    ];
    for (file, kind, message) in table {
        let error = parse(&file).expect_err(message);
        assert_eq!(error.to_string(), message);
        assert_eq!(error.kind(), kind, "{message}");
    }
}
