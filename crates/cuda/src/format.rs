//! The formats that weights have on the device.

use base::DType;
use base::named_enum;
use base::quant::{Codes, Dialect};
use std::fmt::Write;

named_enum! {
    /// How the device stores a weight; `kernels/formats.cuh` describes each format.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u32)]
    pub enum DeviceFormat {
        /// Codes of 4 bits, scale and offset for 32 columns.
        W4 = "w4",
        /// Signed codes of 8 bits, scale for 32 columns.
        W8 = "w8",
        /// Signed codes of 8 bits, scale and offset for 16 columns.
        W8Groups = "w8_groups",
        /// bf16.
        Bf16 = "bf16",
        /// f16.
        F16 = "f16",
        /// f32.
        F32 = "f32",
    }
}

impl DeviceFormat {
    /// The numbers that an element of x is the sum of, as `XP` in the kernels.
    pub(crate) fn x_parts(self) -> usize {
        match self {
            DeviceFormat::Bf16 | DeviceFormat::F16 => 2,
            DeviceFormat::F32 => 3,
            _ => 1,
        }
    }

    /// The device's format of a type of the file; `None` for integers.
    pub(crate) fn of(dtype: DType) -> Option<DeviceFormat> {
        let Some(format) = dtype.format() else {
            return match dtype {
                DType::F32 => Some(DeviceFormat::F32),
                DType::F16 => Some(DeviceFormat::F16),
                DType::BF16 => Some(DeviceFormat::Bf16),
                _ => None,
            };
        };
        Some(match (format.codes, format.group) {
            // Its scales have the exponents of f32, which f16 scales have not. Its elements are exact in bf16.
            _ if dtype == DType::MXFP4 => DeviceFormat::Bf16,
            (Codes::Unsigned { bits: 4, .. }, 32) => DeviceFormat::W4,
            (Codes::Signed, 32) => DeviceFormat::W8,
            _ => DeviceFormat::W8Groups,
        })
    }

    /// Whether the elements of a type are packed without rounding. Rows of other types are gathered from the file's bytes.
    pub(crate) fn is_exact(dtype: DType) -> bool {
        use DeviceFormat::{Bf16, F16, W4, W8};
        let is_one_level = dtype.format().is_none_or(|format| !format.two_level);
        is_one_level && matches!(DeviceFormat::of(dtype), Some(W4 | W8 | Bf16 | F16))
    }

    /// The number of a type of the file in the kernels: that of GGUF files. `None` for integers.
    pub(crate) fn file_code(dtype: DType) -> Option<u32> {
        DeviceFormat::of(dtype).and(dtype.number())
    }

    /// Bytes of the codes and of the scales of 16 rows and 64 columns.
    pub(crate) fn tile_bytes(self) -> (usize, usize) {
        let (words, scales) = match self {
            DeviceFormat::W4 => (4, 8),
            DeviceFormat::W8 => (8, 4),
            DeviceFormat::W8Groups => (8, 16),
            DeviceFormat::Bf16 | DeviceFormat::F16 => (16, 0),
            DeviceFormat::F32 => (32, 0),
        };
        (words * 4 * 32, scales * 16)
    }
}

/// The CUDA C++ keywords that declare the functions and tables of block formats.
const DIALECT: Dialect = Dialect {
    function: "__device__ __forceinline__",
    table: "__constant__",
    values: "__constant__",
};

/// The functions that read elements of block formats, and `quant_at`, which chooses among them.
///
/// `quant_at` gives codes as the device stores them: those of `W4` are unsigned with the zero in the min, others are the values.
pub(crate) fn quant_functions() -> String {
    let (mut functions, mut cases) = (String::new(), String::new());
    for dtype in DType::ALL {
        let (Some(format), Some(device)) = (dtype.format(), DeviceFormat::of(dtype)) else {
            continue;
        };
        functions += &format.values_source(&DIALECT);
        functions += &format.element_source(&DIALECT);
        let (name, len, bytes) = (format.name, format.len, format.bytes);
        let stored = match (device, format.codes) {
            (DeviceFormat::W4, Codes::Unsigned { zero, .. }) if !format.mins => {
                format!("q.min = -{zero}.0f * q.scale;")
            }
            (DeviceFormat::W4, _) => String::new(),
            _ => format!("q.code = {};", format.value_expression()),
        };
        let _ = writeln!(
            cases,
            "        case {}: q = {name}_at(row + e / {len} * {bytes}, e % {len}); {stored} break;",
            format.number
        );
    }
    format!(
        "{functions}
// Element `e` of a row of blocks: the element is `scale * code + min`.
__device__ quant quant_at(int format, const u8* row, int e) {{
    quant q = {{0, 0.0f, 0.0f}};
    switch (format) {{
{cases}    }}
    return q;
}}
"
    )
}
