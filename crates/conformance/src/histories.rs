//! Random sequences of cache operations and steps on every kind of cache. The backend and the reference must return the same
//! results and the same errors.

use crate::{RowsCopy, TestRng, check_close};
use backend::reference::Reference;
use backend::{Backend, CompileOptions, Runnable, shift_rows};
use base::DType;
use graph::ops::UpdateAndAttend;
use graph::{Graph, GraphBuilder, Value};
use kv::{
    CacheConfig, CacheManager, CacheOperations, CacheRegistry, CacheSession, Cells, Contiguous,
    KvBytes, KvError, KvStorage, LayerConfig, MAX_SEQUENCES, Prefixed, Restorable, RingPolicy,
    RowShift, SeqId, SessionResult, SharedPrefix, Tree, make_decode_session, make_seq_session,
    make_session_after, make_tree_session,
};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// Runs this number of random histories. The error names the first that fails, and how.
pub(super) fn run(
    backend: &dyn Backend,
    options: &CompileOptions,
    tolerance: f32,
    histories: u64,
) -> Result<(), String> {
    let subject = Subject {
        backend,
        options,
        tolerance,
        graph: graph(),
    };
    for seed in 0..histories {
        let noise = &mut TestRng::new(seed + 1);
        let (kind, result) = match seed % 4 {
            0 => ("contiguous", contiguous(noise, &subject)),
            1 => ("cells", cells(noise, &subject)),
            2 => ("tree", tree(noise, &subject)),
            _ => ("frozen prefix", frozen(noise, &subject)),
        };
        result.map_err(|e| format!("history {seed} of a {kind} cache: {e}"))?;
    }
    Ok(())
}

/// The backend under test.
struct Subject<'a> {
    backend: &'a dyn Backend,
    options: &'a CompileOptions,
    tolerance: f32,
    graph: Arc<Graph>,
}

/// A session and the module bound to it.
type Bound<K> = (CacheSession<K>, Runnable);

/// One cache on both backends.
struct Twin<K> {
    reference: Bound<K>,
    found: Bound<K>,
    tolerance: f32,
}

const HEADS: usize = 4;
const DIM: usize = 16;
const WINDOWS: [Option<u32>; 2] = [None, Some(3)];

fn graph() -> Arc<Graph> {
    let mut b = GraphBuilder::new("attention");
    let t = b.symbol("T");
    let q = b.input("q", DType::F32, [t, HEADS.into(), DIM.into()]);
    let k = b.input("k", DType::F32, [t, 1.into(), DIM.into()]);
    let v = b.input("v", DType::F32, [t, 1.into(), DIM.into()]);
    let position = b.input("position", DType::I32, [t]);
    let attend = |b: &mut GraphBuilder, cache_id: u32| {
        let op = UpdateAndAttend {
            cache_id,
            scale: 0.4,
            softcap: None,
        };
        b.node(&format!("out{cache_id}"), op, &[q, k, v, position])
            .expect("fitting operands")
    };
    let ids = 0..WINDOWS.len() as u32;
    let outputs: Vec<_> = ids.map(|id| attend(&mut b, id)).collect();
    Arc::new(b.finish(&outputs).expect("a valid graph"))
}

/// Returns an error if the two results differ.
fn same<T: PartialEq + Debug>(expect: T, found: T) -> Result<T, String> {
    match expect == found {
        true => Ok(found),
        false => Err(format!("{found:?}, expected {expect:?}")),
    }
}

impl Subject<'_> {
    fn bind<K>(&self, backend: &dyn Backend, made: SessionResult<K>) -> Result<Bound<K>, String> {
        let text = |e: KvError| e.to_string();
        let (session, bound) = made.map_err(text)?;
        let key = bound.cache_key.ok_or("no cache key")?;
        let entry = CacheRegistry::global().get(&key).map_err(text)?;
        let executable = backend.compile(self.graph.clone(), self.options);
        let executable = executable.map_err(|e| e.to_string())?;
        let runnable = Runnable::bind(self.graph.clone(), executable, Some(entry));
        Ok((session, runnable.map_err(|e| e.to_string())?))
    }

    fn twin<K: CacheManager>(
        &self,
        config: &CacheConfig,
        make: fn(&str, &CacheConfig) -> SessionResult<K>,
    ) -> Result<Twin<K>, String> {
        let reference = Reference::new();
        Ok(Twin {
            reference: self.bind(&reference, make(Reference::ID, config))?,
            found: self.bind(self.backend, make(self.backend.id(), config))?,
            tolerance: self.tolerance,
        })
    }

    /// Sessions on two prefixes, one of each backend.
    fn with_prefix<K: Prefixed>(
        &self,
        [reference, found]: [&SharedPrefix; 2],
        config: &CacheConfig,
    ) -> Result<Twin<K>, String> {
        Ok(Twin {
            reference: self.bind(&Reference::new(), make_session_after(reference, config))?,
            found: self.bind(self.backend, make_session_after(found, config))?,
            tolerance: self.tolerance,
        })
    }
}

