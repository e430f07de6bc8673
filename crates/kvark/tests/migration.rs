//! Migration: a runner whose cache becomes another one goes on as if it had always had it.

use kvark::backend::reference::Reference;
use kvark::cache::{KvStorage, MigrationOptions, QuantGroup, TuneOptions, read_policy, tune_kv};
use kvark::memory::{CacheKind, MemoryLimit};
use kvark::snapshot::Snapshot;
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions, RuntimeErrorKind};
use std::path::Path;

const CONTEXT: usize = 256;
const CELLS: CacheKind = CacheKind::Cells { sequences: 4 };

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), Some(CONTEXT)).unwrap()
}

fn options(storage: KvStorage) -> RunnerOptions {
    RunnerOptions {
        context: Some(CONTEXT),
        max_step_tokens: 16,
        key_storage: storage,
        value_storage: storage,
        state_interval: 8,
        memory: MemoryLimit::None,
        ..RunnerOptions::default()
    }
}

fn runner(model: &Model, storage: KvStorage, kind: CacheKind) -> BatchRunner {
    let cpu = Cpu::new().unwrap();
    BatchRunner::with_cache_kind(model, &cpu, &options(storage), kind, 0).unwrap()
}

/// The logits after these tokens in a run of their own.
fn cold(model: &Model, storage: KvStorage, tokens: &[u32]) -> Vec<f32> {
    let kind = CacheKind::of_one_sequence(model.facts());
    let mut runner = runner(model, storage, kind);
    runner.sequence(0).feed(tokens, |_| true).unwrap();
    runner.logits(0).to_vec()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let apart = apart.fold(0.0, f32::max);
    assert!(apart <= tolerance, "{name}: {apart} apart");
}

struct Noise(u64);

impl Noise {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(64) as u32).collect()
    }
}

fn to_kind(kind: CacheKind) -> MigrationOptions {
    MigrationOptions {
        kind: Some(kind),
        ..MigrationOptions::default()
    }
}

fn to_types(keys: KvStorage, values: KvStorage) -> MigrationOptions {
    MigrationOptions {
        key_storage: Some(keys),
        value_storage: Some(values),
        ..MigrationOptions::default()
    }
}

/// Random histories of steps, forks, rewinds, edits, evictions and migrations. Kinds change between tokens; types change to f32 and back, which
/// loses nothing; an edit computes what follows it again; an evicted sequence comes back from a snapshot. `KVARK_HISTORIES=N` runs N histories of each model instead of a few.
#[test]
fn histories_with_migrations_edits_and_evictions_have_the_bits_of_cold_runs() {
    let histories = std::env::var("KVARK_HISTORIES").ok();
    let histories = histories.map_or(12, |n| n.parse::<u64>().unwrap());
    let cpu = Cpu::new().unwrap();
    for name in ["llama_plain", "gemma3", "gemma2", "qwen35", "lfm2"] {
        let model = model(name);
        let has_states = matches!(name, "qwen35" | "lfm2");
        for seed in 0..histories {
            let noise = &mut Noise(seed * 31 + 7);
            let storage = [KvStorage::F16, KvStorage::BF16, KvStorage::F32][noise.below(3)];
            let mut runner = runner(&model, storage, CELLS);
            for _ in 0..14 {
                let seq = noise.below(3) as u32;
                let alone = (1..3).all(|seq| runner.tokens(seq).is_empty());
                match noise.below(10) {
                    8 if !has_states && !runner.tokens(seq).is_empty() => {
                        let old = runner.tokens(seq).to_vec();
                        let at = noise.below(old.len());
                        let end = at + noise.below(old.len() - at + 1);
                        let more = noise.below(6);
                        let new = [&old[..at], &noise.tokens(more), &old[end..]].concat();
                        let room = runner.can_extend(new.len()).unwrap();
                        if room && !new.is_empty() {
                            runner.splice(seq, &new, 1.0, |_| true).unwrap();
                            assert_eq!(runner.inexact(seq), None);
                        }
                    }
                    9 if !runner.tokens(seq).is_empty() => {
                        let whole = runner.snapshot(&model, seq, &[]).unwrap();
                        runner.remove(seq).unwrap();
                        runner.restore(&model, seq, &whole).unwrap();
                    }
                    0 if runner.tokens(1).is_empty() && runner.cache_kind() == "cells" => {
                        runner.fork(0, 1).unwrap();
                    }
                    1 if !runner.tokens(seq).is_empty() => {
                        let len = runner.tokens(seq).len();
                        let len = len.saturating_sub(noise.below(6));
                        if has_states || runner.restorable(seq, len).unwrap() == len {
                            runner.rewind(seq, len).unwrap();
                        }
                    }
                    2 if seq > 0 => runner.remove(seq).unwrap(),
                    3 | 4 if alone && !has_states => {
                        let kinds = [CacheKind::Contiguous, CacheKind::Tree, CELLS];
                        let to = to_kind(kinds[noise.below(3)]);
                        runner.migrate(&model, &cpu, &to).unwrap();
                    }
                    5 => {
                        for to in [KvStorage::F32, storage] {
                            runner.migrate(&model, &cpu, &to_types(to, to)).unwrap();
                        }
                    }
                    _ => {
                        let seq = if runner.cache_kind() == "cells" {
                            seq
                        } else {
                            0
                        };
                        let more = 1 + noise.below(12);
                        let tokens = noise.tokens(more);
                        if runner.can_extend(more).unwrap() {
                            runner.sequence(seq).feed(&tokens, |_| true).unwrap();
                        }
                    }
                }
            }
            for seq in 0..3 {
                if runner.tokens(seq).is_empty() {
                    continue;
                }
                let next = noise.tokens(1);
                runner.sequence(seq).feed(&next, |_| true).unwrap();
                let expected = cold(&model, storage, runner.tokens(seq));
                assert!(runner.logits(seq) == expected, "{name} {seed}: {seq}");
            }
        }
    }
}

