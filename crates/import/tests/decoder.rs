//! Every fixture's logits against those of transformers, in one step and in several.

mod plain;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use graph::Value;
use import::gguf::QuantisePlan;
use import::{Artifact, ImportOptions, ModelFile};
use kv::{CacheConfig, CacheRegistry, CacheSession, Cells, KvStorage, make_seq_session};
use plain::Plain;

/// Differences may be this fraction of the logits' standard deviation.
const TOLERANCE: f32 = 1e-4;

/// One step for all tokens, and steps that begin and end inside, at and beyond windows.
const STEPS: [&[usize]; 4] = [&[24], &[1, 4, 2, 9, 1, 7], &[7, 7, 7, 3], &[1; 24]];

struct Fixture {
    name: String,
    artifact: Artifact,
    tokens: Vec<i32>,
    logits: Vec<f32>,
}

/// GGUF files, and folders of Hugging Face.
fn fixtures() -> Vec<Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = |kind: &str| fs::read_dir(folder.join(kind)).unwrap();
    let entries = entries("decoder").chain(entries("folder"));
    let paths = entries.map(|e| e.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|p| p.extension().is_some_and(|e| e == "gguf") || p.join("expected.json").is_file())
        .collect();
    paths.sort();
    let all = paths.iter().map(|path| fixture(path));
    let folders = paths.iter().filter(|path| path.is_dir());
    all.chain(folders.map(|path| converted(path))).collect()
}

/// The GGUF file that a folder is written as.
fn converted(folder: &Path) -> Fixture {
    let own = fixture(folder);
    let ModelFile::Safetensors { model, .. } = &own.artifact.file else {
        panic!("{} is a folder", own.name);
    };
    let checkpoint = import::checkpoint::translate(model).unwrap();
    let plan = QuantisePlan::new(&checkpoint.file, None, false);
    let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", own.name));
    let file = format!("kvark-{}-{}.gguf", own.name, std::process::id());
    // Tests run at once.
    let thread = format!("{:?}", std::thread::current().id());
    let path = std::env::temp_dir().join(thread.replace(['(', ')'], "") + &file);
    plan.write(&path, vec![], 2, &mut |_| true).unwrap();
    let artifact = import::open(&path).unwrap_or_else(|error| panic!("{}: {error}", own.name));
    fs::remove_file(path).unwrap();
    Fixture {
        name: format!("{}, converted", own.name),
        artifact,
        ..own
    }
}

fn fixture(path: &Path) -> Fixture {
    let (name, truth) = match path.is_dir() {
        true => (path.file_name(), path.join("expected.json")),
        false => (path.file_stem(), path.with_extension("json")),
    };
    let name = name.unwrap().to_str().unwrap().to_owned();
    // Its sequence is within the original context, where LongRoPE uses the other factors.
    let options = ImportOptions {
        context_length: (name == "phi3_shortrope").then_some(32),
        ..ImportOptions::default()
    };
    let artifact = import::open_with(path, &options).unwrap_or_else(|error| panic!("{error}"));
    let text = fs::read_to_string(truth).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        let list = value.as_array().unwrap().iter();
        list.map(|x| x.as_f64().unwrap()).collect()
    };
    let rows = json["logits"].as_array().unwrap();
    Fixture {
        name,
        artifact,
        tokens: numbers(&json["tokens"]).iter().map(|t| *t as i32).collect(),
        logits: rows.iter().flat_map(numbers).map(|x| x as f32).collect(),
    }
}

impl Fixture {
    /// The inputs of each step, all rows wanted.
    fn steps(&self, sizes: &[usize]) -> Vec<[Value; 3]> {
        let mut start = 0;
        let mut steps = Vec::new();
        for &n in sizes {
            let position = (start as i32..).take(n).collect();
            let rows = (0..n as i32).collect();
            let tokens = self.tokens[start..start + n].to_vec();
            steps.push([tokens, position, rows].map(|data| Value::i32([n], data)));
            start += n;
        }
        assert_eq!(start, self.tokens.len());
        steps
    }

    /// The largest difference from the truth, in standard deviations of the truth.
    fn distance(&self, logits: &[f32]) -> f32 {
        assert_eq!(logits.len(), self.logits.len(), "{}", self.name);
        let n = logits.len() as f32;
        let mean = self.logits.iter().sum::<f32>() / n;
        let variance = self.logits.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
        let differences = logits.iter().zip(&self.logits).map(|(a, b)| (a - b).abs());
        assert!(logits.iter().all(|x| x.is_finite()), "{}", self.name);
        differences.fold(0.0, f32::max) / variance.sqrt()
    }

