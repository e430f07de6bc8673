use super::*;
use backend::reference::Reference;
use kv::{KvStorage, Side};

const QWEN3: &str = r#"{ "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16" }"#;

fn plan(context: usize, storage: KvStorage, kind: CacheKind) -> MemoryPlan {
    let blueprint = Blueprint::parse(QWEN3.as_bytes()).unwrap();
    let runner_options = RunnerOptions {
        context: Some(context),
        key_storage: storage,
        value_storage: storage,
        ..RunnerOptions::default()
    };
    MemoryPlan::new(
        &(&blueprint).into(),
        &Reference::new(),
        &runner_options,
        kind,
        None,
    )
    .unwrap()
}

#[test]
fn the_parts_add_up() {
    let plan = plan(1024, KvStorage::F32, CacheKind::Contiguous);
    assert_eq!(plan.kv_bytes(), 234_881_024);
    assert_eq!(
        plan.kv_bytes_at(1),
        plan.kv_bytes() / 4,
        "256 rows at first"
    );
    assert_eq!(plan.kv.layers[27].side(Side::Value).end(), plan.kv_bytes());
    // 596,049,920 parameters, of which 65,536 in norms are held in f32.
    assert_eq!(plan.weights_bytes(), 2 * 596_049_920 + 2 * 65_536 + 4 * 64);
    assert_eq!(plan.weights.len(), 28 + 3);
    assert_eq!(plan.logits_bytes, 151_936 * 4);
    assert_eq!(
        plan.step,
        StepSize {
            tokens: 512,
            rows: 1
        }
    );
    let sum = plan.weights_bytes() + plan.kv_bytes() + plan.arena.bytes + plan.logits_bytes;
    assert_eq!(plan.total_bytes(), sum + plan.packed_bytes());
    for buffer in &plan.arena.buffers {
        assert!(buffer.end() <= plan.arena.bytes, "{buffer:?}");
        let elements: usize = buffer.shape.iter().product();
        assert_eq!(buffer.bytes, 4 * elements, "{buffer:?}");
    }
    assert!(plan.arena.lower_bound <= plan.arena.bytes);
}

#[test]
fn a_draft_is_part_of_the_total() {
    let alone = plan(1024, KvStorage::F16, CacheKind::Contiguous);
    let blueprint = Blueprint::parse(QWEN3.as_bytes()).unwrap();
    let runner_options = RunnerOptions {
        context: Some(1024),
        ..RunnerOptions::default()
    };
    let both = MemoryPlan::new(
        &(&blueprint).into(),
        &Reference::new(),
        &runner_options,
        CacheKind::Tree,
        Some(alone.clone()),
    );
    assert_eq!(both.unwrap().total_bytes(), 2 * alone.total_bytes());
}

#[test]
fn a_device_with_its_own_memory_holds_no_mapped_weights_and_no_kept_logits() {
    let blueprint = Blueprint::parse(QWEN3.as_bytes()).unwrap();
    let options = RunnerOptions {
        context: Some(1024),
        ..RunnerOptions::default()
    };
    let plan = |draft| {
        let kind = CacheKind::Contiguous;
        let model = (&blueprint).into();
        let device = Reporting {
            free: 0,
            own: true,
            bound: MemoryBound::Free,
            packed: [0; 2],
        };
        MemoryPlan::new(&model, &device, &options, kind, draft).unwrap()
    };
    let alone = plan(None);
    let device = alone.packed_bytes() + alone.kv_bytes() + alone.arena.bytes;
    let host = alone.weights_bytes() + alone.logits_bytes;
    assert!(alone.weights_bytes() > 0 && alone.kv_bytes() > 0);
    assert_eq!((alone.total_bytes(), alone.host_bytes()), (device, host));
    let both = plan(Some(alone.clone()));
    let sums = (both.total_bytes(), both.host_bytes());
    assert_eq!(sums, (2 * device, 2 * host));
    let fits = |free: usize| {
        let free = free as u64;
        let backend = Reporting {
            free,
            own: true,
            bound: MemoryBound::Free,
            packed: [0; 2],
        };
        let limits = [MemoryLimit::Machine, MemoryLimit::Bytes(free)];
        limits.map(|limit| alone.check(limit, &backend).is_ok())
    };
    assert_eq!((fits(device), fits(device - 1)), ([true; 2], [false; 2]));
}

/// Experts that stay with the host are in its line and not in the device's total.
#[test]
fn packed_weights_in_the_hosts_memory_are_counted_there() {
    let blueprint = Blueprint::parse(QWEN3.as_bytes()).unwrap();
    let options = RunnerOptions {
        context: Some(64),
        ..RunnerOptions::default()
    };
    let plan = |packed: [usize; 2]| {
        let device = Reporting {
            free: 0,
            own: true,
            bound: MemoryBound::Free,
            packed,
        };
        let kind = CacheKind::Contiguous;
        MemoryPlan::new(&(&blueprint).into(), &device, &options, kind, None).unwrap()
    };
    let (all, moved) = (plan([9000, 0]), plan([2000, 7000]));
    assert_eq!((all.host_packed_bytes, moved.host_packed_bytes), (0, 7000));
    assert_eq!(all.total_bytes() - moved.total_bytes(), 7000);
    assert_eq!(moved.host_bytes() - all.host_bytes(), 7000);
}

