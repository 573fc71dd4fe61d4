//! How fast the processor's clock runs: a chain of multiplications, each of which waits for the one before, takes the same
//! number of cycles however busy the machine is, and so a time that follows from the clock alone.

use std::{hint::black_box, time::Instant};

/// Multiplications of a chain, which takes some ten microseconds.
const LINKS: u32 = 10_000;

/// Chains of a look: the least counts, as interruptions only add.
const CHAINS: usize = 9;

/// Nanoseconds of a multiplication now.
pub(crate) fn link_ns() -> f64 {
    let chain = || {
        let factor = black_box(0x9e37_79b9_7f4a_7c15_u64);
        let start = Instant::now();
        black_box((0..LINKS).fold(factor, |x, _| black_box(x.wrapping_mul(factor))));
        start.elapsed().as_secs_f64() * 1e9 / f64::from(LINKS)
    };
    (0..CHAINS).map(|_| chain()).fold(f64::MAX, f64::min)
}

/// How much of the fastest clock the slowest was, given what [`link_ns`] said each time: 1 when it said nothing.
pub fn slowest(looks: &[f64]) -> f64 {
    let (least, most) = looks.iter().fold((f64::MAX, 0f64), |(least, most), v| (least.min(*v), most.max(*v)));
    if looks.is_empty() || most <= 0.0 { 1.0 } else { least / most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_falls_is_seen() {
        assert_eq!(slowest(&[]), 1.0);
        assert_eq!(slowest(&[0.8, 0.8]), 1.0);
        assert_eq!(slowest(&[1.0, 0.8, 2.0]), 0.4);
        // No processor multiplies in less than a hundredth of a nanosecond, nor lets go of the chain.
        assert!(link_ns() > 0.01);
    }
}
