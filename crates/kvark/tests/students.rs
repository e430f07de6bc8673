//! The trained hybrid and the trained mixture of experts of `training/students`: text and log-probabilities of transformers, branches with the
//! bits of cold runs, and speculation with the text of plain decoding.

mod common;

use common::GenerateForms;
use kvark::generate::{BatchToken, GenerateOptions, Sampler, SamplerOptions};
use kvark::speculative::{SpecOptions, SpecType, Speculator, VerifyCosts};
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions};
use serde_json::Value;
use std::path::{Path, PathBuf};

const CONTEXT: usize = 512;
/// How far products of quantised weights may move the distance of two logits.
const NEAR: f64 = 0.05;

struct Student {
    name: String,
    model: Model,
    expected: Value,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../training/students")
}

fn students() -> Vec<Student> {
    let text = std::fs::read_to_string(folder().join("expected.json")).unwrap();
    let Value::Object(all) = serde_json::from_str(&text).unwrap() else {
        panic!("expected.json has a model for each key");
    };
    let open = |(name, expected): (String, Value)| Student {
        model: Model::open(&folder().join(&name), Some(CONTEXT)).unwrap(),
        name,
        expected,
    };
    all.into_iter().map(open).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    let all = value.as_array().unwrap().iter();
    all.map(|number| number.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

fn sampler() -> Sampler {
    Sampler::new(SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    })
}

fn options() -> RunnerOptions {
    RunnerOptions {
        context: Some(CONTEXT),
        state_interval: 32,
        ..RunnerOptions::default()
    }
}

fn greedy(tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

/// The answers of transformers: prompt, tokens, and by how much each is ahead of the second.
fn answers(student: &Student) -> Vec<(Vec<u32>, Vec<u32>, Vec<f64>)> {
    let answers = student.expected["answers"].as_array().unwrap();
    let read = |answer: &Value| {
        let [prompt, tokens] = ["prompt", "tokens"].map(|key| ids(&answer[key]));
        (prompt, tokens, numbers(&answer["margins"]))
    };
    answers.iter().map(read).collect()
}

#[test]
fn greedy_text_and_log_probabilities_are_those_of_transformers() {
    let cpu = Cpu::new().unwrap();
    for student in students() {
        let name = &student.name;
        let mut compared = 0;
        for (prompt, tokens, margins) in answers(&student) {
            let mut runner = Runner::new(&student.model, &cpu, &options()).unwrap();
            let found = runner
                .generate(
                    &student.model,
                    &prompt,
                    &mut sampler(),
                    &greedy(tokens.len()),
                    |_| true,
                )
                .unwrap();
            // A token that is hardly ahead of the second may be the other one, and all that follows is another text then.
            let sure = margins.iter().take_while(|margin| **margin > NEAR).count();
            assert_eq!(found.tokens[..sure], tokens[..sure], "{name}");
            compared += sure;
        }
        assert!(compared >= 15, "{name}: only {compared} tokens were sure");
        let text = ids(&student.expected["text"]);
        let expected = numbers(&student.expected["logprobs"]);
        let mut runner = Runner::new(&student.model, &cpu, &options()).unwrap();
        let score = runner.score(&text, |_| true).unwrap();
        assert_eq!(score.logprob.len(), expected.len());
        let pairs = score.logprob.iter().zip(&expected);
        let distance = pairs.map(|(a, b)| (a - b).abs()).sum::<f64>() / expected.len() as f64;
        assert!(distance < 0.02, "{name}: mean distance {distance}");
    }
}

#[test]
fn branches_have_the_bits_of_cold_runs() {
    let cpu = Cpu::new().unwrap();
    for student in students() {
        let (prompt, tokens, _) = answers(&student).remove(0);
        let mut runner =
            BatchRunner::with_trees(&student.model, &cpu, &options(), 3, 0, 0).unwrap();
        runner.sequence(0).feed(&prompt, |_| true).unwrap();
        runner.fork(0, 1).unwrap();
        let again = runner.fork_prefix(0, 2, prompt.len() - 3).unwrap();
        assert!(
            again < 32,
            "{}: {again} tokens were computed again",
            student.name
        );
        let suffixes = [&tokens[..20], &tokens[20..40], &tokens[7..27]];
        for i in 0..20 {
            let step: Vec<_> = (0..)
                .zip(suffixes)
                .map(|(seq, suffix)| BatchToken {
                    seq,
                    id: suffix[i],
                    logits: true,
                })
                .collect();
            runner.step(&step).unwrap();
        }
        let kept = [prompt.len(), prompt.len(), prompt.len() - 3];
        for ((seq, kept), suffix) in (0..).zip(kept).zip(suffixes) {
            let all = [&prompt[..kept], suffix].concat();
            let mut cold = Runner::new(&student.model, &cpu, &options()).unwrap();
            cold.feed(&all, |_| true).unwrap();
            assert!(
                runner.logits(seq) == cold.logits(),
                "{}: branch {seq}",
                student.name
            );
        }
    }
}

#[test]
fn speculation_writes_the_text_of_plain_decoding_in_fewer_steps() {
    let cpu = Cpu::new().unwrap();
    for student in students() {
        for (prompt, _, _) in answers(&student) {
            let mut plain = Runner::new(&student.model, &cpu, &options()).unwrap();
            let text = plain
                .generate(&student.model, &prompt, &mut sampler(), &greedy(96), |_| {
                    true
                })
                .unwrap();
            let spec = SpecOptions {
                kind: SpecType::Ngram,
                ..SpecOptions::default()
            };
            let candidates = spec.max_candidates;
            let mut runner =
                BatchRunner::with_trees(&student.model, &cpu, &options(), 1, 0, candidates)
                    .unwrap();
            let mut speculator = Speculator::new(&spec, &VerifyCosts::default(), None).unwrap();
            let both = (&mut sampler(), &mut speculator);
            let found = runner
                .generate_speculative(&student.model, 0, &prompt, both, &greedy(96), |_| true)
                .unwrap();
            assert_eq!(found.tokens, text.tokens, "{}", student.name);
            let stats = found.speculation.unwrap();
            assert!(stats.rounds < 60, "{}: {stats:?}", student.name);
        }
    }
}
