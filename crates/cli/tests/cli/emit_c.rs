//! `kvark emit-c`: the C programs compute the same bits as kvark's generic tier.

mod encoders;
mod memory;
mod state;
mod tokenizer;

use crate::support::Folder;
use kvark::RunnerOptions;
use kvark::backend::{CompileOptions, Cpu, Isa};
use kvark::cache::KvStorage;
use kvark::{Model, Runner};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DRIVER: &str = include_str!("../../../emit/tests/driver.c");

/// A C compiler by its name, if there is one; `None` with a note otherwise.
fn compiler(name: &str) -> Option<&str> {
    let found = Command::new(name).arg("--version").output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(name);
    }
    let _ = writeln!(std::io::stderr(), "skipped: there is no C compiler {name}");
    None
}

/// A program to emit and what it is compared with.
struct Case<'a> {
    model: &'a Path,
    context: usize,
    step: usize,
    storage: KvStorage,
    /// More arguments.
    more: &'a [&'a str],
}

impl Case<'_> {
    fn emit(&self, folder: &Folder, name: &str) -> PathBuf {
        let target = folder.path(name);
        let (context, step) = (self.context.to_string(), self.step.to_string());
        let storage = self.storage.name();
        let output = target.to_str().unwrap();
        let model = self.model.to_str().unwrap();
        let mut args = vec!["emit-c", model, "-o", output, "-c", &context, "-b", &step];
        args.extend(["--cache-type-k", storage, "--cache-type-v", storage]);
        args.extend(self.more);
        folder.run(&args).ok();
        target
    }

    fn runner(&self) -> (Model, Runner) {
        let model = Model::open(self.model, Some(self.context)).unwrap();
        let options = RunnerOptions {
            context: Some(self.context),
            max_step_tokens: self.step,
            key_storage: self.storage,
            value_storage: self.storage,
            compile: CompileOptions {
                threads: Some(1),
                ..CompileOptions::default()
            },
            ..RunnerOptions::default()
        };
        let runner = Runner::new(&model, &Cpu::with_isa(Isa::GENERIC), &options).unwrap();
        (model, runner)
    }
}

fn decoder_fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../import/tests/fixtures/decoder")
        .join(name)
}

