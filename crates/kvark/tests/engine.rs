//! The engine: many requests at once give what each gives alone, and prefixes are reused.

use kvark::engine::{
    CacheReport, CacheSource, Engine, GeneratedToken, Generation, MissReason, Request,
    RequestEvent, RequestOutput, SchedulerOptions, TokenConstraint,
};
use kvark::generate::{FinishReason, GenerateOptions, SamplerOptions};
use kvark::{Cpu, Model, RunnerOptions, RuntimeError, RuntimeErrorKind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn model(name: &str) -> Arc<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Arc::new(Model::open(&folder.join(format!("{name}.gguf")), None).unwrap())
}

/// An engine whose requests have up to 64 tokens each, in a pool of `cells`.
fn engine(model: &Arc<Model>, cells: usize, options: &SchedulerOptions) -> Engine {
    let runner = RunnerOptions {
        context: Some(64),
        pool_cells: Some(cells),
        max_step_tokens: 16,
        ..RunnerOptions::default()
    };
    Engine::start(model.clone(), &Cpu::new().unwrap(), &runner, options).unwrap()
}

fn request(prompt: &[u32], max_tokens: usize, seed: u64) -> Request {
    Request {
        sampling: SamplerOptions {
            temperature: 1.0,
            seed,
            ..SamplerOptions::default()
        },
        options: GenerateOptions {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..GenerateOptions::default()
        },
        logprobs: Some(2),
        ..Request::new(prompt.to_vec())
    }
}

/// All events of a request.
fn collect(events: Generation) -> Result<(Vec<GeneratedToken>, RequestOutput), RuntimeError> {
    let mut tokens = vec![];
    for event in events {
        match event {
            RequestEvent::Token(token) => tokens.push(token),
            RequestEvent::Finished(output) => return Ok((tokens, *output)),
            RequestEvent::Failed(error) => return Err(error),
            RequestEvent::Started(_) | RequestEvent::PromptProgress(_) | RequestEvent::Round(_) => {
            }
        }
    }
    panic!("the events ended without an end");
}

fn run(engine: &Engine, request: Request) -> (Vec<GeneratedToken>, RequestOutput) {
    collect(engine.handle().generate(request).unwrap()).unwrap()
}

fn report(engine: &Engine, prompt: &[u32], max_tokens: usize) -> (CacheReport, Vec<u32>) {
    let (_, output) = run(engine, request(prompt, max_tokens, 1));
    (output.cache, output.tokens)
}

/// Numbers from a linear congruential generator.
fn random(state: &mut u64, below: u32) -> u32 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
    ((*state >> 33) % u64::from(below)) as u32
}

#[test]
fn requests_get_the_same_bits_together_and_alone() {
    for name in [
        "llama_plain",
        "gemma3",
        "mistral",
        "phi3_q8_0",
        "lfm2",
        "qwen35moe",
        "granitehybrid",
    ] {
        let model = model(name);
        let vocab = model.facts().vocab_size as u32;
        let mut state = 5;
        let trunk: Vec<u32> = (0..24).map(|_| random(&mut state, vocab)).collect();
        let requests: Vec<(Vec<u32>, usize, u64)> = (0..24)
            .map(|i| {
                let shared = random(&mut state, 25) as usize;
                let own = 1 + random(&mut state, 20);
                let mut prompt = trunk[..shared].to_vec();
                prompt.extend((0..own).map(|_| random(&mut state, vocab)));
                (prompt, 1 + random(&mut state, 14) as usize, i)
            })
            .collect();
        let options = SchedulerOptions {
            slots: 1,
            ..SchedulerOptions::default()
        };
        let alone: Vec<_> = requests
            .iter()
            .map(|(prompt, n, seed)| {
                let engine = engine(&model, 64, &options);
                run(&engine, request(prompt, *n, *seed)).0
            })
            .collect();
        // A pool for all of them, and one that is so small that prefixes are evicted and requests preempted.
        for cells in [4096, 100] {
            let together = engine(&model, cells, &SchedulerOptions::default());
            let events: Vec<_> = requests
                .iter()
                .map(|(prompt, n, seed)| {
                    let request = request(prompt, *n, *seed);
                    together.handle().generate(request).unwrap()
                })
                .collect();
            for (index, events) in events.into_iter().enumerate() {
                let (tokens, output) = collect(events).unwrap();
                assert_eq!(output.finish, FinishReason::Length);
                assert_eq!(
                    tokens, alone[index],
                    "{name}, {cells} cells, request {index}"
                );
            }
            let counters = together.handle().counters();
            assert_eq!(counters.finished.load(Ordering::Relaxed), 24);
            let reused = counters.cached_tokens.load(Ordering::Relaxed);
            assert!(reused > 0 || cells == 100, "{name} shares no prefix");
            let state = together.handle().state().unwrap();
            assert!(state.sequences.iter().all(|info| info.request.is_none()));
            let held: usize = state.ref_counts.iter().filter(|n| **n > 0).count();
            assert_eq!(held, state.used);
            together.handle().clear_prefixes().unwrap();
            let state = together.handle().state().unwrap();
            assert_eq!((state.used, state.sequences.len()), (0, 0), "cells leaked");
        }
    }
}

