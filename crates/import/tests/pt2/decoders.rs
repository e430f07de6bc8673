//! Tiny exported decoders against transformers' own attention: one shot, chunked, token by token.

use std::path::Path;
use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use graph::{Graph, Value};
use import::{Artifact, FeatureLayers, ImportOptions};
use kv::{
    CacheConfig, CacheKey, CacheRegistry, KvStorage, LayerConfig, RingPolicy, make_decode_session,
};

use crate::golden::{TOLERANCE, archive, distance, folder, json, names, tensor};

/// A cache in full precision; windows become rings.
pub(crate) fn config(caches: &[LayerConfig]) -> CacheConfig {
    let mut config = CacheConfig::new(64, caches.to_vec());
    (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
    config.ring = Some(RingPolicy {
        max_step: 16,
        max_rewind: 4,
    });
    config
}

/// A graph on the reference backend, bound to the cache under this key.
pub(crate) fn bind(graph: Graph, key: &CacheKey) -> Runnable {
    let cache = CacheRegistry::global().get(key).unwrap();
    let graph = Arc::new(graph);
    let executable = Reference
        .compile(graph.clone(), &Default::default())
        .unwrap();
    Runnable::bind(graph, executable, Some(cache)).unwrap()
}

/// A step of the runners' contract that wants all rows.
pub(crate) fn step(ids: &[i32], positions: &[i32]) -> [Value; 3] {
    let n = ids.len();
    let rows = (0..n as i32).collect();
    [ids.to_vec(), positions.to_vec(), rows].map(|data| Value::i32([n], data))
}

fn graph(artifact: &Artifact, optimised: bool) -> Graph {
    let mut graph = artifact.method("forward").unwrap().graph.clone();
    if optimised {
        graph::passes::optimise(&mut graph).unwrap();
    }
    graph
}

#[test]
fn logits_are_those_of_transformers() {
    for name in names(|name| name.starts_with("decoder")) {
        check_logits(&archive(&name), &name);
    }
}

/// Compares the logits of the decoder at `path`, in several divisions into steps, with those of a fixture.
pub(crate) fn check_logits(path: &Path, name: &str) {
    let golden = json(&folder().join(format!("{name}.json")));
    let options = ImportOptions {
        feature_layers: match golden.get("features") {
            Some(_) => FeatureLayers::Standard,
            None => FeatureLayers::None,
        },
        ..ImportOptions::default()
    };
    let artifact = import::open_with(path, &options).unwrap();
    let ids = golden["ids"].as_array().unwrap().iter();
    let ids: Vec<i32> = ids.map(|id| id.as_i64().unwrap() as i32).collect();
    let truth = tensor(&golden["logits"]);
    for optimised in [false, true] {
        for sizes in [&[11][..], &[3, 1, 5, 2], &[1; 11]] {
            let (session, _) =
                make_decode_session(Reference::new().id(), &config(&artifact.facts.caches))
                    .unwrap();
            let mut runnable = bind(graph(&artifact, optimised), session.key());
            let (mut logits, mut features, mut at) = (vec![], vec![], 0);
            for &n in sizes {
                let positions: Vec<i32> = (at as i32..).take(n).collect();
                let outputs = runnable.run(&step(&ids[at..at + n], &positions)).unwrap();
                logits.extend_from_slice(outputs[0].as_f32().unwrap());
                if let Some(more) = outputs.get(1) {
                    features.extend_from_slice(more.as_f32().unwrap());
                }
                at += n;
            }
            let what = format!("{name} in steps {sizes:?}, optimised: {optimised}");
            let away = distance(&logits, truth.as_f32().unwrap());
            assert!(away <= TOLERANCE, "{what}: {away}");
            assert_eq!(features.is_empty(), golden.get("features").is_none());
            if !features.is_empty() {
                let truth = tensor(&golden["features"]);
                let away = distance(&features, truth.as_f32().unwrap());
                assert!(away <= TOLERANCE, "features of {what}: {away}");
            }
        }
    }
}

#[test]
fn facts_come_from_the_archive() {
    let artifact = import::open(&archive("decoder_gemma3")).unwrap();
    assert_eq!(
        (artifact.file.format().name(), &artifact.architecture[..]),
        ("pt2", "gemma3_text")
    );
    let layer = LayerConfig {
        kv_heads: 2,
        key_dim: 8,
        value_dim: 8,
        window: Some(4),
        sinks: 0,
    };
    let flat = LayerConfig {
        window: None,
        ..layer
    };
    let facts = &artifact.facts;
    assert_eq!(facts.caches, [layer, flat]);
    assert_eq!(
        (facts.context_length, facts.vocab_size, facts.max_step),
        (64, 48, Some(32))
    );
    let graph = &artifact.method("forward").unwrap().graph;
    let inputs = graph.inputs().iter().map(|id| graph.typed(*id));
    let inputs: Vec<String> = inputs.collect();
    assert_eq!(
        inputs,
        ["tokens: i32[T]", "position: i32[T]", "rows: i32[R]"]
    );
    assert_eq!(
        graph.type_text(&graph.tensor(graph.outputs()[0]).ty),
        "f32[R, 48]"
    );
}

#[test]
fn rows_are_picked() {
    let artifact = import::open(&archive("decoder_llama")).unwrap();
    let (session, _) =
        make_decode_session(Reference::new().id(), &config(&artifact.facts.caches)).unwrap();
    let mut runnable = bind(graph(&artifact, true), session.key());
    let [tokens, positions, _] = step(&[1, 2, 3, 4], &[0, 1, 2, 3]);
    let none = Value::i32([0], vec![]);
    let outputs = runnable.run(&[tokens, positions, none]).unwrap();
    assert_eq!(outputs[0].shape, [0, 48]);
    let [tokens, positions, _] = step(&[5, 6], &[4, 5]);
    let outputs = runnable
        .run(&[tokens, positions, Value::i32([1], vec![1])])
        .unwrap();
    assert_eq!(outputs[0].shape, [1, 48]);
}

#[test]
fn a_decoder_can_be_left_as_it_was_exported() {
    let options = ImportOptions {
        as_exported: true,
        ..ImportOptions::default()
    };
    let artifact = import::open_with(&archive("decoder_llama"), &options).unwrap();
    assert!(!artifact.facts.is_decoder());
    let golden = json(&folder().join("decoder_llama.json"));
    let ids: Vec<i64> = golden["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_i64().unwrap())
        .collect();
    let (session, _) =
        make_decode_session(Reference::new().id(), &config(&artifact.facts.caches)).unwrap();
    let mut runnable = bind(graph(&artifact, false), session.key());
    let n = ids.len();
    let inputs = [
        Value::i64([1, n], ids),
        Value::i64([n, 1], (0..n as i64).collect()),
    ];
    let outputs = runnable.run(&inputs).unwrap();
    assert_eq!(outputs[0].shape, [1, n, 48]);
    let truth = tensor(&golden["logits"]);
    let away = distance(outputs[0].as_f32().unwrap(), truth.as_f32().unwrap());
    assert!(away <= TOLERANCE, "{away}");
}