/// Compiles an emitted program with the driver.
#[track_caller]
fn compile(folder: &Path, compiler: &str, flags: &[&str]) -> PathBuf {
    std::fs::write(folder.join("driver.c"), DRIVER).unwrap();
    let program = folder.join(format!("driver-{compiler}{}", flags.join("")));
    let fixed = [
        "-std=c11",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
        "-Werror",
    ];
    let output = Command::new(compiler)
        .current_dir(folder)
        .args(flags)
        .args(fixed)
        .args(["driver.c", "model.c", "kernels.c", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

/// A command of the driver.
#[derive(Clone, Debug)]
enum Act {
    Feed(Vec<u32>),
    Rewind(usize),
    Kv(bool),
    /// Stop steps behind this node; behind none if it is negative.
    Stop(i32),
    Reset,
}

/// Runs acts on a compiled program; the result of each, and the logits after feeds.
#[track_caller]
fn drive(program: &Path, acts: &[Act], vocab: usize) -> Vec<(i32, Vec<u32>)> {
    let mut script = String::new();
    for act in acts {
        match act {
            Act::Feed(ids) => {
                let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                script += &format!("p {} {}\n", ids.len(), ids.join(" "));
            }
            Act::Rewind(keep) => script += &format!("r {keep}\n"),
            Act::Kv(on) => script += &format!("k {}\n", u8::from(*on)),
            Act::Stop(node) => script += &format!("s {node}\n"),
            Act::Reset => script += "z\n",
        }
    }
    let mut child = Command::new(program)
        .current_dir(program.parent().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(script.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{:?}: {said}",
        output.status
    );
    let mut words = output
        .stdout
        .as_chunks::<4>()
        .0
        .iter()
        .map(|four| u32::from_le_bytes(*four));
    let mut results = Vec::new();
    for act in acts {
        let code = words.next().expect("a result for every act") as i32;
        let logits = match act {
            Act::Feed(_) if code == 0 => words.by_ref().take(vocab).collect(),
            _ => vec![],
        };
        results.push((code, logits));
    }
    assert_eq!(words.next(), None);
    results
}

/// The logits of the same acts by kvark's generic tier.
fn expected(runner: &mut Runner, acts: &[Act]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for act in acts {
        let mut logits = vec![];
        match act {
            Act::Feed(ids) => {
                runner.feed(ids, |_| true).unwrap();
                logits = runner.logits().iter().map(|x| x.to_bits()).collect();
            }
            Act::Rewind(keep) => _ = runner.rewind(*keep).unwrap(),
            Act::Kv(_) | Act::Stop(_) => {}
            Act::Reset => _ = runner.rewind(0).unwrap(),
        }
        all.push(logits);
    }
    all
}

#[track_caller]
fn assert_same(what: &str, found: &[(i32, Vec<u32>)], expect: &[Vec<u32>]) {
    assert_eq!(found.len(), expect.len());
    for (i, ((code, found), expect)) in found.iter().zip(expect).enumerate() {
        assert_eq!(*code, 0, "{what}: act {i}");
        let wrong = found.iter().zip(expect).filter(|(a, b)| a != b).count();
        let first = found.iter().zip(expect).position(|(a, b)| a != b);
        let pair = first.map(|at| (at, f32::from_bits(found[at]), f32::from_bits(expect[at])));
        assert_eq!(
            wrong,
            0,
            "{what}: act {i}: {wrong} of {} logits differ, first {pair:?}",
            expect.len()
        );
        assert_eq!(found.len(), expect.len(), "{what}: act {i}");
    }
}

/// Prompts in chunks, decoded tokens, a rewind, no cache, a reset.
fn history(vocab: usize, context: usize) -> Vec<Act> {
    let end = context * 61 / 96;
    let id = |i: usize| (i * 7 + 3) as u32 % vocab as u32;
    let mut acts = vec![
        Act::Feed((0..11).map(id).collect()),
        Act::Feed((11..12).map(id).collect()),
        Act::Feed((12..29).map(id).collect()),
    ];
    acts.extend((29..end).map(|i| Act::Feed(vec![id(i)])));
    acts.extend([
        Act::Rewind(end - 4),
        Act::Feed((80..83).map(id).collect()),
        Act::Kv(false),
        Act::Feed(vec![id(5)]),
        Act::Feed(vec![id(6)]),
        Act::Kv(true),
        Act::Feed(vec![id(7)]),
        Act::Reset,
        Act::Feed((3..9).map(id).collect()),
    ]);
    acts.extend((29..64).map(|i| Act::Feed(vec![id(i)])));
    acts
}

fn fixtures(folder: &str, ending: &str) -> Vec<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../import/tests/fixtures")
        .join(folder);
    let entries = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|e| e == ending))
        .collect();
    found.sort();
    found
}

/// Fixtures with recurrent layers, routed experts or attention sinks, of which there is no C.
const REFUSED: [&str; 23] = [
    "bailingmoe2",
    "deepseek",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "gemma4_moe",
    "glm47_flash",
    "glm4moe",
    "hunyuan_moe",
    "minimax_m2",
    "qwen3vlmoe",
    "granitehybrid",
    "lfm2",
    "mamba2",
    "mixtral",
    "nemotron_h",
    "qwen2moe",
    "qwen3moe",
    "qwen35",
    "qwen3next",
    "olmoe",
    "granitemoe",
    "gpt_oss",
];

#[test]
fn decoders_compute_the_bits_of_the_generic_tier() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let mut models = fixtures("decoder", "gguf");
    models.extend(fixtures("pt2", "pt2").into_iter().filter(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        name.starts_with("decoder_")
    }));
    assert!(models.len() > 15);
    for model in &models {
        let name = model.file_name().unwrap().to_str().unwrap();
        if REFUSED.iter().any(|refused| name.starts_with(refused)) {
            let output = folder.path(name);
            let (model, output) = (model.to_str().unwrap(), output.to_str().unwrap());
            let args = ["emit-c", model, "-o", output, "-c", "48"];
            let error = folder.run(&args).error();
            assert!(
                error.contains("cannot be emitted: there is no C of"),
                "{error}"
            );
            continue;
        }
        let mut variants = vec![
            (KvStorage::F32, 8, &["-O2"][..]),
            (KvStorage::F16, 512, &["-O3", "-march=native"]),
        ];
        if name.starts_with("gemma") {
            variants.push((KvStorage::F8E4M3, 8, &["-O2"]));
        }
        for (storage, step, flags) in variants {
            let case = Case {
                model,
                // The table of GPT-2 has no more positions.
                context: if name.contains("gpt2") { 48 } else { 96 },
                step,
                storage,
                more: &[],
            };
            let (model, mut runner) = case.runner();
            let vocab = model.facts().vocab_size;
            let acts = history(vocab, case.context);
            let program = compile(&case.emit(&folder, name), compiler, flags);
            let found = drive(&program, &acts, vocab);
            assert_same(
                &format!("{name} {storage}"),
                &found,
                &expected(&mut runner, &acts),
            );
        }
    }
}