/// Forks, retained prefixes and states survive a change of types, and the memory is that of a pool that had the new types from the start.
#[test]
fn a_pool_keeps_all_that_it_holds() {
    let cpu = Cpu::new().unwrap();
    let q8 = KvStorage::Q8(QuantGroup::G32);
    for name in ["llama_plain", "gemma3", "qwen35"] {
        let model = model(name);
        let noise = &mut Noise(3);
        let (trunk, own) = (noise.tokens(70), noise.tokens(20));
        let fill = |runner: &mut BatchRunner| {
            runner.sequence(0).feed(&trunk, |_| true).unwrap();
            runner.fork(0, 1).unwrap();
            runner.sequence(1).feed(&own, |_| true).unwrap();
            runner.retain(1).unwrap()
        };
        let mut moved = runner(&model, KvStorage::F32, CELLS);
        let prefix = fill(&mut moved);
        let report = moved.migrate(&model, &cpu, &to_types(q8, q8)).unwrap();
        let mut wanted = runner(&model, q8, CELLS);
        fill(&mut wanted);
        let bytes = |runner: &BatchRunner| runner.memory().unwrap().kv;
        assert_eq!(report.bytes[1], bytes(&moved), "{name}");
        assert!(report.bytes[1] < report.bytes[0], "{name}: {report:?}");
        assert_eq!(bytes(&moved), bytes(&wanted), "{name}");
        assert_eq!(moved.planned_bytes(), wanted.planned_bytes(), "{name}");
        assert_eq!(moved.cells_used().unwrap(), 90, "{name}: the fork shares");
        moved.remove(0).unwrap();
        moved.remove(1).unwrap();
        moved.fork_prefix(prefix, 2, 90).unwrap();
        let tokens = noise.tokens(3);
        for runner in [&mut moved, &mut wanted] {
            let seq = u32::from(runner.tokens(1).is_empty()) + 1;
            runner.sequence(seq).feed(&tokens, |_| true).unwrap();
        }
        assert_close(moved.logits(2), wanted.logits(1), 0.05, name);
    }
}

/// What the last tokens lose is measured, and nothing is lost where the type can hold all of it.
#[test]
fn a_migration_measures_what_it_changed() {
    let (model, cpu) = (model("gemma3"), Cpu::new().unwrap());
    let mut runner = runner(&model, KvStorage::F16, CELLS);
    let tokens = Noise(9).tokens(100);
    runner.sequence(0).feed(&tokens, |_| true).unwrap();
    let mut measure = |storage| {
        let to = MigrationOptions {
            measure: Some(0),
            ..to_types(storage, storage)
        };
        let report = runner.migrate(&model, &cpu, &to).unwrap();
        assert_eq!(runner.tokens(0), tokens);
        report.distance.unwrap()
    };
    let same = measure(KvStorage::F16);
    assert_eq!((same.mean_logprob, same.same_best), (0.0, same.tokens));
    let eight = measure(KvStorage::Q8(QuantGroup::G32));
    let four = measure(KvStorage::Q4(QuantGroup::G32));
    assert!(eight.mean_logprob > 0.0 && eight.mean_logprob < four.mean_logprob);
    assert_eq!(four.tokens, 16);
}

