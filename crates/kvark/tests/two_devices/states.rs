//! Snapshots, context shifts and embeddings.

use super::*;
use kvark::cache::KvStorage;
use kvark::embed::{EmbedOptions, Embedder, Pooling};
use kvark::generate::Sampler;
use kvark::snapshot::Snapshot;

/// A file that is removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let name = format!("kvark-two-devices-{}-{name}", std::process::id());
        Temporary(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Saves a sequence on one backend, goes on with it on another, and compares with the backend that saved it.
fn move_snapshot(model: &Model, [from, to]: [&dyn Backend; 2], tokens: &[u32], storage: &str) {
    let options = RunnerOptions {
        key_storage: KvStorage::from_name(storage).unwrap(),
        value_storage: KvStorage::from_name(storage).unwrap(),
        ..options(128)
    };
    let file = Temporary::new(&format!("{}-{storage}", from.id()));
    let (before, behind) = tokens.split_at(tokens.len() - 16);
    let mut saved = Runner::new(model, from, &options).unwrap();
    saved.feed(before, |_| true).unwrap();
    saved.save(model, &file.0, b"").unwrap();
    let expect = decoded(&mut saved, behind);
    let snapshot = Snapshot::open(&file.0).unwrap();
    let mut restored = Runner::new(model, to, &options).unwrap();
    restored.restore(model, &snapshot, before.len()).unwrap();
    assert_eq!(restored.tokens(), before);
    let found = decoded(&mut restored, behind);
    let what = format!("a snapshot in {storage} from {} to {}", from.id(), to.id());
    compare(&what, &found, &expect);
}

#[test]
fn snapshots_move_between_the_devices() {
    let (cpu, device) = (cpu(), device());
    let directions = [[&*cpu, &*device], [&*device, &*cpu]];
    for direction in directions {
        for name in [
            "llama_plain",
            "gemma3",
            "mistral",
            "qwen35",
            "mamba2",
            "lfm2moe",
        ] {
            let model = fixture(name);
            let tokens = some_tokens(&model, 60);
            for storage in ["f32", "f16", "q8", "q4"] {
                move_snapshot(&model, direction, &tokens, storage);
            }
        }
    }
    let Some(model) = real_model(&OpenOptions::default()) else {
        return;
    };
    let text = "The sea is a place of endless wonder and mystery. It is where the unknown becomes a part of the \
                familiar, and where sailors learn to read the sky.";
    let tokens = encode(&model, text);
    for direction in directions {
        move_snapshot(&model, direction, &tokens, "f16");
    }
}

#[test]
fn contexts_shift_as_on_the_cpu() {
    let (cpu, device) = (cpu(), device());
    for name in ["llama_plain", "phi3_q8_0"] {
        let model = fixture(name);
        let tokens = some_tokens(&model, 100);
        let [expect, found] = [&cpu, &device].map(|backend| {
            let mut runner = runner(&model, &**backend, 64);
            runner.enable_context_shift(4).unwrap();
            runner.feed(&tokens[..60], |_| true).unwrap();
            let mut rows = vec![];
            for _ in 0..2 {
                assert!(runner.shift_context().unwrap().is_some());
                rows.extend(decoded(&mut runner, &tokens[60..80]));
            }
            rows
        });
        compare(&format!("{name} after a shift"), &found, &expect);
        // A generation shifts on its own when its context is full.
        let mut full = runner(&model, &*device, 64);
        full.enable_context_shift(4).unwrap();
        let mut sampler = Sampler::new(greedy());
        let generated = full.generate(&model, &tokens[..40], &mut sampler, &exactly(150), |_| true);
        assert_eq!(generated.unwrap().tokens.len(), 150);
        assert!(full.tokens().len() <= 64);
    }
}

#[test]
fn embeddings_are_those_of_the_cpu() {
    let (cpu, device) = (cpu(), device());
    let hidden = || {
        real_model(&OpenOptions {
            hidden_states: true,
            ..OpenOptions::default()
        })
    };
    let texts = [
        "a cat sleeps on the sofa",
        "a kitten naps on the couch",
        "the train to Berlin leaves at nine",
    ];
    let options = EmbedOptions {
        pooling: Some(Pooling::Mean),
        ..EmbedOptions::default()
    };
    let mut found = vec![];
    for backend in [&cpu, &device] {
        let Some(model) = hidden() else { return };
        let mut embedder = Embedder::new(model, &**backend, &options).unwrap();
        found.push(embedder.embed(&texts, |_| true).unwrap().unwrap());
    }
    for (i, (a, b)) in found[0].iter().zip(&found[1]).enumerate() {
        let cosine: f32 = a.values.iter().zip(&b.values).map(|(a, b)| a * b).sum();
        note(&format!("text {i}: cosine {cosine} between the devices"));
        assert!(cosine > 0.999 && a.tokens == b.tokens, "{cosine}");
    }
}
