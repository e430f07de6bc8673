//! Modules and their caches: a module without a cache, one with the cache of another model, two models in one process, and
//! the generation loop on many sequences.

mod common;

use common::GenerateForms;
use kvark::cache::{CacheConfig, make_decode_session};
use kvark::generate::{FinishReason, GenerateOptions, Sampler, SamplerOptions};
use kvark::inference::ModuleOptions;
use kvark::memory::MemoryLimit;
use kvark::{BatchRunner, Cpu, Model, Module, Runner, RunnerOptions};
use std::path::Path;

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), None).unwrap()
}

fn runner_options() -> RunnerOptions {
    RunnerOptions {
        context: Some(160),
        memory: MemoryLimit::None,
        ..RunnerOptions::default()
    }
}

fn config(model: &Model) -> CacheConfig {
    CacheConfig::new(32, model.facts().caches.clone())
}

fn refused(options: &ModuleOptions, model: &Model) -> String {
    let module = Module::from_artifact(model.artifact(), &Cpu::new().unwrap(), options);
    module.err().expect("refused").to_string()
}

#[test]
fn a_module_without_its_cache_or_with_another_s_is_refused() {
    let (llama, qwen) = (model("llama_plain"), model("qwen3"));
    let cpu = Cpu::new().unwrap();
    assert_eq!(
        refused(&ModuleOptions::default(), &llama),
        "the cache does not fit the model: its attention nodes need a cache, and none is bound"
    );
    let (session, backend) = make_decode_session("cpu", &config(&qwen)).unwrap();
    let options = ModuleOptions {
        backend,
        ..ModuleOptions::default()
    };
    let other = refused(&options, &llama);
    assert!(
        other.starts_with("the cache does not fit the model: "),
        "{other}"
    );
    Module::from_artifact(qwen.artifact(), &cpu, &options).unwrap();
    let key = session.key().to_string();
    drop(session);
    assert_eq!(
        refused(&options, &qwen),
        format!("no cache is registered under the key {key:?}")
    );
    // The KV bytes of another backend are refused.
    backend::reference::Reference::new();
    let (_session, backend) = make_decode_session("reference", &config(&llama)).unwrap();
    let options = ModuleOptions {
        backend,
        ..ModuleOptions::default()
    };
    assert_eq!(
        refused(&options, &llama),
        "the cache does not fit the model: it belongs to another backend: CpuKv is needed"
    );
}

fn tokens(model: &Model, seed: u32, n: u32) -> Vec<u32> {
    let vocab = model.facts().vocab_size as u32;
    (0..n).map(|i| (seed + 7 * i) % vocab).collect()
}

#[test]
fn two_models_in_one_process_do_not_meet() {
    let names = ["llama_plain", "qwen3"];
    let models = names.map(model);
    let runner =
        |model: &Model| Runner::new(model, &Cpu::new().unwrap(), &runner_options()).unwrap();
    let feed = |runner: &mut Runner, model: &Model, step: u32| {
        let ids = tokens(model, 3 * step, 1 + step % 3);
        runner.feed(&ids, |_| true).unwrap();
        runner.logits().to_vec()
    };
    let alone = models.each_ref().map(|model| {
        let mut runner = runner(model);
        (0..6)
            .map(|step| feed(&mut runner, model, step))
            .collect::<Vec<_>>()
    });
    let mut together = models.each_ref().map(runner);
    for step in 0..6 {
        for (i, runner) in together.iter_mut().enumerate() {
            let found = feed(runner, &models[i], step);
            assert!(
                found == alone[i][step as usize],
                "{} at step {step}",
                names[i]
            );
        }
    }
}

/// Greedy and seeded samplers alternately.
fn sampler(id: u32) -> Sampler {
    Sampler::new(SamplerOptions {
        temperature: [0.0, 1.5][id as usize % 2],
        seed: u64::from(id),
        ..SamplerOptions::default()
    })
}

#[test]
fn branches_generate_what_each_generates_alone() {
    let model = model("llama_plain");
    let prompt = tokens(&model, 1, 9);
    let options = GenerateOptions {
        max_tokens: Some(14),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let many = RunnerOptions {
        max_logit_rows: 5,
        ..runner_options()
    };
    let mut branches = BatchRunner::new(&model, &Cpu::new().unwrap(), &many).unwrap();
    branches.sequence(0).feed(&prompt, |_| true).unwrap();
    for id in 1..5 {
        branches.fork(0, id).unwrap();
    }
    let mut each: Vec<(u32, Sampler)> = (0..5).map(|id| (id, sampler(id))).collect();
    let mut shown = [0; 5];
    let found = branches
        .generate_lanes(&model, &mut each, &options, |id, _| {
            shown[id as usize] += 1;
            true
        })
        .unwrap();
    for (id, found) in (0..5).zip(&found) {
        let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &runner_options()).unwrap();
        let expect = runner.generate(&model, &prompt, &mut sampler(id), &options, |_| true);
        let expect = expect.unwrap();
        assert_eq!(found.tokens, expect.tokens, "branch {id}");
        assert_eq!(
            (found.finish, expect.finish),
            (FinishReason::Length, FinishReason::Length)
        );
        assert!(shown[id as usize] >= 14, "every token is shown");
    }
}

#[test]
fn branches_shift_a_full_context_or_end() {
    let model = model("llama_plain");
    let prompt = tokens(&model, 1, 6);
    let options = GenerateOptions {
        max_tokens: Some(40),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    for shifts in [false, true] {
        let runner_options = RunnerOptions {
            context: Some(30),
            max_logit_rows: 2,
            ..runner_options()
        };
        let mut branches = BatchRunner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
        if shifts {
            branches.enable_context_shift(2).unwrap();
        }
        for id in 0..2 {
            branches.sequence(id).feed(&prompt, |_| true).unwrap();
        }
        let mut each = vec![(0, sampler(0)), (1, sampler(0))];
        let found = branches.generate_lanes(&model, &mut each, &options, |_, _| true);
        let found = found.unwrap();
        let expect = match shifts {
            true => (40, FinishReason::Length),
            false => (10, FinishReason::Context),
        };
        for generated in &found {
            assert_eq!((generated.tokens.len(), generated.finish), expect);
        }
        assert_eq!(!branches.take_shifts(0).is_empty(), shifts);
        // A cancellation ends all sequences.
        let mut each = vec![(0, sampler(0)), (1, sampler(0))];
        if shifts {
            let found = branches.generate_lanes(&model, &mut each, &options, |id, _| id == 0);
            assert!(
                found
                    .unwrap()
                    .iter()
                    .all(|g| g.finish == FinishReason::Interrupted)
            );
        }
    }
}