#[test]
fn a_small_pool_preempts_and_still_answers() {
    let model = model("llama_plain");
    let engine = engine(&model, 64, &SchedulerOptions::default());
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| vec![i + 1; 12]).collect();
    let all: Vec<_> = prompts
        .iter()
        .map(|prompt| engine.handle().generate(request(prompt, 30, 3)).unwrap())
        .collect();
    for events in all {
        assert_eq!(collect(events).unwrap().0.len(), 30);
    }
    let preempted = engine.handle().counters().preempted.load(Ordering::Relaxed);
    assert!(preempted > 0, "six requests of 42 tokens in 64 cells");
}

#[test]
fn every_turn_computes_only_its_new_tokens() {
    let model = model("llama_plain");
    let engine = engine(&model, 4096, &SchedulerOptions::default());
    let mut conversation: Vec<u32> = (1..9).collect();
    for turn in 0..8 {
        let (cache, answer) = report(&engine, &conversation, 3);
        // All but the new tokens: the last answer's last token was sampled and never fed, and two are the user's.
        let expected = if turn == 0 { 0 } else { conversation.len() - 3 };
        assert_eq!(cache.cached_tokens, expected, "turn {turn}");
        let source = [CacheSource::None, CacheSource::Memory][usize::from(turn > 0)];
        assert_eq!(cache.source, source);
        conversation.extend(answer);
        conversation.extend([20 + turn, 30]);
    }
    // One prefix is left: each turn's covers the one before.
    assert_eq!(engine.handle().state().unwrap().sequences.len(), 1);
}

#[test]
fn a_report_names_the_first_token_that_differs() {
    let model = model("llama_plain");
    let engine = engine(&model, 4096, &SchedulerOptions::default());
    let (cold, _) = report(&engine, &[1, 2, 3, 4, 5, 6], 1);
    let miss = cold.miss.unwrap();
    assert_eq!((miss.reason, miss.position), (MissReason::Empty, 0));
    let (warm, _) = report(&engine, &[1, 2, 3, 9, 5, 6], 1);
    let miss = warm.miss.unwrap();
    assert_eq!((warm.cached_tokens, miss.reason), (3, MissReason::Differs));
    assert_eq!(
        (miss.position, miss.stored, miss.requested),
        (3, Some(4), Some(9))
    );
    let (longer, _) = report(&engine, &[1, 2, 3, 4, 5, 6, 7, 8], 1);
    let miss = longer.miss.unwrap();
    assert_eq!((miss.reason, miss.position), (MissReason::New, 6));
    let (same, _) = report(&engine, &[1, 2, 3, 4, 5, 6, 7, 8], 1);
    assert_eq!((same.cached_tokens, same.miss), (7, None));
    let unwanted = Request {
        cache_prompt: false,
        ..request(&[1, 2, 3, 4], 1, 1)
    };
    let (_, output) = run(&engine, unwanted);
    assert_eq!(output.cache.cached_tokens, 0);
    assert_eq!(output.cache.miss.unwrap().reason, MissReason::Disabled);
}

#[test]
fn requests_with_one_prompt_compute_it_once() {
    let model = model("llama_plain");
    let engine = engine(&model, 4096, &SchedulerOptions::default());
    let prompt: Vec<u32> = (0..50).map(|i| i % 30 + 1).collect();
    let all: Vec<_> = (0..6)
        .map(|seed| engine.handle().generate(request(&prompt, 4, seed)).unwrap())
        .collect();
    let computed = all.into_iter().map(|events| {
        let (_, output) = collect(events).unwrap();
        output.timings.prompt_tokens
    });
    // The others wait until all but the last few tokens are there.
    let computed: usize = computed.sum();
    assert!((55..=50 + 5 * 4).contains(&computed), "{computed}");
}

