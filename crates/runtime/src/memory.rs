//! `MemoryPlan`: the memory of a run, computed before anything is allocated.

mod arena;
mod shortfall;
mod weights;

pub use arena::{ArenaBuffer, ArenaPlan};
pub use shortfall::{MemoryShortfall, Remedy};
pub use weights::WeightSection;

use crate::runner::{Policy, Prefix, make_config, step_size};
use crate::{RuntimeError, RuntimeErrorKind};
use backend::{Backend, BackendError, Footprint, FootprintRequest};
use graph::{Bindings, Graph, TensorId};
use import::hugging_face::{Blueprint, STEP_INPUTS};
use import::{Artifact, ModelFacts};
use kv::{CacheConfig, KvLayout};

/// The kind of cache that a run uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// One sequence.
    #[default]
    Sequence,
    /// A pool of cells shared by several sequences.
    Cells {
        /// The maximum number of sequences.
        sequences: u32,
    },
    /// One sequence followed by a tree of candidates.
    Tree,
}

impl CacheKind {
    fn sequences(self) -> u32 {
        match self {
            CacheKind::Cells { sequences } => sequences.max(1),
            CacheKind::Sequence | CacheKind::Tree => 1,
        }
    }
}

/// The memory limit of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The free memory of the backend's device, if it reports it.
    #[default]
    Machine,
    /// This many bytes, and no more than the free memory of the device.
    Bytes(u64),
    /// No limit.
    None,
}

/// The graph and facts that a plan is computed from: those of an imported file, or of a configuration without weights.
#[derive(Clone, Copy)]
pub struct PlannedModel<'a> {
    graph: &'a Graph,
    facts: &'a ModelFacts,
    /// Graph inputs from this index on are weights.
    first_weight: usize,
}

impl<'a> TryFrom<&'a Artifact> for PlannedModel<'a> {
    type Error = RuntimeError;

    fn try_from(artifact: &'a Artifact) -> Result<PlannedModel<'a>, RuntimeError> {
        let method = artifact.method("forward").or(artifact.methods.first());
        let method = method.ok_or_else(|| RuntimeErrorKind::UnknownMethod("forward".to_owned()))?;
        Ok(PlannedModel {
            graph: &method.graph,
            facts: &artifact.facts,
            first_weight: usize::MAX,
        })
    }
}

impl<'a> From<&'a Blueprint> for PlannedModel<'a> {
    fn from(blueprint: &'a Blueprint) -> PlannedModel<'a> {
        PlannedModel {
            graph: &blueprint.graph,
            facts: &blueprint.facts,
            first_weight: STEP_INPUTS,
        }
    }
}

impl<'a> PlannedModel<'a> {
    /// The model's facts.
    pub fn facts(&self) -> &'a ModelFacts {
        self.facts
    }
    fn is_weight(&self, id: TensorId) -> bool {
        let input = || self.graph.inputs().iter().position(|input| *input == id);
        self.graph.tensor(id).constant().is_some()
            || input().is_some_and(|index| index >= self.first_weight)
    }

    /// The symbol values of the longest step. In a graph that is not a decoder, every dynamic size is the step's number
    /// of tokens, limited to the range of the symbol.
    fn bindings(&self, step: &StepSize) -> Result<Bindings, RuntimeError> {
        if !self.facts.is_decoder() {
            let sizes = self.graph.symbols().iter().enumerate();
            return Ok(
                sizes.fold(Bindings::default(), |mut bindings, (i, symbol)| {
                    bindings.0[i] = step
                        .tokens
                        .clamp(*symbol.range.start(), *symbol.range.end());
                    bindings
                }),
            );
        }
        let mut shapes = step.shapes();
        for id in self.graph.inputs().iter().skip(shapes.len()) {
            let dims = self.graph.tensor(*id).ty.dims(&Bindings::default());
            shapes.push(dims.unwrap_or_default());
        }
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        Ok(self.graph.bind(&shapes).map_err(BackendError::from)?)
    }
}

/// The size of a decoder's longest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// The number of tokens.
    pub tokens: usize,
    /// The number of rows whose logits are wanted.
    pub rows: usize,
}

impl StepSize {
    /// The shapes of tokens, positions and rows.
    pub(crate) fn shapes(&self) -> Vec<Vec<usize>> {
        vec![vec![self.tokens], vec![self.tokens], vec![self.rows]]
    }
}

