//! A restored sequence continues with the same bits as one that was never saved.

mod common;

use common::{Temporary, bits};
use kvark::cache::KvStorage;
use kvark::snapshot::Snapshot;
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions};
use std::path::Path;

/// A flat model, one with a window in every layer, two with both kinds of layers, one whose layers share caches, and two with recurrent
/// layers.
const MODELS: [&str; 7] = [
    "llama_plain",
    "mistral",
    "gemma2",
    "gemma3",
    "gemma4",
    "lfm2",
    "qwen35",
];
const STORAGE: [&str; 6] = ["f32", "f16", "bf16", "f8_e4m3", "q8", "q4"];

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), Some(64)).unwrap()
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + i / 5) % 60).collect()
}

fn runner_options(keys: &str, values: &str, batch: usize) -> RunnerOptions {
    RunnerOptions {
        context: Some(64),
        max_step_tokens: batch,
        key_storage: KvStorage::from_name(keys).unwrap(),
        value_storage: KvStorage::from_name(values).unwrap(),
        ..RunnerOptions::default()
    }
}

fn runner(model: &Model, runner_options: &RunnerOptions) -> Runner {
    Runner::new(model, &Cpu::new().unwrap(), runner_options).unwrap()
}

#[test]
fn a_runner_goes_on_as_if_it_had_never_been_saved() {
    let file = Temporary::new("runner");
    for name in MODELS {
        let model = model(name);
        for (keys, values) in STORAGE.into_iter().zip(STORAGE.into_iter().cycle().skip(3)) {
            for (keys, values) in [(keys, keys), (keys, values)] {
                let runner_options = runner_options(keys, values, 4);
                let what = format!("{name} with {keys} and {values}");
                let mut never_saved = runner(&model, &runner_options);
                let text = tokens(60);
                // Without a rewind, and after a rewind followed by other tokens.
                for rewind in [0, 2] {
                    never_saved.rewind(0).unwrap();
                    never_saved.feed(&text[..40], |_| true).unwrap();
                    if rewind > 0 {
                        never_saved.feed(&text[..2], |_| true).unwrap();
                        never_saved.rewind(40 - rewind).unwrap();
                    }
                    let len = never_saved.tokens().len();
                    never_saved.save(&model, &file.0, b"").unwrap();
                    let expect = bits(&mut never_saved, &text[len..]);

                    let snapshot = Snapshot::open(&file.0).unwrap();
                    assert_eq!(snapshot.tokens(), &text[..len], "{what}");
                    // Also into contexts with longer and shorter steps, whose rings have other sizes.
                    for batch in [4, 16, 1] {
                        let runner_options = RunnerOptions {
                            max_step_tokens: batch,
                            ..runner_options.clone()
                        };
                        let mut restored = runner(&model, &runner_options);
                        restored.feed(&[1, 2, 3], |_| true).unwrap();
                        restored.restore(&model, &snapshot, len).unwrap();
                        let found = bits(&mut restored, &text[len..]);
                        assert!(found == expect, "{what}, batch {batch}, rewind {rewind}");
                    }
                    // Restore a shorter prefix, if ring layers and states allow one.
                    let part = snapshot.restorable().longest(len - 1);
                    let part = if part > 0 { part } else { len };
                    let mut restored = runner(&model, &runner_options);
                    restored.restore(&model, &snapshot, part).unwrap();
                    let found = bits(&mut restored, &text[part..]);
                    assert!(found[len - part..] == expect, "{what}, {part} tokens");
                    // Saving the restored sequence gives the same bytes.
                    let again = Temporary::new("again");
                    restored.restore(&model, &snapshot, len).unwrap();
                    restored.save(&model, &again.0, b"").unwrap();
                    let [a, b] = [&file, &again].map(|f| std::fs::read(&f.0).unwrap());
                    assert!(a == b, "{what}: saved again, it differs");
                }
            }
        }
    }
}

#[test]
fn rewinds_of_a_restored_sequence_are_right_or_refused() {
    let file = Temporary::new("rewind");
    for name in MODELS {
        let model = model(name);
        let runner_options = runner_options("f16", "f16", 4);
        let text = tokens(60);
        let mut cold = runner(&model, &runner_options);
        let expect = bits(&mut cold, &text);
        let mut first = runner(&model, &runner_options);
        first.feed(&text[..50], |_| true).unwrap();
        first.rewind(48).unwrap();
        first.save(&model, &file.0, b"").unwrap();
        let snapshot = Snapshot::open(&file.0).unwrap();
        let mut accepted = 0;
        for back in (0..=48).rev() {
            let mut restored = runner(&model, &runner_options);
            restored.restore(&model, &snapshot, 48).unwrap();
            // Recurrent layers compute again what lies behind a kept state.
            let allowed =
                back == 0 || snapshot.restorable().longest(back) == back || restored.has_states();
            assert_eq!(restored.rewind(back).is_ok(), allowed, "{name} to {back}");
            if allowed {
                let found = bits(&mut restored, &text[back..52]);
                assert!(found == expect[back..52], "{name} from {back}");
                accepted += 1;
            }
        }
        assert!(accepted >= 3, "{name}");
    }
}

