//! Files that break rules: each gives an error that names what is wrong, and none a panic.

use std::collections::BTreeMap;
use std::path::Path;

use base::{Bytes, DType};
use graph::{Bindings, MAX_SYMBOLS, Value};
use import::onnx::{Onnx, lower_with};
use import::{ImportErrorKind as K, ImportOptions};

use crate::writer::{F32, Message, Model, external, int_attribute, node, opset, port, tensor};

/// A model that exercises every part of the reader.
fn model() -> Model {
    let value = tensor("", &[1], F32, &2f32.to_le_bytes());
    let value = Message::default()
        .text(1, "value")
        .message(5, &value)
        .int(20, 4);
    let function = Message::default()
        .text(1, "Double")
        .texts(4, &["a"])
        .texts(5, &["b"]);
    let function = function.message(7, &node("Add", &["a", "a"], &["b"]));
    let function = function.message(9, &opset("", 21)).text(10, "test");
    let weight: Vec<u8> = (0..12).flat_map(|n| (n as f32).to_le_bytes()).collect();
    Model {
        nodes: vec![
            node("MatMul", &["x", "w"], &["h"]),
            node("Double", &["h"], &["d"]).text(7, "test"),
            node("Constant", &[], &["two"]).message(5, &value),
            node("Mul", &["d", "two"], &["m"]),
            node("Softmax", &["m"], &["y"]).message(5, &int_attribute("axis", -1)),
        ],
        tensors: vec![tensor("w", &[4, 3], F32, &weight)],
        inputs: vec![port("x", F32, &["T", "4"])],
        outputs: vec![port("y", F32, &["T", "3"])],
        functions: vec![function],
    }
}

fn import(bytes: &[u8]) -> Result<(), import::ImportError> {
    let file = Onnx::parse(Bytes::from(bytes), None)?;
    lower_with(&file, &BTreeMap::new()).map(|_| ())
}

/// Lowers the first stages of a model whose graphs are made for the shapes of each run's inputs, with zeros for what their graphs would
/// give.
fn stages(bytes: &[u8]) -> Result<(), import::ImportError> {
    let options = ImportOptions {
        as_exported: true,
        by_shape: true,
        ..ImportOptions::default()
    };
    let artifact = import::open_bytes(Bytes::from(bytes), &options)?;
    for method in &artifact.shaped {
        let shapes = method.shapes(|_| Some(2))?;
        let views: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
        let inputs = method.inputs.iter().zip(&shapes);
        let inputs: Option<Vec<Value>> = inputs
            .map(|(info, shape)| zeros(info.dtype, shape))
            .collect();
        let Some(mut given) = inputs else { continue };
        let mut stage = artifact.first_stage(method, &views)?;
        for _ in 0..4 {
            let at = Bindings([2; MAX_SYMBOLS]);
            let mut outputs = vec![];
            if let Some(graph) = &stage.graph {
                assert!(graph.verify().is_ok());
                for output in graph.outputs() {
                    let ty = &graph.tensor(*output).ty;
                    let shape = ty.dims(&at);
                    outputs.extend(shape.and_then(|shape| zeros(ty.dtype, &shape)));
                }
            }
            let Some(cut) = &stage.next else { break };
            if outputs.len() < stage.graph.iter().map(|graph| graph.outputs().len()).sum() {
                break;
            }
            let views: Vec<_> = given.iter().map(Value::view).collect();
            let inputs = cut.resume(&views, outputs)?;
            stage = artifact.next_stage(cut, &inputs)?;
            given = inputs.values;
        }
    }
    Ok(())
}

/// A tensor of zeros that is not too large.
fn zeros(dtype: DType, shape: &[usize]) -> Option<Value> {
    let len = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let len = len.filter(|len| *len <= 1 << 16)?;
    let shape = shape.to_vec();
    Some(match dtype {
        DType::F32 => Value::f32(shape, vec![0.0; len]),
        DType::I32 => Value::i32(shape, vec![0; len]),
        DType::I64 => Value::i64(shape, vec![0; len]),
        DType::Bool => Value::bool(shape, vec![false; len]),
        _ => return None,
    })
}

#[test]
fn the_model_itself_is_read() {
    let file = Onnx::parse(Bytes::from(&model().bytes()[..]), None).unwrap();
    assert_eq!((file.ir_version, file.nodes()), (10, 5));
    assert_eq!(file.opsets[""], 21);
    assert_eq!(file.inputs[0].shape, ["T", "4"]);
    assert_eq!(file.ops()["Add"], 1);
    assert!(file.unknown_ops().is_empty());
    import(&model().bytes()).unwrap();
}

