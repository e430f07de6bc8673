//! Speculative decoding gives the tokens of plain decoding, whatever is proposed.

mod assistant;
#[path = "../common/mod.rs"]
mod common;
mod drafts;
mod faults;
mod heads;
mod mtp;

use common::GenerateForms;

use kvark::cache::KvStorage;
use kvark::engine::{Engine, Request, RequestEvent, RequestOutput, SchedulerOptions};
use kvark::generate::{FinishReason, GenerateOptions, GenerateOutput, Sampler, SamplerOptions};
use kvark::model::{FeatureLayers, OpenOptions};
use kvark::speculative::{
    Drafter, RoundTrace, SpecOptions, SpecType, Speculator, TreeProposal, VerifyCosts, verify_tree,
};
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions};
use std::path::Path;
use std::sync::Arc;

fn fixture(name: &str) -> Arc<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Arc::new(Model::open(&folder.join(format!("{name}.gguf")), None).unwrap())
}

const KINDS: [SpecType; 3] = [SpecType::Ngram, SpecType::Draft, SpecType::Auto];

const MODELS: [&str; 4] = ["llama_plain", "gemma3", "mistral", "phi3_q8_0"];

/// Numbers from a linear congruential generator.
fn random(state: &mut u64, below: u32) -> u32 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
    ((*state >> 33) % u64::from(below)) as u32
}

/// A prompt that repeats itself, so that there is something to look up.
fn prompt(model: &Model, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let vocab = model.facts().vocab_size as u32;
    let phrase: Vec<u32> = (0..7).map(|_| random(&mut state, vocab)).collect();
    let mut prompt = phrase.repeat(3);
    prompt.truncate(12 + random(&mut state, 9) as usize);
    prompt
}

fn runner_options(context: usize) -> RunnerOptions {
    RunnerOptions {
        context: Some(context),
        max_step_tokens: 16,
        ..RunnerOptions::default()
    }
}

fn shapes(kind: SpecType) -> Vec<SpecOptions> {
    [(1, 1, 1), (4, 4, 1), (6, 3, 2), (12, 8, 4)]
        .map(|(max_candidates, max_depth, top_k)| SpecOptions {
            kind,
            max_candidates,
            max_depth,
            top_k,
            trace: true,
            prediction: vec![],
        })
        .to_vec()
}

/// Tokens and logits may coincide by chance in a random model; the text of its tokens does not matter.
fn plain(
    model: &Model,
    prompt: &[u32],
    sampling: &SamplerOptions,
    options: &GenerateOptions,
    runner: &RunnerOptions,
    shift: Option<usize>,
) -> GenerateOutput {
    let mut runner = Runner::new(model, &Cpu::new().unwrap(), runner).unwrap();
    if let Some(keep) = shift {
        runner.enable_context_shift(keep).unwrap();
    }
    let mut sampler = Sampler::new(sampling.clone());
    runner
        .generate(model, prompt, &mut sampler, options, |_| true)
        .unwrap()
}

struct Speculation {
    runner: BatchRunner,
    costs: VerifyCosts,
    draft: Option<Drafter>,
}

impl Speculation {
    fn new(model: &Model, draft: Option<&Model>, options: &RunnerOptions) -> Speculation {
        let cpu = Cpu::new().unwrap();
        let draft = draft.map(|draft| Drafter::new(draft, model, &cpu, options, 4).unwrap());
        Speculation {
            runner: BatchRunner::with_trees(model, &cpu, options, 1, 0, 12).unwrap(),
            costs: VerifyCosts::default(),
            draft,
        }
    }

    fn speculator(&self, spec: &SpecOptions) -> Speculator {
        Speculator::new(spec, &self.costs, self.draft.as_ref()).unwrap()
    }

