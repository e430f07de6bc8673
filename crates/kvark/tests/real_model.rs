//! SmolLM2 end to end. Runs if `KVARK_TEST_MODEL` names the file; `cargo xtask test` sets it.

mod common;

use common::named_by;
use kvark::backend::{CompileOptions, ExecutorKind};
use kvark::cache::{KvStorage, QuantGroup, read_policy};
use kvark::generate::{FinishReason, GenerateOptions, Sampler, SamplerOptions};
use kvark::text::EncodeOptions;
use kvark::{Cpu, Model, Runner, RunnerOptions};
use std::sync::LazyLock;

static MODEL: LazyLock<Option<Model>> = LazyLock::new(|| {
    let path = named_by("KVARK_TEST_MODEL");
    path.map(|path| Model::open(&path, None).unwrap())
});

fn runner(model: &Model, runner_options: RunnerOptions) -> Runner {
    Runner::new(model, &Cpu::new().unwrap(), &runner_options).unwrap()
}

fn encode(model: &Model, text: &str) -> Vec<u32> {
    model.tokenizer().unwrap().encode(
        text,
        EncodeOptions {
            bos: model.tokenizer().unwrap().adds_bos(),
            ..Default::default()
        },
    )
}

fn greedy(
    model: &Model,
    runner_options: RunnerOptions,
    prompt: &str,
    n: usize,
) -> kvark::generate::GenerateOutput {
    let mut sampler = Sampler::new(SamplerOptions {
        temperature: 0.0,
        ..Default::default()
    });
    let options = GenerateOptions {
        max_tokens: Some(n),
        ..Default::default()
    };
    runner(model, runner_options)
        .generate(
            model,
            &encode(model, prompt),
            &mut sampler,
            &options,
            |_| true,
        )
        .unwrap()
}

#[test]
fn knows_the_capital_of_france() {
    let Some(model) = &*MODEL else { return };
    let generated = greedy(
        model,
        RunnerOptions::default(),
        "The capital of France is",
        8,
    );
    assert!(generated.text.starts_with(" Paris"), "{:?}", generated.text);
    assert_eq!(generated.finish, FinishReason::Length);
}

/// A prompt longer than a batch, a block of the softmax and a doubling of the pools.
fn long_prompt() -> String {
    let counted: Vec<String> = (1..=150)
        .map(|i| format!("Line {i} says {}.", i * i % 97))
        .collect();
    counted.join(" ")
}

#[test]
fn the_batch_size_threads_and_executor_change_no_token_and_no_logit() {
    let Some(model) = &*MODEL else { return };
    let tokens = encode(model, &long_prompt());
    assert!(tokens.len() > 1000);
    let logits = |batch, threads, executor| {
        let compile = CompileOptions {
            threads: Some(threads),
            executor,
            ..CompileOptions::default()
        };
        let mut runner = runner(
            model,
            RunnerOptions {
                max_step_tokens: batch,
                compile,
                ..RunnerOptions::default()
            },
        );
        runner.feed(&tokens, |_| true).unwrap();
        runner
            .logits()
            .iter()
            .map(|x| x.to_bits())
            .collect::<Vec<_>>()
    };
    let expect = logits(512, 2, ExecutorKind::Compiled);
    assert!(
        logits(usize::MAX, 1, ExecutorKind::Compiled) == expect,
        "one step"
    );
    assert!(logits(37, 3, ExecutorKind::Compiled) == expect, "odd steps");
    assert!(
        logits(300, 2, ExecutorKind::Interpreted) == expect,
        "interpreted"
    );
}

#[test]
fn rewind_and_regenerate_repeats_the_cold_run() {
    let Some(model) = &*MODEL else { return };
    let cold = greedy(model, RunnerOptions::default(), "Once upon a time", 24);
    let mut runner = runner(model, RunnerOptions::default());
    let prompt = encode(model, "Once upon a time");
    let mut sampler = Sampler::new(SamplerOptions {
        seed: 5,
        ..Default::default()
    });
    let options = GenerateOptions {
        max_tokens: Some(24),
        ..Default::default()
    };
    runner
        .generate(model, &prompt, &mut sampler, &options, |_| true)
        .unwrap();
    runner.rewind(prompt.len() - 1).unwrap();
    let mut sampler = Sampler::new(SamplerOptions {
        temperature: 0.0,
        ..Default::default()
    });
    let warm = runner
        .generate(
            model,
            &prompt[prompt.len() - 1..],
            &mut sampler,
            &options,
            |_| true,
        )
        .unwrap();
    assert_eq!(warm.tokens, cold.tokens);
}

