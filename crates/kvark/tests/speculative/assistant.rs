//! Assistants of Gemma 4: heads in files of their own that attend to keys and values of the model.

use super::*;
use kvark::backend::Backend;
use kvark::memory::{CacheKind, MemoryPlan, PlannedModel};
use kvark::speculative::DraftSource;

/// Assistants with their targets.
pub(super) const PAIRS: [[&str; 2]; 3] = [
    ["gemma4_assistant", "gemma4"],
    ["gemma4_keys_as_values_assistant", "gemma4_keys_as_values"],
    ["gemma4_agrees_assistant", "gemma4_agrees"],
];

fn path(name: &str) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures");
    let kind = match name.ends_with("_assistant") {
        true => "assistant",
        false => "decoder",
    };
    folder.join(format!("{kind}/{name}.gguf"))
}

/// A target that gives what an assistant needs, and the assistant.
pub(super) fn pair([name, target]: [&str; 2]) -> (Arc<Model>, Model) {
    let head = Model::open(&path(name), None).unwrap();
    let options = OpenOptions {
        feature_layers: Drafter::feature_layers(head.artifact()).unwrap().clone(),
        ..OpenOptions::default()
    };
    (
        Arc::new(Model::open_with(&path(target), &options).unwrap()),
        head,
    )
}

#[test]
fn assistants_give_the_tokens_of_plain_decoding() {
    let drawn = SamplerOptions {
        temperature: 1.0,
        seed: 9,
        ..SamplerOptions::default()
    };
    for names in PAIRS {
        let (model, head) = pair(names);
        let without = fixture(names[1]);
        for storage in [KvStorage::F16, KvStorage::F8E4M3] {
            let options = RunnerOptions {
                key_storage: storage,
                value_storage: storage,
                ..runner_options(64)
            };
            let mut alone = Speculation::new(&model, Some(&head), &options);
            for (seed, sampling) in [(0, greedy()), (1, greedy()), (2, drawn.clone())] {
                let prompt = prompt(&model, seed);
                let expected = plain(&without, &prompt, &sampling, &tokens(40), &options, None);
                for kind in [SpecType::Mtp, SpecType::Auto] {
                    for spec in shapes(kind) {
                        let (found, speculator) =
                            alone.generate(&model, &prompt, &sampling, &tokens(40), &spec);
                        assert_eq!(found.tokens, expected.tokens, "{names:?} {spec:?}");
                        let stats = speculator.stats();
                        assert_eq!(stats.tokens, 39);
                        assert_eq!(stats.accepted + stats.rounds, 39);
                        assert!(kind == SpecType::Auto || stats.drafted > 0);
                    }
                }
            }
        }
    }
}

