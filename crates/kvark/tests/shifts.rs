//! Context shifts: keys are rotated to their new positions, and sessions continue after the shift.

use backend::{CompileOptions, KeyRotations, row_codec};
use base::Bytes;
use conformance::RowsCopy;
use graph::{Data, Value};
use import::gguf::{Gguf, GgufTensor};
use import::{Artifact, ImportOptions, ModelFile};
use kv::{CacheConfig, CacheSession, Contiguous, KvStorage, RingPolicy, make_decode_session};
use kvark::generate::SequenceHandle;
use kvark::snapshot::Snapshot;
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions};
use runtime::{Module, ModuleOptions};
use std::path::{Path, PathBuf};

const KEEP: usize = 3;
/// Rotary styles: interleaved, halves, two bases with windows, scaled frequencies with a magnitude, partial,
/// a part of one row that all heads share.
const MODELS: [&str; 6] = [
    "llama_plain",
    "qwen3",
    "gemma3",
    "llama_yarn",
    "phi3_longrope",
    "deepseek2_lite",
];

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    folder.join(format!("{name}.gguf"))
}

fn model(name: &str) -> Model {
    Model::open(&path(name), Some(64)).unwrap()
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 29 + i / 5) % 60).collect()
}

fn shortened(tokens: &[u32], dropped: usize) -> Vec<u32> {
    [&tokens[..KEEP], &tokens[KEEP + dropped..]].concat()
}

/// A session whose rows the test can read.
struct Run {
    session: CacheSession<Contiguous>,
    module: Module,
    config: CacheConfig,
}

impl Run {
    fn new(model: &Model, storage: KvStorage) -> Run {
        let cpu = Cpu::new().unwrap();
        let mut config = CacheConfig::new(64, model.facts().caches.clone());
        (config.key_storage, config.value_storage) = (storage, storage);
        (config.initial_cells, config.ring) = (
            4,
            Some(RingPolicy {
                max_step: 48,
                max_rewind: 4,
            }),
        );
        let (session, backend) = make_decode_session(Cpu::ID, &config).unwrap();
        let compile = CompileOptions::default();
        let options = ModuleOptions { backend, compile };
        let module = Module::from_artifact(model.artifact(), &cpu, &options).unwrap();
        Run {
            session,
            module,
            config,
        }
    }

    /// Feeds tokens in one step and returns the logits after the last one.
    fn feed(&mut self, tokens: &[u32]) -> Vec<f32> {
        let start = self.session.len().unwrap() as i32;
        let n = tokens.len();
        let inputs = [
            Value::i32([n], tokens.iter().map(|t| *t as i32).collect()),
            Value::i32([n], (start..).take(n).collect()),
            Value::i32([1], vec![n as i32 - 1]),
        ];
        match self
            .module
            .execute("forward", &inputs)
            .unwrap()
            .remove(0)
            .data
        {
            Data::F32(logits) => logits,
            _ => panic!("logits are f32"),
        }
    }

    fn shift(&mut self, dropped: u32) {
        let forward = self.module.method("forward").unwrap();
        let graph = self.module.runnable(forward).graph();
        let rotations = KeyRotations::from_graph(graph, self.config.layers.len()).unwrap();
        let lower =
            |shift: &kv::RowShift, bytes: &mut dyn kv::KvBytes| rotations.shift(shift, bytes);
        self.session.shift(0, KEEP as u32, dropped, lower).unwrap();
    }

    /// The keys of the first layer, decoded, with the position of the first.
    fn keys(&self) -> (u32, Vec<f32>) {
        let copy = RowsCopy::take(&self.session, 0).unwrap();
        let layer = copy.saved().layers[0];
        let (storage, dim) = (self.config.key_storage, self.config.layers[0].key_dim);
        let mut keys = vec![];
        for row in layer.keys.chunks(storage.row_bytes(dim)) {
            let mut decoded = vec![0.0; dim];
            row_codec::decode(storage, row, &mut decoded);
            keys.extend(decoded);
        }
        (layer.first, keys)
    }
}

