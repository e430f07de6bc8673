//! Memory plans against the memory in use: on tiny models as runners report it, and on the models that `KVARK_TEST_MODEL` and
//! `KVARK_TEST_WINDOWED_MODEL` name as the operating system reports it.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "children report")]

mod common;

use common::named_by;
use kvark::cache::KvStorage;
use kvark::memory::{CacheKind, MemoryLimit, MemoryPlan, PlannedModel};
use kvark::{BatchRunner, Cpu, Model, Runner, RunnerOptions, RuntimeErrorKind};
use std::path::Path;
use std::process::Command;

const TYPES: [&str; 4] = ["f32", "f16", "q8", "q4"];

fn tiny(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/decoder");
    Model::open(&folder.join(format!("{name}.gguf")), None).unwrap()
}

fn runner_options(context: usize, storage: &str) -> RunnerOptions {
    let storage = KvStorage::from_name(storage).unwrap();
    RunnerOptions {
        context: Some(context),
        max_step_tokens: context.min(128),
        key_storage: storage,
        value_storage: storage,
        ..RunnerOptions::default()
    }
}

fn plan(model: &Model, runner_options: &RunnerOptions, kind: CacheKind) -> MemoryPlan {
    let planned = PlannedModel::try_from(model.artifact()).unwrap();
    MemoryPlan::new(&planned, &Cpu::new().unwrap(), runner_options, kind, None).unwrap()
}

fn tokens(model: &Model, n: usize) -> Vec<u32> {
    let vocab = model.facts().vocab_size as u32;
    (0..n as u32)
        .map(|i| (i + 1).wrapping_mul(2_654_435_761) % vocab)
        .collect()
}

#[test]
fn runners_hold_what_their_plan_says() {
    for name in ["llama_plain", "gemma3", "gemma2", "mistral"] {
        let model = tiny(name);
        for (context, storage) in [40, 300, 700].iter().flat_map(|c| TYPES.map(|t| (*c, t))) {
            let runner_options = RunnerOptions {
                max_step_tokens: 33,
                ..runner_options(context, storage)
            };
            let plan = plan(&model, &runner_options, CacheKind::Contiguous);
            let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
            let tokens = tokens(&model, context);
            for (at, token) in tokens.chunks(50).enumerate() {
                runner.feed(token, |_| true).unwrap();
                let fed = at * 50 + token.len();
                let memory = runner.memory().unwrap();
                assert_eq!(
                    memory.kv,
                    plan.kv_bytes_at(fed),
                    "{name} {storage} at {fed}"
                );
                assert_eq!(memory.arena, plan.arena.bytes, "{name} {storage} at {fed}");
            }
            let memory = runner.memory().unwrap();
            assert_eq!(memory.kv, plan.kv_bytes(), "{name} {storage}");
            assert_eq!(memory.packed, plan.packed_bytes(), "{name} {storage}");
            assert_eq!(memory.weights, plan.weights_bytes(), "{name} {storage}");
        }
    }
}

#[test]
fn hybrids_hold_what_their_plan_says() {
    for name in ["lfm2", "qwen35", "granitehybrid", "mamba2"] {
        let model = tiny(name);
        let kind = CacheKind::of_one_sequence(model.facts());
        let options = RunnerOptions {
            state_interval: 16,
            ..runner_options(300, "f16")
        };
        let one = plan(&model, &options, kind).cache.state_bytes();
        let options = RunnerOptions {
            state_bytes: 6 * one,
            ..options
        };
        let plan = plan(&model, &options, kind);
        let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &options).unwrap();
        for tokens in tokens(&model, 300).chunks(50) {
            runner.feed(tokens, |_| true).unwrap();
            let held = runner.memory().unwrap().kv;
            assert!(held <= plan.kv_bytes(), "{name}: {held} are held");
        }
        let memory = runner.memory().unwrap();
        // 300 tokens pass more regular positions than there are snapshots.
        assert_eq!(memory.kv, plan.kv_bytes(), "{name}");
        assert_eq!(memory.arena, plan.arena.bytes, "{name}");
        assert_eq!(memory.weights, plan.weights_bytes(), "{name}");
    }
}

