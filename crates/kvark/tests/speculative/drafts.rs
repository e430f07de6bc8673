//! Sequences that speculate with the same draft share its forwards.

use super::*;
use kvark::generate::Sequence;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

const SEQUENCES: u64 = 4;

/// Chains, which are verified as they were proposed, and trees.
fn draft_shapes(kind: SpecType) -> [SpecOptions; 2] {
    [(4, 4, 1), (12, 3, 2)].map(|(max_candidates, max_depth, top_k)| SpecOptions {
        kind,
        max_candidates,
        max_depth,
        top_k,
        trace: true,
        prediction: vec![],
    })
}

/// Prompts of one length that fit in one step, so that the sequences begin their rounds together.
fn short_prompt(model: &Model, seed: u64) -> Vec<u32> {
    let mut prompt = prompt(model, seed);
    prompt.truncate(7);
    prompt
}

/// A step has room for all prompts and trees.
fn pool_options() -> RunnerOptions {
    RunnerOptions {
        pool_cells: Some(600),
        max_step_tokens: 128,
        ..runner_options(128)
    }
}

/// The number of levels of a round's tree.
fn levels(round: &RoundTrace) -> usize {
    let mut depths: Vec<usize> = vec![];
    for parent in &round.parents {
        depths.push(parent.map_or(0, |parent| depths[parent as usize] + 1));
    }
    depths.into_iter().max().unwrap()
}

/// A round computes the levels of the deepest tree; the sequences begin their rounds together. The first level is that of the
/// tokens that the draft lacks. Verified trees may lack the deepest level of proposed ones, verified chains do not.
fn check_forwards(spec: &SpecOptions, forwards: usize, traces: &[&[RoundTrace]]) {
    let rounds = traces.iter().map(|trace| trace.len()).max().unwrap();
    let deepest = (0..rounds).map(|round| {
        let trees = traces.iter().filter_map(|trace| trace.get(round));
        trees.map(levels).max().unwrap()
    });
    let deepest: usize = deepest.sum();
    match spec.top_k {
        1 => assert_eq!(forwards, deepest, "one forward a level"),
        _ => assert!((deepest..=rounds * spec.max_depth).contains(&forwards)),
    }
    let apart: usize = traces.iter().flat_map(|t| t.iter()).map(levels).sum();
    assert!(apart > 2 * forwards, "{apart} levels, {forwards} forwards");
}

fn drafts() -> [(Arc<Model>, Arc<Model>, SpecType); 4] {
    let model = fixture("llama_plain");
    let (target, head) = heads::exported("midlayer");
    let (carrier, own) = mtp::carried("qwen35_mtp");
    let (gemma, assistant) = assistant::pair(assistant::PAIRS[0]);
    [
        (model.clone(), model, SpecType::Draft),
        (target, Arc::new(head), SpecType::Eagle3),
        (carrier, Arc::new(own), SpecType::Mtp),
        (gemma, Arc::new(assistant), SpecType::Mtp),
    ]
}

#[test]
fn the_sequences_of_a_generator_draft_in_one_forward_a_level() {
    let cpu = Cpu::new().unwrap();
    let options = pool_options();
    for (model, draft, kind) in drafts() {
        for spec in &draft_shapes(kind) {
            let drafter = Drafter::new(&draft, &model, &cpu, &options, 4).unwrap();
            let mut runner = BatchRunner::with_trees(&model, &cpu, &options, 4, 0, 12).unwrap();
            let costs = VerifyCosts::default();
            let sequences = (0..SEQUENCES).map(|seed| {
                let speculator = Speculator::new(spec, &costs, Some(&drafter)).unwrap();
                let (prompt, sampler) = (short_prompt(&model, seed), Sampler::new(greedy()));
                Sequence::new(seed as u32, prompt, sampler, &tokens(30))
                    .with_speculator(Some(speculator))
            });
            let found = runner.generate(&model, sequences.collect(), |_, _| true);
            let found = found.unwrap();
            for (seed, found) in (0..).zip(&found) {
                let prompt = short_prompt(&model, seed);
                let expected = plain(&model, &prompt, &greedy(), &tokens(30), &options, None);
                assert_eq!(found.tokens, expected.tokens, "{spec:?}");
            }
            let stats = found
                .iter()
                .map(|found| found.speculation.as_ref().unwrap());
            let traces: Vec<&[RoundTrace]> = stats.map(|stats| &stats.trace[..]).collect();
            check_forwards(spec, drafter.forwards(), &traces);
        }
    }
}

#[test]
fn the_requests_of_an_engine_draft_in_one_forward_a_level() {
    let cpu = Cpu::new().unwrap();
    for (model, draft, kind) in drafts() {
        for spec in &draft_shapes(kind) {
            let drafter = Drafter::new(&draft, &model, &cpu, &pool_options(), 4).unwrap();
            let options = SchedulerOptions {
                slots: 5,
                candidates: 12,
                draft: Some(drafter.clone()),
                ..SchedulerOptions::default()
            };
            let engine = Engine::start(model.clone(), &cpu, &pool_options(), &options).unwrap();
            // The engine waits at the start of the first request until the others are in its queue.
            let gate = Arc::new(Mutex::new(()));
            let submitting = gate.lock().unwrap();
            let first = Request {
                options: tokens(1),
                ..Request::new(vec![1])
            };
            let held = gate.clone();
            let sink = move |_| held.lock().is_ok();
            engine.handle().submit(first, Box::new(sink)).unwrap();
            let requests = (0..SEQUENCES).map(|seed| {
                let request = Request {
                    sampling: greedy(),
                    options: tokens(30),
                    speculation: Some(spec.clone()),
                    cache_prompt: false,
                    ..Request::new(short_prompt(&model, seed))
                };
                engine.handle().generate(request).unwrap()
            });
            let requests: Vec<_> = requests.collect();
            drop(submitting);
            let mut traces = vec![];
            for (seed, request) in (0..).zip(requests) {
                let (found, rounds, _) = collect_rounds(request);
                let (prompt, pool) = (short_prompt(&model, seed), pool_options());
                let expected = plain(&model, &prompt, &greedy(), &tokens(30), &pool, None);
                assert_eq!(found, expected.tokens, "{spec:?}");
                traces.push(rounds);
            }
            let counted = &engine.handle().counters().draft_forwards;
            assert_eq!(counted.load(Ordering::Relaxed), drafter.forwards() as u64);
            let traces: Vec<&[RoundTrace]> = traces.iter().map(|trace| &trace[..]).collect();
            check_forwards(spec, drafter.forwards(), &traces);
        }
    }
}