#[test]
fn an_onnx_decoder_computes_the_bits_of_the_generic_tier() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvark/tests/onnx/stand_in");
    let case = Case {
        model: &path,
        // Its buffers have no more rows.
        context: 16,
        step: 4,
        storage: KvStorage::F32,
        more: &[],
    };
    let (model, mut runner) = case.runner();
    let vocab = model.facts().vocab_size;
    let mut acts = vec![Act::Feed(vec![1, 2, 3, 4, 5, 6])];
    acts.extend((7..13).map(|id| Act::Feed(vec![id])));
    acts.extend([Act::Rewind(10), Act::Feed(vec![3, 9])]);
    let program = compile(&case.emit(&folder, "onnx"), compiler, &["-O2"]);
    let found = drive(&program, &acts, vocab);
    assert_same("onnx", &found, &expected(&mut runner, &acts));
}

#[test]
fn the_default_model_is_the_same_at_every_level_and_compiler() {
    let Some(path) = crate::real::model() else {
        return;
    };
    let folder = Folder::new();
    let case = Case {
        model: Path::new(&path),
        context: 256,
        step: 32,
        storage: KvStorage::F16,
        more: &[],
    };
    let (model, mut runner) = case.runner();
    let vocab = model.facts().vocab_size;
    let mut acts = vec![Act::Feed((0..40).map(|i| i * 31 + 5).collect())];
    acts.extend((0..64).map(|i| Act::Feed(vec![i * 97 + 11])));
    let expect = expected(&mut runner, &acts);
    let target = case.emit(&folder, "smollm2");
    for (name, flags) in [
        ("cc", &["-O3", "-march=native"][..]),
        ("cc", &["-O2"]),
        ("clang", &["-O3"]),
    ] {
        let Some(name) = compiler(name) else { continue };
        let program = compile(&target, name, flags);
        let found = drive(&program, &acts, vocab);
        assert_same(&format!("{name} {flags:?}"), &found, &expect);
    }
}

#[test]
fn threads_and_sanitizers_find_nothing_and_change_nothing() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    // Rings, four-bit and eight-bit weights, and f32.
    for name in ["gemma3.gguf", "llama_mixed.gguf", "phi3_q8_0.gguf"] {
        let model = decoder_fixture(name);
        let mut case = Case {
            model: &model,
            context: 96,
            step: 8,
            storage: KvStorage::F16,
            more: &[],
        };
        let (model, mut runner) = case.runner();
        let vocab = model.facts().vocab_size;
        let acts = history(vocab, case.context);
        let expect = expected(&mut runner, &acts);
        let target = case.emit(&folder, &format!("{name}-1"));
        let sanitized = [
            "-O1",
            "-g",
            "-DMODEL_DEBUG",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ];
        let program = compile(&target, compiler, &sanitized);
        assert_same(name, &drive(&program, &acts, vocab), &expect);
        case.more = &["--threads", "3"];
        let target = case.emit(&folder, &format!("{name}-3"));
        let program = compile(&target, compiler, &["-O2", "-pthread"]);
        assert_same(name, &drive(&program, &acts, vocab), &expect);
    }
}

