//! The learning rate of a job for which nobody chose one.
//!
//! One rate doesn't suit all models. Of trainings as long as each other, the best rates of YuNet and of a residual network are a hundred
//! times apart, and one that is ten times too high leaves a model worse than no training does (measured: docs/recovery.md). So short
//! trainings are tried first, as a range test does (Smith 2017), but each at one rate that falls to zero in the end, and each judged by its
//! loss on the samples that validate.

use super::{Clocks, Job, Spent, Watcher};
use crate::train::{
    loader::Loader,
    replicas::{Learning, loss_of_batch},
};
use compress_compiler::{
    error::{Error, Result},
    pass::RateTrial,
    words::option::LR,
};
use std::{collections::BTreeMap, time::Instant};

/// Steps of a trial: a tenth of the training's, within these bounds, and no more than half of a very short training's.
const PART: u64 = 10;
const FEWEST: u64 = 8;
const MOST: u64 = 64;
const MOST_PART: u64 = 2;
/// Steps of the trainings whose usual rates are known.
const USUAL: f64 = 1500.0;
/// Best rates rise with about this power of the number of steps.
const LONGER: f64 = 1.0 / 3.0;
/// The ratio of rates that are tried one after the other: the loss is flat where it is lowest.
const RATIO: f64 = 4.0;
/// How many times lower rates than the first are tried, or higher ones.
const LOWEST: i32 = -4;
const HIGHEST: i32 = 3;
/// Trials at most: the first, four lower ones (or one lower and three higher), and one at rate zero.
const TRIALS: u64 = 6;
/// Trials show what training gains if one of them takes this part off the loss of the untrained model. Otherwise they are too short for that.
const GAIN: f64 = 0.02;
/// Where they are too short, the rate is the highest that adds no more than this part to the loss: longer trainings take that off again.
const BEARABLE: f64 = 0.05;
/// Samples that judge a trial, in parts of those that it trains on; at least so many, if so many validate.
const JUDGES: f64 = 0.25;
const FEWEST_JUDGES: usize = 64;

