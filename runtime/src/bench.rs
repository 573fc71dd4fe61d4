//! How long a model takes.

use crate::{clock, cpu::Spent, session::Session};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};
use std::time::{Duration, Instant};

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

/// By how much the interval of too few rounds is wider on each side: where the weights of a large model lie in memory alone
/// makes a fifth.
const UNSURE: f64 = 2.0;

/// How many times as fast a model is, and between which bounds that lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The middle of all rounds.
    pub middle: f64,
    /// The bounds, with a confidence of 95%.
    pub low: f64,
    /// The upper one.
    pub high: f64,
}

impl Ratio {
    /// Sums up the ratios of single rounds, of which there is at least one: their median, with the interval around it
    /// that follows from their order alone, whatever noise they have (as of the sign test).
    pub fn of(mut ratios: Vec<f64>) -> Self {
        ratios.sort_by(f64::total_cmp);
        let n = ratios.len();
        let at = |i: usize| ratios.get(i).copied().unwrap_or(1.0);
        // How many rounds may be cut off on each side: the chance that as few lie there is below a fortieth.
        let (mut cut, mut chance, mut term) = (0, 0.0, 0.5f64.powi(n as i32));
        while cut < n / 2 {
            chance += term;
            if chance > 0.025 {
                break;
            }
            cut += 1;
            term *= (n - cut + 1) as f64 / cut as f64;
        }
        let cut = cut.saturating_sub(1);
        let wider = if n < FEWEST_ROUNDS { UNSURE } else { 1.0 };
        let middle = (at(n.saturating_sub(1) / 2) * at(n / 2)).sqrt();
        Self { middle, low: at(cut) / wider, high: at(n.saturating_sub(1 + cut)) * wider }
    }

    /// How wide the interval is: 0.1 for 10% of the lower bound.
    pub fn width(&self) -> f64 {
        self.high / self.low - 1.0
    }
}

/// Two models timed beside each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The first: milliseconds of a run on an idle machine in the round of the middle, and of nine runs of ten at most as they
    /// were.
    pub before: Timing,
    /// The second.
    pub after: Timing,
    /// How many times as fast the second is.
    pub ratio: Ratio,
    /// Rounds that were timed.
    pub rounds: usize,
    /// How much of its fastest clock the processor had at its slowest.
    pub slowest_clock: f64,
}

/// Rounds at least, for which there is an interval, and at most; and the width of the interval that is narrow enough.
const FEWEST_ROUNDS: usize = 6;
/// See [`compare`].
pub const MOST_ROUNDS: usize = 30;
const NARROW: f64 = 0.04;
/// The share of the time that a round takes; runs of a round.
const ROUND: f64 = 0.06;
const RUNS: (f64, f64) = (2.0, 300.0);
/// How much longer than asked it may take to have the fewest rounds.
const PATIENCE: u32 = 2;

/// How two models are timed.
pub struct Race<'a> {
    /// Makes the first model's session, or the second's.
    pub make: &'a dyn Fn(usize) -> Result<Session>,
    /// Whether only one of them is in memory at a time.
    pub one_at_a_time: bool,
    /// For how long, about.
    pub time: Duration,
    /// Asked now and then whether to stop.
    pub stopped: &'a dyn Fn() -> bool,
    /// Told how many rounds are done.
    pub progress: &'a dyn Fn(usize),
}

/// Times two models by turns, in rounds, until the interval of their ratio is narrow or the time is up. Each round counts
/// the least that each step took in it, as other work on the machine only adds to a step; and has sessions of its own, as
/// where values lie in memory makes some steps slower, unless making them takes longer than running them.
///
/// # Errors
/// What running them raises; interrupted when that was asked for.
pub fn compare(race: &Race, inputs: &[Tensor]) -> Result<Compared> {
    let began = Instant::now();
    let mut kept: Option<[Session; 2]> = None;
    let mut runs = None;
    let (mut ratios, mut sums, mut whole) = (vec![], [vec![], vec![]], [vec![], vec![]]);
    let mut links = vec![];
    loop {
        let started = Instant::now();
        let mut least: [Vec<f64>; 2] = Default::default();
        if race.one_at_a_time {
            for i in 0..2 {
                let session = (race.make)(i)?;
                let runs = race.runs(&mut runs, &[&session], inputs)?;
                for _ in 0..runs {
                    whole[i].push(turn(&session, inputs, &mut least[i], race.stopped)?);
                }
            }
        } else {
            let [a, b] = match kept.take() {
                Some(both) => both,
                None => [(race.make)(0)?, (race.make)(1)?],
            };
            let runs = race.runs(&mut runs, &[&a, &b], inputs)?;
            let made = started.elapsed();
            for _ in 0..runs {
                whole[0].push(turn(&a, inputs, &mut least[0], race.stopped)?);
                whole[1].push(turn(&b, inputs, &mut least[1], race.stopped)?);
            }
            kept = (started.elapsed() < 2 * made).then_some([a, b]);
        }
        // Wide instructions slow the clock of some processors: before the first round it would be another one.
        links.push(clock::link_ns());
        let [x, y] = least.map(|steps| steps.iter().sum::<f64>().max(1e-6));
        ratios.push(x / y);
        sums[0].push(x);
        sums[1].push(y);
        (race.progress)(ratios.len());
        let ratio = Ratio::of(ratios.clone());
        let rounds = ratios.len();
        let over = began.elapsed() >= race.time || rounds >= MOST_ROUNDS;
        let patience = if race.one_at_a_time { 1 } else { PATIENCE };
        if rounds >= FEWEST_ROUNDS && (over || ratio.width() < NARROW)
            || over && began.elapsed() >= patience * race.time
        {
            // Those of one round, so that they tell what the ratio tells.
            let far = |i: &usize| (ratios[*i] / ratio.middle).ln().abs();
            let middle = (0..rounds).min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or_default();
            let [before, after] = sums.map(|s| Timing { median_ms: s[middle], ..Timing::of(s) });
            let p90 = whole.map(|w| Timing::of(w).p90_ms);
            return Ok(Compared {
                before: Timing { p90_ms: p90[0], ..before },
                after: Timing { p90_ms: p90[1], ..after },
                ratio,
                rounds,
                slowest_clock: clock::slowest(&links),
            });
        }
    }
}

