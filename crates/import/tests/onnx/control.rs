//! Loops, recurrent layers and sequences: what is unrolled, and what is refused by name.

use std::collections::BTreeMap;

use base::Bytes;
use import::onnx::{Onnx, lower_with};

use crate::writer::{F32, I64, Message, Model, int_attribute, node, port, tensor};

const BOOL: i64 = 9;

fn lowered(model: &Model) -> Result<graph::Graph, import::ImportError> {
    let file = Onnx::parse(Bytes::from(&model.bytes()[..]), None)?;
    lower_with(&file, &BTreeMap::new())
}

fn refusal(model: &Model) -> String {
    lowered(model).unwrap_err().to_string()
}

/// The attribute `body` with these nodes, operands and results.
fn body(nodes: &[Message], inputs: &[Message], outputs: &[Message]) -> Message {
    let mut graph = Message::default().text(2, "body");
    for (field, list) in [(1, nodes), (11, inputs), (12, outputs)] {
        graph = list
            .iter()
            .fold(graph, |graph, part| graph.message(field, part));
    }
    let attribute = Message::default().text(1, "body").message(6, &graph);
    attribute.int(20, 5)
}

/// `x` doubled again and again: `count` times, and as long as the body's condition holds.
fn doubling(inputs: &[&str], condition: Message) -> Model {
    let body = body(
        &[node("Add", &["state", "state"], &["next"]), condition],
        &[
            port("i", I64, &[]),
            port("going", BOOL, &[]),
            port("state", F32, &["T", "4"]),
        ],
        &[port("still", BOOL, &[]), port("next", F32, &["T", "4"])],
    );
    Model {
        nodes: vec![node("Loop", inputs, &["y"]).message(5, &body)],
        tensors: vec![
            tensor("two", &[], I64, &2i64.to_le_bytes()),
            tensor("many", &[], I64, &(1i64 << 40).to_le_bytes()),
            tensor("yes", &[], BOOL, &[1]),
        ],
        inputs: vec![port("x", F32, &["T", "4"]), port("n", I64, &[])],
        outputs: vec![port("y", F32, &["T", "4"])],
        ..Model::default()
    }
}

fn unchanged() -> Message {
    node("Identity", &["going"], &["still"])
}

#[test]
fn loops_with_a_known_number_of_iterations_are_unrolled() {
    let mut graph = lowered(&doubling(&["two", "yes", "x"], unchanged())).unwrap();
    graph::passes::optimise(&mut graph).unwrap();
    let text = graph.to_string();
    assert_eq!(text.matches("= add(").count(), 2, "{text}");
    // The condition counts the iterations.
    let below = node("Less", &["i", "two"], &["still"]);
    let graph = lowered(&doubling(&["", "yes", "x"], below)).unwrap();
    let text = graph.to_string();
    assert_eq!(text.matches("= add(").count(), 3, "{text}");
}

#[test]
fn loops_that_depend_on_data_are_refused_by_name() {
    let table = [
        (
            doubling(&["n", "", "x"], unchanged()),
            "trip count depends on data",
        ),
        (doubling(&["", "", "x"], unchanged()), "never ends"),
        (
            doubling(&["many", "", "x"], unchanged()),
            "unrolls to more than",
        ),
        (
            doubling(&["many", "yes", "x"], node("Less", &["n", "i"], &["still"])),
            "condition depends on data",
        ),
        (doubling(&["two", "", ""], unchanged()), "no operand 2"),
    ];
    for (model, want) in table {
        let message = refusal(&model);
        assert!(
            message.contains("(Loop)") && message.contains(want),
            "{message:?} does not say {want:?}"
        );
    }
}

#[test]
fn scans_of_dynamic_axes_are_refused_by_name() {
    let body = body(
        &[node("Add", &["state", "row"], &["next"])],
        &[port("state", F32, &["4"]), port("row", F32, &["4"])],
        &[port("next", F32, &["4"])],
    );
    let scan = node("Scan", &["s", "x"], &["y"]).message(5, &body);
    let mut model = Model {
        nodes: vec![scan.message(5, &int_attribute("num_scan_inputs", 1))],
        inputs: vec![port("s", F32, &["4"]), port("x", F32, &["T", "4"])],
        outputs: vec![port("y", F32, &["4"])],
        ..Model::default()
    };
    let message = refusal(&model);
    assert!(
        message.contains("(Scan)") && message.contains("dynamic"),
        "{message}"
    );
    model.inputs[1] = port("x", F32, &["3", "4"]);
    let text = lowered(&model).unwrap().to_string();
    assert_eq!(text.matches("= add(").count(), 3, "{text}");
}

#[test]
fn recurrent_layers_over_dynamic_steps_are_refused_by_name() {
    let lstm = node("LSTM", &["x", "w", "r"], &["y"]);
    let model = Model {
        nodes: vec![lstm.message(5, &int_attribute("hidden_size", 2))],
        inputs: vec![
            port("x", F32, &["T", "1", "3"]),
            port("w", F32, &["1", "8", "3"]),
            port("r", F32, &["1", "8", "2"]),
        ],
        outputs: vec![port("y", F32, &["T", "1", "1", "2"])],
        ..Model::default()
    };
    let message = refusal(&model);
    assert!(
        message.contains("(LSTM)") && message.contains("sequence length is dynamic"),
        "{message}"
    );
}

#[test]
fn sequences_stay_inside_the_model() {
    let mut model = Model {
        nodes: vec![
            node("SequenceConstruct", &["x", "x"], &["pair"]),
            node("SequenceAt", &["pair", "one"], &["y"]),
        ],
        tensors: vec![tensor("one", &[], I64, &1i64.to_le_bytes())],
        inputs: vec![port("x", F32, &["T"])],
        outputs: vec![port("y", F32, &["T"])],
        ..Model::default()
    };
    lowered(&model).unwrap();
    model.tensors[0] = tensor("one", &[], I64, &2i64.to_le_bytes());
    let message = refusal(&model);
    assert!(message.contains("position 2 is out of range"), "{message}");
    model.outputs[0] = port("pair", F32, &["T"]);
    let message = refusal(&model);
    assert!(message.contains("pair is a sequence"), "{message}");
}
