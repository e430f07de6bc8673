//! Archives that break a rule: an error that names the thing, never a panic.

use std::fs;
use std::io::{Cursor, Read, Write};

use import::pt2::{self, Pt2};
use import::{ImportError, ImportErrorKind as K, ImportOptions};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::golden::archive;

/// A fixture with its members changed; `None` leaves one out.
fn changed(name: &str, change: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>>) -> Vec<u8> {
    let bytes = fs::read(archive(name)).unwrap();
    let mut old = ZipArchive::new(Cursor::new(&bytes)).unwrap();
    let mut new = ZipWriter::new(Cursor::new(vec![]));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for index in 0..old.len() {
        let mut member = old.by_index(index).unwrap();
        let member_name = member.name().unwrap().into_owned();
        let mut data = vec![];
        member.read_to_end(&mut data).unwrap();
        let inner = member_name.split_once('/').unwrap().1.to_owned();
        if let Some(data) = change(&inner, data) {
            new.start_file(member_name, options).unwrap();
            new.write_all(&data).unwrap();
        }
    }
    new.finish().unwrap().into_inner()
}

fn open(bytes: &[u8]) -> Result<import::LoweredModel, ImportError> {
    pt2::lower(&Pt2::parse(&bytes.into())?, &ImportOptions::default())
}

/// The MLP with its program's JSON changed.
fn with_json(from: &str, to: &str) -> Vec<u8> {
    with_json_of("mlp", from, to)
}

/// A fixture with its program's JSON changed.
fn with_json_of(fixture: &str, from: &str, to: &str) -> Vec<u8> {
    changed(fixture, |name, data| {
        if name != "models/model.json" {
            return Some(data);
        }
        let text = String::from_utf8(data).unwrap();
        assert!(text.contains(from), "{from}");
        Some(text.replace(from, to).into_bytes())
    })
}

fn with_member(member: &str, data: &[u8]) -> Vec<u8> {
    changed("mlp", |name, old| {
        Some(if name == member { data.to_vec() } else { old })
    })
}

fn without(member: &str) -> Vec<u8> {
    changed("mlp", |name, data| (name != member).then_some(data))
}

#[test]
fn broken_archives_are_named() {
    let good = fs::read(archive("mlp")).unwrap();
    assert!(open(&changed("mlp", |_, data| Some(data))).is_ok());
    let config = "data/weights/model_weights_config.json";
    let table: Vec<(&str, Vec<u8>, K, &str)> = vec![
        ("empty", vec![], K::Malformed, "zip"),
        (
            "cut short",
            good[..good.len() / 2].to_vec(),
            K::Malformed,
            "zip",
        ),
        (
            "no zip",
            b"PK\x03\x04 and nothing".to_vec(),
            K::Malformed,
            "zip",
        ),
        (
            "no format",
            without("archive_format"),
            K::Malformed,
            "archive_format",
        ),
        (
            "another format",
            with_member("archive_format", b"aoti"),
            K::Malformed,
            "aoti",
        ),
        (
            "big endian",
            with_member("byteorder", b"big"),
            K::Malformed,
            "byteorder",
        ),
        (
            "no program",
            without("models/model.json"),
            K::Malformed,
            "models/",
        ),
        (
            "no JSON",
            with_member("models/model.json", b"{"),
            K::Malformed,
            "model.json",
        ),
        (
            "no weight",
            without("data/weights/weight_0"),
            K::Malformed,
            "0.weight",
        ),
        ("no list", without(config), K::Malformed, "0.weight"),
        (
            "short weight",
            with_member("data/weights/weight_0", &[0; 8]),
            K::Malformed,
            "0.weight",
        ),
        (
            "another schema",
            with_json("\"major\":8", "\"major\":9"),
            K::Malformed,
            "schema 9.",
        ),
        (
            "no argument",
            with_json(
                "\"name\":\"weight\",\"arg\"",
                "\"name\":\"heaviness\",\"arg\"",
            ),
            K::Node,
            "weight",
        ),
        (
            "unknown op",
            with_json("aten.relu.default", "aten.bernoulli.default"),
            K::UnknownOp,
            "aten.bernoulli.default (node relu of forward)",
        ),
        (
            "data-dependent shape",
            with_json("aten.relu.default", "aten.nonzero.default"),
            K::Node,
            "node relu (aten.nonzero.default): the shape of its result depends on data",
        ),
        (
            "dynamic size that no input has",
            with_json(
                "{\"as_int\":24}",
                "{\"as_expr\":{\"expr_str\":\"Symbol('u0', integer=True)\"}}",
            ),
            K::Node,
            "depends on data (u0)",
        ),
        (
            "another shape",
            with_json("{\"as_int\":24}", "{\"as_int\":25}"),
            K::Node,
            "25",
        ),
    ];
    for (what, bytes, kind, wanted) in table {
        let error = open(&bytes).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), kind, "{what}: {error}");
        let message = error.to_string();
        assert!(message.contains(wanted), "{what}: {message}");
        assert!(!message.contains(char::is_control), "{what}: {message}");
    }
}

#[test]
fn attention_that_contradicts_itself_is_named() {
    let table = [
        (
            "decoder_out_f16",
            "\"as_scalar_type\":6",
            "\"as_scalar_type\":13",
            "its out_dtype is bf16, but the file states f16",
        ),
        (
            "decoder_out_f16",
            "\"as_scalar_type\":6",
            "\"as_int\":6",
            "out_dtype is not an element type",
        ),
        (
            "decoder_gemma2",
            "\"as_float\":0.7}",
            "\"as_float\":-1.0}",
            "has the soft cap -1, must be positive",
        ),
    ];
    for (fixture, from, to, wanted) in table {
        let error = open(&with_json_of(fixture, from, to))
            .map(|_| ())
            .unwrap_err();
        assert_eq!(error.kind(), K::Node, "{error}");
        assert!(error.to_string().contains(wanted), "{to}: {error}");
    }
}

