//! Models whose sizes no polynomial of the inputs' sizes gives: a graph is made for the shapes of each run's inputs.

use std::path::{Path, PathBuf};

use kvark::backend::{CompileOptions, ExecutorKind};
use kvark::graph::PassSelection;
use kvark::inference::{Data, InferenceOptions, MAX_SHAPES, RandomInputs, Value};
use kvark::model::{OpenOptions, open_artifact, open_artifact_with};
use kvark::{Cpu, InferenceSession};
use serde_json::Value as Json;

/// Files, and those with what their frameworks compute.
const MODELS: [(&str, &str); 4] = [
    ("pyramid.onnx", "pyramid_onnx.json"),
    ("pyramid.pt2", "pyramid.json"),
    ("pyramid.pte", "pyramid.json"),
    ("audio.pt2", "audio.json"),
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/by_shape")
        .join(name)
}

fn tensor(json: &Json) -> Value {
    let list = |key: &str| json[key].as_array().unwrap().iter();
    let shape: Vec<usize> = list("shape")
        .map(|n| n.as_u64().unwrap() as usize)
        .collect();
    let data = list("data").map(|x| x.as_f64().unwrap() as f32).collect();
    Value::f32(shape, data)
}

/// Inputs and outputs of every run of a model.
fn cases(name: &str) -> Vec<(Vec<Value>, Vec<Value>)> {
    let text = std::fs::read_to_string(file(name)).unwrap();
    let json: Vec<Json> = serde_json::from_str(&text).unwrap();
    let list = |case: &Json, key: &str| case[key].as_array().unwrap().iter().map(tensor).collect();
    json.iter()
        .map(|case| (list(case, "inputs"), list(case, "outputs")))
        .collect()
}

