//! ONNX's own node tests on the CPU backend: a folder each with `model.onnx` and `test_data_set_N/{input,output}_M.pb`.

use kvark::inference::{Bytes, InferenceOptions, Value};
use kvark::model::onnx;
use kvark::model::onnx::{Onnx, OnnxTensor, read_tensor};
use kvark::{Cpu, InferenceSession};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Tests with packed weights, by the beginning of their names; their activations are quantised.
const PACKED: &[&str] = &["nbits_"];

/// Tests whose expected values have the noise of a Fourier transform in f32, by the beginning of their names.
const NOISY: &[&str] = &["test_dft", "test_stft", "dft", "stft"];

/// Relative and absolute tolerance.
struct Tolerance {
    relative: f32,
    absolute: f32,
}

impl Tolerance {
    fn new(test: &Path, truth: &OnnxTensor, value: &Value) -> Tolerance {
        let name = test.file_name().unwrap_or_default().to_string_lossy();
        let (relative, absolute) = match truth.type_name() {
            _ if PACKED.iter().any(|known| name.starts_with(known)) => {
                let list = value.as_f32().unwrap_or_default();
                let squares: f32 = list.iter().map(|x| x * x).sum();
                (0.0, 3e-3 * (squares / list.len().max(1) as f32).sqrt())
            }
            _ if NOISY.iter().any(|known| name.starts_with(known)) => (1e-3, 1e-6),
            // Computed in half width.
            "f16" => (4e-3, 1e-3),
            "bf16" => (1.6e-2, 1e-2),
            // The tolerances of ONNX's own runner.
            _ => (1e-3, 1e-7),
        };
        Tolerance { relative, absolute }
    }
}

/// The outcome of one test.
pub(crate) enum Outcome {
    /// Every output of every data set is as expected.
    Passed,
    /// How an output differs, or that the run broke down.
    Wrong(String),
    /// The error that names what is not supported.
    Refused(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("passed"),
            Outcome::Wrong(why) => write!(f, "wrong: {why}"),
            Outcome::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

/// Runs every test of a folder; `report` receives each test's name and outcome.
pub(crate) fn run_all(
    folder: &Path,
    mut report: impl FnMut(&str, &Outcome),
) -> std::io::Result<[usize; 3]> {
    let cpu = Cpu::new().expect("a CPU");
    let entries = std::fs::read_dir(folder)?;
    let mut tests = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<PathBuf>>>()?;
    tests.retain(|path| path.join("model.onnx").is_file());
    tests.sort();
    let mut counts = [0; 3];
    for test in tests {
        let name = test.file_name().unwrap_or_default().to_string_lossy();
        let run = AssertUnwindSafe(|| run(&test, &cpu));
        let outcome = match catch_unwind(run) {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(outcome)) => outcome,
            Err(_) => Outcome::Wrong("panicked".to_owned()),
        };
        let at = match outcome {
            Outcome::Passed => 0,
            Outcome::Wrong(_) => 1,
            Outcome::Refused(_) => 2,
        };
        counts[at] += 1;
        report(&name, &outcome);
    }
    Ok(counts)
}

fn wrong(error: impl fmt::Display) -> Outcome {
    Outcome::Wrong(error.to_string().replace('\n', " "))
}

fn refused(error: impl fmt::Display) -> Outcome {
    Outcome::Refused(error.to_string().replace('\n', " "))
}

fn run(test: &Path, cpu: &Cpu) -> Result<(), Outcome> {
    let model = Onnx::open(&test.join("model.onnx")).map_err(refused)?;
    for port in model.inputs.iter().chain(&model.outputs) {
        if port.dtype == "unknown" {
            let reason = "is not a tensor of a supported type";
            return Err(refused(format!("{:?} {reason}", port.name)));
        }
    }
    for set in 0.. {
        let set = test.join(format!("test_data_set_{set}"));
        if set.is_dir() {
            check(&model, test, &set, cpu)?;
        } else if set.ends_with("test_data_set_0") {
            return Err(wrong("there is no data"));
        } else {
            break;
        }
    }
    Ok(())
}

/// The tensors of a data set (`input_0.pb` and so on) by the model's names.
fn tensors(
    set: &Path,
    side: &str,
    ports: &[onnx::Port],
) -> Result<BTreeMap<String, OnnxTensor>, Outcome> {
    let mut tensors = BTreeMap::new();
    for (index, port) in ports.iter().enumerate() {
        let path = set.join(format!("{side}_{index}.pb"));
        if path.is_file() {
            let bytes = Bytes::map(&path).map_err(wrong)?;
            let (_, tensor) = read_tensor(&bytes).map_err(refused)?;
            tensors.insert(port.name.clone(), tensor);
        }
    }
    Ok(tensors)
}

fn check(model: &Onnx, test: &Path, set: &Path, cpu: &Cpu) -> Result<(), Outcome> {
    let value = |(name, tensor): (String, OnnxTensor)| Ok((name, tensor.value().map_err(refused)?));
    let inputs = tensors(set, "input", &model.inputs)?.into_iter();
    let inputs = inputs.map(value).collect::<Result<BTreeMap<_, _>, _>>()?;
    let mut session = session(model, test, cpu)?;
    let found = session.run(inputs).map_err(refused)?;
    let found: BTreeMap<String, Value> = found.into_iter().collect();
    for (name, truth) in tensors(set, "output", &model.outputs)? {
        let found = found
            .get(&name)
            .ok_or_else(|| wrong(format!("{name} is missing")))?;
        let value = truth.value().map_err(refused)?;
        let tolerance = Tolerance::new(test, &truth, &value);
        compare(found, &value, &tolerance).map_err(|why| wrong(format!("{name}: {why}")))?;
    }
    Ok(())
}

/// A session on the model's graph for all shapes, or else on graphs for the shapes of each run.
fn session(model: &Onnx, test: &Path, cpu: &Cpu) -> Result<InferenceSession, Outcome> {
    let options = InferenceOptions::default();
    match onnx::lower_with(model, &BTreeMap::new()) {
        Ok(graph) => InferenceSession::from_graph(graph, cpu, &options),
        Err(_) => InferenceSession::load(&test.join("model.onnx"), cpu, &options),
    }
    .map_err(refused)
}

/// Compares floats within the tolerance, other values exactly.
fn compare(found: &Value, truth: &Value, tolerance: &Tolerance) -> Result<(), String> {
    if (found.dtype(), &found.shape) != (truth.dtype(), &truth.shape) {
        return Err(format!(
            "is {}{:?}, must be {}{:?}",
            found.dtype(),
            found.shape,
            truth.dtype(),
            truth.shape
        ));
    }
    let (Some(found), Some(truth)) = (found.as_f32(), truth.as_f32()) else {
        return match found == truth {
            true => Ok(()),
            false => Err(format!("is {:?}, must be {:?}", found.data, truth.data)),
        };
    };
    let Tolerance { relative, absolute } = tolerance;
    for (at, (a, b)) in found.iter().zip(truth).enumerate() {
        let same = a == b || a.is_nan() && b.is_nan();
        let near = (a - b).abs() <= absolute + relative * b.abs();
        if !same && !near {
            return Err(format!("element {at} is {a}, must be {b}"));
        }
    }
    Ok(())
}
