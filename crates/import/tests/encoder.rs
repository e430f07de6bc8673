//! Hidden states of graphs that keep nothing, against those of transformers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use base::quant::dequantise;
use graph::Value;
use graph::ops::Op;
use import::{Artifact, ImportErrorKind, ImportOptions, ModelFile, Pooling};
use serde_json::Value as Json;

/// Differences may be this large; elements of hidden states are about 1.
const TOLERANCE: f32 = 2e-5;

fn fixture(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(kind)
        .join(name)
}

fn truth(kind: &str, name: &str) -> Json {
    let path = fixture(kind, &format!("{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(list: &Json) -> Vec<f32> {
    let list = list.as_array().unwrap().iter();
    list.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn rows(table: &Json) -> Vec<f32> {
    table.as_array().unwrap().iter().flat_map(floats).collect()
}

fn ids(list: &Json) -> Vec<i32> {
    floats(list).iter().map(|id| *id as i32).collect()
}

/// The hidden states of texts that share a step.
fn run(artifact: &Artifact, texts: &[Vec<i32>]) -> Vec<f32> {
    let backend = Reference::new();
    let graph = Arc::new(artifact.method("forward").unwrap().graph.clone());
    let executable = backend.compile(graph.clone(), &Default::default()).unwrap();
    let mut runnable = Runnable::bind(graph, executable, None).unwrap();
    let position = texts.iter().flat_map(|text| 0..text.len() as i32);
    let number = (0..).zip(texts).flat_map(|(i, t)| vec![i; t.len()]);
    let inputs = [texts.concat(), position.collect(), number.collect()];
    let inputs = inputs.map(|data| Value::i32([data.len()], data));
    runnable.run(&inputs).unwrap()[0].as_f32().unwrap().to_vec()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().all(|x| x.is_finite()));
    let each = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    each.fold(0.0, f32::max)
}

#[test]
fn encoders_agree_with_transformers_alone_and_together() {
    for (file, pooling) in [
        ("bert.gguf", Pooling::Mean),
        ("bert", Pooling::Mean),
        ("nomic_bert.gguf", Pooling::Cls),
    ] {
        let name = file.strip_suffix(".gguf").unwrap_or(file);
        let artifact = import::open(&fixture("encoder", file)).unwrap();
        assert_eq!(artifact.facts.pooling, Some(pooling));
        assert!(artifact.facts.caches.is_empty() && !artifact.facts.is_decoder());
        let json = truth("encoder", name);
        let texts = json["texts"].as_array().unwrap();
        let tokens: Vec<Vec<i32>> = texts.iter().map(|t| ids(&t["ids"])).collect();
        let hidden: Vec<Vec<f32>> = texts.iter().map(|t| rows(&t["hidden"])).collect();
        for (tokens, hidden) in tokens.iter().zip(&hidden) {
            let found = distance(&run(&artifact, std::slice::from_ref(tokens)), hidden);
            assert!(found < TOLERANCE, "{name}: {found}");
        }
        let found = distance(&run(&artifact, &tokens), &hidden.concat());
        assert!(found < TOLERANCE, "{name}, all in one step: {found}");
    }
}

/// The head on the hidden states of a decoder gives its logits.
#[test]
fn decoders_without_a_cache_have_the_same_hidden_states() {
    let options = ImportOptions {
        hidden_states: true,
        ..ImportOptions::default()
    };
    for name in ["llama_plain", "qwen3", "gemma3", "mistral", "gpt2"] {
        let path = fixture("decoder", &format!("{name}.gguf"));
        let artifact = import::open_with(&path, &options).unwrap();
        let facts = &artifact.facts;
        assert_eq!(facts.pooling, Some(Pooling::Last));
        assert!(facts.caches.is_empty() && !facts.is_decoder());
        let graph = &artifact.method("forward").unwrap().graph;
        let cached = |op: &Op| matches!(op, Op::UpdateAndAttend(_));
        assert!(!graph.nodes().iter().any(|node| cached(&node.op)));

        let json = truth("decoder", name);
        let hidden = run(&artifact, &[ids(&json["tokens"])]);
        let ModelFile::Gguf(file) = &artifact.file else {
            panic!("{name} is a GGUF file");
        };
        let head = file.tensor("output.weight");
        let head = head.or(file.tensor("token_embd.weight")).unwrap();
        let mut weights = vec![0.0; head.len()];
        dequantise(head.dtype, &head.data, &mut weights).unwrap();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let width = facts.hidden_size;
        let logits = hidden.chunks(width).flat_map(|row| {
            let each = weights.chunks(width).map(move |weight| dot(row, weight));
            each.collect::<Vec<f32>>()
        });
        let found = distance(&logits.collect::<Vec<f32>>(), &rows(&json["logits"]));
        assert!(found < 1e-3, "{name}: {found}");
    }
}

#[test]
fn damaged_files_are_refused_or_import() {
    let mut state = 1u64;
    let mut random = move |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) as usize % n
    };
    for name in [
        "encoder/bert.gguf",
        "encoder/nomic_bert.gguf",
        "decoder/gemma3.gguf",
    ] {
        let (kind, name) = name.split_once('/').unwrap();
        let good = fs::read(fixture(kind, name)).unwrap();
        for _ in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..1 + random(3) {
                // Keys and the tensor directory are at the front.
                bytes[random(4500)] ^= 1 << random(8);
            }
            let Ok(file) = import::gguf::Gguf::parse(bytes.as_slice().into()) else {
                continue;
            };
            let hidden_states = random(2) == 0;
            let options = ImportOptions {
                hidden_states,
                ..ImportOptions::default()
            };
            let _ = import::gguf::lower(&file, &options);
        }
    }
}

/// Replaces the value of a 32-bit key.
fn with_key(bytes: &[u8], key: &str, value: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = bytes.windows(key.len()).position(|w| w == key.as_bytes());
    let at = at.expect("is in the file") + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn what_an_encoder_cannot_be_is_named() {
    let good = fs::read(fixture("encoder", "bert.gguf")).unwrap();
    let import = |bytes: Vec<u8>| {
        let file = import::gguf::Gguf::parse(bytes.as_slice().into()).unwrap();
        import::gguf::lower(&file, &ImportOptions::default()).unwrap_err()
    };
    let table = [
        (
            "bert.pooling_type",
            4,
            ImportErrorKind::Unsupported,
            "ranks",
        ),
        ("bert.pooling_type", 9, ImportErrorKind::Value, "is 9"),
        (
            "bert.context_length",
            33,
            ImportErrorKind::Tensor,
            "position_embd",
        ),
    ];
    for (key, value, kind, named) in table {
        let error = import(with_key(&good, key, value));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
    let mut causal = good;
    let key = b"bert.attention.causal";
    let at = causal.windows(key.len()).position(|w| w == key).unwrap();
    causal[at + key.len() + 4] = 1;
    let error = import(causal);
    assert_eq!(
        error.to_string(),
        "bert.attention.causal = true is not supported"
    );
}
