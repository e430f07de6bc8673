//! The static-cache decoder of `../shared/fixtures`, when it is there, run as it was exported: every logit and every cache
//! element against ONNX Runtime's.

use kvark::{Cpu, Data, InferenceOptions, InferenceSession, Value};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Largest difference from ONNX Runtime.
const TOLERANCE: f32 = 1e-3;

fn fixture() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/fixtures/static-scatter-bias-decoder");
    if folder.is_dir() {
        return Some(folder);
    }
    // Past the capture, so that a run says what it left out.
    let _ = writeln!(
        std::io::stderr(),
        "skipped: ../shared/fixtures/static-scatter-bias-decoder is not here"
    );
    None
}

/// The arrays of an `.npz` file.
fn arrays(path: &Path) -> BTreeMap<String, Value> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).unwrap();
        let name = file.name().unwrap().trim_end_matches(".npy").to_owned();
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).unwrap();
        let header = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
        let text = std::str::from_utf8(&bytes[10..header]).unwrap();
        let shape = text.split(['(', ')']).nth(1).unwrap();
        let shape: Vec<usize> = shape
            .split(',')
            .filter_map(|n| n.trim().parse().ok())
            .collect();
        let data = &bytes[header..];
        let data = match text.contains("<f4") {
            true => Data::F32(
                data.as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_le_bytes(*b))
                    .collect(),
            ),
            false => Data::I64(
                data.as_chunks()
                    .0
                    .iter()
                    .map(|b| i64::from_le_bytes(*b))
                    .collect(),
            ),
        };
        arrays.insert(name, Value { shape, data });
    }
    arrays
}

#[test]
fn logits_and_caches_are_those_of_onnx_runtime() {
    let Some(folder) = fixture() else { return };
    let golden = arrays(&folder.join("golden_io.npz"));
    let cpu = Cpu::new().unwrap();
    let options = InferenceOptions::default();
    let model = folder.join("model.onnx");
    let mut session = InferenceSession::load(&model, &cpu, &options).unwrap();
    let names: Vec<&str> = session.inputs().iter().map(|i| &i.name[..]).collect();
    for name in [
        "input_ids",
        "write_indices",
        "nonpad_kv_seqlen",
        "key_cache.0",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    for step in ["prefill", "decode"] {
        let of = |side: &str| {
            let prefix = format!("{step}_{side}.");
            let list = golden.iter().filter_map(move |(name, value)| {
                Some((name.strip_prefix(&prefix)?.to_owned(), value.clone()))
            });
            list.collect::<BTreeMap<String, Value>>()
        };
        let found: BTreeMap<String, Value> = session.run(of("in")).unwrap().into_iter().collect();
        for (name, truth) in of("out") {
            let found = &found[&name];
            assert_eq!(found.shape, truth.shape, "{step} {name}");
            let pairs = found.as_f32().unwrap().iter().zip(truth.as_f32().unwrap());
            let away = pairs.map(|(a, b)| (a - b).abs());
            let far = away.fold(0.0, |a, b| if b.is_nan() { f32::NAN } else { b.max(a) });
            assert!(far < TOLERANCE, "{step} {name}: {far} away");
        }
    }
}