/// To another backend and back.
#[test]
fn a_cache_moves_to_another_device() {
    let (cpu, other) = (Cpu::new().unwrap(), Reference::new());
    for name in ["llama_plain", "gemma3", "qwen35"] {
        let model = model(name);
        let mut runner = runner(&model, KvStorage::F16, CELLS);
        let noise = &mut Noise(4);
        let tokens = noise.tokens(60);
        runner.sequence(0).feed(&tokens, |_| true).unwrap();
        runner.fork(0, 1).unwrap();
        let stay = MigrationOptions::default();
        runner.migrate(&model, &other, &stay).unwrap();
        let more = noise.tokens(5);
        runner.sequence(1).feed(&more, |_| true).unwrap();
        let all = [&tokens[..], &more].concat();
        let expected = cold(&model, KvStorage::F16, &all);
        assert_close(runner.logits(1), &expected, 1e-3, name);
        runner.migrate(&model, &cpu, &stay).unwrap();
        runner.sequence(0).feed(&more, |_| true).unwrap();
        assert!(runner.logits(0) == expected, "{name}: back, from the trunk");
    }
}

/// What cannot be migrated is named, and nothing changes.
#[test]
fn a_refused_migration_changes_nothing() {
    let cpu = Cpu::new().unwrap();
    let refused = |runner: &mut BatchRunner, model: &Model, to: &MigrationOptions| {
        let before = (
            runner.memory().unwrap(),
            runner.storage(),
            runner.cache_kind(),
        );
        let error = runner.migrate(model, &cpu, to).unwrap_err();
        let after = (
            runner.memory().unwrap(),
            runner.storage(),
            runner.cache_kind(),
        );
        assert_eq!(before, after);
        error
    };
    let plain = model("llama_plain");
    let mut pool = runner(&plain, KvStorage::F16, CELLS);
    let tokens = Noise(1).tokens(30);
    pool.sequence(0).feed(&tokens, |_| true).unwrap();
    pool.fork(0, 2).unwrap();
    let error = refused(&mut pool, &plain, &to_kind(CacheKind::Contiguous));
    let text = error.to_string();
    assert!(text.contains("sequence 2 holds tokens too"), "{text}");
    pool.remove(2).unwrap();
    pool.retain(0).unwrap();
    let text = refused(&mut pool, &plain, &to_kind(CacheKind::Tree)).to_string();
    assert!(text.contains("sequence 256 holds tokens too"), "{text}");

    let hybrid = model("qwen35");
    let mut runner = runner(&hybrid, KvStorage::F16, CELLS);
    let error = refused(&mut runner, &hybrid, &to_kind(CacheKind::Tree));
    assert!(
        matches!(error.kind(), RuntimeErrorKind::InvalidOptions(_)),
        "{error}"
    );

    let limited = RunnerOptions {
        memory: MemoryLimit::Bytes(pool.planned_bytes() as u64),
        ..options(KvStorage::F16)
    };
    let mut pool = BatchRunner::with_cache_kind(&plain, &cpu, &limited, CELLS, 0).unwrap();
    pool.sequence(0).feed(&tokens, |_| true).unwrap();
    let larger = to_types(KvStorage::F32, KvStorage::F32);
    let error = refused(&mut pool, &plain, &larger);
    assert!(
        matches!(error.kind(), RuntimeErrorKind::MemoryShortfall(_)),
        "{error}"
    );
    pool.sequence(0).feed(&[1], |_| true).unwrap();
    let all = [&tokens[..], &[1]].concat();
    assert!(pool.logits(0) == cold(&plain, KvStorage::F16, &all));
}

fn with_policy(model: &Model, policy: &str, backend: &dyn kvark::backend::Backend) -> BatchRunner {
    let options = RunnerOptions {
        kv_policy: read_policy(policy).unwrap(),
        ..options(KvStorage::F16)
    };
    BatchRunner::with_cache_kind(model, backend, &options, CELLS, 0).unwrap()
}

/// Layers with types of their own: the backends agree, a cache that migrates to them is as close, and a file keeps them.
#[test]
fn layers_have_types_of_their_own() {
    let (cpu, reference) = (Cpu::new().unwrap(), Reference::new());
    let file = std::env::temp_dir().join(format!("kvark-policy-{}.kvsnap", std::process::id()));
    for (name, policy) in [
        ("llama_plain", "layers 0 f32; others k=q8 v=q4"),
        ("gemma3", "layers 1 q8g64; others bf16"),
    ] {
        let model = model(name);
        let noise = &mut Noise(12);
        let (tokens, more) = (noise.tokens(60), noise.tokens(4));
        let mut own = with_policy(&model, policy, &cpu);
        let mut expected = with_policy(&model, policy, &reference);
        for runner in [&mut own, &mut expected] {
            runner.sequence(0).feed(&tokens, |_| true).unwrap();
        }
        assert_close(own.logits(0), expected.logits(0), 0.02, name);
        let plain = runner(&model, KvStorage::F16, CELLS);
        assert_ne!(own.planned_bytes(), plain.planned_bytes(), "{name}");

        own.save(&model, 0, &file, b"").unwrap();
        let saved = Snapshot::open(&file).unwrap();
        let mut restored = with_policy(&model, policy, &cpu);
        restored.restore(&model, 0, &saved).unwrap();
        for runner in [&mut own, &mut restored] {
            runner.sequence(0).feed(&more, |_| true).unwrap();
        }
        assert!(own.logits(0) == restored.logits(0), "{name}: restored");
        let error = runner(&model, KvStorage::F16, CELLS).restore(&model, 0, &saved);
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("q8") || text.contains("bf16") || text.contains("f32"),
            "{text}"
        );

        let mut moved = runner(&model, KvStorage::F16, CELLS);
        moved.sequence(0).feed(&tokens, |_| true).unwrap();
        let to = MigrationOptions {
            policy: Some(read_policy(policy).unwrap()),
            ..MigrationOptions::default()
        };
        moved.migrate(&model, &cpu, &to).unwrap();
        moved.sequence(0).feed(&more, |_| true).unwrap();
        assert_close(moved.logits(0), own.logits(0), 0.1, name);
        assert_eq!(moved.planned_bytes(), own.planned_bytes(), "{name}");
    }
    _ = std::fs::remove_file(&file);
}

