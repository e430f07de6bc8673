//! Splices: a text is edited in its middle, and the rows of the tokens after it are moved.

use kvark::engine::{Engine, MovedTokens, Request, RequestEvent, RequestOutput, SchedulerOptions};
use kvark::generate::{Approximation, GenerateOptions};
use kvark::memory::{CacheKind, MemoryLimit};
use kvark::{BatchRunner, Cpu, Model, RunnerOptions, RuntimeErrorKind};
use std::path::Path;
use std::sync::Arc;

const CONTEXT: usize = 256;

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), Some(CONTEXT)).unwrap()
}

fn options() -> RunnerOptions {
    RunnerOptions {
        context: Some(CONTEXT),
        max_step_tokens: 16,
        memory: MemoryLimit::None,
        ..RunnerOptions::default()
    }
}

fn runner(model: &Model, kind: CacheKind) -> BatchRunner {
    BatchRunner::with_cache_kind(model, &Cpu::new().unwrap(), &options(), kind, 0).unwrap()
}

fn text(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + i / 5) % 60).collect()
}

fn bits(runner: &BatchRunner) -> Vec<u32> {
    runner.logits(0).iter().map(|x| x.to_bits()).collect()
}

fn feed(runner: &mut BatchRunner, seq: u32, tokens: &[u32]) -> Vec<u32> {
    runner.sequence(seq).feed(tokens, |_| true).unwrap();
    runner.logits(seq).iter().map(|x| x.to_bits()).collect()
}

const KINDS: [CacheKind; 3] = [
    CacheKind::Cells { sequences: 4 },
    CacheKind::Contiguous,
    CacheKind::Tree,
];

/// With all tokens after the edit computed again, the sequence has the bits of a cold run. Rows that are moved have those of a context shift,
/// in every kind of cache.
#[test]
fn a_splice_lies_between_a_cold_run_and_a_shift() {
    for name in ["llama_plain", "qwen3", "gemma3", "deepseek2_lite"] {
        let model = model(name);
        let old = text(60);
        let cut = [&old[..8], &old[28..]].concat();
        let replaced = [&old[..8], &[50, 51, 52, 53], &old[28..]].concat();
        let mut outputs = vec![];
        for kind in KINDS {
            for new in [&cut, &replaced] {
                let mut edited = runner(&model, kind);
                feed(&mut edited, 0, &old);
                let report = edited.splice(0, new, 1.0, |_| true).unwrap();
                // Windows have lost the rows that the edit's place sees.
                let kept = if name == "gemma3" { 0 } else { 8 };
                assert_eq!((report.kept, report.moved), (kept, 0), "{name}");
                assert_eq!(edited.tokens(0), &new[..]);
                assert_eq!(edited.inexact(0), None, "{name}");
                let mut cold = runner(&model, kind);
                let expected = feed(&mut cold, 0, new);
                assert!(bits(&edited) == expected, "{name}: the outputs are there");
                let next = [&mut edited, &mut cold].map(|runner| feed(runner, 0, &[7]));
                assert!(next[0] == next[1], "{name}, {kind:?}: computed again");
            }
            let mut moved = runner(&model, kind);
            feed(&mut moved, 0, &old);
            let report = moved.splice(0, &cut, 0.0, |_| true).unwrap();
            assert_eq!(report.moved, 31, "{name}: all but the last");
            let inexact = moved.inexact(0).unwrap();
            assert_eq!((inexact.from, inexact.cause), (8, Approximation::Moved));
            outputs.push([bits(&moved), feed(&mut moved, 0, &[7])]);
        }
        assert!(
            outputs.iter().all(|found| *found == outputs[0]),
            "{name}: kinds"
        );
        if name == "gemma3" {
            continue;
        }
        let mut shifted = runner(&model, KINDS[0]);
        shifted.enable_context_shift(8).unwrap();
        feed(&mut shifted, 0, &old);
        // A shift drops the older half of what it does not keep.
        let dropped = shifted.shift_context(0).unwrap().unwrap().dropped;
        let mut moved = runner(&model, KINDS[0]);
        feed(&mut moved, 0, &old);
        moved.fork_prefix(0, 1, 8).unwrap();
        moved.append_rows_of(0, 8 + dropped..60, 1).unwrap();
        assert_eq!(moved.tokens(1), shifted.tokens(0), "{name}");
        let next = [feed(&mut moved, 1, &[7]), feed(&mut shifted, 0, &[7])];
        assert!(next[0] == next[1], "{name}: shifted");
    }
}

