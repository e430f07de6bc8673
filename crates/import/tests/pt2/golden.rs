//! Fixtures: an archive and what PyTorch gives for it.

use std::fs;
use std::path::{Path, PathBuf};

use graph::{Data, Value};
use serde_json::Value as Json;

/// Differences may be this large, in standard deviations of the truth (or absolutely, where it varies less than 1).
pub(crate) const TOLERANCE: f32 = 1e-4;

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/pt2")
}

pub(crate) fn archive(name: &str) -> PathBuf {
    folder().join(format!("{name}.pt2"))
}

/// The same program made by ExecuTorch.
pub(crate) fn executorch_program(name: &str) -> PathBuf {
    folder().join(format!("../pte/{name}.pte"))
}

pub(crate) fn json(path: &Path) -> Json {
    let text = fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The names of the fixtures that begin so (or do not).
pub(crate) fn names(wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path());
    let archives = entries.filter(|path| path.extension().is_some_and(|e| e == "pt2"));
    let names = archives.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let mut names: Vec<String> = names.filter(|name| wanted(name)).collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

/// A tensor of the generator's JSON.
pub(crate) fn tensor(json: &Json) -> Value {
    let shape = json["shape"].as_array().unwrap().iter();
    let shape = shape.map(|n| n.as_u64().unwrap() as usize).collect();
    let list = json["data"].as_array().unwrap().iter();
    let data = match json["dtype"].as_str().unwrap() {
        "f32" => Data::F32(list.map(float).collect()),
        "i64" => Data::I64(list.map(|x| x.as_i64().unwrap()).collect()),
        "i32" => Data::I32(list.map(|x| x.as_i64().unwrap() as i32).collect()),
        "bool" => Data::Bool(list.map(|x| x.as_bool().unwrap()).collect()),
        other => panic!("{other}"),
    };
    Value { shape, data }
}

pub(crate) fn float(json: &Json) -> f32 {
    match json.as_str() {
        Some(infinity) => infinity.parse().unwrap(),
        None => json.as_f64().unwrap() as f32,
    }
}

/// The largest difference from the truth, in standard deviations of the truth where they are above 1.
pub(crate) fn distance(found: &[f32], truth: &[f32]) -> f32 {
    assert_eq!(found.len(), truth.len());
    let n = truth.len().max(1) as f32;
    let finite = || truth.iter().filter(|x| x.is_finite());
    let mean = finite().sum::<f32>() / n;
    let deviation = (finite().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt();
    let pairs = found.iter().zip(truth);
    let away = pairs.map(|(a, b)| match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false => (a - b).abs(),
    });
    away.fold(0.0, |a, b| if b.is_nan() { f32::NAN } else { a.max(b) }) / deviation.max(1.0)
}
