//! One model behind every kind of cache: whatever the cache, a sequence's logits are bit for bit those of the cold,
//! single-sequence run with the same storage type. On tiny models of several architectures, and on SmolLM2 when
//! `KVARK_TEST_MODEL` names it.

use backend::CompileOptions;
use cpu::Cpu;
use graph::{Data, Value};
use import::Artifact;
use kv::{
    BackendOptions, CacheConfig, KvStorage, QuantGroup, RingPolicy, make_decode_session,
    make_prefixed_session, make_seq_session, make_tree_session,
};
use runtime::{Module, ModuleOptions};
use std::path::Path;

/// A model with the tokens to try it on.
struct Subject {
    name: String,
    artifact: Artifact,
    storage: KvStorage,
    vocab: usize,
}

/// The models: architectures with full attention, windows, soft-caps and shared heads, in several storage types.
fn subjects() -> Vec<Subject> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    let tiny = [
        ("llama_plain", KvStorage::F32),
        ("llama_plain", KvStorage::Q8(QuantGroup::G32)),
        ("gemma3", KvStorage::F16),
        ("gemma3", KvStorage::Q4(QuantGroup::G32)),
        ("gemma2", KvStorage::BF16),
        ("gemma2", KvStorage::F8E4M3),
        ("gemma4", KvStorage::F16),
        ("qwen3", KvStorage::Q8(QuantGroup::G64)),
        ("mistral", KvStorage::Q4(QuantGroup::G64)),
    ];
    let mut list: Vec<Subject> = tiny
        .iter()
        .map(|(name, s)| subject(&folder.join(format!("{name}.gguf")), *s))
        .collect();
    if let Some(path) = std::env::var_os("KVARK_TEST_MODEL").filter(|p| !p.is_empty()) {
        list.extend(
            [KvStorage::F16, KvStorage::Q8(QuantGroup::G32)].map(|s| subject(Path::new(&path), s)),
        );
    }
    list
}

fn subject(path: &Path, storage: KvStorage) -> Subject {
    let mut artifact = import::open(path).unwrap();
    artifact
        .methods
        .iter_mut()
        .for_each(|m| graph::passes::optimise(&mut m.graph).unwrap());
    let vocab = artifact.facts.vocab_size;
    Subject {
        name: format!("{} {storage}", path.file_stem().unwrap().display()),
        artifact,
        storage,
        vocab,
    }
}

impl Subject {
    fn config(&self) -> CacheConfig {
        let mut config = CacheConfig::new(300, self.artifact.facts.caches.clone());
        (
            config.key_storage,
            config.value_storage,
            config.initial_cells,
        ) = (self.storage, self.storage, 8);
        config
    }

    /// The configuration in which all layers keep all rows and, if there are windows, one with rings for steps of `step` tokens.
    fn configs(&self, step: u32) -> Vec<CacheConfig> {
        let all = self.config();
        let windows = all.layers.iter().any(|layer| layer.window.is_some());
        let ring = RingPolicy {
            max_step: step,
            max_rewind: step,
        };
        let rings = CacheConfig {
            ring: Some(ring),
            ..all.clone()
        };
        match windows {
            true => vec![all, rings],
            false => vec![all],
        }
    }

    fn module(&self, backend: BackendOptions) -> Module {
        let options = ModuleOptions {
            backend,
            compile: CompileOptions::default(),
        };
        Module::from_artifact(&self.artifact, &Cpu::new().unwrap(), &options).unwrap()
    }

    /// `n` tokens that depend on `seed`.
    fn tokens(&self, seed: u32, n: usize) -> Vec<u32> {
        (0..n as u32)
            .map(|i| {
                (i + 1)
                    .wrapping_mul(2_654_435_761)
                    .wrapping_add(seed * 40_503)
                    % self.vocab as u32
            })
            .collect()
    }

    /// The logits after every token of a cold run.
    fn cold(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
        let (_session, options) = make_decode_session(Cpu::ID, &self.config()).unwrap();
        forward(
            &mut self.module(options),
            tokens,
            &(0..tokens.len() as u32).collect::<Vec<_>>(),
        )
    }
}

/// A subject with each of its configurations.
fn each(subject: &Subject, step: u32) -> impl Iterator<Item = (&Subject, CacheConfig)> {
    let configs = subject.configs(step).into_iter();
    configs.map(move |config| (subject, config))
}

/// Feeds tokens in forwards of at most `most` tokens and returns the bits of every row.
fn in_steps(module: &mut Module, tokens: &[u32], start: u32, most: usize) -> Vec<Vec<u32>> {
    let mut position = start;
    let step = |tokens: &[u32]| {
        let positions: Vec<u32> = (position..).take(tokens.len()).collect();
        position += tokens.len() as u32;
        forward(module, tokens, &positions)
    };
    tokens.chunks(most).flat_map(step).collect()
}

