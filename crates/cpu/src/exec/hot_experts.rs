//! Routed experts of which a bounded number is in memory: those that are used most.
//!
//! Experts are read into slots when rows choose them. Slots are memory of their own and not pages of the mapped file, because the system
//! decides how many pages around an address it maps: only copies stay within a budget on every system.

mod companions;
mod slots;

use super::constants::realigned_bytes;
use super::weight_layouts::WeightLayouts;
use crate::kernels::Context;
use crate::kernels::SendPtr;
use crate::kernels::matmul::experts::ExpertWeights;
use backend::{BackendError, BackendErrorKind, CompileOptions, ExpertFootprint, ExpertUse};
use base::Bytes;
use companions::Companions;
use graph::ops::Op;
use graph::{Graph, TensorId};
use slots::{History, SlotPlan, Worth};
use std::alloc::Layout;
use std::cmp::Reverse;
use std::sync::Mutex;

/// Bytes that one task reads.
const READ_BYTES: usize = 512 << 10;
/// Experts of a prompt that are read from the disk before they are needed.
const READ_AHEAD: usize = 4;
/// Alignment of a slot's parts: kernels load whole cache lines.
const ALIGNMENT: usize = 64;

/// The experts of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertLayer {
    /// The index of the node.
    node: usize,
    /// Gate, up and down.
    weights: [TensorId; 3],
    /// Bytes of one expert's gate, up and down as the kernels read them.
    sizes: [usize; 3],
    count: usize,
    /// Experts that a token uses.
    used: usize,
}

impl ExpertLayer {
    /// The layers of a graph whose experts can be read one by one: those that are weights and need no other copy.
    fn all(
        graph: &Graph,
        layouts: &WeightLayouts,
        is_weight: &dyn Fn(TensorId) -> bool,
    ) -> Vec<ExpertLayer> {
        let layer = |node: usize| {
            let Op::Experts(op) = &graph.nodes()[node].op else {
                return None;
            };
            let inputs = &graph.nodes()[node].inputs;
            let weights: [TensorId; 3] = inputs[2..5].try_into().ok()?;
            let count = graph.tensor(inputs[1]).ty.shape.last()?.as_const()?;
            let size = |id: TensorId| {
                let tensor = graph.tensor(id);
                let shared = graph.nodes().iter().filter(|n| n.inputs.contains(&id));
                let is_mapped = tensor.constant().is_none_or(Bytes::is_mapped);
                if !is_weight(id) || !is_mapped || realigned_bytes(tensor) > 0 || shared.count() > 1
                {
                    return None;
                }
                let bytes = match layouts.packed_bytes(id) {
                    Some(bytes) => bytes,
                    None => tensor.ty.bytes(&Default::default())?,
                };
                bytes
                    .is_multiple_of(count.max(1))
                    .then(|| bytes / count.max(1))
            };
            let [gate, up, down] = weights.map(size);
            Some(ExpertLayer {
                node,
                weights,
                sizes: [gate?, up?, down?],
                count,
                used: op.used,
            })
        };
        (0..graph.nodes().len()).filter_map(layer).collect()
    }

    /// Where gate, up and down begin in a slot, and its end.
    fn offsets(&self) -> [usize; 4] {
        let mut end = 0;
        let [gate, up, down] = self.sizes.map(|size| {
            let start = end;
            end += size.next_multiple_of(ALIGNMENT);
            start
        });
        [gate, up, down, end]
    }

    fn slot_bytes(&self) -> usize {
        self.offsets()[3]
    }
}

/// The experts of a graph under a budget: decided before any weight is read.
pub(crate) struct ExpertPlan {
    layers: Vec<ExpertLayer>,
    plan: Option<SlotPlan>,
    /// Whether experts could be read when they are needed: those that are packed need the file of packed weights.
    is_possible: bool,
}