#[test]
fn weights_of_other_types_are_named() {
    let with = |from: &str, to: &str| {
        changed("mlp", |name, data| {
            let text = String::from_utf8_lossy(&data).into_owned();
            let is_config = name.ends_with("weights_config.json");
            Some(if is_config {
                text.replace(from, to).into_bytes()
            } else {
                data
            })
        })
    };
    let table = [
        ("\"dtype\": 7", "\"dtype\": 9", "complex"),
        ("\"dtype\": 7", "\"dtype\": 11", "complex"),
        ("\"dtype\": 7", "\"dtype\": 10", "has 768 elements"),
        ("\"dtype\": 7", "\"dtype\": 8", "0.weight"),
        ("\"layout\": 7", "\"layout\": 1", "dense"),
        ("\"use_pickle\": false", "\"use_pickle\": true", "pickled"),
        ("\"as_int\": 24", "\"as_int\": -24", "-24"),
    ];
    for (from, to, wanted) in table {
        let error = open(&with(from, to)).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(wanted), "{to}: {error}");
    }
}

#[test]
fn all_unknown_ops_are_listed() {
    let bytes = changed("decoder_llama", |name, data| {
        let text = String::from_utf8_lossy(&data).into_owned();
        let text = text.replace("aten.silu.default", "aten.made_up.default");
        let text = text.replace("aten.rsqrt.default", "my.own.op");
        Some(if name.starts_with("models/") {
            text.into_bytes()
        } else {
            data
        })
    });
    let file = Pt2::parse(&bytes.as_slice().into()).unwrap();
    let ops: Vec<&str> = file.programs[0]
        .unknown_ops()
        .iter()
        .map(|(op, _)| *op)
        .collect();
    assert_eq!(ops, ["aten.made_up.default", "my.own.op"]);
    let error = pt2::lower(&file, &ImportOptions::default())
        .map(|_| ())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("my.own.op (node rsqrt of forward)"),
        "{error}"
    );
}

#[test]
fn damaged_programs_are_refused_or_import() {
    let mut state = 1u64;
    let mut random = move |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for name in [
        "mlp",
        "dynamic",
        "decoder_gemma2",
        "decoder_gemma3",
        "products",
        "ops_shape",
        "ops_index",
        "ops_matrix",
    ] {
        let good = fs::read(archive(name)).unwrap();
        for _ in 0..60 {
            let mut bytes = good.clone();
            for _ in 0..1 + random(6) {
                // Digits and names of the JSON change more often than they would by chance.
                let at = random(bytes.len());
                let digit = bytes[at..].iter().position(u8::is_ascii_digit);
                match digit {
                    Some(next) => bytes[at + next] = b'0' + random(10) as u8,
                    None => bytes[at] ^= 1 << random(8),
                }
            }
            if let Ok(file) = Pt2::parse(&bytes.as_slice().into()) {
                let _ = pt2::lower(&file, &ImportOptions::default());
            }
        }
    }
}

/// The metadata of caches is read as strictly when a decoder keeps its exported inputs and outputs.
#[test]
fn damaged_cache_metadata_is_refused_however_the_program_is_lowered() {
    let table = [
        (
            "decoder_llama",
            "schema_version\": 1",
            "schema_version\": 7",
            "kv_cache.schema_version",
        ),
        ("decoder_gemma3", "4,\n  0", "-4,\n  0", "get_windows"),
        ("decoder_gemma3", "4,\n  0", "4", "get_windows"),
        (
            "decoder_gemma3",
            "\"get_n_caches\": 2",
            "\"get_n_caches\": 1",
            "get_kv_heads",
        ),
        ("decoder_gemma3", "8,\n  8", "8,\n  4", "heads of size 4"),
    ];
    for (name, from, to, names) in table {
        let bytes = changed(name, |member, data| {
            if !member.ends_with("kvark/metadata.json") {
                return Some(data);
            }
            let text = String::from_utf8(data).unwrap();
            assert!(text.contains(from), "{from} is not in {text}");
            Some(text.replace(from, to).into_bytes())
        });
        for as_exported in [false, true] {
            let options = ImportOptions {
                as_exported,
                ..ImportOptions::default()
            };
            let file = Pt2::parse(&(&bytes[..]).into()).unwrap();
            let error = pt2::lower(&file, &options).unwrap_err().to_string();
            assert!(error.contains(names), "{name}, {to:?}: {error}");
        }
    }
}

/// Writes through views whose elements cannot be put back, and changes of a tensor's own shape.
#[test]
fn writes_that_would_be_lost_are_refused_by_name() {
    let table = [
        ("refused_unfold", "mul_", "through aten.unfold.default"),
        (
            "refused_shuffle",
            "mul_",
            "through aten.pixel_shuffle.default",
        ),
        ("refused_shape", "t_", "changes the shape of clone"),
    ];
    for (name, node, reason) in table {
        let error = open(&fs::read(archive(name)).unwrap()).unwrap_err();
        assert_eq!(error.kind(), K::Node, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(reason) && text.contains(node),
            "{name}: {text}"
        );
    }
}
