//! Exactness on every fixture architecture and every tier: the result of a row depends neither on the other rows of its step
//! nor on the executor, and a rewind changes nothing. The logits are also compared with those of transformers.

use backend::{CompileOptions, ExecutorKind};
use cpu::{Cpu, Isa};
use graph::{Data, Value};
use import::{Artifact, ImportOptions};
use kv::{
    BackendOptions, CacheConfig, CacheSession, Cells, Contiguous, KvStorage, make_decode_session,
    make_seq_session,
};
use runtime::{Module, ModuleOptions};
use std::path::{Path, PathBuf};

struct Fixture {
    name: String,
    artifact: Artifact,
    tokens: Vec<i32>,
    /// transformers' logits of all positions.
    truth: Vec<f32>,
}

impl Fixture {
    fn has_quantised_weights(&self) -> bool {
        let mut graphs = self.artifact.methods.iter().map(|method| &method.graph);
        graphs.any(|graph| graph.tensors().iter().any(|t| t.ty.dtype.is_quantised()))
    }
}

fn fixtures() -> Vec<Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path());
    let mut paths: Vec<PathBuf> = files
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    paths.sort();
    paths.iter().map(|path| fixture(path)).collect()
}

fn fixture(path: &Path) -> Fixture {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    // The expected logits were computed within the original context, where LongRoPE uses its short factors.
    let context_length = (name == "phi3_shortrope").then_some(32);
    let mut artifact = import::open_with(
        path,
        &ImportOptions {
            context_length,
            ..ImportOptions::default()
        },
    )
    .unwrap();
    artifact
        .methods
        .iter_mut()
        .for_each(|m| graph::passes::optimise(&mut m.graph).unwrap());
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path.with_extension("json")).unwrap())
            .unwrap();
    let tokens = json["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_i64().unwrap() as i32)
        .collect();
    let rows = json["logits"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap());
    let truth = rows.map(|x| x.as_f64().unwrap() as f32).collect();
    Fixture {
        name,
        artifact,
        tokens,
        truth,
    }
}

/// A session with its module.
struct Run {
    session: Session,
    module: Module,
}

/// A session of one sequence: contiguous, or in cells for models with recurrent layers.
enum Session {
    Contiguous(CacheSession<Contiguous>),
    Cells(CacheSession<Cells>),
}

impl Session {
    fn new(config: &CacheConfig) -> (Session, BackendOptions) {
        match config.has_states() {
            true => {
                let (session, options) = make_seq_session(Cpu::ID, config).unwrap();
                (Session::Cells(session), options)
            }
            false => {
                let (session, options) = make_decode_session(Cpu::ID, config).unwrap();
                (Session::Contiguous(session), options)
            }
        }
    }

    fn len(&self) -> u32 {
        match self {
            Session::Contiguous(session) => session.len().unwrap(),
            Session::Cells(session) => session.len().unwrap(),
        }
    }

    fn begin_step(&self, tokens: usize) {
        if let Session::Cells(session) = self {
            session.begin_step(&vec![0; tokens]).unwrap();
        }
    }

    /// Rewinds to the longest length up to `len` that can be continued, and returns it.
    fn rewind(&self, len: usize) -> usize {
        let to = match self {
            Session::Contiguous(_) => len as u32,
            Session::Cells(session) => session
                .with(|cells| cells.restorable(0, len as u32).unwrap())
                .unwrap(),
        };
        match self {
            Session::Contiguous(session) => session.rewind(to).unwrap(),
            Session::Cells(session) => session.seq_rm(0, to..).unwrap(),
        }
        to as usize
    }
}

impl Run {
    fn new(artifact: &Artifact, isa: Isa, compile: CompileOptions, storage: KvStorage) -> Run {
        let cpu = Cpu::with_isa(isa);
        let mut config = CacheConfig::new(64, artifact.facts.caches.clone());
        (
            config.key_storage,
            config.value_storage,
            config.initial_cells,
        ) = (storage, storage, 4);
        config.states.interval = 5;
        let (session, backend) = Session::new(&config);
        let module =
            Module::from_artifact(artifact, &cpu, &ModuleOptions { backend, compile }).unwrap();
        Run { session, module }
    }

