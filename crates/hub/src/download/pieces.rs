//! Which pieces of a file are there: the state of a download, stored beside its partial file.

use serde_json::{Value, json};

/// The version of a file on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    pub(super) bytes: u64,
    /// The checksum, or else what the server calls this version.
    pub(super) validator: Option<String>,
}

/// The pieces of a file.
pub(super) struct Pieces {
    version: FileVersion,
    piece_bytes: u64,
    /// Bytes at the start of each piece that are in the partial file.
    done: Vec<u64>,
    /// Whether a later download can continue.
    resumable: bool,
}

/// A range of bytes that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingRange {
    pub(super) from: u64,
    pub(super) end: u64,
}

impl Pieces {
    /// The pieces that an earlier download of the same version left, or all of them missing. The partial file has
    /// `part_bytes`; `state` was stored beside it.
    pub(super) fn new(
        state: Option<Value>,
        part_bytes: u64,
        version: FileVersion,
        piece_bytes: u64,
        has_ranges: bool,
    ) -> Pieces {
        let resumable = has_ranges && version.validator.is_some();
        let stored = state.filter(|_| resumable);
        let stored = stored.and_then(|state| Pieces::parse(&state, &version));
        let stored = stored.filter(|_| part_bytes == version.bytes);
        stored.unwrap_or_else(|| {
            let count = version.bytes.div_ceil(piece_bytes) as usize;
            Pieces {
                version,
                piece_bytes,
                done: vec![0; count],
                resumable,
            }
        })
    }

    /// Reads a state file; `None` if it is of another version or damaged.
    fn parse(state: &Value, version: &FileVersion) -> Option<Pieces> {
        let piece_bytes = state["piece_bytes"].as_u64().filter(|n| *n > 0)?;
        let same = state["bytes"].as_u64() == Some(version.bytes)
            && state["validator"].as_str() == version.validator.as_deref();
        let done = state["done"].as_array()?.iter().map(Value::as_u64);
        let pieces = Pieces {
            version: version.clone(),
            piece_bytes,
            done: done.collect::<Option<_>>()?,
            resumable: true,
        };
        let counted = pieces.done.len() as u64 == version.bytes.div_ceil(piece_bytes);
        let fits = |(index, done): (usize, &u64)| *done <= pieces.len(index);
        (same && counted && pieces.done.iter().enumerate().all(fits)).then_some(pieces)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "bytes": self.version.bytes,
            "validator": self.version.validator,
            "piece_bytes": self.piece_bytes,
            "done": self.done,
        })
    }

    /// Bytes of a piece; the last one may be shorter.
    fn len(&self, index: usize) -> u64 {
        let from = index as u64 * self.piece_bytes;
        self.piece_bytes.min(self.version.bytes - from)
    }

    pub(super) fn total(&self) -> u64 {
        self.version.bytes
    }

    pub(super) fn done(&self) -> u64 {
        self.done.iter().sum()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.done() == self.version.bytes
    }

    pub(super) fn is_resumable(&self) -> bool {
        self.resumable
    }

    /// Forgets what is there; the file is then downloaded in one stream.
    pub(super) fn give_up_resuming(&mut self) {
        self.resumable = false;
        self.done.fill(0);
    }

    /// The missing part of each piece, in order.
    pub(super) fn missing(&self) -> impl Iterator<Item = MissingRange> {
        let range = |(index, done): (usize, &u64)| {
            let start = index as u64 * self.piece_bytes;
            MissingRange {
                from: start + done,
                end: start + self.len(index),
            }
        };
        let ranges = self.done.iter().enumerate().map(range);
        ranges.filter(|range| range.from < range.end)
    }

    /// Notes that bytes were written. Returns whether a piece is complete with them.
    pub(super) fn wrote(&mut self, mut from: u64, len: u64) -> bool {
        let end = from + len;
        let mut completed = false;
        while from < end {
            let index = (from / self.piece_bytes) as usize;
            let start = index as u64 * self.piece_bytes;
            let until = end.min(start + self.len(index));
            // A stream that began again writes bytes that are there already.
            let done = start + self.done[index];
            if from <= done && until > done {
                self.done[index] = until - start;
                completed |= self.done[index] == self.len(index);
            }
            from = until;
        }
        completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(done: &[u64]) -> Pieces {
        Pieces {
            version: FileVersion {
                bytes: 25,
                validator: Some("v1".to_owned()),
            },
            piece_bytes: 10,
            done: done.to_vec(),
            resumable: true,
        }
    }

    #[test]
    fn what_is_missing_follows_what_was_written() {
        let mut some = pieces(&[0, 0, 0]);
        assert!(!some.wrote(0, 4));
        assert!(some.wrote(4, 6));
        assert!(!some.wrote(10, 3));
        // Behind a gap: not counted.
        assert!(!some.wrote(15, 2));
        let missing: Vec<_> = some.missing().map(|r| (r.from, r.end)).collect();
        assert_eq!(missing, [(13, 20), (20, 25)]);
        // A stream crosses pieces.
        assert!(some.wrote(11, 14));
        assert!(some.is_complete());
    }

    #[test]
    fn a_state_is_only_used_for_its_own_version() {
        let state = pieces(&[10, 3, 0]).to_json();
        let version = |bytes, validator: &str| FileVersion {
            bytes,
            validator: Some(validator.to_owned()),
        };
        let read = Pieces::parse(&state, &version(25, "v1")).unwrap();
        assert_eq!(read.done(), 13);
        assert!(Pieces::parse(&state, &version(26, "v1")).is_none());
        assert!(Pieces::parse(&state, &version(25, "v2")).is_none());
        for damaged in [
            r#"{"bytes":25,"validator":"v1","piece_bytes":0,"done":[]}"#,
            r#"{"bytes":25,"validator":"v1","piece_bytes":10,"done":[1,2]}"#,
            r#"{"bytes":25,"validator":"v1","piece_bytes":10,"done":[1,2,6]}"#,
            r#"{"bytes":25,"validator":"v1","piece_bytes":10,"done":[1,2,"x"]}"#,
            "[]",
        ] {
            let state: Value = serde_json::from_str(damaged).unwrap();
            assert!(
                Pieces::parse(&state, &version(25, "v1")).is_none(),
                "{damaged}"
            );
        }
    }
}