#[test]
fn branches_hold_what_their_plan_says() {
    let model = tiny("gemma3");
    let runner_options = RunnerOptions {
        max_step_tokens: 16,
        max_logit_rows: 3,
        ..runner_options(600, "f16")
    };
    let plan = plan(&model, &runner_options, CacheKind::Cells { sequences: 3 });
    let mut branches = BatchRunner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
    let all = tokens(&model, 300);
    branches.sequence(0).feed(&all, &mut |_| true).unwrap();
    branches.fork(0, 1).unwrap();
    branches.fork(0, 2).unwrap();
    for i in 0..100 {
        let step = [0, 1, 2].map(|seq| kvark::generate::BatchToken {
            seq,
            id: all[i * (seq as usize + 1) % 300],
            logits: true,
        });
        branches.step(&step).unwrap();
    }
    let memory = branches.memory().unwrap();
    assert_eq!(memory.arena, plan.arena.bytes);
    assert_eq!(memory.kv, plan.kv_bytes(), "600 tokens fill the context");
    // A rewind below the floor is refused, and the error names the floor.
    let error = branches.rewind(1, 10).unwrap_err();
    assert!(
        matches!(error.kind(), RuntimeErrorKind::Cache(_)),
        "{error}"
    );
    assert_eq!(branches.tokens(1).len(), 400, "and nothing is lost");
    branches.rewind(1, 390).unwrap();
}

#[test]
fn a_run_that_does_not_fit_is_refused_before_it_is_loaded() {
    let model = tiny("llama_plain");
    let refused = |memory| {
        let runner_options = RunnerOptions {
            memory,
            ..runner_options(4096, "f32")
        };
        Runner::new(&model, &Cpu::new().unwrap(), &runner_options).err()
    };
    let total =
        plan(&model, &runner_options(4096, "f32"), CacheKind::Contiguous).total_bytes() as u64;
    let error = refused(MemoryLimit::Bytes(total - 1)).unwrap();
    let RuntimeErrorKind::MemoryShortfall(shortfall) = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((shortfall.needed, shortfall.limit), (total, total - 1));
    assert!(refused(MemoryLimit::Bytes(total)).is_none());
}

/// A run that holds half of its experts has the logits of a run that holds all, and the memory of its plan. A limit below the whole model
/// chooses a budget.
#[test]
fn experts_are_held_within_a_budget() {
    let folder = std::env::temp_dir().join(format!("kvark-budget-{}", std::process::id()));
    for name in ["mixtral", "qwen3moe", "gpt_oss", "qwen35moe"] {
        let model = tiny(name);
        let kind = CacheKind::of_one_sequence(model.facts());
        let logits = |options: &RunnerOptions| {
            let mut runner = Runner::new(&model, &Cpu::new().unwrap(), options).unwrap();
            let mut rows: Vec<Vec<u32>> = Vec::new();
            for token in tokens(&model, 24).chunks(5) {
                runner.feed(token, |_| true).unwrap();
                rows.push(runner.logits().iter().map(|x| x.to_bits()).collect());
            }
            (rows, runner.memory().unwrap().packed)
        };
        let mut options = runner_options(40, "f16");
        options.state_bytes = 0;
        let (expected, _) = logits(&options);
        options.compile.packed_folder = Some(folder.clone());
        let whole = plan(&model, &options, kind);
        let experts = whole.experts.unwrap();
        assert_eq!((experts.held, whole.expert_bytes()), (None, 0), "{name}");
        options.compile.expert_budget = Some((experts.all / 2).max(experts.minimum));
        let half = plan(&model, &options, kind);
        let held = half.experts.unwrap().held.unwrap();
        assert!(held <= experts.all / 2 || held == experts.minimum, "{name}");
        assert!(half.total_bytes() < whole.total_bytes(), "{name}");
        assert_eq!(logits(&options), (expected, half.packed_bytes()), "{name}");

        options.compile.expert_budget = None;
        let limit = (half.total_bytes() + experts.all / 16) as u64;
        options.memory = MemoryLimit::Bytes(limit.min(whole.total_bytes() as u64 - 1));
        let chosen = plan(&model, &options, kind);
        let held = chosen.experts.unwrap().held.unwrap();
        assert!(chosen.total_bytes() as u64 <= limit, "{name}");
        assert_eq!(chosen.expert_bytes(), held, "{name}");
        assert_eq!(logits(&options).1, chosen.packed_bytes(), "{name}");
        options.memory = MemoryLimit::Bytes(1);
        let error = BatchRunner::new(&model, &Cpu::new().unwrap(), &options).err();
        let kind = error.map(|error| error.to_string()).unwrap();
        assert!(kind.contains("of memory"), "{name}: {kind}");
    }
    _ = std::fs::remove_dir_all(&folder);
}

