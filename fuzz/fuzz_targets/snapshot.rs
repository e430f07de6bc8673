//! Any file as a snapshot and as a prefix file: an error or one whose parts lie in it, never a panic.

#![no_main]

use base::{Bytes, xxh64};
use libfuzzer_sys::fuzz_target;
use runtime::{PrefixFile, Snapshot};

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    check_prefix(bytes);
    // Behind a checksum nothing would be tried, so the head's is set right.
    if let Some(rows) = rows_at(bytes, 64).filter(|rows| *rows <= bytes.len()) {
        check(&with_checksum(bytes.to_vec(), rows));
    }
    // The rows of a prefix begin with a page.
    if let Some(rows) = rows_at(bytes, 4096).filter(|rows| *rows <= 64 * 4096) {
        let mut bytes = bytes.to_vec();
        bytes[..8].copy_from_slice(b"KVARKPFX");
        bytes.resize(bytes.len().max(rows), 0);
        check_prefix(&with_checksum(bytes, rows));
    }
});

/// The file with its length and the checksum of its head.
fn with_checksum(mut bytes: Vec<u8>, rows: usize) -> Vec<u8> {
    let len = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&len.to_le_bytes());
    let sum = xxh64(&bytes[..rows - 8], 0);
    bytes[rows - 8..rows].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn check_prefix(bytes: &[u8]) {
    match PrefixFile::parse(Bytes::from(bytes)) {
        Ok(prefix) => {
            assert!(prefix.tokens().len() * 4 + prefix.notes().len() <= bytes.len());
            assert!(!prefix.tokens().is_empty() && prefix.kv_bytes() <= bytes.len());
        }
        Err(error) => check_message(&error.to_string()),
    }
}

fn check(bytes: &[u8]) {
    match Snapshot::parse(Bytes::from(bytes)) {
        Ok(snapshot) => {
            let tokens = snapshot.tokens().len();
            assert!(tokens * 4 + snapshot.notes().len() <= bytes.len());
            assert!(snapshot.restorable().longest(tokens) <= tokens);
        }
        Err(error) => check_message(&error.to_string()),
    }
}

fn check_message(message: &str) {
    assert!(!message.is_empty() && message.len() < 1000);
    assert!(!message.contains(char::is_control), "{message:?}");
}

/// Where the head says that rows begin.
fn rows_at(bytes: &[u8], alignment: usize) -> Option<usize> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let (layers, tokens, states, notes) = (number(12)?, number(48)?, number(52)?, number(56)?);
    Some((64 + 4 * (tokens + states) + 40 * layers + notes + 8).next_multiple_of(alignment))
}
