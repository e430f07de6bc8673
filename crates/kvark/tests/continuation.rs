//! A generation that goes on where the last one ended: two calls give the tokens of one, in every kind of sequence.

mod common;

use common::GenerateForms;
use kvark::generate::{GenerateOutput, Generator, SamplerOptions};
use kvark::prelude::*;
use kvark::speculative::{SpecOptions, SpecType, Speculator, VerifyCosts};
use std::path::Path;

fn model(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), Some(64)).unwrap()
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + i / 5) % 60).collect()
}

fn exactly(n: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(n),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

/// Greedy, from the most likely tokens, and from all logits.
fn samplers() -> [SamplerOptions; 3] {
    let drawn = SamplerOptions {
        temperature: 1.5,
        seed: 7,
        ..SamplerOptions::default()
    };
    [
        SamplerOptions {
            temperature: 0.0,
            ..SamplerOptions::default()
        },
        SamplerOptions {
            top_k: 20,
            ..drawn.clone()
        },
        SamplerOptions {
            repeat_penalty: 1.3,
            ..drawn
        },
    ]
}

fn runner(model: &Model) -> Runner {
    Runner::new(model, &Cpu::new().unwrap(), &RunnerOptions::default()).unwrap()
}

fn batch(model: &Model) -> BatchRunner {
    let options = RunnerOptions {
        max_logit_rows: 4,
        ..RunnerOptions::default()
    };
    BatchRunner::with_trees(model, &Cpu::new().unwrap(), &options, 4, 0, 8).unwrap()
}

/// What one call of 12 tokens generates after `prompt`.
fn whole(model: &Model, prompt: &[u32], sampling: &SamplerOptions) -> Vec<u32> {
    let mut sampler = Sampler::new(sampling.clone());
    let found = runner(model).generate(model, prompt, &mut sampler, &exactly(12), |_| true);
    found.unwrap().tokens
}

#[test]
fn two_calls_generate_what_one_generates() {
    for name in ["llama_plain", "gemma3", "qwen3next"] {
        let model = model(name);
        let prompt = tokens(9);
        for sampling in samplers() {
            let expect = whole(&model, &prompt, &sampling);
            for first in [1, 6, 11] {
                let mut sampler = Sampler::new(sampling.clone());
                let mut runner = runner(&model);
                let mut go_on = |prompt: &[u32], n: usize| {
                    let found =
                        runner.generate(&model, prompt, &mut sampler, &exactly(n), |_| true);
                    found.unwrap().tokens
                };
                let found = [go_on(&prompt, first), go_on(&[], 12 - first)].concat();
                assert_eq!(found, expect, "{name}, {first} tokens first");
                assert_eq!(runner.tokens(), [&prompt[..], &expect].concat());
            }
        }
    }
}

#[test]
fn a_prompt_after_a_generation_follows_its_last_token() {
    let model = model("llama_plain");
    let (prompt, more) = (tokens(9), [5, 6, 7]);
    let sampling = &samplers()[0];
    let mut continued = runner(&model);
    let mut sampler = Sampler::new(sampling.clone());
    let first = continued.generate(&model, &prompt, &mut sampler, &exactly(6), |_| true);
    let all = [&prompt[..], &first.unwrap().tokens, &more].concat();
    let mut cold = runner(&model);
    cold.feed(&all, |_| true).unwrap();
    let logits = cold.logits().to_vec();
    let expect = cold.generate(&model, &[], &mut sampler, &exactly(6), |_| true);
    let mut progress = vec![];
    continued
        .feed(&more, |done| {
            progress.push(done);
            true
        })
        .unwrap();
    assert_eq!(continued.logits(), logits);
    assert_eq!(continued.tokens(), all);
    assert_eq!(progress, [3], "the tokens of the caller are counted");
    let found = continued.generate(&model, &[], &mut sampler, &exactly(6), |_| true);
    assert_eq!(found.unwrap().tokens, expect.unwrap().tokens);
}

#[test]
fn feeding_nothing_computes_the_logits_after_a_generation() {
    let model = model("llama_plain");
    let prompt = tokens(9);
    let mut sampler = Sampler::new(samplers()[0].clone());
    let mut generated = runner(&model);
    let first = generated.generate(&model, &prompt, &mut sampler, &exactly(4), |_| true);
    let all = [&prompt[..], &first.unwrap().tokens].concat();
    assert!(generated.logits().is_empty(), "the last token was not fed");
    generated.feed(&[], |_| true).unwrap();
    let mut cold = runner(&model);
    cold.feed(&all, |_| true).unwrap();
    assert_eq!(generated.logits(), cold.logits());
    // The same for a prefix that other runners share, and for the rows of several tokens.
    let mut frozen = runner(&model);
    frozen
        .generate(&model, &prompt, &mut sampler, &exactly(4), |_| true)
        .unwrap();
    assert_eq!(frozen.freeze(&model).unwrap().tokens(), all);
    let mut scored = runner(&model);
    scored
        .generate(&model, &prompt, &mut sampler, &exactly(4), |_| true)
        .unwrap();
    let mut rows = vec![];
    let row = |_: usize, logits: &[f32]| {
        rows.push(logits.to_vec());
        true
    };
    scored.feed_all_logits(&[3, 4], row).unwrap();
    cold.feed(&[3], |_| true).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], cold.logits());
}