/// One forward with all rows wanted; the bits of each row.
fn forward(module: &mut Module, tokens: &[u32], positions: &[u32]) -> Vec<Vec<u32>> {
    let n = tokens.len();
    let ints = |list: &[u32]| Value::i32([n], list.iter().map(|x| *x as i32).collect());
    let rows = Value::i32([n], (0..n as i32).collect());
    let outputs = module
        .execute("forward", &[ints(tokens), ints(positions), rows])
        .unwrap();
    let Data::F32(logits) = &outputs[0].data else {
        panic!("logits are f32")
    };
    logits
        .chunks(logits.len() / n)
        .map(|row| row.iter().map(|x| x.to_bits()).collect())
        .collect()
}

#[test]
fn a_batch_of_sequences_gives_each_its_cold_logits() {
    Cpu::new().unwrap();
    for subject in subjects() {
        let (session, options) = make_seq_session(Cpu::ID, &subject.config()).unwrap();
        let mut module = subject.module(options);
        let texts: Vec<Vec<u32>> = (0..4)
            .map(|s| subject.tokens(s, 40 - 7 * s as usize))
            .collect();
        let cold: Vec<_> = texts.iter().map(|t| subject.cold(t)).collect();
        // Prefill of some sequences together with decode of others, then one token of each until all are done.
        let mut at = [0usize; 4];
        let mut round = 0;
        while at.iter().zip(&texts).any(|(at, text)| *at < text.len()) {
            let (mut tokens, mut positions, mut seqs) = (vec![], vec![], vec![]);
            for s in 0..4 {
                let take = if round == s { 9 } else { 1 };
                for _ in 0..take.min(texts[s].len() - at[s]) {
                    tokens.push(texts[s][at[s]]);
                    positions.push(at[s] as u32);
                    seqs.push(s as u32);
                    at[s] += 1;
                }
            }
            session.begin_step(&seqs).unwrap();
            let rows = forward(&mut module, &tokens, &positions);
            for ((row, s), p) in rows.iter().zip(&seqs).zip(&positions) {
                assert!(
                    *row == cold[*s as usize][*p as usize],
                    "{}: sequence {s} at {p}",
                    subject.name
                );
            }
            round += 1;
        }
    }
}

#[test]
fn forks_share_their_trunk_and_go_their_own_ways() {
    Cpu::new().unwrap();
    for (subject, config) in subjects().iter().flat_map(|s| each(s, 70)) {
        let (session, options) = make_seq_session(Cpu::ID, &config).unwrap();
        let mut module = subject.module(options);
        let trunk = subject.tokens(9, 70);
        session.begin_step(&[0; 70]).unwrap();
        forward(&mut module, &trunk, &(0..70).collect::<Vec<_>>());
        let before = session.len().unwrap();
        for branch in 1..=5 {
            session.seq_cp(0, branch, ..).unwrap();
        }
        assert_eq!(
            session.len().unwrap(),
            before,
            "a fork holds no cells of its own"
        );
        let tails: Vec<Vec<u32>> = (1..=5).map(|b| subject.tokens(20 + b, 20)).collect();
        let cold: Vec<_> = tails
            .iter()
            .map(|tail| subject.cold(&[&trunk[..], tail].concat()))
            .collect();
        for i in 0..20 {
            session.begin_step(&[1, 2, 3, 4, 5]).unwrap();
            let tokens: Vec<u32> = tails.iter().map(|t| t[i]).collect();
            let rows = forward(&mut module, &tokens, &[70 + i as u32; 5]);
            for (branch, row) in rows.iter().enumerate() {
                assert!(
                    *row == cold[branch][70 + i],
                    "{}: branch {branch} step {i}",
                    subject.name
                );
            }
        }
        // Rewind one branch to the middle of the shared prefix and continue; a compaction in between changes nothing.
        session.seq_keep(3).unwrap();
        session.seq_rm(3, 40..).unwrap();
        session.compact().unwrap();
        let again = [&trunk[..40], &tails[0][..]].concat();
        session.begin_step(&[3; 20]).unwrap();
        let rows = forward(&mut module, &tails[0], &(40..60).collect::<Vec<_>>());
        assert!(
            rows == subject.cold(&again)[40..],
            "{}: after going back",
            subject.name
        );
    }
}