    fn runnable(&self) -> (Runnable, CacheSession<Cells>) {
        let mut config = CacheConfig::new(64, self.artifact.facts.caches.clone());
        (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
        let backend = Reference::new();
        let (session, options) = make_seq_session(backend.id(), &config).unwrap();
        let key = options.cache_key.unwrap();
        let cache = CacheRegistry::global().get(&key).unwrap();
        let graph = Arc::new(self.artifact.method("forward").unwrap().graph.clone());
        let executable = backend.compile(graph.clone(), &Default::default()).unwrap();
        let runnable = Runnable::bind(graph, executable, Some(cache)).unwrap();
        (runnable, session)
    }
}

#[test]
fn the_reference_backend_agrees_with_transformers() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 160);
    for fixture in &fixtures {
        for sizes in STEPS {
            let (mut runnable, session) = fixture.runnable();
            let mut logits = Vec::new();
            for inputs in fixture.steps(sizes) {
                let tokens = inputs[0].shape[0];
                session.begin_step(&vec![0; tokens]).unwrap();
                let outputs = runnable.run(&inputs).unwrap();
                logits.extend_from_slice(outputs[0].as_f32().unwrap());
            }
            let distance = fixture.distance(&logits);
            assert!(
                distance < TOLERANCE,
                "{} in steps {sizes:?}: {distance}",
                fixture.name
            );
        }
    }
}

#[test]
fn plain_evaluation_agrees_with_transformers() {
    for fixture in fixtures() {
        let graph = &fixture.artifact.method("forward").unwrap().graph;
        for sizes in STEPS {
            let mut plain = Plain::new(graph, &fixture.artifact.facts.caches);
            let steps = fixture.steps(sizes);
            let logits: Vec<f32> = steps.iter().flat_map(|inputs| plain.run(inputs)).collect();
            let distance = fixture.distance(&logits);
            assert!(
                distance < TOLERANCE,
                "{} in steps {sizes:?}: {distance}",
                fixture.name
            );
        }
    }
}

#[test]
fn only_wanted_rows_are_computed() {
    for fixture in fixtures() {
        let graph = &fixture.artifact.method("forward").unwrap().graph;
        let vocab = fixture.artifact.facts.vocab_size;
        let [mut inputs] = fixture.steps(&[24]).try_into().unwrap();
        inputs[2] = Value::i32([3], vec![23, 0, 23]);
        let logits = Plain::new(graph, &fixture.artifact.facts.caches).run(&inputs);
        let row = |i: usize| &fixture.logits[i * vocab..][..vocab];
        let wanted = [row(23), row(0), row(23)].concat();
        let worst = logits.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
        assert!(worst.fold(0.0, f32::max) < 1e-3, "{}", fixture.name);
    }
}

#[test]
fn layers_that_share_keys_and_values_have_one_cache() {
    let fixtures = fixtures();
    let fixture = fixtures.iter().find(|f| f.name == "gemma4").unwrap();
    let caches = &fixture.artifact.facts.caches;
    let sizes: Vec<_> = caches.iter().map(|c| (c.key_dim, c.window)).collect();
    let (local, global) = ((8, Some(5)), (16, None));
    assert_eq!(sizes, [local, local, global, local]);
    let graph = &fixture.artifact.method("forward").unwrap().graph;
    let ids = graph.nodes().iter().filter_map(|node| match &node.op {
        graph::ops::Op::UpdateAndAttend(op) => Some(op.cache_id),
        _ => None,
    });
    assert_eq!(ids.collect::<Vec<_>>(), [0, 1, 2, 3, 2, 3, 2]);
}

#[test]
fn damaged_files_are_refused_or_import() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoder");
    let mut state = 1u64;
    let mut random = move |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for name in [
        "deepseek2_joined",
        "deepseek3",
        "gemma3",
        "gemma4",
        "gpt2",
        "mixtral",
        "granitehybrid",
        "lfm2moe",
        "llama_mixed",
        "llama_yarn",
        "nemotron_h",
        "phi3_longrope",
        "qwen35moe",
    ] {
        let good = fs::read(folder.join(format!("{name}.gguf"))).unwrap();
        for _ in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..1 + random(3) {
                // Keys and the tensor directory are at the front.
                bytes[random(2500)] ^= 1 << random(8);
            }
            let Ok(file) = import::gguf::Gguf::parse(bytes.as_slice().into()) else {
                continue;
            };
            let _ = import::gguf::lower(&file, &ImportOptions::default());
        }
    }
}
