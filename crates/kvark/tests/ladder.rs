//! The ladder: idle prefixes leave the pool for host memory, for smaller types there, and for disk, and come back on touch.

mod common;

use common::Temporary;
use kvark::cache::KvStorage;
use kvark::engine::{
    CacheSource, Engine, HostRungs, Request, RequestEvent, RequestOutput, Rung, SchedulerOptions,
};
use kvark::generate::GenerateOptions;
use kvark::memory::MemoryLimit;
use kvark::{Cpu, Model, RunnerOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

// The rows of the test models have few elements: affine groups make them larger.
const HALF: KvStorage = KvStorage::F16;
const EIGHT: KvStorage = KvStorage::F8E4M3;

fn model(name: &str) -> Arc<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Arc::new(Model::open(&folder.join(format!("{name}.gguf")), Some(256)).unwrap())
}

fn engine(model: &Arc<Model>, cells: usize, options: SchedulerOptions) -> Engine {
    let runner = RunnerOptions {
        context: Some(256),
        pool_cells: Some(cells),
        max_step_tokens: 32,
        key_storage: KvStorage::F32,
        value_storage: KvStorage::F32,
        memory: MemoryLimit::None,
        ..RunnerOptions::default()
    };
    Engine::start(model.clone(), &Cpu::new().unwrap(), &runner, &options).unwrap()
}

fn with_host(limit: u64, types: &[KvStorage]) -> SchedulerOptions {
    SchedulerOptions {
        host: HostRungs {
            limit,
            types: types.to_vec(),
        },
        ..SchedulerOptions::default()
    }
}

/// The rungs of host memory.
fn host(engine: &Engine) -> Vec<Rung> {
    let rungs = engine.handle().state().unwrap().rungs.into_iter();
    rungs.filter(|rung| rung.name.starts_with("host")).collect()
}

/// The text of an agent, of which it has so many tokens by now.
fn text(agent: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (agent * 17 + i * (3 + agent) + i / 7) % 60)
        .collect()
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        options: GenerateOptions {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..GenerateOptions::default()
        },
        logprobs: Some(1),
        ..Request::new(prompt.to_vec())
    }
}

fn output(engine: &Engine, request: Request) -> RequestOutput {
    end(engine.handle().generate(request).unwrap())
}

