//! Layers that keep the first positions of a sequence besides their window, by a rule of a policy.

use kvark::backend::reference::Reference;
use kvark::cache::{KvStorage, MigrationOptions, read_policy};
use kvark::memory::CacheKind;
use kvark::{BatchRunner, Cpu, Model, RunnerOptions};
use std::path::Path;

const CELLS: CacheKind = CacheKind::Cells { sequences: 3 };

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), Some(128)).unwrap()
}

fn text(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + i / 5) % 60).collect()
}

fn options(policy: &str, step: usize) -> RunnerOptions {
    RunnerOptions {
        context: Some(128),
        max_step_tokens: step,
        kv_policy: read_policy(policy).unwrap(),
        ..RunnerOptions::default()
    }
}

fn open(model: &Model, options: &RunnerOptions, kind: CacheKind) -> BatchRunner {
    let cpu = Cpu::new().unwrap();
    BatchRunner::with_cache_kind(model, &cpu, options, kind, 0).unwrap()
}

fn bits(runner: &BatchRunner, seq: u32) -> Vec<u32> {
    runner.logits(seq).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn sinks_have_equal_bits_in_steps_forks_and_rewinds() {
    for (name, policy) in [
        ("llama_plain", "others window 9 sinks 3"),
        ("llama_plain", "window 9 sinks 3 for 1; window 5 for 0"),
        ("gemma3", "others q8 sinks 2 window 6"),
    ] {
        let model = model(name);
        let text = text(100);
        let mut expect = None;
        let flat = RunnerOptions {
            ring_layers: false,
            ..options(policy, 16)
        };
        for (runner_options, kind) in [
            (options(policy, 1), CacheKind::Contiguous),
            (options(policy, 7), CacheKind::Contiguous),
            (options(policy, 64), CELLS),
            (options(policy, 5), CELLS),
            (flat, CacheKind::Contiguous),
        ] {
            let step = runner_options.max_step_tokens;
            let what = format!("{name}, {policy}, steps of {step}, {kind:?}");
            let mut runner = open(&model, &runner_options, kind);
            runner.sequence(0).feed(&text[..90], |_| true).unwrap();
            if kind == CELLS {
                runner.fork(0, 1).unwrap();
                runner.sequence(1).feed(&[7; 20], |_| true).unwrap();
                runner.fork_prefix(0, 2, 88).unwrap();
                runner.sequence(2).feed(&text[88..], |_| true).unwrap();
                runner.remove(1).unwrap();
                runner.compact().unwrap();
            }
            runner.sequence(0).feed(&text[90..], |_| true).unwrap();
            let found = bits(&runner, 0);
            assert_eq!(*expect.get_or_insert(found.clone()), found, "{what}");
            if kind == CELLS {
                assert_eq!(bits(&runner, 2), found, "{what}: a fork");
            }
            runner.rewind(0, 99).unwrap();
            runner.sequence(0).feed(&text[99..], |_| true).unwrap();
            assert_eq!(bits(&runner, 0), found, "{what}: a rewind");
        }
        // The sinks matter, and the reference sees the same.
        let plain = policy.replace("sinks 3", "").replace("sinks 2", "");
        let mut without = open(&model, &options(&plain, 16), CacheKind::Contiguous);
        without.sequence(0).feed(&text, |_| true).unwrap();
        assert_ne!(Some(bits(&without, 0)), expect, "{name}");
        let (reference, kind) = (Reference::new(), CacheKind::Contiguous);
        let options = options(policy, 16);
        let reference = BatchRunner::with_cache_kind(&model, &reference, &options, kind, 0);
        let mut reference = reference.unwrap();
        reference.sequence(0).feed(&text, |_| true).unwrap();
        let far = reference.logits(0).iter().zip(expect.unwrap());
        let far = far.map(|(a, b)| (a - f32::from_bits(b)).abs());
        assert!(far.fold(0.0, f32::max) < 0.05, "{name}");
    }
}

#[test]
fn caches_with_sinks_migrate_or_say_that_they_do_not() {
    let model = model("llama_plain");
    let cpu = Cpu::new().unwrap();
    let text = text(60);
    let to = |policy: &str| MigrationOptions {
        policy: Some(read_policy(policy).unwrap()),
        ..MigrationOptions::default()
    };
    // From all rows to sinks and windows. What the last layer sees changes no row.
    let last = model.facts().caches.len() - 1;
    let policy = format!("window 9 sinks 3 for {last}");
    for kind in [CacheKind::Contiguous, CELLS] {
        let mut moved = open(&model, &options("", 8), kind);
        moved.sequence(0).feed(&text, |_| true).unwrap();
        moved.migrate(&model, &cpu, &to(&policy)).unwrap();
        let mut own = open(&model, &options(&policy, 8), kind);
        own.sequence(0).feed(&text, |_| true).unwrap();
        assert_eq!(moved.planned_bytes(), own.planned_bytes());
        for runner in [&mut moved, &mut own] {
            runner.sequence(0).feed(&text[..20], |_| true).unwrap();
        }
        assert_eq!(bits(&moved, 0), bits(&own, 0), "{kind:?}");
    }

    let mut pool = open(&model, &options("others window 9 sinks 3", 8), CELLS);
    pool.sequence(0).feed(&text, |_| true).unwrap();
    pool.fork(0, 1).unwrap();
    let types = MigrationOptions {
        key_storage: Some(KvStorage::F32),
        value_storage: Some(KvStorage::F32),
        ..MigrationOptions::default()
    };
    pool.migrate(&model, &cpu, &types).unwrap();
    assert_eq!(pool.kv_policy().to_string(), "others window 9 sinks 3");
    for seq in [0, 1] {
        pool.sequence(seq).feed(&[5], |_| true).unwrap();
    }
    assert_eq!(bits(&pool, 0), bits(&pool, 1));
    pool.remove(1).unwrap();

    let before = bits(&pool, 0);
    let kind = MigrationOptions {
        kind: Some(CacheKind::Contiguous),
        ..MigrationOptions::default()
    };
    for to in [kind, to("others window 9")] {
        let error = pool.migrate(&model, &cpu, &to).unwrap_err().to_string();
        assert!(error.contains("the first and the latest rows"), "{error}");
    }
    assert_eq!(bits(&pool, 0), before);

    let file = std::env::temp_dir().join(format!("kvark-sinks-{}.kv", std::process::id()));
    let error = pool.save(&model, 0, &file, b"").unwrap_err().to_string();
    assert!(
        error.contains("layers with sinks cannot be saved"),
        "{error}"
    );
    assert!(!file.exists());
    let error = pool.enable_context_shift(2).unwrap_err().to_string();
    assert!(
        error.contains("layers with sinks cannot be shifted"),
        "{error}"
    );
    let mut alone = open(
        &model,
        &options("others window 9 sinks 3", 8),
        CacheKind::Contiguous,
    );
    alone.sequence(0).feed(&text, |_| true).unwrap();
    let error = alone.freeze(&model).err().unwrap().to_string();
    assert!(error.contains("cannot be frozen"), "{error}");
    for (policy, kind, part) in [
        ("others window 9 sinks 3", CacheKind::Tree, "use cells"),
        ("sinks 3 for 0", CELLS, "layer 0 has sinks and no window"),
        (
            "window 9 sinks 3 for 0; stream window 40",
            CELLS,
            "nor be a stream",
        ),
    ] {
        let options = options(policy, 8);
        let refused = BatchRunner::with_cache_kind(&model, &cpu, &options, kind, 0);
        let error = refused.err().unwrap().to_string();
        assert!(error.contains(part), "{policy}: {error}");
    }
}