#[test]
fn a_rewind_counts_the_last_token_of_a_generation() {
    let model = model("llama_plain");
    let prompt = tokens(9);
    let sampling = &samplers()[0];
    let expect = whole(&model, &prompt, sampling);
    for kept in 1..=4 {
        let mut runner = runner(&model);
        let mut sampler = Sampler::new(sampling.clone());
        runner
            .generate(&model, &prompt, &mut sampler, &exactly(4), |_| true)
            .unwrap();
        runner.rewind(prompt.len() + kept).unwrap();
        assert_eq!(
            runner.tokens(),
            [&prompt[..], &expect[..kept]].concat(),
            "{kept}"
        );
        let rest = &expect[kept..kept + 1];
        let found = runner.generate(&model, rest, &mut sampler, &exactly(3), |_| true);
        assert_eq!(found.unwrap().tokens, expect[kept + 1..kept + 4], "{kept}");
    }
    let mut runner = runner(&model);
    let mut sampler = Sampler::new(sampling.clone());
    runner
        .generate(&model, &prompt, &mut sampler, &exactly(4), |_| true)
        .unwrap();
    assert!(runner.rewind(prompt.len() + 5).is_err());
}

#[test]
fn a_full_context_keeps_the_last_token_and_refuses_more() {
    let model = model("llama_plain");
    let prompt = tokens(9);
    let options = RunnerOptions {
        context: Some(12),
        ..RunnerOptions::default()
    };
    let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &options).unwrap();
    let mut sampler = Sampler::new(samplers()[0].clone());
    let full = runner.generate(&model, &prompt, &mut sampler, &exactly(9), |_| true);
    let full = full.unwrap();
    assert_eq!((full.tokens.len(), full.finish), (4, FinishReason::Context));
    assert_eq!(runner.tokens().len(), 13);
    assert!(!runner.can_extend(0).unwrap());
    assert!(runner.feed(&[1], |_| true).is_err());
    let more = runner.generate(&model, &[], &mut sampler, &exactly(9), |_| true);
    let more = more.unwrap();
    assert_eq!((more.tokens.len(), more.finish), (0, FinishReason::Context));
}

#[test]
fn branches_go_on_where_they_ended() {
    for name in ["llama_plain", "gemma3"] {
        let model = model(name);
        let prompt = tokens(9);
        for sampling in samplers() {
            let expect = whole(&model, &prompt, &sampling);
            let mut branches = batch(&model);
            branches.sequence(0).feed(&prompt, &mut |_| true).unwrap();
            let mut lanes = vec![(0, Sampler::new(sampling.clone()))];
            let first = branches.generate_lanes(&model, &mut lanes, &exactly(5), |_, _| true);
            assert_eq!(first.unwrap()[0].tokens, expect[..5]);
            let all = [&prompt[..], &expect[..5]].concat();
            assert_eq!(branches.tokens(0), all);
            // A fork has the last token too, and a shorter one ends before it.
            branches.fork(0, 1).unwrap();
            branches.fork_prefix(0, 2, all.len()).unwrap();
            branches.fork_prefix(0, 3, all.len() - 1).unwrap();
            assert_eq!(
                (branches.tokens(1), branches.tokens(2)),
                (&all[..], &all[..])
            );
            assert_eq!(branches.tokens(3), &all[..all.len() - 1]);
            branches.remove(3).unwrap();
            let mut lanes: Vec<_> = (0..2).map(|seq| (seq, lanes[0].1.clone())).collect();
            let rest = branches.generate_lanes(&model, &mut lanes, &exactly(7), |_, _| true);
            for GenerateOutput { tokens, .. } in rest.unwrap() {
                assert_eq!(tokens, expect[5..], "{name}");
            }
            // A step feeds the last token before its own.
            let token = BatchToken {
                seq: 2,
                id: 5,
                logits: true,
            };
            branches.step(&[token]).unwrap();
            let mut cold = runner(&model);
            cold.feed(&[&all[..], &[5]].concat(), |_| true).unwrap();
            assert_eq!(branches.logits(2), cold.logits(), "{name}");
            assert_eq!(branches.tokens(2), cold.tokens());
        }
    }
}

