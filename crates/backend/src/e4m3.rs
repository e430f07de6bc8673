//! FP8 numbers with four bits of exponent and three of mantissa (OCP's e4m3fn).
//!
//! The exponent's bias is 7. There are no infinities: the codes `0x7f` and `0xff` are NaN, and the largest number is 448.
//! [`encode`] rounds to the nearest number, ties to the even code, and saturates: what is larger becomes ±448.

/// The largest number.
pub const MAX: f32 = 448.0;

/// The number of every code.
const VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = value(code as u8);
        code += 1;
    }
    values
};

/// The number with this code.
#[inline]
pub const fn decode(code: u8) -> f32 {
    VALUES[code as usize]
}

/// The code of the nearest number: ties go to the even code, numbers beyond [`MAX`] and infinities to ±[`MAX`], NaN to NaN
/// with its sign.
#[inline]
pub const fn encode(x: f32) -> u8 {
    /// The smallest number that is not subnormal, 2⁻⁶.
    const SMALLEST_NORMAL: u32 = (127 - 6) << 23;
    /// Its last bit is worth as much as a subnormal number's, so adding it to one rounds.
    const SUBNORMAL_UNIT: f32 = 16384.0;
    let bits = x.to_bits();
    let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
    let code = if magnitude > f32::INFINITY.to_bits() {
        0x7f
    } else if magnitude >= MAX.to_bits() {
        0x7e
    } else if magnitude < SMALLEST_NORMAL {
        (f32::from_bits(magnitude) + SUBNORMAL_UNIT).to_bits() - SUBNORMAL_UNIT.to_bits()
    } else {
        // Half of the last kept bit, minus one where that bit is zero; a carry moves on into the exponent.
        let rounded = magnitude + 0x7_ffff + (magnitude >> 20 & 1);
        (rounded >> 20) - ((127 - 7) << 3)
    };
    sign | code as u8
}

const fn value(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => (8 + mantissa) as f32 * f32::from_bits((127 - 10 + exponent as u32) << 23),
    };
    if code < 0x80 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::TestRng;

    /// The nearest number by comparing with all of them.
    fn nearest(x: f32) -> u8 {
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        if x.is_nan() {
            return sign | 0x7f;
        }
        let distance = |code: u8| (f64::from(decode(code)) - f64::from(x.abs().min(MAX))).abs();
        let better = |a: u8, b: u8| match distance(a).total_cmp(&distance(b)) {
            std::cmp::Ordering::Equal if a.is_multiple_of(2) => a,
            std::cmp::Ordering::Greater | std::cmp::Ordering::Equal => b,
            std::cmp::Ordering::Less => a,
        };
        sign | (0..0x7f).reduce(better).unwrap()
    }

    #[test]
    fn every_code_comes_back_and_numbers_ascend() {
        for code in 0..=0xffu8 {
            assert_eq!(encode(decode(code)), code, "{code:#x}");
            assert_eq!(decode(code).is_nan(), code & 0x7f == 0x7f);
        }
        for code in 0..0x7eu8 {
            assert!(decode(code) < decode(code + 1), "{code:#x}");
            assert_eq!(decode(code | 0x80), -decode(code));
        }
        // The format's own figures: largest, smallest normal, largest and smallest subnormal.
        let named = [0x7e, 0x08, 0x07, 0x01].map(decode);
        assert_eq!(named, [448.0, 1.0 / 64.0, 7.0 / 512.0, 1.0 / 512.0]);
    }

    #[test]
    fn ties_go_to_the_even_code_and_their_neighbours_to_the_nearest() {
        for code in 0..0x7eu8 {
            // Exact: the numbers have four bits and f32 has twenty-four.
            let tie = (decode(code) + decode(code + 1)) / 2.0;
            let even = code + code % 2;
            assert_eq!(encode(tie), even, "{tie}");
            assert_eq!(encode(-tie), even | 0x80, "-{tie}");
            assert_eq!(encode(tie.next_down()), code, "below {tie}");
            assert_eq!(encode(tie.next_up()), code + 1, "above {tie}");
        }
    }

    #[test]
    fn numbers_beyond_the_largest_saturate_and_nan_stays_nan() {
        for x in [448.0f32, 449.0, 464.0, 480.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!((encode(x), encode(-x)), (0x7e, 0xfe), "{x}");
        }
        assert_eq!((encode(f32::NAN), encode(-f32::NAN)), (0x7f, 0xff));
        assert_eq!((encode(0.0), encode(-0.0)), (0, 0x80));
        assert_eq!(encode(f32::MIN_POSITIVE), 0);
    }

    #[test]
    fn random_numbers_go_to_the_nearest() {
        let mut noise = TestRng::new(5);
        for _ in 0..20_000 {
            let any = f32::from_bits(noise.bits() as u32);
            let exponent = (noise.bits() % 24) as i32 - 13;
            for x in [any, noise.unit() * 2f32.powi(exponent)] {
                assert_eq!(encode(x), nearest(x), "{x:e}");
            }
        }
    }
}