    fn generate(
        &mut self,
        model: &Model,
        prompt: &[u32],
        sampling: &SamplerOptions,
        options: &GenerateOptions,
        spec: &SpecOptions,
    ) -> (GenerateOutput, Speculator) {
        self.runner.remove(0).unwrap();
        let mut sampler = Sampler::new(sampling.clone());
        let mut speculator = self.speculator(spec);
        let both = (&mut sampler, &mut speculator);
        let generated = self
            .runner
            .generate_speculative(model, 0, prompt, both, options, |_| true)
            .unwrap();
        (generated, speculator)
    }
}

fn greedy() -> SamplerOptions {
    SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    }
}

fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(n),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

#[test]
fn every_proposer_and_shape_gives_the_tokens_of_plain_decoding() {
    let penalised = SamplerOptions {
        repeat_penalty: 1.3,
        dry_multiplier: 0.5,
        ..greedy()
    };
    let drawn = SamplerOptions {
        temperature: 1.0,
        xtc_probability: 0.3,
        seed: 9,
        ..SamplerOptions::default()
    };
    for name in MODELS {
        let model = fixture(name);
        let options = runner_options(128);
        let mut alone = Speculation::new(&model, Some(&model), &options);
        for (index, sampling) in [greedy(), penalised.clone(), drawn.clone()]
            .iter()
            .enumerate()
        {
            let prompt = prompt(&model, 3 + index as u64);
            let expected = plain(&model, &prompt, sampling, &tokens(40), &options, None);
            for kind in KINDS {
                for spec in shapes(kind) {
                    let (found, speculator) =
                        alone.generate(&model, &prompt, sampling, &tokens(40), &spec);
                    assert_eq!(found.tokens, expected.tokens, "{name} {spec:?}");
                    assert_eq!(
                        (&found.text, found.finish),
                        (&expected.text, expected.finish)
                    );
                    let stats = speculator.stats();
                    // The first token is sampled from the outputs of the prompt.
                    assert_eq!(stats.tokens, 39);
                    assert_eq!(stats.trace.len(), stats.rounds);
                    assert_eq!(stats.accepted + stats.rounds, 39);
                    let accepted: usize = stats.by_depth.iter().map(|d| d.accepted).sum();
                    assert_eq!(accepted, stats.accepted);
                    // A model proposes what it would choose itself.
                    if kind == SpecType::Draft && index == 0 && spec.top_k == 1 {
                        assert_eq!(stats.accepted, stats.drafted, "{name} {spec:?}");
                        assert!(stats.accepted > 0);
                    }
                }
            }
        }
    }
}

#[test]
fn generations_end_inside_a_round_where_plain_decoding_ends() {
    let model = fixture("llama_plain");
    let draft = Some(&*model);
    let spec = &shapes(SpecType::Draft)[3];
    let prompt = prompt(&model, 1);
    // Every length, a context that fills up, and a context that is shifted.
    for n in 1..14 {
        let expected = plain(
            &model,
            &prompt,
            &greedy(),
            &tokens(n),
            &runner_options(64),
            None,
        );
        let mut alone = Speculation::new(&model, draft, &runner_options(64));
        let (found, _) = alone.generate(&model, &prompt, &greedy(), &tokens(n), spec);
        assert_eq!(
            (found.tokens, found.finish),
            (expected.tokens.clone(), expected.finish)
        );
        // What is held is the same too.
        let held = [&prompt[..], &expected.tokens].concat();
        assert_eq!(alone.runner.tokens(0), held);
    }
    for context in [prompt.len() + 1, prompt.len() + 5, 40] {
        let options = runner_options(context);
        let expected = plain(&model, &prompt, &greedy(), &tokens(99), &options, None);
        assert_eq!(expected.finish, FinishReason::Context);
        let mut alone = Speculation::new(&model, draft, &options);
        let (found, _) = alone.generate(&model, &prompt, &greedy(), &tokens(99), spec);
        assert_eq!(found.finish, FinishReason::Context);
        assert_eq!(found.tokens, expected.tokens);
    }
    let options = runner_options(32);
    let expected = plain(&model, &prompt, &greedy(), &tokens(60), &options, Some(4));
    assert_eq!(expected.tokens.len(), 60);
    for kind in [SpecType::Ngram, SpecType::Draft] {
        let mut alone = Speculation::new(&model, draft, &options);
        alone.runner.enable_context_shift(4).unwrap();
        let spec = &shapes(kind)[2];
        let (found, _) = alone.generate(&model, &prompt, &greedy(), &tokens(60), spec);
        assert_eq!(found.tokens, expected.tokens, "{kind:?}");
    }
    // A caller who cancels gets the tokens up to there.
    let mut alone = Speculation::new(&model, draft, &runner_options(64));
    let mut sampler = Sampler::new(greedy());
    let mut speculator = alone.speculator(spec);
    let mut left = 5;
    let both = (&mut sampler, &mut speculator);
    let found = alone
        .runner
        .generate_speculative(&model, 0, &prompt, both, &tokens(30), |event| {
            left -= usize::from(matches!(event, kvark::generate::GenerateEvent::Text(_)));
            left > 0
        });
    let found = found.unwrap();
    assert_eq!(
        (found.tokens.len(), found.finish),
        (5, FinishReason::Interrupted)
    );
}