impl Job<'_> {
    /// Sets the highest learning rate to one that suits the model, its data and the number of steps, as trials show; `held` are the samples
    /// that validate. The rate that the job has tells where to begin: one that is usual for long trainings. Gives the trials, lowest rate
    /// first; rate zero stands for no training. The model is left as it was.
    ///
    /// Longer trainings bear higher rates, up to [`RATIO`] times the usual one: short ones may need higher rates to get over weights that go
    /// step by step.
    ///
    /// # Errors
    /// Whatever training raises; interrupted when the watcher says so; data where no trial ends with a loss that is a number.
    pub fn find_rate(&mut self, held: &Loader, watcher: &mut dyn Watcher) -> Result<Vec<RateTrial>> {
        let (total, steps) = (self.steps(), self.steps_of_a_trial());
        let times_longer = |steps: u64, than: f64| (steps as f64 / than).powf(LONGER);
        let start = self.options.rate * times_longer(steps, USUAL);
        let rate = |place: f64| start * RATIO.powf(place);
        // Where weights go step by step, they have to go from the untrained model too before it is compared.
        let gradual = self.masks.as_ref().is_some_and(|masks| !masks.are_final());
        let untrained_steps = if gradual { steps } else { 0 };
        let untrained = self.trial(0.0, untrained_steps, held, watcher)?;
        let mut losses = Losses { untrained, tried: BTreeMap::new() };
        while let Some(place) = losses.next() {
            losses.tried.insert(place, self.trial(rate(place.into()), steps, held, watcher)?);
        }
        if losses.tried.values().all(|loss| loss.is_infinite()) {
            let what = "the loss is not a number at any learning rate that was tried";
            return Err(Error::data(what).help(format!("look for broken samples, or give {LR}")));
        }
        let found = rate(losses.chosen()) * times_longer(total, steps as f64);
        self.options.rate = rounded(found.min(RATIO * self.options.rate));
        let told = |rate: f64, steps: u64, loss: f64| RateTrial {
            rate: rounded(rate),
            steps,
            loss: loss.is_finite().then_some(loss),
        };
        let tried = losses.tried.iter().map(|(place, loss)| told(rate((*place).into()), steps, *loss));
        Ok([told(0.0, untrained_steps, losses.untrained)].into_iter().chain(tried).collect())
    }

    fn steps(&self) -> u64 {
        (self.options.epochs * self.loader.batches().div_ceil(self.options.accumulate) as u64).max(1)
    }

    /// Steps of each training that [`Job::find_rate`] tries.
    pub fn steps_of_a_trial(&self) -> u64 {
        let all = self.steps();
        (all / PART).clamp(FEWEST, MOST).min(all.div_ceil(MOST_PART))
    }

    /// About as many batches take as long as all trials, or longer.
    pub fn batches_of_trials(&self) -> u64 {
        let judged = self.judges().div_ceil(self.loader.batch()) as u64;
        TRIALS * (self.steps_of_a_trial() * self.options.accumulate as u64 + judged)
    }

    /// Samples that a trial is judged on, if there are as many.
    fn judges(&self) -> usize {
        let trained = self.steps_of_a_trial() as usize * self.options.accumulate * self.loader.batch();
        FEWEST_JUDGES.max((JUDGES * trained as f64) as usize)
    }

    /// The loss on `held` after so many steps at a rate that rises and falls as in the training itself; infinite where it is not a number.
    fn trial(&mut self, rate: f64, steps: u64, held: &Loader, watcher: &mut dyn Watcher) -> Result<f64> {
        let before = self.model.state()?;
        let usual = std::mem::replace(&mut self.options.rate, rate);
        let loss = match self.try_steps(steps, watcher) {
            Ok(true) => self.judged(held, watcher),
            Ok(false) => Ok(f64::INFINITY),
            Err(e) => Err(e),
        };
        self.options.rate = usual;
        if let Some(masks) = &mut self.masks {
            masks.begin_again();
        }
        self.restore(&before)?;
        loss
    }

    /// Trains for so many steps; whether all losses were numbers.
    fn try_steps(&mut self, steps: u64, watcher: &mut dyn Watcher) -> Result<bool> {
        let (mut state, mut spent, began) = (self.fresh(), Spent::default(), Instant::now());
        let clocks = Clocks { earlier: 0.0, began, saved: began };
        while state.step < steps {
            for batch in self.batches(state.epoch, 0)? {
                go_on(watcher)?;
                let batch = batch.as_ref().map_err(Clone::clone);
                let learnt = self.learn(&state, batch, watcher, clocks, &mut spent)?;
                let done = state.step as f64 / steps as f64;
                if self.step(&mut state, learnt.lesson, done, &mut spent)?.is_none() {
                    return Ok(false);
                }
                watcher.batch(&self.progress(&state, 0.0))?;
                if state.step == steps {
                    break;
                }
            }
            (state.epoch, state.batch) = (state.epoch + 1, 0);
        }
        Ok(true)
    }

    /// The mean loss on the first of `held`.
    fn judged(&mut self, held: &Loader, watcher: &dyn Watcher) -> Result<f64> {
        let (mut sum, mut samples) = (0.0, 0);
        for batch in held.epoch(0, 0)? {
            go_on(watcher)?;
            let batch = batch?;
            let answer = self.answer(&batch)?;
            let how = Learning { loss: &self.options.loss, seed: self.options.seed, scale: 1.0 };
            sum += loss_of_batch(&self.model, how, &batch, &answer)? * batch.len as f64;
            samples += batch.len;
            if samples >= self.judges() {
                break;
            }
        }
        let loss = sum / samples as f64;
        Ok(if loss.is_finite() { loss } else { f64::INFINITY })
    }
}

fn go_on(watcher: &dyn Watcher) -> Result<()> {
    if watcher.stopped() { Err(Error::interrupted()) } else { Ok(()) }
}

/// What trials showed. Each has a place: its rate is [`RATIO`] times that of the place below.
struct Losses {
    /// The loss of the untrained model.
    untrained: f64,
    /// The losses after trials, by place: all places between two are there.
    tried: BTreeMap<i32, f64>,
}

impl Losses {
    fn of(&self, place: i32) -> Option<f64> {
        self.tried.get(&place).copied()
    }

    /// The place of the lowest loss, if that shows what training gains.
    fn best(&self) -> Option<i32> {
        let (place, loss) = self.tried.iter().min_by(|a, b| a.1.total_cmp(b.1))?;
        (*loss < self.untrained * (1.0 - GAIN)).then_some(*place)
    }

    /// The highest loss that can be borne.
    fn most(&self) -> f64 {
        self.untrained * (1.0 + BEARABLE)
    }

    /// The highest place that adds little to the loss.
    fn bearable(&self) -> Option<i32> {
        let bearable = |loss: f64| loss.is_finite() && loss <= self.most();
        self.tried.iter().rev().find(|(_, loss)| bearable(**loss)).map(|(place, _)| *place)
    }

    /// Which place to try next, if trials do not tell enough yet.
    fn next(&self) -> Option<i32> {
        let lowest = self.tried.first_key_value().map_or(1, |(place, _)| *place);
        let wanted = match (self.best(), self.bearable()) {
            (Some(best), _) => [best - 1, best + 1],
            (None, Some(bearable)) => [bearable + 1; 2],
            (None, None) => [lowest - 1; 2],
        };
        wanted.into_iter().find(|place| self.of(*place).is_none() && (LOWEST..=HIGHEST).contains(place))
    }

