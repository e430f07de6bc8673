//! Models with recurrent layers: their sequences fork, rewind, speculate and share prefixes, and compute no more again than the distance
//! to the nearest kept state.

mod common;

use common::GenerateForms;
use kvark::cache::KvStorage;
use kvark::engine::{
    CacheReport, CacheSource, Engine, MissReason, Request, RequestEvent, SchedulerOptions,
};
use kvark::generate::{BatchToken, GenerateOptions, Sampler, SamplerOptions};
use kvark::memory::{CacheKind, MemoryPlan, PlannedModel};
use kvark::snapshot::Snapshot;
use kvark::speculative::{SpecOptions, SpecType, Speculator, VerifyCosts};
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MODELS: [&str; 10] = [
    "granitehybrid",
    "granitehybrid_moe",
    "lfm2",
    "lfm2moe",
    "mamba2",
    "mamba2_groups",
    "nemotron_h",
    "qwen35",
    "qwen35moe",
    "qwen3next",
];

const CONTEXT: usize = 512;

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), Some(CONTEXT)).unwrap()
}

fn runner_options() -> RunnerOptions {
    RunnerOptions {
        context: Some(CONTEXT),
        max_step_tokens: 32,
        state_interval: 16,
        ..RunnerOptions::default()
    }
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    let mut state = u64::from(seed) + 3;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as u32 % 64
    };
    (0..n).map(|_| next()).collect()
}

/// The logits after these tokens in a run of their own.
fn cold(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let mut runner = Runner::new(model, &Cpu::new().unwrap(), &runner_options()).unwrap();
    runner.feed(tokens, |_| true).unwrap();
    runner.logits().to_vec()
}

#[test]
fn branches_have_the_bits_of_cold_runs_and_compute_little_again() {
    for name in MODELS {
        let model = model(name);
        let cpu = Cpu::new().unwrap();
        let mut runner = BatchRunner::with_trees(&model, &cpu, &runner_options(), 4, 0, 0).unwrap();
        let trunk = tokens(100, 1);
        runner.sequence(0).feed(&trunk, |_| true).unwrap();
        // A fork at the end computes nothing; one inside computes what lies behind the last kept state.
        runner.fork(0, 1).unwrap();
        let again = runner.fork_prefix(0, 2, 70).unwrap();
        assert_eq!(again, 70 % 16, "{name}: states are kept every 16 tokens");
        assert_eq!(runner.tokens(2), &trunk[..70]);
        for (seq, kept, own) in [(1, 100, 5), (2, 70, 9), (0, 100, 13)] {
            let more = tokens(20, own);
            // One token at a time, both sequences in one step.
            for token in &more {
                let step = [(seq, token), (3, token)].map(|(seq, id)| BatchToken {
                    seq,
                    id: *id,
                    logits: true,
                });
                runner.step(&step).unwrap();
            }
            let all = [&trunk[..kept], &more].concat();
            assert!(
                runner.logits(seq) == cold(&model, &all),
                "{name}: sequence {seq}"
            );
        }
        // A rewind goes to the nearest state and computes the rest.
        let again = runner.rewind(0, 90).unwrap();
        assert_eq!(again, 90 % 16, "{name}");
        let more = tokens(3, 77);
        runner.sequence(0).feed(&more, |_| true).unwrap();
        let all = [&trunk[..90], &more].concat();
        assert!(
            runner.logits(0) == cold(&model, &all),
            "{name}: after a rewind"
        );
        assert_eq!(
            runner.rewind(0, 90).unwrap(),
            0,
            "{name}: a state is kept there now"
        );
        let (used, slots) = runner.states_used().unwrap();
        assert!(used > 4 && used <= slots, "{name}: {used} of {slots}");
    }
}