#[test]
fn valgrind_finds_nothing() {
    let (Some(compiler), Some(valgrind)) = (compiler("cc"), compiler("valgrind")) else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("llama_mixed.gguf");
    let case = Case {
        model: &model,
        context: 96,
        step: 8,
        storage: KvStorage::F16,
        more: &[],
    };
    let program = compile(&case.emit(&folder, "valgrind"), compiler, &["-O1", "-g"]);
    let output = Command::new(valgrind)
        .args(["-q", "--error-exitcode=9", "--leak-check=full"])
        .arg(&program)
        .current_dir(program.parent().unwrap())
        .stdin(script(&folder, "p 3 1 2 3\nd 4\nr 2\nd 5\n"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// A file with the driver's commands, open for reading.
fn script(folder: &Folder, text: &str) -> std::fs::File {
    let path = folder.file("script.txt", text);
    std::fs::File::open(path).unwrap()
}

/// Counts calls of the allocators, and prints the count when the first token is computed and at the end.
const COUNTING: &str = "
#include <stddef.h>
#include <stdio.h>
void *__real_malloc(size_t n);
void *__real_calloc(size_t a, size_t n);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t a, size_t n);
int allocations;
void *__wrap_malloc(size_t n) { allocations++; return __real_malloc(n); }
void *__wrap_calloc(size_t a, size_t n) { allocations++; return __real_calloc(a, n); }
void *__wrap_realloc(void *p, size_t n) { allocations++; return __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t a, size_t n) { allocations++; return __real_aligned_alloc(a, n); }
__attribute__((destructor)) static void report(void) { fprintf(stderr, \"%d\", allocations); }
";

#[test]
#[cfg(target_os = "linux")]
fn the_program_allocates_once_or_not_at_all() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("llama_plain.gguf");
    for (more, allocations) in [(&[][..], "1"), (&["--static"], "0")] {
        let case = Case {
            model: &model,
            context: 64,
            step: 8,
            storage: KvStorage::F16,
            more,
        };
        let target = case.emit(&folder, "counted");
        std::fs::write(target.join("counting.c"), COUNTING).unwrap();
        let makefile = std::fs::read_to_string(target.join("Makefile")).unwrap();
        let defines = match makefile.contains("-DMODEL_STATIC_STATE") {
            true => vec!["-DMODEL_STATIC_STATE"],
            false => vec![],
        };
        let wraps = ["malloc", "calloc", "realloc", "aligned_alloc"]
            .map(|name| format!("-Wl,--wrap={name}"));
        let output = Command::new(compiler)
            .current_dir(&target)
            .args(["-O2", "-std=c11", "-ffp-contract=off"])
            .args(defines)
            .args(wraps)
            .args([
                "main.c",
                "model.c",
                "kernels.c",
                "counting.c",
                "-lm",
                "-o",
                "counted",
            ])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let output = Command::new(target.join("counted"))
            .current_dir(&target)
            .args(["-n", "20", "1,2,3"])
            .output()
            .unwrap();
        let ids = String::from_utf8(output.stdout).unwrap();
        assert_eq!(ids.trim().split(',').count(), 20, "{ids}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            allocations,
            "{more:?}"
        );
    }
}

#[test]
fn a_ring_refuses_to_go_back_too_far() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let model = decoder_fixture("mistral.gguf");
    let case = Case {
        model: &model,
        context: 96,
        step: 8,
        storage: KvStorage::F32,
        more: &[],
    };
    let program = compile(&case.emit(&folder, "ring"), compiler, &["-O2"]);
    let (model, mut runner) = case.runner();
    let vocab = model.facts().vocab_size;
    let fed = Act::Feed((0..60).collect());
    runner.feed(&(0..60).collect::<Vec<_>>(), |_| true).unwrap();
    // The position that kvark refuses is refused, and the one that it allows is allowed.
    let allowed = (1..60).find(|keep| {
        let (_, mut runner) = case.runner();
        runner.feed(&(0..60).collect::<Vec<_>>(), |_| true).unwrap();
        runner.rewind(*keep).is_ok()
    });
    let allowed = allowed.unwrap();
    assert!(allowed > 1, "the fixture has a window");
    let acts = [
        fed,
        Act::Rewind(allowed - 1),
        Act::Rewind(allowed),
        Act::Feed(vec![7]),
    ];
    let found = drive(&program, &acts, vocab);
    runner.rewind(allowed).unwrap();
    runner.feed(&[7], |_| true).unwrap();
    let expect: Vec<u32> = runner.logits().iter().map(|x| x.to_bits()).collect();
    assert_eq!((found[2].0, found[3].0), (0, 0));
    assert!(found[3].1 == expect);
    assert!(found[1].0 == -4 || found[1].0 == 0);
}

#[test]
fn programs_are_deterministic_and_have_the_offsets_of_the_plan() {
    let folder = Folder::new();
    let model = decoder_fixture("gemma3.gguf");
    let case = Case {
        model: &model,
        context: 96,
        step: 8,
        storage: KvStorage::F16,
        more: &[],
    };
    let (first, second) = (case.emit(&folder, "first"), case.emit(&folder, "second"));
    let mut names: Vec<_> = std::fs::read_dir(&first)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names.len(), 9);
    for name in &names {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert!(read(&first) == read(&second), "{name:?}");
    }
    let path = model.to_str().unwrap();
    let map = folder
        .run(&["plan", path, "--map", "-t", "1", "-c", "96", "-b", "8"])
        .ok();
    let layout = std::fs::read_to_string(first.join("layout.map")).unwrap();
    let header = std::fs::read_to_string(first.join("model.h")).unwrap();
    let mut compared = 0;
    for line in map.lines().filter(|line| line.starts_with("0x")) {
        // Offset, end, size and unit, name.
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words[4];
        let ours = |line: &&str| line.split_whitespace().nth(3) == Some(name);
        let is_buffer = line.contains(", nodes ");
        let is_region = name.starts_with("kv_cache") || name == "arena" || name == "logits";
        if is_region && !is_buffer {
            let line = layout
                .lines()
                .find(ours)
                .unwrap_or_else(|| panic!("{name} is not in the map"));
            let found: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(found[..2], words[..2], "{name}");
            compared += 1;
        } else if is_buffer && !is_region && !line.contains("(work space)") {
            let macro_name: String = name
                .chars()
                .map(|c| {
                    if c.is_alphanumeric() {
                        c.to_ascii_uppercase()
                    } else {
                        '_'
                    }
                })
                .collect();
            let offset = u64::from_str_radix(&words[0][2..], 16).unwrap();
            let define = format!("#define A_{macro_name} ");
            let found = header
                .lines()
                .find(|line| line.starts_with(&define))
                .unwrap_or_else(|| panic!("no {define}"));
            assert!(
                found.contains(&format!(" {offset:#x}ull ")),
                "{found}, planned {offset:#x}"
            );
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
}

#[test]
fn what_cannot_be_emitted_is_named_and_nothing_is_written() {
    let folder = Folder::new();
    let output = folder.path("out");
    let out = output.to_str().unwrap();
    let model = decoder_fixture("gpt2.gguf");
    let gpt2 = model.to_str().unwrap();
    let error = folder
        .run(&["emit-c", gpt2, "-o", out, "-c", "48", "--max-bytes", "10k"])
        .error();
    assert!(error.contains("--max-bytes allows 10000"), "{error}");
    let error = folder
        .run(&[
            "emit-c",
            gpt2,
            "-o",
            out,
            "-c",
            "48",
            "--cache-type-k",
            "q8",
        ])
        .error();
    assert!(error.contains("keys and values of q8"), "{error}");
    let pt2 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/fixtures/pt2/mlp.pt2");
    let error = folder
        .run(&["emit-c", pt2.to_str().unwrap(), "-o", out])
        .error();
    assert!(
        error.contains("the model cannot be emitted: its input input is f32"),
        "{error}"
    );
    let letter = folder.file("letter.txt", "dear");
    let here = Path::new(&letter).parent().unwrap().to_str().unwrap();
    let error = folder
        .run(&["emit-c", gpt2, "-o", here, "-c", "48"])
        .error();
    assert!(
        error.contains("is not empty and was not written by emit-c"),
        "{error}"
    );
    let left: Vec<_> = std::fs::read_dir(here)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        !output.exists()
            && left
                .iter()
                .all(|name| !name.to_string_lossy().contains("partial")),
        "{left:?}"
    );
}