/// What is wrong with a model that `change` has changed.
fn refusal(change: impl FnOnce(&mut Model)) -> (K, String) {
    let mut model = model();
    change(&mut model);
    let error = import(&model.bytes()).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn broken_rules_are_named() {
    type Change = fn(&mut Model);
    let table: &[(Change, K, &str)] = &[
        (
            |m| m.nodes[0] = node("MatMul", &["x", "gone"], &["h"]),
            K::Malformed,
            "operand \"gone\" of node h (MatMul)",
        ),
        (
            |m| m.nodes[0] = node("MatMul", &["y", "w"], &["h"]),
            K::Malformed,
            "cycle",
        ),
        (
            |m| m.nodes.push(node("Neg", &["x"], &["h"])),
            K::Malformed,
            "\"h\" is defined again",
        ),
        (
            |m| m.nodes.push(node("Neg", &["h"], &["x"])),
            K::Malformed,
            "\"x\" is defined again",
        ),
        (
            |m| m.outputs.push(port("z", F32, &[])),
            K::Malformed,
            "output \"z\" is never computed",
        ),
        (
            |m| m.inputs.push(port("x", F32, &[])),
            K::Malformed,
            "input \"x\" is defined twice",
        ),
        (
            |m| m.tensors.push(tensor("w", &[0], F32, &[])),
            K::Malformed,
            "initialiser \"w\" is defined twice",
        ),
        (
            |m| m.tensors[0] = tensor("w", &[4, 4], F32, &[0; 48]),
            K::Malformed,
            "tensor \"w\" has 48 bytes, [4, 4] takes 64",
        ),
        (
            |m| m.tensors[0] = tensor("w", &[-1], F32, &[]),
            K::Malformed,
            "invalid dimension -1",
        ),
        (
            |m| m.tensors[0] = tensor("w", &[1 << 40, 1 << 40], F32, &[]),
            K::Malformed,
            "overflow",
        ),
        (
            |m| m.tensors[0] = tensor("w", &[i64::MAX], F32, &[]),
            K::Malformed,
            "overflow",
        ),
        (
            |m| m.tensors[0] = tensor("w", &[1], 8, &[]),
            K::Malformed,
            "type code 8 (string)",
        ),
        (
            |m| m.tensors[0] = tensor("w", &[1], 99, &[]),
            K::Malformed,
            "type code 99",
        ),
        (
            |m| m.tensors[0] = tensor("w", &[5, 3], F32, &[0; 60]),
            K::Node,
            "node h (MatMul)",
        ),
        (
            |m| m.nodes[4] = node("Fancy", &["m"], &["y"]).text(7, "org.example"),
            K::UnknownOp,
            "org.example::Fancy (node y)",
        ),
        (
            |m| m.nodes[4] = node("Softmax", &["m"], &["y"]).message(5, &int_attribute("axis", 9)),
            K::Node,
            "axis 9",
        ),
        (
            |m| m.nodes[4] = node("Softmax", &[], &["y"]),
            K::Node,
            "operand 0",
        ),
        (
            |m| m.nodes[1] = node("Double", &["h", "h"], &["d"]).text(7, "test"),
            K::Malformed,
            "2 operands",
        ),
        (
            |m| m.inputs[0] = port("x", 8, &["T", "4"]),
            K::Value,
            "input \"x\"",
        ),
        (
            |m| m.inputs[0] = port("x", F32, &["-3", "4"]),
            K::Value,
            "-3",
        ),
        (
            |m| m.inputs[0] = port("x", F32, &["a", "b", "c", "d", "e"]),
            K::Value,
            "at most 4",
        ),
        (
            |m| m.outputs.clear(),
            K::Unsupported,
            "a model without outputs",
        ),
    ];
    for (change, kind, want) in table {
        let (found, message) = refusal(change);
        assert!(message.contains(want), "{message:?} does not say {want:?}");
        assert_eq!(found, *kind, "{message}");
    }
}

#[test]
fn external_data_stays_in_its_folder() {
    let places: &[(&[(&str, &str)], &str)] = &[
        (&[("location", "../secret")], "outside the model's folder"),
        (&[("location", "/etc/passwd")], "outside the model's folder"),
        (
            &[("location", "a/../../secret")],
            "outside the model's folder",
        ),
        (&[("location", "")], "outside the model's folder"),
        (&[], "states no location"),
        (&[("location", "w"), ("offset", "-1")], "offset: \"-1\""),
        (&[("location", "w"), ("length", "1e9")], "length: \"1e9\""),
        (&[("location", "absent.bin")], "absent.bin"),
    ];
    let folder = std::env::temp_dir();
    for (place, want) in places {
        let mut model = model();
        model.tensors[0] = external("w", &[4, 3], place);
        for folder in [None, Some(folder.as_path())] {
            let error = Onnx::parse(Bytes::from(&model.bytes()[..]), folder);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("tensor \"w\""), "{error}");
            assert!(error.contains(want) || folder.is_none(), "{error}");
        }
    }
}

