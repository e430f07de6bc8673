//! A model on the CPU and on a GPU in one process: the same tokens within rounding, snapshots that move between them, and a
//! draft on one for a target on the other.
//!
//! Without a GPU, the CPU takes its place, so that the tests themselves are tested; `KVARK_REQUIRE_CUDA=1` makes them fail
//! then. `KVARK_REPOSITORY` names the folder of the repository on another machine than the one of the build.

mod branches;
#[path = "../common/mod.rs"]
mod common;
mod sampling;
mod speculation;
mod states;

use kvark::backend::{Backend, Cuda};
use kvark::generate::{GenerateOptions, SamplerOptions};
use kvark::model::OpenOptions;
use kvark::text::EncodeOptions;
use kvark::{Cpu, Model, Runner, RunnerOptions};
use std::io::Write;
use std::path::PathBuf;

/// Logits of the devices differ by at most this part of the largest one: quantised activations are rounded otherwise.
const TOLERANCE: f32 = 0.05;
/// Tokens whose logits differ by less may change places on another device.
const MARGIN: f32 = 0.05;

/// Shows a figure, past the capture of the test harness.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The CPU.
fn cpu() -> Box<dyn Backend> {
    Box::new(Cpu::new().unwrap())
}

/// The GPU, or the CPU in its place. `KVARK_CUBIN` names a folder for compiled kernels.
fn device() -> Box<dyn Backend> {
    let folder = std::env::var_os("KVARK_CUBIN").map(PathBuf::from);
    match Cuda::new(folder) {
        Ok(cuda) => Box::new(cuda),
        Err(error) if std::env::var_os("KVARK_REQUIRE_CUDA").is_some() => panic!("{error}"),
        Err(error) => {
            note(&format!("the CPU takes the place of a GPU: {error}"));
            cpu()
        }
    }
}

/// Whether the device is a GPU.
fn is_gpu(device: &dyn Backend) -> bool {
    device.id() != cpu().id()
}

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let root = std::env::var_os("KVARK_REPOSITORY").map_or(built.into(), PathBuf::from);
    root.join(path)
}

/// A tiny decoder of the importer's fixtures.
fn fixture(name: &str) -> Model {
    let path = format!("crates/import/tests/fixtures/decoder/{name}.gguf");
    Model::open(&repository(&path), Some(128)).unwrap()
}

/// SmolLM2, if `KVARK_TEST_MODEL` names it.
fn real_model(options: &OpenOptions) -> Option<Model> {
    let path = common::named_by("KVARK_TEST_MODEL")?;
    Some(Model::open_with(&path, options).unwrap())
}

fn options(context: usize) -> RunnerOptions {
    RunnerOptions {
        context: Some(context),
        max_step_tokens: 128,
        ..RunnerOptions::default()
    }
}

fn runner(model: &Model, backend: &dyn Backend, context: usize) -> Runner {
    Runner::new(model, backend, &options(context)).unwrap()
}

fn greedy() -> SamplerOptions {
    SamplerOptions {
        temperature: 0.0,
        ..SamplerOptions::default()
    }
}