#[test]
fn batches_speculate_together() {
    for name in ["llama_plain", "gemma3"] {
        let model = fixture(name);
        let options = RunnerOptions {
            pool_cells: Some(600),
            ..runner_options(128)
        };
        let cpu = Cpu::new().unwrap();
        let draft = Drafter::new(&model, &model, &cpu, &options, 4).unwrap();
        let mut runner = BatchRunner::with_trees(&model, &cpu, &options, 4, 0, 6).unwrap();
        let costs = VerifyCosts::default();
        let prompts: Vec<Vec<u32>> = (0..4).map(|seed| prompt(&model, seed)).collect();
        let kinds = [
            SpecType::Ngram,
            SpecType::Draft,
            SpecType::Auto,
            SpecType::Draft,
        ];
        let mut each = vec![];
        for ((seq, prompt), kind) in (0..).zip(&prompts).zip(kinds) {
            runner.sequence(seq).feed(prompt, &mut |_| true).unwrap();
            let spec = &shapes(kind)[seq as usize % 3];
            let speculator = Speculator::new(spec, &costs, Some(&draft)).unwrap();
            each.push((seq, Sampler::new(greedy()), speculator));
        }
        let found = runner
            .generate_speculative_batch(&model, &mut each, &tokens(50), |_, _| true)
            .unwrap();
        for (prompt, found) in prompts.iter().zip(found) {
            let expected = plain(
                &model,
                prompt,
                &greedy(),
                &tokens(50),
                &runner_options(128),
                None,
            );
            assert_eq!(found.tokens, expected.tokens, "{name}");
        }
    }
}

fn collect(events: kvark::engine::Generation) -> (Vec<u32>, RequestOutput) {
    let (tokens, _, output) = collect_rounds(events);
    (tokens, output)
}

fn collect_rounds(events: kvark::engine::Generation) -> (Vec<u32>, Vec<RoundTrace>, RequestOutput) {
    let (mut tokens, mut rounds) = (vec![], vec![]);
    for event in events {
        match event {
            RequestEvent::Token(token) => tokens.push(token.id),
            RequestEvent::Finished(output) => return (tokens, rounds, *output),
            RequestEvent::Failed(error) => panic!("{error}"),
            RequestEvent::Round(round) => rounds.push(*round),
            RequestEvent::Started(_) | RequestEvent::PromptProgress(_) => {}
        }
    }
    panic!("the events ended without an end");
}

