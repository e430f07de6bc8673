//! `MemoryPlan`: the memory of a run, computed before anything is allocated.

mod arena;
mod shortfall;
mod weights;

pub use arena::{ArenaBuffer, ArenaPlan};
pub use shortfall::{LimitSource, MemoryShortfall, Remedy};
pub use weights::WeightSection;

use crate::options::{MemoryLimit, RunnerOptions, StepSize, cache_config};
use crate::prefix::PromptPrefix;
use crate::{Model, RuntimeError, RuntimeErrorKind};
use backend::{
    Backend, BackendError, CompileOptions, ExpertFootprint, Footprint, FootprintRequest,
};
use base::{Bytes, MemoryBound};
use graph::{Bindings, Graph, TensorId};
use import::hugging_face::{Blueprint, STEP_INPUTS};
use import::{Artifact, ModelFacts};
use kv::{CacheConfig, KvLayout, Side};

/// The kind of cache that a run uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// One sequence.
    #[default]
    Contiguous,
    /// A pool of cells shared by several sequences.
    Cells {
        /// The maximum number of sequences.
        sequences: u32,
    },
    /// One sequence followed by a tree of candidates.
    Tree,
}

impl CacheKind {
    /// The kind for one sequence without candidates: contiguous, or cells for a model with recurrent layers.
    pub fn of_one_sequence(facts: &ModelFacts) -> CacheKind {
        match facts.caches.iter().any(kv::LayerConfig::is_state) {
            true => CacheKind::Cells { sequences: 1 },
            false => CacheKind::Contiguous,
        }
    }

    /// Returns an error if the kind cannot hold the states of a model's recurrent layers, or the first rows of layers with sinks.
    fn check(self, cache: &CacheConfig) -> Result<(), RuntimeError> {
        if self == CacheKind::Tree && cache.has_sinks() {
            let reason = "a tree cache holds no layers with sinks: use cells".to_owned();
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        let kind = match self {
            CacheKind::Contiguous => "contiguous",
            CacheKind::Tree => "tree",
            CacheKind::Cells { .. } => return Ok(()),
        };
        match cache.has_states() {
            true => Err(RuntimeErrorKind::InvalidOptions(format!(
                "a {kind} cache cannot hold the states of this model's recurrent layers: use cells"
            ))
            .into()),
            false => Ok(()),
        }
    }
    fn sequences(self) -> u32 {
        match self {
            CacheKind::Cells { sequences } => sequences.max(1),
            CacheKind::Contiguous | CacheKind::Tree => 1,
        }
    }
}

/// The memory that a runner uses, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The model's constants, mapped from its file.
    pub weights: usize,
    /// Keys and values.
    pub kv: usize,
    /// Activations and scratch.
    pub arena: usize,
    /// Packed weights, and slots of experts of which only some are in memory. Runners on the same model share most packed weights.
    pub packed: usize,
}

/// The graph and facts that a plan is computed from: those of an imported file, or of a configuration without weights.
#[derive(Clone, Copy)]
pub struct PlannedModel<'a> {
    graph: &'a Graph,
    facts: &'a ModelFacts,
    /// Graph inputs from this index on are weights.
    first_weight: usize,
    /// The graph of the model whose weights are counted already.
    shared: Option<&'a Graph>,
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
            shared: None,
        })
    }
}

impl<'a> From<&'a Blueprint> for PlannedModel<'a> {
    fn from(blueprint: &'a Blueprint) -> PlannedModel<'a> {
        PlannedModel {
            graph: &blueprint.graph,
            facts: &blueprint.facts,
            first_weight: STEP_INPUTS,
            shared: None,
        }
    }
}