impl ExpertPlan {
    /// # Errors
    /// `Options` if the budget is smaller than what a token needs, or if there is no folder for packed weights.
    pub(crate) fn new(
        graph: &Graph,
        layouts: &WeightLayouts,
        is_weight: &dyn Fn(TensorId) -> bool,
        options: &CompileOptions,
    ) -> Result<ExpertPlan, BackendError> {
        let layers = ExpertLayer::all(graph, layouts, is_weight);
        let mut weights = layers.iter().flat_map(|layer| layer.weights);
        let is_packed = weights.any(|id| layouts.packed_bytes(id).is_some());
        let is_possible = !is_packed || options.packed_folder.is_some();
        let plan = match options.expert_budget {
            None => None,
            Some(budget) => SlotPlan::new(&layers, budget).map_err(|minimum| {
                let [budget, minimum] = [budget, minimum].map(|n| base::size_text(n as u64));
                BackendErrorKind::Options(format!(
                    "a budget of {budget} for experts is too small: a token needs {minimum}"
                ))
            })?,
        };
        if plan.is_some() && !is_possible {
            let reason = "a budget for experts needs the file of packed weights";
            return Err(BackendErrorKind::Options(reason.to_owned()).into());
        }
        Ok(ExpertPlan {
            layers,
            plan,
            is_possible,
        })
    }

    /// The memory of the experts; `None` if all must be in memory.
    pub(crate) fn footprint(&self) -> Option<ExpertFootprint> {
        (self.is_possible && !self.layers.is_empty()).then(|| ExpertFootprint {
            all: SlotPlan::all_bytes(&self.layers),
            minimum: SlotPlan::minimum(&self.layers),
            held: self.plan.as_ref().map(SlotPlan::bytes),
        })
    }

    /// Whether a weight's experts are read when they are needed.
    pub(crate) fn is_on_demand(&self, id: TensorId) -> bool {
        self.plan.is_some() && self.layers.iter().any(|layer| layer.weights.contains(&id))
    }

    /// All weights whose experts are read when they are needed.
    pub(crate) fn on_demand(&self) -> impl Iterator<Item = TensorId> {
        let layers = self.plan.iter().flat_map(|_| &self.layers);
        layers.flat_map(|layer| layer.weights)
    }
}

/// The experts that are in memory.
pub(crate) struct HotExperts {
    layers: Vec<LoadedLayer>,
    classes: Vec<Class>,
    memory: SlotMemory,
    /// The number of loads, as a time.
    clock: u64,
}

/// The experts of a node, and where their bytes are.
struct LoadedLayer {
    shape: ExpertLayer,
    class: usize,
    experts: Vec<Expert>,
    /// Calls so far.
    calls: u64,
    uses: ExpertUse,
    /// How often experts of the next layer were used with this layer's. Behind the last layer comes the first one, in the next step.
    companions: Companions,
    /// The experts that the last call used, none if they are more than a token uses; `None` before the call's first load.
    chosen: Option<Vec<u32>>,
    /// The experts that were prefetched for the coming call.
    expected: Vec<u32>,
}

struct Expert {
    /// Gate, up and down in their file.
    sources: [Bytes; 3],
    /// Its slot in its class.
    slot: Option<usize>,
    history: History,
    last_use: u64,
}

/// Slots of one size.
struct Class {
    /// Where the first slot begins.
    start: usize,
    slot_bytes: usize,
    /// The layer and the expert in each slot.
    owners: Vec<Option<(usize, usize)>>,
}

