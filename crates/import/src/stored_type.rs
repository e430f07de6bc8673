//! Element types that ONNX and `.pt2` files store, and their conversion to compute types.

use base::{Bytes, DType};

/// Element type as a file stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredType {
    /// Unsigned, 2 bits, packed.
    U2,
    /// Signed, 2 bits, packed.
    I2,
    /// Unsigned, 4 bits, packed.
    U4,
    /// Signed, 4 bits, packed.
    I4,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    I64,
    /// IEEE half precision.
    F16,
    /// Google's bfloat16.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// A byte, 0 or 1.
    Bool,
    /// 4 bits of exponent, 3 of mantissa, without infinities.
    F8E4M3FN,
    /// 4 bits of exponent, 3 of mantissa, without infinities and negative zero.
    F8E4M3FNUZ,
    /// 5 bits of exponent, 2 of mantissa.
    F8E5M2,
    /// 5 bits of exponent, 2 of mantissa, without infinities and negative zero.
    F8E5M2FNUZ,
    /// 2 bits of exponent, 1 of mantissa, packed.
    F4E2M1,
}

impl StoredType {
    /// Bits of an element.
    pub(crate) fn bits(self) -> usize {
        match self {
            StoredType::U2 | StoredType::I2 => 2,
            StoredType::U4 | StoredType::I4 | StoredType::F4E2M1 => 4,
            StoredType::U8 | StoredType::I8 | StoredType::Bool => 8,
            StoredType::F8E4M3FN
            | StoredType::F8E4M3FNUZ
            | StoredType::F8E5M2
            | StoredType::F8E5M2FNUZ => 8,
            StoredType::U16 | StoredType::I16 | StoredType::F16 | StoredType::BF16 => 16,
            StoredType::U32 | StoredType::I32 | StoredType::F32 => 32,
            StoredType::U64 | StoredType::I64 | StoredType::F64 => 64,
        }
    }

    /// Size of `elements` elements in bytes; `None` on overflow.
    pub(crate) fn bytes(self, elements: usize) -> Option<usize> {
        match self.bits() {
            bits @ (2 | 4) => Some(elements.div_ceil(8 / bits)),
            bits => elements.checked_mul(bits / 8),
        }
    }

    /// Type that a graph computes these elements in.
    pub fn dtype(self) -> DType {
        match self {
            StoredType::I32 => DType::I32,
            StoredType::Bool => DType::Bool,
            _ if self.is_real() => DType::F32,
            _ => DType::I64,
        }
    }

    /// Stored type that equals a compute type.
    pub fn of(dtype: DType) -> Option<StoredType> {
        Some(match dtype {
            DType::F32 => StoredType::F32,
            DType::I32 => StoredType::I32,
            DType::I64 => StoredType::I64,
            DType::Bool => StoredType::Bool,
            _ => return None,
        })
    }

    /// Whether the elements are real numbers.
    pub(crate) fn is_real(self) -> bool {
        !matches!(self, StoredType::Bool) && self.range().is_none()
    }

    /// The smallest and the largest integer of the type.
    pub(crate) fn range(self) -> Option<(i64, i64)> {
        Some(match self {
            StoredType::U2 => (0, 3),
            StoredType::I2 => (-2, 1),
            StoredType::U4 => (0, 15),
            StoredType::I4 => (-8, 7),
            StoredType::U8 => (0, u8::MAX.into()),
            StoredType::I8 => (i8::MIN.into(), i8::MAX.into()),
            StoredType::U16 => (0, u16::MAX.into()),
            StoredType::I16 => (i16::MIN.into(), i16::MAX.into()),
            StoredType::U32 => (0, u32::MAX.into()),
            StoredType::I32 => (i32::MIN.into(), i32::MAX.into()),
            // Values beyond i64 are rejected by the reader.
            StoredType::U64 => (0, i64::MAX),
            StoredType::I64 => (i64::MIN, i64::MAX),
            _ => return None,
        })
    }

