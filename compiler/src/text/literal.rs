//! The smallest parts of the text form: escapes, numbers, the elements of constants.

use crate::{
    error::{Error, Result},
    narrow,
    tensor::{DType, Tensor},
};

/// The character that an escape stands for, after its backslash.
pub(super) fn escape(rest: &mut dyn Iterator<Item = char>) -> Option<char> {
    Some(match rest.next()? {
        c @ ('"' | '\\' | '\'') => c,
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        '0' => '\0',
        'u' => {
            let hex: String = rest.skip_while(|c| *c == '{').take_while(|c| *c != '}').collect();
            char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?
        }
        _ => return None,
    })
}

/// A number with a point.
pub(super) fn float(word: &str) -> Result<f32> {
    word.parse().map_err(|_| Error::malformed(format!("expected a number, found `{word}`")))
}

/// The bytes of a tensor whose elements stand one after the other, a byte each where they are
/// smaller.
pub(super) fn packed(dtype: DType, bytes: Vec<u8>) -> Vec<u8> {
    if dtype.bits() < 8 { narrow::pack(dtype.bits(), bytes.into_iter()) } else { bytes }
}

/// One element's bytes.
pub(super) fn element(dtype: DType, word: &str) -> Result<Vec<u8>> {
    let bad = || Error::malformed(format!("expected a number of type {dtype}, found `{word}`"));
    Ok(match dtype.int_range() {
        Some((low, high)) => {
            let value = word.parse().ok().filter(|v| (low..=high).contains(v)).ok_or_else(bad)?;
            Tensor::ints(dtype, &[], &[value]).bytes().to_vec()
        }
        None if dtype == DType::F64 => word.parse::<f64>().map_err(|_| bad())?.to_le_bytes().into(),
        None => Tensor::floats(dtype, &[], &[float(word)?]).bytes().to_vec(),
    })
}

/// The same `len` elements for a seed, everywhere: standard normal floats, or integers
/// spread evenly over what the type holds within -127 to 127.
pub(super) fn random(dtype: DType, len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    match dtype.int_range() {
        Some((low, high)) => {
            let (low, high) = (low.max(-127), high.min(127));
            let values: Vec<i64> = (0..len).map(|_| low + (next() % (high - low + 1) as u64) as i64).collect();
            Tensor::ints(dtype, &[len], &values).bytes().to_vec()
        }
        None => {
            // Twelve uniform numbers sum to nearly a normal one, without a transcendental
            // function that machines might round differently.
            let mut uniform = || (next() >> 40) as f32 / (1u64 << 24) as f32;
            let values: Vec<f32> = (0..len).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect();
            Tensor::floats(dtype, &[len], &values).bytes().to_vec()
        }
    }
}
