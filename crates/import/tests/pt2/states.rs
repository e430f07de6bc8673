//! Programs that write to their buffers: what they write is there in the next run.

use std::sync::Arc;

use backend::reference::Reference;
use backend::{Backend, Runnable};
use graph::{Graph, Value};
use serde_json::Value as Json;

use crate::golden::{TOLERANCE, archive, distance, folder, json, tensor};

fn runnable(graph: &Graph) -> Runnable {
    let graph = Arc::new(graph.clone());
    let executable = Reference.compile(graph.clone(), &Default::default());
    Runnable::bind(graph, executable.unwrap(), None).unwrap()
}

fn tensors(json: &Json) -> Vec<Value> {
    json.as_array().unwrap().iter().map(tensor).collect()
}

fn assert_same(found: &Value, truth: &Value, what: &str) {
    let right = found.shape == truth.shape
        && match (found.as_f32(), truth.as_f32()) {
            (Some(a), Some(b)) => distance(a, b) <= TOLERANCE,
            _ => found.data == truth.data,
        };
    assert!(right, "{what}: {found:?} is not {truth:?}");
}

fn states(runnable: &Runnable) -> Vec<(String, Value)> {
    let states = runnable.states();
    states
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}

fn every_run_continues(name: &str) {
    let artifact = import::open(&archive(name)).unwrap();
    let golden = json(&folder().join(format!("{name}.json")));
    for (method, golden) in golden.as_object().unwrap() {
        for optimised in [false, true] {
            let mut graph = artifact.method(method).unwrap().graph.clone();
            if optimised {
                graph::passes::optimise(&mut graph).unwrap();
            }
            let mut runnable = runnable(&graph);
            let first = states(&runnable);
            let runs = golden["runs"].as_array().unwrap();
            // A second round after a reset gives the same.
            for round in 0..2 {
                for (i, run) in runs.iter().enumerate() {
                    let outputs = runnable.run(&tensors(&run["inputs"])).unwrap();
                    let truth = tensors(&run["outputs"]);
                    assert_eq!(outputs.len(), truth.len(), "{name}/{method}");
                    for (found, truth) in outputs.iter().zip(&truth) {
                        let what = format!("{name}/{method}, run {i} of round {round}");
                        assert_same(found, truth, &what);
                    }
                }
                let kept = golden["states"].as_object().unwrap();
                for (state, value) in states(&runnable) {
                    if !kept.is_empty() {
                        let what = format!("{state} of {name}/{method}");
                        assert_same(&value, &tensor(&kept[&state]), &what);
                    }
                }
                if name != "states_hugging_face" {
                    assert_eq!(states(&runnable).len(), kept.len(), "{name}/{method}");
                }
                runnable.reset_states();
                assert_eq!(states(&runnable), first, "{name}/{method}");
            }
        }
    }
}

#[test]
fn buffers_keep_what_is_written_to_them() {
    every_run_continues("states");
}

#[test]
fn buffers_of_functional_programs_do_too() {
    every_run_continues("states_functional");
}

#[test]
fn a_static_cache_of_transformers_decodes() {
    every_run_continues("states_hugging_face");
}

#[test]
fn states_are_saved_restored_and_kept_after_errors() {
    let artifact = import::open(&archive("states")).unwrap();
    let mut counter = runnable(&artifact.method("counter").unwrap().graph);
    let x = || Value::f32([2], vec![0.0; 2]);
    let run = |counter: &mut Runnable, x: Value| {
        let outputs = counter.run(&[x]).map_err(|error| error.to_string())?;
        Ok::<f32, String>(outputs[0].as_f32().unwrap()[0])
    };
    assert_eq!(run(&mut counter, x()), Ok(1.0));
    assert_eq!(run(&mut counter, x()), Ok(2.0));
    let saved = states(&counter);
    assert_eq!(saved, [("n".to_owned(), Value::i64([], vec![2]))]);
    assert_eq!(run(&mut counter, x()), Ok(3.0));
    counter.undo_states();
    assert_eq!(states(&counter), saved);
    let error = run(&mut counter, Value::f32([3], vec![0.0; 3])).unwrap_err();
    assert!(error.contains("dimension 0 is 3"), "{error}");
    let error = counter.run(&[]).unwrap_err().to_string();
    assert!(error.contains("takes 1 inputs, 0 were given"), "{error}");
    assert_eq!(states(&counter), saved);
    counter.set_state("n", Value::i64([], vec![40])).unwrap();
    assert_eq!(run(&mut counter, x()), Ok(41.0));
    for (name, value, reason) in [
        (
            "m",
            Value::i64([], vec![1]),
            "does not exist; the states are n",
        ),
        ("n", Value::f32([], vec![1.0]), "is i64[], f32[] was given"),
        ("n", Value::i64([1], vec![1]), "is i64[], i64[1] was given"),
    ] {
        let error = counter.set_state(name, value).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(run(&mut counter, x()), Ok(42.0));
}

#[test]
fn a_run_that_fails_in_a_node_changes_no_state() {
    let artifact = import::open(&archive("states")).unwrap();
    let mut ring = runnable(&artifact.method("ring").unwrap().graph);
    let x = Value::f32([3], vec![1.0; 3]);
    ring.run(std::slice::from_ref(&x)).unwrap();
    ring.set_state("at", Value::i64([1], vec![9])).unwrap();
    let before = states(&ring);
    assert!(ring.run(&[x]).is_err());
    assert_eq!(states(&ring), before);
}