/// A longer text in the place of a shorter one moves the rows up, in a pool where another branch shares them and must not change.
#[test]
fn rows_move_up_and_other_branches_keep_theirs() {
    for name in ["llama_plain", "gemma3"] {
        let model = model(name);
        let old = text(80);
        let new = [&old[..10], &text(30)[5..], &old[14..]].concat();
        let mut pool = runner(&model, KINDS[0]);
        feed(&mut pool, 0, &old);
        pool.fork(0, 1).unwrap();
        let report = pool.splice(0, &new, 0.15, |_| true).unwrap();
        let behind = 80 - 14;
        let again = 25 + (behind * 15usize).div_ceil(100);
        // The last token is computed too.
        assert_eq!(report.kept + report.computed, 10 + again + 1, "{name}");
        assert_eq!(report.kept + report.computed + report.moved, new.len());
        assert_eq!(pool.tokens(0), &new[..]);
        let mut cold = runner(&model, KINDS[0]);
        feed(&mut cold, 0, &old);
        let next = [&mut pool, &mut cold].map(|runner| {
            let seq = u32::from(runner.tokens(0) != old);
            feed(runner, seq, &[3, 4])
        });
        assert!(next[0] == next[1], "{name}: the other branch");
        if name == "gemma3" {
            continue;
        }
        // A fork of the exact part is exact; a fork beyond it is not.
        pool.fork_prefix(0, 2, 12).unwrap();
        assert_eq!(pool.inexact(2), None);
        pool.fork_prefix(0, 3, new.len()).unwrap();
        assert_eq!(pool.inexact(3), pool.inexact(0));
        pool.rewind(3, 30).unwrap();
        assert_eq!(pool.inexact(3), None, "what was moved is gone");
        let one = [feed(&mut pool, 3, &[9]), {
            let mut cold = runner(&model, KINDS[0]);
            feed(&mut cold, 0, &new[..30]);
            feed(&mut cold, 0, &[9])
        }];
        assert!(one[0] == one[1], "{name}: exact again");
    }
}

#[test]
fn models_whose_rows_cannot_be_moved_say_so() {
    for (name, reason) in [
        ("qwen35", "cannot be moved to other positions"),
        ("gpt2", "uses positions"),
    ] {
        let model = model(name);
        let kind = CacheKind::Cells { sequences: 2 };
        let mut pool = runner(&model, kind);
        let old = text(40);
        feed(&mut pool, 0, &old);
        let error = pool.check_splice().unwrap_err().to_string();
        assert!(error.contains(reason), "{name}: {error}");
        let new = [&old[..5], &old[10..]].concat();
        assert!(pool.splice(0, &new, 0.5, |_| true).is_err());
        assert_eq!(pool.tokens(0), old, "{name}: unchanged");
    }
}

fn output(engine: &Engine, request: Request) -> RequestOutput {
    for event in engine.handle().generate(request).unwrap() {
        match event {
            RequestEvent::Finished(output) => return *output,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("no end");
}

fn request(prompt: &[u32]) -> Request {
    Request {
        options: GenerateOptions {
            max_tokens: Some(4),
            ignore_eos: true,
            ..GenerateOptions::default()
        },
        ..Request::new(prompt.to_vec())
    }
}

/// Moved rows serve the requests that allow it, and nobody else, also when they have left the pool.
#[test]
fn an_engine_keeps_moved_rows_apart() {
    let model = Arc::new(model("llama_plain"));
    let runner = RunnerOptions {
        pool_cells: Some(600),
        ..options()
    };
    let start = || {
        let cpu = Cpu::new().unwrap();
        Engine::start(model.clone(), &cpu, &runner, &SchedulerOptions::default()).unwrap()
    };
    let (engine, cold) = (start(), start());
    let old = text(200);
    output(&engine, request(&old));
    let new = [&old[..20], &[1, 2, 3], &old[60..]].concat();
    let moved = MovedTokens {
        text: old[..199].to_vec(),
        from: 81,
        at: 44,
    };
    let approximate = || Request {
        approximate: true,
        ..request(&new)
    };
    let edited = output(
        &engine,
        Request {
            moved: Some(moved.clone()),
            ..approximate()
        },
    );
    assert_eq!(edited.cache.approximate_tokens, 118);
    assert_eq!(edited.cache.cached_tokens, 20 + 118);
    assert_eq!(edited.timings.prompt_tokens, 24 + 1, "computed");
    let again = output(&engine, approximate());
    assert_eq!(again.cache.cached_tokens, new.len() - 1);
    assert_eq!(again.cache.approximate_tokens, new.len() - 1 - 44);
    assert_eq!(again.tokens, edited.tokens);
    let exact = output(&engine, request(&new));
    assert_eq!(exact.cache.cached_tokens, 44, "the computed part");
    assert_eq!(exact.cache.approximate_tokens, 0);
    assert_eq!(exact.tokens, output(&cold, request(&new)).tokens);
    // Whoever allows an approximation gets the exact rows where there are some.
    let best = output(&engine, approximate());
    assert_eq!(best.cache.cached_tokens, new.len() - 1);
    let wrong = MovedTokens { at: 45, ..moved };
    let refused = engine.handle().generate(Request {
        moved: Some(wrong),
        ..request(&new)
    });
    let refused = refused.err().unwrap();
    assert!(
        matches!(refused.kind(), RuntimeErrorKind::InvalidOptions(_)),
        "{refused}"
    );
}
