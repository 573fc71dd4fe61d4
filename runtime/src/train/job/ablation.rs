//! How fast a job trains, with its loader and without.

use super::{Clocks, Job, Spent, Unwatched};
use compress_compiler::error::{Error, Result};
use std::time::{Duration, Instant};

/// The share of the time that goes by before anything counts: kernels are compiled, memory is taken, workers start.
const WARM: f64 = 0.2;
/// Batches that count at least.
const FEWEST: usize = 3;

/// What is trained on to measure the speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The loader's batches.
    Loader,
    /// One batch, again and again, that stays where it is trained on.
    OneBatch,
}

impl Job<'_> {
    /// Samples a second, and where the time went, in about `time` of training as the job would train. The teacher answers each time.
    /// Nothing is scored or written. `begins` is called when what comes before is over: compiling, the first batches.
    ///
    /// # Errors
    /// Whatever training raises; interrupted when `stopped` says so.
    pub fn speed(
        &mut self,
        source: Source,
        time: Duration,
        begins: &mut dyn FnMut(),
        stopped: &dyn Fn() -> bool,
    ) -> Result<(f64, Spent)> {
        self.same_samples = false;
        let (mut state, mut spent) = (self.fresh(), Spent::default());
        let (mut epoch, mut batches) = (0, self.batches(0, 0)?);
        let mut first = batches.next().transpose()?;
        if source == Source::OneBatch {
            // The loader's threads prepare nothing meanwhile.
            batches = Box::new(std::iter::empty());
        }
        let (mut began, mut samples, mut done, mut is_warm) = (Instant::now(), 0, 0, false);
        while !is_warm || done < FEWEST || began.elapsed() < time {
            if stopped() {
                return Err(Error::interrupted());
            }
            if !is_warm && done >= FEWEST && began.elapsed() >= time.mul_f64(WARM) {
                begins();
                (is_warm, began, samples, done, spent) = (true, Instant::now(), 0, 0, Spent::default());
            }
            let asked = Instant::now();
            if source == Source::Loader {
                first = match batches.next().transpose()? {
                    Some(batch) => Some(batch),
                    None => {
                        epoch += 1;
                        batches = self.batches(epoch, 0)?;
                        batches.next().transpose()?
                    }
                };
            }
            let batch = first.as_ref().ok_or_else(|| Error::bug("an epoch without batches"))?;
            spent.data += asked.elapsed().as_secs_f64();
            // A loss that is not a number is no reason to stop here.
            let clocks = Clocks { earlier: 0.0, began, saved: began };
            let learnt = self.learn(&state, Ok(batch), &mut Unwatched, clocks, &mut spent)?;
            self.step(&mut state, learnt.lesson, 0.0, &mut spent)?;
            state.batch = 0;
            samples += batch.len as u64;
            done += 1;
        }
        Ok((spent.samples_per_second(samples), spent))
    }
}