#[test]
fn weights_are_mapped_and_kv_follows_the_tokens_in_use() {
    let Some(model) = &*MODEL else { return };
    let graph = &model.artifact().methods[0].graph;
    let weights: Vec<_> = graph
        .tensors()
        .iter()
        .filter_map(|t| t.constant())
        .collect();
    let mapped: usize = weights
        .iter()
        .filter(|b| b.is_mapped())
        .map(|b| b.len())
        .sum();
    assert!(
        mapped as f64 > 0.999 * graph.constant_bytes() as f64,
        "{mapped} of {}",
        graph.constant_bytes()
    );

    for storage in [
        KvStorage::F32,
        KvStorage::F16,
        KvStorage::Q4(QuantGroup::G32),
    ] {
        let runner_options = RunnerOptions {
            key_storage: storage,
            value_storage: storage,
            ..RunnerOptions::default()
        };
        let mut runner = runner(model, runner_options);
        assert_eq!(runner.memory().unwrap().kv, 0);
        let row: usize = model
            .facts()
            .caches
            .iter()
            .map(|c| c.kv_heads * storage.row_bytes(c.key_dim) * 2)
            .sum();
        for (tokens, cells) in [(1, 256), (255, 256), (1, 512), (500, 1024)] {
            runner.feed(&vec![1; tokens], |_| true).unwrap();
            assert_eq!(
                runner.memory().unwrap().kv,
                cells * row,
                "{storage} at {} tokens",
                runner.tokens().len()
            );
        }
    }
}

#[test]
fn a_full_context_ends_the_text_and_a_long_prompt_is_refused() {
    let Some(model) = &*MODEL else { return };
    let small = RunnerOptions {
        context: Some(12),
        ..RunnerOptions::default()
    };
    let generated = greedy(model, small.clone(), "Once upon a time", 100);
    assert_eq!(generated.finish, FinishReason::Context);
    let mut runner = runner(model, small);
    let error = runner
        .feed(&encode(model, &long_prompt()), |_| true)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the context has room for 12 of its 12"),
        "{error}"
    );
    assert!(
        runner.feed(&[1], |_| true).unwrap(),
        "and the runner goes on"
    );
}

#[test]
fn stop_strings_and_seeds() {
    let Some(model) = &*MODEL else { return };
    let prompt = encode(model, "One, two, three,");
    let run = |seed: u64, stop: &str| {
        let mut sampler = Sampler::new(SamplerOptions {
            seed,
            ..Default::default()
        });
        let options = GenerateOptions {
            max_tokens: Some(30),
            stop: vec![stop.to_owned()],
            ..Default::default()
        };
        runner(model, RunnerOptions::default())
            .generate(model, &prompt, &mut sampler, &options, |_| true)
            .unwrap()
    };
    let free = run(1, "never to be seen");
    assert_eq!(free.tokens, run(1, "never to be seen").tokens);
    let word = free.text.split_whitespace().nth(3).unwrap().to_owned();
    let cut = run(1, &word);
    assert_eq!(cut.finish, FinishReason::Stop);
    assert_eq!(cut.text, free.text[..free.text.find(&word).unwrap()]);
}

#[test]
fn a_text_stays_sane_past_its_context() {
    let Some(model) = &*MODEL else { return };
    let runner_options = RunnerOptions {
        context: Some(192),
        ..RunnerOptions::default()
    };
    let mut shifted = runner(model, runner_options);
    shifted.enable_context_shift(8).unwrap();
    let prompt = encode(
        model,
        "A long story about a fisherman and the sea. Once upon a time",
    );
    let mut sampler = Sampler::new(SamplerOptions {
        temperature: 0.7,
        seed: 11,
        ..Default::default()
    });
    let options = GenerateOptions {
        max_tokens: Some(800),
        ignore_eos: true,
        ..Default::default()
    };
    let generated = shifted.generate(model, &prompt, &mut sampler, &options, |_| true);
    let generated = generated.unwrap();
    assert_eq!(generated.finish, FinishReason::Length);
    // The generated text, above all its last part, is likely under a model with the full context.
    let mut cold = runner(model, RunnerOptions::default());
    let text = [&prompt[..], &generated.tokens].concat();
    let score = cold.score(&text, |_| true).unwrap();
    let last = &score.logprob[score.logprob.len() - 300..];
    let mean = -last.iter().sum::<f64>() / last.len() as f64;
    assert!(mean < 4.0, "mean -log p {mean}: {}", generated.text);
}

/// A stream of 800 tokens in a window of 256 beside windows whose tokens are all computed again.
#[test]
fn a_stream_is_as_likely_as_recomputed_windows() {
    let Some(model) = &*MODEL else { return };
    let prose = include_str!("../../../xtask/peers/prose.txt");
    let text = encode(model, prose);
    let text = &text[..800];
    let runner_options = |policy: &str, storage: KvStorage| RunnerOptions {
        context: Some(256),
        max_step_tokens: 64,
        max_logit_rows: 64,
        key_storage: storage,
        value_storage: storage,
        kv_policy: read_policy(policy).unwrap(),
        ..RunnerOptions::default()
    };
    let mut windows = runner(model, runner_options("", KvStorage::F16));
    let windows = windows.score_windows(text, 128, None, |_| true).unwrap();
    for (storage, bound) in [
        (KvStorage::F16, 1.03),
        (KvStorage::Q8(QuantGroup::G32), 1.03),
    ] {
        let options = runner_options("stream window 256 sinks 4", storage);
        let mut stream = runner(model, options);
        stream.score(&text[..300], |_| true).unwrap();
        let bytes = stream.memory().unwrap().kv;
        stream.rewind(0).unwrap();
        let score = stream.score(text, |_| true).unwrap();
        assert_eq!(stream.memory().unwrap().kv, bytes);
        let ratio = score.nll() / windows.nll();
        assert!(ratio < bound, "{storage}: {ratio}");
    }
}
