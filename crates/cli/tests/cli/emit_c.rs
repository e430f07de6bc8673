//! `kvark emit-c`: the C programs compute the same bits as kvark's generic tier.

use crate::support::Folder;
use kvark::RunnerOptions;
use kvark::backend::{CompileOptions, Cpu, Isa};
use kvark::cache::KvStorage;
use kvark::{Model, Runner};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DRIVER: &str = include_str!("emit_c_driver.c");

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
    Reset,
}

/// Runs acts on a compiled program; the result of each, and the logits behind feeds.
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
            Act::Rewind(keep) => runner.rewind(*keep).unwrap(),
            Act::Kv(_) => {}
            Act::Reset => runner.rewind(0).unwrap(),
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

#[test]
fn decoders_compute_the_bits_of_the_generic_tier() {
    let Some(compiler) = compiler("cc") else {
        return;
    };
    let folder = Folder::new();
    let mut models = fixtures("decoder", "gguf");
    models.extend(fixtures("pt2", "pt2").into_iter().filter(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        name.starts_with("decoder_") && name != "decoder_features"
    }));
    assert!(models.len() > 15);
    for model in &models {
        let name = model.file_name().unwrap().to_str().unwrap();
        for (storage, step, flags) in [
            (KvStorage::F32, 8, &["-O2"][..]),
            (KvStorage::F16, 512, &["-O3", "-march=native"]),
        ] {
            let case = Case {
                model,
                // The table of GPT-2 has no more positions.
                context: if name.contains("gpt2") { 48 } else { 96 },
                step,
                storage,
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
