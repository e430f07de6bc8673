//! The graphs that small models are imported as.

use std::collections::BTreeMap;

use base::Bytes;
use graph::Value;
use import::onnx::{Onnx, lower_with};

use crate::writer::{F32, I64, Model, int_attribute, node, port, tensor};

fn floats(list: &[f32]) -> Vec<u8> {
    list.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn integers(list: &[i64]) -> Vec<u8> {
    list.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn text(model: &Model) -> String {
    let file = Onnx::parse(Bytes::from(&model.bytes()[..]), None).unwrap();
    let mut graph = lower_with(&file, &BTreeMap::new()).unwrap();
    graph::passes::optimise(&mut graph).unwrap();
    graph.to_string()
}

/// `x` with its last two axes joined and split again, by shapes that the model computes.
fn reshaping() -> Model {
    let gather = node("Gather", &["shape", "zero"], &["batch"]);
    let to = node("Concat", &["batch_1", "rest"], &["to"]).message(5, &int_attribute("axis", 0));
    Model {
        nodes: vec![
            node("Shape", &["x"], &["shape"]),
            gather,
            node("Unsqueeze", &["batch", "axes"], &["batch_1"]),
            to,
            node("Reshape", &["x", "to"], &["flat"]),
            node("Add", &["flat", "bias"], &["y"]),
        ],
        tensors: vec![
            tensor("zero", &[], I64, &integers(&[0])),
            tensor("axes", &[1], I64, &integers(&[0])),
            tensor("rest", &[1], I64, &integers(&[-1])),
            tensor("bias", &[6], F32, &floats(&[1.0; 6])),
        ],
        inputs: vec![port("x", F32, &["batch", "2", "3"])],
        outputs: vec![port("y", F32, &["batch", "6"])],
        ..Model::default()
    }
}

#[test]
fn shapes_that_are_computed_become_dimensions() {
    let expected = "\
graph forward(x: f32[batch, 2, 3])
  flat: f32[batch, 6] = reshape(x)
  y: f32[batch, 6] = add(flat, bias)
  return y
";
    assert_eq!(text(&reshaping()), expected);
}

/// A bias on a slice of an axis of unknown size.
fn sliced(end: i64, sizes: &[&str]) -> Model {
    Model {
        nodes: vec![
            node("Slice", &["x", "start", "end", "axes"], &["part"]),
            node("Add", &["part", "bias"], &["y"]),
        ],
        tensors: vec![
            tensor("start", &[1], I64, &integers(&[0])),
            tensor("end", &[1], I64, &integers(&[end])),
            tensor("axes", &[1], I64, &integers(&[0])),
            tensor("bias", &[1], F32, &floats(&[1.0])),
        ],
        inputs: vec![port("x", F32, sizes)],
        outputs: vec![port("y", F32, sizes)],
        ..Model::default()
    }
}

#[test]
fn the_largest_integer_is_the_end_of_an_axis() {
    let expected = "\
graph forward(x: f32[n, 4])
  y: f32[n, 4] = add(x, bias)
  return y
";
    for end in [i64::from(i32::MAX), i64::MAX] {
        assert_eq!(text(&sliced(end, &["n", "4"])), expected);
    }
}

#[test]
fn unknown_sizes_are_equal_to_no_other() {
    let expected = "\
graph forward(x: f32[x.0, x.1])
  y: f32[x.0, x.1] = add(x, bias)
  return y
";
    for unknown in ["?", "-1"] {
        assert_eq!(text(&sliced(i64::MAX, &[unknown; 2])), expected);
    }
}

#[test]
fn nodes_may_stand_in_any_order() {
    let mut model = reshaping();
    let expected = text(&model);
    model.nodes.reverse();
    assert_eq!(text(&model), expected);
}

#[test]
fn shapes_that_depend_on_data_are_refused_unless_they_are_fixed() {
    let model = Model {
        nodes: vec![node("Expand", &["x", "to"], &["y"])],
        inputs: vec![port("x", F32, &["1"]), port("to", I64, &["2"])],
        outputs: vec![port("y", F32, &["a", "b"])],
        ..Model::default()
    };
    let file = Onnx::parse(Bytes::from(&model.bytes()[..]), None).unwrap();
    let error = lower_with(&file, &BTreeMap::new()).unwrap_err().to_string();
    assert!(
        error.contains("node y (Expand): a shape depends on data"),
        "{error}"
    );
    let fixed = BTreeMap::from([("to".to_owned(), Value::i64([2], vec![3, 4]))]);
    let graph = lower_with(&file, &fixed).unwrap();
    assert!(graph.to_string().contains("f32[3, 4]"), "{graph}");
}

#[test]
fn inputs_and_constants_may_be_outputs() {
    let model = Model {
        nodes: vec![node("Identity", &["x"], &["same"])],
        tensors: vec![tensor("c", &[2], F32, &floats(&[1.0, 2.0]))],
        inputs: vec![port("x", F32, &["T"])],
        outputs: vec![
            port("same", F32, &["T"]),
            port("x", F32, &["T"]),
            port("c", F32, &["2"]),
        ],
        ..Model::default()
    };
    let file = Onnx::parse(Bytes::from(&model.bytes()[..]), None).unwrap();
    let graph = lower_with(&file, &BTreeMap::new()).unwrap();
    let names = graph.outputs().iter().map(|id| &graph.tensor(*id).name[..]);
    assert_eq!(names.collect::<Vec<_>>(), ["same", "x", "c"]);
}

#[test]
fn external_data_is_read_from_the_models_folder() {
    let folder = std::env::temp_dir().join(format!("kvark-onnx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut model = reshaping();
    let place = [
        ("location", "weights.bin"),
        ("offset", "8"),
        ("length", "24"),
    ];
    model.tensors[3] = crate::writer::external("bias", &[6], &place);
    std::fs::write(folder.join("model.onnx"), model.bytes()).unwrap();
    let data = [&[0; 8][..], &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])].concat();
    std::fs::write(folder.join("weights.bin"), data).unwrap();
    let file = Onnx::open(&folder.join("model.onnx")).unwrap();
    let bias = file.tensors["bias"].value().unwrap();
    assert_eq!(bias, Value::f32([6], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    std::fs::write(folder.join("weights.bin"), [0; 31]).unwrap();
    let error = Onnx::open(&folder.join("model.onnx"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("24 bytes at offset 8 of \"weights.bin\", which has 31 bytes"),
        "{error}"
    );
    #[cfg(unix)]
    {
        std::fs::remove_file(folder.join("weights.bin")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.join("weights.bin")).unwrap();
        let error = Onnx::open(&folder.join("model.onnx"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("links outside"), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
