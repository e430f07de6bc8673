//! A Mistral decoder with a float mask over static buffers: the outside fixture if it is present, and its stand-in.

use crate::common::outside_fixture;
use crate::support::{beside, exact, feed, largest_difference, literal, model, static_decoder};
use kvark::inference::Value;
use kvark::{Cpu, Runner};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The maximum error of an element.
const TOLERANCE: f32 = 1e-3;

/// The arrays of a `.npz` file.
fn arrays(path: &Path) -> BTreeMap<String, Value> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).unwrap();
        let name = file.name().unwrap().trim_end_matches(".npy").to_owned();
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).unwrap();
        let (header, data) = bytes[10..].split_at(u16::from_le_bytes([bytes[8], bytes[9]]).into());
        let header = std::str::from_utf8(header).unwrap();
        let shape = header.split_once('(').unwrap().1.split_once(')').unwrap().0;
        let sizes = shape.split(',').map(str::trim).filter(|n| !n.is_empty());
        let shape: Vec<usize> = sizes.map(|n| n.parse().unwrap()).collect();
        let value = match header.contains("<i8") {
            true => Value::i64(
                shape,
                data.as_chunks()
                    .0
                    .iter()
                    .map(|c| i64::from_le_bytes(*c))
                    .collect(),
            ),
            false => Value::f32(
                shape,
                data.as_chunks()
                    .0
                    .iter()
                    .map(|c| f32::from_le_bytes(*c))
                    .collect(),
            ),
        };
        arrays.insert(name, value);
    }
    arrays
}

/// The stand-in, which `stand_in/generate.py` makes, and the outside fixture if it is there.
fn folders() -> impl Iterator<Item = PathBuf> {
    let outside = outside_fixture("static-scatter-bias-decoder");
    [beside().join("stand_in")].into_iter().chain(outside)
}

/// Prefill [1, 2, 3, 4] and decode 5 with the tensors of the golden: logits and updated caches, element by element.
#[test]
fn end_to_end_fixture_parity() {
    for folder in folders() {
        let golden = arrays(&folder.join("golden_io.npz"));
        let mut session = literal(&folder.join("model.onnx"));
        for step in ["prefill", "decode"] {
            let (given, expected) = (format!("{step}_in."), format!("{step}_out."));
            let inputs = golden
                .iter()
                .filter_map(|(name, value)| Some((name.strip_prefix(&given)?, value.clone())));
            let mut checked = 0;
            for (name, found) in session.run(inputs).unwrap() {
                let truth = &golden[&format!("{expected}{name}")];
                assert_eq!(found.shape, truth.shape, "{step} {name}");
                let away = largest_difference(found.as_f32().unwrap(), truth.as_f32().unwrap());
                assert!(away < TOLERANCE, "{step} {name} is off by {away}");
                checked += 1;
            }
            assert_eq!(checked, 5);
        }
    }
}

/// The same with our own index stream and buffers, and again after a rewind.
#[test]
fn the_index_stream_drives_it_and_rewinds() {
    for folder in folders() {
        let golden = arrays(&folder.join("golden_io.npz"));
        let mut decoder = static_decoder(&folder.join("model.onnx"), 1);
        let check = |found: &[f32], name: &str| {
            let away = largest_difference(found, golden[name].as_f32().unwrap());
            assert!(away < TOLERANCE, "{name} is off by {away}");
        };
        for round in 0..2 {
            let prefill = feed(&mut decoder, &[&[1, 2, 3, 4]]).unwrap();
            check(&prefill, "prefill_out.logits");
            let decode = feed(&mut decoder, &[&[5]]).unwrap();
            check(&decode, "decode_out.logits");
            if round == 0 {
                let named = |(name, _): &&mut (String, _)| name == "key_cache.0";
                let (_, keys) = decoder.buffers().iter_mut().find(named).unwrap();
                check(keys.as_f32().unwrap(), "decode_out.updated_key_cache.0");
            }
            feed(&mut decoder, &[&[9, 9, 9]]).unwrap();
            decoder.rewind(0, 0).unwrap();
        }
    }
}

/// The same with the runner's cache instead of the buffers.
#[test]
fn the_runner_drives_it() {
    for folder in folders() {
        let golden = arrays(&folder.join("golden_io.npz"));
        let model = model(&folder);
        assert_eq!(model.facts().context_length, 16);
        assert_eq!(model.artifact().architecture, "mistral");
        let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &exact()).unwrap();
        for _ in 0..2 {
            runner.feed(&[1, 2, 3, 4], |_| true).unwrap();
            let truth = golden["prefill_out.logits"].as_f32().unwrap();
            assert!(largest_difference(runner.logits(), &truth[truth.len() / 4 * 3..]) < TOLERANCE);
            runner.feed(&[5], |_| true).unwrap();
            let truth = golden["decode_out.logits"].as_f32().unwrap();
            assert!(largest_difference(runner.logits(), truth) < TOLERANCE);
            runner.rewind(2).unwrap();
            runner.feed(&[7, 8], |_| true).unwrap();
            runner.rewind(0).unwrap();
        }
        let error = runner.feed(&[1; 17], |_| true).unwrap_err().to_string();
        assert_eq!(
            error,
            "the prompt has 17 tokens, and the context has room for 16 of its 16"
        );
    }
}
