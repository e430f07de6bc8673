//! Decoders that mobius builds, fed in every way.

use crate::common::named_by;
use crate::support::{beside, exact, json, largest_difference, model};
use kvark::backend::{ExecutorKind, Isa};
use kvark::cache::{CacheConfig, KvStorage, make_scatter_session, make_tree_session};
use kvark::generate::BatchToken;
use kvark::inference::{ModuleOptions, Value};
use kvark::{BatchRunner, Cpu, Model, Module, Runner, RunnerOptions};
use serde_json::Value as Json;
use std::path::PathBuf;

/// The maximum difference of a logit from ONNX Runtime's.
const TOLERANCE: f32 = 1e-4;

/// Every decoder with ONNX Runtime's results.
fn cases() -> Vec<(PathBuf, Json)> {
    let mut folders = vec![beside()];
    folders.extend(named_by("KVARK_TEST_ONNX"));
    let mut cases = vec![];
    for folder in folders {
        let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "onnx"))
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{} has no decoders", folder.display());
        cases.extend(files.into_iter().map(|path| {
            let expected = json(&path.with_extension("json"));
            (path, expected)
        }));
    }
    cases
}

fn ids(list: &Json) -> Vec<u32> {
    let list = list.as_array().unwrap().iter();
    list.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn rows(list: &Json) -> Vec<Vec<f32>> {
    let row = |row: &Json| {
        let row = row.as_array().unwrap().iter();
        row.map(|x| x.as_f64().unwrap() as f32).collect()
    };
    list.as_array().unwrap().iter().map(row).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Feeds tokens in steps of these sizes; the logits of all.
fn feed(runner: &mut Runner, ids: &[u32], sizes: &Json) -> Vec<Vec<f32>> {
    let (mut rows, mut at) = (vec![], 0);
    for size in sizes.as_array().unwrap() {
        let size = size.as_u64().unwrap() as usize;
        let keep = |_: usize, row: &[f32]| {
            rows.push(row.to_vec());
            true
        };
        runner.feed_all_logits(&ids[at..at + size], keep).unwrap();
        at += size;
    }
    rows
}

fn check(found: &[Vec<f32>], truth: &[Vec<f32>], what: &str) {
    assert_eq!(found.len(), truth.len(), "{what}");
    for (row, (found, truth)) in found.iter().zip(truth).enumerate() {
        let away = largest_difference(found, truth);
        assert!(away < TOLERANCE, "{what}, row {row}: {away}");
    }
}

#[test]
fn logits_are_those_of_onnx_runtime() {
    for (path, expected) in cases() {
        let model = model(&path);
        let ids = ids(&expected["ids"]);
        for (executor, isa) in [
            (ExecutorKind::Compiled, *Isa::available().last().unwrap()),
            (ExecutorKind::Interpreted, Isa::available()[0]),
        ] {
            let mut runner_options = exact();
            runner_options.compile.executor = executor;
            let cpu = Cpu::with_isa(isa);
            for run in ["at_once", "chunks", "one_by_one"] {
                let what = format!("{} {run} {isa}", path.display());
                let mut runner = Runner::new(&model, &cpu, &runner_options).unwrap();
                let found = feed(&mut runner, &ids, &expected[run]["sizes"]);
                check(&found, &rows(&expected[run]["logits"]), &what);
            }
            let rewound = &expected["rewound"];
            let number = |key: &str| rewound[key].as_u64().unwrap() as usize;
            let mut runner = Runner::new(&model, &cpu, &runner_options).unwrap();
            runner.feed(&ids[..number("before")], |_| true).unwrap();
            runner.rewind(number("to")).unwrap();
            let found = feed(&mut runner, &self::ids(&rewound["ids"]), &rewound["sizes"]);
            let what = format!("{} rewound {isa}", path.display());
            check(&found, &rows(&rewound["logits"]), &what);
        }
    }
}

/// All logits of a cold run.
fn cold(model: &Model, cpu: &Cpu, runner_options: &RunnerOptions, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut runner = Runner::new(model, cpu, runner_options).unwrap();
    feed(&mut runner, ids, &serde_json::json!([ids.len()]))
}

fn config(model: &Model) -> CacheConfig {
    let mut config = CacheConfig::new(16, model.facts().caches.clone());
    (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
    config.initial_cells = 2;
    config
}

/// Runs one forward and returns the logits of all rows.
fn forward(module: &mut Module, tokens: &[u32], positions: &[i32]) -> Vec<f32> {
    let n = tokens.len();
    let inputs = [
        Value::i32([n], tokens.iter().map(|t| *t as i32).collect()),
        Value::i32([n], positions.to_vec()),
        Value::i32([n], (0..n as i32).collect()),
    ];
    let outputs = module.execute("forward", &inputs).unwrap();
    outputs[0].as_f32().unwrap().to_vec()
}

/// Exports with static buffers or past tensors support forks, batches, trees and static buffers for several sequences. Each
/// gives the bits of a cold run.
#[test]
fn every_cache_gives_the_bits_of_a_cold_run() {
    let cpu = Cpu::new().unwrap();
    for (path, expected) in cases() {
        let what = path.display();
        let model = model(&path);
        let ids = ids(&expected["ids"]);
        let (vocab, runner_options) = (model.facts().vocab_size, exact());
        let other = [&ids[..6], &[3, 1, 2]].concat();
        let (one, two) = (
            cold(&model, &cpu, &runner_options, &ids[..9]),
            cold(&model, &cpu, &runner_options, &other),
        );

        // A fork, then both branches in one step.
        let mut branches = BatchRunner::new(&model, &cpu, &runner_options).unwrap();
        let token = |seq, id| BatchToken {
            seq,
            id,
            logits: true,
        };
        let trunk: Vec<BatchToken> = ids[..6].iter().map(|id| token(0, *id)).collect();
        branches.step(&trunk).unwrap();
        branches.fork(0, 1).unwrap();
        for at in 6..9 {
            branches
                .step(&[token(1, other[at]), token(0, ids[at])])
                .unwrap();
            assert_eq!(bits(branches.logits(0)), bits(&one[at]), "{what}");
            assert_eq!(bits(branches.logits(1)), bits(&two[at]), "{what}");
        }

        // Two sequences in static buffers, one with a pad, which changes nothing.
        let (session, backend) = make_scatter_session(Cpu::ID, &config(&model), 2).unwrap();
        let options = ModuleOptions {
            backend,
            compile: runner_options.compile.clone(),
        };
        let mut module = Module::from_artifact(model.artifact(), &cpu, &options).unwrap();
        let real = |seq| (seq, true);
        session
            .begin_padded_step(&[real(0), real(1), real(0), real(1), (1, false)])
            .unwrap();
        forward(
            &mut module,
            &[ids[0], other[0], ids[1], other[1], 0],
            &[0, 0, 1, 1, 2],
        );
        for at in 2..9 {
            session.begin_step(&[0, 1]).unwrap();
            let found = forward(&mut module, &[ids[at], other[at]], &[at as i32; 2]);
            assert_eq!(bits(&found[..vocab]), bits(&one[at]), "{what}");
            assert_eq!(bits(&found[vocab..]), bits(&two[at]), "{what}");
        }

        // A tree: two candidates after the same prefix; the path through the second is accepted.
        let (session, backend) = make_tree_session(Cpu::ID, &config(&model)).unwrap();
        let options = ModuleOptions {
            backend,
            compile: runner_options.compile.clone(),
        };
        let mut module = Module::from_artifact(model.artifact(), &cpu, &options).unwrap();
        session
            .propose(&[None, Some(0), Some(1), Some(2), Some(3), Some(4)])
            .unwrap();
        forward(&mut module, &ids[..6], &[0, 1, 2, 3, 4, 5]);
        session.accept(&[0, 1, 2, 3, 4, 5]).unwrap();
        session.propose(&[None, None, Some(1), Some(0)]).unwrap();
        let step = [ids[6], other[6], other[7], ids[7]];
        let found = forward(&mut module, &step, &[6, 6, 7, 7]);
        let row = |at: usize| bits(&found[at * vocab..(at + 1) * vocab]);
        assert_eq!(row(0), bits(&one[6]), "{what}");
        assert_eq!(row(1), bits(&two[6]), "{what}");
        assert_eq!(row(2), bits(&two[7]), "{what}");
        assert_eq!(row(3), bits(&one[7]), "{what}");
    }
}
