//! The formats that weights have on the device.

use base::DType;

/// How the device stores a weight; `kernels/formats.cuh` describes each format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DeviceFormat {
    /// Codes of 4 bits, scale and offset for 32 columns.
    W4,
    /// Signed codes of 8 bits, scale for 32 columns.
    W8,
    /// Signed codes of 8 bits, scale and offset for 16 columns.
    W8Groups,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// f32.
    F32,
}

impl DeviceFormat {
    /// Every format.
    pub const ALL: [DeviceFormat; 6] = [
        DeviceFormat::W4,
        DeviceFormat::W8,
        DeviceFormat::W8Groups,
        DeviceFormat::Bf16,
        DeviceFormat::F16,
        DeviceFormat::F32,
    ];

    /// The name used in file names.
    pub fn name(self) -> &'static str {
        match self {
            DeviceFormat::W4 => "w4",
            DeviceFormat::W8 => "w8",
            DeviceFormat::W8Groups => "w8_groups",
            DeviceFormat::Bf16 => "bf16",
            DeviceFormat::F16 => "f16",
            DeviceFormat::F32 => "f32",
        }
    }

    /// The numbers that an element of x is the sum of, as `XP` in the kernels.
    pub(crate) fn x_parts(self) -> usize {
        match self {
            DeviceFormat::Bf16 | DeviceFormat::F16 => 2,
            DeviceFormat::F32 => 3,
            _ => 1,
        }
    }

    /// The device's format of a type of the file, and the file format's number in the kernels.
    pub(crate) fn of(dtype: DType) -> Option<(DeviceFormat, u32)> {
        Some(match dtype {
            DType::F32 => (DeviceFormat::F32, 0),
            DType::F16 => (DeviceFormat::F16, 1),
            DType::BF16 => (DeviceFormat::Bf16, 2),
            DType::Q4_0 => (DeviceFormat::W4, 3),
            DType::Q4_1 => (DeviceFormat::W4, 4),
            DType::Q5_0 => (DeviceFormat::W8Groups, 5),
            DType::Q5_1 => (DeviceFormat::W8Groups, 6),
            DType::Q8_0 => (DeviceFormat::W8, 7),
            DType::Q2_K => (DeviceFormat::W8Groups, 8),
            DType::Q3_K => (DeviceFormat::W8Groups, 9),
            DType::Q4_K => (DeviceFormat::W4, 10),
            DType::Q5_K => (DeviceFormat::W8Groups, 11),
            DType::Q6_K => (DeviceFormat::W8Groups, 12),
            DType::IQ4_NL => (DeviceFormat::W8Groups, 13),
            DType::IQ4_XS => (DeviceFormat::W8Groups, 14),
            DType::I64 | DType::I32 | DType::I8 | DType::U8 | DType::Bool => return None,
        })
    }

    /// Whether the elements of a type are packed without rounding. Rows of other types are gathered from the file's bytes.
    pub(crate) fn is_exact(dtype: DType) -> bool {
        use DType::{BF16, F16, Q4_0, Q4_1, Q8_0};
        matches!(dtype, Q4_0 | Q4_1 | Q8_0 | BF16 | F16)
    }

    /// The number of a type of the file in the kernels.
    pub(crate) fn file_code(dtype: DType) -> Option<u32> {
        DeviceFormat::of(dtype).map(|(_, code)| code)
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
