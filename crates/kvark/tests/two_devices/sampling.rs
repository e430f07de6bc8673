//! The tokens that a device finds are those that the host samples from all logits.

use super::*;
use crate::common::GenerateForms;
use kvark::BatchRunner;
use kvark::engine::{Engine, Request, RequestEvent, SchedulerOptions};
use kvark::generate::{LogitsMode, RowOutputs, Sampler};
use std::sync::Arc;

/// Samplers that need the best token, a few of them, and all logits.
fn samplers(seeds: u64) -> Vec<SamplerOptions> {
    let drawn = |seed| SamplerOptions {
        temperature: 1.2,
        seed,
        ..SamplerOptions::default()
    };
    let mut all: Vec<SamplerOptions> = (0..seeds).map(drawn).collect();
    all.extend([
        greedy(),
        SamplerOptions {
            top_k: 5,
            typical_p: 0.7,
            ..drawn(11)
        },
        SamplerOptions {
            top_k: 100,
            top_p: 1.0,
            min_p: 0.0,
            xtc_probability: 0.5,
            ..drawn(12)
        },
        SamplerOptions {
            repeat_penalty: 1.2,
            ..drawn(13)
        },
        SamplerOptions {
            top_k: 0,
            ..drawn(14)
        },
        SamplerOptions {
            top_k: 300,
            ..drawn(15)
        },
    ]);
    all
}

/// Generates as `Runner::generate` does, but samples from all logits.
fn from_all_logits(
    runner: &mut Runner,
    prompt: &[u32],
    sampling: &SamplerOptions,
    n: usize,
) -> Vec<u32> {
    let mut sampler = Sampler::new(sampling.clone());
    let mut history = prompt.to_vec();
    runner.feed(prompt, |_| true).unwrap();
    for i in 0..n {
        let token = sampler.sample(runner.logits(), &history);
        history.push(token);
        if i + 1 < n {
            runner.feed(&[token], |_| true).unwrap();
        }
    }
    history.split_off(prompt.len())
}