#[test]
fn speculation_gives_the_tokens_of_plain_decoding() {
    for name in MODELS {
        let model = model(name);
        let cpu = Cpu::new().unwrap();
        let prompt = [tokens(20, 3), tokens(20, 3)].concat();
        let options = GenerateOptions {
            max_tokens: Some(60),
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        for temperature in [0.0, 0.9] {
            let sampler = || {
                Sampler::new(SamplerOptions {
                    temperature,
                    seed: 4,
                    ..SamplerOptions::default()
                })
            };
            let mut plain = Runner::new(&model, &cpu, &runner_options()).unwrap();
            let output = plain
                .generate(&model, &prompt, &mut sampler(), &options, |_| true)
                .unwrap();
            let spec = SpecOptions {
                kind: SpecType::Ngram,
                ..SpecOptions::default()
            };
            let candidates = spec.max_candidates;
            let mut runner =
                BatchRunner::with_trees(&model, &cpu, &runner_options(), 1, 0, candidates).unwrap();
            let mut speculator = Speculator::new(&spec, &VerifyCosts::default(), None).unwrap();
            let both = (&mut sampler(), &mut speculator);
            let found = runner
                .generate_speculative(&model, 0, &prompt, both, &options, |_| true)
                .unwrap();
            assert_eq!(found.tokens, output.tokens, "{name} at {temperature}");
            let more = tokens(4, 8);
            runner.sequence(0).feed(&more, |_| true).unwrap();
            let all = [&prompt[..], &output.tokens, &more].concat();
            assert!(runner.logits(0) == cold(&model, &all), "{name} goes on");
        }
    }
}

fn engine(model: &Arc<Model>, options: RunnerOptions) -> Engine {
    let scheduler = SchedulerOptions::default();
    Engine::start(model.clone(), &Cpu::new().unwrap(), &options, &scheduler).unwrap()
}

fn generate(engine: &Engine, prompt: &[u32], max_tokens: usize) -> (Vec<u32>, CacheReport) {
    let request = Request {
        options: GenerateOptions {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..GenerateOptions::default()
        },
        ..Request::new(prompt.to_vec())
    };
    for event in engine.handle().generate(request).unwrap() {
        match event {
            RequestEvent::Finished(output) => return (output.tokens, output.cache),
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("the events ended without an end");
}

#[test]
fn a_chat_of_ten_turns_computes_no_earlier_turn_again() {
    for name in ["lfm2", "qwen35", "granitehybrid_moe", "mamba2"] {
        let model = Arc::new(model(name));
        let engine = engine(&model, runner_options());
        let mut history = tokens(50, 1);
        let mut turns = vec![];
        for turn in 0..10 {
            let before = history.len();
            let (answer, cache) = generate(&engine, &history, 12);
            // The last token of an answer is fed by the next turn.
            let known = turns.last().map_or(0, |(_, end)| end - 1);
            assert_eq!(cache.cached_tokens, known, "{name}: turn {turn}");
            history.extend(&answer);
            turns.push((before, history.len()));
            history.extend(tokens(9, 10 + turn));
        }
        // The last message again: its answer alone is computed, and the last token of its prompt.
        let (prompt, _) = turns[9];
        let (_, cache) = generate(&engine, &history[..prompt], 3);
        assert_eq!(cache.cached_tokens, prompt - 1, "{name}: asked again");
        // Another last message: at most the message is computed.
        let (_, end) = turns[8];
        let edited = [&history[..end], &tokens(15, 99)].concat();
        let (_, cache) = generate(&engine, &edited, 3);
        assert!(cache.cached_tokens >= end - 1, "{name}: {cache:?} of {end}");
        assert_eq!(cache.source, CacheSource::Memory);
        // Back to the parent of a branch.
        let (_, cache) = generate(&engine, &history, 3);
        assert_eq!(
            cache.cached_tokens,
            turns[9].1 - 1,
            "{name}: back in the parent"
        );
    }
}

#[test]
fn what_lies_between_states_is_computed_and_named() {
    let model = Arc::new(model("qwen35"));
    let engine = engine(&model, runner_options());
    let prompt = tokens(80, 1);
    generate(&engine, &prompt, 4);
    // Differs after 60 tokens; a state is kept every 16.
    let other = [&prompt[..60], &tokens(20, 2)].concat();
    let (_, cache) = generate(&engine, &other, 4);
    assert_eq!(cache.cached_tokens, 48);
    let miss = cache.miss.unwrap();
    assert_eq!((miss.reason, miss.position), (MissReason::NoState, 48));
}

/// A prompt of several messages keeps states where they end, so that one with another message behind is computed from there: with room
/// for few states too.
#[test]
fn the_messages_of_a_prompt_end_at_states() {
    for (name, room) in [("lfm2", 40), ("qwen35", 40), ("mamba2", 5)] {
        let model = Arc::new(model(name));
        let mut options = runner_options();
        options.state_interval = 64;
        let one = {
            let planned = PlannedModel::try_from(model.artifact()).unwrap();
            let kind = CacheKind::Cells { sequences: 1 };
            let cpu = Cpu::new().unwrap();
            let plan = MemoryPlan::new(&planned, &cpu, &options, kind, None).unwrap();
            plan.cache.state_bytes()
        };
        options.state_bytes = room * one;
        let prompt = tokens(330, 11);
        let ends = [37, 90, 151, 222, 301];
        let ask = |engine: &Engine, prompt: &[u32]| {
            let request = Request {
                message_ends: ends.to_vec(),
                options: GenerateOptions {
                    max_tokens: Some(1),
                    ..GenerateOptions::default()
                },
                ..Request::new(prompt.to_vec())
            };
            let events = engine.handle().generate(request).unwrap();
            events.into_iter().find_map(|event| match event {
                RequestEvent::Finished(output) => Some(output.cache.cached_tokens),
                RequestEvent::Failed(error) => panic!("{error}"),
                _ => None,
            })
        };
        for end in ends {
            // Other tokens from the end of a message on.
            let engine = engine(&model, options.clone());
            assert_eq!(ask(&engine, &prompt), Some(0));
            let edited = [&prompt[..end], &tokens(60, 90 + end as u32)].concat();
            let cached = ask(&engine, &edited).unwrap();
            // The first message and the last three have states.
            if end != 90 && (room > 5 || end >= 222) {
                assert_eq!(cached, end, "{name} {end}");
            }
            assert!(cached <= end, "{name} {end}");
        }
    }
}

#[test]
fn a_cancelled_prompt_is_not_computed_again() {
    let model = Arc::new(model("lfm2"));
    let engine = engine(&model, runner_options());
    let prompt = tokens(400, 6);
    let request = Request {
        options: GenerateOptions {
            max_tokens: Some(1),
            ..GenerateOptions::default()
        },
        ..Request::new(prompt.clone())
    };
    let mut done = 0;
    for event in engine.handle().generate(request).unwrap() {
        if let RequestEvent::PromptProgress(tokens) = event {
            done = tokens;
            if tokens >= 240 {
                // Dropping the events cancels the request.
                break;
            }
        }
    }
    assert!(done >= 240);
    let (_, cache) = generate(&engine, &prompt, 1);
    assert!(cache.cached_tokens + 16 >= done, "{cache:?} of {done}");
}

/// A file of the prefix store has the kept states of its sequence, so a conversation that left the memory goes on from them, and a
/// restart too.
#[test]
fn states_are_restored_from_disk() {
    let folder = std::env::temp_dir().join(format!("kvark-hybrid-disk-{}", std::process::id()));
    for name in ["lfm2", "qwen35", "mamba2"] {
        _ = std::fs::remove_dir_all(&folder);
        let model = Arc::new(model(name));
        let scheduler = SchedulerOptions {
            disk: Some((folder.clone(), 1 << 30)),
            ..SchedulerOptions::default()
        };
        let start = || {
            let cpu = Cpu::new().unwrap();
            Engine::start(model.clone(), &cpu, &runner_options(), &scheduler).unwrap()
        };
        let first = start();
        let mut history = tokens(200, 1);
        let (answer, _) = generate(&first, &history, 10);
        history.extend(answer);
        let end = history.len() - 1;
        first.stop(Duration::ZERO);

        let second = start();
        // The whole conversation, and one that differs inside it: from the state at 96, of those that are kept every 16 tokens.
        let longer = [&history[..], &tokens(9, 5)].concat();
        let edited = [&history[..100], &tokens(30, 6)].concat();
        for (prompt, kept) in [(&edited, 96), (&longer, end)] {
            let (answer, cache) = generate(&second, prompt, 6);
            assert_eq!(
                (cache.source, cache.cached_tokens),
                (CacheSource::Disk, kept),
                "{name}"
            );
            let plain = engine(&model, runner_options());
            assert_eq!(answer, generate(&plain, prompt, 6).0, "{name}");
        }
    }
    _ = std::fs::remove_dir_all(&folder);
}

/// Few states: the conversation stays right, and the budget holds.
#[test]
fn snapshots_keep_to_their_budget() {
    let model = Arc::new(model("qwen35"));
    let planned = PlannedModel::try_from(model.artifact()).unwrap();
    let kind = CacheKind::Cells { sequences: 8 };
    let plan = |options: &RunnerOptions| {
        MemoryPlan::new(&planned, &Cpu::new().unwrap(), options, kind, None).unwrap()
    };
    let one = plan(&runner_options()).cache.state_bytes();
    let options = RunnerOptions {
        state_bytes: 3 * one,
        ..runner_options()
    };
    let rich = engine(&model, runner_options());
    let poor = engine(&model, options.clone());
    let mut history = tokens(100, 1);
    for turn in 0..6 {
        let (expected, _) = generate(&rich, &history, 8);
        let (answer, _) = generate(&poor, &history, 8);
        assert_eq!(answer, expected, "turn {turn}");
        history.extend(&answer);
        history.extend(tokens(9, 10 + turn));
    }
    let (bytes, slots) = plan(&options).kv.states();
    assert_eq!(bytes, slots * one);
    let (_, all) = plan(&RunnerOptions {
        state_bytes: 0,
        ..options
    })
    .kv
    .states();
    assert_eq!(slots, all + 3);
}

#[test]
fn kinds_without_states_refuse_by_name() {
    let model = model("mamba2");
    let cpu = Cpu::new().unwrap();
    for (kind, name) in [
        (CacheKind::Contiguous, "contiguous"),
        (CacheKind::Tree, "tree"),
    ] {
        let result = BatchRunner::with_cache_kind(&model, &cpu, &runner_options(), kind, 0);
        let error = result.err().unwrap().to_string();
        let expected = format!(
            "a {name} cache cannot hold the states of this model's recurrent layers: use cells"
        );
        assert!(error.contains(&expected), "{error}");
    }
    let mut runner = Runner::new(&model, &cpu, &runner_options()).unwrap();
    assert_eq!(runner.cache_kind(), "cells");
    let error = runner.batch().enable_context_shift(4).unwrap_err();
    let expected = "the state of blk.0.ssm_conv1d (causal_conv) cannot be moved";
    assert!(error.to_string().contains(expected), "{error}");
}

/// States in f16 are rounded after every token: they are the same in steps of any size, near those in f32, and half as large.
#[test]
fn states_in_f16_do_not_depend_on_steps() {
    let folder = std::env::temp_dir().join(format!("kvark-hybrid-f16-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let half = |max_step_tokens| RunnerOptions {
        state_storage: KvStorage::F16,
        max_step_tokens,
        ..runner_options()
    };
    let cpu = Cpu::new().unwrap();
    for name in MODELS {
        let model = model(name);
        let prompt = tokens(90, 4);
        let exact = cold(&model, &prompt);
        let logits = |options: &RunnerOptions| {
            let mut runner = Runner::new(&model, &cpu, options).unwrap();
            runner.feed(&prompt, |_| true).unwrap();
            runner.logits().to_vec()
        };
        let expected = logits(&half(32));
        for step in [1, 7, 64] {
            assert_eq!(logits(&half(step)), expected, "{name} in steps of {step}");
        }
        assert_ne!(expected, exact, "{name}");
        let spread = exact.iter().map(|x| x * x).sum::<f32>() / exact.len() as f32;
        let far = exact.iter().zip(&expected).map(|(a, b)| (a - b).powi(2));
        let distance = (far.sum::<f32>() / exact.len() as f32 / spread).sqrt();
        assert!(distance < 0.01, "{name}: {distance}");

        // A saved sequence goes on with the same bits, and only where states have the same type.
        let path = folder.join(name);
        let mut runner = Runner::new(&model, &cpu, &half(32)).unwrap();
        runner.feed(&prompt[..60], |_| true).unwrap();
        runner.save(&model, &path, &[]).unwrap();
        let snapshot = Snapshot::open(&path).unwrap();
        let kept = snapshot.restorable().longest(59);
        let mut restored = Runner::new(&model, &cpu, &half(32)).unwrap();
        restored.restore(&model, &snapshot, kept).unwrap();
        restored.feed(&prompt[kept..], |_| true).unwrap();
        assert_eq!(restored.logits(), expected, "{name} restored");
        let mut other = Runner::new(&model, &cpu, &runner_options()).unwrap();
        let error = other
            .restore(&model, &snapshot, kept)
            .unwrap_err()
            .to_string();
        let reason = "its states are f16, and the session stores f32";
        assert!(error.contains(reason), "{error}");

        let planned = PlannedModel::try_from(model.artifact()).unwrap();
        let state_bytes = |options: &RunnerOptions| {
            let kind = CacheKind::Cells { sequences: 1 };
            let plan = MemoryPlan::new(&planned, &cpu, options, kind, None).unwrap();
            plan.cache.state_bytes()
        };
        assert_eq!(2 * state_bytes(&half(32)), state_bytes(&runner_options()));
    }
    _ = std::fs::remove_dir_all(&folder);
}