fn exactly(tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

fn encode(model: &Model, text: &str) -> Vec<u32> {
    let tokenizer = model.tokenizer().unwrap();
    let options = EncodeOptions {
        bos: tokenizer.adds_bos(),
        ..EncodeOptions::default()
    };
    tokenizer.encode(text, options)
}

/// Tokens for a model whose text does not matter.
fn some_tokens(model: &Model, n: usize) -> Vec<u32> {
    let vocab = model.facts().vocab_size as u32;
    (0..n as u32).map(|i| (i * 29 + i / 5) % vocab).collect()
}

/// The largest difference of logits, as a part of the largest logit.
fn difference(found: &[f32], expect: &[f32]) -> f32 {
    assert_eq!(found.len(), expect.len());
    let largest = expect.iter().fold(1e-6f32, |most, x| most.max(x.abs()));
    let pairs = found.iter().zip(expect);
    pairs.fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// The logits after each of these tokens, fed one by one.
fn decoded(runner: &mut Runner, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut next = |token: &u32| {
        runner.feed(&[*token], |_| true).unwrap();
        runner.logits().to_vec()
    };
    tokens.iter().map(&mut next).collect()
}

/// Compares logits of two devices, row by row, and shows the largest difference.
fn compare(what: &str, found: &[Vec<f32>], expect: &[Vec<f32>]) {
    assert_eq!(found.len(), expect.len());
    let rows = found.iter().zip(expect);
    let differences = rows.map(|(found, expect)| difference(found, expect));
    check_differences(what, differences.collect());
}

/// Checks the differences of rows of logits. The devices round otherwise, so a row whose choice of experts is close may have others: of
/// the fixtures with experts, one row in twenty may, and of those whose experts are quantised, every second one.
fn check_differences(what: &str, mut differences: Vec<f32>) {
    let (row, worst) = differences
        .iter()
        .enumerate()
        .fold(
            (0, 0.0f32),
            |most, (row, d)| {
                if *d > most.1 { (row, *d) } else { most }
            },
        );
    note(&format!(
        "{what}: logits differ by {worst:.1e} of the largest, in row {row}"
    ));
    differences.sort_by(f32::total_cmp);
    let is_one_of = |names: &[&str]| names.iter().any(|name| what.starts_with(name));
    let others = match differences.len() {
        rows if is_one_of(&["qwen3moe", "gpt_oss"]) => rows / 2,
        rows if is_one_of(&["mixtral", "deepseek", "dots1", "glm47_flash", "minimax_m2"])
            || what.contains("moe") =>
        {
            rows / 20
        }
        _ => 0,
    };
    let judged = differences[differences.len() - 1 - others.min(differences.len() - 1)];
    assert!(judged < TOLERANCE, "{what}: {judged}, in row {row} {worst}");
}

#[test]
fn every_decoder_fixture_has_the_logits_of_the_cpu() {
    let (cpu, device) = (cpu(), device());
    let folder = repository("crates/import/tests/fixtures/decoder");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_suffix(".gguf")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        let model = fixture(&name);
        let tokens = some_tokens(&model, 46);
        let [expect, found] = [&cpu, &device].map(|backend| {
            let mut runner = runner(&model, &**backend, 48);
            let mut rows = vec![];
            let each = |_: usize, logits: &[f32]| {
                rows.push(logits.to_vec());
                true
            };
            runner.feed_all_logits(&tokens[..36], each).unwrap();
            rows.extend(decoded(&mut runner, &tokens[36..]));
            rows
        });
        compare(&name, &found, &expect);
    }
}

/// The beginnings of texts.
const PROMPTS: [&str; 20] = [
    "The capital of France is",
    "Once upon a time, there was",
    "In 1969, the first humans",
    "def fibonacci(n):",
    "The theory of relativity says that",
    "Shakespeare wrote",
    "Water boils at",
    "To bake a cake, you need",
    "The largest planet in the solar system",
    "My favorite color is",
    "A good way to learn a language is",
    "The stock market fell because",
    "Photosynthesis is the process by which",
    "He opened the door and saw",
    "The three laws of motion are",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,",
    "Artificial intelligence will",
    "The recipe calls for two cups of",
    "Mount Everest is",
];

/// The CPU's greedy tokens are the GPU's wherever the CPU's two best logits are not nearly equal. The GPU is fed the CPU's
/// tokens, so that every position is compared, also after one that differs.
#[test]
fn greedy_tokens_are_those_of_the_cpu() {
    let Some(model) = real_model(&OpenOptions::default()) else {
        return;
    };
    let (cpu, device) = (cpu(), device());
    // Without a GPU, a few tokens show that the test works.
    let (prompts, tokens) = match is_gpu(&*device) {
        true => (PROMPTS.len(), 64),
        false => (2, 8),
    };
    let [mut host, mut other] = [&cpu, &device].map(|b| runner(&model, &**b, 256));
    let (mut compared, mut worst, mut margins) = (0, 0.0f32, vec![]);
    for prompt in &PROMPTS[..prompts] {
        let prompt = encode(&model, prompt);
        for runner in [&mut host, &mut other] {
            runner.rewind(0).unwrap();
            runner.feed(&prompt, |_| true).unwrap();
        }
        for _ in 0..tokens {
            let (expect, found) = (host.logits(), other.logits());
            worst = worst.max(difference(found, expect));
            let [best, second] = top_two(expect);
            let margin = expect[best as usize] - expect[second as usize];
            compared += 1;
            if top_two(found)[0] != best {
                margins.push(margin);
            }
            for runner in [&mut host, &mut other] {
                runner.feed(&[best], |_| true).unwrap();
            }
        }
    }
    note(&format!(
        "{compared} greedy tokens of {prompts} prompts: {} differ, with margins {margins:.3?}; logits differ by up to {worst:.1e} of the largest",
        margins.len()
    ));
    let close = margins.iter().all(|margin| *margin <= MARGIN);
    assert!(close, "tokens differ with margins {margins:?}");
}

/// The two most likely tokens.
fn top_two(logits: &[f32]) -> [u32; 2] {
    let mut best = vec![];
    kvark::generate::topk(&mut best, logits, 2);
    [best[0].id, best[1].id]
}
