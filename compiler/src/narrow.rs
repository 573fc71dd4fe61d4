//! The narrow floating-point types (8, 6 and 4 bits), and how elements of less than a byte
//! are packed.

use crate::tensor::DType;

/// How a cast to [`DType::F8E8M0`], which holds powers of two only, rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundMode {
    /// To the larger power.
    Up,
    /// To the smaller power.
    Down,
    /// To the nearer power.
    Nearest,
}

/// A format with a sign, exponent bits and mantissa bits.
struct Format {
    bits: u32,
    mantissa: u32,
    bias: i32,
    /// The code of the largest finite number.
    largest: u8,
    /// The code of what is beyond it, where the format has one: infinity, or NaN.
    beyond: Option<u8>,
    /// The code of NaN; where there is none, negative zero stands in, as in ml_dtypes.
    nan: u8,
    /// Whether there is a single zero, the code of the negative one being NaN ("fnuz").
    one_zero: bool,
}

fn format(dtype: DType) -> Option<Format> {
    let f = |bits, mantissa, bias, largest, beyond, nan, one_zero| {
        Some(Format { bits, mantissa, bias, largest, beyond, nan, one_zero })
    };
    match dtype {
        DType::F8E4M3FN => f(8, 3, 7, 0x7e, Some(0x7f), 0x7f, false),
        DType::F8E4M3FNUZ => f(8, 3, 8, 0x7f, Some(0x80), 0x80, true),
        DType::F8E5M2 => f(8, 2, 15, 0x7b, Some(0x7c), 0x7e, false),
        DType::F8E5M2FNUZ => f(8, 2, 16, 0x7f, Some(0x80), 0x80, true),
        DType::F6E2M3 => f(6, 3, 1, 0x1f, None, 0x20, false),
        DType::F6E3M2 => f(6, 2, 3, 0x1f, None, 0x20, false),
        DType::F4E2M1 => f(4, 1, 1, 0x7, None, 0x8, false),
        _ => None,
    }
}

/// Whether `dtype` is a floating-point type of 8 bits or fewer.
pub fn is_narrow(dtype: DType) -> bool {
    dtype == DType::F8E8M0 || format(dtype).is_some()
}

/// The number behind a code of a narrow floating-point type; 0 for other types.
pub fn decode(dtype: DType, code: u8) -> f32 {
    let power = |e: i32| 2f64.powi(e);
    if dtype == DType::F8E8M0 {
        return if code == 0xff { f32::NAN } else { power(i32::from(code) - 127) as f32 };
    }
    let Some(f) = format(dtype) else { return 0.0 };
    let sign = 1u8 << (f.bits - 1);
    let magnitude = code & (sign - 1);
    let negative = code & sign != 0;
    if f.one_zero && code == sign {
        return f32::NAN;
    }
    if magnitude > f.largest {
        let infinite = f.beyond == Some(magnitude) && f.beyond != Some(f.nan);
        let value = if infinite { f32::INFINITY } else { f32::NAN };
        return if negative { -value } else { value };
    }
    let (exponent, fraction) = (i32::from(magnitude >> f.mantissa), i32::from(magnitude) & ((1 << f.mantissa) - 1));
    // Below the smallest exponent, numbers lose the leading one.
    let (exponent, digits) = if exponent == 0 { (1, fraction) } else { (exponent, fraction + (1 << f.mantissa)) };
    let value = (f64::from(digits) * power(exponent - f.bias - f.mantissa as i32)) as f32;
    if negative { -value } else { value }
}

/// The code of a narrow floating-point type nearest to `v`, halves to the even one. What is too
/// large becomes the largest number if `saturate`, else infinity or NaN as the type has them.
/// `round` matters to [`DType::F8E8M0`] alone.
pub fn encode(dtype: DType, v: f64, saturate: bool, round: RoundMode) -> u8 {
    if dtype == DType::F8E8M0 {
        return encode_power(v as f32, saturate, round);
    }
    let Some(f) = format(dtype) else { return 0 };
    if v.is_nan() {
        return f.nan;
    }
    let sign = if v.is_sign_negative() { 1u8 << (f.bits - 1) } else { 0 };
    // Counted in steps of its exponent, a number's code follows by addition, and rounding up
    // carries into the exponent by itself.
    let exponent = (((v.to_bits() >> 52) & 0x7ff) as i32 - 1023).max(1 - f.bias);
    let steps = (v.abs() * 2f64.powi(f.mantissa as i32 - exponent)).round_ties_even();
    let code = f64::from((exponent + f.bias - 1) << f.mantissa) + steps;
    match f.beyond {
        _ if code <= f64::from(f.largest) => match code as u8 {
            0 if f.one_zero => 0,
            code => sign | code,
        },
        Some(beyond) if !saturate => sign | beyond,
        _ => sign | f.largest,
    }
}

/// The sign is dropped, as ONNX's reference does.
fn encode_power(v: f32, saturate: bool, round: RoundMode) -> u8 {
    let bits = v.to_bits();
    let exponent = ((bits >> 23) & 0xff) as u8;
    if exponent == 0xff {
        return 0xff;
    }
    let fraction = bits & 0x7f_ffff;
    let up = match round {
        RoundMode::Down => false,
        RoundMode::Up => fraction != 0,
        RoundMode::Nearest => fraction > 0x40_0000 || (fraction == 0x40_0000 && exponent > 0),
    };
    exponent + u8::from(up && !(saturate && exponent == 0xfe))
}

