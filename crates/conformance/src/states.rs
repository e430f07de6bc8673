//! Random histories of a model with recurrent layers: what a sequence computes has the bits of a cold run of its tokens, and agrees
//! with the reference backend.

use crate::{RowsCopy, TestRng, check_close};
use backend::reference::Reference;
use backend::{Backend, CompileOptions, Runnable};
use base::{Bytes, DType};
use graph::ops::{Activation, CausalConv, HeadSharing, LinearAttention, UpdateAndAttend};
use graph::{Graph, GraphBuilder, TensorId, Value};
use kv::{
    CacheConfig, CacheSession, Cells, KvErrorKind, KvStorage, LayerConfig, SeqId, StatePolicy,
};
use std::ops::RangeBounds;
use std::sync::Arc;

/// The sizes of a model, odd ones among them.
struct Sizes {
    channels: usize,
    taps: usize,
    groups: usize,
    heads: usize,
    depth: usize,
    width: usize,
}

const MODELS: [Sizes; 3] = [
    Sizes {
        channels: 20,
        taps: 4,
        groups: 2,
        heads: 6,
        depth: 8,
        width: 5,
    },
    Sizes {
        channels: 64,
        taps: 2,
        groups: 1,
        heads: 3,
        depth: 7,
        width: 33,
    },
    Sizes {
        channels: 16,
        taps: 3,
        groups: 4,
        heads: 4,
        depth: 32,
        width: 80,
    },
];

const SEQUENCES: u32 = 4;
const CAPACITY: u32 = 300;
const TOLERANCE: f32 = 2e-5;

/// Runs this number of random histories and returns it.
pub(super) fn run(
    backend: &dyn Backend,
    options: &CompileOptions,
    histories: u64,
) -> Result<usize, String> {
    for seed in 0..histories {
        let sizes = &MODELS[seed as usize % MODELS.len()];
        let mut history = History::new(backend, options, sizes, seed)?;
        history
            .run(12)
            .and_then(|()| history.compare_with_reference())
            .map_err(|e| format!("history {seed} of a model with states: {e}"))?;
    }
    Ok(histories as usize)
}

impl Sizes {
    fn layers(&self) -> Vec<LayerConfig> {
        let state = self.depth * self.width;
        vec![
            LayerConfig::state(1, (self.taps - 1) * self.channels),
            LayerConfig {
                kv_heads: self.groups,
                key_dim: self.depth,
                value_dim: self.depth,
                window: None,
                sinks: 0,
            },
            LayerConfig::state(self.heads, state),
            LayerConfig::state(self.heads, state),
        ]
    }