#[test]
fn requests_of_an_engine_speculate_each_for_itself() {
    let model = fixture("llama_plain");
    let runner = |cells| RunnerOptions {
        pool_cells: Some(cells),
        ..runner_options(64)
    };
    let cpu = Cpu::new().unwrap();
    let request = |seed: u64, speculation: Option<SpecOptions>| Request {
        sampling: SamplerOptions {
            temperature: if seed.is_multiple_of(2) { 0.0 } else { 1.0 },
            seed,
            ..SamplerOptions::default()
        },
        options: tokens(8 + seed as usize % 24),
        speculation,
        ..Request::new(prompt(&model, seed))
    };
    let one = SchedulerOptions {
        slots: 1,
        ..SchedulerOptions::default()
    };
    let engine = Engine::start(model.clone(), &cpu, &runner(64), &one).unwrap();
    let alone: Vec<Vec<u32>> = (0..16)
        .map(|seed| collect(engine.handle().generate(request(seed, None)).unwrap()).0)
        .collect();
    // A pool for all of them, and one that is so small that requests are preempted.
    for cells in [2048, 110] {
        let draft = Drafter::new(&model, &model, &cpu, &runner(cells), 8).unwrap();
        let options = SchedulerOptions {
            candidates: 6,
            draft: Some(draft),
            ..SchedulerOptions::default()
        };
        let engine = Engine::start(model.clone(), &cpu, &runner(cells), &options).unwrap();
        let kinds = [
            None,
            Some(SpecType::Ngram),
            Some(SpecType::Draft),
            Some(SpecType::Auto),
        ];
        let all: Vec<_> = (0..16)
            .map(|seed| {
                let kind = kinds[seed as usize % 4];
                let spec = kind.map(|kind| shapes(kind)[seed as usize % 3].clone());
                engine.handle().generate(request(seed, spec)).unwrap()
            })
            .collect();
        for (seed, events) in all.into_iter().enumerate() {
            let (tokens, rounds, output) = collect_rounds(events);
            assert_eq!(tokens, alone[seed], "{cells} cells, request {seed}");
            // The rounds came one by one. Their accepted nodes and bonus tokens are the tokens, but for the first one after a
            // start: a request that was preempted starts again.
            let counted = output.speculation.as_ref().map_or(0, |stats| stats.rounds);
            assert_eq!(rounds.len(), counted);
            let verified = rounds.iter().flat_map(|round| {
                let path = round.accepted[1..].iter();
                let path = path.map(|node| round.tokens[*node as usize]);
                path.chain([round.bonus]).collect::<Vec<u32>>()
            });
            let mut rest = tokens.iter();
            for token in verified {
                assert!(rest.any(|other| *other == token), "{token} in {tokens:?}");
            }
            assert_eq!(output.speculation.is_some(), seed % 4 != 0);
        }
    }
    let bad = SpecOptions {
        max_depth: 0,
        ..SpecOptions::default()
    };
    let refused = engine.handle().generate(request(1, Some(bad))).unwrap();
    let failed = refused.into_iter().last().unwrap();
    let RequestEvent::Failed(error) = failed else {
        panic!("{failed:?}");
    };
    let text = "a speculation depth of 0 proposes nothing: it must be at least 1";
    assert!(error.to_string().ends_with(text), "{error}");
}

