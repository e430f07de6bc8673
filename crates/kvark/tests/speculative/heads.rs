//! Eagle3 heads from safetensors on an exported model, and texts that change between answers.

use super::*;
use kvark::memory::{CacheKind, MemoryPlan, PlannedModel};

fn import_fixture(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../import/tests/fixtures")
        .join(path)
}

/// A tiny exported model with features, and a random head for it in one of its forms.
pub(super) fn exported(form: &str) -> (Arc<Model>, Model) {
    let head = Model::open(&import_fixture(&format!("eagle3/{form}")), None).unwrap();
    let options = OpenOptions {
        feature_layers: Drafter::feature_layers(head.artifact()).unwrap().clone(),
        ..OpenOptions::default()
    };
    let path = import_fixture("pt2/decoder_features.pt2");
    (Arc::new(Model::open_with(&path, &options).unwrap()), head)
}

#[test]
fn heads_from_safetensors_propose_for_exported_models() {
    let path = import_fixture("pt2/decoder_features.pt2");
    let without = Model::open(&path, None).unwrap();
    let options = runner_options(64);
    let logits = |model: &Model| {
        let mut runner = Runner::new(model, &Cpu::new().unwrap(), &options).unwrap();
        runner.feed(&prompt(model, 5), |_| true).unwrap();
        runner.logits().to_vec()
    };
    for form in ["midlayer", "speculators"] {
        let (model, head) = exported(form);
        assert!(
            logits(&model) == logits(&without),
            "features change no bit of the logits"
        );
        let mut alone = Speculation::new(&model, Some(&head), &options);
        for seed in 0..4 {
            let prompt = prompt(&model, seed);
            let expected = plain(&without, &prompt, &greedy(), &tokens(30), &options, None);
            for kind in [SpecType::Eagle3, SpecType::Auto] {
                for spec in shapes(kind) {
                    let (found, speculator) =
                        alone.generate(&model, &prompt, &greedy(), &tokens(30), &spec);
                    assert_eq!(found.tokens, expected.tokens, "{form} {spec:?}");
                    if kind == SpecType::Eagle3 {
                        let stats = speculator.stats();
                        assert!(stats.drafted > 0, "the head proposes");
                        // It proposes only tokens of its own vocabulary.
                        let facts = head.artifact().draft_head.as_ref().unwrap();
                        let nodes = stats.trace.iter().flat_map(|round| &round.tokens[1..]);
                        for token in nodes {
                            assert!(facts.target_tokens.contains(token), "{token}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_safetensors_head_of_another_model_is_refused() {
    let (model, head) = exported("midlayer");
    let cpu = Cpu::new().unwrap();
    let load = |target: &Model| {
        let loaded = Drafter::new(&head, target, &cpu, &runner_options(64), 1);
        loaded.err().expect("it does not fit").to_string()
    };
    let text = load(&fixture("llama_plain"));
    let expected = "the draft head is of another model: it takes features of width 16";
    assert!(text.contains(expected), "{text}");
    let plain = Model::open(&import_fixture("pt2/decoder_features.pt2"), None).unwrap();
    let text = load(&plain);
    assert!(text.contains("was not opened with the features"), "{text}");
    assert!(Drafter::new(&head, &model, &cpu, &runner_options(64), 1).is_ok());
    let other = Model::open_with(
        &import_fixture("pt2/decoder_llama.pt2"),
        &OpenOptions {
            feature_layers: FeatureLayers::Standard,
            ..OpenOptions::default()
        },
    );
    let error = other.err().unwrap().to_string();
    assert!(error.contains("the model has 2 layers"), "{error}");
}

/// One speculator for a conversation whose text is rewound, replaced and shifted between the answers.
#[test]
fn proposers_follow_a_text_that_changes() {
    let exported = exported("midlayer");
    let llama = fixture("llama_plain");
    for (model, draft, kind) in [
        (&llama, &*llama, SpecType::Draft),
        (&llama, &*llama, SpecType::Ngram),
        (&exported.0, &exported.1, SpecType::Eagle3),
    ] {
        let options = runner_options(64);
        let mut alone = Speculation::new(model, Some(draft), &options);
        alone.runner.enable_context_shift(4).unwrap();
        let spec = &shapes(kind)[1];
        let mut speculator = alone.speculator(spec);
        let mut sampler = Sampler::new(greedy());
        // A runner without speculation must hold the same text after the same operations.
        let cpu = Cpu::new().unwrap();
        let mut other = BatchRunner::new(model, &cpu, &options).unwrap();
        other.enable_context_shift(4).unwrap();
        let first = prompt(model, 8);
        let other_text = prompt(model, 9);
        let turns: [(Option<usize>, &[u32], usize); 5] = [
            (None, &first, 12),
            // `/rewind` to the middle of the answer, and another message.
            (Some(first.len() + 3), &other_text[..6], 10),
            // Into the prompt.
            (Some(5), &other_text, 10),
            // A new conversation.
            (Some(0), &other_text, 12),
            // The context fills up and is shifted.
            (None, &first[..4], 40),
        ];
        for (rewind, new, count) in turns {
            if let Some(len) = rewind {
                alone.runner.rewind(0, len).unwrap();
                other.rewind(0, len).unwrap();
            }
            let before = speculator.stats().clone();
            let both = (&mut sampler, &mut speculator);
            let found = alone
                .runner
                .generate_speculative(model, 0, new, both, &tokens(count), |_| true)
                .unwrap();
            let expected = kvark::generate::generate(
                other.sequence(0),
                model,
                new,
                &mut Sampler::new(greedy()),
                &tokens(count),
                |_| true,
            )
            .unwrap();
            assert_eq!(found.tokens, expected.tokens, "{kind:?} after {rewind:?}");
            // Both hold the same tokens, so that the next operation means the same.
            let held = alone.runner.tokens(0).len();
            assert_eq!(alone.runner.tokens(0), &other.tokens(0)[..held]);
            other.rewind(0, held).unwrap();
            // A model proposes what it would choose itself, also after the change.
            let stats = speculator.stats();
            if kind == SpecType::Draft && rewind.is_some() {
                let drafted = stats.drafted - before.drafted;
                assert!(drafted > 0);
                assert_eq!(
                    stats.accepted - before.accepted,
                    drafted,
                    "after {rewind:?}"
                );
            }
        }
    }
}

#[test]
fn a_plan_counts_the_features_of_a_full_pool() {
    let (model, head) = exported("midlayer");
    let facts = head.artifact().draft_head.as_ref().unwrap();
    let plan = |model: &Model, kind| {
        let planned = PlannedModel::try_from(model.artifact()).unwrap();
        MemoryPlan::new(
            &planned,
            &Cpu::new().unwrap(),
            &runner_options(64),
            kind,
            None,
        )
        .unwrap()
    };
    let pool = CacheKind::Cells { sequences: 1 };
    let counted = plan(&model, pool);
    let token = facts.target_layers.len() * facts.target_hidden_size * size_of::<f32>();
    assert!(token > 0);
    assert_eq!(counted.features_bytes, 64 * token);
    let mut without = counted.clone();
    without.features_bytes = 0;
    assert_eq!(counted.total_bytes(), without.total_bytes() + 64 * token);
    // One sequence without a pool keeps none, and a model that was opened without features has none.
    assert_eq!(plan(&model, CacheKind::Contiguous).features_bytes, 0);
    assert_eq!(plan(&fixture("llama_plain"), pool).features_bytes, 0);
}
