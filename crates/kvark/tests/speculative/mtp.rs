//! MTP heads that models with recurrent layers carry.

use super::*;
use kvark::backend::Backend;
use kvark::memory::{CacheKind, MemoryPlan, PlannedModel};
use kvark::speculative::DraftSource;

const MODELS: [&str; 5] = [
    "qwen35_mtp",
    "qwen35_mtp_agrees",
    "qwen3next_mtp",
    "glm4moe_mtp",
    "glm47_flash_mtp",
];

fn path(name: &str) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    folder.join(format!("{name}.gguf"))
}

/// A model that gives its states, and the head that it carries.
pub(super) fn carried(name: &str) -> (Arc<Model>, Model) {
    let options = OpenOptions {
        feature_layers: FeatureLayers::Mtp,
        ..OpenOptions::default()
    };
    let model = Model::open_with(&path(name), &options).unwrap();
    let head = model.mtp_head().unwrap();
    (Arc::new(model), head)
}

fn drawn() -> SamplerOptions {
    SamplerOptions {
        temperature: 1.0,
        seed: 9,
        ..SamplerOptions::default()
    }
}

#[test]
fn heads_give_the_tokens_of_plain_decoding() {
    for name in MODELS {
        let (model, head) = carried(name);
        let without = fixture(name);
        let options = runner_options(64);
        let mut alone = Speculation::new(&model, Some(&head), &options);
        for (seed, sampling) in [(0, greedy()), (1, greedy()), (2, drawn()), (3, drawn())] {
            let prompt = prompt(&model, seed);
            let expected = plain(&without, &prompt, &sampling, &tokens(40), &options, None);
            for kind in [SpecType::Mtp, SpecType::Auto] {
                for spec in shapes(kind) {
                    let (found, speculator) =
                        alone.generate(&model, &prompt, &sampling, &tokens(40), &spec);
                    assert_eq!(found.tokens, expected.tokens, "{name} {spec:?}");
                    let stats = speculator.stats();
                    assert_eq!(stats.tokens, 39);
                    assert_eq!(stats.accepted + stats.rounds, 39);
                    assert!(kind == SpecType::Auto || stats.drafted > 0);
                }
            }
        }
    }
}

