//! Exported programs without caches on the CPU, every tier, against PyTorch's outputs.

#[allow(
    dead_code,
    reason = "shared with the importer's tests, which use all of it"
)]
#[path = "../../import/tests/pt2/golden.rs"]
mod golden;

use golden::{TOLERANCE, archive, distance, folder, json, names, tensor};
use kvark::backend::{CompileOptions, ExecutorKind, Isa};
use kvark::graph::PassSelection;
use kvark::inference::{InferenceOptions, Value};
use kvark::{Cpu, InferenceSession};

fn options(method: &str, executor: ExecutorKind, passes: &str) -> InferenceOptions {
    InferenceOptions {
        compile: CompileOptions {
            threads: Some(2),
            executor,
            ..CompileOptions::default()
        },
        passes: PassSelection::parse(passes).unwrap(),
        method: Some(method.to_owned()),
        ..InferenceOptions::default()
    }
}

fn run(name: &str, isa: Isa, options: &InferenceOptions, inputs: &[Value]) -> Vec<Value> {
    let session = InferenceSession::load(&archive(name), &Cpu::with_isa(isa), options);
    let mut session = session.unwrap_or_else(|e| panic!("{name}: {e}"));
    let named: Vec<(String, Value)> = session
        .inputs()
        .iter()
        .map(|info| info.name.clone())
        .zip(inputs.iter().cloned())
        .collect();
    let outputs = session.run(named);
    let outputs = outputs.unwrap_or_else(|e| panic!("{name}, {:?}: {e}", options.method));
    outputs.into_iter().map(|(_, value)| value).collect()
}

/// The bits of a result, so that a NaN equals itself.
fn bits(values: &[Value]) -> Vec<Vec<u32>> {
    let bits = |v: &Value| v.as_f32().map(|v| v.iter().map(|x| x.to_bits()).collect());
    values.iter().filter_map(bits).collect()
}

#[test]
fn every_tier_executor_and_pass_gives_what_pytorch_gives() {
    for name in names(|name| {
        ["decoder", "states", "refused"]
            .iter()
            .all(|kind| !name.starts_with(kind))
    }) {
        let golden = json(&folder().join(format!("{name}.json")));
        // Products with integer weights round their activations to fourteen or fifteen bits.
        let tolerance = match name.starts_with("torchao") {
            true => 10.0 * TOLERANCE,
            false => TOLERANCE,
        };
        for case in golden["cases"].as_array().unwrap() {
            let method = case["method"].as_str().unwrap();
            let list = |key: &str| case[key].as_array().unwrap().iter().map(tensor);
            let (inputs, truth): (Vec<_>, Vec<_>) =
                (list("inputs").collect(), list("outputs").collect());
            for isa in Isa::available() {
                for passes in ["all", "none"] {
                    let compiled = options(method, ExecutorKind::Compiled, passes);
                    let outputs = run(&name, isa, &compiled, &inputs);
                    let place = format!("{name}/{method} on {isa}, passes {passes}");
                    assert_eq!(outputs.len(), truth.len(), "{place}");
                    for (found, truth) in outputs.iter().zip(&truth) {
                        assert_eq!(found.shape, truth.shape, "{place}");
                        match (found.as_f32(), truth.as_f32()) {
                            (Some(a), Some(b)) => {
                                let far = distance(a, b);
                                assert!(far <= tolerance, "{place}: {far:e}");
                            }
                            _ => assert_eq!(found.data, truth.data, "{place}"),
                        }
                    }
                    let interpreted = options(method, ExecutorKind::Interpreted, passes);
                    let again = run(&name, isa, &interpreted, &inputs);
                    assert_eq!(bits(&again), bits(&outputs), "{place}: executors differ");
                }
            }
        }
    }
}

/// Buffers that programs write to, run after run, then again after a reset.
#[test]
fn states_continue_on_every_tier_and_executor() {
    for name in names(|name| name.starts_with("states")) {
        let golden = json(&folder().join(format!("{name}.json")));
        for (method, golden) in golden.as_object().unwrap() {
            let executors = [ExecutorKind::Compiled, ExecutorKind::Interpreted];
            let kinds = Isa::available()
                .into_iter()
                .flat_map(|isa| executors.map(|executor| (isa, executor)));
            for ((isa, executor), passes) in kinds.flat_map(|k| ["all", "none"].map(|p| (k, p))) {
                let options = options(method, executor, passes);
                let session =
                    InferenceSession::load(&archive(&name), &Cpu::with_isa(isa), &options);
                let mut session = session.unwrap();
                for round in 0..2 {
                    for run in golden["runs"].as_array().unwrap() {
                        let list = |key: &str| -> Vec<Value> {
                            run[key].as_array().unwrap().iter().map(tensor).collect()
                        };
                        let names: Vec<String> =
                            session.inputs().iter().map(|i| i.name.clone()).collect();
                        let outputs = session.run(names.into_iter().zip(list("inputs"))).unwrap();
                        let place = format!("{name}/{method} on {isa}, {passes}, round {round}");
                        for ((_, found), truth) in outputs.iter().zip(&list("outputs")) {
                            match (found.as_f32(), truth.as_f32()) {
                                (Some(a), Some(b)) => {
                                    assert!(distance(a, b) <= TOLERANCE, "{place}")
                                }
                                _ => assert_eq!(found.data, truth.data, "{place}"),
                            }
                        }
                    }
                    for (state, value) in golden["states"].as_object().unwrap() {
                        let (found, truth) = (session.state(state).unwrap(), tensor(value));
                        assert_eq!(found.shape, truth.shape, "{name}/{method}: {state}");
                    }
                    session.reset_states();
                }
            }
        }
    }
}

/// A caller's memory that does not fit the outputs is an error after the run: the state is as it was before.
#[test]
fn a_run_whose_outputs_cannot_be_taken_changes_no_state() {
    let options = options("counter", ExecutorKind::Compiled, "all");
    let cpu = Cpu::with_isa(Isa::available()[0]);
    let mut session = InferenceSession::load(&archive("states"), &cpu, &options).unwrap();
    assert_eq!(session.states().len(), 1);
    let x = Value::f32([2], vec![0.0; 2]);
    let name = session.outputs()[0].name.clone();
    for expect in [None, Some(1.0), None, Some(2.0)] {
        let mut memory = vec![0.0; if expect.is_some() { 2 } else { 3 }];
        let mut outputs = [(&name[..], kvark::inference::DataMut::F32(&mut memory))];
        let run = session.run_into([("x", x.view())], &mut outputs);
        assert_eq!(run.is_ok(), expect.is_some());
        assert!(
            expect.is_none_or(|expect| memory[0] == expect),
            "{memory:?}"
        );
    }
    let n = Value::i64([], vec![2]);
    assert_eq!(session.state("n"), Some(&n));
}