impl<'a> PlannedModel<'a> {
    /// The graph of a step.
    pub fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// The model's facts.
    pub fn facts(&self) -> &'a ModelFacts {
        self.facts
    }

    /// Counts no weight again that this model has: those of an MTP head that are its model's.
    pub fn sharing_with(self, model: &PlannedModel<'a>) -> PlannedModel<'a> {
        PlannedModel {
            shared: Some(model.graph),
            ..self
        }
    }

    /// Whether a constant is a weight that is counted already.
    fn is_shared(&self, id: TensorId) -> bool {
        let place = |constant: &Bytes| (constant.as_ptr(), constant.len());
        let Some((own, graph)) = self.graph.tensor(id).constant().map(place).zip(self.shared)
        else {
            return false;
        };
        let mut others = graph.tensors().iter().filter_map(|t| t.constant());
        others.any(|other| place(other) == own)
    }

    fn is_weight(&self, id: TensorId) -> bool {
        let input = || self.graph.inputs().iter().position(|input| *input == id);
        self.graph.tensor(id).constant().is_some()
            || input().is_some_and(|index| index >= self.first_weight)
    }

    /// Bytes of the features of one token: of the outputs of a decoder after its logits.
    fn feature_bytes(&self) -> usize {
        let outputs = self.graph.outputs().iter().skip(1);
        let width = |id: &TensorId| self.graph.tensor(*id).ty.shape.last()?.as_const();
        match self.facts.is_decoder() {
            true => outputs.filter_map(width).sum::<usize>() * size_of::<f32>(),
            false => 0,
        }
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

/// Offsets of the parts of a run's state in one region: keys and values, arena, logits. Each part starts at a multiple of 64,
/// at least [`GUARD`](StateOffsets::GUARD) bytes after the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOffsets {
    /// The keys and values.
    pub kv: usize,
    /// The arena.
    pub arena: usize,
    /// The logits.
    pub logits: usize,
    /// The end of the logits.
    pub end: usize,
}

impl StateOffsets {
    /// Bytes between two parts, so that a program can check that nobody writes past an end.
    pub const GUARD: usize = 64;
}

/// The memory of a run, computed before a weight is read. A pure function of the model's facts and the caller's
/// choices.
///
/// A runner allocates what its plan states. Keys and values grow with the context up to the planned size.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// The model's constants, by part of the model.
    pub weights: Vec<WeightSection>,
    /// Routed experts, if the backend can hold a part of them; how much it holds.
    pub experts: Option<ExpertFootprint>,
    /// Bytes of packed experts in the host's memory, on a device with memory of its own.
    pub host_packed_bytes: usize,
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
    /// Where every tensor of the longest step lies.
    pub places: graph::plan::MemoryPlan,
    /// The longest step.
    pub step: StepSize,
    /// Bytes of the logits that are kept after a step.
    pub logits_bytes: usize,
    /// Bytes of the features that a pool keeps for a draft head: at most those of every token of its cells.
    pub features_bytes: usize,
    /// The plan of the draft model, if there is one.
    pub draft: Option<Box<MemoryPlan>>,
    /// Whether the weights are mapped already: they take no further address space.
    pub weights_are_mapped: bool,
    /// Whether the device has memory of its own. Then the mapped weights and the kept logits and features are in the host's
    /// memory.
    pub own_memory: bool,
}

impl MemoryPlan {
    /// Plans a run of a model on a backend. If the options name no budget for experts and the whole model exceeds the memory limit, the
    /// plan has the largest budget that fits.
    pub fn new(
        model: &PlannedModel<'_>,
        backend: &dyn Backend,
        options: &RunnerOptions,
        kind: CacheKind,
        draft: Option<MemoryPlan>,
    ) -> Result<MemoryPlan, RuntimeError> {
        let under = |budget: Option<usize>, draft| {
            let mut options = options.clone();
            options.compile.expert_budget = budget;
            MemoryPlan::with_options(model, backend, &options, kind, draft)
        };
        let budget = options.compile.expert_budget;
        let plan = under(budget, draft)?;
        let (None, Some(experts)) = (budget, plan.experts) else {
            return Ok(plan);
        };
        let limit = plan.strictest_limit(options.memory, backend);
        if limit.is_none_or(|limit| plan.total_bytes() as u64 <= limit) {
            return Ok(plan);
        }
        let draft = plan.draft.as_deref();
        let least = under(Some(experts.minimum), draft.cloned())?;
        // Weights that are mapped, and experts on their way from the file, need some of the system's cache of files.
        let asked = plan.limit(options.memory, backend);
        let asked = asked.filter(|(_, source)| *source == LimitSource::Caller);
        let room = match (asked, limit) {
            (Some((asked, _)), Some(limit)) if asked == limit => limit,
            (_, limit) => limit.map_or(0, |limit| limit - limit / 8),
        };
        let rest = room.saturating_sub(least.total_bytes() as u64);
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        under(Some(experts.minimum.saturating_add(rest)), draft.cloned())
    }