impl<K: CacheManager> Twin<K> {
    fn sessions(&self) -> [&CacheSession<K>; 2] {
        [&self.reference.0, &self.found.0]
    }

    /// Calls a cache operation on both sessions; the results or errors must be equal.
    fn operation<T: PartialEq + Debug>(
        &self,
        operation: impl Fn(&CacheSession<K>) -> Result<T, KvError>,
    ) -> Result<Result<T, KvError>, String> {
        let [expect, found] = self.sessions().map(operation);
        same(expect, found)
    }

    /// Tokens held.
    fn len(&self) -> Result<u32, String> {
        self.operation(CacheSession::len)?
            .map_err(|e| e.to_string())
    }

    /// Saves a sequence of both caches and restores all but its last `less` tokens as `to`. The saved bytes must be
    /// equal.
    fn move_rows(&self, from: SeqId, to: SeqId, less: u32) -> Result<(), String>
    where
        K: Restorable,
        CacheSession<K>: CacheOperations,
    {
        if let Ok(rows) = self.operation(|session| RowsCopy::take(session, from))? {
            let len = rows.len().saturating_sub(less);
            let _ = self.operation(|session| rows.saved().restore(session, to, len))?;
        }
        Ok(())
    }

    /// Drops tokens of a sequence and moves the later ones down.
    fn shift(&self, seq: SeqId, keep: u32, dropped: u32) -> Result<(), String>
    where
        K: Restorable,
    {
        let moved = |shift: &RowShift, bytes: &mut dyn KvBytes| shift_rows(shift, bytes, turn);
        let _ = self.operation(|session| session.shift(seq, keep, dropped, moved))?;
        Ok(())
    }

    /// Runs one forward with random rows on both.
    fn step(&mut self, noise: &mut TestRng, positions: &[u32]) -> Result<(), String> {
        let n = positions.len();
        let mut rows = |heads| Value::f32([n, heads, DIM], noise.units(n * heads * DIM));
        let position = Value::i32([n], positions.iter().map(|p| *p as i32).collect());
        let inputs = [rows(HEADS), rows(1), rows(1), position];
        let [expect, found] =
            [&mut self.reference.1, &mut self.found.1].map(|runnable| runnable.run(&inputs));
        match (expect, found) {
            (Ok(expect), Ok(found)) => {
                let mut outputs = expect.iter().zip(&found);
                outputs.try_for_each(|(e, f)| check_close(f, e, self.tolerance))
            }
            (expect, found) => {
                let text = |result: Result<Vec<Value>, backend::BackendError>| {
                    result.map(|_| ()).map_err(|e| e.to_string())
                };
                same(text(expect), text(found)).map(drop)
            }
        }
    }
}

fn config(noise: &mut TestRng, ring: bool, backend: &dyn Backend) -> CacheConfig {
    let layer = |window| LayerConfig {
        kv_heads: 1,
        key_dim: DIM,
        value_dim: DIM,
        window,
        sinks: 0,
    };
    let mut config = CacheConfig::new(48, WINDOWS.map(layer).to_vec());
    let stored: Vec<KvStorage> = KvStorage::ALL
        .into_iter()
        .filter(|storage| backend.stores(*storage))
        .collect();
    let any = |noise: &mut TestRng| stored[noise.bits() as usize % stored.len()];
    let mut storage = || any(noise);
    (
        config.key_storage,
        config.value_storage,
        config.initial_cells,
    ) = (storage(), storage(), 2);
    if noise.bits() & 32 == 0 {
        let types = [any(noise), any(noise)];
        config.layer_storage.insert(1, types);
    }
    config.ring = ring.then_some(RingPolicy {
        max_step: 5,
        max_rewind: 4,
    });
    config
}

/// In every second history, the first positions stay in layers with a window.
fn with_sinks(noise: &mut TestRng, mut config: CacheConfig, backend: &dyn Backend) -> CacheConfig {
    if backend.sees_first_positions() && below(noise, 2) == 0 {
        let windowed = config.layers.iter_mut().filter(|l| l.window.is_some());
        windowed.for_each(|layer| layer.sinks = below(noise, 6));
    }
    config
}