const CHILD: &str = "KVARK_MEMORY_CHILD";

/// The private memory of this process, all that is resident of it, and what is resident of files in huge pages, as the operating
/// system reports it, in bytes.
fn resident() -> [u64; 3] {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    ["Anonymous:", "Rss:", "FilePmdMapped:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.unwrap().trim().trim_end_matches(" kB");
        number.trim().parse::<u64>().unwrap() * 1024
    })
}

/// Fills the context and reports the memory in use. Runs in a process of its own, so that it cannot reuse freed memory of
/// another run.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD) else {
        return;
    };
    let [path, context, storage, folder] = &order.split('|').collect::<Vec<_>>()[..] else {
        panic!("{order}")
    };
    let model = Model::open(Path::new(path), None).unwrap();
    let mut runner_options = runner_options(context.parse().unwrap(), storage);
    runner_options.compile.packed_folder = (!folder.is_empty()).then(|| folder.into());
    // The tokenizer is built in the background: its memory belongs to the model, and is there before the session.
    model.tokenizer().unwrap();
    // Memory that was freed while the model was opened would be reused and not be counted: small allocations use it up.
    let filler: Vec<Vec<u8>> = (0..32 * 1024).map(|_| vec![1; 1000]).collect();
    let before = resident();
    let mut runner = Runner::new(&model, &Cpu::new().unwrap(), &runner_options).unwrap();
    let tokens = tokens(&model, runner_options.context.unwrap());
    runner.feed(&tokens, |_| true).unwrap();
    let after = resident();
    drop(std::hint::black_box(filler));
    let memory = runner.memory().unwrap();
    println!(
        "\nREPORT {} {} {} {} {} {}",
        after[0] - before[0],
        after[1] - before[1],
        after[2],
        memory.kv,
        memory.arena,
        memory.packed
    );
}

