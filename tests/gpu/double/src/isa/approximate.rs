//! How far approximate functions are off.
//!
//! With the setting `CUDA_DOUBLE_LOOSE` results are off by up to what the PTX ISA allows (9.7.3), another part of it for every argument;
//! without it they are rounded to nearest. A device does neither: it is off by less, and its makers don't say by how much where.

use std::sync::LazyLock;

static LOOSE: LazyLock<bool> = LazyLock::new(|| std::env::var("CUDA_DOUBLE_LOOSE").is_ok_and(|v| v == "1"));

/// How far a result may be off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// By a part of itself.
    Relative(f64),
    /// By so much.
    Absolute(f64),
    /// By so much, or by this part of itself where that is more.
    Either(f64),
}

/// What the ISA allows `opcode` for `f32`.
pub fn bound(opcode: &str) -> Bound {
    let bits = |n: f64| (-n).exp2();
    match opcode {
        // 2 units of the last place, and 1.
        "div" | "ex2" => Bound::Relative(bits(22.0)),
        "rcp" | "sqrt" => Bound::Relative(bits(23.0)),
        "rsqrt" => Bound::Relative(bits(22.9)),
        "lg2" => Bound::Either(bits(22.0)),
        "sin" | "cos" => Bound::Absolute(bits(20.5)),
        _ => Bound::Relative(bits(11.0)),
    }
}

/// `exact`, off by a part of `bound` that `argument` decides. What `f32` holds exactly stays.
pub fn off(exact: f64, bound: Bound, argument: u64) -> f64 {
    if !*LOOSE { exact } else { moved(exact, bound, argument) }
}

fn moved(exact: f64, bound: Bound, argument: u64) -> f64 {
    if f64::from(exact as f32) == exact || !exact.is_finite() {
        return exact;
    }
    // The finaliser of SplitMix64: between -1 and 1.
    let mut bits = argument.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let part = (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    let most = match bound {
        Bound::Relative(of) => exact.abs() * of,
        Bound::Absolute(by) => by,
        Bound::Either(by) => by * exact.abs().max(1.0),
    };
    exact + part * most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_off_by_no_more_than_is_allowed() {
        let third = 1.0 / 3.0;
        let by: Vec<f64> = (0..1000).map(|i| (moved(third, bound("div"), i) - third) / third).collect();
        let most = by.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        assert!(most <= 2f64.powi(-22) && most > 0.9 * 2f64.powi(-22), "{most}");
        assert!(by.iter().any(|v| *v > 0.0) && by.iter().any(|v| *v < 0.0));
        assert_eq!(moved(0.5, bound("sin"), 3), 0.5);
        assert_eq!(moved(f64::INFINITY, bound("lg2"), 3), f64::INFINITY);
        assert!((moved(third, bound("cos"), 5) - third).abs() <= 2f64.powf(-20.5));
    }
}
