//! Forwards and copies that fail inside a round: the target and the draft keep what they held, and the next round goes on.

use super::*;
use kvark::backend::{
    Backend, BackendError, BackendErrorKind, CacheStep, CompileOptions, Executable, FrozenKv,
    KvBytes, RowBlock, TraceCallback, check_storage,
};
use kvark::cache::{CacheConfig, CellRun, Compaction, GatherPlan, KvError, Side};
use kvark::generate::Sequence;
use kvark::graph::Graph;
use kvark::inference::Value;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Which call of the backend fails: the target's forwards and the draft's count alike.
#[derive(Default)]
struct FaultPlan {
    calls: AtomicUsize,
    /// The number of the call that fails; 0 for none.
    fails: AtomicUsize,
    /// Fail after the work was done and not before it.
    late: AtomicBool,
}

impl FaultPlan {
    fn arm(&self, call: usize, late: bool) {
        self.calls.store(0, Ordering::Relaxed);
        self.fails.store(call, Ordering::Relaxed);
        self.late.store(late, Ordering::Relaxed);
    }

    /// Does one piece of work, or fails.
    fn guard<T>(&self, work: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
        let call = 1 + self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = || BackendErrorKind::Node {
            node: "injected".to_owned(),
            op: "fault",
            reason: format!("call {call}"),
        };
        if call != self.fails.load(Ordering::Relaxed) {
            return work();
        }
        if self.late.load(Ordering::Relaxed) {
            work()?;
        }
        Err(fault().into())
    }
}

/// The CPU backend with faults.
struct Faulty {
    cpu: Cpu,
    plan: Arc<FaultPlan>,
}

const ID: &str = "faulty";

impl Faulty {
    fn new() -> Faulty {
        let cpu = Cpu::new().unwrap();
        let plan = Arc::default();
        Faulty { cpu, plan }
    }
}

impl Backend for Faulty {
    fn id(&self) -> &'static str {
        ID
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        Ok(Box::new(FaultyExecutable {
            inner: self.cpu.compile(graph, options)?,
            plan: self.plan.clone(),
        }))
    }

    fn new_kv(&self, config: &CacheConfig) -> Result<Box<dyn KvBytes>, KvError> {
        Ok(Box::new(FaultyKv(self.cpu.new_kv(config)?)))
    }
}

struct FaultyExecutable {
    inner: Box<dyn Executable>,
    plan: Arc<FaultPlan>,
}

impl Executable for FaultyExecutable {
    fn takes(&self, bytes: &dyn KvBytes) -> Result<(), BackendError> {
        check_storage::<FaultyKv>(bytes)
    }

    fn run(
        &mut self,
        inputs: &[Value],
        cache: Option<CacheStep<'_>>,
        _: Option<TraceCallback<'_>>,
    ) -> Result<Vec<Value>, BackendError> {
        let cache = cache.map(CacheStep::downcast::<FaultyKv>).transpose()?;
        let cache = cache.map(|step| CacheStep {
            plan: step.plan,
            bytes: &mut *step.bytes.0,
        });
        self.plan.guard(|| self.inner.run(inputs, cache, None))
    }

    fn arena_bytes(&self) -> usize {
        0
    }
}

/// The CPU's bytes.
struct FaultyKv(Box<dyn KvBytes>);

impl KvBytes for FaultyKv {
    fn config(&self) -> &CacheConfig {
        self.0.config()
    }

    fn resident_bytes(&self) -> usize {
        self.0.resident_bytes()
    }

    fn gather(&mut self, gather: &GatherPlan) -> Result<(), KvError> {
        self.0.gather(gather)
    }

    fn reorder(&mut self, order: &Compaction) -> Result<(), KvError> {
        self.0.reorder(order)
    }

    fn read_rows(
        &self,
        layer: usize,
        side: Side,
        runs: &[CellRun],
        out: &mut [u8],
    ) -> Result<(), KvError> {
        self.0.read_rows(layer, side, runs, out)
    }