/// A window of the policy is one of the model: rows that it does not see are released, and a sequence within it has the bits of one
/// without it.
#[test]
fn a_policy_narrows_windows() {
    let cpu = Cpu::new().unwrap();
    let model = model("llama_plain");
    let noise = &mut Noise(2);
    let (short, long) = (noise.tokens(24), noise.tokens(160));
    let mut narrow = with_policy(&model, "others window 24", &cpu);
    let mut plain = runner(&model, KvStorage::F16, CELLS);
    for runner in [&mut narrow, &mut plain] {
        runner.sequence(0).feed(&short, |_| true).unwrap();
    }
    assert!(narrow.logits(0) == plain.logits(0));
    for runner in [&mut narrow, &mut plain] {
        runner.sequence(0).feed(&long, |_| true).unwrap();
    }
    assert!(narrow.logits(0) != plain.logits(0));
    let kv = |runner: &BatchRunner| runner.memory().unwrap().kv;
    assert!(
        kv(&narrow) * 2 < kv(&plain),
        "{} of {}",
        kv(&narrow),
        kv(&plain)
    );
    // To a window, and not back: the rows are gone.
    let to = |policy: &str| MigrationOptions {
        policy: Some(read_policy(policy).unwrap()),
        ..MigrationOptions::default()
    };
    plain
        .migrate(&model, &cpu, &to("others window 24"))
        .unwrap();
    assert!(kv(&plain) <= kv(&narrow));
    let next = noise.tokens(1);
    let before = plain.tokens(0).len();
    plain.sequence(0).feed(&next, |_| true).unwrap();
    let error = plain.migrate(&model, &cpu, &to("")).unwrap_err();
    assert!(error.to_string().contains("rows from position"), "{error}");
    assert_eq!(plain.tokens(0).len(), before + 1);
    plain.sequence(0).feed(&next, |_| true).unwrap();
    for (policy, part) in [
        ("layers 40 q8", "no layer 40"),
        ("others q8; others q4", "both set"),
    ] {
        let error = plain.migrate(&model, &cpu, &to(policy)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Types that are chosen on a text fit the budget, and cost less than the smallest type everywhere.
#[test]
fn types_are_tuned_to_a_budget() {
    let (model, cpu) = (model("gemma3"), Cpu::new().unwrap());
    let options = RunnerOptions {
        max_step_tokens: 32,
        max_logit_rows: 32,
        ..options(KvStorage::F16)
    };
    let text = Noise(5).tokens(120);
    let mut runner = Runner::new(&model, &cpu, &options).unwrap();
    let full = runner.planned_kv_bytes().unwrap();
    let types = vec![
        KvStorage::Q8(QuantGroup::G32),
        KvStorage::Q4(QuantGroup::G32),
    ];
    let mut tune = |budget, limit| {
        let options = TuneOptions {
            budget,
            types: types.clone(),
        };
        tune_kv(&mut runner, (&model, &cpu), &text, &options, |done, _| {
            done < limit
        })
    };
    let tuned = tune(full * 9 / 10, usize::MAX).unwrap().unwrap();
    let last = tuned.curve.last().unwrap();
    assert!(last.bytes <= full * 9 / 10, "{last:?} of {full}");
    let (four, worst) = tuned.uniform.last().unwrap();
    assert_eq!(*four, types[1]);
    assert!(last.mean_logprob < worst.mean_logprob, "{tuned:?}");
    let policy = tuned.policy.to_string();
    let again = with_policy(&model, &policy, &cpu);
    assert_eq!(again.kv_policy().to_string(), policy);
    assert!(tune(full, 3).unwrap().is_none(), "cancelled");
    let error = tune(full / 20, usize::MAX).unwrap_err();
    assert!(error.to_string().contains("the budget"), "{error}");
}
