//! Any bytes: reading and lowering a draft head gives an error or a consistent model, and never a panic.
//!
//! Two bytes of length and a configuration come before the file.

#![no_main]

use base::Bytes;
use import::safetensors::{self, Safetensors};
use import::{ImportError, ImportOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (config, file) = rest.split_at(length);
    let file = match Safetensors::parse(&Bytes::from(file), config) {
        Ok(file) => file,
        Err(error) => return check_message(&error),
    };
    for tensor in &file.tensors {
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(tensor.data.len(), elements * tensor.dtype.block_bytes());
    }
    match safetensors::lower(&file, &ImportOptions::default()) {
        Ok(model) => {
            let head = model.draft_head.expect("only heads are supported");
            assert!(!head.target_layers.is_empty());
            assert_eq!(model.methods.len(), 2);
        }
        Err(error) => check_message(&error),
    }
});

/// Messages are made from the file's own names and numbers, yet short and harmless to print.
fn check_message(error: &ImportError) {
    let message = error.to_string();
    assert!(!message.is_empty() && !message.contains(char::is_control));
    assert!(message.len() < 20_000);
}