#[test]
fn every_path_of_a_tree_gives_its_cold_logits() {
    Cpu::new().unwrap();
    for (subject, config) in subjects().iter().flat_map(|s| each(s, 10)) {
        let (session, options) = make_tree_session(Cpu::ID, &config).unwrap();
        let mut module = subject.module(options);
        let prefix = subject.tokens(3, 30);
        let rows = in_steps(&mut module, &prefix, 0, 10);
        assert!(rows == subject.cold(&prefix), "{}: prefill", subject.name);

        // A root, two children, grandchildren on both sides; then one more level in a step of its own.
        let first: [Option<u32>; 6] = [None, Some(0), Some(0), Some(1), Some(2), Some(2)];
        let second: [Option<u32>; 3] = [Some(3), Some(5), Some(5)];
        let parents = [&first[..], &second[..]].concat();
        let tokens = subject.tokens(5, 9);
        let path = |node: usize| {
            let mut path = vec![];
            let mut at = Some(node as u32);
            while let Some(n) = at {
                path.insert(0, n);
                at = parents[n as usize];
            }
            path
        };
        let depth = |node: usize| 30 + path(node).len() as u32 - 1;
        let mut rows = vec![];
        for frontier in [0..6, 6..9] {
            session.propose(&parents[frontier.clone()]).unwrap();
            let positions: Vec<u32> = frontier.clone().map(depth).collect();
            rows.extend(forward(&mut module, &tokens[frontier], &positions));
        }
        let text = |node: usize| -> Vec<u32> {
            prefix
                .iter()
                .copied()
                .chain(path(node).iter().map(|n| tokens[*n as usize]))
                .collect()
        };
        for (node, row) in rows.iter().enumerate() {
            assert!(
                row == subject.cold(&text(node)).last().unwrap(),
                "{}: node {node}",
                subject.name
            );
        }
        // Accept the path to node 8 and continue with plain decode, then with a single chain of candidates.
        session.accept(&path(8)).unwrap();
        let mut so_far = text(8);
        for token in subject.tokens(6, 3) {
            let position = so_far.len() as u32;
            so_far.push(token);
            let row = forward(&mut module, &[token], &[position]);
            assert!(
                row[0] == *subject.cold(&so_far).last().unwrap(),
                "{}: behind the path",
                subject.name
            );
        }
        let chain = subject.tokens(7, 4);
        session.propose(&[None, Some(0), Some(1), Some(2)]).unwrap();
        let start = so_far.len() as u32;
        let rows = forward(&mut module, &chain, &(start..start + 4).collect::<Vec<_>>());
        session.accept(&[0, 1]).unwrap();
        assert_eq!(session.len().unwrap(), start + 2);
        let cold = subject.cold(&[&so_far[..], &chain].concat());
        assert!(
            rows == cold[start as usize..],
            "{}: a single chain",
            subject.name
        );
    }
}

#[test]
fn sessions_over_a_frozen_prefix_give_their_cold_logits() {
    Cpu::new().unwrap();
    for (subject, config) in subjects().iter().flat_map(|s| each(s, 15)) {
        let (session, options) = make_decode_session(Cpu::ID, &config).unwrap();
        let mut module = subject.module(options);
        let prefix = subject.tokens(1, 50);
        in_steps(&mut module, &prefix, 0, 15);
        let shared = session.freeze().unwrap();
        assert_eq!(
            session.resident_bytes().unwrap(),
            0,
            "the prefix is nobody's own"
        );
        let mut others: Vec<_> = (0..3)
            .map(|_| make_prefixed_session(&shared).unwrap())
            .collect();
        let modules = others
            .iter_mut()
            .map(|(_, options)| subject.module(options.clone()));
        let mut modules: Vec<Module> = std::iter::once(module).chain(modules).collect();
        drop(shared);
        for (i, module) in modules.iter_mut().enumerate() {
            let tail = subject.tokens(30 + i as u32, 65);
            let cold = subject.cold(&[&prefix[..], &tail].concat());
            let rows = in_steps(module, &tail, 50, 13);
            assert!(rows == cold[50..], "{}: session {i}", subject.name);
        }
        session.rewind(105).unwrap();
        assert!(session.rewind(49).is_err(), "a shared prefix is read-only");
    }
}

#[test]
fn rings_keep_their_window_and_change_no_bit() {
    Cpu::new().unwrap();
    for subject in subjects()
        .into_iter()
        .filter(|s| s.artifact.facts.caches.iter().any(|c| c.window.is_some()))
    {
        let mut config = subject.config();
        config.ring = Some(RingPolicy {
            max_step: 16,
            max_rewind: 16,
        });
        let (session, options) = make_decode_session(Cpu::ID, &config).unwrap();
        let mut module = subject.module(options);
        let tokens = subject.tokens(2, 120);
        let cold = subject.cold(&tokens);
        let mut at = 0;
        for n in [16, 1, 1, 16, 7, 16, 16, 3, 16, 16, 12] {
            let rows = forward(
                &mut module,
                &tokens[at..at + n],
                &(at as u32..(at + n) as u32).collect::<Vec<_>>(),
            );
            assert!(rows == cold[at..at + n], "{} at {at}", subject.name);
            at += n;
        }
        session.rewind(at as u32 - 16).unwrap();
        at -= 16;
        let rows = forward(
            &mut module,
            &tokens[at..at + 9],
            &(at as u32..at as u32 + 9).collect::<Vec<_>>(),
        );
        assert!(rows == cold[at..at + 9], "{} after a rewind", subject.name);
        let full = subject.config().bytes_for(128);
        assert!(
            session.resident_bytes().unwrap() < full,
            "windows hold less than all rows"
        );
    }
}