    /// The inputs of a token, by operand: rows of these widths.
    fn inputs(&self) -> [(&'static str, Vec<usize>); 6] {
        let (groups, heads) = (self.groups, self.heads);
        [
            ("x", vec![self.channels]),
            ("q", vec![groups, self.depth]),
            ("k", vec![groups, self.depth]),
            ("v", vec![heads, self.width]),
            ("decay", vec![heads]),
            ("beta", vec![heads]),
        ]
    }

    fn graph(&self) -> Arc<Graph> {
        let mut b = GraphBuilder::new("recurrent");
        let t = b.symbol("T");
        let inputs = self.inputs().map(|(name, row)| {
            let shape: Vec<_> = std::iter::once(t)
                .chain(row.into_iter().map(Into::into))
                .collect();
            b.input(name, DType::F32, shape)
        });
        let [x, q, k, v, decay, beta] = inputs;
        let position = b.input("position", DType::I32, [t]);
        let mut noise = TestRng::new(3);
        let mut constant = |b: &mut GraphBuilder, name: &str, shape: &[usize]| {
            let data = Bytes::from_slice(&noise.units(shape.iter().product()));
            b.constant(name, DType::F32, shape, data)
                .expect("a whole constant")
        };
        let weight = constant(&mut b, "weight", &[self.channels, self.taps]);
        let bias = constant(&mut b, "bias", &[self.channels]);
        let conv = CausalConv {
            cache_id: 0,
            activation: Some(Activation::Silu),
        };
        let attend = UpdateAndAttend {
            cache_id: 1,
            scale: 0.4,
            softcap: None,
        };
        let delta = LinearAttention {
            cache_id: 2,
            scale: 0.5,
            sharing: HeadSharing::Turns,
        };
        let scan = LinearAttention {
            cache_id: 3,
            scale: 1.0,
            sharing: HeadSharing::Blocks,
        };
        let outputs: Result<Vec<TensorId>, _> = [
            b.node("conv", conv, &[x, weight, position, bias]),
            b.node("attend", attend, &[q, k, k, position]),
            b.node("delta", delta, &[q, k, v, decay, position, beta]),
            b.node("scan", scan, &[q, k, v, decay, position]),
        ]
        .into_iter()
        .collect();
        let outputs = outputs.expect("fitting operands");
        Arc::new(b.finish(&outputs).expect("a valid graph"))
    }

    /// The inputs of tokens at these positions. A token's numbers depend on its id alone.
    fn values(&self, tokens: &[u32], positions: &[i32]) -> Vec<Value> {
        let input = |(index, (name, row)): (usize, (&str, Vec<usize>))| {
            let width: usize = row.iter().product();
            let numbers = tokens.iter().flat_map(|token| {
                let seed = u64::from(*token) * 8 + index as u64;
                let mut numbers = TestRng::new(seed).units(width);
                for x in &mut numbers {
                    // States decay, and deltas stay bounded.
                    match name {
                        "decay" => *x = x.abs() * -0.5,
                        "beta" => *x = x.abs(),
                        "k" => *x *= 0.5,
                        _ => {}
                    }
                }
                numbers
            });
            let shape = std::iter::once(tokens.len()).chain(row);
            Value::f32(shape.collect::<Vec<_>>(), numbers.collect::<Vec<f32>>())
        };
        let inputs = self.inputs().into_iter().enumerate().map(input);
        let position = Value::i32([positions.len()], positions.to_vec());
        inputs.chain(std::iter::once(position)).collect()
    }
}

/// A cache and the module that is bound to it.
struct Bound {
    session: CacheSession<Cells>,
    module: Runnable,
}

impl Bound {
    fn new(
        backend: &dyn Backend,
        options: &CompileOptions,
        sizes: &Sizes,
        states: StatePolicy,
    ) -> Result<Bound, String> {
        let config = CacheConfig {
            states,
            initial_cells: 8,
            ..CacheConfig::new(CAPACITY, sizes.layers())
        };
        config.check().map_err(|e| e.to_string())?;
        let bytes = backend.new_kv(&config).map_err(|e| e.to_string())?;
        let session = CacheSession::new("cells", Cells::new(&config), bytes);
        let graph = sizes.graph();
        let executable = backend.compile(graph.clone(), options);
        let executable = executable.map_err(|e| e.to_string())?;
        let module = Runnable::bind(graph, executable, Some(session.entry().clone()));
        Ok(Bound {
            session,
            module: module.map_err(|e| e.to_string())?,
        })
    }
}

impl Bound {
    /// The outputs of a cold run in one step.
    fn cold(&mut self, sizes: &Sizes, tokens: &[u32]) -> Result<Vec<Value>, String> {
        let session = &self.session;
        let begun = session
            .clear()
            .and_then(|()| session.begin_step(&vec![0; tokens.len()]));
        begun.map_err(|e| e.to_string())?;
        let positions: Vec<i32> = (0..tokens.len() as i32).collect();
        let outputs = self.module.run(&sizes.values(tokens, &positions));
        outputs.map_err(|e| e.to_string())
    }
}

/// One row of every output.
type Row = Vec<Vec<f32>>;

fn row(outputs: &[Value], index: usize) -> Row {
    let row = |value: &Value| {
        let numbers = value.as_f32().expect("outputs are f32");
        let width = numbers.len() / value.shape[0];
        numbers[index * width..(index + 1) * width].to_vec()
    };
    outputs.iter().map(row).collect()
}

struct History<'a> {
    sizes: &'a Sizes,
    noise: TestRng,
    bound: Bound,
    /// For cold runs.
    other: Bound,
    sequences: Vec<Vec<u32>>,
    retained: Vec<(SeqId, Vec<u32>)>,
    next: u32,
}