    fn write_rows(&mut self, blocks: &[RowBlock<'_>]) -> Result<(), KvError> {
        self.0.write_rows(blocks)
    }

    fn freeze(&mut self, cells: &[u32]) -> Result<Arc<dyn FrozenKv>, KvError> {
        self.0.freeze(cells)
    }
}

/// Fails every call of a generation in turn, before and after its work, and goes on with the same runner and speculator.
fn check_faults(model: &Model, draft: &Model, kind: SpecType, exact: bool) {
    const COUNT: usize = 16;
    let options = runner_options(64);
    let prompt = prompt(model, 4);
    let expected = plain(
        model,
        &prompt,
        &greedy(),
        &tokens(COUNT + 8),
        &options,
        None,
    );
    let full = [&prompt[..], &expected.tokens].concat();
    let spec = &shapes(kind)[1];
    for late in [false, true] {
        let mut call = 0;
        loop {
            call += 1;
            let faulty = Faulty::new();
            let drafter = Drafter::new(draft, model, &faulty, &options, 1).unwrap();
            let mut runner = BatchRunner::with_trees(model, &faulty, &options, 1, 0, 12).unwrap();
            let costs = VerifyCosts::default();
            let mut speculator = Speculator::new(spec, &costs, Some(&drafter)).unwrap();
            let mut sampler = Sampler::new(greedy());
            faulty.plan.arm(call, late);
            let mut text = 0;
            let both = (&mut sampler, &mut speculator);
            let first =
                runner.generate_speculative(model, 0, &prompt, both, &tokens(COUNT), |event| {
                    text += usize::from(matches!(event, kvark::generate::GenerateEvent::Text(_)));
                    true
                });
            faulty.plan.arm(0, false);
            if let Ok(found) = first {
                assert_eq!(found.tokens, expected.tokens[..COUNT]);
                assert!(call > 6, "the calls of {kind:?} were counted: {call}");
                break;
            }
            // The target holds a prefix of the text, and its pool holds nothing else.
            let held = runner.tokens(0).to_vec();
            assert_eq!(held, full[..held.len()], "call {call}, late: {late}");
            assert!(!runner.has_candidates(0), "call {call}, late: {late}");
            let fed = held.len() - usize::from(runner.is_pending(0));
            assert_eq!(runner.cells_used().unwrap(), fed);
            // A round that failed gave no token that the sequence lacks.
            assert!(text <= held.len().saturating_sub(prompt.len()));
            let before = speculator.stats().clone();
            let next = &full[held.len()..prompt.len().max(held.len())];
            let both = (&mut sampler, &mut speculator);
            let found = runner
                .generate_speculative(model, 0, next, both, &tokens(6), |_| true)
                .unwrap();
            let from = held.len() + next.len();
            assert_eq!(
                found.tokens,
                full[from..from + 6],
                "call {call}, late: {late}"
            );
            // The draft went on with the same text: a model proposes what it would choose itself.
            let stats = speculator.stats();
            if exact {
                let accepted = stats.accepted - before.accepted;
                assert!(accepted > 0);
                assert_eq!(
                    accepted,
                    stats.drafted - before.drafted,
                    "call {call}, late: {late}"
                );
            }
        }
    }
}

#[test]
fn a_fault_leaves_both_caches_with_the_same_text() {
    let model = fixture("llama_plain");
    check_faults(&model, &model, SpecType::Draft, true);
    let (model, head) = heads::exported("midlayer");
    check_faults(&model, &head, SpecType::Eagle3, false);
    // The model's states are part of the transaction.
    let (model, head) = mtp::carried("qwen35_mtp");
    check_faults(&model, &head, SpecType::Mtp, false);
    let (model, head) = assistant::pair(assistant::PAIRS[0]);
    check_faults(&model, &head, SpecType::Mtp, false);
}

/// A forward that fails for several sequences is run again for each of them.
#[test]
fn a_fault_of_a_forward_for_all_ends_no_sequence() {
    let model = fixture("llama_plain");
    let (options, spec) = (runner_options(64), &shapes(SpecType::Draft)[1]);
    let pool = RunnerOptions {
        pool_cells: Some(128),
        max_step_tokens: 64,
        ..options.clone()
    };
    let prompts = [prompt(&model, 4), prompt(&model, 5)];
    for call in 1..=12 {
        let faulty = Faulty::new();
        let drafter = Drafter::new(&model, &model, &faulty, &pool, 2).unwrap();
        let mut runner = BatchRunner::with_trees(&model, &faulty, &pool, 2, 0, 12).unwrap();
        let sequences = (0..).zip(&prompts).map(|(seq, prompt)| {
            let costs = VerifyCosts::default();
            let speculator = Speculator::new(spec, &costs, Some(&drafter)).unwrap();
            let sampler = Sampler::new(greedy());
            Sequence::new(seq, &prompt[..], sampler, &tokens(16)).with_speculator(Some(speculator))
        });
        faulty.plan.arm(call, call % 2 == 0);
        let found = runner.generate(&model, sequences.collect(), |_, _| true);
        assert!(faulty.plan.calls.load(Ordering::Relaxed) > call);
        for (prompt, found) in prompts.iter().zip(found.unwrap()) {
            let expected = plain(&model, prompt, &greedy(), &tokens(16), &options, None);
            assert_eq!(found.tokens, expected.tokens, "call {call}");
        }
    }
}