/// The memory of a run, computed before a weight is read. A pure function of the model's facts and the caller's
/// choices.
///
/// A runner allocates what its plan states. Keys and values grow with the context up to the planned size.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The model's constants, by part of the model.
    pub weights: Vec<WeightSection>,
    /// The configuration of the cache.
    pub cache: CacheConfig,
    /// The kind of the cache.
    pub kind: CacheKind,
    /// The layout of keys and values once the context is full, not counting a shared prefix.
    pub kv: KvLayout,
    /// Bytes of the keys and values of a shared prefix. They are allocated before the run, once for all runs.
    pub prefix_bytes: usize,
    /// Activations and workspaces of the longest step.
    pub arena: ArenaPlan,
    /// The longest step.
    pub step: StepSize,
    /// Bytes of the logits that are kept after a step.
    pub logits_bytes: usize,
    /// The plan of the draft model, if there is one.
    pub draft: Option<Box<MemoryPlan>>,
}

impl MemoryPlan {
    /// Plans a run of a model on a backend.
    pub fn new(
        model: &PlannedModel<'_>,
        backend: &dyn Backend,
        policy: &Policy,
        kind: CacheKind,
        draft: Option<MemoryPlan>,
    ) -> Result<MemoryPlan, RuntimeError> {
        let facts = model.facts;
        let cache = make_config(facts, policy)?;
        let step = step_size(facts, policy, cache.capacity);
        let bindings = model.bindings(&step)?;
        let is_weight = |id: TensorId| model.is_weight(id);
        let request = FootprintRequest {
            bindings,
            options: &policy.compile,
            is_weight: &is_weight,
            cache: (&cache, kind.sequences()),
        };
        let Footprint { arena, packed, kv } = backend.footprint(model.graph, &request)?;
        let kept = match kind {
            CacheKind::Cells { .. } => step.rows + kind.sequences() as usize,
            CacheKind::Sequence | CacheKind::Tree => step.rows,
        };
        Ok(MemoryPlan {
            weights: weights::sections(model.graph, &is_weight, &packed),
            kv,
            prefix_bytes: 0,
            arena: ArenaPlan::new(model.graph, &arena),
            step,
            logits_bytes: kept * facts.vocab_size * size_of::<f32>(),
            cache,
            kind,
            draft: draft.map(Box::new),
        })
    }

    /// The plan of a run that starts after a shared prefix: only the later tokens need their own memory.
    pub(crate) fn with_prefix(mut self, prefix: &Prefix) -> MemoryPlan {
        let own = self.cache.capacity.saturating_sub(prefix.len() as u32);
        self.kv = self.cache.layout(own, self.kind.sequences());
        self.prefix_bytes = prefix.resident_bytes();
        self
    }

    /// Bytes of the model's constants, mapped from its file.
    pub fn weights_bytes(&self) -> usize {
        self.weights.iter().map(|section| section.bytes).sum()
    }

    /// Bytes of packed weights.
    pub fn packed_bytes(&self) -> usize {
        self.weights.iter().map(|section| section.packed).sum()
    }

    /// Bytes of keys and values once the context is full.
    pub fn kv_bytes(&self) -> usize {
        self.kv.bytes()
    }

    /// Bytes of keys and values once this many tokens are stored.
    pub fn kv_bytes_at(&self, tokens: usize) -> usize {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.cache.layout(tokens, self.kind.sequences()).bytes()
    }

    /// Bytes of the whole plan, including the draft model.
    pub fn total_bytes(&self) -> usize {
        let parts = [
            self.weights_bytes(),
            self.packed_bytes(),
            self.kv_bytes(),
            self.prefix_bytes,
            self.arena.bytes,
            self.logits_bytes,
            self.draft.as_ref().map_or(0, |draft| draft.total_bytes()),
        ];
        parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }

    /// Checks the plan against a limit, before anything is loaded.
    ///
    /// # Errors
    /// `MemoryShortfall` if the plan exceeds the limit; it names the changes that would make the plan fit.
    pub fn check(&self, limit: MemoryLimit, backend: &dyn Backend) -> Result<(), RuntimeError> {
        let limit = match limit {
            MemoryLimit::None => None,
            // The shared prefix is already allocated.
            MemoryLimit::Machine => backend
                .free_memory()
                .map(|free| free.saturating_add(self.prefix_bytes as u64)),
            MemoryLimit::Bytes(n) => Some(n),
        };
        match limit.and_then(|limit| MemoryShortfall::of(self, limit)) {
            Some(shortfall) => Err(RuntimeErrorKind::MemoryShortfall(Box::new(shortfall)).into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
