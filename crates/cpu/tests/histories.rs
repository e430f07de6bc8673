//! Random histories of verbs on every kind of cache: the CPU's attention against the reference backend's, step by step,
//! and the same refusals on both. `KVARK_HISTORIES=N` runs N histories instead of a few.

use backend::conformance::{Noise, RowsCopy};
use backend::reference::Reference;
use backend::{Backend, CompileOptions, Runnable};
use base::DType;
use cpu::Cpu;
use graph::ops::UpdateAndAttend;
use graph::{Graph, GraphBuilder, Value};
use kv::{
    Bookkeeping, CacheConfig, CacheRegistry, CacheSession, Cells, Contiguous, KvError, LayerConfig,
    MadeSession, Restorable, RingPolicy, SeqId, Storage, Tree, make_decode_session,
    make_seq_session, make_tree_session,
};
use std::sync::Arc;

/// One cache on both backends.
struct Twin<K> {
    reference: (CacheSession<K>, Runnable),
    cpu: (CacheSession<K>, Runnable),
}

const HEADS: usize = 2;
const DIM: usize = 8;
const WINDOWS: [Option<u32>; 2] = [None, Some(3)];

fn graph() -> Arc<Graph> {
    let mut b = GraphBuilder::new("attention");
    let t = b.symbol("T");
    let q = b.input("q", DType::F32, [t, HEADS.into(), DIM.into()]);
    let k = b.input("k", DType::F32, [t, 1.into(), DIM.into()]);
    let v = b.input("v", DType::F32, [t, 1.into(), DIM.into()]);
    let position = b.input("position", DType::I32, [t]);
    let outputs: Vec<_> = (0..WINDOWS.len() as u32)
        .map(|cache_id| {
            let op = UpdateAndAttend {
                cache_id,
                scale: 0.4,
                softcap: None,
            };
            b.node(&format!("out{cache_id}"), op, &[q, k, v, position])
                .unwrap()
        })
        .collect();
    Arc::new(b.finish(&outputs).unwrap())
}

impl<K: Bookkeeping> Twin<K> {
    fn new(
        graph: &Arc<Graph>,
        config: &CacheConfig,
        make: fn(&str, &CacheConfig) -> MadeSession<K>,
    ) -> Twin<K> {
        let bind = |backend: &dyn Backend| {
            let (session, options) = make(backend.id(), config).unwrap();
            let entry = CacheRegistry::global()
                .get(&options.cache_key.unwrap())
                .unwrap();
            let compile = CompileOptions {
                threads: Some(1),
                ..Default::default()
            };
            let executable = backend.compile(graph.clone(), &compile).unwrap();
            (
                session,
                Runnable::bind(graph.clone(), executable, Some(entry)).unwrap(),
            )
        };
        Twin {
            reference: bind(&Reference::new()),
            cpu: bind(&Cpu::new().unwrap()),
        }
    }

    /// Calls a verb on both; they must agree on whether it is refused.
    fn verb(&self, verb: impl Fn(&CacheSession<K>) -> Result<(), KvError>) -> bool {
        let (expect, found) = (verb(&self.reference.0), verb(&self.cpu.0));
        assert_eq!(expect, found);
        found.is_ok()
    }

    /// Takes a sequence out of both caches and puts the first `len` of its tokens back as `to`; the rows must be the same
    /// bytes.
    fn move_rows(&self, from: SeqId, to: SeqId, less: u32) -> bool
    where
        K: Restorable,
    {
        let sessions = [&self.reference.0, &self.cpu.0];
        let [expect, found] = sessions.map(|session| RowsCopy::take(session, from));
        assert_eq!(expect, found);
        let Ok(rows) = found else { return false };
        let len = rows.len().saturating_sub(less);
        self.verb(|session| session.restore(to, len, &rows.saved()))
    }

    /// One forward on both with rows of noise.
    fn step(&mut self, noise: &mut Noise, positions: &[u32]) {
        let n = positions.len();
        let mut rows = |heads| Value::f32([n, heads, DIM], noise.units(n * heads * DIM));
        let position = Value::i32([n], positions.iter().map(|p| *p as i32).collect());
        let inputs = [rows(HEADS), rows(1), rows(1), position];
        match (self.reference.1.run(&inputs), self.cpu.1.run(&inputs)) {
            (Ok(expect), Ok(found)) => {
                for (e, f) in expect.iter().zip(&found) {
                    for (e, f) in e.as_f32().unwrap().iter().zip(f.as_f32().unwrap()) {
                        assert!((e - f).abs() < 1e-5, "{f}, expected {e}");
                    }
                }
            }
            (expect, found) => assert_eq!(
                expect.map(|_| ()).map_err(|e| e.to_string()),
                found.map(|_| ()).map_err(|e| e.to_string())
            ),
        }
    }
}

fn config(noise: &mut Noise, ring: bool) -> CacheConfig {
    let layer = |window| LayerConfig {
        kv_heads: 1,
        key_dim: DIM,
        value_dim: DIM,
        window,
    };
    let mut config = CacheConfig::new(48, WINDOWS.map(layer).to_vec());
    let mut storage = || Storage::ALL[noise.bits() as usize % Storage::ALL.len()];
    (config.key_storage, config.value_storage, config.min_cells) = (storage(), storage(), 2);
    config.ring = ring.then_some(RingPolicy {
        max_step: 5,
        max_rewind: 4,
    });
    config
}

