//! Decoders by hand: what is recognised as a cache and as attention, and what is refused.

use super::*;
use crate::model_description::ModelDescription;
use crate::onnx::file::{Node, Port};
use crate::onnx::schema::{Attribute, AttributeValue, DimProto};
use crate::onnx::tensor::OnnxTensor;
use crate::stored_type::StoredType;
use std::collections::BTreeMap;

const HEADS: i64 = 2;
const DIM: i64 = 4;
const ROWS: i64 = 16;

fn port(name: &str, kind: StoredType, dims: &[i64]) -> Port {
    // Sizes of 0 are dynamic.
    let dim = |(axis, n): (usize, &i64)| match n {
        0 => DimProto::Symbol(format!("axis{axis}")),
        n => DimProto::Number(*n),
    };
    Port {
        name: name.into(),
        dtype: if kind == StoredType::I32 {
            "int32"
        } else {
            "int64"
        },
        shape: dims.iter().map(i64::to_string).collect(),
        kind: Some(kind),
        dims: Some(dims.iter().enumerate().map(dim).collect()),
    }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, i64)]) -> Node {
    let strings = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let attribute = |(name, value): &(&str, i64)| Attribute {
        name: (*name).to_owned(),
        value: AttributeValue::Int(*value),
    };
    Node {
        label: format!("{op} of {}", outputs[0]),
        op: op.into(),
        version: 24,
        inputs: strings(inputs),
        outputs: strings(outputs),
        attributes: attributes.iter().map(attribute).collect(),
        tensors: vec![],
        branches: vec![],
    }
}

/// A model of one layer that attends over a static buffer; `hidden` is what the rest would compute.
fn model() -> Onnx {
    let heads = [
        ("q_num_heads", HEADS),
        ("kv_num_heads", HEADS),
        ("is_causal", 1),
    ];
    let buffer = [0, ROWS, HEADS * DIM];
    Onnx {
        description: ModelDescription::default(),
        ir_version: 11,
        producer: String::new(),
        opsets: BTreeMap::from([(String::new(), 24)]),
        inputs: vec![
            port("input_ids", StoredType::I64, &[0, 0]),
            port("hidden", StoredType::F32, &[0, 0, HEADS * DIM]),
            port("key_cache.0", StoredType::F32, &buffer),
            port("value_cache.0", StoredType::F32, &buffer),
            port("write_indices", StoredType::I64, &[0]),
            port("nonpad_kv_seqlen", StoredType::I64, &[0]),
        ],
        outputs: vec![port("logits", StoredType::F32, &[0, 0, HEADS * DIM])],
        tensors: BTreeMap::new(),
        nodes: vec![
            node(
                "TensorScatter",
                &["key_cache.0", "hidden", "write_indices"],
                &["k"],
                &[("axis", 1)],
            ),
            node(
                "TensorScatter",
                &["value_cache.0", "hidden", "write_indices"],
                &["v"],
                &[("axis", 1)],
            ),
            node(
                "Attention",
                &["hidden", "k", "v", "", "", "", "nonpad_kv_seqlen"],
                &["logits"],
                &heads,
            ),
        ],
    }
}

/// The windows of all sites, or why there are none.
fn windows(file: &Onnx) -> Result<Vec<Option<u32>>, String> {
    let found = names(file, None).map_err(|e| e.to_string())?;
    let (names, caches) = found.ok_or("no decoder")?;
    let decoder = find(file, names, &caches).map_err(|e| e.to_string())?;
    Ok(decoder
        .sites
        .iter()
        .map(|(_, window)| window.window)
        .collect())
}

fn without(name: &str) -> Onnx {
    let mut file = model();
    file.inputs.retain(|port| port.name != name);
    file
}

#[test]
fn a_static_buffer_is_known_by_both_inputs_that_drive_it() {
    let file = model();
    assert_eq!(windows(&file), Ok(vec![None]));
    let (names, caches) = names(&file, None).unwrap().unwrap();
    assert_eq!(names, DecoderNames::default());
    let form = CacheLayout::Static {
        max_seq_len: 16,
        kv_hidden: 8,
    };
    assert_eq!((caches.len(), caches[0].form), (1, form));
    for (missing, there) in [
        ("write_indices", "nonpad_kv_seqlen"),
        ("nonpad_kv_seqlen", "write_indices"),
    ] {
        let message =
            format!("input {there:?} is there without {missing:?}, and a static cache needs both");
        assert_eq!(windows(&without(missing)), Err(message));
    }
}

