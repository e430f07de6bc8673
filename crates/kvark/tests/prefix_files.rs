//! Prefix files: every kind of cache that stands on one gives the bits of a cold run, and a file that does not fit is refused.

mod common;

use common::{Temporary, bits};
use kvark::backend::{Backend, reference::Reference};
use kvark::cache::{KvStorage, MigrationOptions};
use kvark::engine::{CacheSource, Engine, Request, RequestEvent, RequestOutput, SchedulerOptions};
use kvark::generate::GenerateOptions;
use kvark::memory::CacheKind;
use kvark::snapshot::{PrefixFile, Snapshot};
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions};
use std::path::Path;
use std::sync::Arc;

/// A flat model, one with a window in every layer, two with both kinds of layers, one whose layers share caches, and three with
/// recurrent layers.
const MODELS: [&str; 8] = [
    "llama_plain",
    "mistral",
    "gemma2",
    "gemma3",
    "gemma4",
    "lfm2",
    "qwen35",
    "granitehybrid",
];
const STORAGE: [&str; 6] = ["f32", "f16", "bf16", "f8_e4m3", "q8", "q4"];

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), Some(64)).unwrap()
}

fn has_states(model: &Model) -> bool {
    let mut layers = model.facts().caches.iter();
    layers.any(kvark::cache::LayerConfig::is_state)
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + i / 5) % 60).collect()
}

fn options(storage: &str, batch: usize) -> RunnerOptions {
    let storage = KvStorage::from_name(storage).unwrap();
    RunnerOptions {
        context: Some(64),
        max_step_tokens: batch,
        key_storage: storage,
        value_storage: storage,
        ..RunnerOptions::default()
    }
}

fn kinds(model: &Model) -> Vec<CacheKind> {
    let cells = CacheKind::Cells { sequences: 3 };
    match has_states(model) {
        true => vec![cells],
        false => vec![CacheKind::Contiguous, cells, CacheKind::Tree],
    }
}

/// Writes the first tokens of a text to a prefix file.
fn build(model: &Model, options: &RunnerOptions, tokens: &[u32], file: &Temporary) -> PrefixFile {
    let mut runner = Runner::new(model, &Cpu::new().unwrap(), options).unwrap();
    runner.feed(tokens, |_| true).unwrap();
    runner.save_prefix(model, 0, &file.0, b"notes").unwrap();
    let opened = PrefixFile::open(&file.0).unwrap();
    assert_eq!((opened.tokens(), opened.notes()), (tokens, &b"notes"[..]));
    assert!(PrefixFile::is_at(&file.0).unwrap() && !Snapshot::is_at(&file.0).unwrap());
    opened
}

/// A runner whose cache stands on a file.
fn standing(
    model: &Model,
    backend: &dyn Backend,
    file: &PrefixFile,
    options: &RunnerOptions,
    kind: CacheKind,
) -> BatchRunner {
    let options = RunnerOptions {
        prefix: Some(file.shared(model, backend, options).unwrap()),
        ..options.clone()
    };
    BatchRunner::with_cache_kind(model, backend, &options, kind, 4).unwrap()
}

