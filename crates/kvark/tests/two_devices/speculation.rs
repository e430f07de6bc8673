//! Speculation with the target on the GPU and the draft on either device.

use super::*;
use crate::common::GenerateForms;
use kvark::BatchRunner;
use kvark::generate::Sampler;
use kvark::speculative::{Drafter, SpecOptions, SpecType, Speculator, VerifyCosts};

/// Compares speculation on `device` with plain decoding there. The draft is on `draft_device`.
fn check(
    model: &Model,
    draft: &Model,
    [device, draft_device]: [&dyn Backend; 2],
    prompts: &[Vec<u32>],
    (kind, tokens): (SpecType, usize),
) {
    let options = options(256);
    let drafter = Drafter::new(draft, model, draft_device, &options, 2).unwrap();
    let mut target = BatchRunner::with_trees(model, device, &options, 1, 0, 12).unwrap();
    let mut plain = Runner::new(model, device, &options).unwrap();
    let drawn = SamplerOptions {
        seed: 5,
        ..SamplerOptions::default()
    };
    let (mut rounds, mut generated) = (0, 0);
    for prompt in prompts {
        for sampling in [greedy(), drawn.clone()] {
            plain.rewind(0).unwrap();
            let mut sampler = Sampler::new(sampling.clone());
            let expect = plain.generate(model, prompt, &mut sampler, &exactly(tokens), |_| true);
            for (max_candidates, max_depth, top_k) in [(4, 4, 1), (12, 6, 3)] {
                let spec = SpecOptions {
                    kind,
                    max_candidates,
                    max_depth,
                    top_k,
                    trace: false,
                    prediction: vec![],
                };
                let costs = VerifyCosts::default();
                let mut speculator = Speculator::new(&spec, &costs, Some(&drafter)).unwrap();
                let mut sampler = Sampler::new(sampling.clone());
                target.remove(0).unwrap();
                let both = (&mut sampler, &mut speculator);
                let options = exactly(tokens);
                let found = target.generate_speculative(model, 0, prompt, both, &options, |_| true);
                let expect = &expect.as_ref().unwrap().tokens;
                assert_eq!(found.unwrap().tokens, *expect, "{spec:?}");
                rounds += speculator.stats().rounds;
                generated += speculator.stats().tokens;
            }
        }
    }
    let mean = generated as f64 / rounds as f64;
    let (target, draft) = (device.id(), draft_device.id());
    note(&format!(
        "{kind:?} on {draft} for a target on {target}: {mean:.2} tokens a round"
    ));
    assert!(mean > 1.0, "the draft proposes what the target says");
}

#[test]
fn a_draft_on_either_device_gives_the_tokens_of_plain_decoding() {
    let (cpu, device) = (cpu(), device());
    for [target, draft] in [[&*device, &*cpu], [&*device, &*device], [&*cpu, &*device]] {
        for name in ["llama_plain", "gemma3"] {
            let model = fixture(name);
            let prompts = [some_tokens(&model, 14)];
            check(
                &model,
                &model,
                [target, draft],
                &prompts,
                (SpecType::Draft, 40),
            );
        }
    }
    let Some(model) = real_model(&OpenOptions::default()) else {
        return;
    };
    let tokens = if is_gpu(&*device) { 48 } else { 8 };
    let prompts = [encode(&model, PROMPTS[1])];
    check(
        &model,
        &model,
        [&*device, &*cpu],
        &prompts,
        (SpecType::Draft, tokens),
    );
}

#[test]
fn an_eagle3_head_on_either_device_gives_the_tokens_of_plain_decoding() {
    let path = repository("training/eagle3/smollm2-135m-instruct.eagle3.gguf");
    let head = Model::open(&path, None).unwrap();
    let layers = Drafter::feature_layers(head.artifact()).unwrap();
    let options = OpenOptions {
        feature_layers: layers.clone(),
        ..OpenOptions::default()
    };
    let Some(model) = real_model(&options) else {
        return;
    };
    let (cpu, device) = (cpu(), device());
    let (prompts, tokens) = match is_gpu(&*device) {
        true => (4, 64),
        false => (1, 12),
    };
    let prompts: Vec<_> = PROMPTS[..prompts]
        .iter()
        .map(|p| encode(&model, p))
        .collect();
    for draft in [&*cpu, &*device] {
        check(
            &model,
            &head,
            [&*device, draft],
            &prompts,
            (SpecType::Eagle3, tokens),
        );
    }
}

#[test]
fn an_assistant_on_either_device_gives_the_tokens_of_plain_decoding() {
    let path = "crates/import/tests/fixtures/assistant/gemma4_agrees_assistant.gguf";
    let head = Model::open(&repository(path), Some(128)).unwrap();
    let layers = Drafter::feature_layers(head.artifact()).unwrap();
    let options = OpenOptions {
        feature_layers: layers.clone(),
        ..OpenOptions::default()
    };
    let path = repository("crates/import/tests/fixtures/decoder/gemma4_agrees.gguf");
    let model = Model::open_with(&path, &options).unwrap();
    let prompts = [some_tokens(&model, 14)];
    let (cpu, device) = (cpu(), device());
    for devices in [[&*device, &*cpu], [&*device, &*device], [&*cpu, &*device]] {
        check(&model, &head, devices, &prompts, (SpecType::Mtp, 30));
    }
}