/// The first round's chain is that of the definition: the head has the model's states, and then its own.
#[test]
fn a_chain_is_what_the_definition_says() {
    let mut longest = 0;
    for name in MODELS {
        let text = std::fs::read_to_string(path(name).with_extension("json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let tokens_of = |value: &serde_json::Value| -> Vec<u32> {
            let list = value.as_array().unwrap().iter();
            list.map(|x| x.as_u64().unwrap() as u32).collect()
        };
        let prompt = tokens_of(&json["tokens"]);
        let fed = tokens_of(&json["mtp"]["tokens"]);
        let chain = &fed[prompt.len() - 1..];
        let (model, head) = carried(name);
        let options = RunnerOptions {
            key_storage: KvStorage::F32,
            value_storage: KvStorage::F32,
            ..runner_options(64)
        };
        let mut alone = Speculation::new(&model, Some(&head), &options);
        let spec = &shapes(SpecType::Mtp)[1];
        let (_, speculator) = alone.generate(&model, &prompt, &greedy(), &tokens(8), spec);
        let round = &speculator.stats().trace[0].tokens;
        assert!(round.len() > 1, "{name}");
        assert_eq!(round[..], chain[..round.len()], "{name}");
        longest = longest.max(round.len());
    }
    assert_eq!(longest, 5, "a chain of four");
}

#[test]
fn a_head_that_agrees_is_accepted() {
    let (model, head) = carried("qwen35_mtp_agrees");
    let mut alone = Speculation::new(&model, Some(&head), &runner_options(128));
    let spec = &shapes(SpecType::Mtp)[1];
    assert_eq!((spec.max_depth, spec.top_k), (4, 1), "a chain of four");
    let (mut drafted, mut accepted, mut deepest) = (0, 0, 0);
    for seed in 0..8 {
        let prompt = prompt(&model, seed);
        let (_, speculator) = alone.generate(&model, &prompt, &greedy(), &tokens(60), spec);
        let stats = speculator.stats();
        drafted += stats.drafted;
        accepted += stats.accepted;
        deepest += stats.by_depth.get(3).map_or(0, |depth| depth.accepted);
    }
    assert!(4 * accepted > 3 * drafted, "{accepted} of {drafted}");
    // The head's own states lead to the deeper ones.
    assert!(deepest > 0);
}

/// One speculator for a text that is rewound and replaced at random between the answers.
#[test]
fn heads_follow_a_text_that_changes() {
    for name in MODELS {
        let (model, head) = carried(name);
        let options = runner_options(256);
        let mut alone = Speculation::new(&model, Some(&head), &options);
        let spec = &shapes(SpecType::Mtp)[2];
        let mut speculator = alone.speculator(spec);
        let mut sampler = Sampler::new(greedy());
        let (mut text, mut state) = (vec![], 5u64);
        for turn in 0..30 {
            let keep = random(&mut state, text.len() as u32 + 1) as usize;
            // Half of the turns go on with the text.
            let keep = if turn % 2 == 0 {
                text.len().min(200)
            } else {
                keep
            };
            alone
                .runner
                .rewind(0, keep.min(alone.runner.tokens(0).len()))
                .unwrap();
            text.truncate(keep);
            let kept = alone.runner.tokens(0).len();
            let more = 1 + random(&mut state, 6) as usize;
            let mut new: Vec<u32> = text[kept..].to_vec();
            new.extend((0..more).map(|_| random(&mut state, 64)));
            text.truncate(kept);
            text.extend_from_slice(&new);
            let expected = plain(&fixture(name), &text, &greedy(), &tokens(9), &options, None);
            let both = (&mut sampler, &mut speculator);
            let found = alone
                .runner
                .generate_speculative(&model, 0, &new, both, &tokens(9), |_| true)
                .unwrap();
            assert_eq!(found.tokens, expected.tokens, "{name}, turn {turn}");
            text.extend_from_slice(&found.tokens);
        }
        assert!(speculator.stats().drafted > 0);
    }
}

#[test]
fn a_draft_source_loads_what_the_model_carries() {
    let cpu = Cpu::new().unwrap();
    let options = runner_options(64);
    let source = DraftSource::open(Path::new("mtp"), None).unwrap();
    assert_eq!(source.kind(), SpecType::Mtp);
    assert_eq!(source.feature_layers(), FeatureLayers::Mtp);
    let (model, _) = carried("qwen35_mtp");
    let load = |source: &DraftSource, model: &Model| source.load(model, &cpu, &options, 1);
    let drafter = load(&source, &model).unwrap().unwrap();
    assert_eq!(drafter.kind(), SpecType::Mtp);
    assert!(load(&DraftSource::MtpIfCarried, &model).unwrap().is_some());
    // Another kind of speculation does not take it.
    let costs = VerifyCosts::default();
    for kind in [SpecType::Draft, SpecType::Eagle3] {
        assert!(Speculator::new(&shapes(kind)[0], &costs, Some(&drafter)).is_err());
    }
    let none = Speculator::new(&shapes(SpecType::Mtp)[0], &costs, None);
    let text = none.err().unwrap().to_string();
    assert!(text.contains("the model's own MTP head"), "{text}");
}

#[test]
fn a_model_without_a_head_is_refused_in_one_line() {
    let cpu = Cpu::new().unwrap();
    let options = runner_options(64);
    for (name, missing) in [
        (
            "llama_plain",
            "llama.nextn_predict_layers and tensor blk.2.nextn.eh_proj.weight",
        ),
        (
            "qwen35",
            "qwen35.nextn_predict_layers and tensor blk.4.nextn.eh_proj.weight",
        ),
    ] {
        let open = OpenOptions {
            feature_layers: FeatureLayers::Mtp,
            ..OpenOptions::default()
        };
        let model = Model::open_with(&path(name), &open).unwrap();
        let error = DraftSource::Mtp.load(&model, &cpu, &options, 1);
        let text = error.err().unwrap().to_string();
        assert!(text.contains(missing) && !text.contains('\n'), "{text}");
        let auto = DraftSource::MtpIfCarried.load(&model, &cpu, &options, 1);
        assert!(auto.unwrap().is_none());
    }
    // A model that was opened without its states is no target.
    let (_, head) = carried("qwen35_mtp");
    let error = Drafter::new(&head, &fixture("qwen35_mtp"), &cpu, &options, 1);
    let text = error.err().unwrap().to_string();
    assert!(text.contains("was not opened with the features"), "{text}");
}

#[test]
fn a_plan_counts_the_head_and_its_cache() {
    let (model, head) = carried("qwen35_mtp");
    let cpu = Cpu::new().unwrap();
    let options = runner_options(64);
    let planned = |model| PlannedModel::try_from(Model::artifact(model)).unwrap();
    let plan = |planned: PlannedModel<'_>, draft| {
        let kind = CacheKind::Cells { sequences: 1 };
        MemoryPlan::new(&planned, &cpu as &dyn Backend, &options, kind, draft).unwrap()
    };
    let alone = plan(planned(&head), None);
    assert!(alone.kv_bytes() > 0);
    let without = plan(planned(&model), None);
    // Its states are kept for every token of the pool.
    let width = model.facts().hidden_size * size_of::<f32>();
    assert_eq!(without.features_bytes, 64 * width);
    let both = plan(planned(&model), Some(alone.clone()));
    assert_eq!(
        both.total_bytes(),
        without.total_bytes() + alone.total_bytes()
    );
    // The table of embeddings, which is also the output matrix, is the model's.
    let sharing = plan(planned(&head).sharing_with(&planned(&model)), None);
    let block = |plan: &MemoryPlan, name| {
        let section = plan.weights.iter().find(|section| section.name == name);
        let section = section.unwrap();
        (section.bytes, section.resident + section.packed)
    };
    let table = 64 * width;
    assert_eq!(block(&sharing, "token_embd"), (table, 0));
    assert!(block(&alone, "token_embd").1 >= table);
    assert!(block(&sharing, "blk.3").1 > 0);
    assert_eq!(block(&sharing, "blk.3"), block(&alone, "blk.3"));
}