impl Race<'_> {
    /// How many runs a round has, as the first one tells.
    fn runs(&self, known: &mut Option<usize>, sessions: &[&Session], inputs: &[Tensor]) -> Result<usize> {
        if let Some(runs) = *known {
            return Ok(runs);
        }
        let all = || sessions.iter().map(|s| once(s, inputs, self.stopped)).sum::<Result<f64>>();
        // The second run, as the first one plans.
        let both = all().and_then(|_| all())? / 1e3 * 2.0 / sessions.len() as f64;
        let runs = (ROUND * self.time.as_secs_f64() / both.max(1e-9)).clamp(RUNS.0, RUNS.1) as usize;
        *known = Some(runs);
        Ok(runs)
    }
}

/// How often models are run.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    /// Runs of each, at most.
    pub runs: usize,
    /// When they took longer than this, there are no more, but for a few.
    pub time: Duration,
    /// Asked before each run whether to stop.
    pub stopped: &'a dyn Fn() -> bool,
}

/// Runs of each model at least.
const FEWEST_RUNS: usize = 3;

impl Pace<'_> {
    /// Calls `run` for each of `models` by turns.
    ///
    /// # Errors
    /// Those of `run`; interrupted.
    pub(crate) fn each(&self, models: usize, mut run: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let began = Instant::now();
        for turn in 0..self.runs {
            if turn >= FEWEST_RUNS && began.elapsed() >= self.time {
                break;
            }
            for model in 0..models {
                if (self.stopped)() {
                    return Err(Error::interrupted());
                }
                run(model)?;
            }
        }
        Ok(())
    }
}

/// The least time of each step of each session, which take turns.
///
/// # Errors
/// What running them raises; interrupted.
pub fn least(sessions: &[&Session], inputs: &[Tensor], pace: &Pace) -> Result<Vec<Vec<Spent>>> {
    let mut least: Vec<Vec<Spent>> = vec![vec![]; sessions.len()];
    pace.each(sessions.len(), |i| {
        let spent = sessions[i].profile(inputs)?;
        least[i].iter_mut().zip(&spent).for_each(|(least, s)| least.ms = least.ms.min(s.ms));
        if least[i].is_empty() {
            least[i] = spent;
        }
        Ok(())
    })?;
    Ok(least)
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
        for (session, least) in sessions.into_iter().zip(&mut *least) {
            turn(session, inputs, least, stopped)?;
        }
    }
    Ok(())
}

/// Runs a model once, takes note of the least that each of its steps took, and returns what all of them took now.
fn turn(session: &Session, inputs: &[Tensor], least: &mut Vec<f64>, stopped: &dyn Fn() -> bool) -> Result<f64> {
    if stopped() {
        return Err(Error::interrupted());
    }
    let spent = session.profile(inputs)?;
    least.resize(spent.len(), f64::INFINITY);
    least.iter_mut().zip(&spent).for_each(|(least, s)| *least = least.min(s.ms));
    Ok(spent.iter().map(|s| s.ms).sum())
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

    #[test]
    fn intervals_of_ratios() {
        let of = |n: usize| Ratio::of((1..=n).map(|v| v as f64).collect());
        // Of six rounds none may be cut off (a chance of 1/64 on each side), of nine one, of twenty five.
        assert_eq!((of(6).low, of(6).high), (1.0, 6.0));
        assert_eq!((of(9).low, of(9).high), (2.0, 8.0));
        assert_eq!((of(20).low, of(20).high), (6.0, 15.0));
        assert_eq!((of(1).low, of(1).middle, of(1).high), (0.5, 1.0, 2.0), "one round tells little");
        assert!((of(2).middle - 2f64.sqrt()).abs() < 1e-12);
    }
}
