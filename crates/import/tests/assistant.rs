//! Assistants of Gemma 4: their logits against those of transformers, and what is said about files that do not fit.

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

/// Assistants with their targets.
const PAIRS: [[&str; 2]; 3] = [
    ["gemma4_assistant", "gemma4"],
    ["gemma4_keys_as_values_assistant", "gemma4_keys_as_values"],
    ["gemma4_agrees_assistant", "gemma4_agrees"],
];

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let kind = match name.ends_with("_assistant") {
        true => "assistant",
        false => "decoder",
    };
    folder.join(format!("{kind}/{name}.gguf"))
}

fn target(name: &str, feature_layers: FeatureLayers) -> Artifact {
    let options = ImportOptions {
        feature_layers,
        ..ImportOptions::default()
    };
    import::open_with(&path(name), &options).unwrap()
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

/// The expected logits and drafts of a fixture, from `<name>.json`.
struct Expected {
    tokens: Vec<i32>,
    chain: Vec<i32>,
    logits: Vec<f32>,
}

fn expected(name: &str) -> Expected {
    let text = fs::read_to_string(path(name).with_extension("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tokens = |value: &serde_json::Value| -> Vec<i32> {
        let list = value.as_array().unwrap().iter();
        list.map(|x| x.as_i64().unwrap() as i32).collect()
    };
    let rows = json["logits"].as_array().unwrap().iter();
    let numbers = rows.flat_map(|row| row.as_array().unwrap());
    Expected {
        tokens: tokens(&json["tokens"]),
        chain: tokens(&json["chain"]),
        logits: numbers.map(|x| x.as_f64().unwrap() as f32).collect(),
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

/// The target's features of all tokens, one row each: the state, and then keys and values.
fn features(artifact: &Artifact, tokens: &[i32], width: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut target, session) = runnable(artifact);
    let count = tokens.len();
    session.begin_step(&vec![0; count]).unwrap();
    let inputs = [
        Value::i32([count], tokens.to_vec()),
        Value::i32([count], (0..count as i32).collect()),
        Value::i32([1], vec![count as i32 - 1]),
    ];
    let outputs = target.run(&inputs).unwrap();
    let states = outputs[1].as_f32().unwrap().to_vec();
    assert_eq!(states.len(), count * width);
    let mut kv = vec![];
    for token in 0..count {
        for output in &outputs[2..] {
            let output = output.as_f32().unwrap();
            let width = output.len() / count;
            kv.extend_from_slice(&output[token * width..][..width]);
        }
    }
    (states, kv)
}

#[test]
fn assistants_answer_as_transformers_class() {
    for [name, of] in PAIRS {
        let Expected {
            tokens,
            chain,
            logits: truth,
        } = expected(name);
        let artifact = import::open(&path(name)).unwrap();
        let facts = artifact.draft_head.clone().unwrap();
        assert_eq!(facts.kind, HeadKind::Assistant);
        assert_eq!(
            facts.target_layers,
            FeatureLayers::WithKeysAndValues(vec![true, false])
        );
        assert_eq!(facts.target_tokens.len(), 64);
        assert!(!artifact.facts.is_decoder());
        let target = target(of, facts.target_layers.clone());
        for cache in &facts.target_caches {
            assert!(target.facts.caches.contains(cache), "{name}");
        }
        let width = facts.target_hidden_size;
        let (states, kv) = features(&target, &tokens, width);
        let kv_width = kv.len() / tokens.len();
        assert_eq!(
            facts.feature_widths().iter().sum::<usize>(),
            width + kv_width
        );

        // The target's embeddings, of which files have the numbers.
        let import::ModelFile::Gguf(file) = &target.file else {
            unreachable!()
        };
        let table = &file.tensor("token_embd.weight").unwrap().data;
        let table: Vec<f32> = table
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let embedded = |tokens: &[i32]| -> Vec<f32> {
            let rows = tokens
                .iter()
                .flat_map(|t| &table[*t as usize * width..][..width]);
            rows.copied().collect()
        };
        let count = tokens.len();
        let fed = [&tokens[1..], &chain[..1]].concat();
        for sizes in [&[24][..], &[5, 9, 1, 9]] {
            let (mut head, session) = runnable(&artifact);
            let mut run = |tokens: &[i32], states: &[f32], kv: &[f32], positions: Vec<i32>| {
                let n = tokens.len();
                let after = positions.iter().map(|p| p + 1).collect();
                let inputs = [
                    Value::f32([n, width], embedded(tokens)),
                    Value::f32([n, width], states.to_vec()),
                    Value::f32([n, kv_width], kv.to_vec()),
                    Value::i32([n], after),
                    Value::i32([n], positions),
                    Value::i32([n], (0..n as i32).collect()),
                ];
                let outputs = head.run(&inputs).unwrap();
                let values = |i: usize| outputs[i].as_f32().unwrap().to_vec();
                (values(0), values(1))
            };
            let (mut at, mut found, mut state) = (0, vec![], vec![]);
            for &n in sizes {
                session.begin_step(&vec![0; n]).unwrap();
                let (logits, next) = run(
                    &fed[at..at + n],
                    &states[at * width..][..n * width],
                    &kv[at * kv_width..][..n * kv_width],
                    (at as i32..).take(n).collect(),
                );
                found.extend(logits);
                state = next[next.len() - width..].to_vec();
                at += n;
            }
            // Drafted tokens are candidates in the place of the last row.
            let place = count as u32 - 1;
            session.seq_rm(0, place..).unwrap();
            for token in &chain[1..] {
                session.propose(0, &[None]).unwrap();
                let kv = &kv[place as usize * kv_width..];
                let (logits, next) = run(&[*token], &state, kv, vec![place as i32]);
                found.extend(logits);
                state = next;
            }
            let distance = distance(&found, &truth);
            assert!(distance < TOLERANCE, "{name} in {sizes:?}: {distance}");
        }
    }
}

#[test]
fn further_outputs_change_no_bit_of_the_targets_logits() {
    for [_, of] in PAIRS {
        let kinds = [
            FeatureLayers::None,
            FeatureLayers::WithKeysAndValues(vec![true, false]),
        ];
        let [plain, with] = kinds.map(|layers| {
            let (mut target, session) = runnable(&target(of, layers));
            session.begin_step(&[0; 24]).unwrap();
            let inputs = [
                Value::i32([24], (0..24).map(|i| i * 7 % 64).collect()),
                Value::i32([24], (0..24).collect()),
                Value::i32([2], vec![23, 3]),
            ];
            let outputs = target.run(&inputs).unwrap();
            outputs[0].as_f32().unwrap().to_vec()
        });
        assert!(plain == with, "{of}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let open = |name: &str| {
        let options = ImportOptions {
            feature_layers: FeatureLayers::WithKeysAndValues(vec![true, false]),
            ..ImportOptions::default()
        };
        import::open_with(&path(name), &options)
    };
    let error = open("llama_plain").unwrap_err();
    assert_eq!(error.kind(), ImportErrorKind::Value);
    let text = error.to_string();
    assert!(text.contains("layers with a window"), "{text}");
    // An assistant carries no head of its own.
    let head = open("gemma4_assistant").unwrap();
    assert!(head.draft_head.is_some());
}

#[test]
fn damaged_assistants_are_refused_or_import() {
    let mut state = 1u64;
    let mut random = move |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for [name, _] in PAIRS {
        let good = fs::read(path(name)).unwrap();
        for _ in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..1 + random(3) {
                bytes[random(3000)] ^= 1 << random(8);
            }
            if let Ok(file) = import::gguf::Gguf::parse(bytes.as_slice().into()) {
                let _ = import::gguf::lower(&file, &ImportOptions::default());
            }
        }
    }
}
