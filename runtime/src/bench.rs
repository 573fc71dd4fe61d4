//! How long a model takes.

use crate::session::Session;
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};
use std::time::Instant;

/// What was measured over several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The median, in milliseconds.
    pub median_ms: f64,
    /// Nine runs of ten were at least this fast.
    pub p90_ms: f64,
    /// How many runs were measured.
    pub runs: usize,
}

impl Timing {
    /// Sums up the times of single runs, in milliseconds. All zero when there are none.
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let n = times.len();
        let at = |i: usize| times.get(i).copied().unwrap_or(0.0);
        let median_ms = if n.is_multiple_of(2) { (at(n.saturating_sub(1) / 2) + at(n / 2)) / 2.0 } else { at(n / 2) };
        Self { median_ms, p90_ms: at((n * 9).div_ceil(10).saturating_sub(1)), runs: n }
    }
}

/// Runs before those that count: caches fill, buffers are allocated.
const WARMUP: usize = 3;

fn once(session: &Session, inputs: &[Tensor], stopped: &dyn Fn() -> bool) -> Result<f64> {
    if stopped() {
        return Err(Error::interrupted());
    }
    // Downloading the outputs is part of a run: it waits for the device.
    let start = Instant::now();
    session.run(inputs)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Times one model, until `stopped` says so.
///
/// # Errors
/// What running it raises; interrupted.
pub fn time(session: &Session, inputs: &[Tensor], runs: usize, stopped: &dyn Fn() -> bool) -> Result<Timing> {
    for _ in 0..WARMUP {
        once(session, inputs, stopped)?;
    }
    (0..runs.max(1)).map(|_| once(session, inputs, stopped)).collect::<Result<_>>().map(Timing::of)
}

/// Times two models in turns, so that a machine that slows down or speeds up does so for both.
///
/// # Errors
/// What running them raises; interrupted when `stopped` says so.
pub fn interleaved(
    before: &Session,
    after: &Session,
    inputs: &[Tensor],
    runs: usize,
    stopped: &dyn Fn() -> bool,
) -> Result<(Timing, Timing)> {
    for _ in 0..WARMUP {
        once(before, inputs, stopped)?;
        once(after, inputs, stopped)?;
    }
    let (mut first, mut second) = (vec![], vec![]);
    for _ in 0..runs.max(1) {
        first.push(once(before, inputs, stopped)?);
        second.push(once(after, inputs, stopped)?);
    }
    Ok((Timing::of(first), Timing::of(second)))
}

/// Runs two models `runs` times, by turns, and takes note of the least that each of their steps took, in milliseconds, there or
/// in earlier sessions of the same models. Other work on the machine only adds to a step, so that far fewer runs tell two models
/// apart by this than by the time of the whole.
///
/// # Errors
/// What running them raises; interrupted when `stopped` says so.
pub fn steps(
    sessions: [&Session; 2],
    inputs: &[Tensor],
    runs: usize,
    least: &mut [Vec<f64>; 2],
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    for _ in 0..WARMUP + runs.max(1) {
        for (session, least) in sessions.iter().zip(&mut *least) {
            if stopped() {
                return Err(Error::interrupted());
            }
            let spent = session.profile(inputs)?;
            least.resize(spent.len(), f64::INFINITY);
            least.iter_mut().zip(&spent).for_each(|(least, s)| *least = least.min(s.ms));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        let t = Timing::of((1..=10).rev().map(f64::from).collect());
        assert_eq!((t.median_ms, t.p90_ms, t.runs), (5.5, 9.0, 10));
        let t = Timing::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((t.median_ms, t.p90_ms, t.runs), (2.0, 3.0, 3));
        assert_eq!(Timing::of(vec![]).runs, 0);
    }
}