#[test]
fn wrong_inputs_are_named() {
    let mut file = model();
    file.inputs[4].kind = Some(StoredType::I32);
    file.inputs[4].dtype = "int32";
    let message = "input \"write_indices\" is int32, must be int64";
    assert_eq!(windows(&file), Err(message.into()));

    let message = "layer 0 has the cache \"key_cache.0\" and no \"value_cache.0\"";
    assert_eq!(windows(&without("value_cache.0")), Err(message.into()));
    let message = "layer 0 has the cache \"value_cache.0\" and no \"key_cache.0\"";
    assert_eq!(windows(&without("key_cache.0")), Err(message.into()));

    let mut file = model();
    file.inputs[2] = port("key_cache.0", StoredType::F32, &[0, 0, 8]);
    let message = "cache \"key_cache.0\" is [0, 0, 8]: the rows and the width of a static buffer must be numbers";
    assert_eq!(windows(&file), Err(message.into()));
    file.inputs[2] = port("key_cache.0", StoredType::F32, &[8]);
    let message = "cache \"key_cache.0\" is [8], which has neither three axes nor four";
    assert_eq!(windows(&file), Err(message.into()));
}

#[test]
fn a_model_without_tokens_or_caches_is_no_decoder() {
    assert!(names(&without("input_ids"), None).unwrap().is_none());
    let mut file = without("key_cache.0");
    file.inputs.retain(|port| port.name != "value_cache.0");
    assert!(names(&file, None).unwrap().is_none());
}

/// Caches of four axes that declare both driver inputs: the default cache serves them.
#[test]
fn buffers_with_heads_apart_fall_back_to_the_default_cache() {
    let mut file = model();
    for index in [2, 3] {
        let name = file.inputs[index].name.clone();
        file.inputs[index] = port(&name, StoredType::F32, &[0, HEADS, ROWS, DIM]);
    }
    let (_, caches) = names(&file, None).unwrap().unwrap();
    let form = CacheLayout::Past {
        heads: 2,
        rows: Some(16),
    };
    assert_eq!(caches[0].form, form);
    file.inputs[1] = port("hidden", StoredType::F32, &[0, HEADS, 0, DIM]);
    for node in &mut file.nodes {
        node.attributes.retain(|a| a.name != "axis");
    }
    assert_eq!(windows(&file), Ok(vec![None]));
}

#[test]
fn layers_may_be_sparse_and_of_unlike_width() {
    let mut file = model();
    for (name, width) in [("key_cache.7", 24), ("value_cache.7", 16)] {
        file.inputs
            .push(port(name, StoredType::F32, &[0, ROWS, width]));
    }
    let caches = cache_layers(&file, &DecoderNames::default()).unwrap();
    let layers: Vec<u32> = caches.iter().map(|cache| cache.layer).collect();
    assert_eq!(layers, [0, 7]);
    // Nothing attends over the second one.
    let message = "cache \"key_cache.7\" is attended by no node that kvark recognises";
    assert_eq!(windows(&file), Err(message.into()));
}

#[test]
fn what_a_mask_shows_decides() {
    // Without the flag a query would see what the step writes after it.
    let mut file = model();
    file.nodes[2].attributes.retain(|a| a.name != "is_causal");
    let message = "node Attention of logits (Attention): lets a query see keys after its own";
    assert_eq!(windows(&file), Err(message.into()));

    // A window as an attribute.
    let mut file = model();
    file.nodes[2].attributes.push(Attribute {
        name: "left_window_size".into(),
        value: AttributeValue::Int(3),
    });
    assert_eq!(windows(&file), Ok(vec![Some(4)]));

    // A mask that depends on what the network computes.
    let mut file = model();
    file.inputs[1] = port("hidden", StoredType::F32, &[1, 0, HEADS * DIM]);
    file.nodes[2].inputs[3] = "hidden".into();
    assert!(windows(&file).is_err());
}

/// The model with a float mask of these dimensions.
fn with_bias(shape: &[usize], bias: impl Fn(usize) -> f32) -> Onnx {
    let elements: Vec<f32> = (0..shape.iter().product()).map(bias).collect();
    let bias = OnnxTensor {
        kind: StoredType::F32,
        shape: shape.to_vec(),
        data: base::Bytes::from_slice(&elements),
    };
    let mut file = model();
    file.tensors.insert("bias".into(), bias);
    file.nodes[2].inputs[3] = "bias".into();
    file
}

/// Softmax does not see a bias that all keys have. The cache's attention has no operand for any other.
#[test]
fn a_bias_that_varies_by_key_is_refused() {
    let keys = ROWS as usize;
    for same in [0.0, 0.5, -100.0] {
        assert_eq!(windows(&with_bias(&[1, keys], |_| same)), Ok(vec![None]));
    }
    let message = "node Attention of logits (Attention): adds a bias to its scores, which is not supported over a cache";
    let varying: [fn(usize) -> f32; 3] = [
        |key| 0.1 * key as f32,
        |key| if key == 0 { 1e-3 } else { 0.0 },
        |key| if key == 15 { -1.0 } else { 0.0 },
    ];
    for bias in varying {
        let file = with_bias(&[1, keys], bias);
        assert_eq!(windows(&file), Err(message.into()));
    }
    let file = with_bias(&[1, 2, 1, keys], |at| (at / 16) as f32);
    let message =
        "node Attention of logits (Attention): has a mask that is not the same for all heads";
    assert_eq!(windows(&file), Err(message.into()));
}