impl<'a> History<'a> {
    fn new(
        backend: &dyn Backend,
        options: &CompileOptions,
        sizes: &'a Sizes,
        seed: u64,
    ) -> Result<History<'a>, String> {
        let mut noise = TestRng::new(seed + 17);
        let states = StatePolicy {
            slots: 16 + (noise.bits() % 20) as u32,
            interval: [0, 4, 16][(noise.bits() % 3) as usize],
            storage: [KvStorage::F32, KvStorage::F16][seed as usize / MODELS.len() % 2],
        };
        let others = StatePolicy {
            storage: states.storage,
            ..StatePolicy::default()
        };
        Ok(History {
            bound: Bound::new(backend, options, sizes, states)?,
            other: Bound::new(backend, options, sizes, others)?,
            sizes,
            noise,
            sequences: vec![vec![]; SEQUENCES as usize],
            retained: vec![],
            next: 0,
        })
    }

    fn below(&mut self, end: usize) -> usize {
        (self.noise.bits() >> 20) as usize % end
    }

    fn token(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn run(&mut self, operations: usize) -> Result<(), String> {
        for _ in 0..operations {
            match self.below(8) {
                0..4 => self.step()?,
                4 => self.candidates()?,
                5 => self.share()?,
                6 => self.remove()?,
                _ => self.restore()?,
            }
            if self.below(4) == 0 {
                self.bound.session.compact().map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    /// Chunks of some sequences, one after the other or in turns.
    fn step(&mut self) -> Result<(), String> {
        let mut parts = vec![];
        for seq in 0..SEQUENCES as usize {
            let count = [0, 1, 1, 3, 20][self.below(5)];
            if self.sequences[seq].len() + count > 60 {
                continue;
            }
            let tokens: Vec<_> = (0..count).map(|_| (seq, self.token())).collect();
            parts.push(tokens);
        }
        let mut step = parts.concat();
        // In turns, every token writes its state, so that the next of its sequence finds it.
        if step.len() < 9 && self.below(2) == 0 {
            step.sort_by_key(|(_, token)| token % 7);
        }
        if step.is_empty() {
            return Ok(());
        }
        let seqs: Vec<SeqId> = step.iter().map(|(seq, _)| *seq as SeqId).collect();
        let mut after = self.sequences.clone();
        let mut positions = vec![];
        for (seq, token) in &step {
            positions.push(after[*seq].len() as i32);
            after[*seq].push(*token);
        }
        let tokens: Vec<u32> = step.iter().map(|(_, token)| *token).collect();
        let declared = self.bound.session.begin_step(&seqs);
        declared.map_err(|e| e.to_string())?;
        let outputs = self
            .bound
            .module
            .run(&self.sizes.values(&tokens, &positions));
        let outputs = outputs.map_err(|e| e.to_string())?;
        self.sequences = after;
        for seq in 0..SEQUENCES as usize {
            if let Some(last) = step.iter().rposition(|(other, _)| *other == seq) {
                let tokens = self.sequences[seq].clone();
                self.compare(&row(&outputs, last), &tokens)?;
            }
        }
        Ok(())
    }

    /// A tree of candidates, of which a path is committed.
    fn candidates(&mut self) -> Result<(), String> {
        let seq = self.below(SEQUENCES as usize);
        let mut nodes: Vec<(Option<u32>, u32)> = vec![];
        for level in 0..1 + self.below(2) {
            let first = nodes.len();
            for _ in 0..1 + self.below(4) {
                let parent = self.below(nodes.len() + 1).checked_sub(1);
                let token = self.token();
                nodes.push((parent.map(|p| p as u32), token));
            }
            let path = |mut node: Option<u32>| {
                let mut tokens = vec![];
                while let Some(at) = node {
                    let (parent, token) = nodes[at as usize];
                    tokens.push(token);
                    node = parent;
                }
                tokens.reverse();
                [&self.sequences[seq][..], &tokens].concat()
            };
            let new = &nodes[first..];
            let parents: Vec<_> = new.iter().map(|(parent, _)| *parent).collect();
            let tokens: Vec<_> = new.iter().map(|(_, token)| *token).collect();
            let paths: Vec<_> = (first..nodes.len())
                .map(|node| path(Some(node as u32)))
                .collect();
            let positions: Vec<i32> = paths.iter().map(|path| path.len() as i32 - 1).collect();
            let proposed = self.bound.session.propose(seq as SeqId, &parents);
            proposed.map_err(|e| e.to_string())?;
            let outputs = self
                .bound
                .module
                .run(&self.sizes.values(&tokens, &positions));
            let outputs = outputs.map_err(|e| format!("level {level}: {e}"))?;
            for (i, path) in paths.iter().enumerate() {
                self.compare(&row(&outputs, i), path)?;
            }
        }
        let mut accepted = vec![];
        while self.below(4) > 0 {
            let parent = accepted.last().copied();
            let child = (0..)
                .zip(&nodes)
                .find(|(_, (p, _))| *p == parent)
                .map(|(node, _)| node);
            let Some(child) = child else { break };
            accepted.push(child);
            self.sequences[seq].push(nodes[child as usize].1);
        }
        let done = self.bound.session.accept(seq as SeqId, &accepted);
        done.map_err(|e| e.to_string())
    }

    fn owner(&mut self) -> (SeqId, Vec<u32>) {
        let owner = self.below(SEQUENCES as usize + self.retained.len());
        match owner.checked_sub(SEQUENCES as usize) {
            None => (owner as SeqId, self.sequences[owner].clone()),
            Some(retained) => self.retained[retained].clone(),
        }
    }

    fn restorable(&self, owner: SeqId, len: usize) -> Result<usize, String> {
        let cells = &self.bound.session;
        let len = cells.with(|cells| cells.restorable(owner, len as u32));
        let len = len.and_then(|len| len).map_err(|e| e.to_string())?;
        Ok(len as usize)
    }

    /// Forks and retained prefixes.
    fn share(&mut self) -> Result<(), String> {
        let (src, tokens) = self.owner();
        let session = &self.bound.session;
        if let Some(dst) = self.sequences.iter().position(Vec::is_empty) {
            let wanted = self.noise.bits() as usize % (tokens.len() + 1);
            let len = self.restorable(src, wanted)?;
            let shared = session.seq_cp(src, dst as SeqId, ..len as u32);
            shared.map_err(|e| e.to_string())?;
            self.sequences[dst] = tokens[..len].to_vec();
        } else if src < SEQUENCES && self.retained.len() < 3 {
            let id = session.retain(src, ..).map_err(|e| e.to_string())?;
            self.retained.push((id, tokens));
        } else if let Some((id, _)) = self.retained.pop() {
            session.release(id).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Rewinds to where a state is kept, or removes a sequence.
    fn remove(&mut self) -> Result<(), String> {
        let seq = self.below(SEQUENCES as usize);
        let wanted = self.below(self.sequences[seq].len() + 1);
        let len = self.restorable(seq as SeqId, wanted)?;
        self.remove_from(seq, len as u32..)?;
        self.sequences[seq].truncate(len);
        Ok(())
    }

    fn remove_from(&self, seq: usize, range: impl RangeBounds<u32>) -> Result<(), String> {
        let removed = self.bound.session.seq_rm(seq as SeqId, range);
        removed.map_err(|e| e.to_string())
    }

    /// Saves a sequence and restores it, up to one of its states, in the place of another.
    fn restore(&mut self) -> Result<(), String> {
        let (src, mut tokens) = self.owner();
        let dst = self.below(SEQUENCES as usize);
        if tokens.is_empty() {
            return Ok(());
        }
        let rows = match RowsCopy::take(&self.bound.session, src) {
            // The states of a retained prefix may have made room.
            Err(e) if matches!(e.kind(), KvErrorKind::NoState { .. }) => return Ok(()),
            rows => rows.map_err(|e| e.to_string())?,
        };
        let states = rows.states();
        let len = states[self.below(states.len())] + 1;
        tokens.truncate(len as usize);
        let restored = rows.saved().restore(&self.bound.session, dst as SeqId, len);
        restored.map_err(|e| e.to_string())?;
        self.sequences[dst] = tokens;
        Ok(())
    }

    /// Compares a row with that of a cold run of its tokens, bit for bit.
    fn compare(&mut self, found: &Row, tokens: &[u32]) -> Result<(), String> {
        let cold = self.other.cold(self.sizes, tokens)?;
        match *found == row(&cold, tokens.len() - 1) {
            true => Ok(()),
            false => Err(format!("{} tokens are not the cold run's", tokens.len())),
        }
    }

    fn compare_with_reference(&mut self) -> Result<(), String> {
        let tokens: Vec<u32> = (0..70).collect();
        let options = CompileOptions::default();
        let config = self.other.session.config();
        let states = config.map_err(|e| e.to_string())?.states;
        let mut reference = Bound::new(&Reference::new(), &options, self.sizes, states)?;
        let expect = reference.cold(self.sizes, &tokens)?;
        // Sums in another order can round a state to the next f16.
        let tolerance = match states.storage {
            KvStorage::F16 => 1e-3,
            _ => TOLERANCE,
        };
        let found = self.other.cold(self.sizes, &tokens)?;
        for (name, (found, expect)) in ["conv", "attend", "delta", "scan"]
            .iter()
            .zip(found.iter().zip(&expect))
        {
            check_close(found, expect, tolerance).map_err(|e| format!("{name}: {e}"))?;
        }
        Ok(())
    }
}