    /// The name in messages and lists.
    pub fn name(self) -> &'static str {
        match self {
            StoredType::U2 => "u2",
            StoredType::I2 => "i2",
            StoredType::U4 => "u4",
            StoredType::I4 => "i4",
            StoredType::U8 => "u8",
            StoredType::I8 => "i8",
            StoredType::U16 => "u16",
            StoredType::I16 => "i16",
            StoredType::U32 => "u32",
            StoredType::I32 => "i32",
            StoredType::U64 => "u64",
            StoredType::I64 => "i64",
            StoredType::F16 => "f16",
            StoredType::BF16 => "bf16",
            StoredType::F32 => "f32",
            StoredType::F64 => "f64",
            StoredType::Bool => "bool",
            StoredType::F8E4M3FN => "f8e4m3fn",
            StoredType::F8E4M3FNUZ => "f8e4m3fnuz",
            StoredType::F8E5M2 => "f8e5m2",
            StoredType::F8E5M2FNUZ => "f8e5m2fnuz",
            StoredType::F4E2M1 => "f4e2m1",
        }
    }

    /// Converts stored elements to the compute type, without a copy if the types are equal.
    pub(crate) fn computed(self, data: &Bytes, elements: usize) -> Result<Bytes, String> {
        fn convert<const N: usize, T: bytemuck::NoUninit>(
            data: &[u8],
            f: impl Fn([u8; N]) -> T,
        ) -> Bytes {
            let values: Vec<T> = data.as_chunks().0.iter().map(|b| f(*b)).collect();
            Bytes::from_slice(&values)
        }
        let small = |f: fn(u8) -> f32| convert(data, |[b]: [u8; 1]| f(b));
        Ok(match self {
            StoredType::F32 | StoredType::I32 | StoredType::I64 => data.clone(),
            // Any nonzero byte is true, but a bool may only hold 0 or 1.
            StoredType::Bool => convert(data, |[b]: [u8; 1]| u8::from(b != 0)),
            StoredType::F16 => widened(DType::F16, data),
            StoredType::BF16 => widened(DType::BF16, data),
            StoredType::F64 => convert(data, |b| f64::from_le_bytes(b) as f32),
            StoredType::U8 => convert(data, |[b]: [u8; 1]| i64::from(b)),
            StoredType::I8 => convert(data, |b| i64::from(i8::from_le_bytes(b))),
            StoredType::U16 => convert(data, |b| i64::from(u16::from_le_bytes(b))),
            StoredType::I16 => convert(data, |b| i64::from(i16::from_le_bytes(b))),
            StoredType::U32 => convert(data, |b| i64::from(u32::from_le_bytes(b))),
            StoredType::U64 => {
                let large = |b: &[u8; 8]| u64::from_le_bytes(*b) > i64::MAX as u64;
                if data.as_chunks().0.iter().any(large) {
                    return Err("has integers beyond 63 bits".into());
                }
                data.clone()
            }
            StoredType::F8E4M3FN => small(|b| small_float(b, 4, 7, NonFiniteEncoding::NanOnly)),
            StoredType::F8E4M3FNUZ => {
                small(|b| small_float(b, 4, 8, NonFiniteEncoding::NegativeZero))
            }
            StoredType::F8E5M2 => small(|b| small_float(b, 5, 15, NonFiniteEncoding::Ieee)),
            StoredType::F8E5M2FNUZ => {
                small(|b| small_float(b, 5, 16, NonFiniteEncoding::NegativeZero))
            }
            StoredType::U2 => Bytes::from_slice(&unpack_bits(data, elements, 2, i64::from)),
            StoredType::I2 => {
                Bytes::from_slice(&unpack_bits(data, elements, 2, |n| i64::from(n ^ 2) - 2))
            }
            StoredType::U4 => Bytes::from_slice(&unpack_bits(data, elements, 4, i64::from)),
            StoredType::I4 => {
                Bytes::from_slice(&unpack_bits(data, elements, 4, |n| i64::from(n ^ 8) - 8))
            }
            StoredType::F4E2M1 => Bytes::from_slice(&unpack_bits(data, elements, 4, |n| {
                // Sign, two exponent bits, one mantissa bit: shifted up to the layout of an 8-bit float.
                small_float((n & 8) << 4 | (n & 7) << 4, 2, 1, NonFiniteEncoding::None)
            })),
        })
    }
}

/// Converts f16 or bf16 to f32.
fn widened(dtype: DType, data: &[u8]) -> Bytes {
    let mut values = vec![0.0; data.len() / 2];
    base::quant::dequantise(dtype, data, &mut values).expect("a stored tensor has whole elements");
    Bytes::from_slice(&values)
}

/// Unpacks 2- or 4-bit elements, lowest bits first.
fn unpack_bits<T>(data: &[u8], elements: usize, bits: usize, f: impl Fn(u8) -> T) -> Vec<T> {
    let mask = (1 << bits) - 1;
    let each = move |byte: &u8| {
        let byte = *byte;
        (0..8).step_by(bits).map(move |shift| byte >> shift & mask)
    };
    data.iter().flat_map(each).take(elements).map(f).collect()
}

