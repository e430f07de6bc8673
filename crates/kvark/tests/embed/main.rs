//! Embeddings against those of transformers: of tiny encoders on every backend, and of all-MiniLM-L6-v2 from the folder that
//! `KVARK_TEST_EMBED` names, which `cargo xtask check-embed` makes.

#[path = "../common/mod.rs"]
mod common;
mod exported;

use common::named_by;
use kvark::backend::Backend;
use kvark::backend::reference::Reference;
use kvark::embed::{EmbedOptions, Embedder, Embedding, Pooling};
use kvark::memory::{MemoryLimit, MemoryPlan, PlannedModel};
use kvark::model::OpenOptions;
use kvark::text::EncodeOptions;
use kvark::{Cpu, Model, Runner, RunnerOptions, RuntimeErrorKind};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../import/tests/fixtures")
        .join(name)
}

fn open(path: &Path) -> Model {
    let options = OpenOptions {
        hidden_states: true,
        ..OpenOptions::default()
    };
    Model::open_with(path, &options).unwrap()
}

fn embedder(path: &Path, backend: &dyn Backend, options: &EmbedOptions) -> Embedder {
    Embedder::new(open(path), backend, options).unwrap()
}

fn with_pooling(pooling: Pooling) -> EmbedOptions {
    EmbedOptions {
        pooling: Some(pooling),
        truncate: true,
        ..EmbedOptions::default()
    }
}

/// One text with its tokens and embedding from transformers.
struct Truth(Value);

impl Truth {
    fn read(path: &Path) -> Vec<Truth> {
        let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let texts = json["texts"].as_array().unwrap();
        texts.iter().cloned().map(Truth).collect()
    }

    fn text(&self) -> &str {
        self.0["text"].as_str().unwrap()
    }