/// Two tokens of a small vocabulary, drawn through a tree that is wrong most of the time, have the exact distribution.
#[test]
fn verified_samples_have_the_distribution_of_the_target() {
    const VOCAB: usize = 5;
    let first = [0.4f32, -1.0, 1.2, 0.0, 0.7];
    let second = |token: u32| -> [f32; VOCAB] {
        std::array::from_fn(|i| ((i as f32 + 1.3) * (token as f32 + 0.7)).sin() * 2.0)
    };
    let softmax = |logits: &[f32], temperature: f32| -> Vec<f64> {
        let weights = logits.iter().map(|l| f64::from(l / temperature).exp());
        let weights: Vec<f64> = weights.collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| w / total).collect()
    };
    let temperature = 0.8;
    let mut sampler = Sampler::new(SamplerOptions {
        temperature,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 17,
        ..SamplerOptions::default()
    });
    let rounds = 60_000;
    let mut state = 1;
    let mut counts = [[0u32; VOCAB]; VOCAB];
    for _ in 0..rounds {
        let mut tree = TreeProposal::new(0);
        for _ in 0..random(&mut state, 4) {
            let child = tree.push(0, random(&mut state, VOCAB as u32), 0.5);
            tree.push(child, random(&mut state, VOCAB as u32), 0.5);
        }
        let mut drawn: Vec<u32> = vec![];
        verify_tree(&tree, |node| {
            let token = match drawn.last() {
                None => sampler.sample(&first, &[]),
                Some(before) => {
                    assert_eq!(tree.tokens()[node as usize], *before);
                    sampler.sample(&second(*before), &[])
                }
            };
            drawn.push(token);
            Ok::<_, ()>((token, drawn.len() == 2))
        })
        .unwrap();
        // What the tree did not cover is the next round's.
        if drawn.len() == 1 {
            drawn.push(sampler.sample(&second(drawn[0]), &[]));
        }
        counts[drawn[0] as usize][drawn[1] as usize] += 1;
    }
    let p_first = softmax(&first, temperature);
    let mut chi_square = 0.0;
    for (a, row) in counts.iter().enumerate() {
        let p_second = softmax(&second(a as u32), temperature);
        for (count, p) in row.iter().zip(p_second) {
            let expected = p_first[a] * p * f64::from(rounds);
            chi_square += (f64::from(*count) - expected).powi(2) / expected;
        }
    }
    // 24 degrees of freedom: 51 is exceeded by chance once in a thousand; the seed is fixed.
    assert!(chi_square < 51.0, "{chi_square}");
}

#[test]
fn wrong_options_and_drafts_are_refused() {
    let model = fixture("llama_plain");
    let check = |change: fn(&mut SpecOptions)| {
        let mut options = SpecOptions::default();
        change(&mut options);
        options.check(16).unwrap_err().to_string()
    };
    assert!(check(|o| o.max_depth = 0).contains("depth of 0"));
    assert!(check(|o| o.max_candidates = 0).contains("a tree of 0"));
    assert!(check(|o| o.top_k = 0).contains("top-k"));
    assert!(check(|o| o.max_candidates = 16).contains("does not fit in a step of 16 tokens"));
    let cpu = Cpu::new().unwrap();
    let options = runner_options(32);
    let draft = SpecOptions {
        kind: SpecType::Draft,
        ..SpecOptions::default()
    };
    let missing = Speculator::new(&draft, &VerifyCosts::default(), None)
        .err()
        .unwrap();
    assert!(missing.to_string().contains("needs one"), "{missing}");
    let Some(real) = real_model() else {
        return;
    };
    let other = Drafter::new(&model, &real, &cpu, &options, 1)
        .err()
        .unwrap();
    let text = "the draft model has another vocabulary than the model";
    assert!(other.to_string().contains(text), "{other}");
}

fn real_model() -> Option<Arc<Model>> {
    let path = std::env::var_os("KVARK_TEST_MODEL")?;
    Some(Arc::new(Model::open(Path::new(&path), None).unwrap()))
}

const INSTRUCTIONS: [&str; 4] = [
    "Repeat this list twice: apple, pear, plum, cherry, quince, apricot.",
    "Write a Python function that adds two numbers, then write it again with type hints.",
    "Summarise: The river rises in the hills. The river is long. The river ends in the sea.",
    "What is the capital of France?",
];

fn chat_prompt(model: &Model, index: usize) -> Vec<u32> {
    let text = INSTRUCTIONS[index % INSTRUCTIONS.len()];
    let text = match index / INSTRUCTIONS.len() {
        0 => text.to_owned(),
        n => format!("({n}) {text}"),
    };
    let message = kvark::text::Message::new("user", &text);
    let text = model
        .chat_template()
        .unwrap()
        .render(&[message], true)
        .unwrap();
    let options = kvark::text::EncodeOptions {
        special: true,
        ..Default::default()
    };
    model.tokenizer().unwrap().encode(&text, options)
}

