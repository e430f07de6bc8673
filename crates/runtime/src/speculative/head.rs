//! `HeadDraft`: a draft head, which works on features of the target.
//!
//! An assistant attends to keys and values of the target, which are features too: its cache gets a copy of their rows, in positions that are
//! those of the target. The copy follows the text as the caches of other heads do, so that a rewind, a fork or a failed step of the target
//! needs no second cache operation. A token that is guessed has no keys and values: it attends to the rows before the root, from the root's
//! position. That is what a candidate sees whose own row is the one before the root, so all nodes of a tree are candidates in its place.

use super::drafter::{Draft, DraftPart};
use super::level_search::{Children, TreeLevel, most_likely};
use super::proposal::Proposal;
use crate::batch_runner::new_kv;
use crate::module::Module;
use crate::options::{RunnerOptions, cache_config};
use crate::{Model, RuntimeError, RuntimeErrorKind, common_prefix_len};
use backend::Backend;
use base::{Bytes, DType};
use graph::ops::{Gather, Op};
use graph::{Data, Dim, Graph, TensorId, TensorKind, Value};
use import::{Artifact, HeadKind};
use kv::{CacheSession, Cells, SeqId};
use std::ops::Range;

/// A draft head with its own cache.
pub(super) struct HeadDraft {
    module: Module,
    session: CacheSession<Cells>,
    /// The target's embeddings, for heads that take them in the place of tokens.
    embedding: Option<EmbeddingTable>,
    /// Whether features are fused into a state of the head's width.
    fuses: bool,
    /// Whether keys and values are features.
    given_kv: bool,
    /// The token of the target for each token of the head.
    target_tokens: Vec<u32>,
    /// Width of the state that a row takes.
    width: usize,
    feature_width: usize,
    max_step: usize,
    sequences: Vec<HeadSequence>,
}

#[derive(Clone, Default)]
struct HeadSequence {
    /// The position of the next pair of a feature and the token after it.
    next: usize,
    /// The tokens up to that of the last pair.
    fed: Vec<u32>,
    /// The features that the head guesses after its last rows: the last pair, or the nodes of the last level.
    guessed: Vec<f32>,
    /// The target's keys and values of the last pair, for heads that take them.
    last_kv: Vec<f32>,
}

/// The target's token embedding, whose rows are decoded one by one.
struct EmbeddingTable {
    dtype: DType,
    data: Bytes,
    row_bytes: usize,
    width: usize,
}

impl HeadDraft {
    /// Loads a head for a target, which must have been opened with the feature layers of the head.
    ///
    /// # Errors
    /// `InvalidOptions` if the head is of another model: hidden size, vocabulary or layers differ.
    pub(super) fn new(
        head: &Model,
        target: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        sequences: usize,
    ) -> Result<HeadDraft, RuntimeError> {
        let artifact = head.artifact();
        let facts = artifact.draft_head.as_ref().ok_or_else(not_a_head)?;
        let embedding = match facts.kind {
            HeadKind::Eagle3 | HeadKind::Assistant => Some(EmbeddingTable::of(target)?),
            HeadKind::Mtp => None,
        };
        let hidden = embedding.as_ref().map(|table| table.width);
        check(
            artifact,
            target,
            hidden.unwrap_or(target.facts().hidden_size),
        )?;
        let context = options.context_of(target.facts());
        let options = RunnerOptions {
            context: Some(context),
            // A sequence has a few candidates beside its tokens.
            pool_cells: Some(options.pool_cells.unwrap_or(context) + 64 * sequences),
            prefix: None,
            kv_policy: options.kv_policy.without_stream(),
            ..options.clone()
        };
        let cache = cache_config(head.facts(), &options)?;
        let bytes = new_kv(backend, &cache)?;
        let session = CacheSession::new("cells", Cells::new(&cache), bytes);
        let bound = Some(session.entry().clone());
        Ok(HeadDraft {
            module: Module::bind(artifact, backend, &options.compile, bound)?,
            session,
            embedding,
            fuses: artifact.method("fuse").is_some(),
            given_kv: facts.kind == HeadKind::Assistant,
            target_tokens: facts.target_tokens.clone(),
            width: facts.target_hidden_size,
            feature_width: facts.feature_widths().into_iter().sum(),
            max_step: options.max_step_tokens,
            sequences: vec![HeadSequence::default(); sequences],
        })
    }
}