/// Anonymous memory and all resident memory of a child since before its session, its file pages that are huge, its keys and values,
/// arena and packed weights.
/// Packed weights are mapped from a file in the folder, if one is named and has it.
fn measured(path: &Path, context: usize, storage: &str, folder: &str) -> [u64; 6] {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(
            CHILD,
            format!("{}|{context}|{storage}|{folder}", path.display()),
        )
        // Make the C library map large allocations one by one, so that freed ones are returned to the system.
        .env("MALLOC_MMAP_THRESHOLD_", "8192")
        .env("MALLOC_TRIM_THRESHOLD_", "0")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report = text.lines().find_map(|line| line.strip_prefix("REPORT "));
    let report = report.unwrap_or_else(|| panic!("{text}"));
    let numbers: Vec<u64> = report.split(' ').map(|n| n.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn the_system_counts_what_the_plan_says() {
    for variable in ["KVARK_TEST_MODEL", "KVARK_TEST_WINDOWED_MODEL"] {
        let Some(path) = named_by(variable) else {
            continue;
        };
        let model = Model::open(&path, None).unwrap();
        for (context, storage) in [256, 700, 1024].iter().flat_map(|c| TYPES.map(|t| (*c, t))) {
            let plan = plan(
                &model,
                &runner_options(context, storage),
                CacheKind::Contiguous,
            );
            let [anonymous, _, _, kv, arena, packed] = measured(&path, context, storage, "");
            assert_eq!(kv, plan.kv_bytes() as u64);
            assert_eq!(arena, plan.arena.bytes as u64);
            assert_eq!(packed, plan.packed_bytes() as u64);
            let planned = (plan.total_bytes() - plan.resident_weights_bytes()) as u64;
            eprintln!(
                "| {} | {context} | {storage} | {} | {} | {planned} | {anonymous} | {:+.2} % |",
                path.file_stem().unwrap().display(),
                plan.kv_bytes(),
                plan.arena.bytes,
                (anonymous as f64 / planned as f64 - 1.0) * 100.0
            );
            // The graph, the tape, stacks and the allocator's free lists are not planned: 2.9 MB were measured.
            let apart = anonymous.abs_diff(planned).saturating_sub(3 << 20);
            assert!(
                apart * 100 <= planned,
                "{anonymous} measured, {planned} planned"
            );
        }
    }
}

/// All that is resident, file pages included, is the plan's total: with packed weights in memory, and mapped from their file.
#[test]
#[cfg(target_os = "linux")]
fn packed_weights_are_resident_once() {
    for variable in [
        "KVARK_TEST_MODEL",
        "KVARK_TEST_WINDOWED_MODEL",
        "KVARK_TEST_LARGE_MODEL",
    ] {
        let Some(path) = named_by(variable) else {
            continue;
        };
        let folder = std::env::temp_dir().join(format!("kvark-resident-{}", std::process::id()));
        let packed_folder = folder.to_str().unwrap();
        let model = Model::open(&path, None).unwrap();
        let context = 1024;
        let plan = plan(
            &model,
            &runner_options(context, "f16"),
            CacheKind::Contiguous,
        );
        let planned = plan.total_bytes() as u64;
        assert!(plan.resident_weights_bytes() * 10 < plan.weights_bytes());
        // The writer of the packed file holds a buffer while it writes, so its run is not measured.
        let states = ["", packed_folder, packed_folder].map(|folder| {
            let [anonymous, resident, huge, ..] = measured(&path, context, "f16", folder);
            (anonymous, resident, huge)
        });
        let written = std::fs::read_dir(&folder).map_or(0, |files| files.count());
        _ = std::fs::remove_dir_all(&folder);
        let [in_memory, _, mapped] = states;
        for (state, (anonymous, resident, huge)) in [("in memory", in_memory), ("mapped", mapped)] {
            eprintln!(
                "| {} | packed weights {state} | {planned} | {resident} | {anonymous} | {:+.2} % |",
                path.file_stem().unwrap().display(),
                (resident as f64 / planned as f64 - 1.0) * 100.0
            );
            // A file that the system has cached in huge pages is mapped 2 MiB at a time: a norm's weight then brings its neighbours.
            if huge > 0 {
                continue;
            }
            // Pages of the program and of the graph, and pages around gathered rows, are not planned.
            let apart = resident.abs_diff(planned).saturating_sub(10 << 20);
            assert!(
                apart * 50 <= planned,
                "{resident} resident, {planned} planned, {state}"
            );
        }
        // A disk without room has no packed file; then both are the same.
        assert!(written == 0 || mapped.0 + plan.packed_bytes() as u64 / 2 < in_memory.0);
    }
}

/// A sequence of more than twice the window gives the same bits in steps of every size and on a fork.
#[test]
fn windows_of_a_real_model_change_no_bit() {
    let Some(path) = named_by("KVARK_TEST_WINDOWED_MODEL") else {
        return;
    };
    let model = Model::open(&path, None).unwrap();
    let cpu = Cpu::new().unwrap();
    let all = tokens(&model, 1100);
    let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let in_steps_of = |batch: usize, rings: bool| {
        let runner_options = RunnerOptions {
            context: Some(1200),
            max_step_tokens: batch,
            ring_layers: rings,
            ..RunnerOptions::default()
        };
        let mut runner = Runner::new(&model, &cpu, &runner_options).unwrap();
        runner.feed(&all, |_| true).unwrap();
        let held = runner.memory().unwrap().kv;
        assert!(held <= plan(&model, &runner_options, CacheKind::Contiguous).kv_bytes());
        (bits(runner.logits()), held)
    };
    let (expected, full) = in_steps_of(512, false);
    for batch in [1, 64, 512, 1100] {
        let (found, held) = in_steps_of(batch, true);
        assert!(found == expected, "steps of {batch}");
        assert!(batch > 600 || held < full, "{held} bytes of {full}");
    }
    let runner_options = RunnerOptions {
        context: Some(2400),
        max_step_tokens: 64,
        ..RunnerOptions::default()
    };
    let mut branches = BatchRunner::new(&model, &cpu, &runner_options).unwrap();
    branches
        .sequence(0)
        .feed(&all[..700], &mut |_| true)
        .unwrap();
    branches.fork(0, 1).unwrap();
    for (id, step) in [(1, 64), (0, 37)] {
        for tokens in all[700..].chunks(step) {
            branches.sequence(id).feed(tokens, &mut |_| true).unwrap();
        }
    }
    for id in [0, 1] {
        assert!(bits(branches.logits(id)) == expected, "branch {id}");
    }
    let two = plan(&model, &runner_options, CacheKind::Cells { sequences: 2 });
    assert!(branches.memory().unwrap().kv <= two.kv_bytes());
}