/// `KVARK_SPEC_PROMPTS` sets the number of prompts, and `KVARK_SPEC_FIRST` the first of them, so that several processes can
/// share the work; `cargo xtask soak` runs 100 with 128 tokens.
#[test]
fn a_real_model_gives_the_tokens_of_plain_decoding() {
    let Some(model) = real_model() else {
        return;
    };
    let number = |name: &str| -> Option<usize> {
        let text = std::env::var(name).ok()?;
        Some(text.parse().expect("a number of prompts"))
    };
    let soak = number("KVARK_SPEC_PROMPTS");
    let first = number("KVARK_SPEC_FIRST").unwrap_or(0);
    let (prompts, length) = soak.map_or((2, 32), |n| (n, 128));
    let prompts: Vec<Vec<u32>> = (first..first + prompts)
        .map(|index| chat_prompt(&model, index))
        .collect();
    for (storage, threads) in [
        (KvStorage::F16, 1),
        (KvStorage::from_name("q8_0").unwrap(), 2),
    ] {
        let mut options = RunnerOptions {
            context: Some(512),
            key_storage: storage,
            value_storage: storage,
            ..RunnerOptions::default()
        };
        options.compile.threads = Some(threads);
        let head = soak.and_then(|_| real_head());
        let target = head.as_ref().map_or(&model, |(model, _)| model);
        let draft = head.as_ref().map(|(_, head)| head);
        let mut alone = Speculation::new(target, draft, &options);
        for prompt in &prompts {
            let expected = plain(&model, prompt, &greedy(), &tokens(length), &options, None);
            let kinds = match soak {
                None => vec![shapes(SpecType::Ngram)[3].clone()],
                Some(_) => [SpecType::Ngram, SpecType::Eagle3, SpecType::Auto]
                    .into_iter()
                    .flat_map(shapes)
                    .collect(),
            };
            for spec in kinds {
                let (found, _) = alone.generate(target, prompt, &greedy(), &tokens(length), &spec);
                assert_eq!(
                    found.tokens, expected.tokens,
                    "{storage:?} {threads} {spec:?}"
                );
            }
        }
        for four in prompts.chunks(4).filter(|four| four.len() == 4) {
            check_batch(target, draft, four, length, &options);
        }
    }
}

/// Four prompts in one batch, each with another proposer and another tree.
fn check_batch(
    model: &Model,
    draft: Option<&Model>,
    prompts: &[Vec<u32>],
    length: usize,
    options: &RunnerOptions,
) {
    let cpu = Cpu::new().unwrap();
    let pool = RunnerOptions {
        pool_cells: Some(4 * 512),
        ..options.clone()
    };
    let draft = draft.map(|draft| Drafter::new(draft, model, &cpu, &pool, 4).unwrap());
    let mut runner = BatchRunner::with_trees(model, &cpu, &pool, 4, 0, 12).unwrap();
    let costs = VerifyCosts::default();
    let last = draft.as_ref().map_or(SpecType::Ngram, |_| SpecType::Eagle3);
    let mut each = vec![];
    for ((seq, prompt), kind) in
        (0..)
            .zip(prompts)
            .zip([SpecType::Ngram, SpecType::Auto, last, last])
    {
        runner.keep_features(seq, draft.is_some()).unwrap();
        runner.sequence(seq).feed(prompt, &mut |_| true).unwrap();
        let spec = &shapes(kind)[seq as usize];
        let speculator = Speculator::new(spec, &costs, draft.as_ref()).unwrap();
        each.push((seq, Sampler::new(greedy()), speculator));
    }
    let found = runner
        .generate_speculative_batch(model, &mut each, &tokens(length), |_, _| true)
        .unwrap();
    for (prompt, found) in prompts.iter().zip(found) {
        let expected = plain(model, prompt, &greedy(), &tokens(length), options, None);
        assert_eq!(found.tokens, expected.tokens, "in a batch");
    }
}