impl HotExperts {
    /// The experts of a plan, none of which is in memory yet; `None` if the plan holds all. `source` gives the bytes of a weight as the
    /// kernels read it.
    pub(crate) fn new(
        plan: &ExpertPlan,
        source: &dyn Fn(TensorId) -> Bytes,
    ) -> Result<Option<Mutex<HotExperts>>, BackendError> {
        let Some(slots) = &plan.plan else {
            return Ok(None);
        };
        let mut start = 0;
        let class = |class: &slots::SlotClass| {
            let first = start;
            start += class.slots * class.slot_bytes;
            Class {
                start: first,
                slot_bytes: class.slot_bytes,
                owners: vec![None; class.slots],
            }
        };
        let classes: Vec<Class> = slots.classes.iter().map(class).collect();
        let next = plan.layers.iter().cycle().skip(1);
        let layer = |((shape, class), next): ((&ExpertLayer, &usize), &ExpertLayer)| {
            let all = shape.weights.map(source);
            let expert = |index: usize| Expert {
                sources: std::array::from_fn(|i| {
                    let size = shape.sizes[i];
                    let range = index * size..(index + 1) * size;
                    all[i].slice(range).expect("a weight has all experts")
                }),
                slot: None,
                history: History::default(),
                last_use: 0,
            };
            LoadedLayer {
                class: *class,
                experts: (0..shape.count).map(expert).collect(),
                shape: shape.clone(),
                calls: 0,
                uses: ExpertUse::default(),
                companions: Companions::new(shape.count, next.count),
                chosen: None,
                expected: Vec::new(),
            }
        };
        let layers = plan.layers.iter().zip(&slots.layers).zip(next);
        let layers = layers.map(layer).collect();
        Ok(Some(Mutex::new(HotExperts {
            layers,
            classes,
            memory: SlotMemory::new(slots.slot_bytes())?,
            clock: 0,
        })))
    }

    /// Bytes of all slots and of what is known of the experts' companions.
    pub(crate) fn bytes(&self) -> usize {
        let counts: Vec<usize> = self.layers.iter().map(|l| l.shape.count).collect();
        self.memory.bytes + Companions::bytes(&counts)
    }

    /// The experts of a node, at the beginning of a call; `None` if they are all in memory.
    pub(crate) fn begin(&mut self, node: usize) -> Option<HotLayer<'_>> {
        let index = self.layers.iter().position(|l| l.shape.node == node)?;
        let layer = &mut self.layers[index];
        layer.calls += 1;
        layer.uses = ExpertUse::default();
        layer.chosen = None;
        for expert in &mut layer.experts {
            expert.history.begin();
        }
        Some(HotLayer { all: self, index })
    }

    /// The uses in the last call of a node.
    pub(crate) fn last_uses(&self, node: usize) -> ExpertUse {
        let layer = self.layers.iter().find(|l| l.shape.node == node);
        layer.map_or(ExpertUse::default(), |layer| layer.uses)
    }

    /// An empty slot of a class, or the one whose expert is worth least; not that of an expert in use.
    fn free_slot(&mut self, class: usize, layer: usize, in_use: &[u32]) -> Option<usize> {
        let owners = &self.classes[class].owners;
        if let Some(empty) = owners.iter().position(Option::is_none) {
            return Some(empty);
        }
        let worth = |owner: &Option<(usize, usize)>| {
            let (own_layer, index) = (*owner)?;
            if own_layer == layer && in_use.contains(&(index as u32)) {
                return None;
            }
            let layer = &self.layers[own_layer];
            let expert = &layer.experts[index];
            Some(Worth {
                frequency: expert.history.frequency(layer.calls),
                last_use: Reverse(expert.last_use),
            })
        };
        let slots = owners.iter().enumerate();
        let candidates = slots.filter_map(|(slot, owner)| Some((worth(owner)?, slot)));
        let (_, slot) = candidates.min()?;
        if let Some((layer, index)) = self.classes[class].owners[slot].take() {
            self.layers[layer].experts[index].slot = None;
        }
        Some(slot)
    }

    fn address(&self, layer: usize, expert: usize) -> Option<*mut u8> {
        let LoadedLayer { class, experts, .. } = &self.layers[layer];
        let class = &self.classes[*class];
        let slot = experts[expert].slot?;
        Some(self.memory.at(class.start + slot * class.slot_bytes))
    }
}

