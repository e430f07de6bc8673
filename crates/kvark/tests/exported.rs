//! Exported models (`.pt2`) on the CPU backend with the passes that every model gets.
//!
//! - The toy export of the outside fixtures, if present, against ExecuTorch's reference caches: every cache and tier.
//! - The tiny decoders that are checked in, against transformers, and their cache uses bit for bit.
//! - An export of SmolLM2, when `KVARK_TEST_PT2` names one, through the same uses; its greedy tokens against PyTorch's, which
//!   the JSON file `KVARK_TEST_PT2_TOKENS` holds. `cargo xtask check-export` makes both.

mod common;

use common::{named_by, outside_fixture};
use kvark::backend::{CompileOptions, ExecutorKind, Isa};
use kvark::cache::{
    CacheConfig, KvStorage, RingPolicy, make_decode_session, make_seq_session, make_tree_session,
};
use kvark::generate::BatchToken;
use kvark::inference::{ModuleOptions, Value};
use kvark::model::{Artifact, open_artifact};
use kvark::{BatchRunner, Cpu, Model, Module, Runner, RunnerOptions};
use serde_json::Value as Json;
use std::path::Path;

/// The maximum error, divided by the standard deviation of the expected logits if that is above 1.
const TOLERANCE: f32 = 1e-4;

/// Both executors, with different numbers of threads.
fn compiles() -> [CompileOptions; 2] {
    let with = |threads, executor| CompileOptions {
        threads: Some(threads),
        executor,
        ..CompileOptions::default()
    };
    [
        with(2, ExecutorKind::Compiled),
        with(1, ExecutorKind::Interpreted),
    ]
}