    fn with_options(
        model: &PlannedModel<'_>,
        backend: &dyn Backend,
        options: &RunnerOptions,
        kind: CacheKind,
        draft: Option<MemoryPlan>,
    ) -> Result<MemoryPlan, RuntimeError> {
        let facts = model.facts;
        let cache = cache_config(facts, options)?;
        if facts.is_decoder() {
            kind.check(&cache)?;
        }
        let layers = (0..cache.layers.len()).filter(|layer| !cache.layers[*layer].is_state());
        let mut types = layers
            .flat_map(|layer| [Side::Key, Side::Value].map(|side| cache.storage(layer, side)));
        if let Some(storage) = types.find(|storage| !backend.stores(*storage)) {
            let reason = format!(
                "keys and values cannot be stored as {storage} on this device ({})",
                backend.id()
            );
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        if cache.has_sinks() && !backend.sees_first_positions() {
            let reason = format!("layers cannot have sinks on this device ({})", backend.id());
            return Err(RuntimeErrorKind::InvalidOptions(reason).into());
        }
        let step = StepSize::new(facts, options, cache.capacity);
        let bindings = model.bindings(&step)?;
        let is_weight = |id: TensorId| model.is_weight(id);
        let request = FootprintRequest {
            bindings,
            options: &options.compile,
            is_weight: &is_weight,
            cache: (&cache, kind.sequences()),
        };
        let Footprint {
            arena,
            packed,
            host,
            mapped,
            experts,
            kv,
        } = backend.footprint(model.graph, &request)?;
        let logit_rows = match kind {
            CacheKind::Cells { .. } => step.rows + kind.sequences() as usize,
            CacheKind::Contiguous | CacheKind::Tree => step.rows,
        };
        Ok(MemoryPlan {
            weights: weights::sections(
                model.graph,
                &is_weight,
                &|id| model.is_shared(id),
                &packed,
                &mapped,
            ),
            experts,
            host_packed_bytes: host.iter().map(|(_, bytes)| bytes).sum(),
            kv,
            prefix_bytes: 0,
            arena: ArenaPlan::new(model.graph, &arena),
            places: arena,
            step,
            logits_bytes: logit_rows * facts.vocab_size * size_of::<f32>(),
            features_bytes: match kind {
                CacheKind::Cells { .. } => model
                    .feature_bytes()
                    .saturating_mul(cache.capacity as usize),
                CacheKind::Contiguous | CacheKind::Tree => 0,
            },
            cache,
            kind,
            draft: draft.map(Box::new),
            weights_are_mapped: model.first_weight == usize::MAX,
            own_memory: backend.has_own_memory(),
        })
    }

    /// Plans a decoder's run and checks it against the options' limit and the free memory of the device.
    ///
    /// # Errors
    /// `Encoder` or `NotADecoder` for other models, and the errors of [`new`](MemoryPlan::new) and
    /// [`check`](MemoryPlan::check).
    pub(crate) fn for_decoder(
        model: &Model,
        backend: &dyn Backend,
        options: &RunnerOptions,
        kind: CacheKind,
    ) -> Result<MemoryPlan, RuntimeError> {
        if model.facts().pooling.is_some() {
            let architecture = model.artifact().architecture.clone();
            return Err(RuntimeErrorKind::Encoder(architecture).into());
        }
        if !model.facts().is_decoder() {
            return Err(RuntimeErrorKind::NotADecoder.into());
        }
        let planned = PlannedModel::try_from(model.artifact())?;
        let mut plan = MemoryPlan::new(&planned, backend, options, kind, None)?;
        if let Some(prefix) = &options.prefix {
            prefix.check_model(model)?;
            prefix.shared.check(&plan.cache)?;
            plan = plan.with_prefix(prefix);
        }
        plan.check(options.memory, backend)?;
        if options.memory != MemoryLimit::None {
            plan.check(MemoryLimit::Machine, backend)?;
        }
        Ok(plan)
    }

    /// The plan of a run that starts after a shared prefix: only the later tokens need their own memory.
    fn with_prefix(mut self, prefix: &PromptPrefix) -> MemoryPlan {
        let own = self.cache.capacity.saturating_sub(prefix.len() as u32);
        self.kv = self.cache.layout(own, self.kind.sequences());
        self.prefix_bytes = prefix.resident_bytes();
        self
    }

    /// Bytes of the model's constants, mapped from its file.
    pub fn weights_bytes(&self) -> usize {
        self.weights.iter().map(|section| section.bytes).sum()
    }

    /// Bytes of the model's file that stay resident: of constants that the run reads where they are mapped. Weights that the
    /// backend packs are counted once, by [`packed_bytes`](MemoryPlan::packed_bytes).
    pub fn resident_weights_bytes(&self) -> usize {
        self.weights.iter().map(|section| section.resident).sum()
    }

    /// Bytes in the host's memory, which are not part of the total: the mapped weights, packed experts that stay there, and the kept
    /// logits and features, if the device has memory of its own. Includes the draft model.
    pub fn host_bytes(&self) -> usize {
        let draft = self.draft.as_ref().map_or(0, |draft| draft.host_bytes());
        let own = match self.own_memory {
            true => (self.weights_bytes())
                .saturating_add(self.kept_bytes())
                .saturating_add(self.host_packed_bytes),
            false => 0,
        };
        own.saturating_add(draft)
    }

    /// Bytes of the logits and features that are kept after a step.
    fn kept_bytes(&self) -> usize {
        self.logits_bytes.saturating_add(self.features_bytes)
    }

    /// Bytes of packed weights, and of the experts of which only some are in memory.
    pub fn packed_bytes(&self) -> usize {
        let sections = self.weights.iter().map(|section| section.packed);
        sections.sum::<usize>().saturating_add(self.expert_bytes())
    }

    /// Bytes of the experts that are in memory, if only some are; else 0.
    pub fn expert_bytes(&self) -> usize {
        self.experts.and_then(|experts| experts.held).unwrap_or(0)
    }

    /// The options of a run, with the plan's budget for experts.
    pub(crate) fn applied_to(&self, options: &RunnerOptions) -> RunnerOptions {
        let held = self.experts.and_then(|experts| experts.held);
        RunnerOptions {
            compile: CompileOptions {
                expert_budget: held.or(options.compile.expert_budget),
                ..options.compile.clone()
            },
            ..options.clone()
        }
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

    /// Where the parts of the run's state begin if they are one region.
    pub fn state_offsets(&self) -> StateOffsets {
        let after = |end: usize| end.saturating_add(StateOffsets::GUARD).next_multiple_of(64);
        let arena = match self.kv_bytes() {
            0 => 0,
            bytes => after(bytes),
        };
        let logits = after(arena.saturating_add(self.arena.bytes));
        StateOffsets {
            kv: 0,
            arena,
            logits,
            end: logits.saturating_add(self.logits_bytes),
        }
    }

    /// Bytes of the whole plan in the memory of its device, including the draft model: what is resident once the model is loaded.
    /// That does not depend on whether the packed weights are mapped from a file or were packed into memory.
    pub fn total_bytes(&self) -> usize {
        let in_device_memory = |bytes: usize| if self.own_memory { 0 } else { bytes };
        let parts = [
            in_device_memory(self.resident_weights_bytes()),
            self.packed_bytes(),
            self.kv_bytes(),
            self.prefix_bytes,
            self.arena.bytes,
            in_device_memory(self.kept_bytes()),
            self.draft.as_ref().map_or(0, |draft| draft.total_bytes()),
        ];
        parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }

    /// The smallest number of bytes that a run under this limit may need.
    fn strictest_limit(&self, limit: MemoryLimit, backend: &dyn Backend) -> Option<u64> {
        let machine = match limit {
            MemoryLimit::None => None,
            _ => self.limit(MemoryLimit::Machine, backend),
        };
        let limits = self.limit(limit, backend).into_iter().chain(machine);
        limits.map(|(bytes, _)| bytes).min()
    }

    /// Checks the plan against a limit, before anything is loaded.
    ///
    /// # Errors
    /// `MemoryShortfall` if the plan exceeds the limit; it names the changes that would make the plan fit.
    pub fn check(&self, limit: MemoryLimit, backend: &dyn Backend) -> Result<(), RuntimeError> {
        let limit = self.limit(limit, backend);
        match limit.and_then(|(limit, source)| MemoryShortfall::of(self, limit, source)) {
            Some(shortfall) => Err(RuntimeErrorKind::MemoryShortfall(Box::new(shortfall)).into()),
            None => Ok(()),
        }
    }

    /// The bytes that a limit allows, and what it is.
    fn limit(&self, limit: MemoryLimit, backend: &dyn Backend) -> Option<(u64, LimitSource)> {
        match limit {
            MemoryLimit::None => None,
            // The shared prefix is already allocated, and mapped weights have their addresses.
            MemoryLimit::Machine => {
                let bound = backend.memory_bound();
                // The total has the resident part of the weights. Their whole file takes addresses.
                let resident = self.resident_weights_bytes();
                let (mapped, to_map) = match (bound, self.weights_are_mapped) {
                    (MemoryBound::AddressSpace, _) if self.own_memory => (0, 0),
                    (MemoryBound::AddressSpace, true) => (resident, 0),
                    (MemoryBound::AddressSpace, false) => (0, self.weights_bytes() - resident),
                    _ => (0, 0),
                };
                let there = self.prefix_bytes.saturating_add(mapped) as u64;
                let free = backend.free_memory();
                free.map(|free| {
                    let free = free.saturating_add(there).saturating_sub(to_map as u64);
                    (free, LimitSource::System(bound))
                })
            }
            MemoryLimit::Bytes(n) => Some((n, LimitSource::Caller)),
        }
    }
}

#[cfg(test)]
mod tests;