/// A configuration that renames both index inputs of the static cache.
fn renamed() -> GenAi {
    let config = br#"{"model": {"type": "llama", "decoder": {"inputs": {
        "past_key_names": "key_cache.%d", "past_value_names": "value_cache.%d",
        "write_indices": "first_row", "nonpad_kv_seqlen": "valid_rows"}}}}"#;
    GenAi::parse(config).unwrap()
}

#[test]
fn the_index_inputs_of_a_static_cache_may_have_other_names() {
    let mut file = model();
    for (from, to) in [
        ("write_indices", "first_row"),
        ("nonpad_kv_seqlen", "valid_rows"),
    ] {
        let ports = file.inputs.iter_mut().map(|port| &mut port.name);
        let operands = file.nodes.iter_mut().flat_map(|node| &mut node.inputs);
        let same = ports.chain(operands).filter(|name| *name == from);
        same.for_each(|name| *name = to.into());
    }
    let windows = |file: &Onnx| -> Result<Vec<Option<u32>>, String> {
        let genai = renamed();
        let (names, caches) = names(file, Some(&genai))
            .map_err(|e| e.to_string())?
            .ok_or("no decoder")?;
        let decoder = find(file, names, &caches).map_err(|e| e.to_string())?;
        Ok(decoder.sites.iter().map(|(_, look)| look.window).collect())
    };
    assert_eq!(windows(&file), Ok(vec![None]));
    for (missing, there) in [("first_row", "valid_rows"), ("valid_rows", "first_row")] {
        let mut file = file.clone();
        file.inputs.retain(|port| port.name != missing);
        let message =
            format!("input {there:?} is there without {missing:?}, and a static cache needs both");
        assert_eq!(windows(&file), Err(message));
    }
    file.inputs[4].kind = Some(StoredType::I32);
    file.inputs[4].dtype = "int32";
    let message = "input \"first_row\" is int32, must be int64";
    assert_eq!(windows(&file), Err(message.into()));
}

#[test]
fn circles_are_refused() {
    let mut file = model();
    file.nodes[0].attributes.push(Attribute {
        name: "mode".into(),
        value: AttributeValue::Text(base::Bytes::from(&b"circular"[..])),
    });
    let message = "node TensorScatter of k (TensorScatter): has a TensorScatter mode other than \"linear\", \
        which is not supported for a cache";
    assert_eq!(windows(&file), Err(message.into()));
}

/// The model with a past by head, as the builder of ONNX Runtime GenAI writes it.
fn past_of_the_builder() -> Onnx {
    let dims = |rows: &str| {
        let symbol = |name: &str| DimProto::Symbol(name.into());
        let heads = DimProto::Number(HEADS);
        vec![
            symbol("batch_size"),
            heads,
            symbol(rows),
            symbol("kv_cache_dim"),
        ]
    };
    let shaped = |name: &str, rows: &str| Port {
        dims: Some(dims(rows)),
        shape: ["batch_size", "2", rows, "kv_cache_dim"]
            .map(str::to_owned)
            .to_vec(),
        ..port(name, StoredType::F32, &[])
    };
    let mut file = model();
    file.inputs = vec![
        shaped("past_key_values.0.key", "past_sequence_length"),
        shaped("past_key_values.0.value", "past_sequence_length"),
        shaped("other", "kv_rows"),
    ];
    file.outputs = vec![shaped("present.0.key", "total_sequence_length")];
    file
}

#[test]
fn the_size_of_a_head_is_that_of_the_configuration() {
    let config = |decoder: &str| {
        let json = format!(r#"{{"model": {{"decoder": {decoder}}}}}"#);
        GenAi::parse(json.as_bytes()).unwrap()
    };
    let last = |port: &Port| port.shape[3].clone();
    for (decoder, expect) in [(r#"{"head_size": 8}"#, "8"), ("{}", "kv_cache_dim")] {
        let mut file = past_of_the_builder();
        file.set_head_size(&config(decoder));
        for port in file.inputs.iter().chain(&file.outputs) {
            assert_eq!(last(port), expect, "{}", port.name);
            assert_eq!(port.dims.as_ref().unwrap().len(), 4);
        }
        // It is not needed: the attention over a cache states it too.
        let found = cache_layers(&file, &DecoderNames::default()).unwrap();
        let past = CacheLayout::Past {
            heads: HEADS as usize,
            rows: None,
        };
        assert_eq!(found[0].form, past);
    }
    // Names of other sizes are left alone.
    let mut file = past_of_the_builder();
    let pattern =
        r#"{"head_size": 8, "inputs": {"past_key_names": "k.%d", "past_value_names": "v.%d"}}"#;
    file.set_head_size(&config(pattern));
    assert_eq!(last(&file.inputs[0]), "kv_cache_dim");
    let mut file = past_of_the_builder();
    file.set_head_size(&config(r#"{"head_size": 0}"#));
    let error = cache_layers(&file, &DecoderNames::default())
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("a head must not be empty"), "{error}");
}