#[test]
fn what_does_not_fit_is_refused_with_the_smallest_change() {
    let plan = plan(32768, KvStorage::F32, CacheKind::Contiguous);
    let total = plan.total_bytes() as u64;
    assert_eq!(MemoryShortfall::of(&plan, total, LimitSource::Caller), None);
    let kv = plan.kv_bytes() as u64;
    let shortfall = |limit: u64| MemoryShortfall::of(&plan, limit, LimitSource::Caller).unwrap();

    // One byte short: half precision, or one token less.
    let short = shortfall(total - 1);
    assert_eq!((short.needed, short.bytes_without_kv), (total, total - kv));
    let [types, context] = short.remedies[..] else {
        panic!("{short}")
    };
    assert_eq!(
        (types.storage, types.shorter),
        (Some(KvStorage::F16), false)
    );
    assert_eq!((context.storage, context.context), (None, 32767));

    // A third of the keys and values: eight bits are enough.
    let third = shortfall(total - kv / 3 * 2);
    let [types, context] = third.remedies[..] else {
        panic!("{third}")
    };
    assert_eq!(types.storage.unwrap().name(), "q8");
    let of = |context: u32| super::CacheConfig {
        capacity: context,
        ..plan.cache.clone()
    };
    let bytes = |context: u32| of(context).layout(context, 1).bytes() as u64;
    assert!(bytes(context.context) <= kv - kv / 3 * 2);
    assert!(bytes(context.context + 1) > kv - kv / 3 * 2);
    let text = third.to_string();
    assert!(text.contains(&format!("-c {}", context.context)), "{text}");
    assert!(text.contains("--cache-type-k q8"), "{text}");

    // Less than the rest of the plan.
    let hopeless = shortfall(total - kv - 1);
    assert!(hopeless.remedies.is_empty());
    assert!(hopeless.to_string().contains("smaller model"), "{hopeless}");
    let error = plan
        .check(MemoryLimit::Bytes(1), &Reference::new())
        .unwrap_err();
    assert!(matches!(error.kind(), RuntimeErrorKind::MemoryShortfall(_)));
    plan.check(MemoryLimit::None, &Reference::new()).unwrap();
}

#[test]
fn the_refusal_names_the_limit() {
    let mut plan = plan(1024, KvStorage::F32, CacheKind::Contiguous);
    let total = plan.total_bytes() as u64;
    let refusal = |plan: &MemoryPlan, free: u64, bound: MemoryBound| {
        let backend = Reporting {
            free,
            own: false,
            bound,
            packed: [0; 2],
        };
        let checked = plan.check(MemoryLimit::Machine, &backend);
        checked.err().map(|error| error.to_string())
    };
    for (bound, says) in [
        (MemoryBound::Free, "(the free memory)"),
        (MemoryBound::Group, "the memory limit of the cgroup leaves"),
        (MemoryBound::AddressSpace, "see ulimit -v"),
    ] {
        let text = refusal(&plan, total - 1, bound).unwrap();
        assert!(text.contains(says), "{text}");
        assert_eq!(refusal(&plan, total, bound), None);
    }
    // Weights that are mapped already have their addresses, but not their memory.
    plan.weights_are_mapped = true;
    let rest = total - plan.weights_bytes() as u64;
    assert_eq!(refusal(&plan, rest, MemoryBound::AddressSpace), None);
    assert!(refusal(&plan, rest - 1, MemoryBound::AddressSpace).is_some());
    assert!(refusal(&plan, rest, MemoryBound::Group).is_some());
}

/// A device that reports this much free memory.
struct Reporting {
    free: u64,
    own: bool,
    bound: MemoryBound,
    /// Bytes of packed weights on the device and in the host's memory.
    packed: [usize; 2],
}

impl Backend for Reporting {
    fn id(&self) -> &'static str {
        Reference::new().id()
    }

    fn compile(
        &self,
        graph: std::sync::Arc<graph::Graph>,
        options: &backend::CompileOptions,
    ) -> Result<Box<dyn backend::Executable>, backend::BackendError> {
        Reference::new().compile(graph, options)
    }

    fn new_kv(&self, config: &kv::CacheConfig) -> Result<Box<dyn kv::KvBytes>, kv::KvError> {
        Reference::new().new_kv(config)
    }

    fn footprint(
        &self,
        graph: &graph::Graph,
        request: &FootprintRequest<'_>,
    ) -> Result<Footprint, backend::BackendError> {
        let weights = (0..graph.tensors().len() as u32).map(TensorId);
        let first = weights.into_iter().find(|id| (request.is_weight)(*id));
        let list = |bytes: usize| first.map(|id| (id, bytes)).into_iter().collect();
        let [packed, host] = self.packed.map(list);
        Ok(Footprint {
            packed,
            host,
            ..Reference::new().footprint(graph, request)?
        })
    }

    fn free_memory(&self) -> Option<u64> {
        Some(self.free)
    }

    fn memory_bound(&self) -> MemoryBound {
        self.bound
    }

    fn has_own_memory(&self) -> bool {
        self.own
    }
}
