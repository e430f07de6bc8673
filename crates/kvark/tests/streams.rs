//! Streams: sequences of any length in a cache of constant size.

use kvark::cache::{KvStorage, MigrationOptions, read_policy};
use kvark::engine::{Engine, Request, RequestEvent, SchedulerOptions};
use kvark::generate::{GenerateOptions, Sampler, SamplerOptions, Sequence};
use kvark::memory::CacheKind;
use kvark::{BatchRunner, Cpu, Model, RunnerOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WINDOW: usize = 24;
const SINKS: usize = 3;
/// An eighth of the window without its sinks.
const STEP: usize = 2;

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    folder.join(format!("{name}.gguf"))
}

fn model(name: &str) -> Model {
    Model::open(&path(name), Some(64)).unwrap()
}

fn text(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + i / 5) % 60).collect()
}

fn options(step: usize, storage: &str) -> RunnerOptions {
    let storage = KvStorage::from_name(storage).unwrap();
    RunnerOptions {
        max_step_tokens: step,
        key_storage: storage,
        value_storage: storage,
        kv_policy: read_policy("stream window 24 sinks 3").unwrap(),
        ..RunnerOptions::default()
    }
}

fn open(model: &Model, options: &RunnerOptions, kind: CacheKind) -> BatchRunner {
    let cpu = Cpu::new().unwrap();
    BatchRunner::with_cache_kind(model, &cpu, options, kind, 0).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_stream_does_not_depend_on_its_steps_or_its_cache() {
    let cells = CacheKind::Cells { sequences: 1 };
    for name in ["llama_plain", "gemma3", "phi3_longrope", "deepseek2_lite"] {
        let model = model(name);
        for storage in ["f16", "q8"] {
            let text = text(150);
            let mut expect = None;
            for (step, kind) in [
                (1, CacheKind::Contiguous),
                (5, CacheKind::Contiguous),
                (64, CacheKind::Contiguous),
                (7, cells),
                (64, CacheKind::Tree),
            ] {
                let what = format!("{name} with {storage}, steps of {step}, {kind:?}");
                let mut runner = open(&model, &options(step, storage), kind);
                assert_eq!(runner.capacity().unwrap(), WINDOW, "{what}");
                let mut sequence = runner.sequence(0);
                let (begin, end) = text.split_at(40);
                sequence.feed(begin, |_| true).unwrap();
                let bytes = sequence.memory().unwrap().kv;
                for part in end.chunks(33) {
                    sequence.feed(part, |_| true).unwrap();
                    assert!(sequence.tokens().len() <= WINDOW, "{what}");
                }
                assert_eq!(sequence.memory().unwrap().kv, bytes, "{what}");
                // The window was full after token 24, and lost a step of tokens whenever it was again.
                let dropped = (text.len() - WINDOW).div_ceil(STEP) * STEP;
                let left = [&text[..SINKS], &text[SINKS + dropped..]].concat();
                assert_eq!(sequence.tokens(), left, "{what}");
                let found = bits(sequence.logits());
                assert_eq!(*expect.get_or_insert(found.clone()), found, "{what}");
            }
        }
    }
}

#[test]
fn scores_and_generations_are_streams_too() {
    let model = Arc::new(model("llama_plain"));
    let text = text(100);
    let cpu = Cpu::new().unwrap();
    let mut one = kvark::Runner::new(&model, &cpu, &options(1, "f16")).unwrap();
    let mut logprobs = vec![];
    for pair in text.windows(2) {
        one.feed(&pair[..1], |_| true).unwrap();
        let logits = one.logits();
        logprobs.push(runtime::log_softmax_at(logits, pair[1] as usize));
    }
    let mut runner = kvark::Runner::new(&model, &cpu, &options(16, "f16")).unwrap();
    let score = runner.score(&text, |_| true).unwrap();
    assert_eq!(score.logprob, logprobs);
    let parts: Vec<(usize, f64)> = score.segments(40).collect();
    assert_eq!(
        parts.iter().map(|part| part.0).collect::<Vec<_>>(),
        [40, 40, 19]
    );
    let sum: f64 = parts.iter().map(|(n, nll)| *n as f64 * nll).sum();
    assert!((sum / 99.0 - score.nll()).abs() < 1e-12);
    let error = runner.score_windows(&text, 8, None, |_| true).unwrap_err();
    assert!(error.to_string().contains("needs no stride"), "{error}");

    // A generation, after a prompt that is longer than the window, in a runner and in the engine.
    let limits = GenerateOptions {
        max_tokens: Some(70),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let greedy = || SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    };
    let mut expect = vec![];
    for (step, kind) in [
        (16, CacheKind::Contiguous),
        (5, CacheKind::Cells { sequences: 1 }),
    ] {
        let mut runner = open(&model, &options(step, "f16"), kind);
        let sequence = Sequence::new(0, &text[..], Sampler::new(greedy()), &limits);
        let output = runner
            .generate(&model, vec![sequence], |_, _| true)
            .unwrap();
        assert_eq!(output[0].tokens.len(), 70);
        match expect.is_empty() {
            true => expect = output[0].tokens.clone(),
            false => assert_eq!(output[0].tokens, expect),
        }
    }
    let options = RunnerOptions {
        pool_cells: Some(3 * WINDOW),
        ..options(16, "f16")
    };
    let engine =
        Engine::start(model.clone(), &cpu, &options, &SchedulerOptions::default()).unwrap();
    let request = || Request {
        sampling: greedy(),
        options: limits.clone(),
        ..Request::new(text.clone())
    };
    let running: Vec<_> = (0..2)
        .map(|_| engine.handle().generate(request()).unwrap())
        .collect();
    for events in running {
        let mut ended = false;
        for event in events {
            match event {
                RequestEvent::Finished(end) => {
                    assert_eq!(end.tokens, expect);
                    ended = true;
                }
                RequestEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        assert!(ended);
    }
}

#[test]
fn streams_fork_rewind_and_migrate() {
    let model = model("llama_plain");
    let wide = RunnerOptions {
        context: Some(3 * WINDOW),
        ..options(16, "f16")
    };
    let cpu = Cpu::new().unwrap();
    let mut runner = open(&model, &wide, CacheKind::Cells { sequences: 3 });
    assert_eq!(runner.sequence_limit().unwrap(), WINDOW);
    let text = text(80);
    runner.sequence(0).feed(&text[..50], |_| true).unwrap();
    runner.fork(0, 1).unwrap();
    runner.sequence(1).feed(&text[60..], |_| true).unwrap();
    runner.sequence(0).feed(&text[50..], |_| true).unwrap();
    let mut alone = open(&model, &options(16, "f16"), CacheKind::Contiguous);
    alone.sequence(0).feed(&text, |_| true).unwrap();
    assert_eq!(bits(runner.logits(0)), bits(alone.logits(0)));
    // Back by the tokens since the last shift, and on with the same ones.
    let len = alone.tokens(0).len();
    alone.rewind(0, len - STEP).unwrap();
    alone
        .sequence(0)
        .feed(&text[text.len() - STEP..], |_| true)
        .unwrap();
    assert_eq!(bits(runner.logits(0)), bits(alone.logits(0)));

    let types = |policy: &str| MigrationOptions {
        policy: Some(read_policy(policy).unwrap()),
        ..MigrationOptions::default()
    };
    let error = alone
        .migrate(&model, &cpu, &types("stream window 30"))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a stream is chosen when its cache is made"),
        "{error}"
    );
    alone.migrate(&model, &cpu, &types("others f32")).unwrap();
    assert_eq!(
        alone.kv_policy().to_string(),
        "others f32; stream window 24 sinks 3"
    );
    alone.sequence(0).feed(&text, |_| true).unwrap();
    assert!(alone.tokens(0).len() <= WINDOW);

    // The first tokens that stay may become more.
    alone.keep_in_streams(9).unwrap();
    alone.sequence(0).feed(&text, |_| true).unwrap();
    alone.remove(0).unwrap();
    alone.sequence(0).feed(&text, |_| true).unwrap();
    assert_eq!(alone.tokens(0)[..9], text[..9]);
    let error = alone.keep_in_streams(WINDOW).unwrap_err().to_string();
    assert!(
        error.contains("leave no token of a window of 24"),
        "{error}"
    );
}

#[test]
fn streams_that_cannot_be_are_refused() {
    let cpu = Cpu::new().unwrap();
    let model = model("llama_plain");
    let small = RunnerOptions {
        context: Some(20),
        ..options(4, "f16")
    };
    let error = kvark::Runner::new(&model, &cpu, &small).err().unwrap();
    let wanted = "a stream's window of 24 tokens does not fit a context of 20";
    assert!(error.to_string().contains(wanted), "{error}");
    let mut runner = kvark::Runner::new(&model, &cpu, &options(4, "f16")).unwrap();
    let error = runner.enable_context_shift(1).unwrap_err();
    assert!(
        error.to_string().contains("sequences are streams"),
        "{error}"
    );

    let gpt2 = Model::open(&path("gpt2"), Some(32)).unwrap();
    let error = kvark::Runner::new(&gpt2, &cpu, &options(4, "f16"))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("uses positions for more"),
        "{error}"
    );

    let plain = RunnerOptions {
        context: Some(WINDOW),
        kv_policy: Default::default(),
        ..options(4, "f16")
    };
    let mut frozen = kvark::Runner::new(&model, &cpu, &plain).unwrap();
    frozen.feed(&text(8), |_| true).unwrap();
    let prefix = frozen.freeze(&model).unwrap();
    let error = BatchRunner::with_prefix(&prefix, &model, &cpu, &options(4, "f16"))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("needs a cache of cells"),
        "{error}"
    );
    // In a pool, rows of the prefix are copied when they move.
    let pool = RunnerOptions {
        context: Some(2 * WINDOW),
        prefix: Some(prefix),
        ..options(4, "f16")
    };
    let mut runner = open(&model, &pool, CacheKind::Cells { sequences: 1 });
    runner.begin_with_prefix(0).unwrap();
    runner.sequence(0).feed(&text(80)[8..], |_| true).unwrap();
    let mut cold = open(&model, &options(4, "f16"), CacheKind::Contiguous);
    cold.sequence(0).feed(&text(80), |_| true).unwrap();
    assert_eq!(bits(runner.logits(0)), bits(cold.logits(0)));
}