fn end(events: impl Iterator<Item = RequestEvent>) -> RequestOutput {
    for event in events {
        match event {
            RequestEvent::Finished(output) => return *output,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("no end");
}

/// Eight agents in a pool for two, each back three times: nothing is computed twice, and all bits are those of a cold run.
#[test]
fn agents_come_back_from_host_memory() {
    for name in ["llama_plain", "gemma3", "qwen35"] {
        let model = model(name);
        let small = engine(&model, 512, with_host(64 << 20, &[]));
        let cold = engine(&model, 512, SchedulerOptions::default());
        let mut from_host = 0;
        for round in 0..4 {
            for turn in 0..8 {
                let agent = (turn * 5 + round * 3) % 8;
                let len = 150 + 20 * round as usize;
                let prompt = text(agent, len);
                let found = output(&small, request(&prompt, 1));
                let uncached = Request {
                    cache_prompt: false,
                    ..request(&prompt, 1)
                };
                assert_eq!(found.tokens, output(&cold, uncached).tokens, "{name}");
                assert_eq!(found.cache.approximate_tokens, 0);
                if round > 0 {
                    let known = len - 20;
                    // Recurrent layers go on from the nearest state.
                    let least = if name == "qwen35" { known - 64 } else { known };
                    assert!(
                        found.cache.cached_tokens >= least,
                        "{name}: {:?}",
                        found.cache
                    );
                    from_host += usize::from(found.cache.source == CacheSource::Host);
                }
            }
        }
        assert!(from_host > 8, "{name}: {from_host}");
        let host = host(&small);
        assert_eq!(host.len(), 1);
        assert!(host[0].prefixes > 0 && host[0].bytes > 0, "{host:?}");
    }
}

/// When host memory is full, prefixes go down to smaller types, which is said; without that, they go to disk or are computed again, exactly.
#[test]
fn prefixes_go_down_the_rungs() {
    let model = model("llama_plain");
    let folder = Temporary::new("ladder");
    let one = {
        let engine = engine(&model, 256, with_host(64 << 20, &[]));
        output(&engine, request(&text(0, 200), 1));
        output(&engine, request(&text(1, 200), 1));
        host(&engine)[0].bytes
    };
    let limit = one * 5 / 2;
    let cold = engine(&model, 256, SchedulerOptions::default());
    for (types, disk) in [
        (&[HALF, EIGHT][..], false),
        (&[], false),
        (&[], true),
        (&[HALF], true),
    ] {
        let place = folder.0.join(format!("{}{disk}", types.len()));
        let options = SchedulerOptions {
            disk: disk.then_some((place, 1 << 30)),
            ..with_host(limit, types)
        };
        let small = engine(&model, 256, options);
        for agent in 0..6 {
            output(&small, request(&text(agent, 200), 1));
        }
        let host = host(&small);
        let bytes: u64 = host.iter().map(|rung| rung.bytes).sum();
        assert!(bytes <= limit, "{bytes} of {limit}");
        let names: Vec<&str> = host.iter().map(|rung| &*rung.name).collect();
        let expected = ["host", "host f16", "host f8_e4m3"];
        assert_eq!(names, expected[..=types.len()]);
        let smaller = host[1..].iter().map(|rung| rung.prefixes).sum::<usize>();
        assert_eq!(smaller > 0, !types.is_empty(), "{host:?}");
        let texts: Vec<_> = (0..6).map(|agent| Arc::new(text(agent, 200))).collect();
        let rungs = small.handle().rungs(texts).unwrap();
        for (agent, (rung, tokens)) in rungs.iter().enumerate() {
            let prompt = text(agent as u32, 210);
            let asked = small
                .handle()
                .rungs(vec![Arc::new(prompt.clone())])
                .unwrap();
            let found = output(&small, request(&prompt, 1));
            let inexact = found.cache.approximate_tokens;
            let what = format!(
                "agent {agent} on {rung} ({tokens}), {asked:?}: {:?}",
                found.cache
            );
            // Without a disk, the last rung ends in nothing.
            if disk || asked[0].1 >= 200 {
                assert!(found.cache.cached_tokens >= 200, "{what}");
            }
            if types.is_empty() {
                assert_eq!(inexact, 0, "{what}");
            }
            if inexact == 0 {
                let uncached = Request {
                    cache_prompt: false,
                    ..request(&prompt, 1)
                };
                assert_eq!(found.tokens, output(&cold, uncached).tokens, "{what}");
            }
            if asked[0].0.starts_with("host f") {
                assert!(inexact > 0, "{what}");
                assert_eq!(found.cache.source, CacheSource::Host, "{what}");
            }
        }
    }
}

/// Files that were stored in smaller types serve a later server only if it allows them.
#[test]
fn approximate_files_need_permission_after_a_restart() {
    let model = model("llama_plain");
    let folder = Temporary::new("ladder-files");
    let options = |types: &[KvStorage], limit| SchedulerOptions {
        disk: Some((folder.0.clone(), 1 << 30)),
        ..with_host(limit, types)
    };
    let one = {
        let engine = engine(&model, 256, with_host(64 << 20, &[]));
        output(&engine, request(&text(0, 200), 1));
        output(&engine, request(&text(1, 200), 1));
        host(&engine)[0].bytes
    };
    let first = engine(&model, 256, options(&[HALF], one * 3 / 2));
    // All requests at once: no idle moment in which prefixes would be written as they are.
    let all: Vec<_> = (0..8)
        .map(|agent| {
            first
                .handle()
                .generate(request(&text(agent, 200), 1))
                .unwrap()
        })
        .collect();
    all.into_iter().for_each(|events| _ = end(events));
    drop(first);
    let strict = engine(&model, 256, options(&[], 1 << 20));
    let cold = engine(&model, 256, SchedulerOptions::default());
    for agent in 0..8 {
        let prompt = text(agent, 205);
        let found = output(&strict, request(&prompt, 2));
        assert_eq!(found.cache.approximate_tokens, 0, "{:?}", found.cache);
        let uncached = Request {
            cache_prompt: false,
            ..request(&prompt, 2)
        };
        assert_eq!(found.tokens, output(&cold, uncached).tokens);
    }
}

/// A request that gives up its cells comes back with its rows, and says what it would have said.
#[test]
fn preempted_requests_are_swapped() {
    let model = model("llama_plain");
    let engine = engine(&model, 320, with_host(64 << 20, &[HALF]));
    let alone = |agent: u32| {
        let uncached = Request {
            cache_prompt: false,
            ..request(&text(agent, 100), 100)
        };
        output(&engine, uncached).tokens
    };
    let expected: Vec<_> = (0..3).map(alone).collect();
    let all: Vec<_> = (0..3)
        .map(|agent| {
            engine
                .handle()
                .generate(request(&text(agent, 100), 100))
                .unwrap()
        })
        .collect();
    for (events, expected) in all.into_iter().zip(expected) {
        let found = end(events);
        assert_eq!(found.tokens, expected);
    }
    let counters = engine.handle().counters();
    let [preempted, swapped] =
        [&counters.preempted, &counters.swapped].map(|counter| counter.load(Ordering::Relaxed));
    assert!(preempted > 0, "three requests of 200 tokens in 320 cells");
    // Those that had few tokens are computed again.
    assert!(swapped > 0, "{preempted} were preempted");
}