/// Packs codes of `bits` (1 to 8) bits without gaps, from the lowest bit on.
pub fn pack(bits: usize, codes: impl ExactSizeIterator<Item = u8>) -> Vec<u8> {
    if bits >= 8 {
        return codes.collect();
    }
    let mut out = vec![0u8; (codes.len() * bits).div_ceil(8)];
    let mask = (1u16 << bits) - 1;
    for (i, code) in codes.enumerate() {
        let at = i * bits;
        let shifted = (u16::from(code) & mask) << (at % 8);
        out[at / 8] |= shifted as u8;
        // Only a code that crosses into the next byte has bits there, so there is a next byte.
        if let (Some(next), true) = (out.get_mut(at / 8 + 1), shifted > 0xff) {
            *next |= (shifted >> 8) as u8;
        }
    }
    out
}

/// The first `len` codes of `bits` bits in what [`pack`] made; missing ones are 0.
pub fn unpack(bits: usize, packed: &[u8], len: usize) -> impl ExactSizeIterator<Item = u8> + '_ {
    let mask = ((1u16 << bits) - 1) as u8;
    (0..len).map(move |i| {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let at = |i: usize| u16::from(packed.get(i).copied().unwrap_or(0));
        ((at(byte) | (at(byte + 1) << 8)) >> shift) as u8 & mask
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: [DType; 7] = [
        DType::F8E4M3FN,
        DType::F8E4M3FNUZ,
        DType::F8E5M2,
        DType::F8E5M2FNUZ,
        DType::F6E2M3,
        DType::F6E3M2,
        DType::F4E2M1,
    ];

    #[test]
    fn codes_come_back() {
        for dtype in NARROW {
            for code in 0..=u8::MAX >> (8 - dtype.bits()) {
                let v = decode(dtype, code);
                if !v.is_nan() {
                    assert_eq!(encode(dtype, v.into(), false, RoundMode::Up), code, "{dtype} {code:#x} {v}");
                }
            }
        }
        for code in 0..0xff {
            let v = decode(DType::F8E8M0, code);
            assert_eq!(encode(DType::F8E8M0, v.into(), true, RoundMode::Up), if code == 0 { 1 } else { code });
        }
    }

    /// What ml_dtypes makes of the same numbers.
    #[test]
    fn rounds_as_ml_dtypes() {
        let xs = [f64::NAN, f64::INFINITY, -1e6, -1e-9, 0.25, 0.75, 5.0, 7.0, 464.0, 465.0, 480.0];
        let expected: [(DType, [u8; 11]); 7] = [
            (DType::F4E2M1, [0x8, 0x7, 0xf, 0x8, 0x0, 0x2, 0x6, 0x7, 0x7, 0x7, 0x7]),
            (DType::F6E2M3, [0x20, 0x1f, 0x3f, 0x20, 0x2, 0x6, 0x1a, 0x1e, 0x1f, 0x1f, 0x1f]),
            (DType::F6E3M2, [0x20, 0x1f, 0x3f, 0x20, 0x4, 0xa, 0x15, 0x17, 0x1f, 0x1f, 0x1f]),
            (DType::F8E4M3FN, [0x7f, 0x7f, 0xff, 0x80, 0x28, 0x34, 0x4a, 0x4e, 0x7e, 0x7f, 0x7f]),
            (DType::F8E4M3FNUZ, [0x80, 0x80, 0x80, 0x0, 0x30, 0x3c, 0x52, 0x56, 0x80, 0x80, 0x80]),
            (DType::F8E5M2, [0x7e, 0x7c, 0xfc, 0x80, 0x34, 0x3a, 0x45, 0x47, 0x5f, 0x5f, 0x60]),
            (DType::F8E5M2FNUZ, [0x80, 0x80, 0x80, 0x0, 0x38, 0x3e, 0x49, 0x4b, 0x63, 0x63, 0x64]),
        ];
        for (dtype, codes) in expected {
            let got: Vec<u8> = xs.iter().map(|x| encode(dtype, *x, false, RoundMode::Up)).collect();
            assert_eq!(got, codes, "{dtype}");
        }
        assert_eq!(encode(DType::F8E4M3FN, 1e6, true, RoundMode::Up), 0x7e);
        assert_eq!(encode(DType::F8E5M2, f64::NEG_INFINITY, true, RoundMode::Up), 0xfb);
    }

    #[test]
    fn powers_of_two() {
        let e8m0 = |v: f64, round| decode(DType::F8E8M0, encode(DType::F8E8M0, v, true, round));
        assert_eq!(e8m0(1.1, RoundMode::Up), 2.0);
        assert_eq!(e8m0(1.9, RoundMode::Down), 1.0);
        assert_eq!(e8m0(1.4, RoundMode::Nearest), 1.0);
        assert_eq!(e8m0(f64::from(f32::MAX), RoundMode::Up), 2f32.powi(127));
        assert!(e8m0(f64::INFINITY, RoundMode::Up).is_nan());
    }

    #[test]
    fn packs_from_the_lowest_bit() {
        assert_eq!(pack(4, [1u8, 2, 3].into_iter()), [0x21, 0x03]);
        assert_eq!(pack(2, [1u8, 2, 3, 0, 1].into_iter()), [0x39, 0x01]);
        let six: Vec<u8> = (0..7).map(|v| v * 9).collect();
        let packed = pack(6, six.iter().copied());
        assert_eq!(packed.len(), 6);
        assert_eq!(packed[0], six[0] | (six[1] & 3) << 6);
        assert_eq!(unpack(6, &packed, 7).collect::<Vec<_>>(), six);
    }
}