    /// Feeds the tokens from the session's length on, in steps of these sizes; all logits.
    fn feed(&mut self, tokens: &[i32], steps: &[usize]) -> Vec<f32> {
        let mut logits = Vec::new();
        for &n in steps {
            let start = self.session.len() as usize;
            self.session.begin_step(n);
            let inputs = [
                Value::i32([n], tokens[start..start + n].to_vec()),
                Value::i32([n], (start as i32..).take(n).collect()),
                Value::i32([n], (0..n as i32).collect()),
            ];
            let outputs = self.module.execute("forward", &inputs).unwrap();
            let Data::F32(rows) = &outputs[0].data else {
                panic!("logits are f32")
            };
            logits.extend_from_slice(rows);
        }
        logits
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn logits_are_those_of_transformers() {
    for fixture in fixtures() {
        let n = fixture.tokens.len();
        let mean = fixture.truth.iter().sum::<f32>() / fixture.truth.len() as f32;
        let spread = fixture
            .truth
            .iter()
            .map(|x| (x - mean).powi(2))
            .sum::<f32>()
            / fixture.truth.len() as f32;
        for isa in Isa::available() {
            // Activations of quantised products have at least twelve bits, which is as exact as f16.
            let exact = if fixture.has_quantised_weights() {
                2e-2
            } else {
                1e-4
            };
            // Gemma 4 does not scale its scores, so that the rounding of keys weighs more.
            let rounded = if fixture.name.starts_with("gemma4") {
                5e-2
            } else {
                2e-2
            };
            for (storage, tolerance) in [(KvStorage::F32, exact), (KvStorage::F16, rounded)] {
                let mut run = Run::new(&fixture.artifact, isa, CompileOptions::default(), storage);
                let logits = run.feed(&fixture.tokens, &[n]);
                let worst = logits
                    .iter()
                    .zip(&fixture.truth)
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, f32::max);
                assert!(
                    worst / spread.sqrt() < tolerance,
                    "{} on {isa} with {storage}: {worst} of {}",
                    fixture.name,
                    spread.sqrt()
                );
            }
        }
    }
}

#[test]
fn steps_threads_and_executors_do_not_change_a_bit() {
    for fixture in fixtures() {
        let n = fixture.tokens.len();
        for isa in Isa::available() {
            for storage in KvStorage::ALL {
                let run = |threads, executor, steps: &[usize]| {
                    let compile = CompileOptions {
                        threads: Some(threads),
                        executor,
                        ..CompileOptions::default()
                    };
                    bits(
                        &Run::new(&fixture.artifact, isa, compile, storage)
                            .feed(&fixture.tokens, steps),
                    )
                };
                let expect = run(1, ExecutorKind::Compiled, &[n]);
                let variants = [
                    (1, ExecutorKind::Compiled, vec![1; n]),
                    (3, ExecutorKind::Compiled, vec![5, 1, 7, 2, 3, n - 18]),
                    (2, ExecutorKind::Interpreted, vec![n]),
                    (1, ExecutorKind::Interpreted, vec![2; n / 2]),
                ];
                for (threads, executor, steps) in variants {
                    let found = run(threads, executor, &steps);
                    let what = format!(
                        "{} on {isa} with {storage}: {executor:?} {steps:?}",
                        fixture.name
                    );
                    assert!(found == expect, "{what}");
                }
            }
        }
    }
}

#[test]
fn going_back_and_on_again_does_not_change_a_bit() {
    for fixture in fixtures() {
        let n = fixture.tokens.len();
        let mut run = Run::new(
            &fixture.artifact,
            Isa::detect().unwrap(),
            CompileOptions::default(),
            KvStorage::F16,
        );
        let expect = bits(&run.feed(&fixture.tokens, &[n]));
        let vocab = expect.len() / n;
        for back in [n - 1, n / 2, 1, 0] {
            // Other tokens first, so that stale rows hold something else.
            let back = run.session.rewind(back);
            let mut other = fixture.tokens.clone();
            other[back..]
                .iter_mut()
                .for_each(|t| *t = (*t + 1) % vocab as i32);
            run.feed(&other, &[n - back]);
            assert_eq!(run.session.rewind(back), back);
            let found = bits(&run.feed(&fixture.tokens, &[n - back]));
            assert!(
                found == expect[back * vocab..],
                "{} from {back}",
                fixture.name
            );
        }
    }
}

#[test]
fn a_failed_step_leaves_the_cache_as_it_was() {
    let fixture = fixtures().remove(0);
    let mut run = Run::new(
        &fixture.artifact,
        Isa::GENERIC,
        CompileOptions::default(),
        KvStorage::F16,
    );
    let expect = bits(&run.feed(&fixture.tokens, &[4, 4]));
    assert_eq!(run.session.rewind(4), 4);
    let step = |tokens: Vec<i32>, position: Vec<i32>, rows: Vec<i32>| {
        [tokens, position, rows].map(|data| Value::i32([data.len()], data))
    };
    for (inputs, message) in [
        (
            step(vec![1_000_000], vec![4], vec![0]),
            "index 1000000 is outside a table",
        ),
        (
            step(vec![1], vec![9], vec![0]),
            "has position 9, but the cache continues at 4",
        ),
        (
            step(vec![1], vec![4], vec![1]),
            "index 1 is outside a table of 1 rows",
        ),
        (
            step(vec![1, 2], vec![4], vec![0]),
            "tensor position has no size with these inputs",
        ),
        (
            step(vec![0; 61], (4..65).collect(), vec![0]),
            "the cache is full: 65 cells are needed",
        ),
    ] {
        let error = run
            .module
            .execute("forward", &inputs)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(run.session.len(), 4);
    }
    let again = bits(&run.feed(&fixture.tokens, &[4]));
    assert!(again == expect[expect.len() / 2..]);
    assert!(
        run.module
            .execute("backward", &[])
            .unwrap_err()
            .to_string()
            .contains("no method \"backward\"")
    );
}