/// The experts of a node during a call.
pub(crate) struct HotLayer<'a> {
    all: &'a mut HotExperts,
    index: usize,
}

// SAFETY: the memory of the slots is written only through a unique reference.
unsafe impl Sync for HotLayer<'_> {}

impl HotLayer<'_> {
    fn layer(&mut self) -> &mut LoadedLayer {
        &mut self.all.layers[self.index]
    }

    /// Gives slots to the experts that have none, and returns them.
    fn give_slots(&mut self, needed: &[u32]) -> Result<Vec<usize>, String> {
        let (index, class) = (self.index, self.all.layers[self.index].class);
        let mut missing = Vec::new();
        for expert in needed.iter().map(|expert| *expert as usize) {
            self.all.clock += 1;
            let clock = self.all.clock;
            let layer = self.layer();
            let found = layer.experts[expert].slot.is_some();
            layer.experts[expert].history.mark_used();
            layer.experts[expert].last_use = clock;
            match found {
                true => layer.uses.hits += 1,
                false => layer.uses.misses += 1,
            }
            if found {
                continue;
            }
            let slot = self.all.free_slot(class, index, needed);
            let slot = slot.ok_or("a step uses more experts than are held")?;
            self.all.classes[class].owners[slot] = Some((index, expert));
            self.layer().experts[expert].slot = Some(slot);
            missing.push(expert);
        }
        Ok(missing)
    }

    /// Learns from the experts of a token, and returns those that the next layer is likely to need and does not hold.
    fn foresee(&mut self, used: Vec<u32>) -> Vec<(usize, u32)> {
        let (index, count) = (self.index, self.all.layers.len());
        let (previous, next) = ((index + count - 1) % count, (index + 1) % count);
        let layer = self.layer();
        let expected = std::mem::take(&mut layer.expected);
        let is_foreseen = |expert: &&u32| {
            expected.contains(expert) && layer.experts[**expert as usize].slot.is_none()
        };
        layer.uses.foreseen += used.iter().filter(is_foreseen).count() as u64;
        let layers = &mut self.all.layers;
        if previous != index {
            let previous = &mut layers[previous];
            let chosen = previous.chosen.as_deref().unwrap_or_default();
            previous.companions.learn(chosen, &used);
        }
        let absent = |expert: u32| layers[next].experts[expert as usize].slot.is_none();
        let companions = &layers[index].companions;
        let likely = companions.likely(&used, layers[next].shape.used, &absent);
        layers[next].expected.clone_from(&likely);
        layers[index].chosen = Some(used);
        likely.into_iter().map(|expert| (next, expert)).collect()
    }

    /// Takes the slots back from experts that could not be read.
    fn take_slots(&mut self, experts: &[usize]) {
        let class = self.layer().class;
        for expert in experts {
            if let Some(slot) = self.layer().experts[*expert].slot.take() {
                self.all.classes[class].owners[slot] = None;
            }
        }
    }
}

