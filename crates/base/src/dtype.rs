//! The element types of tensors.

use std::fmt;

/// The element type of a tensor.
///
/// A block of a plain type is one element. The quantised formats pack `block_len` elements with their scales into
/// `block_bytes` bytes, along the innermost dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    non_camel_case_types,
    reason = "the names are those of the file format"
)]
#[allow(
    missing_docs,
    reason = "each variant is its own name; sizes are in `layout`"
)]
pub enum DType {
    F32,
    F16,
    BF16,
    I64,
    I32,
    I8,
    U8,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl DType {
    /// Every type, in declaration order.
    pub const ALL: [DType; 20] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::I8,
        DType::U8,
        DType::Bool,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::IQ4_NL,
        DType::IQ4_XS,
    ];

    /// `(name, elements in a block, bytes in a block, number in GGUF files)`.
    const fn layout(self) -> (&'static str, usize, usize, Option<u32>) {
        match self {
            DType::F32 => ("f32", 1, 4, Some(0)),
            DType::F16 => ("f16", 1, 2, Some(1)),
            DType::BF16 => ("bf16", 1, 2, Some(30)),
            DType::I64 => ("i64", 1, 8, Some(27)),
            DType::I32 => ("i32", 1, 4, Some(26)),
            DType::I8 => ("i8", 1, 1, Some(24)),
            DType::U8 => ("u8", 1, 1, None),
            DType::Bool => ("bool", 1, 1, None),
            DType::Q4_0 => ("q4_0", 32, 18, Some(2)),
            DType::Q4_1 => ("q4_1", 32, 20, Some(3)),
            DType::Q5_0 => ("q5_0", 32, 22, Some(6)),
            DType::Q5_1 => ("q5_1", 32, 24, Some(7)),
            DType::Q8_0 => ("q8_0", 32, 34, Some(8)),
            DType::Q2_K => ("q2_k", 256, 84, Some(10)),
            DType::Q3_K => ("q3_k", 256, 110, Some(11)),
            DType::Q4_K => ("q4_k", 256, 144, Some(12)),
            DType::Q5_K => ("q5_k", 256, 176, Some(13)),
            DType::Q6_K => ("q6_k", 256, 210, Some(14)),
            DType::IQ4_NL => ("iq4_nl", 32, 18, Some(20)),
            DType::IQ4_XS => ("iq4_xs", 256, 136, Some(23)),
        }
    }

    /// The lower-case name used in text forms and messages.
    pub const fn name(self) -> &'static str {
        self.layout().0
    }

    /// Elements in one block (1 for plain types).
    pub const fn block_len(self) -> usize {
        self.layout().1
    }

    /// Bytes in one block (the element size for plain types).
    pub const fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// The type with this number in GGUF files.
    pub fn from_ggml(number: u32) -> Option<DType> {
        DType::ALL
            .into_iter()
            .find(|t| t.layout().3 == Some(number))
    }

    /// Whether elements are packed in blocks with scales.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Whether values are real numbers (plain floats or a block format).
    pub const fn is_real(self) -> bool {
        !matches!(
            self,
            DType::I64 | DType::I32 | DType::I8 | DType::U8 | DType::Bool
        )
    }

    /// Bytes of a row of `len` elements; `None` if the row is not whole blocks or the size overflows.
    pub const fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The type with this name, as `name` prints it.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_round_trip() {
        for t in DType::ALL {
            assert_eq!(DType::from_name(t.name()), Some(t));
        }
    }

    #[test]
    fn rows_must_be_whole_blocks() {
        assert_eq!(DType::Q6_K.row_bytes(256), Some(210));
        assert_eq!(DType::Q6_K.row_bytes(255), None);
        assert_eq!(DType::I64.row_bytes(usize::MAX), None);
    }
}
