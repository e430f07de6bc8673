//! `EagleHead`: an Eagle3 draft head, one layer that works on features of the target.

use super::level_search::{TreeLevel, grow_tree, most_likely};
use super::proposer::{FeatureRows, Proposal, Proposer};
use super::tree_proposal::TreeProposal;
use crate::batch_runner::new_kv;
use crate::memory::MemoryUsage;
use crate::module::Module;
use crate::options::{RunnerOptions, cache_config};
use crate::runner::common_prefix_len;
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::Backend;
use base::{Bytes, DType};
use graph::ops::{Gather, Op};
use graph::{Data, Dim, Graph, TensorId, TensorKind, Value};
use import::{Artifact, FeatureLayers};
use kv::{CacheSession, Cells, SeqId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A draft head with its own cache. All sequences of a target share it, each with a sequence of its own.
#[derive(Clone)]
pub struct EagleHead(Arc<Mutex<HeadState>>);

struct HeadState {
    module: Module,
    session: CacheSession<Cells>,
    embedding: EmbeddingTable,
    /// The token of the target for each token of the head.
    target_tokens: Vec<u32>,
    width: usize,
    feature_width: usize,
    max_step: usize,
    max_sequences: usize,
    taken: Vec<SeqId>,
}

/// The target's token embedding, whose rows are decoded one by one.
struct EmbeddingTable {
    dtype: DType,
    data: Bytes,
    row_bytes: usize,
    width: usize,
}

impl EagleHead {
    /// Loads a head for a target, which must have been opened with the [`feature_layers`](EagleHead::feature_layers) of the head.
    ///
    /// # Errors
    /// `InvalidOptions` if the head is of another model: hidden size, vocabulary or layers differ.
    pub fn new(
        head: &Model,
        target: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
    ) -> Result<EagleHead, RuntimeError> {
        let artifact = head.artifact();
        let embedding = EmbeddingTable::of(target)?;
        check(artifact, target, &embedding)?;
        let facts = artifact.draft_head.as_ref().ok_or_else(not_a_head)?;
        let context = options.context.unwrap_or(target.facts().context_length);
        let options = RunnerOptions {
            context: Some(context),
            // A sequence has a few candidates beside its tokens.
            pool_cells: Some(options.pool_cells.unwrap_or(context) + 64 * sequences),
            ..options.clone()
        };
        let cache = cache_config(head.facts(), &options)?;
        let bytes = new_kv(backend, &cache)?;
        let session = CacheSession::new("cells", Cells::new(&cache), bytes);
        let bound = Some(session.entry().clone());
        Ok(EagleHead(Arc::new(Mutex::new(HeadState {
            module: Module::bind(artifact, backend, &options.compile, bound)?,
            session,
            embedding,
            target_tokens: facts.target_tokens.clone(),
            width: head.facts().hidden_size,
            feature_width: facts.target_layers.len() * facts.target_hidden_size,
            max_step: options.max_step_tokens,
            max_sequences: sequences,
            taken: vec![],
        }))))
    }

    /// The layers of the target whose inputs a head needs; `None` if the model is no head.
    pub fn feature_layers(head: &Artifact) -> Option<&FeatureLayers> {
        Some(&head.draft_head.as_ref()?.target_layers)
    }

    /// The memory in use now.
    pub fn memory(&self) -> Result<MemoryUsage, RuntimeError> {
        let state = self.lock();
        Ok(MemoryUsage {
            weights: state.module.weights_bytes(),
            kv: state.session.resident_bytes()?,
            arena: state.module.arena_bytes(),
            packed: state.module.packed_bytes(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HeadState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A proposer for one sequence.
    pub(super) fn proposer(&self) -> Result<Box<dyn Proposer>, RuntimeError> {
        let mut state = self.lock();
        let free = (0..state.max_sequences as u32).find(|seq| !state.taken.contains(seq));
        let seq = free.ok_or_else(|| {
            let reason = format!("the draft head has {} sequences", state.max_sequences);
            RuntimeErrorKind::InvalidOptions(reason)
        })?;
        state.taken.push(seq);
        Ok(Box::new(EagleProposer {
            head: self.clone(),
            seq,
            next: 0,
            fed: vec![],
        }))
    }
}

fn not_a_head() -> RuntimeErrorKind {
    RuntimeErrorKind::InvalidOptions("the draft is not an Eagle3 head".into())
}

/// Returns an error unless the head fits the target.
fn check(head: &Artifact, target: &Model, embedding: &EmbeddingTable) -> Result<(), RuntimeError> {
    let facts = head.draft_head.as_ref().ok_or_else(not_a_head)?;
    let (hidden, vocab) = (embedding.width, target.facts().vocab_size);
    let layers = target.facts().caches.len();
    let wrong = |reason: String| {
        let reason = format!("the draft head is of another model: {reason}");
        Err(RuntimeErrorKind::InvalidOptions(reason).into())
    };
    if facts.target_hidden_size != hidden || head.facts.hidden_size != hidden {
        let found = facts.target_hidden_size;
        return wrong(format!(
            "it takes features of width {found}, and the model has {hidden}"
        ));
    }
    if let Err(error) = facts.target_layers.resolve(layers) {
        return wrong(error.to_string());
    }
    if let Some(token) = facts.target_tokens.iter().find(|t| **t as usize >= vocab) {
        return wrong(format!(
            "it proposes token {token}, and the model has {vocab} tokens"
        ));
    }
    let graph = forward_graph(target)?;
    let width = |id: &TensorId| graph.tensor(*id).ty.shape.last().and_then(Dim::as_const);
    let features = graph.outputs()[1..].iter().map(|id| width(id).unwrap_or(0));
    if features.sum::<usize>() != facts.target_layers.len() * hidden {
        let reason = "the model was not opened with the features that the draft head needs";
        return Err(RuntimeErrorKind::InvalidOptions(reason.into()).into());
    }
    Ok(())
}

/// The graph that a decoder's steps run.
fn forward_graph(target: &Model) -> Result<&Graph, RuntimeError> {
    let method = target.artifact().method("forward");
    let method = method.ok_or_else(|| RuntimeErrorKind::UnknownMethod("forward".into()))?;
    Ok(&method.graph)
}

impl EmbeddingTable {
    /// The table whose rows the target's graph gathers by token.
    fn of(target: &Model) -> Result<EmbeddingTable, RuntimeError> {
        let graph = forward_graph(target)?;
        let tables = graph.nodes().iter().filter_map(|node| {
            let gathers = matches!(node.op, Op::GatherRows(_) | Op::Gather(Gather { axis: 0 }));
            let [table, index] = node.inputs[..] else {
                return None;
            };
            (gathers && is_of_tokens(graph, index)).then(|| graph.tensor(table))
        });
        let table = tables.into_iter().find_map(|table| {
            let [rows, width] = table.ty.shape[..] else {
                return None;
            };
            let (rows, width) = (rows.as_const()?, width.as_const()?);
            let data = table.constant()?.clone();
            (rows >= target.facts().vocab_size).then_some(EmbeddingTable {
                dtype: table.ty.dtype,
                row_bytes: data.len() / rows.max(1),
                data,
                width,
            })
        });
        table.ok_or_else(|| {
            let reason = "a draft head needs a model with a table of token embeddings";
            RuntimeErrorKind::InvalidOptions(reason.into()).into()
        })
    }

    /// Appends the embedding of a token.
    fn push(&self, token: u32, width: usize, out: &mut Vec<f32>) {
        let start = out.len();
        out.resize(start + width, 0.0);
        let row = &self.data[token as usize * self.row_bytes..][..self.row_bytes];
        let decoded = base::quant::dequantise(self.dtype, row, &mut out[start..]);
        decoded.expect("the import has checked the embedding");
    }
}

/// Whether a tensor has the tokens of a step, in any shape and type.
fn is_of_tokens(graph: &Graph, mut id: TensorId) -> bool {
    while Some(&id) != graph.inputs().first() {
        let TensorKind::Value(node) = graph.tensor(id).kind else {
            return false;
        };
        let [input] = graph.node(node).inputs[..] else {
            return false;
        };
        id = input;
    }
    true
}

/// What a forward of the head gave for each wanted row.
struct HeadRows {
    logits: Vec<f32>,
    vocab: usize,
    next: Vec<f32>,
}

impl HeadState {
    /// Runs the step that the session has declared.
    fn forward(
        &mut self,
        tokens: &[u32],
        hidden: Vec<f32>,
        positions: Vec<i32>,
        rows: Vec<i32>,
    ) -> Result<HeadRows, RuntimeError> {
        let (n, width) = (tokens.len(), self.width);
        let mut embedded = Vec::with_capacity(n * width);
        for token in tokens {
            self.embedding.push(*token, width, &mut embedded);
        }
        let inputs = [
            Value::f32([n, width], embedded),
            Value::f32([n, width], hidden),
            Value::i32([n], positions),
            Value::i32([rows.len()], rows),
        ];
        let outputs = self.module.execute("forward", &inputs)?;
        let [logits, next] = <[Value; 2]>::try_from(outputs)
            .map_err(|_| RuntimeErrorKind::UnknownMethod("forward".into()))?;
        Ok(HeadRows {
            vocab: self.target_tokens.len(),
            logits: floats(logits),
            next: floats(next),
        })
    }

    /// The children of a row.
    fn children(&self, rows: &HeadRows, row: usize, k: usize) -> Vec<(u32, f32)> {
        let logits = &rows.logits[row * rows.vocab..][..rows.vocab];
        let best = most_likely(logits, k).into_iter();
        best.map(|(token, p)| (self.target_tokens[token as usize], p))
            .collect()
    }

    /// Feeds the pairs of features and the tokens after them, and returns the row of the last pair.
    fn feed(
        &mut self,
        seq: SeqId,
        history: &[u32],
        features: &FeatureRows<'_>,
        pairs: std::ops::Range<usize>,
    ) -> Result<HeadRows, RuntimeError> {
        let mut last = None;
        let mut start = pairs.start;
        while start < pairs.end {
            let end = pairs.end.min(start + self.max_step);
            let n = end - start;
            let from = (start - features.first) * features.width;
            let part = features.rows[from..from + n * features.width].to_vec();
            let fused = self
                .module
                .execute("fuse", &[Value::f32([n, features.width], part)])?;
            let hidden = floats(fused.into_iter().next().expect("fuse has one output"));
            self.session.begin_step(&vec![seq; n])?;
            let positions = (start..end).map(|p| p as i32).collect();
            let tokens = &history[start + 1..end + 1];
            last = Some(self.forward(tokens, hidden, positions, vec![n as i32 - 1])?);
            start = end;
        }
        Ok(last.expect("at least one pair"))
    }
}

fn floats(value: Value) -> Vec<f32> {
    match value.data {
        Data::F32(numbers) => numbers,
        _ => unreachable!("the head's outputs are f32 by its graph's type"),
    }
}

/// Proposes with the head: one forward for the accepted tokens, and one for each further level.
struct EagleProposer {
    head: EagleHead,
    seq: SeqId,
    /// The position of the next pair of a feature and the token after it.
    next: usize,
    /// The tokens up to that of the last pair.
    fed: Vec<u32>,
}

impl Drop for EagleProposer {
    fn drop(&mut self) {
        let mut state = self.head.lock();
        _ = state.session.seq_rm(self.seq, ..);
        state.taken.retain(|seq| *seq != self.seq);
    }
}

impl Proposer for EagleProposer {
    fn name(&self) -> &'static str {
        "eagle3"
    }

    fn needs_features(&self) -> bool {
        true
    }

    fn features_from(&self) -> usize {
        self.next
    }

    fn propose(
        &mut self,
        proposal: &Proposal<'_>,
        tree: &mut TreeProposal,
    ) -> Result<(), RuntimeError> {
        let mut state = self.head.lock();
        let state = &mut *state;
        let seq = self.seq;
        // The candidates of the last round were computed from the head's own guesses of features: the true ones replace
        // them.
        state.session.accept(seq, &[])?;
        let Some(features) = proposal.features.filter(|f| f.width == state.feature_width) else {
            return Ok(());
        };
        let history = proposal.history;
        let known = features.first + features.rows.len() / features.width.max(1);
        // The feature of a token goes with the token after it; the root is the last one.
        let end = (history.len() - 1).min(known);
        // The pairs of another text are removed: the sequence was rewound, shifted or replaced.
        let same = common_prefix_len(&self.fed, history).saturating_sub(1);
        if self.next > same.min(end) {
            let keep = u32::try_from(same.min(end)).unwrap_or(0);
            state.session.seq_rm(seq, keep..)?;
            self.next = keep as usize;
        }
        if self.next < features.first {
            state.session.seq_rm(seq, ..)?;
            self.next = features.first;
        }
        let pairs = self.next..end;
        let room = state.session.can_extend(pairs.len() as u32)?;
        if pairs.is_empty() || end + 1 != history.len() || !room {
            return Ok(());
        }
        let rows = state.feed(seq, history, &features, pairs)?;
        self.next = end;
        self.fed.clear();
        self.fed.extend_from_slice(history);
        let root = state.children(&rows, 0, proposal.top_k);
        let mut before = rows.next;
        let mut computed = 0;
        let width = state.width;
        let mut depth = 0;
        grow_tree(proposal, tree, root, |level: &TreeLevel| {
            let n = level.tokens.len();
            let fits = computed + n <= state.max_step;
            if !fits || !state.session.can_extend(n as u32)? {
                return Ok(None);
            }
            let mut hidden = Vec::with_capacity(n * width);
            for row in &level.rows {
                hidden.extend_from_slice(&before[row * width..][..width]);
            }
            state.session.propose(seq, &level.parents)?;
            let positions = vec![(end + depth) as i32; n];
            let rows = (0..n as i32).collect();
            let rows = state.forward(&level.tokens, hidden, positions, rows)?;
            depth += 1;
            computed += n;
            let children = (0..n).map(|row| state.children(&rows, row, proposal.top_k));
            let children = children.collect();
            before = rows.next;
            Ok(Some(children))
        })
    }
}