#[test]
fn one_sequence_of_a_pool_goes_on_with_and_without_speculation() {
    let model = model("llama_plain");
    let prompt = tokens(9);
    for sampling in samplers() {
        let expect = whole(&model, &prompt, &sampling);
        for speculative in [[true, true], [true, false], [false, true], [false, false]] {
            let mut pool = batch(&model);
            let mut sampler = Sampler::new(sampling.clone());
            let mut found = vec![];
            for (on, prompt) in speculative.into_iter().zip([&prompt[..], &[]]) {
                let mut speculator = speculator();
                let generated = match on {
                    true => {
                        let both = (&mut sampler, &mut speculator);
                        pool.generate_speculative(&model, 0, prompt, both, &exactly(6), |_| true)
                    }
                    false => {
                        let mut sequence = pool.sequence(0);
                        let each = &mut sampler;
                        kvark::generate::generate(
                            &mut sequence,
                            &model,
                            prompt,
                            each,
                            &exactly(6),
                            |_| true,
                        )
                    }
                };
                found.extend(generated.unwrap().tokens);
            }
            assert_eq!(found, expect, "speculation {speculative:?}");
            assert_eq!(pool.tokens(0), [&prompt[..], &expect].concat());
            // A prompt of one token, which becomes the root of a tree.
            let mut speculator = speculator();
            let both = (&mut sampler, &mut speculator);
            pool.generate_speculative(&model, 0, &[5], both, &exactly(2), |_| true)
                .unwrap();
            assert_eq!(pool.tokens(0).len(), prompt.len() + 12 + 1 + 2);
        }
        let mut pool = batch(&model);
        pool.sequence(0).feed(&prompt, &mut |_| true).unwrap();
        pool.fork(0, 1).unwrap();
        let lane = |seq| (seq, Sampler::new(sampling.clone()), speculator());
        let mut lanes = vec![lane(0), lane(1)];
        let mut found = vec![vec![], vec![]];
        for _ in 0..2 {
            let part =
                pool.generate_speculative_batch(&model, &mut lanes, &exactly(6), |_, _| true);
            for (found, part) in found.iter_mut().zip(part.unwrap()) {
                found.extend(part.tokens);
            }
        }
        assert_eq!(found, [expect.clone(), expect.clone()]);
        assert_eq!(pool.tokens(1), [&prompt[..], &expect].concat());
    }
}

fn speculator() -> Speculator {
    let options = SpecOptions {
        kind: SpecType::Ngram,
        max_candidates: 7,
        ..SpecOptions::default()
    };
    Speculator::new(&options, &VerifyCosts::default(), None).unwrap()
}

#[test]
fn a_paused_generation_goes_on_after_the_sequence_was_read() {
    let model = model("llama_plain");
    let prompt = tokens(9);
    for sampling in samplers() {
        let expect = whole(&model, &prompt, &sampling);
        let sampler = Sampler::new(sampling);
        let mut runner = runner(&model);
        let options = exactly(12);
        let mut paused =
            Generator::new(&mut runner, &model, &prompt, sampler, &options).map(Generator::pause);
        let mut lens = vec![];
        let output = loop {
            let mut running = paused.unwrap().resume(runner.batch(), &model);
            let event = running.next().transpose().unwrap();
            paused = Ok(running.pause());
            lens.push(runner.tokens().len());
            if event.is_none() {
                break paused.unwrap().finish();
            }
        };
        assert_eq!(output.tokens, expect);
        assert_eq!(output.finish, FinishReason::Length);
        // The prompt, one token for each call, and the call that finds the end.
        let calls = (9..=21).chain([21]);
        assert_eq!(lens, calls.collect::<Vec<_>>());
    }
}