    /// The place to train at, which may be between those that were tried.
    fn chosen(&self) -> f64 {
        let log = |place| self.of(place).filter(|loss| loss.is_finite()).map(f64::ln);
        match (self.best(), self.bearable()) {
            (Some(best), _) => {
                // The lowest point of a parabola.
                let offset = match (log(best - 1), log(best), log(best + 1)) {
                    (Some(lower), Some(here), Some(higher)) => {
                        (lower - higher) / (2.0 * (lower + higher - 2.0 * here)).max(f64::MIN_POSITIVE)
                    }
                    _ => 0.0,
                };
                f64::from(best) + offset.clamp(-0.5, 0.5)
            }
            (None, Some(bearable)) => {
                let offset = match (log(bearable), log(bearable + 1)) {
                    (Some(here), Some(higher)) if higher > here => (self.most().ln() - here) / (higher - here),
                    _ => 0.0,
                };
                f64::from(bearable) + offset.clamp(0.0, 1.0)
            }
            (None, None) => f64::from(LOWEST),
        }
    }
}

/// To two digits: more would say more than trials can know.
fn rounded(rate: f64) -> f64 {
    format!("{rate:.1e}").parse().unwrap_or(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places that are tried, in order, and the chosen one, where this is the loss at a place.
    fn chosen(untrained: f64, loss: impl Fn(i32) -> f64) -> (Vec<i32>, f64) {
        let mut losses = Losses { untrained, tried: BTreeMap::new() };
        let mut order = vec![];
        while let Some(place) = losses.next() {
            order.push(place);
            losses.tried.insert(place, loss(place));
        }
        (order, losses.chosen())
    }

    #[test]
    fn the_lowest_loss_has_worse_ones_on_both_sides() {
        let valley = |at: f64| move |place: i32| 0.5 * (1.0 + (f64::from(place) - at).powi(2) / 10.0);
        let (order, place) = chosen(1.0, valley(0.0));
        assert_eq!((order, place), (vec![0, -1, 1], 0.0));
        let (order, place) = chosen(1.0, valley(-2.2));
        assert_eq!(order, [0, -1, -2, -3]);
        assert!((-2.5..-2.0).contains(&place), "{place}");
        // Where it is lower on one side, a rate on that side is taken.
        let (_, place) = chosen(1.0, |place| [0.9, 0.5, 0.7][(place + 1).clamp(0, 2) as usize]);
        assert!((0.1..0.5).contains(&place), "{place}");
        // What is not a number is worse than anything, and tells nothing else.
        let (order, place) = chosen(1.0, |place| if place < 0 { 0.4 - 0.1 * f64::from(place) } else { f64::INFINITY });
        assert_eq!((order, place), (vec![0, -1, -2], -1.0));
    }

    #[test]
    fn trials_that_gain_nothing_leave_the_highest_rate_that_does_little_harm() {
        // Each is four times as far from the untrained model as the one before.
        let harm = |place: i32| 1.0 + 0.02 * 4f64.powi(place);
        let (order, place) = chosen(1.0, harm);
        assert_eq!(order, [0, 1]);
        assert!((0.2..1.0).contains(&place), "{place}");
        let (order, place) = chosen(1.0, |place| harm(place + 2));
        assert_eq!(order, [0, -1, -2]);
        assert!((-1.8..-1.0).contains(&place), "{place}");
        // Nothing that can be tried is low enough.
        assert_eq!(chosen(1.0, |_| f64::INFINITY), ((LOWEST..=0).rev().collect(), f64::from(LOWEST)));
    }

    #[test]
    fn an_untrained_loss_that_is_not_a_number_makes_no_other_bearable() {
        let infinite = f64::INFINITY;
        assert_eq!(chosen(infinite, |_| infinite).0, (LOWEST..=0).rev().collect::<Vec<_>>());
        let (order, place) = chosen(infinite, |place| if place < -1 { 1.0 - f64::from(place) } else { infinite });
        assert_eq!((order, place), (vec![0, -1, -2, -3], -2.0));
    }

    #[test]
    fn no_search_takes_more_trials_than_announced() {
        for (untrained, lowest) in [(1.0, 9), (1.0, -9), (9.0, 9), (9.0, -9), (0.0, 0)] {
            let (order, _) = chosen(untrained, |place| 2.0 + f64::from(place - lowest).abs());
            assert!(order.len() < TRIALS as usize, "{order:?}");
        }
    }

    #[test]
    fn rates_have_two_digits() {
        assert_eq!([rounded(0.000_123_4), rounded(0.04), rounded(1.0)], [0.000_12, 0.04, 1.0]);
    }
}