#[test]
fn every_kind_of_cache_goes_on_with_the_bits_of_a_cold_run() {
    let file = Temporary::new("kinds");
    let cpu = Cpu::new().unwrap();
    for name in MODELS {
        let model = model(name);
        let text = tokens(60);
        for storage in STORAGE {
            let built = options(storage, 4);
            let mut cold = Runner::new(&model, &cpu, &built).unwrap();
            cold.feed(&text[..41], |_| true).unwrap();
            let expect = bits(&mut cold, &text[41..]);
            let prefix = build(&model, &built, &text[..41], &file);
            for kind in kinds(&model) {
                // Other rings, another context and storage that is allocated at once.
                for (batch, context, preallocate) in [(4, 64, false), (16, 61, true), (1, 64, true)]
                {
                    let options = RunnerOptions {
                        context: Some(context),
                        preallocate,
                        ..options(storage, batch)
                    };
                    let what = format!("{name}, {storage}, {kind:?}, steps of {batch}");
                    let mut runner = standing(&model, &cpu, &prefix, &options, kind);
                    assert_eq!(runner.begin_with_prefix(0).unwrap(), 41);
                    assert_eq!(runner.tokens(0), &text[..41], "{what}");
                    let found = bits(runner.sequence(0), &text[41..]);
                    assert!(found == expect, "{what}");
                    // Back to the end of the prefix, if rings and states allow it, and on with other steps.
                    if runner.restorable(0, 41).unwrap() < 41 {
                        continue;
                    }
                    runner.rewind(0, 41).unwrap();
                    runner.sequence(0).feed(&text[41..50], |_| true).unwrap();
                    assert!(
                        bits(runner.sequence(0), &text[50..]) == expect[9..],
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn sequences_of_a_pool_share_the_prefix_and_others_do_without() {
    let file = Temporary::new("pool");
    let cpu = Cpu::new().unwrap();
    for name in MODELS {
        let model = model(name);
        let options = RunnerOptions {
            pool_cells: Some(256),
            ..options("f16", 8)
        };
        let text = tokens(60);
        let prefix = build(&model, &options, &text[..30], &file);
        let mut pool = standing(
            &model,
            &cpu,
            &prefix,
            &options,
            CacheKind::Cells { sequences: 3 },
        );
        let before = pool.cells_used().unwrap();
        assert_eq!(before, 30);
        let cold = |tokens: &[u32], more: &[u32]| {
            let mut runner = Runner::new(&model, &cpu, &options).unwrap();
            runner.feed(tokens, |_| true).unwrap();
            bits(&mut runner, more)
        };
        for seq in [0, 1] {
            pool.begin_with_prefix(seq).unwrap();
        }
        assert_eq!(pool.cells_used().unwrap(), before, "forks take no cells");
        let tails = [&text[30..40], &text[45..55]];
        for (seq, tail) in (0..).zip(tails) {
            assert!(
                bits(pool.sequence(seq), tail) == cold(&text[..30], tail),
                "{name}"
            );
        }
        // One that has nothing in common with the prefix, and a compaction between steps.
        pool.sequence(2).feed(&text[50..58], |_| true).unwrap();
        pool.remove(0).unwrap();
        pool.compact().unwrap();
        assert!(
            bits(pool.sequence(2), &text[..4]) == cold(&text[50..58], &text[..4]),
            "{name}"
        );
        let on = [&text[..30], tails[1]].concat();
        assert!(
            bits(pool.sequence(1), &text[..4]) == cold(&on, &text[..4]),
            "{name}"
        );
        // What a snapshot holds goes to cells of its own.
        let saved = Temporary::new("pool-saved");
        pool.save(&model, 1, &saved.0, b"").unwrap();
        let snapshot = Snapshot::open(&saved.0).unwrap();
        pool.remove(1).unwrap();
        pool.restore(&model, 1, &snapshot).unwrap();
        let on = [&on, &text[..4]].concat();
        assert!(
            bits(pool.sequence(1), &text[4..8]) == cold(&on, &text[4..8]),
            "{name}"
        );
        let prefix = pool.prefix().unwrap();
        let error = pool.release(prefix).unwrap_err();
        assert!(
            error.to_string().contains("30 tokens are a shared prefix"),
            "{error}"
        );
    }
}

#[test]
fn a_prefix_stands_on_another_one() {
    let (first, second) = (Temporary::new("first"), Temporary::new("second"));
    let cpu = Cpu::new().unwrap();
    for name in MODELS {
        let model = model(name);
        let options = options("q8", 8);
        let text = tokens(60);
        let base = build(&model, &options, &text[..20], &first);
        let kind = CacheKind::of_one_sequence(model.facts());
        let mut on = standing(&model, &cpu, &base, &options, kind);
        on.begin_with_prefix(0).unwrap();
        on.sequence(0).feed(&text[20..45], |_| true).unwrap();
        on.save_prefix(&model, 0, &second.0, b"").unwrap();
        let nested = PrefixFile::open(&second.0).unwrap();
        assert_eq!(nested.tokens(), &text[..45]);
        // The same rows as of one that was built at once.
        let direct = Temporary::new("direct");
        build(&model, &options, &text[..45], &direct);
        let mut runner = standing(&model, &cpu, &nested, &options, kind);
        runner.begin_with_prefix(0).unwrap();
        let mut cold = Runner::new(&model, &cpu, &options).unwrap();
        cold.feed(&text[..45], |_| true).unwrap();
        let expect = bits(&mut cold, &text[45..]);
        assert!(bits(runner.sequence(0), &text[45..]) == expect, "{name}");
    }
}

#[test]
fn a_migration_takes_the_rows_of_the_prefix_along() {
    let file = Temporary::new("migrated");
    let cpu = Cpu::new().unwrap();
    for name in ["llama_plain", "gemma3", "lfm2"] {
        let model = model(name);
        let options = options("f16", 8);
        let text = tokens(60);
        let prefix = build(&model, &options, &text[..30], &file);
        let mut cold = Runner::new(&model, &cpu, &options).unwrap();
        cold.feed(&text[..35], |_| true).unwrap();
        let expect = bits(&mut cold, &text[35..]);
        for (from, to) in kinds(&model)
            .into_iter()
            .flat_map(|from| kinds(&model).into_iter().map(move |to| (from, to)))
        {
            let mut runner = standing(&model, &cpu, &prefix, &options, from);
            runner.begin_with_prefix(0).unwrap();
            runner.sequence(0).feed(&text[30..35], |_| true).unwrap();
            let options = MigrationOptions {
                kind: Some(to),
                ..MigrationOptions::default()
            };
            runner.migrate(&model, &cpu, &options).unwrap();
            assert_eq!(runner.prefix(), None);
            runner.compact().unwrap();
            let what = format!("{name}: {from:?} to {to:?}");
            assert!(bits(runner.sequence(0), &text[35..]) == expect, "{what}");
            // The rows are the runner's own now.
            runner.remove(0).unwrap();
            assert!(runner.tokens(0).is_empty(), "{what}");
            if from == to && matches!(from, CacheKind::Cells { .. }) {
                runner.release(kvark::cache::MAX_SEQUENCES).unwrap();
                assert_eq!(runner.cells_used().unwrap(), 0);
            }
        }
    }
}

#[test]
fn a_backend_that_copies_the_rows_computes_the_same() {
    let file = Temporary::new("reference");
    let (cpu, reference) = (Cpu::new().unwrap(), Reference::new());
    for name in ["llama_plain", "gemma3", "lfm2"] {
        let model = model(name);
        let options = options("f16", 8);
        let text = tokens(40);
        let prefix = build(&model, &options, &text[..30], &file);
        for kind in kinds(&model) {
            let mut logits = vec![];
            for backend in [&cpu as &dyn Backend, &reference] {
                let mut runner = standing(&model, backend, &prefix, &options, kind);
                runner.begin_with_prefix(0).unwrap();
                runner.sequence(0).feed(&text[30..], |_| true).unwrap();
                logits.push(runner.logits(0).to_vec());
            }
            let apart = logits[0].iter().zip(&logits[1]).map(|(a, b)| (a - b).abs());
            let most = apart.fold(0.0, f32::max);
            assert!(most < 1e-2, "{name}, {kind:?}: {most}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let file = Temporary::new("refused");
    let cpu = Cpu::new().unwrap();
    let (own, other) = (model("llama_plain"), model("gemma3"));
    let built = options("f16", 8);
    let prefix = build(&own, &built, &tokens(40), &file);
    let name = file.0.display().to_string();
    let refused = |model: &Model, options: &RunnerOptions| {
        let error = prefix.shared(model, &cpu, options).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(&name) && !error.contains('\n'), "{error}");
        error
    };
    assert!(refused(&other, &built).contains("another model"));
    let error = refused(&own, &options("q8", 8));
    assert!(
        error.contains("its keys are f16") && error.contains("stores q8"),
        "{error}"
    );
    let short = RunnerOptions {
        context: Some(40),
        prefix: Some(prefix.shared(&own, &cpu, &built).unwrap()),
        ..built.clone()
    };
    let kind = CacheKind::Contiguous;
    let error = BatchRunner::with_cache_kind(&own, &cpu, &short, kind, 0)
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("has no room after its 40"),
        "{error}"
    );
    // A snapshot is no prefix, and a prefix no snapshot.
    let error = Snapshot::open(&file.0).unwrap_err().to_string();
    assert!(error.contains("not a kvark snapshot"), "{error}");
    let saved = Temporary::new("refused-snapshot");
    let mut runner = Runner::new(&own, &cpu, &built).unwrap();
    runner.feed(&tokens(9), |_| true).unwrap();
    runner.save(&own, &saved.0, b"").unwrap();
    let error = PrefixFile::open(&saved.0).unwrap_err().to_string();
    assert!(error.contains("not a kvark prefix"), "{error}");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let file = Temporary::new("flips");
    for name in ["gemma3", "lfm2"] {
        let model = model(name);
        build(&model, &options("f16", 8), &tokens(40), &file);
        let whole = std::fs::read(&file.0).unwrap();
        let parse = |bytes: &[u8]| PrefixFile::parse(kvark::inference::Bytes::from(bytes));
        assert!(parse(&whole).is_ok());
        let step = (whole.len() / 3000).max(1) | 1;
        for at in (0..500).chain((500..whole.len()).step_by(step)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(parse(&bytes).is_err(), "{name}: byte {at}");
            assert!(parse(&whole[..at]).is_err(), "{name}: cut at {at}");
        }
    }
}

fn finished(engine: &Engine, prompt: &[u32]) -> RequestOutput {
    let request = Request {
        options: GenerateOptions {
            max_tokens: Some(4),
            ignore_eos: true,
            ..GenerateOptions::default()
        },
        ..Request::new(prompt.to_vec())
    };
    for event in engine.handle().generate(request).unwrap() {
        match event {
            RequestEvent::Finished(output) => return *output,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("the events ended without an end");
}

#[test]
fn an_engine_keeps_the_prefix_and_reuses_it() {
    let file = Temporary::new("engine");
    let cpu = Cpu::new().unwrap();
    for name in ["llama_plain", "gemma3", "lfm2"] {
        let model = Arc::new(model(name));
        let options = RunnerOptions {
            pool_cells: Some(96),
            ..options("f16", 16)
        };
        let text = tokens(60);
        let prefix = build(&model, &options, &text[..30], &file);
        let start = |options: &RunnerOptions| {
            let scheduler = SchedulerOptions::default();
            Engine::start(model.clone(), &cpu, options, &scheduler).unwrap()
        };
        let cold = start(&options);
        let warm = start(&RunnerOptions {
            prefix: Some(prefix.shared(&model, &cpu, &options).unwrap()),
            ..options
        });
        // More requests than the pool has cells for: what they leave is evicted, and the prefix stays.
        for round in 0..6 {
            let prompt = [&text[..30], &[round, 7, 9], &text[30..40 + round as usize]].concat();
            let expect = finished(&cold, &prompt);
            let output = finished(&warm, &prompt);
            assert_eq!(output.tokens, expect.tokens, "{name}");
            assert!(
                output.cache.cached_tokens >= 30,
                "{name}: {:?}",
                output.cache
            );
            assert_eq!(output.cache.source, CacheSource::Memory);
            let apart = [&[11, 12], &text[40..]].concat();
            assert_eq!(
                finished(&warm, &apart).tokens,
                finished(&cold, &apart).tokens
            );
        }
        warm.handle().clear_prefixes().unwrap();
        let again = finished(&warm, &[&text[..30], &[5][..]].concat());
        assert_eq!(again.cache.cached_tokens, 30, "{name}");
    }
}
