//! A checked position in a file's bytes.

use std::fmt;

use super::error::GgufErrorDetail;

/// Which part of the file is being read, for messages.
#[derive(Clone, Copy)]
pub(super) enum FieldLabel<'a> {
    /// A field of the fixed header.
    Header(&'static str),
    /// The name of the n-th metadata entry.
    Key(u64),
    /// A part of a metadata value.
    Value(&'a str, &'static str),
    /// The name of the n-th tensor.
    TensorName(u64),
    /// A part of a tensor's directory entry.
    Tensor(&'a str, &'static str),
}

impl fmt::Display for FieldLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldLabel::Header(part) => write!(f, "the {part}"),
            FieldLabel::Key(n) => write!(f, "the name of metadata key #{n}"),
            FieldLabel::Value(key, part) => write!(f, "the {part} of metadata key {key}"),
            FieldLabel::TensorName(n) => write!(f, "the name of tensor #{n}"),
            FieldLabel::Tensor(name, part) => write!(f, "the {part} of tensor {name}"),
        }
    }
}

/// Reads forward through bytes; every read is checked against the end.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub(super) fn take(
        &mut self,
        len: u64,
        field: FieldLabel<'_>,
    ) -> Result<&'a [u8], GgufErrorDetail> {
        let fit = usize::try_from(len).ok().filter(|&n| n <= self.left());
        let Some(n) = fit else {
            return Err(GgufErrorDetail::Truncated {
                field: field.to_string(),
                at: self.at,
                need: len,
                len: self.bytes.len(),
            });
        };
        let taken = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(
        &mut self,
        field: FieldLabel<'_>,
    ) -> Result<[u8; N], GgufErrorDetail> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, field: FieldLabel<'_>) -> Result<u32, GgufErrorDetail> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: FieldLabel<'_>) -> Result<u64, GgufErrorDetail> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A count of items of at least `min_bytes` each; an error if the rest of the file is too short for them. No memory is
    /// reserved for a count: memory grows with the items that are read.
    pub(super) fn count(
        &mut self,
        min_bytes: usize,
        field: FieldLabel<'_>,
    ) -> Result<usize, GgufErrorDetail> {
        let count = self.u64(field)?;
        self.check_count(count, min_bytes, field)
    }

    /// The check of [`Cursor::count`] for a count that was read earlier.
    pub(super) fn check_count(
        &self,
        count: u64,
        min_bytes: usize,
        field: FieldLabel<'_>,
    ) -> Result<usize, GgufErrorDetail> {
        let max = self.left() / min_bytes;
        match usize::try_from(count) {
            Ok(n) if n <= max => Ok(n),
            _ => Err(GgufErrorDetail::Count {
                field: field.to_string(),
                count,
                left: self.left(),
                max,
            }),
        }
    }

    /// The bytes of a string: a 64-bit length and that many bytes.
    pub(super) fn string_bytes(
        &mut self,
        field: FieldLabel<'_>,
    ) -> Result<&'a [u8], GgufErrorDetail> {
        let len = self.u64(field)?;
        self.take(len, field)
    }

    /// A string that must be UTF-8.
    pub(super) fn string(&mut self, field: FieldLabel<'_>) -> Result<&'a str, GgufErrorDetail> {
        let bytes = self.string_bytes(field)?;
        std::str::from_utf8(bytes).map_err(|e| {
            // Enough to recognise the string; a hostile one can be as long as the file.
            let shown = &bytes[..bytes.len().min(e.valid_up_to() + 8).min(64)];
            GgufErrorDetail::Utf8 {
                field: field.to_string(),
                at: e.valid_up_to(),
                text: String::from_utf8_lossy(shown).into_owned(),
            }
        })
    }
}