/// Compares every sampler, alone, in a batch and in an engine, with samples from all logits on the same backend. Returns the
/// tokens of every sampler.
fn check(
    model: Model,
    backend: &dyn Backend,
    prompt: &[u32],
    seeds: u64,
    n: usize,
) -> Vec<Vec<u32>> {
    let model = Arc::new(model);
    let all = samplers(seeds);
    let mut runner = runner(&model, backend, 256);
    let mut expected = vec![];
    for sampling in &all {
        runner.rewind(0).unwrap();
        expected.push(from_all_logits(&mut runner, prompt, sampling, n));
        runner.rewind(0).unwrap();
        let mut sampler = Sampler::new(sampling.clone());
        let found = runner.generate(&model, prompt, &mut sampler, &exactly(n), |_| true);
        assert_eq!(
            found.unwrap().tokens,
            expected[expected.len() - 1],
            "{sampling:?}"
        );
        assert!(runner.logits().is_empty(), "the last token is fed later");
        // Of the prompt, which a caller can stop after, what the sampler needs is computed.
        runner.rewind(0).unwrap();
        let stopped = runner.generate(&model, prompt, &mut sampler, &exactly(n), |_| false);
        assert!(stopped.unwrap().tokens.is_empty());
        let wanted = sampler.wanted();
        let whole = matches!(runner.row(), RowOutputs::Logits(_));
        assert_eq!(whole, wanted == LogitsMode::Logits, "{sampling:?}");
        assert_eq!(runner.logits().is_empty(), !whole);
    }

    // A batch of samplers that need few tokens, and one with all.
    let pool = RunnerOptions {
        pool_cells: Some(256 * all.len()),
        max_logit_rows: all.len(),
        ..options(256)
    };
    let few: Vec<usize> = (0..seeds as usize + 3).collect();
    let every: Vec<usize> = (0..all.len()).collect();
    let mut batch = BatchRunner::new(&model, backend, &pool).unwrap();
    for chosen in [few, every] {
        let mut lanes = vec![];
        for (seq, index) in (0..).zip(&chosen) {
            batch.remove(seq).unwrap();
            batch.sequence(seq).feed(prompt, &mut |_| true).unwrap();
            lanes.push((seq, Sampler::new(all[*index].clone())));
        }
        let found = batch.generate_lanes(&model, &mut lanes, &exactly(n), |_, _| true);
        for (found, index) in found.unwrap().iter().zip(&chosen) {
            assert_eq!(
                found.tokens, expected[*index],
                "{:?} in a batch",
                all[*index]
            );
        }
    }
    drop(batch);

    // An engine whose requests come and go; one of them asks for log-probabilities.
    let scheduler = SchedulerOptions {
        slots: 4,
        ..SchedulerOptions::default()
    };
    let engine = Engine::start(model.clone(), backend, &pool, &scheduler).unwrap();
    let request = |index: usize| Request {
        sampling: all[index].clone(),
        options: exactly(n),
        logprobs: (index == 1).then_some(1),
        ..Request::new(prompt.to_vec())
    };
    let handles = (0..all.len()).map(|i| engine.handle().generate(request(i)).unwrap());
    let handles: Vec<_> = handles.collect();
    for (index, events) in handles.into_iter().enumerate() {
        let mut tokens = vec![];
        for event in events {
            match event {
                RequestEvent::Token(token) => tokens.push(token.id),
                RequestEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        assert_eq!(tokens, expected[index], "{:?} in an engine", all[index]);
    }
    expected
}

#[test]
fn sampled_tokens_of_fixtures_are_those_of_all_logits() {
    let mut backends = vec![device()];
    if is_gpu(&*backends[0]) {
        backends.push(cpu());
    }
    for backend in backends {
        for name in ["llama_plain", "gemma3", "phi3_q8_0"] {
            let model = fixture(name);
            let prompt = some_tokens(&model, 12);
            check(model, &*backend, &prompt, 3, 24);
        }
    }
}

#[test]
fn sampled_text_is_that_of_all_logits() {
    let device = device();
    let (seeds, n) = if is_gpu(&*device) { (8, 64) } else { (3, 12) };
    let Some(model) = real_model(&OpenOptions::default()) else {
        return;
    };
    let prompt = encode(&model, "Once upon a time, there was");
    let found = check(model, &*device, &prompt, seeds, n);
    assert_ne!(found[0], found[1], "seeds draw different texts");
}

/// An empty prompt goes on from what the last feed computed, if the sampler needs no more.
#[test]
fn an_empty_prompt_needs_the_outputs_of_its_sampler() {
    let (model, device) = (fixture("llama_plain"), device());
    let mut runner = runner(&model, &*device, 64);
    let drawn = |top_k| SamplerOptions {
        top_k,
        ..SamplerOptions::default()
    };
    // With 0 tokens it stops after the prompt.
    let mut go_on = |prompt: &[u32], sampling: SamplerOptions, n: usize| {
        let mut sampler = Sampler::new(sampling);
        let found = runner.generate(&model, prompt, &mut sampler, &exactly(n), |_| n > 0);
        found.map(|found| found.tokens.len())
    };
    assert_eq!(go_on(&[1, 2, 3], drawn(8), 0).unwrap(), 0);
    assert!(
        go_on(&[], drawn(9), 3).is_err(),
        "only eight outputs are known"
    );
    assert!(go_on(&[], drawn(0), 3).is_err(), "all logits are needed");
    assert_eq!(go_on(&[], drawn(4), 3).unwrap(), 3);
    // The last token is fed with what the next sampler needs.
    assert_eq!(go_on(&[], drawn(0), 3).unwrap(), 3);
    assert_eq!(go_on(&[], greedy(), 3).unwrap(), 3);
    assert_eq!(go_on(&[4], drawn(0), 0).unwrap(), 0);
    assert_eq!(go_on(&[], drawn(5), 3).unwrap(), 3, "all logits are known");
}

/// The time of a decoded token with samples from all logits and from the tokens that the device finds.
#[test]
fn the_time_of_a_token_is_shown() {
    let device = device();
    let Some(model) = real_model(&OpenOptions::default()) else {
        return;
    };
    if !is_gpu(&*device) {
        return;
    }
    let prompt = encode(&model, PROMPTS[1]);
    let mut runner = runner(&model, &*device, 512);
    for sampling in [greedy(), SamplerOptions::default()] {
        for _ in 0..2 {
            runner.rewind(0).unwrap();
            let start = std::time::Instant::now();
            from_all_logits(&mut runner, &prompt, &sampling, 257);
            let whole = start.elapsed() / 257;
            runner.rewind(0).unwrap();
            let mut sampler = Sampler::new(sampling.clone());
            let found = runner.generate(&model, &prompt, &mut sampler, &exactly(257), |_| true);
            let timings = found.unwrap().timings;
            let few = timings.decode_time / timings.decoded_tokens as u32;
            let temperature = sampling.temperature;
            note(&format!(
                "temperature {temperature}: {whole:?} a token from all logits, {few:?} from the best"
            ));
        }
    }
}