impl ExpertWeights for HotLayer<'_> {
    fn load(&mut self, ctx: &Context<'_>, needed: &[u32], next: &[u32]) -> Result<(), String> {
        let mut likely = Vec::new();
        if self.layer().chosen.is_none() {
            // The first load of a call names all that it uses.
            let used: Vec<u32> = needed.iter().chain(next).copied().collect();
            match used.len() <= self.layer().shape.used {
                true => likely = self.foresee(used),
                false => self.layer().chosen = Some(Vec::new()),
            }
        }
        let missing = self.give_slots(needed)?;
        let prefetch = |expert: &Expert| expert.sources.iter().for_each(Bytes::prefetch);
        let layer = &self.all.layers[self.index];
        let next = next.iter().take(READ_AHEAD);
        let next = next.map(|expert| &layer.experts[*expert as usize]);
        let absent = next.filter(|expert| expert.slot.is_none());
        let likely = likely.iter();
        let likely =
            likely.map(|(layer, expert)| &self.all.layers[*layer].experts[*expert as usize]);
        // The system gets the requests for missing experts before those for later experts and layers.
        let missing_experts = missing.iter().map(|index| &layer.experts[*index]);
        missing_experts
            .chain(absent)
            .chain(likely)
            .for_each(prefetch);
        let offsets = layer.shape.offsets();
        let mut reads: Vec<(Bytes, SendPtr<u8>)> = Vec::new();
        for index in &missing {
            let slot = self.all.address(self.index, *index);
            let slot = slot.expect("it has just got a slot");
            for (source, offset) in layer.experts[*index].sources.iter().zip(offsets) {
                for start in (0..source.len()).step_by(READ_BYTES) {
                    let end = source.len().min(start + READ_BYTES);
                    let part = source.slice(start..end).expect("a part of it");
                    reads.push((part, SendPtr(slot.wrapping_add(offset + start))));
                }
            }
        }
        let failed = Mutex::new(None);
        ctx.threads.run(reads.len(), &|task, _| {
            let (part, to) = &reads[task];
            // SAFETY: the part lies in the slot of its expert, which no other task writes and nothing reads before it is complete.
            let out = unsafe { std::slice::from_raw_parts_mut(to.at(0), part.len()) };
            if let Err(error) = part.copy_to(out) {
                *failed.lock().expect("no task panics") = Some(error);
            }
        });
        match failed.into_inner().expect("no task panics") {
            None => Ok(()),
            Some(error) => {
                self.take_slots(&missing);
                Err(format!("cannot read the weights of experts: {error}"))
            }
        }
    }

    fn addresses(&self, expert: u32) -> [*const u8; 3] {
        let slot = self.all.address(self.index, expert as usize);
        let slot = slot.expect("it was loaded").cast_const();
        let [gate, up, down, _] = self.all.layers[self.index].shape.offsets();
        [gate, up, down].map(|offset| slot.wrapping_add(offset))
    }
}

/// The memory of all slots, in huge pages if the system has them. It becomes resident as slots are first filled.
struct SlotMemory {
    /// The allocation, in which the slots begin at a multiple of a page.
    allocation: *mut u8,
    layout: Layout,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to this value, and is accessed only as the owner of the value allows.
unsafe impl Send for SlotMemory {}

impl SlotMemory {
    /// Pages are this large where the system has huge ones.
    const HUGE_PAGE: usize = 2 << 20;

    fn new(bytes: usize) -> Result<SlotMemory, BackendError> {
        let out_of_memory = || BackendErrorKind::OutOfMemory(bytes);
        let align = match bytes >= Self::HUGE_PAGE {
            true => Self::HUGE_PAGE,
            false => ALIGNMENT,
        };
        // Allocators clear memory of a larger alignment themselves, which would make all of it resident.
        let size = bytes.checked_add(align).ok_or_else(out_of_memory)?;
        let layout = Layout::from_size_align(size, 16).map_err(|_| out_of_memory())?;
        // SAFETY: the layout's size is not zero.
        let allocation = base::fallible(|| unsafe { std::alloc::alloc_zeroed(layout) });
        if allocation.is_null() {
            return Err(out_of_memory().into());
        }
        let start = allocation.wrapping_add(allocation.align_offset(align));
        #[cfg(target_os = "linux")]
        if align == Self::HUGE_PAGE {
            let whole = bytes - bytes % Self::HUGE_PAGE;
            // A failure is ignored: normal pages are only a little slower.
            // SAFETY: the pages are those of the allocation.
            _ = unsafe { libc::madvise(start.cast(), whole, libc::MADV_HUGEPAGE) };
        }
        Ok(SlotMemory {
            allocation,
            layout,
            start,
            bytes,
        })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { std::alloc::dealloc(self.allocation, self.layout) };
    }
}