fn below(noise: &mut TestRng, n: u32) -> u32 {
    (noise.bits() >> 20) as u32 % n.max(1)
}

/// Changes keys so that the result shows which of them were moved, and from which position.
fn turn(layer: usize, positions: Range<u32>, rows: &mut [u8]) {
    let size = rows.len() / positions.len().max(1);
    for (position, row) in positions.zip(rows.chunks_mut(size.max(1))) {
        row[0] ^= (position as u8 ^ layer as u8) & 3;
    }
}

fn contiguous(noise: &mut TestRng, subject: &Subject<'_>) -> Result<(), String> {
    let ring = noise.bits() & 64 == 0;
    let config = config(noise, ring, subject.backend);
    let config = with_sinks(noise, config, subject.backend);
    let mut twin = subject.twin(&config, make_decode_session)?;
    for _ in 0..12 {
        one_sequence(noise, &mut twin)?;
    }
    Ok(())
}

/// One operation or step of a session over one sequence.
fn one_sequence(noise: &mut TestRng, twin: &mut Twin<Contiguous>) -> Result<(), String> {
    let len = twin.len()?;
    match below(noise, 4) {
        0 => drop(twin.operation(|s| s.rewind(len.saturating_sub(2)))?),
        1 if below(noise, 6) == 0 => drop(twin.operation(CacheSession::clear)?),
        1 if below(noise, 2) == 0 => twin.move_rows(0, 0, below(noise, 3))?,
        1 => twin.shift(0, below(noise, 4), below(noise, 9))?,
        _ => {
            let n = 1 + below(noise, 5);
            twin.step(noise, &(len..len + n).collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

/// Sessions that share a frozen prefix and continue it with different histories: contiguous ones, and a pool and a tree.
fn frozen(noise: &mut TestRng, subject: &Subject<'_>) -> Result<(), String> {
    let ring = noise.bits() & 64 == 0;
    let config = config(noise, ring, subject.backend);
    let mut first = subject.twin(&config, make_decode_session)?;
    let prefix = 1 + below(noise, 12);
    let positions: Vec<u32> = (0..prefix).collect();
    for positions in positions.chunks(5) {
        first.step(noise, positions)?;
    }
    let text = |e: KvError| e.to_string();
    let frozen = [
        first.reference.0.freeze().map_err(text)?,
        first.found.0.freeze().map_err(text)?,
    ];
    let prefixes = [&frozen[0], &frozen[1]];
    let mut twins = [
        first,
        subject.with_prefix(prefixes, &config)?,
        subject.with_prefix(prefixes, &config)?,
    ];
    for _ in 0..10 {
        let twin = &mut twins[below(noise, 3) as usize];
        one_sequence(noise, twin)?;
    }
    // The context of a cache on a prefix may be another one.
    let larger = CacheConfig {
        capacity: config.capacity + 9,
        ..config
    };
    pool_history(noise, subject.with_prefix(prefixes, &larger)?)?;
    tree_history(noise, subject.with_prefix(prefixes, &larger)?)
}

fn cells(noise: &mut TestRng, subject: &Subject<'_>) -> Result<(), String> {
    let ring = noise.bits() & 64 == 0;
    let config = config(noise, ring, subject.backend);
    let config = with_sinks(noise, config, subject.backend);
    pool_history(noise, subject.twin(&config, make_seq_session)?)
}

fn pool_history(noise: &mut TestRng, mut twin: Twin<Cells>) -> Result<(), String> {
    let mut trees: [Vec<Option<u32>>; 4] = Default::default();
    for _ in 0..14 {
        let (a, b, p) = (below(noise, 4), below(noise, 4), below(noise, 9));
        match below(noise, 15) {
            // There is such a sequence if the pool stands on a prefix.
            14 => drop(twin.operation(|s| s.seq_cp(MAX_SEQUENCES, a, ..))?),
            11..=12 => propose(noise, &mut twin, &mut trees)?,
            13 => accept(noise, &twin, &mut trees[a as usize], a)?,
            10 => twin.shift(a, b, p)?,
            9 => twin.move_rows(a, b, p / 4)?,
            0 => drop(twin.operation(|s| s.seq_cp(a, b, ..))?),
            1 => drop(twin.operation(|s| s.seq_cp(a, b, ..p))?),
            2 => drop(twin.operation(|s| s.seq_rm(a, p..))?),
            3 => drop(twin.operation(|s| s.seq_rm(a, p..p + 2))?),
            4 if p < 3 => drop(twin.operation(|s| s.seq_keep(a))?),
            5 => drop(twin.operation(CacheSession::compact)?),
            _ => {
                let seqs: Vec<u32> = (0..1 + below(noise, 5)).map(|_| below(noise, 4)).collect();
                let next = |s| twin.operation(|session| session.seq_next(s));
                let mut next: Vec<u32> = (0..4)
                    .map(|s| Ok(next(s)?.map_err(|e| e.to_string())?.unwrap_or(0)))
                    .collect::<Result<_, String>>()?;
                let mut position = |s: u32| {
                    next[s as usize] += 1;
                    next[s as usize] - 1
                };
                let positions: Vec<u32> = seqs.iter().map(|s| position(*s)).collect();
                if twin.operation(|s| s.begin_step(&seqs))?.is_ok() {
                    twin.step(noise, &positions)?;
                }
            }
        }
    }
    Ok(())
}

/// Candidates of one or two sequences, in one forward.
fn propose(
    noise: &mut TestRng,
    twin: &mut Twin<Cells>,
    trees: &mut [Vec<Option<u32>>; 4],
) -> Result<(), String> {
    let mut positions = vec![];
    let mut tried = trees.clone();
    let first = below(noise, 4);
    for seq in [first, (first + 1 + below(noise, 6)) % 8] {
        let Some(tree) = tried.get_mut(seq as usize) else {
            continue;
        };
        let known = twin.operation(|s| s.with(|cells| cells.candidates(seq)))?;
        if known.unwrap_or(0) == 0 {
            // The sequence was removed with its candidates.
            tree.clear();
        }
        let before = tree.clone();
        for _ in 0..1 + below(noise, 4) {
            tree.push(below(noise, tree.len() as u32 + 1).checked_sub(1));
        }
        let new = &tree[before.len()..];
        if twin.operation(|s| s.propose(seq, new))?.is_err() {
            *tree = before;
            continue;
        }
        let next = twin.operation(|s| s.seq_next(seq))?;
        let next = next.map_err(|e| e.to_string())?.unwrap_or(0);
        let new = before.len() as u32..tree.len() as u32;
        positions.extend(new.map(|node| next + depth(tree, node)));
    }
    if !positions.is_empty() {
        twin.step(noise, &positions)?;
        *trees = tried;
    }
    Ok(())
}

/// The number of ancestors of a candidate.
fn depth(parents: &[Option<u32>], mut node: u32) -> u32 {
    let mut depth = 0;
    while let Some(parent) = parents[node as usize] {
        (node, depth) = (parent, depth + 1);
    }
    depth
}

/// Commits a random path of a sequence's candidates.
fn accept(
    noise: &mut TestRng,
    twin: &Twin<Cells>,
    tree: &mut Vec<Option<u32>>,
    seq: SeqId,
) -> Result<(), String> {
    let mut path = vec![];
    let mut at = below(noise, tree.len() as u32 + 1).checked_sub(1);
    while let Some(node) = at {
        path.insert(0, node);
        at = tree[node as usize];
    }
    if twin.operation(|s| s.accept(seq, &path))?.is_ok() {
        tree.clear();
    }
    Ok(())
}

fn tree(noise: &mut TestRng, subject: &Subject<'_>) -> Result<(), String> {
    let ring = noise.bits() & 64 == 0;
    let config = config(noise, ring, subject.backend);
    tree_history(noise, subject.twin(&config, make_tree_session)?)
}

fn tree_history(noise: &mut TestRng, mut twin: Twin<Tree>) -> Result<(), String> {
    for _ in 0..6 {
        let len = twin.len()?;
        let n = 1 + below(noise, 4);
        twin.step(noise, &(len..len + n).collect::<Vec<_>>())?;
        let len = twin.len()?;
        let mut parents: Vec<Option<u32>> = vec![];
        for _ in 0..1 + below(noise, 2) {
            let before = parents.len();
            for _ in 0..1 + below(noise, 5) {
                let parent = below(noise, parents.len() as u32 + 1).checked_sub(1);
                parents.push(parent);
            }
            if twin.operation(|s| s.propose(&parents[before..]))?.is_err() {
                parents.truncate(before);
                break;
            }
            let positions: Vec<u32> = (before as u32..parents.len() as u32)
                .map(|n| len + depth(&parents, n))
                .collect();
            twin.step(noise, &positions)?;
        }
        let mut path = vec![];
        let mut at = below(noise, parents.len() as u32 + 1).checked_sub(1);
        while let Some(node) = at {
            path.insert(0, node);
            at = parents[node as usize];
        }
        if !parents.is_empty() {
            let _ = twin.operation(|s| s.accept(&path))?;
        }
    }
    Ok(())
}