#[test]
fn branches_are_saved_and_restored_among_others() {
    let file = Temporary::new("branches");
    for name in MODELS {
        let model = model(name);
        for storage in STORAGE {
            let runner_options = RunnerOptions {
                context: Some(200),
                ..runner_options(storage, storage, 4)
            };
            let text = tokens(60);
            let open = || BatchRunner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
            let mut branches = open();
            let feed = |branches: &mut BatchRunner, id, tokens: &[u32]| {
                let mut branch = branches.sequence(id);
                assert!(branch.feed(tokens, &mut |_| true).unwrap());
            };
            feed(&mut branches, 0, &text[..20]);
            branches.fork(0, 1).unwrap();
            feed(&mut branches, 0, &text[30..34]);
            feed(&mut branches, 1, &text[20..40]);
            branches.save(&model, 1, &file.0, b"{}").unwrap();
            let expect = bits(branches.sequence(1), &text[40..50]);

            let snapshot = Snapshot::open(&file.0).unwrap();
            let mut restored = open();
            feed(&mut restored, 0, &text[..24]);
            restored.fork(0, 1).unwrap();
            feed(&mut restored, 1, &text[50..]);
            restored.restore(&model, 1, &snapshot).unwrap();
            restored.fork(1, 2).unwrap();
            for id in [1, 2] {
                let found = bits(restored.sequence(id), &text[40..50]);
                assert!(found == expect, "{name} with {storage}, branch {id}");
            }
            let found = bits(restored.sequence(0), &text[24..28]);
            let mut cold = open();
            feed(&mut cold, 0, &text[..24]);
            assert!(found == bits(cold.sequence(0), &text[24..28]));

            // Every kind of cache can restore the snapshots of the others.
            let mut alone = runner(&model, &runner_options);
            alone.restore(&model, &snapshot, 40).unwrap();
            assert!(bits(&mut alone, &text[40..50]) == expect, "{name}");
        }
    }
}

#[test]
fn a_branch_that_does_not_fit_is_refused_and_nothing_is_lost() {
    let file = Temporary::new("full");
    let model = model("llama_plain");
    let text = tokens(40);
    let mut saved = runner(&model, &runner_options("f16", "f16", 8));
    saved.feed(&text, |_| true).unwrap();
    saved.save(&model, &file.0, b"").unwrap();
    let snapshot = Snapshot::open(&file.0).unwrap();
    let runner_options = runner_options("f16", "f16", 8);
    let mut branches = BatchRunner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
    for id in [0, 1] {
        branches
            .sequence(id)
            .feed(&text[..30], &mut |_| true)
            .unwrap();
    }
    let error = branches.restore(&model, 1, &snapshot).unwrap_err();
    assert!(error.to_string().contains("70 cells are needed"), "{error}");
    assert_eq!(branches.tokens(1), &text[..30]);
    branches.remove(0).unwrap();
    branches.restore(&model, 1, &snapshot).unwrap();
    assert_eq!(branches.tokens(1), text);
}

#[test]
fn a_frozen_prefix_is_saved_with_what_follows_and_not_replaced() {
    let file = Temporary::new("prefix");
    // States are not frozen.
    for name in &MODELS[..5] {
        let model = model(name);
        let runner_options = runner_options("f16", "f16", 4);
        let text = tokens(60);
        let mut first = runner(&model, &runner_options);
        first.feed(&text[..30], |_| true).unwrap();
        let prefix = first.freeze(&model).unwrap();
        let cpu = Cpu::new().unwrap();
        let behind = BatchRunner::with_prefix(&prefix, &model, &cpu, &runner_options).unwrap();
        let mut behind = Runner::from(behind);
        behind.feed(&text[30..33], |_| true).unwrap();
        behind.save(&model, &file.0, b"").unwrap();
        let expect = bits(&mut behind, &text[33..]);
        let snapshot = Snapshot::open(&file.0).unwrap();
        let mut restored = runner(&model, &runner_options);
        restored.restore(&model, &snapshot, 33).unwrap();
        assert!(bits(&mut restored, &text[33..]) == expect, "{name}");
        let error = first.restore(&model, &snapshot, 33).unwrap_err();
        assert!(
            error.to_string().contains("30 tokens are a shared prefix"),
            "{error}"
        );
        assert_eq!(first.tokens(), &text[..30]);
    }
}