fn json(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn ids(list: &Json) -> Vec<u32> {
    let list = list.as_array().unwrap().iter();
    list.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn floats(list: &Json) -> Vec<f32> {
    let list = list.as_array().unwrap().iter();
    list.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn distance(found: &[f32], truth: &[f32]) -> f32 {
    assert_eq!(found.len(), truth.len());
    let n = truth.len() as f32;
    let mean = truth.iter().sum::<f32>() / n;
    let deviation = (truth.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt();
    let away = found.iter().zip(truth).map(|(a, b)| (a - b).abs());
    // A NaN counts as an infinite difference.
    away.fold(0.0, |a: f32, b| if b.is_nan() { b } else { a.max(b) }) / deviation.max(1.0)
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Runs one forward and returns the logits of all rows.
fn forward(module: &mut Module, tokens: &[u32], positions: &[u32]) -> Vec<f32> {
    let n = tokens.len();
    let ints = |list: &[u32]| Value::i32([n], list.iter().map(|x| *x as i32).collect());
    let rows = ints(&(0..n as u32).collect::<Vec<_>>());
    let inputs = [ints(tokens), ints(positions), rows];
    let outputs = module.execute("forward", &inputs).unwrap();
    outputs[0].as_f32().unwrap().to_vec()
}

// ---- the toy export ----

/// The export with its goldens, if it is there.
fn toy() -> Option<(Artifact, Json)> {
    let folder = outside_fixture("toy-export")?;
    let artifact = open_artifact(&folder.join("toy.pt2"), None).unwrap();
    Some((artifact, json(&folder.join("toy_golden.json"))))
}

/// A golden `[1, T, vocab]` as one list.
fn rows(golden: &Json, key: &str) -> Vec<f32> {
    let rows = golden[key][0].as_array().unwrap().iter();
    rows.flat_map(floats).collect()
}

fn toy_config(artifact: &Artifact) -> CacheConfig {
    let mut config = CacheConfig::new(64, artifact.facts.caches.clone());
    (config.key_storage, config.value_storage) = (KvStorage::F32, KvStorage::F32);
    config.ring = Some(RingPolicy {
        max_step: 16,
        max_rewind: 4,
    });
    config
}

/// The cache uses that are tested on every tier with every executor.
fn everywhere(mut case: impl FnMut(&Cpu, &CompileOptions, &str)) {
    for isa in Isa::available() {
        for compile in compiles() {
            let what = format!("{isa}, {:?}", compile.executor);
            case(&Cpu::with_isa(isa), &compile, &what);
        }
    }
}

/// All logits of one sequence in steps of these sizes.
fn toy_decode(
    artifact: &Artifact,
    cpu: &Cpu,
    compile: &CompileOptions,
    ids: &[u32],
    sizes: &[usize],
) -> Vec<f32> {
    let (_session, backend) = make_decode_session(Cpu::ID, &toy_config(artifact)).unwrap();
    let compile = compile.clone();
    let options = ModuleOptions { backend, compile };
    let mut module = Module::from_artifact(artifact, cpu, &options).unwrap();
    let (mut logits, mut at) = (vec![], 0);
    for &n in sizes {
        let positions: Vec<u32> = (at as u32..).take(n).collect();
        logits.extend(forward(&mut module, &ids[at..at + n], &positions));
        at += n;
    }
    logits
}

#[test]
fn the_toy_decodes_at_once_in_chunks_and_token_by_token() {
    let Some((artifact, golden)) = toy() else {
        return;
    };
    let ids = ids(&golden["ids"][0]);
    everywhere(|cpu, compile, what| {
        for sizes in [&[10][..], &[4, 1, 1, 1, 1, 1, 1], &[3, 5, 2], &[1; 10]] {
            let logits = toy_decode(&artifact, cpu, compile, &ids, sizes);
            for key in ["full", "decode"] {
                let away = distance(&logits, &rows(&golden, key));
                assert!(away <= TOLERANCE, "{what}: {key} in {sizes:?}: {away}");
            }
        }
    });
}

#[test]
fn the_toy_keeps_a_ring_in_its_first_layer() {
    let Some((mut artifact, golden)) = toy() else {
        return;
    };
    artifact.facts.caches[0].window = Some(4);
    let (ids, truth) = (ids(&golden["ids"][0]), rows(&golden, "ring4_layer0"));
    assert!(distance(&rows(&golden, "full"), &truth) > 0.01);
    everywhere(|cpu, compile, what| {
        for sizes in [&[10][..], &[3, 5, 2], &[1; 10]] {
            let away = distance(&toy_decode(&artifact, cpu, compile, &ids, sizes), &truth);
            assert!(away <= TOLERANCE, "{what}: in {sizes:?}: {away}");
        }
    });
}

#[test]
fn the_toy_runs_two_sequences_in_a_step_and_forks() {
    let Some((artifact, golden)) = toy() else {
        return;
    };
    let ids = ids(&golden["ids"][0]);
    everywhere(|cpu, compile, what| {
        let (session, backend) = make_seq_session(Cpu::ID, &toy_config(&artifact)).unwrap();
        let compile = compile.clone();
        let options = ModuleOptions { backend, compile };
        let mut module = Module::from_artifact(&artifact, cpu, &options).unwrap();

        session.begin_step(&[0, 0, 0, 0, 1, 1, 1]).unwrap();
        let tokens = [&ids[..4], &ids[6..9]].concat();
        let logits = forward(&mut module, &tokens, &[0, 1, 2, 3, 0, 1, 2]);
        let away = distance(&logits, &rows(&golden, "two_seq"));
        assert!(away <= TOLERANCE, "{what}: two sequences: {away}");

        session.seq_cp(0, 2, ..).unwrap();
        session.begin_step(&[0, 2]).unwrap();
        let logits = forward(&mut module, &[ids[4], ids[8]], &[4, 4]);
        let away = distance(&logits, &rows(&golden, "fork"));
        assert!(away <= TOLERANCE, "{what}: fork: {away}");
    });
}

// ---- models through the runners ----

/// A model on a backend, and the cold run that every use of a cache must reproduce.
struct Subject<'a> {
    name: String,
    model: &'a Model,
    cpu: Cpu,
    runner_options: RunnerOptions,
}

impl<'a> Subject<'a> {
    fn new(name: &str, model: &'a Model, cpu: Cpu, storage: KvStorage) -> Subject<'a> {
        let runner_options = RunnerOptions {
            context: Some(model.facts().context_length.min(512)),
            key_storage: storage,
            value_storage: storage,
            // A frozen prefix keeps all its rows.
            ring_layers: false,
            ..RunnerOptions::default()
        };
        let name = format!("{name} on {} with {storage}", cpu.isa());
        Subject {
            name,
            model,
            cpu,
            runner_options,
        }
    }

    fn runner(&self) -> Runner {
        Runner::new(self.model, &self.cpu, &self.runner_options).unwrap()
    }

    /// The logits after every token of a cold run.
    fn cold(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
        feed(&mut self.runner(), tokens)
    }

    /// `n` tokens that depend on `seed`.
    fn tokens(&self, seed: u32, n: usize) -> Vec<u32> {
        let vocab = self.model.facts().vocab_size as u32;
        let mix = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503);
        (1..=n as u32).map(|i| mix(i) % vocab).collect()
    }

    /// Every use of the cache gives the cold run's logits bit for bit.
    fn try_every_cache(&self) {
        self.plain_decode();
        self.batch();
        self.fork();
        self.rewind();
        self.tree();
        self.shared_prefix();
    }

    fn plain_decode(&self) {
        let text = self.tokens(1, 20);
        let cold = self.cold(&text);
        let mut runner = self.runner();
        for (i, token) in text.iter().enumerate() {
            runner.feed(&[*token], |_| true).unwrap();
            assert!(bits(runner.logits()) == cold[i], "{}: token {i}", self.name);
        }
    }

    fn batch(&self) {
        let texts: Vec<Vec<u32>> = (0..3)
            .map(|s| self.tokens(s, 18 - 4 * s as usize))
            .collect();
        let cold: Vec<_> = texts.iter().map(|text| self.cold(text)).collect();
        let mut branches = BatchRunner::new(self.model, &self.cpu, &self.runner_options).unwrap();
        // The prompt of one sequence together with single tokens of the others, for each sequence in turn.
        for round in 0.. {
            let mut step = vec![];
            for (seq, text) in (0..).zip(&texts) {
                let at = branches.tokens(seq).len();
                let take = if round == seq { 6 } else { 1 };
                let part = &text[at..text.len().min(at + take)];
                let token = |(i, id): (usize, &u32)| BatchToken {
                    seq,
                    id: *id,
                    logits: i + 1 == part.len(),
                };
                step.extend(part.iter().enumerate().map(token));
            }
            if step.is_empty() {
                break;
            }
            branches.step(&step).unwrap();
            for seq in step.iter().filter(|t| t.logits).map(|t| t.seq) {
                let last = branches.tokens(seq).len() - 1;
                assert!(
                    bits(branches.logits(seq)) == cold[seq as usize][last],
                    "{}: sequence {seq} at {last}",
                    self.name
                );
            }
        }
    }

    fn fork(&self) {
        let trunk = self.tokens(4, 14);
        let mut branches = BatchRunner::new(self.model, &self.cpu, &self.runner_options).unwrap();
        let token = |seq, id, logits| BatchToken { seq, id, logits };
        let step: Vec<_> = trunk.iter().map(|id| token(0, *id, true)).collect();
        branches.step(&step).unwrap();
        let cells = branches.cells_used().unwrap();
        branches.fork(0, 1).unwrap();
        branches.fork(0, 2).unwrap();
        assert_eq!(branches.cells_used().unwrap(), cells, "forks hold nothing");
        let tails = [5, 6, 7].map(|seed| self.tokens(seed, 8));
        let cold = tails
            .each_ref()
            .map(|tail| self.cold(&[&trunk[..], tail].concat()));
        for i in 0..8 {
            let step = [0, 1, 2].map(|b| token(b, tails[b as usize][i], true));
            branches.step(&step).unwrap();
            for b in [0, 1, 2] {
                assert!(
                    bits(branches.logits(b)) == cold[b as usize][trunk.len() + i],
                    "{}: seq {b} at {i}",
                    self.name
                );
            }
        }
    }

    fn rewind(&self) {
        let text = self.tokens(8, 24);
        let cold = self.cold(&text);
        let mut runner = self.runner();
        feed(&mut runner, &text[..9]);
        // Another text first, so that stale rows hold something else.
        feed(&mut runner, &self.tokens(9, 15));
        for back in [9, 5, 1, 0] {
            runner.rewind(back).unwrap();
            let rows = feed(&mut runner, &text[back..]);
            assert!(rows == cold[back..], "{}: back to {back}", self.name);
        }
    }

    fn tree(&self) {
        let mut config = CacheConfig::new(
            self.runner_options.context.unwrap() as u32,
            self.model.facts().caches.clone(),
        );
        config.key_storage = self.runner_options.key_storage;
        config.value_storage = self.runner_options.value_storage;
        let (session, backend) = make_tree_session(Cpu::ID, &config).unwrap();
        let compile = self.runner_options.compile.clone();
        let options = ModuleOptions { backend, compile };
        let mut module = Module::from_artifact(self.model.artifact(), &self.cpu, &options).unwrap();
        let vocab = self.model.facts().vocab_size;
        let mut step = |tokens: &[u32], positions: &[u32]| -> Vec<Vec<u32>> {
            let logits = forward(&mut module, tokens, positions);
            logits.chunks(vocab).map(bits).collect()
        };

        let prefix = self.tokens(10, 12);
        let rows = step(&prefix, &(0..12).collect::<Vec<_>>());
        assert!(rows == self.cold(&prefix), "{}: before the tree", self.name);
        // A root with two children, the first of which has a child.
        let nodes = self.tokens(11, 4);
        session.propose(&[None, Some(0), Some(0), Some(1)]).unwrap();
        let rows = step(&nodes, &[12, 13, 13, 14]);
        let paths: [&[usize]; 4] = [&[0], &[0, 1], &[0, 2], &[0, 1, 3]];
        let text = |path: &[usize]| -> Vec<u32> {
            let nodes = path.iter().map(|node| nodes[*node]);
            prefix.iter().copied().chain(nodes).collect()
        };
        for (node, path) in paths.iter().enumerate() {
            let cold = self.cold(&text(path));
            assert!(
                rows[node] == *cold.last().unwrap(),
                "{}: node {node}",
                self.name
            );
        }
        session.accept(&[0, 1, 3]).unwrap();
        // A single chain of candidates after the path, of which a part is accepted.
        let so_far = text(paths[3]);
        let chain = self.tokens(12, 3);
        session.propose(&[None, Some(0), Some(1)]).unwrap();
        let rows = step(&chain, &[15, 16, 17]);
        let cold = self.cold(&[&so_far[..], &chain].concat());
        assert!(rows == cold[15..], "{}: a single chain", self.name);
        session.accept(&[0]).unwrap();
        assert_eq!(session.len().unwrap(), 16);
    }

    fn shared_prefix(&self) {
        let prefix = self.tokens(13, 15);
        let mut first = self.runner();
        feed(&mut first, &prefix);
        let shared = first.freeze(self.model).unwrap();
        let behind = || {
            let options = &self.runner_options;
            let behind = BatchRunner::with_prefix(&shared, self.model, &self.cpu, options);
            Runner::from(behind.unwrap())
        };
        for (seed, mut runner) in (14..).zip([first, behind(), behind()]) {
            let tail = self.tokens(seed, 7);
            let cold = self.cold(&[&prefix[..], &tail].concat());
            let rows = feed(&mut runner, &tail);
            assert!(rows == cold[15..], "{}: session {seed}", self.name);
        }
    }
}

/// Feeds tokens and returns the bits of the logits after each.
fn feed(runner: &mut Runner, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut rows = vec![];
    let each = |_, row: &[f32]| {
        rows.push(bits(row));
        true
    };
    runner.feed_all_logits(tokens, each).unwrap();
    rows
}

/// The tiny decoders that are checked in.
fn tiny() -> Vec<(&'static str, Model, Json)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/pt2");
    let names = ["llama", "qwen2", "qwen3", "gemma3", "gpt2", "features"];
    let open = |name| {
        let path = folder.join(format!("decoder_{name}.pt2"));
        (
            name,
            Model::open(&path, None).unwrap(),
            json(&path.with_extension("json")),
        )
    };
    names.map(open).into()
}

#[test]
fn tiny_exports_give_the_logits_of_transformers() {
    for (name, model, golden) in tiny() {
        let (ids, truth) = (ids(&golden["ids"]), floats(&golden["logits"]["data"]));
        for isa in Isa::available() {
            let mut first = None;
            for compile in compiles() {
                for (batch, rings) in [(512, true), (3, true), (1, false)] {
                    let runner_options = RunnerOptions {
                        max_step_tokens: batch,
                        key_storage: KvStorage::F32,
                        value_storage: KvStorage::F32,
                        ring_layers: rings,
                        compile: compile.clone(),
                        ..RunnerOptions::default()
                    };
                    let mut runner =
                        Runner::new(&model, &Cpu::with_isa(isa), &runner_options).unwrap();
                    let rows = feed(&mut runner, &ids);
                    let logits = rows.iter().flatten().map(|x| f32::from_bits(*x));
                    let away = distance(&logits.collect::<Vec<_>>(), &truth);
                    let what = format!("{name} on {isa}, {:?}, {batch}", compile.executor);
                    assert!(away <= TOLERANCE, "{what}: {away}");
                    let first = first.get_or_insert_with(|| rows.clone());
                    assert!(rows == *first, "{what} changes a bit");
                }
            }
        }
    }
}

#[test]
fn tiny_exports_give_their_cold_logits_from_every_cache() {
    for (name, model, _) in tiny() {
        for isa in Isa::available() {
            for storage in [KvStorage::F32, KvStorage::F16] {
                Subject::new(name, &model, Cpu::with_isa(isa), storage).try_every_cache();
            }
        }
    }
}

// ---- SmolLM2 ----

#[test]
fn the_real_export_gives_its_cold_logits_from_every_cache() {
    let Some(path) = named_by("KVARK_TEST_PT2") else {
        return;
    };
    let model = Model::open(&path, None).unwrap();
    for storage in [KvStorage::F32, KvStorage::F16] {
        Subject::new("the export", &model, Cpu::new().unwrap(), storage).try_every_cache();
    }
}

#[test]
fn the_real_export_decodes_the_tokens_of_pytorch() {
    let Some((path, tokens)) = named_by("KVARK_TEST_PT2").zip(named_by("KVARK_TEST_PT2_TOKENS"))
    else {
        return;
    };
    let model = Model::open(&path, None).unwrap();
    let cpu = Cpu::new().unwrap();
    let subject = Subject::new("the export", &model, cpu, KvStorage::F32);
    let texts = json(&tokens);
    let texts = texts["texts"].as_array().unwrap();
    assert!(!texts.is_empty());
    for text in texts {
        let (prompt, truth) = (ids(&text["prompt"]), ids(&text["greedy"]));
        let mut runner = subject.runner();
        runner.feed(&prompt, |_| true).unwrap();
        let mut greedy = vec![];
        while greedy.len() < truth.len() {
            let logits = (0..).zip(runner.logits());
            let (token, _) = logits.max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            greedy.push(token);
            runner.feed(&[token], |_| true).unwrap();
        }
        assert_eq!(greedy, truth, "behind {prompt:?}");
    }
}