/// The first round's chain is that of transformers.
#[test]
fn a_chain_is_that_of_transformers() {
    for names in PAIRS {
        let text = std::fs::read_to_string(path(names[0]).with_extension("json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let tokens_of = |value: &serde_json::Value| -> Vec<u32> {
            let list = value.as_array().unwrap().iter();
            list.map(|x| x.as_u64().unwrap() as u32).collect()
        };
        let (prompt, chain) = (tokens_of(&json["tokens"]), tokens_of(&json["chain"]));
        let (model, head) = pair(names);
        let options = RunnerOptions {
            key_storage: KvStorage::F32,
            value_storage: KvStorage::F32,
            ..runner_options(64)
        };
        let mut alone = Speculation::new(&model, Some(&head), &options);
        let spec = &shapes(SpecType::Mtp)[1];
        let (_, speculator) = alone.generate(&model, &prompt, &greedy(), &tokens(8), spec);
        let round = &speculator.stats().trace[0].tokens;
        assert_eq!(round[..], chain[..], "{names:?}");
    }
}

/// Every later round's chain is that of an assistant that sees the text for the first time.
#[test]
fn rounds_equal_those_of_a_fresh_assistant() {
    for names in PAIRS {
        let (model, head) = pair(names);
        let options = runner_options(128);
        let mut alone = Speculation::new(&model, Some(&head), &options);
        let mut fresh = Speculation::new(&model, Some(&head), &options);
        let spec = &shapes(SpecType::Mtp)[1];
        let prompt = prompt(&model, 7);
        let (found, speculator) = alone.generate(&model, &prompt, &greedy(), &tokens(40), spec);
        let (mut known, mut compared) = (1, 0);
        for round in &speculator.stats().trace {
            let text = [&prompt[..], &found.tokens[..known - 1]].concat();
            let (again, speculator) = fresh.generate(&model, &text, &greedy(), &tokens(8), spec);
            assert_eq!(again.tokens[0], round.tokens[0]);
            let cold = &speculator.stats().trace[0];
            if round.tokens.len() == cold.tokens.len() {
                assert_eq!(round.tokens, cold.tokens, "{names:?} at {known}");
                assert_eq!(round.probabilities, cold.probabilities, "{names:?}");
                compared += 1;
            }
            known += round.accepted.len();
        }
        assert!(compared > 5, "{compared}");
    }
}

#[test]
fn an_assistant_that_agrees_is_accepted() {
    let (model, head) = pair(PAIRS[2]);
    let mut alone = Speculation::new(&model, Some(&head), &runner_options(128));
    let spec = &shapes(SpecType::Mtp)[1];
    let (mut drafted, mut accepted, mut deepest) = (0, 0, 0);
    for seed in 0..8 {
        let prompt = prompt(&model, seed);
        let (_, speculator) = alone.generate(&model, &prompt, &greedy(), &tokens(60), spec);
        let stats = speculator.stats();
        drafted += stats.drafted;
        accepted += stats.accepted;
        deepest += stats.by_depth.get(3).map_or(0, |depth| depth.accepted);
    }
    assert!(2 * accepted > drafted, "{accepted} of {drafted}");
    assert!(deepest > 0);
}

/// One speculator for a text that is rewound and replaced at random between the answers.
#[test]
fn assistants_follow_a_text_that_changes() {
    for names in PAIRS {
        let (model, head) = pair(names);
        let options = runner_options(256);
        let mut alone = Speculation::new(&model, Some(&head), &options);
        let spec = &shapes(SpecType::Mtp)[2];
        let mut speculator = alone.speculator(spec);
        let mut sampler = Sampler::new(greedy());
        let (mut text, mut state) = (vec![], 5u64);
        for turn in 0..30 {
            let keep = random(&mut state, text.len() as u32 + 1) as usize;
            // Half of the turns go on with the text; others begin anew, or take back a few tokens.
            let keep = match turn % 4 {
                0 | 2 => text.len().min(200),
                1 => text.len().saturating_sub(keep % 4),
                _ => 0,
            };
            let keep = keep.min(alone.runner.tokens(0).len());
            if alone.runner.rewind(0, keep).is_err() {
                alone.runner.remove(0).unwrap();
            }
            text.truncate(keep);
            let kept = alone.runner.tokens(0).len();
            let more = 1 + random(&mut state, 6) as usize;
            let mut new: Vec<u32> = text[kept..].to_vec();
            new.extend((0..more).map(|_| random(&mut state, 64)));
            text.truncate(kept);
            text.extend_from_slice(&new);
            let target = fixture(names[1]);
            let expected = plain(&target, &text, &greedy(), &tokens(9), &options, None);
            let both = (&mut sampler, &mut speculator);
            let found = alone
                .runner
                .generate_speculative(&model, 0, &new, both, &tokens(9), |_| true)
                .unwrap();
            assert_eq!(found.tokens, expected.tokens, "{names:?}, turn {turn}");
            text.extend_from_slice(&found.tokens);
        }
        assert!(speculator.stats().drafted > 0);
    }
}

#[test]
fn a_target_that_does_not_match_is_refused_by_name() {
    let cpu = Cpu::new().unwrap();
    let options = runner_options(64);
    let (model, head) = pair(PAIRS[0]);
    let load = |head: &Model, target: &Model| {
        let error = Drafter::new(head, target, &cpu, &options, 1).err();
        error.expect("it does not fit").to_string()
    };
    let text = load(&head, &fixture("gemma4"));
    assert!(text.contains("was not opened with the features"), "{text}");
    // Its layers without a window have one head, which is values too.
    let (other, _) = pair(PAIRS[1]);
    let text = load(&head, &other);
    let expected = "the draft head is of another model: it attends to 2 heads of 16 elements";
    assert!(
        text.contains(expected) && text.contains("no window"),
        "{text}"
    );
    let text = load(&head, &fixture("qwen35_mtp"));
    assert!(text.contains("it takes features of width 32"), "{text}");
    assert!(Drafter::new(&head, &model, &cpu, &options, 1).is_ok());

    // Models without such layers, or in other files, do not open for it.
    let source = DraftSource::open(&path("gemma4_assistant"), None).unwrap();
    assert_eq!(source.kind(), SpecType::Mtp);
    let open = OpenOptions {
        feature_layers: source.feature_layers(),
        ..OpenOptions::default()
    };
    let text = |file: &Path| Model::open_with(file, &open).err().unwrap().to_string();
    let found = text(&path("llama_plain"));
    assert!(found.contains("layers with a window"), "{found}");
    let exported = path("../pt2/decoder_features").with_extension("pt2");
    let found = text(&exported);
    assert!(found.contains("a .pt2 file"), "{found}");
}

#[test]
fn a_plan_counts_the_assistant_and_its_cache() {
    let (model, head) = pair(PAIRS[0]);
    let cpu = Cpu::new().unwrap();
    let options = runner_options(64);
    let plan = |model: &Model, draft| {
        let planned = PlannedModel::try_from(model.artifact()).unwrap();
        let kind = CacheKind::Cells { sequences: 1 };
        MemoryPlan::new(&planned, &cpu as &dyn Backend, &options, kind, draft).unwrap()
    };
    let alone = plan(&head, None);
    // Two heads of keys and of values, of 8 elements with a window and of 16 without one.
    assert_eq!(alone.kv.layers.len(), 2);
    assert!(alone.kv_bytes() > 0);
    let without = plan(&model, None);
    let token = (32 + 2 * (2 * 8) + 2 * (2 * 16)) * size_of::<f32>();
    assert_eq!(without.features_bytes, 64 * token);
    let both = plan(&model, Some(alone.clone()));
    assert_eq!(
        both.total_bytes(),
        without.total_bytes() + alone.total_bytes()
    );
}