fn not_a_head() -> RuntimeErrorKind {
    RuntimeErrorKind::InvalidOptions("the draft is not a head".into())
}

/// Returns an error unless the head fits the target.
fn check(head: &Artifact, target: &Model, hidden: usize) -> Result<(), RuntimeError> {
    let facts = head.draft_head.as_ref().ok_or_else(not_a_head)?;
    let vocab = target.facts().vocab_size;
    let layers = target.facts().caches.len();
    let wrong = |reason: String| {
        let reason = format!("the draft head is of another model: {reason}");
        Err(RuntimeErrorKind::InvalidOptions(reason).into())
    };
    let own_width = match facts.kind {
        HeadKind::Eagle3 | HeadKind::Mtp => head.facts.hidden_size,
        HeadKind::Assistant => hidden,
    };
    if facts.target_hidden_size != hidden || own_width != hidden {
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
    let missing = |cache: &&kv::LayerConfig| !target.facts().caches.contains(cache);
    if let Some(cache) = facts.target_caches.iter().find(missing) {
        let kv::LayerConfig {
            kv_heads, key_dim, ..
        } = cache;
        let window = match cache.window {
            Some(window) => format!("a window of {window}"),
            None => "no window".to_owned(),
        };
        return wrong(format!(
            "it attends to {kv_heads} heads of {key_dim} elements with {window}, and the model has no such layer"
        ));
    }
    let graph = forward_graph(target)?;
    let width = |id: &TensorId| graph.tensor(*id).ty.shape.last().and_then(Dim::as_const);
    let features = graph.outputs()[1..].iter().map(|id| width(id).unwrap_or(0));
    let features: Vec<usize> = features.collect();
    let wanted = facts.feature_widths();
    let differs = match facts.kind {
        // Programs give features as one output.
        HeadKind::Eagle3 => features.iter().sum::<usize>() != wanted.iter().sum::<usize>(),
        HeadKind::Mtp | HeadKind::Assistant => features != wanted,
    };
    if differs {
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
            // Gemma 4 has a second table, for the inputs of its layers.
            let hidden = target.facts().hidden_size;
            let fits = rows >= target.facts().vocab_size && (hidden == 0 || width == hidden);
            fits.then_some(EmbeddingTable {
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

/// The rows of a forward of the head.
#[derive(Default)]
struct HeadRows {
    tokens: Vec<u32>,
    hidden: Vec<f32>,
    /// The target's keys and values, for heads that take them.
    kv: Vec<f32>,
    positions: Vec<i32>,
    /// The rows whose outputs are wanted.
    wanted: Vec<i32>,
}

impl HeadDraft {
    /// Runs the step that the session has declared. Returns the children of each wanted row, and keeps the features after it
    /// in its sequence; `wanted` has for each sequence the number of its wanted rows and of their children.
    fn forward(
        &mut self,
        rows: HeadRows,
        wanted: impl Iterator<Item = (SeqId, usize, usize)>,
    ) -> Result<Vec<Vec<Children>>, RuntimeError> {
        let (n, width) = (rows.tokens.len(), self.width);
        let tokens = match &self.embedding {
            Some(table) => {
                let mut embedded = Vec::with_capacity(n * width);
                for token in rows.tokens {
                    table.push(token, width, &mut embedded);
                }
                Value::f32([n, width], embedded)
            }
            // A token is below the size of the vocabulary, which an i32 holds.
            None => Value::i32([n], rows.tokens.iter().map(|t| *t as i32).collect()),
        };
        let mut inputs = vec![tokens, Value::f32([n, width], rows.hidden)];
        if self.given_kv {
            let after = rows.positions.iter().map(|position| position + 1);
            inputs.push(Value::f32([n, self.feature_width - width], rows.kv));
            inputs.push(Value::i32([n], after.collect()));
        }
        inputs.push(Value::i32([n], rows.positions));
        inputs.push(Value::i32([rows.wanted.len()], rows.wanted));
        let outputs = self.module.execute("forward", &inputs)?;
        let [logits, guessed] = <[Value; 2]>::try_from(outputs)
            .map_err(|_| RuntimeErrorKind::UnknownMethod("forward".into()))?;
        let (logits, guessed) = (floats(logits), floats(guessed));
        let mut logits = logits.chunks_exact(self.target_tokens.len());
        let mut guessed = guessed.chunks_exact(width);
        let mut children = vec![];
        for (seq, rows, top_k) in wanted {
            let known = &mut self.sequences[seq as usize].guessed;
            known.clear();
            known.extend(guessed.by_ref().take(rows).flatten());
            let own = logits.by_ref().take(rows).map(|logits| {
                let best = most_likely(logits, top_k).into_iter();
                best.map(|(token, p)| (self.target_tokens[token as usize], p))
                    .collect()
            });
            children.push(own.collect());
        }
        Ok(children)
    }
}

impl HeadDraft {
    /// Removes the root's pair, so that the nodes of a tree can take its place. The next round feeds it again.
    fn remove_root_pair(
        &mut self,
        seq: SeqId,
        proposal: &Proposal<'_>,
    ) -> Result<(), RuntimeError> {
        let place = proposal.history.len() - 2;
        let own = &mut self.sequences[seq as usize];
        if own.next > place {
            self.session.seq_rm(seq, place as u32..)?;
            own.next = place;
            own.fed.truncate(place + 1);
        }
        Ok(())
    }
}

fn floats(value: Value) -> Vec<f32> {
    match value.data {
        Data::F32(numbers) => numbers,
        _ => unreachable!("the head's outputs are f32 by its graph's type"),
    }
}

/// Pairs of a feature and the token after it are fed: the position of a pair is that of its feature.
impl Draft for HeadDraft {
    fn max_step_tokens(&self) -> usize {
        self.max_step
    }

    fn can_extend(&self, n: usize) -> Result<bool, RuntimeError> {
        Ok(self
            .session
            .can_extend(u32::try_from(n).unwrap_or(u32::MAX))?)
    }

    fn follow(
        &mut self,
        seq: SeqId,
        proposal: &Proposal<'_>,
    ) -> Result<Option<Range<usize>>, RuntimeError> {
        // The candidates of the last round were computed from the head's own guesses of features: the true ones replace
        // them.
        self.session.accept(seq, &[])?;
        let Some(features) = proposal.features.filter(|f| f.width == self.feature_width) else {
            return Ok(None);
        };
        let history = proposal.history;
        let known = features.first + features.rows.len() / features.width.max(1);
        // The feature of a token goes with the token after it; the root is the last one.
        let end = (history.len() - 1).min(known);
        let own = &mut self.sequences[seq as usize];
        // The pairs of another text are removed: the sequence was rewound, shifted or replaced.
        let same = common_prefix_len(&own.fed, history).saturating_sub(1);
        if own.next > same.min(end) {
            let keep = u32::try_from(same.min(end)).unwrap_or(0);
            own.next = keep as usize;
            // A layer with a window may lack rows that it would need again.
            if self.session.seq_rm(seq, keep..).is_err() {
                self.session.seq_rm(seq, ..)?;
                own.next = features.first;
            }
        }
        if own.next < features.first {
            self.session.seq_rm(seq, ..)?;
            own.next = features.first;
        }
        Ok((end + 1 == history.len()).then_some(own.next..end))
    }

    fn feed(
        &mut self,
        parts: &[DraftPart<'_, Range<usize>>],
    ) -> Result<Vec<Children>, RuntimeError> {
        let mut rows = HeadRows::default();
        let (mut features, mut sequences) = (vec![], vec![]);
        for part in parts {
            let (history, Range { start, end }) = (part.proposal.history, part.rows.clone());
            let known = part.proposal.features.expect("followed with features");
            let from = (start - known.first) * known.width;
            let new = &known.rows[from..][..(end - start) * known.width];
            if self.given_kv {
                let mut last = &new[..0];
                for row in new.chunks_exact(known.width) {
                    let (state, kv) = row.split_at(self.width);
                    features.extend_from_slice(state);
                    rows.kv.extend_from_slice(kv);
                    last = kv;
                }
                self.sequences[part.seq as usize].last_kv = last.to_vec();
            } else {
                features.extend_from_slice(new);
            }
            rows.tokens.extend_from_slice(&history[start + 1..end + 1]);
            rows.positions.extend((start..end).map(|p| p as i32));
            rows.wanted.push(rows.positions.len() as i32 - 1);
            sequences.resize(rows.positions.len(), part.seq);
        }
        rows.hidden = match self.fuses {
            true => {
                let features = Value::f32([sequences.len(), self.feature_width], features);
                let fused = self.module.execute("fuse", &[features])?;
                floats(fused.into_iter().next().expect("fuse has one output"))
            }
            false => features,
        };
        self.session.begin_step(&sequences)?;
        let wanted = parts.iter().map(|part| (part.seq, 1, part.proposal.top_k));
        let children = self.forward(rows, wanted)?;
        for part in parts {
            let own = &mut self.sequences[part.seq as usize];
            own.next = part.rows.end;
            own.fed.clear();
            own.fed
                .extend_from_slice(&part.proposal.history[..part.rows.end + 1]);
        }
        Ok(children.into_iter().flatten().collect())
    }

    fn expand(
        &mut self,
        parts: &[DraftPart<'_, TreeLevel>],
    ) -> Result<Vec<Vec<Children>>, RuntimeError> {
        let mut rows = HeadRows::default();
        if self.given_kv {
            for part in parts {
                self.remove_root_pair(part.seq, part.proposal)?;
            }
        }
        for part in parts {
            let level = &part.rows;
            let guessed = &self.sequences[part.seq as usize].guessed;
            for row in &level.rows {
                let row = &guessed[row * self.width..][..self.width];
                rows.hidden.extend_from_slice(row);
            }
            rows.tokens.extend_from_slice(&level.tokens);
            let nodes = level.tokens.len();
            if self.given_kv {
                let kv = &self.sequences[part.seq as usize].last_kv;
                rows.kv
                    .extend(std::iter::repeat_n(&kv[..], nodes).flatten());
                let place = part.proposal.history.len() - 2;
                rows.positions.resize(rows.tokens.len(), place as i32);
                self.session.propose(part.seq, &vec![None; nodes])?;
                continue;
            }
            // A child of the root follows the pair of the root, whose position is that of the token before the root.
            let position = part.proposal.history.len() + level.depth - 2;
            rows.positions.resize(rows.tokens.len(), position as i32);
            self.session.propose(part.seq, &level.parents)?;
        }
        rows.wanted = (0..rows.tokens.len() as i32).collect();
        let wanted = parts
            .iter()
            .map(|part| (part.seq, part.rows.tokens.len(), part.proposal.top_k));
        self.forward(rows, wanted)
    }

    fn features_from(&self, seq: SeqId) -> usize {
        self.sequences[seq as usize].next
    }

    fn remove(&mut self, seq: SeqId) {
        // Removing all tokens of a sequence cannot fail.
        _ = self.session.seq_rm(seq, ..);
        self.sequences[seq as usize] = HeadSequence::default();
    }
}