/// The head of `training/eagle3`, and the model opened for it.
fn real_head() -> Option<(Arc<Model>, Model)> {
    let path = std::env::var_os("KVARK_TEST_MODEL")?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../training/eagle3");
    let head = Model::open(&folder.join("smollm2-135m-instruct.eagle3.gguf"), None).unwrap();
    let layers = Drafter::feature_layers(head.artifact()).unwrap();
    assert_eq!(*layers, FeatureLayers::Listed(vec![2, 15, 27]));
    let options = OpenOptions {
        feature_layers: layers.clone(),
        ..OpenOptions::default()
    };
    let model = Model::open_with(Path::new(&path), &options).unwrap();
    Some((Arc::new(model), head))
}

#[test]
fn an_eagle3_head_proposes_what_the_model_says() {
    let Some((model, head)) = real_head() else {
        return;
    };
    let options = RunnerOptions {
        context: Some(512),
        ..RunnerOptions::default()
    };
    // Features do not change the logits' bits.
    let prompts: Vec<Vec<u32>> = [0, 3].map(|index| chat_prompt(&model, index)).to_vec();
    let without = real_model().unwrap();
    let logits = |model: &Model| {
        let mut runner = Runner::new(model, &Cpu::new().unwrap(), &options).unwrap();
        runner.feed(&prompts[0], |_| true).unwrap();
        runner.logits().to_vec()
    };
    assert!(logits(&model) == logits(&without));
    let mut alone = Speculation::new(&model, Some(&head), &options);
    let mut rounds = 0;
    let mut generated = 0;
    for prompt in &prompts {
        let expected = plain(&without, prompt, &greedy(), &tokens(64), &options, None);
        for kind in [SpecType::Eagle3, SpecType::Auto] {
            for spec in &shapes(kind)[1..] {
                let (found, speculator) =
                    alone.generate(&model, prompt, &greedy(), &tokens(64), spec);
                assert_eq!(found.tokens, expected.tokens, "{spec:?}");
                if kind == SpecType::Eagle3 {
                    rounds += speculator.stats().rounds;
                    generated += speculator.stats().tokens;
                }
            }
        }
    }
    let mean = generated as f64 / rounds as f64;
    assert!(mean > 1.3, "the head was trained on this model: {mean}");
}

#[test]
fn a_head_of_another_model_is_refused() {
    let Some((model, head)) = real_head() else {
        return;
    };
    let cpu = Cpu::new().unwrap();
    let options = runner_options(64);
    let load = |draft: &Model, target: &Model| {
        let loaded = Drafter::new(draft, target, &cpu, &options, 1);
        loaded.err().expect("it does not fit").to_string()
    };
    let other = fixture("llama_plain");
    let text = load(&head, &other);
    assert!(
        text.contains("the draft head is of another model: it takes features of width 576"),
        "{text}"
    );
    let text = load(&head, &real_model().unwrap());
    assert!(text.contains("was not opened with the features"), "{text}");
    let missing = OpenOptions {
        feature_layers: FeatureLayers::Listed(vec![2, 99]),
        ..OpenOptions::default()
    };
    let path = std::env::var_os("KVARK_TEST_MODEL").unwrap();
    let error = Model::open_with(Path::new(&path), &missing).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("99, and the model has 30 layers"),
        "{error}"
    );
    let error = Runner::new(&head, &cpu, &options)
        .err()
        .unwrap()
        .to_string();
    assert!(!error.is_empty(), "a head is no decoder");
    let eagle = SpecOptions {
        kind: SpecType::Eagle3,
        ..SpecOptions::default()
    };
    let draft = Drafter::new(&model, &model, &cpu, &options, 1).unwrap();
    assert!(Speculator::new(&eagle, &VerifyCosts::default(), Some(&draft)).is_err());
}