    fn ids(&self) -> Vec<u32> {
        let ids = self.0["ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap() as u32).collect()
    }

    fn embedding(&self, pooling: Pooling) -> Vec<f64> {
        let values = self.0[pooling.name()].as_array().unwrap().iter();
        values.map(|x| x.as_f64().unwrap()).collect()
    }
}

/// The largest deviations over several comparisons.
#[derive(Debug)]
struct Worst {
    difference: f64,
    cosine: f64,
}

fn worst(found: &[Embedding], truth: &[Truth], pooling: Pooling) -> Worst {
    assert_eq!(found.len(), truth.len());
    let mut worst = Worst {
        difference: 0.0,
        cosine: 1.0,
    };
    for (found, truth) in found.iter().zip(truth) {
        let wanted = truth.embedding(pooling);
        let values: Vec<f64> = found.values.iter().map(|x| f64::from(*x)).collect();
        assert_eq!(
            (values.len(), found.tokens),
            (wanted.len(), truth.ids().len())
        );
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let lengths = (dot(&values, &values) * dot(&wanted, &wanted)).sqrt();
        worst.cosine = worst.cosine.min(dot(&values, &wanted) / lengths);
        for (a, b) in values.iter().zip(&wanted) {
            assert!(a.is_finite(), "{:?}", truth.text());
            worst.difference = worst.difference.max((a - b).abs());
        }
    }
    worst
}

#[test]
fn tiny_encoders_agree_with_transformers() {
    let backends: [&dyn Backend; 2] = [&Reference::new(), &Cpu::new().unwrap()];
    for name in ["bert", "nomic_bert"] {
        let truth = Truth::read(&fixture(&format!("encoder/{name}.json")));
        let texts: Vec<&str> = truth.iter().map(Truth::text).collect();
        for (backend, pooling) in backends.iter().flat_map(|b| Pooling::ALL.map(|p| (b, p))) {
            let path = fixture(&format!("encoder/{name}.gguf"));
            let mut embedder = embedder(&path, *backend, &with_pooling(pooling));
            let together = embedder.embed(&texts, |_| true).unwrap().unwrap();
            let found = worst(&together, &truth, pooling);
            assert!(found.difference < 2e-6, "{name} {pooling:?}: {found:?}");
            let alone = texts.iter().map(|text| embedder.embed(&[text], |_| true));
            let alone: Vec<_> = alone.flat_map(|e| e.unwrap().unwrap()).collect();
            let found = worst(&alone, &truth, pooling);
            assert!(found.difference < 2e-6, "{name} {pooling:?}: {found:?}");
        }
        let own = [("bert", Pooling::Mean), ("nomic_bert", Pooling::Cls)];
        let path = fixture(&format!("encoder/{name}.gguf"));
        let embedder = embedder(&path, backends[1], &EmbedOptions::default());
        assert!(own.contains(&(name, embedder.pooling())));
        let planned = PlannedModel::try_from(embedder.model().artifact()).unwrap();
        let plan = MemoryPlan::new(
            &planned,
            backends[1],
            &RunnerOptions::default(),
            kvark::memory::CacheKind::Contiguous,
            None,
        );
        let plan = plan.unwrap();
        assert_eq!((plan.kv_bytes(), plan.step.tokens), (0, 32));
    }
}

#[test]
fn lengths_are_kept_when_asked() {
    let options = EmbedOptions {
        normalize: false,
        ..EmbedOptions::default()
    };
    let cpu = Cpu::new().unwrap();
    let path = fixture("encoder/bert.gguf");
    let run = |options| {
        let found = embedder(&path, &cpu, options).embed(&["a cat"], |_| true);
        found.unwrap().unwrap().remove(0).values
    };
    let length = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>().sqrt();
    let (plain, unit) = (run(&options), run(&EmbedOptions::default()));
    assert!((length(&unit) - 1.0).abs() < 1e-6);
    assert!((length(&plain) - 1.0).abs() > 0.1);
    let scaled = plain.iter().map(|x| x / length(&plain));
    assert!(scaled.zip(&unit).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn texts_that_do_not_fit_are_named_or_cut() {
    let cpu = Cpu::new().unwrap();
    let path = fixture("encoder/bert.gguf");
    let long = "cat ".repeat(40);
    let texts = ["a cat", &long[..]];
    let mut strict = embedder(&path, &cpu, &EmbedOptions::default());
    let error = strict.embed(&texts, |_| true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "text 2 has 42 tokens and the model accepts 32: shorten it or use --truncate"
    );
    let mut cutting = embedder(&path, &cpu, &with_pooling(Pooling::Last));
    let found = cutting.embed(&texts, |_| true).unwrap().unwrap();
    assert_eq!((found[0].tokens, found[1].tokens), (4, 32));
    // A truncated text still ends with the end token.
    let whole = cutting.embed(&["cat ".repeat(30)], |_| true).unwrap();
    assert_eq!(found[1].values, whole.unwrap()[0].values);
    assert!(cutting.embed(&texts, |_| false).unwrap().is_none());
    assert!(
        cutting
            .embed(&[""; 0], |_| true)
            .unwrap()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn wrong_models_are_told_where_to_go() {
    let cpu = Cpu::new().unwrap();
    let encoder = Model::open(&fixture("encoder/bert.gguf"), None).unwrap();
    let Err(error) = Runner::new(&encoder, &cpu, &RunnerOptions::default()) else {
        panic!("an encoder cannot be a runner's")
    };
    assert!(matches!(error.kind(), RuntimeErrorKind::Encoder(name) if name == "bert"));
    let decoder = Model::open(&fixture("decoder/qwen3.gguf"), None).unwrap();
    let Err(error) = Embedder::new(decoder, &cpu, &EmbedOptions::default()) else {
        panic!("a decoder with a cache cannot be an embedder's")
    };
    assert!(matches!(error.kind(), RuntimeErrorKind::NoEmbedding(name) if name == "qwen3"));
    let options = EmbedOptions {
        memory: MemoryLimit::Bytes(1000),
        ..EmbedOptions::default()
    };
    let Err(error) = Embedder::new(encoder, &cpu, &options) else {
        panic!("a thousand bytes do not suffice")
    };
    assert!(matches!(error.kind(), RuntimeErrorKind::MemoryShortfall(_)));
}

/// The maximum of one minus the cosine of an embedding and its expected value.
const COSINE: f64 = 1e-6;
/// The files, and the maximum error of an element: quantised products round their activations.
const FILES: [(&str, f64); 3] = [
    ("minilm-f32", 1e-4),
    ("minilm-f16", 1e-4),
    ("minilm-q8_0", 3e-4),
];

#[test]
fn minilm_agrees_with_transformers() {
    let mut log = std::io::stderr();
    let Some(folder) = named_by("KVARK_TEST_EMBED") else {
        return;
    };
    let truth = Truth::read(&folder.join("minilm-f32.json"));
    let cpu = Cpu::new().unwrap();
    let model = open(&folder.join("minilm-f32.gguf"));
    let tokenizer = model.tokenizer().unwrap();
    let options = EncodeOptions {
        bos: true,
        eos: true,
        special: false,
    };
    let differs = |truth: &&Truth| {
        let (mut ids, wanted) = (tokenizer.encode(truth.text(), options), truth.ids());
        if wanted.len() == 512 {
            ids.truncate(511);
            ids.push(wanted[511]);
        }
        ids != wanted
    };
    let wrong: Vec<&str> = truth.iter().filter(differs).map(Truth::text).collect();
    assert!(wrong.is_empty(), "other ids: {wrong:#?}");
    let tokens: usize = truth.iter().map(|t| t.ids().len()).sum();
    let _ = writeln!(
        log,
        "{} texts of {tokens} tokens: ids are equal",
        truth.len()
    );
    for (name, most) in FILES {
        let path = folder.join(name).with_extension("gguf");
        let truth = Truth::read(&path.with_extension("json"));
        let texts: Vec<&str> = truth.iter().map(Truth::text).collect();
        for pooling in Pooling::ALL {
            let mut embedder = embedder(&path, &cpu, &with_pooling(pooling));
            let found = embedder.embed(&texts, |_| true).unwrap().unwrap();
            let worst = worst(&found, &truth, pooling);
            let (lost, difference) = (1.0 - worst.cosine, worst.difference);
            let line = format!(
                "{name:<11} {:<4} 1 - cosine at most {lost:.1e}, difference at most {difference:.1e}",
                pooling.name()
            );
            let _ = writeln!(log, "{line}");
            assert!(lost <= COSINE && difference <= most, "{line}");
        }
    }
}