/// The keys of the first layer depend only on a token and its position, so shifted keys can be compared with computed ones.
/// The bounds are on the difference relative to the largest element of a row. For f32: the error of the arithmetic. For
/// other types: six roundings, one of each compared row and two of each of the two shifts, because a rotation enlarges
/// an element and its error by at most √2.
#[test]
fn shifted_keys_are_those_of_their_new_positions() {
    let bounds = [
        ("f32", 1e-5),
        ("f16", 6.0 / 2048.0),
        ("bf16", 6.0 / 256.0),
        ("f8_e4m3", 6.0 / 16.0),
        ("q8", 6.0 / 255.0),
        ("q4", 6.0 / 15.0),
    ];
    for name in MODELS {
        let model = model(name);
        for (storage, bound) in bounds {
            let storage = KvStorage::from_name(storage).unwrap();
            let text = tokens(47);
            let mut shifted = Run::new(&model, storage);
            shifted.feed(&text);
            let mut left = text.clone();
            for dropped in [11, 9] {
                shifted.shift(dropped);
                left = shortened(&left, dropped as usize);
            }
            let mut fresh = Run::new(&model, storage);
            fresh.feed(&left);
            let ((at, found), (first, expect)) = (shifted.keys(), fresh.keys());
            let dim = shifted.config.layers[0].key_dim;
            let rows = left.len() - at as usize;
            let skip = (at - first) as usize;
            let mut worst = 0f32;
            for (i, row) in found.chunks(dim).enumerate() {
                let (head, position) = (i / rows, i % rows);
                let same = head * (left.len() - first as usize) + skip + position;
                let truth = &expect[same * dim..][..dim];
                let size = truth.iter().fold(1e-6f32, |a, b| a.max(b.abs()));
                let far = row.iter().zip(truth).map(|(a, b)| (a - b).abs());
                worst = worst.max(far.fold(0.0, f32::max) / size);
            }
            let what = format!("{name} with {storage}");
            assert!(worst <= bound, "{what}: {worst:e}, bound {bound:e}");
        }
    }
}

/// The first layer of a model, as a model of its own.
fn one_layer(name: &str) -> Model {
    let mut bytes = std::fs::read(path(name)).unwrap();
    let key = b"llama.block_count";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
    // The directory without the other layers' tensors; their data stays where it is.
    let file = Gguf::parse(Bytes::from(&bytes[..])).unwrap();
    let entry = |tensor: &GgufTensor| {
        let name = tensor.name.as_bytes();
        let start = [&(name.len() as u64).to_le_bytes(), name].concat();
        let at = bytes.windows(start.len()).position(|w| *w == start);
        let at = at.unwrap();
        at..at + start.len() + 4 + 8 * tensor.shape.len() + 4 + 8
    };
    let first = file.tensors.iter().map(|t| entry(t).start).min().unwrap();
    let end = file.tensors.iter().map(|t| entry(t).end).max().unwrap();
    let others = |name: &str| name.starts_with("blk.") && !name.starts_with("blk.0.");
    let kept = file.tensors.iter().filter(|t| !others(&t.name));
    let mut less = bytes[..first].to_vec();
    less[8..16].copy_from_slice(&(kept.clone().count() as u64).to_le_bytes());
    kept.for_each(|tensor| less.extend(&bytes[entry(tensor)]));
    less.resize(less.len().next_multiple_of(32), 0);
    less.extend(&bytes[end.next_multiple_of(32)..]);
    let file = Gguf::parse(Bytes::from(&less[..])).unwrap();
    Model::new(Artifact::from_file(ModelFile::Gguf(file), &ImportOptions::default()).unwrap())
}

#[test]
fn a_model_of_one_layer_answers_as_a_cold_run_on_what_is_left() {
    for name in ["llama_plain", "llama_yarn"] {
        let model = one_layer(name);
        assert_eq!(model.facts().caches.len(), 1);
        for (storage, bound) in [("f32", 1e-5), ("f16", 2e-3), ("q8", 2e-2)] {
            let storage = KvStorage::from_name(storage).unwrap();
            let text = tokens(47);
            let mut shifted = Run::new(&model, storage);
            shifted.feed(&text);
            shifted.shift(20);
            let found = shifted.feed(&[7]);
            let mut cold = Run::new(&model, storage);
            cold.feed(&shortened(&text, 20));
            let expect = cold.feed(&[7]);
            let size = expect.iter().fold(0f32, |a, b| a.max(b.abs()));
            let far = found.iter().zip(&expect).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f32::max) / size;
            assert!(far <= bound, "{name} with {storage}: {far:e}");
        }
    }
}

fn runner_options(storage: &str, context: usize) -> RunnerOptions {
    RunnerOptions {
        context: Some(context),
        max_step_tokens: 4,
        key_storage: KvStorage::from_name(storage).unwrap(),
        value_storage: KvStorage::from_name(storage).unwrap(),
        ..RunnerOptions::default()
    }
}