#[test]
fn bad_requests_are_refused_before_they_reach_a_step() {
    let model = model("llama_plain");
    let options = SchedulerOptions {
        queue: 3,
        slots: 1,
        ..SchedulerOptions::default()
    };
    let engine = engine(&model, 64, &options);
    let refused = |prompt: &[u32]| {
        let refused = engine.handle().generate(request(prompt, 1, 1));
        refused.err().expect("it is refused")
    };
    let vocab = model.facts().vocab_size;
    assert!(matches!(refused(&[]).kind(), RuntimeErrorKind::EmptyPrompt));
    let unknown = refused(&[1, vocab as u32]);
    assert!(matches!(
        unknown.kind(),
        RuntimeErrorKind::UnknownToken { .. }
    ));
    let long = refused(&[1; 64]);
    assert!(matches!(
        long.kind(),
        RuntimeErrorKind::PromptTooLong { .. }
    ));
    // One runs for a while, three wait, and the next one is refused.
    let busy = engine.handle().generate(request(&[1], 60, 1)).unwrap();
    let mut busy = busy.peekable();
    assert!(busy.peek().is_some(), "it has a sequence");
    let mut waiting = vec![];
    let full = loop {
        match engine.handle().generate(request(&[2], 60, 1)) {
            Ok(events) => waiting.push(events),
            Err(error) => break error,
        }
        assert!(waiting.len() < 200, "requests end faster than they come");
    };
    assert!(matches!(
        full.kind(),
        RuntimeErrorKind::QueueFull { limit: 3 }
    ));
    for events in waiting {
        assert_eq!(collect(events).unwrap().0.len(), 60);
    }
}

#[test]
fn a_request_ends_when_it_is_cancelled_late_or_full() {
    let model = model("llama_plain");
    let engine = engine(&model, 64, &SchedulerOptions::default());
    let endless = |prompt: &[u32]| Request {
        options: GenerateOptions {
            ignore_eos: true,
            ..GenerateOptions::default()
        },
        ..Request::new(prompt.to_vec())
    };
    let (tokens, output) = run(&engine, endless(&[1, 2, 3]));
    assert_eq!(output.finish, FinishReason::Context);
    assert_eq!(tokens.len(), 64 - 3 + 1, "the last token needs no cell");

    let late = Request {
        deadline: Some(Instant::now()),
        ..endless(&[1, 2, 3])
    };
    assert_eq!(run(&engine, late).1.finish, FinishReason::Deadline);

    let events = engine.handle().generate(endless(&[4, 5])).unwrap();
    events.handle().cancel();
    assert_eq!(collect(events).unwrap().1.finish, FinishReason::Interrupted);

    // A sink that returns false is a client that has gone: its cells are free again.
    let sink = Box::new(|event| !matches!(event, RequestEvent::Token(_)));
    engine.handle().submit(endless(&[6, 7]), sink).unwrap();
    let (tokens, _) = run(&engine, request(&[8; 40], 20, 1));
    assert_eq!(tokens.len(), 20);
    let cancelled = &engine.handle().counters().cancelled;
    assert_eq!(cancelled.load(Ordering::Relaxed), 2);
}

#[test]
fn priorities_come_first_and_a_stop_leaves_time_to_finish() {
    let model = model("llama_plain");
    let options = SchedulerOptions {
        slots: 1,
        ..SchedulerOptions::default()
    };
    let engine = engine(&model, 256, &options);
    let (order, ended) = std::sync::mpsc::channel();
    // The engine waits at its first event until all requests are in its queue.
    let gate = Arc::new(Mutex::new(()));
    let submitting = gate.lock().unwrap();
    let submit = |prompt: u32, priority: i32| {
        let (order, gate) = (order.clone(), gate.clone());
        let sink = move |event| {
            drop(gate.lock().unwrap());
            if let RequestEvent::Finished(output) = event {
                order.send((prompt, output.finish)).unwrap();
            }
            true
        };
        let request = Request {
            priority,
            ..request(&[prompt], 40, 1)
        };
        engine.handle().submit(request, Box::new(sink)).unwrap();
    };
    submit(1, 0);
    (2..6).for_each(|prompt| submit(prompt, prompt as i32 % 2));
    drop(submitting);
    let handle = engine.handle().clone();
    engine.stop(Duration::from_secs(60));
    drop(order);
    let order: Vec<(u32, FinishReason)> = ended.into_iter().collect();
    assert!(
        order
            .iter()
            .all(|(_, finish)| *finish == FinishReason::Length)
    );
    let order: Vec<u32> = order.into_iter().map(|(prompt, _)| prompt).collect();
    // The first one may start before the others come, or after them all.
    let orders = [[1, 3, 5, 2, 4], [3, 5, 1, 2, 4]];
    assert!(orders.iter().any(|possible| order == possible), "{order:?}");
    let refused = handle.generate(request(&[1], 1, 1)).err().unwrap();
    assert!(matches!(refused.kind(), RuntimeErrorKind::EngineStopped));
}

