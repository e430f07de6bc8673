//! Any file as an ExecuTorch program: an error or a graph, never a panic.

#![no_main]

use base::Bytes;
use import::pte::Pte;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let program = Pte::parse(&Bytes::from(bytes), None);
    let lowered = program.and_then(|program| import::pte::lower(&program, &Default::default()));
    if let Err(error) = lowered {
        let message = error.to_string();
        assert!(!message.is_empty() && message.len() < 10_000);
        assert!(!message.contains(char::is_control), "{message:?}");
    }
});
