//! Run modes on whole models: every mode gives the same bits for prefill, decode, mixed steps and trees, on every tier of
//! the CPU, and many sequences record no more tapes than there are descriptors.

mod common;

use common::named_by;
use kvark::backend::{CompileOptions, Isa, Precision, RunMode};
use kvark::cache::{CacheConfig, KvStorage, Role, Step, StepToken, make_tree_session};
use kvark::generate::BatchToken;
use kvark::inference::{LogitsMode, ModuleOptions, StepOptions, StepOutputs};
use kvark::memory::MemoryLimit;
use kvark::{BatchRunner, Cpu, Model, Module, Runner, RunnerOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

struct Counting;

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(p, layout, size) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn tiny() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    folder.join("llama_plain.gguf")
}

/// A tiny model, and the real one if it is present.
fn models() -> Vec<Model> {
    let real = named_by("KVARK_TEST_MODEL");
    let paths = [tiny()].into_iter().chain(real);
    paths
        .map(|path| Model::open(&path, None).unwrap())
        .collect()
}

fn runner_options(sequences: usize) -> RunnerOptions {
    RunnerOptions {
        max_step_tokens: 128,
        key_storage: KvStorage::F16,
        value_storage: KvStorage::F16,
        max_logit_rows: sequences,
        memory: MemoryLimit::None,
        compile: CompileOptions {
            threads: Some(2),
            ..CompileOptions::default()
        },
        ..RunnerOptions::default()
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(!logits.is_empty());
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Token `i` of a sequence.
fn id(model: &Model, seq: u32, i: u32) -> u32 {
    (seq * 31 + i).wrapping_mul(2_654_435_761) % model.facts().vocab_size as u32
}

/// The logits of a prefill, decodes and mixed steps.
fn branches_script(model: &Model, branches: &mut BatchRunner) -> Vec<Vec<u32>> {
    let token = |seq: u32, i: u32, logits: bool| BatchToken {
        seq,
        id: id(model, seq, i),
        logits,
    };
    let part = |seq: u32, from: u32, to: u32| (from..to).map(move |i| token(seq, i, i + 1 == to));
    let mut found = vec![];
    let mut step = |tokens: Vec<BatchToken>| {
        branches.step(&tokens).unwrap();
        for last in tokens.iter().filter(|token| token.logits) {
            found.push(bits(branches.logits(last.seq)));
        }
    };
    step(part(0, 0, 19).collect());
    step(part(0, 19, 20).collect());
    step(
        part(0, 20, 21)
            .chain(part(1, 0, 9))
            .chain(part(2, 0, 3))
            .collect(),
    );
    step(
        (0..3)
            .flat_map(|b| part(b, [21, 9, 3][b as usize], [22, 10, 4][b as usize]))
            .collect(),
    );
    step(part(3, 0, 17).chain(part(1, 10, 11)).collect());
    step(
        (0..4)
            .flat_map(|b| part(b, [22, 11, 4, 17][b as usize], [23, 12, 5, 18][b as usize]))
            .collect(),
    );
    for seq in 0..4 {
        branches.remove(seq).unwrap();
    }
    found
}

/// The logits of a prefix, of a tree of candidates, and of the tokens after an accepted path.
fn tree_script(model: &Model, cpu: &Cpu, mode: RunMode) -> Vec<Vec<u32>> {
    let mut config = CacheConfig::new(64, model.facts().caches.clone());
    (config.key_storage, config.value_storage) = (KvStorage::F16, KvStorage::F16);
    let (session, backend) = make_tree_session("cpu", &config).unwrap();
    let options = ModuleOptions {
        backend,
        compile: runner_options(1).compile,
    };
    let mut module = Module::from_artifact(model.artifact(), cpu, &options).unwrap();
    let forward = module.method("forward").unwrap();
    let forward = module.runnable(forward);
    let steps = StepOptions {
        mode,
        max_sequences: 1,
        max_query_len: 1,
        max_tokens: 64,
        max_rows: 8,
        record_all: false,
    };
    forward.prepare(&steps).unwrap();
    let mut outputs = StepOutputs::new(LogitsMode::Logits);
    let mut found = vec![];
    let mut run = |step: &Step| {
        forward.run_step(step, &mut outputs).unwrap();
        found.extend((0..outputs.rows()).map(|row| bits(outputs.logits(row))));
    };
    let ids: Vec<u32> = (0..7).map(|i| id(model, 5, i)).collect();
    let mut prompt = Step::sequence(&ids, 0);
    prompt.want_last();
    run(&prompt);
    let mut tree = Step::default();
    for (i, (parent, depth)) in [
        (None, 0),
        (None, 0),
        (Some(1), 1),
        (Some(1), 1),
        (Some(3), 2),
    ]
    .into_iter()
    .enumerate()
    {
        let row = tree.push(StepToken {
            id: id(model, 6, i as u32),
            position: 7 + depth,
            seq: 0,
            role: Role::Candidate { parent },
        });
        tree.want(row);
    }
    run(&tree);
    session.accept(&[1, 3, 4]).unwrap();
    let mut next = Step::sequence(&[id(model, 7, 0)], 10);
    next.want_last();
    run(&next);
    found
}

#[test]
fn every_mode_gives_the_same_bits_on_every_tier() {
    for model in models() {
        for isa in Isa::available() {
            let cpu = Cpu::with_isa(isa);
            // One module for all modes: they share weights, arena and cache.
            let mut branches = BatchRunner::new(&model, &cpu, &runner_options(4)).unwrap();
            let mut expect = None;
            for mode in RunMode::ALL {
                branches.set_run_mode(mode).unwrap();
                assert_eq!(branches.run_mode(), mode);
                let found = branches_script(&model, &mut branches);
                let expect = expect.get_or_insert_with(|| found.clone());
                assert!(found == *expect, "{isa}, {mode}");
            }
            let expect = tree_script(&model, &cpu, RunMode::None);
            for mode in [RunMode::Piecewise, RunMode::Full] {
                assert!(
                    tree_script(&model, &cpu, mode) == expect,
                    "{isa}, {mode}: the tree"
                );
            }
        }
    }
}

#[test]
fn a_prompt_has_the_same_bits_in_any_chunks_and_mode() {
    for model in models() {
        let ids: Vec<u32> = (0..50).map(|i| id(&model, 1, i)).collect();
        // In fast precision bits depend on the size of the step.
        for precision in [Precision::High, Precision::Balanced] {
            let mut options = runner_options(1);
            options.compile.precision = precision;
            let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &options).unwrap();
            let mut expect = None;
            for mode in RunMode::ALL {
                runner.set_run_mode(mode).unwrap();
                for chunk in [50, 23, 7, 3, 1] {
                    runner.rewind(0).unwrap();
                    for ids in ids.chunks(chunk) {
                        runner.feed(ids, |_| true).unwrap();
                    }
                    let found = bits(runner.logits());
                    let expect = expect.get_or_insert_with(|| found.clone());
                    assert!(found == *expect, "{precision:?}, {mode}, chunks of {chunk}");
                }
            }
        }
    }
}

#[test]
fn many_sequences_record_few_tapes_and_steady_decode_allocates_nothing() {
    const SEQUENCES: u32 = 64;
    const BUDGET: usize = 128;
    let model = Model::open(&tiny(), None).unwrap();
    let runner_options = RunnerOptions {
        context: Some(64 * 60),
        compile: CompileOptions {
            threads: Some(1),
            ..CompileOptions::default()
        },
        ..runner_options(SEQUENCES as usize)
    };
    let mut branches = BatchRunner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
    let mut noise = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |n: u32| {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        (noise >> 33) as u32 % n
    };
    // Per sequence, the number of prompt tokens to feed and of tokens to decode after them.
    let mut left = vec![(0u32, 0u32); SEQUENCES as usize];
    let mut step = Vec::with_capacity(BUDGET);
    for _ in 0..2_000 {
        step.clear();
        for seq in 0..SEQUENCES {
            let (prompt, decodes) = &mut left[seq as usize];
            let held = branches.tokens(seq).len() as u32;
            if *prompt + *decodes == 0 {
                if held > 0 {
                    branches.remove(seq).unwrap();
                }
                if below(12) == 0 {
                    (*prompt, *decodes) = (1 + below(30), 1 + below(25));
                }
                continue;
            }
            let room = BUDGET - step.len();
            let now = (*prompt).max(1).min(room as u32);
            for i in 0..now {
                step.push(BatchToken {
                    seq,
                    id: id(&model, seq, held + i) % model.facts().vocab_size as u32,
                    logits: i + 1 == now && *prompt <= now,
                });
            }
            match *prompt {
                0 => *decodes -= now.min(1),
                _ => *prompt -= now,
            }
        }
        if !step.is_empty() {
            branches.step(&step).unwrap();
        }
    }
    let (captures, descriptors) = branches.captures();
    assert!(
        captures > 20,
        "{captures} recordings: the steps were not mixed"
    );
    assert!(
        captures <= descriptors,
        "{captures} recordings of {descriptors} descriptors"
    );

    for seq in 0..SEQUENCES {
        branches.remove(seq).unwrap();
    }
    let decode = |i: u32| -> Vec<BatchToken> {
        let token = |seq| BatchToken {
            seq,
            id: id(&model, seq, i),
            logits: true,
        };
        (0..SEQUENCES).map(token).collect()
    };
    let steps: Vec<Vec<BatchToken>> = (0..40).map(decode).collect();
    let (warm, steady) = steps.split_at(34);
    warm.iter().for_each(|step| branches.step(step).unwrap());
    let before = ALLOCATIONS.get();
    steady.iter().for_each(|step| branches.step(step).unwrap());
    assert_eq!(
        ALLOCATIONS.get() - before,
        0,
        "allocations of {} decodes",
        steady.len()
    );
}
