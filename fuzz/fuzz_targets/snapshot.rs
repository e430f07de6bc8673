//! Any file as a snapshot: an error or a snapshot whose parts lie in it, never a panic.

#![no_main]

use base::{Bytes, xxh64};
use libfuzzer_sys::fuzz_target;
use runtime::Snapshot;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // Behind a checksum nothing would be tried, so the head's is set right.
    if let Some(rows) = rows_at(bytes) {
        let mut bytes = bytes.to_vec();
        let len = bytes.len() as u64;
        bytes[16..24].copy_from_slice(&len.to_le_bytes());
        let sum = xxh64(&bytes[..rows - 8], 0);
        bytes[rows - 8..rows].copy_from_slice(&sum.to_le_bytes());
        check(&bytes);
    }
});

fn check(bytes: &[u8]) {
    match Snapshot::parse(Bytes::from(bytes)) {
        Ok(snapshot) => {
            let tokens = snapshot.tokens().len();
            assert!(tokens * 4 + snapshot.notes().len() <= bytes.len());
            assert!(snapshot.restorable().longest(tokens) <= tokens);
        }
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && message.len() < 1000);
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }
}

/// Where the head says that rows begin.
fn rows_at(bytes: &[u8]) -> Option<usize> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let (layers, tokens, states, notes) = (number(12)?, number(48)?, number(52)?, number(56)?);
    let rows = (64 + 4 * (tokens + states) + 40 * layers + notes + 8).next_multiple_of(64);
    (rows <= bytes.len()).then_some(rows)
}