fn session(name: &str, options: &InferenceOptions) -> InferenceSession {
    let session = InferenceSession::load(&file(name), &Cpu::new().unwrap(), options);
    session.unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn run(session: &mut InferenceSession, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let names: Vec<String> = session.inputs().iter().map(|i| i.name.clone()).collect();
    let outputs = session.run(names.into_iter().zip(inputs.iter().cloned()));
    let outputs = outputs.map_err(|error| error.to_string())?;
    Ok(outputs.into_iter().map(|(_, value)| value).collect())
}

fn zeros(shape: [usize; 4]) -> Value {
    Value::f32(shape, vec![0.0; shape.iter().product()])
}

#[test]
fn every_shape_gives_what_its_framework_gives() {
    for (name, golden) in MODELS {
        for (executor, passes) in [
            (ExecutorKind::Compiled, "all"),
            (ExecutorKind::Compiled, "none"),
            (ExecutorKind::Interpreted, "all"),
        ] {
            let options = InferenceOptions {
                compile: CompileOptions {
                    threads: Some(2),
                    executor,
                    ..CompileOptions::default()
                },
                passes: PassSelection::parse(passes).unwrap(),
                ..InferenceOptions::default()
            };
            let mut session = session(name, &options);
            assert!(session.planned_by_shape().is_some(), "{name}");
            let cases = cases(golden);
            // Each shape comes back after others.
            for (inputs, truth) in cases.iter().chain(&cases) {
                let found = run(&mut session, inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(found.len(), truth.len(), "{name}");
                for (found, truth) in found.iter().zip(truth) {
                    assert_eq!(found.shape, truth.shape, "{name}");
                    let pairs = found.as_f32().unwrap().iter().zip(truth.as_f32().unwrap());
                    let far = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(far <= 1e-4, "{name}, passes {passes}: {far:e}");
                }
            }
            assert_eq!(session.compiled_graphs(), cases.len(), "{name}");
        }
    }
}

#[test]
fn sizes_that_depend_on_data_are_found_between_graphs() {
    for (executor, passes) in [
        (ExecutorKind::Compiled, "all"),
        (ExecutorKind::Compiled, "none"),
        (ExecutorKind::Interpreted, "all"),
    ] {
        let options = InferenceOptions {
            compile: CompileOptions {
                threads: Some(2),
                executor,
                ..CompileOptions::default()
            },
            passes: PassSelection::parse(passes).unwrap(),
            ..InferenceOptions::default()
        };
        let mut session = session("detect.onnx", &options);
        let reason = session.planned_by_shape().unwrap();
        assert!(reason.contains("NonMaxSuppression"), "{reason}");
        let cases = cases("detect.json");
        let mut graphs = vec![];
        for (inputs, truth) in cases.iter().chain(&cases) {
            let found = run(&mut session, inputs).unwrap();
            for (found, truth) in found.iter().zip(truth) {
                assert_eq!(found.shape, truth.shape, "passes {passes}");
                let pairs = found.as_f32().unwrap().iter().zip(truth.as_f32().unwrap());
                let far = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(far <= 1e-5, "passes {passes}: {far:e}");
            }
            assert!(session.last_graphs().len() > 1);
            graphs.push(session.compiled_graphs());
        }
        // Each shape, count and branch comes back after others.
        assert_eq!(graphs[cases.len() - 1], graphs[2 * cases.len() - 1]);
        // Several threads run copies.
        let copies = session.copies().cloned().unwrap();
        let mut copy = copies.make(session.inputs(), session.outputs()).unwrap();
        assert_eq!(run(&mut copy, &cases[0].0), run(&mut session, &cases[0].0));
    }
}

#[test]
fn graphs_of_the_last_shapes_are_held() {
    let mut session = session("pyramid.onnx", &InferenceOptions::default());
    assert!(session.graph().is_none());
    assert_eq!(session.compiled_graphs(), 0);
    let (inputs, truth) = cases("pyramid_onnx.json").swap_remove(0);
    let mut first = vec![];
    for round in 0..2 {
        let found = run(&mut session, &inputs).unwrap();
        assert_eq!(found[0].shape, truth[0].shape);
        first.push(found);
        for width in 8..8 + MAX_SHAPES + 3 {
            run(&mut session, &[zeros([1, 3, 16, width])]).unwrap();
            assert!(session.compiled_graphs() <= MAX_SHAPES);
        }
        assert_eq!(session.compiled_graphs(), MAX_SHAPES, "round {round}");
    }
    assert_eq!(first[0], first[1]);
    assert!(session.graph().unwrap().symbols().is_empty());
}

#[test]
fn an_integer_that_chooses_a_branch_is_a_constant_of_its_graph() {
    let mut session = session("branches.onnx", &InferenceOptions::default());
    let mut y = |rate: i64, x: Vec<f32>| {
        let rate = Value {
            shape: vec![],
            data: Data::I64(vec![rate]),
        };
        let outputs = run(&mut session, &[Value::f32([x.len()], x), rate]).unwrap();
        outputs[0].as_f32().unwrap().to_vec()
    };
    for _ in 0..2 {
        assert_eq!(y(16000, vec![1.0, 2.0]), [2.0, 4.0]);
        assert_eq!(y(8000, vec![1.0, 2.0]), [-1.0, -2.0]);
        assert_eq!(y(16000, vec![3.0]), [6.0]);
    }
    assert_eq!(session.compiled_graphs(), 3);
    let rate = Value::f32(Vec::<usize>::new(), vec![16000.0]);
    let error = run(&mut session, &[Value::f32([1], vec![0.0]), rate]).unwrap_err();
    assert!(error.contains("was given elements of type f32"), "{error}");
}

#[test]
fn names_are_those_of_the_file() {
    let table = [
        (
            "pyramid.onnx",
            "image: f32[batch, 3, height, width]",
            "classes: f32[batch, 5, places]",
        ),
        (
            "pyramid.pt2",
            "image: f32[batch, 3, height, width]",
            "softmax: f32[batch, 5, (((width + (-1))//2) + 1)*(((height + (-1))//2) + 1)]",
        ),
        (
            "audio.pt2",
            "wave: f32[1, 1, 16*count]",
            "reshape: f32[(2*count) + (-1), 4]",
        ),
    ];
    for (name, input, output) in table {
        let session = session(name, &InferenceOptions::default());
        assert_eq!(session.inputs()[0].to_string(), input);
        assert_eq!(session.outputs()[0].to_string(), output);
    }
}

#[test]
fn random_inputs_have_the_sizes_asked_for() {
    let mut session = session("pyramid.onnx", &InferenceOptions::default());
    assert_eq!(session.dynamic_sizes(), ["batch", "height", "width"]);
    let sizes = [("height", 19), ("width", 12)].map(|(name, size)| (name.to_owned(), size));
    let mut random = RandomInputs {
        sizes: sizes.to_vec(),
        seed: 1,
    };
    let made = session.random_inputs(vec![], &random).unwrap();
    assert_eq!(made[0].1.shape, [1, 3, 19, 12]);
    let outputs = session.run(made).unwrap();
    assert_eq!(outputs[0].1.shape, [1, 5, 60]);
    random.sizes.push(("depth".to_owned(), 2));
    let error = session.random_inputs(vec![], &random).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("no dynamic size \"depth\""), "{error}");
}

#[test]
fn shapes_that_cannot_be_are_named() {
    let table = [
        (
            "pyramid.onnx",
            [1, 4, 16, 16],
            "input image: f32[batch, 3, height, width] was given 4 in dimension 1, must be 3",
        ),
        (
            "pyramid.pt2",
            [1, 3, 5, 16],
            "the size height of forward is 5, must be from 9 to 64 (with the inputs image [1, 3, 5, 16])",
        ),
        (
            "pyramid.pte",
            [1, 3, 65, 16],
            "an input is [1, 3, 65, 16], must be at most [8, 3, 64, 64]",
        ),
    ];
    for (name, shape, expect) in table {
        let mut session = session(name, &InferenceOptions::default());
        let error = run(&mut session, &[zeros(shape)]).unwrap_err();
        assert!(error.contains(expect), "{name}: {error}");
    }
    // An audio length that is no multiple of 16.
    let mut session = session("audio.pt2", &InferenceOptions::default());
    let error = run(&mut session, &[Value::f32([1, 1, 100], vec![0.0; 100])]).unwrap_err();
    assert!(error.contains("was given 100 for 16*count"), "{error}");
}

#[test]
fn a_model_opened_with_sizes_has_a_graph_for_them() {
    let path = file("pyramid.onnx");
    let error = open_artifact(&path, None).unwrap_err().to_string();
    assert!(error.contains("Conv"), "{error}");
    let open = |sizes: &[(&str, usize)]| {
        let sizes = sizes.iter().map(|(name, size)| ((*name).to_owned(), *size));
        let options = OpenOptions {
            by_shape: true,
            sizes: sizes.collect(),
            ..OpenOptions::default()
        };
        open_artifact_with(&path, &options).map_err(|error| error.to_string())
    };
    let unplanned = open(&[]).unwrap();
    assert!(unplanned.methods.is_empty());
    assert_eq!(
        unplanned.shaped[0].dynamic_sizes(),
        ["batch", "height", "width"]
    );
    let planned = open(&[("batch", 1), ("height", 16), ("width", 20)]).unwrap();
    assert!(planned.shaped.is_empty());
    let graph = &planned.methods[0].graph;
    assert_eq!(graph.typed(graph.outputs()[0]), "classes: f32[1, 5, 80]");
    let error = open(&[("batch", 1), ("height", 16)]).unwrap_err();
    assert!(error.contains("the size \"width\""), "{error}");
    let error = open(&[("depth", 1)]).unwrap_err();
    assert!(
        error.contains("the dynamic sizes are batch, height, width"),
        "{error}"
    );
}