fn below(noise: &mut Noise, n: u32) -> u32 {
    (noise.bits() >> 20) as u32 % n.max(1)
}

/// Changes keys in a way that shows which of them were moved, and from where.
fn turn(layer: usize, positions: std::ops::Range<u32>, rows: &mut [u8]) {
    let size = rows.len() / positions.len().max(1);
    for (position, row) in positions.zip(rows.chunks_mut(size.max(1))) {
        row[0] ^= (position as u8 ^ layer as u8) & 3;
    }
}

fn contiguous(noise: &mut Noise, graph: &Arc<Graph>) {
    let ring = noise.bits() & 64 == 0;
    let config = config(noise, ring);
    let mut twin: Twin<Contiguous> = Twin::new(graph, &config, make_decode_session);
    for _ in 0..12 {
        let len = twin.cpu.0.len().unwrap();
        match below(noise, 4) {
            0 => drop(twin.verb(|s| s.rewind(len.saturating_sub(2)))),
            1 if below(noise, 6) == 0 => drop(twin.verb(CacheSession::clear)),
            1 if below(noise, 2) == 0 => drop(twin.move_rows(0, 0, below(noise, 3))),
            1 => {
                let (keep, dropped) = (below(noise, 4), below(noise, 9));
                twin.verb(|s| s.shift(0, keep, dropped, turn));
            }
            _ => {
                let n = 1 + below(noise, 5);
                twin.step(noise, &(len..len + n).collect::<Vec<_>>());
            }
        }
    }
}

fn cells(noise: &mut Noise, graph: &Arc<Graph>) {
    let ring = noise.bits() & 64 == 0;
    let config = config(noise, ring);
    let mut twin: Twin<Cells> = Twin::new(graph, &config, make_seq_session);
    for _ in 0..14 {
        let (a, b, p) = (below(noise, 4), below(noise, 4), below(noise, 9));
        match below(noise, 11) {
            10 => drop(twin.verb(|s| s.shift(a, b, p, turn))),
            9 => drop(twin.move_rows(a, b, p / 4)),
            0 => drop(twin.verb(|s| s.seq_cp(a, b, ..))),
            1 => drop(twin.verb(|s| s.seq_cp(a, b, ..p))),
            2 => drop(twin.verb(|s| s.seq_rm(a, p..))),
            3 => drop(twin.verb(|s| s.seq_rm(a, p..p + 2))),
            4 if p < 3 => drop(twin.verb(|s| s.seq_keep(a))),
            5 => drop(twin.verb(CacheSession::compact)),
            _ => {
                let seqs: Vec<u32> = (0..1 + below(noise, 5)).map(|_| below(noise, 4)).collect();
                let mut next: Vec<u32> = (0..4)
                    .map(|s| twin.cpu.0.seq_next(s).unwrap().unwrap_or(0))
                    .collect();
                let mut position = |s: u32| {
                    next[s as usize] += 1;
                    next[s as usize] - 1
                };
                let positions: Vec<u32> = seqs.iter().map(|s| position(*s)).collect();
                if twin.verb(|s| s.begin_step(&seqs)) {
                    twin.step(noise, &positions);
                }
            }
        }
    }
}

fn tree(noise: &mut Noise, graph: &Arc<Graph>) {
    let ring = noise.bits() & 64 == 0;
    let config = config(noise, ring);
    let mut twin: Twin<Tree> = Twin::new(graph, &config, make_tree_session);
    for _ in 0..6 {
        let len = twin.cpu.0.len().unwrap();
        let n = 1 + below(noise, 4);
        twin.step(noise, &(len..len + n).collect::<Vec<_>>());
        let len = twin.cpu.0.len().unwrap();
        let mut parents: Vec<Option<u32>> = vec![];
        for _ in 0..1 + below(noise, 2) {
            let before = parents.len();
            for _ in 0..1 + below(noise, 5) {
                let parent = below(noise, parents.len() as u32 + 1).checked_sub(1);
                parents.push(parent);
            }
            if !twin.verb(|s| s.propose(&parents[before..])) {
                parents.truncate(before);
                break;
            }
            let depth = |mut node: u32| {
                let mut depth = 0;
                while let Some(parent) = parents[node as usize] {
                    (node, depth) = (parent, depth + 1);
                }
                depth
            };
            let positions: Vec<u32> = (before as u32..parents.len() as u32)
                .map(|n| len + depth(n))
                .collect();
            twin.step(noise, &positions);
        }
        let mut path = vec![];
        let mut at = below(noise, parents.len() as u32 + 1).checked_sub(1);
        while let Some(node) = at {
            path.insert(0, node);
            at = parents[node as usize];
        }
        if !parents.is_empty() {
            twin.verb(|s| s.accept(&path));
        }
    }
}

#[test]
fn attention_agrees_with_the_reference_over_random_histories() {
    let histories = std::env::var("KVARK_HISTORIES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(600);
    let graph = graph();
    for seed in 0..histories {
        let mut noise = Noise::new(seed + 1);
        match seed % 3 {
            0 => contiguous(&mut noise, &graph),
            1 => cells(&mut noise, &graph),
            _ => tree(&mut noise, &graph),
        }
    }
}