/// The bits of the logits after each of these tokens; shifts the context when it is full.
fn bits<'a>(sequence: impl Into<SequenceHandle<'a>>, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut sequence = sequence.into();
    let mut next = |token: &u32| {
        assert!(sequence.ensure_capacity().unwrap());
        assert!(sequence.feed(&[*token], &mut |_| true).unwrap());
        sequence.logits().iter().map(|x| x.to_bits()).collect()
    };
    tokens.iter().map(&mut next).collect()
}

#[test]
fn shifted_sessions_are_saved_rewound_and_forked() {
    let file = std::env::temp_dir().join(format!("kvark-shift-{}.kv", std::process::id()));
    for name in MODELS {
        let model = model(name);
        for storage in ["f32", "f16", "q8"] {
            let runner_options = runner_options(storage, 24);
            let what = format!("{name} with {storage}");
            let text = tokens(60);
            let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
            runner.enable_context_shift(KEEP).unwrap();
            // Fill the context three times.
            let expect = bits(&mut runner, &text);
            assert!(runner.tokens().len() <= 24);
            assert_eq!(runner.tokens()[..KEEP], text[..KEEP], "{what}");
            assert!(text.ends_with(&runner.tokens()[KEEP..]), "{what}");

            runner.save(&model, &file, b"").unwrap();
            let snapshot = Snapshot::open(&file).unwrap();
            let len = runner.tokens().len();
            let mut restored = Runner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
            restored.enable_context_shift(KEEP).unwrap();
            for back in [0, 2] {
                restored.restore(&model, &snapshot, len).unwrap();
                for runner in [&mut runner, &mut restored] {
                    runner.rewind(len - back).unwrap();
                }
                let found = [&mut runner, &mut restored].map(|r| bits(r, &text[..3]));
                assert!(found[0] == found[1], "{what}, {back} back");
                runner.restore(&model, &snapshot, len).unwrap();
            }

            // The same in a pool of cells, with a second sequence that shares the prefix and must not change.
            let wide = RunnerOptions {
                context: Some(40),
                ..runner_options.clone()
            };
            let mut branches = BatchRunner::new(&model, &Cpu::new().unwrap(), &wide).unwrap();
            branches.enable_context_shift(KEEP).unwrap();
            let mut cold = Runner::new(&model, &Cpu::new().unwrap(), &wide).unwrap();
            branches
                .sequence(0)
                .feed(&text[..16], &mut |_| true)
                .unwrap();
            cold.feed(&text[..16], |_| true).unwrap();
            branches.fork(0, 1).unwrap();
            bits(branches.sequence(0), &text[16..24]);
            branches.shift_context(0).unwrap().unwrap();
            let other = bits(branches.sequence(1), &text[30..34]);
            assert!(
                other == bits(&mut cold, &text[30..34]),
                "{what}: the other branch"
            );
            // In both kinds of cache a shift gives the same bits.
            let mut alone = Runner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
            alone.enable_context_shift(KEEP).unwrap();
            let before = bits(&mut alone, &text[..24]);
            assert!(before == expect[..24], "{what}");
            alone.shift_context().unwrap().unwrap();
            branches.remove(1).unwrap();
            assert_eq!(alone.tokens(), branches.tokens(0), "{what}");
            branches.fork(0, 2).unwrap();
            let going_on = bits(&mut alone, &text[24..28]);
            assert!(going_on == expect[24..28], "{what}");
            for id in [0, 2] {
                assert!(
                    bits(branches.sequence(id), &text[24..28]) == going_on,
                    "{what}"
                );
            }
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn models_whose_keys_cannot_be_moved_say_so() {
    let model = Model::open(&path("gpt2"), Some(24)).unwrap();
    let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &runner_options("f16", 24)).unwrap();
    let error = runner.enable_context_shift(1).unwrap_err().to_string();
    assert!(error.contains("the context cannot be shifted"), "{error}");
    assert!(error.contains("uses positions for more"), "{error}");
    assert_eq!(runner.shift_context().unwrap(), None);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx");
    let model = Model::open(&folder.join("llama.onnx"), None).unwrap();
    let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &RunnerOptions::default()).unwrap();
    let error = runner.enable_context_shift(1).unwrap_err().to_string();
    assert!(error.contains("uses positions for more"), "{error}");
}
