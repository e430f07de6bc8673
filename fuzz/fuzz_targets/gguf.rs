//! Any bytes: reading gives an error or a consistent file, and never a panic.

#![no_main]

use std::collections::HashSet;

use base::{Bytes, quant};
use import::gguf::{Gguf, GgufError, GgufErrorKind, GgufTensor, Metadata, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = match Gguf::parse(Bytes::from(bytes)) {
        Ok(file) => file,
        Err(error) => {
            check_message(&error);
            return;
        }
    };
    walk_metadata(&file.metadata);

    let mut names = HashSet::new();
    for tensor in &file.tensors {
        assert!(names.insert(tensor.name.as_str()));
        assert_eq!(
            file.tensor(&tensor.name).map(|t| &t.name),
            Some(&tensor.name)
        );
        expand_ends(tensor);
    }
    let total: usize = file.tensors.iter().map(|t| t.data.len()).sum();
    assert!(total <= bytes.len(), "tensors overlap");
});

/// Every getter on every key: the right ones succeed, the others say that the type is wrong.
fn walk_metadata(metadata: &Metadata) {
    for (key, value) in metadata.iter() {
        assert_eq!(
            metadata.get(key).map(Value::type_name),
            Some(value.type_name())
        );
        let errors = [
            metadata.str(key).err(),
            metadata.bool(key).err(),
            metadata.f32(key).err(),
            metadata.u32(key).err(),
            metadata.u64(key).err(),
            metadata.usize(key).err(),
            metadata.strings(key).err(),
            metadata.bools(key).err(),
            metadata.f32s(key).err(),
            metadata.i32s(key).err(),
            metadata.u32s(key).err(),
            metadata.usizes(key).err(),
        ];
        for error in errors.into_iter().flatten() {
            check_message(&error);
            assert_eq!(error.kind(), GgufErrorKind::WrongType);
        }
    }
}

/// Messages are made from the file's own names and numbers, yet short and harmless to print.
fn check_message(error: &GgufError) {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains(char::is_control));
    assert!(message.len() < 20_000);
}

/// Expands the first and the last block of a tensor.
fn expand_ends(tensor: &GgufTensor) {
    let elements = tensor.shape.iter().product::<usize>();
    assert_eq!(Some(tensor.data.len()), tensor.dtype.row_bytes(elements));
    assert!(elements > 0 && tensor.len() == elements);
    let size = tensor.dtype.block_bytes();
    let mut out = vec![0.0; tensor.dtype.block_len()];
    for block in [
        &tensor.data[..size],
        &tensor.data[tensor.data.len() - size..],
    ] {
        let expanded = quant::dequantise(tensor.dtype, block, &mut out);
        assert_eq!(expanded.is_ok(), tensor.dtype.is_real());
    }
}