#[test]
fn a_full_pool_makes_room_for_prefixes_on_disk_and_misses_name_evictions() {
    let folder = std::env::temp_dir().join(format!("kvark-engine-full-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&folder);
    let model = model("llama_plain");
    let vocab = model.facts().vocab_size as u32;
    let runner = RunnerOptions {
        context: Some(256),
        pool_cells: Some(512),
        ..RunnerOptions::default()
    };
    let prompt = |start: u32| -> Vec<u32> { (0..200).map(|i| (start + i * 7) % vocab).collect() };
    for disk in [true, false] {
        let options = SchedulerOptions {
            disk: disk.then(|| (folder.clone(), 1 << 30)),
            ..SchedulerOptions::default()
        };
        let engine = Engine::start(model.clone(), &Cpu::new().unwrap(), &runner, &options).unwrap();
        let (cold, _) = run(&engine, request(&prompt(1), 8, 2));
        // Two more prompts fill the pool, and the first one's prefix goes.
        run(&engine, request(&prompt(2), 8, 2));
        run(&engine, request(&prompt(3), 8, 2));
        assert_eq!(engine.handle().state().unwrap().evictions.total(), 1);
        let longer: Vec<u32> = prompt(1).into_iter().chain([5, 6, 7]).collect();
        let (_, output) = run(&engine, request(&longer, 1, 2));
        let miss = output.cache.miss.clone().unwrap();
        match disk {
            true => {
                assert_eq!(output.cache.source, CacheSource::Disk, "{:?}", output.cache);
                assert!(output.cache.cached_tokens >= 200);
                assert!(
                    matches!(miss.reason, MissReason::Differs | MissReason::New),
                    "{miss:?}"
                );
                assert_eq!(
                    miss.stored,
                    cold.get(miss.position - 200).map(|token| token.id)
                );
            }
            false => {
                assert_eq!(
                    (miss.reason, output.cache.cached_tokens),
                    (MissReason::Evicted, 0)
                );
            }
        }
        let (again, _) = run(&engine, request(&prompt(1), 8, 2));
        assert_eq!(again, cold, "the same bits");
    }
    _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn prefixes_survive_a_restart_on_disk() {
    let folder = std::env::temp_dir().join(format!("kvark-engine-{}", std::process::id()));
    let model = model("llama_plain");
    let vocab = model.facts().vocab_size as u32;
    let runner = RunnerOptions {
        context: Some(256),
        pool_cells: Some(512),
        ..RunnerOptions::default()
    };
    let start = |limit: u64| {
        let options = SchedulerOptions {
            disk: Some((folder.clone(), limit)),
            ..SchedulerOptions::default()
        };
        Engine::start(model.clone(), &Cpu::new().unwrap(), &runner, &options).unwrap()
    };
    let prompt: Vec<u32> = (0..200).map(|i| i * 7 % vocab).collect();
    let first = start(1 << 30);
    let (cold, _) = run(&first, request(&prompt, 8, 2));
    first.stop(Duration::ZERO);
    let second = start(1 << 30);
    let (warm, output) = run(&second, request(&prompt, 8, 2));
    assert_eq!(output.cache.source, CacheSource::Disk);
    assert_eq!(output.cache.cached_tokens, prompt.len() - 1);
    assert_eq!(warm, cold, "the same bits");
    assert_eq!(second.handle().state().unwrap().disk.0, 1, "one file");
    drop(second);
    // A damaged file is computed anew and deleted; files beyond the limit go.
    let files = || -> Vec<_> {
        let folders = std::fs::read_dir(&folder).unwrap();
        let files = folders.flat_map(|f| std::fs::read_dir(f.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().path()).collect()
    };
    let mut bytes = std::fs::read(&files()[0]).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&files()[0], &bytes).unwrap();
    let third = start(1 << 30);
    let (again, output) = run(&third, request(&prompt, 8, 2));
    assert_eq!(output.cache.source, CacheSource::None);
    assert_eq!(again, cold);
    drop(third);
    assert_eq!(files().len(), 1, "written again");
    drop(start(1));
    assert_eq!(files().len(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Allows even tokens only, and ends after some of them.
struct Even {
    left: usize,
}

impl TokenConstraint for Even {
    fn restrict(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        allowed.iter_mut().for_each(|word| *word &= 0x5555_5555);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.left -= 1;
        match token % 2 {
            0 => Ok(()),
            _ => Err(format!("{token} is odd")),
        }
    }

    fn is_complete(&mut self) -> bool {
        self.left == 0
    }
}

#[test]
fn a_constraint_restricts_every_token() {
    let model = model("llama_plain");
    let engine = engine(&model, 512, &SchedulerOptions::default());
    let constrained = |seed| Request {
        constraint: Some(Box::new(Even { left: 9 })),
        ..request(&[1, 2, 3], 40, seed)
    };
    let all: Vec<_> = (0..5)
        .map(|seed| engine.handle().generate(constrained(seed)).unwrap())
        .collect();
    let free = engine
        .handle()
        .generate(request(&[1, 2, 3], 40, 0))
        .unwrap();
    for events in all {
        let (tokens, output) = collect(events).unwrap();
        assert_eq!((tokens.len(), output.finish), (9, FinishReason::Stop));
        assert!(tokens.iter().all(|token| token.id % 2 == 0));
    }
    assert!(
        collect(free)
            .unwrap()
            .0
            .iter()
            .any(|token| token.id % 2 == 1)
    );
}

/// The log-probabilities of a prompt's tokens are those that scoring it gives, whatever else runs and is stored, and however the request is
/// cut into steps or preempted.
#[test]
fn prompts_have_log_probabilities() {
    let model = model("llama_plain");
    let prompt: Vec<u32> = (0..41).map(|i| (i * 7 + 3) % 64).collect();
    let mut runner = kvark::generate::Runner::new(
        &model,
        &Cpu::new().unwrap(),
        &RunnerOptions {
            context: Some(64),
            ..RunnerOptions::default()
        },
    )
    .unwrap();
    let expected = runner.score(&prompt, |_| true).unwrap().logprob;
    // A pool for all requests, and one in which they take each other's cells.
    for cells in [256, 72] {
        let engine = engine(&model, cells, &SchedulerOptions::default());
        collect(engine.handle().generate(request(&prompt, 2, 1)).unwrap()).unwrap();
        let scored = |max_tokens| Request {
            prompt_logprobs: Some(3),
            ..request(&prompt, max_tokens, 5)
        };
        let all = [0, 1, 6].map(|n| engine.handle().generate(scored(n)).unwrap());
        let other = engine.handle().generate(request(&prompt[..20], 8, 2));
        for (events, made) in all.into_iter().zip([0, 1, 6]) {
            let (tokens, output) = collect(events).unwrap();
            assert_eq!(tokens.len(), made);
            assert_eq!(output.cache.cached_tokens, 0);
            assert_eq!(output.prompt_logprobs.len(), prompt.len() - 1);
            for (at, (found, expected)) in output.prompt_logprobs.iter().zip(&expected).enumerate()
            {
                assert!(
                    (f64::from(found.logprob) - expected).abs() < 1e-5,
                    "{cells} {at}"
                );
                assert_eq!(found.top.len(), 3);
                assert!(found.top[0].1 >= found.logprob - 1e-6);
            }
        }
        collect(other.unwrap()).unwrap();
    }
}

/// An answer has at least its least number of tokens, and ends at the stop tokens after them.
#[test]
fn answers_end_at_stop_tokens_but_not_before_their_least_length() {
    let model = model("llama_plain");
    let engine = engine(&model, 256, &SchedulerOptions::default());
    let prompt = [5, 6, 7, 8];
    let (free, _) = collect(engine.handle().generate(request(&prompt, 8, 1)).unwrap()).unwrap();
    let stop = free[2].id;
    let ended = |min_tokens: usize| {
        let mut asked = request(&prompt, 8, 1);
        asked.options.stop_tokens = vec![stop];
        asked.options.min_tokens = min_tokens;
        collect(engine.handle().generate(asked).unwrap()).unwrap()
    };
    let first = free.iter().position(|token| token.id == stop).unwrap();
    let (tokens, output) = ended(0);
    assert_eq!(output.finish, FinishReason::Stop);
    assert_eq!(output.tokens.len(), first + 1);
    assert_eq!(
        tokens.last().unwrap().text,
        "",
        "the token is no part of the text"
    );
    let (_, longer) = ended(6);
    assert!(longer.tokens.len() >= 6, "{:?}", longer.tokens);
    assert!(!longer.tokens[..6].contains(&stop), "{:?}", longer.tokens);
}
