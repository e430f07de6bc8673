//! MTP heads that models carry: their logits against those of `mtp.py`, and what is said about files without one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use graph::Value;
use import::{Artifact, FeatureLayers, HeadKind, ImportErrorKind, ImportOptions};
use kv::{CacheConfig, CacheRegistry, CacheSession, Cells, KvStorage, make_seq_session};

/// Differences may be this fraction of the logits' standard deviation.
const TOLERANCE: f32 = 1e-4;

const MODELS: [&str; 5] = [
    "qwen35_mtp",
    "qwen35_mtp_agrees",
    "qwen3next_mtp",
    "glm4moe_mtp",
    "glm47_flash_mtp",
];

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoder");
    folder.join(format!("{name}.gguf"))
}

fn model(name: &str) -> Artifact {
    let options = ImportOptions {
        feature_layers: FeatureLayers::Mtp,
        ..ImportOptions::default()
    };
    import::open_with(&path(name), &options).unwrap()
}

fn head_options() -> ImportOptions {
    ImportOptions {
        mtp_head: true,
        ..ImportOptions::default()
    }
}

fn head(name: &str) -> Artifact {
    import::open_with(&path(name), &head_options()).unwrap()
}

fn runnable(artifact: &Artifact) -> (Runnable, CacheSession<Cells>) {
    let mut config = CacheConfig::new(64, artifact.facts.caches.clone());
    (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
    let backend = Reference::new();
    let (session, options) = make_seq_session(backend.id(), &config).unwrap();
    let cache = CacheRegistry::global()
        .get(&options.cache_key.unwrap())
        .unwrap();
    let graph = Arc::new(artifact.method("forward").unwrap().graph.clone());
    let executable = backend.compile(graph.clone(), &Default::default()).unwrap();
    let runnable = Runnable::bind(graph, executable, Some(cache)).unwrap();
    (runnable, session)
}

/// What `<name>.json` says.
struct Expected {
    tokens: Vec<i32>,
    head_tokens: Vec<i32>,
    head_logits: Vec<f32>,
}

fn expected(name: &str) -> Expected {
    let text = fs::read_to_string(path(name).with_extension("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tokens = |value: &serde_json::Value| -> Vec<i32> {
        let list = value.as_array().unwrap().iter();
        list.map(|x| x.as_i64().unwrap() as i32).collect()
    };
    let rows = json["mtp"]["logits"].as_array().unwrap().iter();
    let numbers = rows.flat_map(|row| row.as_array().unwrap());
    Expected {
        tokens: tokens(&json["tokens"]),
        head_tokens: tokens(&json["mtp"]["tokens"]),
        head_logits: numbers.map(|x| x.as_f64().unwrap() as f32).collect(),
    }
}

/// The distance of all numbers from the truth, in standard deviations of the truth.
fn distance(found: &[f32], truth: &[f32]) -> f32 {
    assert_eq!(found.len(), truth.len());
    let n = truth.len() as f32;
    let mean = truth.iter().sum::<f32>() / n;
    let variance = truth.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
    let differences = found.iter().zip(truth).map(|(a, b)| (a - b).abs());
    assert!(found.iter().all(|x| x.is_finite()));
    differences.fold(0.0, f32::max) / variance.sqrt()
}

#[test]
fn heads_answer_as_their_definition() {
    for name in MODELS {
        let expected = expected(name);
        let (mut target, session) = runnable(&model(name));
        let count = expected.tokens.len();
        session.begin_step(&vec![0; count]).unwrap();
        let numbers = |n: usize| Value::i32([n], (0..n as i32).collect());
        // Only the last row of logits is wanted; states come for all rows.
        let inputs = [
            Value::i32([count], expected.tokens.clone()),
            numbers(count),
            Value::i32([1], vec![count as i32 - 1]),
        ];
        let outputs = target.run(&inputs).unwrap();
        let states = outputs[1].as_f32().unwrap().to_vec();

        let artifact = head(name);
        let facts = artifact.draft_head.clone().unwrap();
        assert_eq!(
            (facts.kind, facts.target_layers),
            (HeadKind::Mtp, FeatureLayers::Mtp)
        );
        assert_eq!(facts.target_tokens.len(), 64);
        assert!(!artifact.facts.is_decoder());
        assert_eq!(artifact.facts.caches.len(), 1, "one layer of attention");
        let width = artifact.facts.hidden_size;
        assert_eq!(states.len(), count * width);
        for sizes in [&[24, 1, 1, 1, 1][..], &[5, 9, 1, 9, 1, 1, 1, 1]] {
            let (mut runnable, session) = runnable(&artifact);
            let (mut at, mut logits, mut own) = (0, vec![], vec![]);
            for &n in sizes {
                // Behind the model's states, the head's own.
                let hidden = match at < count {
                    true => states[at * width..][..n * width].to_vec(),
                    false => own,
                };
                let inputs = [
                    Value::i32([n], expected.head_tokens[at..at + n].to_vec()),
                    Value::f32([n, width], hidden),
                    Value::i32([n], (at as i32..).take(n).collect()),
                    numbers(n),
                ];
                session.begin_step(&vec![0; n]).unwrap();
                let outputs = runnable.run(&inputs).unwrap();
                logits.extend_from_slice(outputs[0].as_f32().unwrap());
                let next = outputs[1].as_f32().unwrap();
                own = next[next.len() - width..].to_vec();
                at += n;
            }
            assert_eq!(at, expected.head_tokens.len());
            let distance = distance(&logits, &expected.head_logits);
            assert!(distance < TOLERANCE, "{name} in {sizes:?}: {distance}");
        }
    }
}

#[test]
fn the_models_state_changes_no_bit_of_its_logits() {
    for name in MODELS {
        let expected = expected(name);
        let count = expected.tokens.len();
        let logits = [model(name), import::open(&path(name)).unwrap()].map(|artifact| {
            let (mut target, session) = runnable(&artifact);
            session.begin_step(&vec![0; count]).unwrap();
            let inputs = [
                Value::i32([count], expected.tokens.clone()),
                Value::i32([count], (0..count as i32).collect()),
                Value::i32([2], vec![count as i32 - 1, 3]),
            ];
            let outputs = target.run(&inputs).unwrap();
            outputs[0].as_f32().unwrap().to_vec()
        });
        assert!(logits[0] == logits[1], "{name}");
    }
}

#[test]
fn a_model_without_a_head_is_refused_by_what_is_missing() {
    for (name, missing) in [
        (
            "qwen35",
            "qwen35.nextn_predict_layers and tensor blk.4.nextn.eh_proj.weight",
        ),
        (
            "llama_plain",
            "llama.nextn_predict_layers and tensor blk.2.nextn.eh_proj.weight",
        ),
    ] {
        let error = import::open_with(&path(name), &head_options()).unwrap_err();
        assert_eq!(error.kind(), ImportErrorKind::Value);
        let text = error.to_string();
        assert!(text.contains(missing), "{text}");
        assert!(!text.contains('\n'));
        // The model itself opens: it has no states to give.
        let graph = &model(name).methods[0].graph;
        assert_eq!(graph.outputs().len(), 1);
    }
}

#[test]
fn damaged_heads_are_refused_or_import() {
    let mut state = 1u64;
    let mut random = move |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for name in MODELS {
        let good = fs::read(path(name)).unwrap();
        for _ in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..1 + random(3) {
                bytes[random(4000)] ^= 1 << random(8);
            }
            let Ok(file) = import::gguf::Gguf::parse(bytes.as_slice().into()) else {
                continue;
            };
            let _ = import::gguf::lower(&file, &head_options());
        }
    }
}