#[test]
fn functions_that_call_themselves_end() {
    let call =
        |name: &str, input: &str, output: &str| node(name, &[input], &[output]).text(7, "test");
    let function = |name: &str, nodes: &[Message]| {
        let function = Message::default()
            .text(1, name)
            .texts(4, &["a"])
            .texts(5, &["b"]);
        let function = nodes.iter().fold(function, |f, node| f.message(7, node));
        function.text(10, "test")
    };
    let mut loops = model();
    loops.functions = vec![function("Double", &[call("Double", "a", "b")])];
    let error = import(&loops.bytes()).unwrap_err().to_string();
    assert!(error.contains("recursive functions"), "{error}");

    // Thirty functions that each call the next twice would be a billion nodes.
    let mut doubling = model();
    let name = |n: usize| {
        if n == 0 {
            "Double".to_owned()
        } else {
            format!("D{n}")
        }
    };
    doubling.functions = (0..30)
        .map(|n| {
            let next = name(n + 1);
            function(&name(n), &[call(&next, "a", "t"), call(&next, "t", "b")])
        })
        .collect();
    let last = [node("Neg", &["a"], &["b"])];
    doubling.functions.push(function(&name(30), &last));
    let error = import(&doubling.bytes()).unwrap_err().to_string();
    assert!(error.contains("exceeds the limit of"), "{error}");
}

#[test]
fn no_change_of_a_byte_is_a_panic() {
    let bytes = model().bytes();
    for end in 0..bytes.len() {
        let _ = import(&bytes[..end]);
    }
    for at in 0..bytes.len() {
        for byte in [
            0,
            1,
            7,
            0x7F,
            0x80,
            0xFF,
            bytes[at] ^ 1,
            bytes[at].wrapping_add(1),
        ] {
            let mut changed = bytes.clone();
            changed[at] = byte;
            if let Err(error) = import(&changed) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

/// Changes per model; `KVARK_MUTATIONS` asks for more.
const MUTATIONS: usize = 200;

#[test]
fn no_change_of_a_real_model_is_a_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvark/tests/onnx_node/own");
    let wanted = std::env::var("KVARK_MUTATIONS").ok();
    let count = wanted.map_or(MUTATIONS, |n| n.parse().unwrap());
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut models = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let Ok(bytes) = std::fs::read(entry.unwrap().path().join("model.onnx")) else {
            continue;
        };
        models += 1;
        import(&bytes).or_else(|_| stages(&bytes)).unwrap();
        for _ in 0..count {
            let mut changed = bytes.clone();
            for _ in 0..1 + random(3) {
                let at = random(changed.len());
                changed[at] = match random(4) {
                    0 => random(256) as u8,
                    1 => changed[at] ^ 1 << random(8),
                    2 => changed[random(changed.len())],
                    _ => [0, 1, 0x7F, 0x80, 0xFF][random(5)],
                };
            }
            if random(8) == 0 {
                changed.truncate(random(changed.len()));
            }
            for lower in [import, stages] {
                if let Err(error) = lower(&changed) {
                    assert!(!error.to_string().contains(char::is_control));
                }
            }
        }
    }
    assert!(models > 20);
}

#[test]
fn what_is_no_protobuf_is_refused() {
    for bytes in [
        &b""[..],
        b"hello",
        &[0xFF; 64],
        &[0x08, 0x0A],
        &[0x3A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F],
    ] {
        let error = Onnx::parse(Bytes::from(bytes), None).unwrap_err();
        assert!(matches!(error.kind(), K::Malformed), "{error}");
    }
    let newer = Message::default()
        .int(1, 99)
        .message(7, &Message::default());
    let error = Onnx::parse(Bytes::from(&newer.0[..]), None).unwrap_err();
    assert_eq!(error.to_string(), "IR version 99 is not supported");
}