/// Which bit patterns of an 8-bit float are NaN or infinite.
enum NonFiniteEncoding {
    None,
    /// NaN has all bits set; there is no infinity.
    NanOnly,
    /// NaN is the pattern of negative zero; there is no infinity.
    NegativeZero,
    /// The largest exponent encodes NaN and infinity, as in IEEE floats.
    Ieee,
}

/// Decodes an 8-bit float: sign, `exponent` exponent bits with the given bias, mantissa.
fn small_float(bits: u8, exponent: u32, bias: i32, specials: NonFiniteEncoding) -> f32 {
    let mantissa_bits = 7 - exponent;
    let mantissa = u32::from(bits) & ((1 << mantissa_bits) - 1);
    let power = (u32::from(bits) >> mantissa_bits) & ((1 << exponent) - 1);
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let largest = power == (1 << exponent) - 1;
    match specials {
        NonFiniteEncoding::NanOnly if bits & 0x7F == 0x7F => return f32::NAN,
        NonFiniteEncoding::NegativeZero if bits == 0x80 => return f32::NAN,
        NonFiniteEncoding::Ieee if largest && mantissa == 0 => return sign * f32::INFINITY,
        NonFiniteEncoding::Ieee if largest => return f32::NAN,
        _ => {}
    }
    let (whole, power) = match power {
        0 => (mantissa, 1),
        _ => (mantissa | 1 << mantissa_bits, power as i32),
    };
    sign * whole as f32 * 2f32.powi(power - bias - mantissa_bits as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reals(kind: StoredType, data: &[u8], elements: usize) -> Vec<f32> {
        let data = kind.computed(&Bytes::from(data), elements).unwrap();
        data.cast().unwrap().to_vec()
    }

    fn integers(kind: StoredType, data: &[u8], elements: usize) -> Vec<i64> {
        let data = kind.computed(&Bytes::from(data), elements).unwrap();
        data.cast().unwrap().to_vec()
    }

    #[test]
    fn narrow_floats() {
        assert_eq!(
            reals(StoredType::F8E4M3FN, &[0x38, 0x7E, 0x01, 0xB8], 4),
            [1.0, 448.0, 2f32.powi(-9), -1.0]
        );
        assert!(reals(StoredType::F8E4M3FN, &[0xFF], 1)[0].is_nan());
        assert_eq!(
            reals(StoredType::F8E4M3FNUZ, &[0x40, 0x7F], 2),
            [1.0, 240.0]
        );
        assert!(reals(StoredType::F8E4M3FNUZ, &[0x80], 1)[0].is_nan());
        assert_eq!(
            reals(StoredType::F8E5M2, &[0x3C, 0x7B, 0xFC], 3),
            [1.0, 57344.0, f32::NEG_INFINITY]
        );
        assert_eq!(
            reals(StoredType::F8E5M2FNUZ, &[0x40, 0x7F], 2),
            [1.0, 57344.0]
        );
        let all: Vec<u8> = (0..8).map(|n| (2 * n) | ((2 * n + 1) << 4)).collect();
        let four = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let found = reals(StoredType::F4E2M1, &all, 16);
        assert_eq!(found[..8], four);
        assert_eq!(found[8..], four.map(|x| -x));
    }

    #[test]
    fn packed_and_narrow_integers() {
        assert_eq!(integers(StoredType::U4, &[0x81, 0x0F], 3), [1, 8, 15]);
        assert_eq!(integers(StoredType::I4, &[0x81, 0x0F], 3), [1, -8, -1]);
        assert_eq!(integers(StoredType::U2, &[0b11_10_01_00], 4), [0, 1, 2, 3]);
        assert_eq!(
            integers(StoredType::I2, &[0b11_10_01_00], 4),
            [0, 1, -2, -1]
        );
        assert_eq!(
            integers(StoredType::U32, &u32::MAX.to_le_bytes(), 1),
            [i64::from(u32::MAX)]
        );
        assert_eq!(StoredType::U4.bytes(5), Some(3));
        assert_eq!(StoredType::U2.bytes(5), Some(2));
        assert_eq!(StoredType::F64.bytes(usize::MAX), None);
        let large = Bytes::from(&u64::MAX.to_le_bytes()[..]);
        assert!(StoredType::U64.computed(&large, 1).is_err());
    }
}
