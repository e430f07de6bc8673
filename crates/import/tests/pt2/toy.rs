//! The toy export of `../shared/fixtures`, with goldens by ExecuTorch's reference caches: one artifact, every cache.

use std::path::{Path, PathBuf};

use backend::Backend;
use backend::reference::Reference;
use import::Artifact;
use kv::{make_decode_session, make_seq_session};
use serde_json::Value as Json;

use crate::decoders::{bind, config, step};
use crate::golden::{TOLERANCE, distance, float, json};

const VOCAB: usize = 64;

/// The export and its goldens, when they are there.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
fn toy() -> Option<(Artifact, Json)> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let shared = std::env::var_os("KVARK_FIXTURES").map_or(beside, PathBuf::from);
    let folder = shared.join("toy-export");
    if !folder.exists() {
        eprintln!("skipped: {} is not there", folder.display());
        return None;
    }
    let artifact = import::open(&folder.join("toy.pt2")).unwrap();
    Some((artifact, json(&folder.join("toy_golden.json"))))
}

fn ids(golden: &Json) -> Vec<i32> {
    let list = golden["ids"][0].as_array().unwrap().iter();
    list.map(|id| id.as_i64().unwrap() as i32).collect()
}

/// A golden `[1, T, vocab]` as one list.
fn rows(golden: &Json, key: &str) -> Vec<f32> {
    let rows = golden[key][0].as_array().unwrap().iter();
    rows.flat_map(|row| row.as_array().unwrap())
        .map(float)
        .collect()
}

/// The logits of all tokens in steps of these sizes on one sequence.
fn decode(artifact: &Artifact, ids: &[i32], sizes: &[usize]) -> Vec<f32> {
    let (session, _) =
        make_decode_session(Reference::new().id(), &config(&artifact.facts.caches)).unwrap();
    let mut runnable = bind(
        artifact.method("forward").unwrap().graph.clone(),
        session.key(),
    );
    let (mut logits, mut at) = (vec![], 0);
    for &n in sizes {
        let positions: Vec<i32> = (at as i32..).take(n).collect();
        let outputs = runnable.run(&step(&ids[at..at + n], &positions)).unwrap();
        logits.extend_from_slice(outputs[0].as_f32().unwrap());
        at += n;
    }
    logits
}

#[test]
fn one_shot_chunked_and_token_by_token() {
    let Some((artifact, golden)) = toy() else {
        return;
    };
    // The archive states no facts; they are read off its graph.
    assert_eq!(artifact.facts.caches.len(), 2);
    assert_eq!(
        (artifact.facts.vocab_size, artifact.facts.max_step),
        (VOCAB, Some(16))
    );
    let ids = ids(&golden);
    for sizes in [&[10][..], &[4, 1, 1, 1, 1, 1, 1], &[3, 5, 2], &[1; 10]] {
        let logits = decode(&artifact, &ids, sizes);
        for key in ["full", "decode"] {
            let away = distance(&logits, &rows(&golden, key));
            assert!(away <= TOLERANCE, "{key} in steps {sizes:?}: {away}");
        }
    }
}

#[test]
fn a_ring_in_the_first_layer() {
    let Some((mut artifact, golden)) = toy() else {
        return;
    };
    artifact.facts.caches[0].window = Some(4);
    let (ids, truth) = (ids(&golden), rows(&golden, "ring4_layer0"));
    assert!(
        distance(&rows(&golden, "full"), &truth) > 0.01,
        "the ring makes a difference"
    );
    for sizes in [&[10][..], &[3, 5, 2], &[1; 10]] {
        let away = distance(&decode(&artifact, &ids, sizes), &truth);
        assert!(away <= TOLERANCE, "in steps {sizes:?}: {away}");
    }
}

#[test]
fn two_sequences_in_one_step_and_a_fork() {
    let Some((artifact, golden)) = toy() else {
        return;
    };
    let ids = ids(&golden);
    let (session, _) =
        make_seq_session(Reference::new().id(), &config(&artifact.facts.caches)).unwrap();
    let mut runnable = bind(
        artifact.method("forward").unwrap().graph.clone(),
        session.key(),
    );

    session.begin_step(&[0, 0, 0, 0, 1, 1, 1]).unwrap();
    let tokens = [&ids[..4], &ids[6..9]].concat();
    let outputs = runnable
        .run(&step(&tokens, &[0, 1, 2, 3, 0, 1, 2]))
        .unwrap();
    let away = distance(outputs[0].as_f32().unwrap(), &rows(&golden, "two_seq"));
    assert!(away <= TOLERANCE, "two sequences: {away}");

    session.seq_cp(0, 2, ..).unwrap();
    session.begin_step(&[0, 2]).unwrap();
    let outputs = runnable.run(&step(&[ids[4], ids[8]], &[4, 4])).unwrap();
    let away = distance(outputs[0].as_f32().unwrap(), &rows(&golden, "fork"));
    assert!(away <= TOLERANCE, "fork: {away}");
}
