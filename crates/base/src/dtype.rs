//! The element types of tensors.

use crate::quant::{self, BlockFormat};
use std::fmt;

/// Declares [`DType`]: plain types with name, bytes and number in GGUF files, then block formats.
macro_rules! dtypes {
    (
        plain { $($plain:ident: $name:literal, $bytes:literal, $number:expr;)* }
        blocks { $($block:ident)* }
    ) => {
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
            $($plain,)*
            $($block,)*
        }

        impl DType {
            /// Every type, in declaration order.
            pub const ALL: [DType; [$(stringify!($plain),)* $(stringify!($block),)*].len()] =
                [$(DType::$plain,)* $(DType::$block,)*];

            /// The block format; `None` for plain types.
            pub const fn format(self) -> Option<&'static BlockFormat> {
                match self {
                    $(DType::$block => Some(&quant::$block),)*
                    $(DType::$plain => None,)*
                }
            }

            /// `(name, elements in a block, bytes in a block, number in GGUF files)`.
            const fn layout(self) -> (&'static str, usize, usize, Option<u32>) {
                match self {
                    $(DType::$plain => ($name, 1, $bytes, $number),)*
                    $(DType::$block => {
                        let format = &quant::$block;
                        (format.name, format.len, format.bytes, Some(format.number))
                    })*
                }
            }
        }
    };
}

dtypes! {
    plain {
        F32: "f32", 4, Some(0);
        F16: "f16", 2, Some(1);
        BF16: "bf16", 2, Some(30);
        I64: "i64", 8, Some(27);
        I32: "i32", 4, Some(26);
        I8: "i8", 1, Some(24);
        U8: "u8", 1, None;
        Bool: "bool", 1, None;
    }
    blocks { Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 IQ2_XXS }
}

impl DType {
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

    /// The number in GGUF files.
    pub const fn number(self) -> Option<u32> {
        self.layout().3
    }

    /// The type with this number in GGUF files.
    pub fn from_ggml(number: u32) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.number() == Some(number))
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
