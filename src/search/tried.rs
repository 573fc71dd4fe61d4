//! What was tried, and what came of it.

use super::{
    front::{Objectives, front},
    way::{Care, Form, Way},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A way that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Its number, from 1.
    pub number: usize,
    pub way: Way,
    /// Whether it is one of those that flags alone ask for.
    pub plain: bool,
    /// What it promised to add to the hypervolume; nothing where it was not chosen for that.
    #[serde(default)]
    pub promised: Option<f64>,
    /// Whether it was chosen by chance though others promised more.
    #[serde(default)]
    pub curious: bool,
    /// When it was done, in seconds of the search.
    pub at: f64,
    /// What was reached then: the hypervolume.
    pub reached: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Those of them that what comes before codes took; none where another way began alike.
    #[serde(default)]
    pub beginning: f64,
    /// What came of it; nothing where it can't be done.
    pub outcome: Option<Outcome>,
    /// Why it can't.
    pub failed: Option<String>,
}

/// What came of a way, on samples that choose.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Outcome {
    /// What counts.
    pub objectives: Objectives,
    /// The noise of the answers, in parts of the signal.
    pub noise: f64,
    /// The metric.
    pub score: Option<f64>,
    /// The share of samples with the same answer as the original's.
    pub agreement: Option<f64>,
    /// The samples that it was measured on.
    pub samples: usize,
    /// Whether few of them showed that it stays behind others, so that it was measured on no more.
    pub behind: bool,
    /// The size of the file.
    pub bytes: usize,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Why it is not fit for use, if it is not.
    pub unusable: Option<String>,
}

impl Default for Outcome {
    fn default() -> Self {
        let objectives = Objectives { lost: 0.0, time: 1.0, size: 1.0 };
        let (score, agreement, samples, behind, sha256, unusable) = Default::default();
        Self { objectives, noise: 0.0, score, agreement, samples, behind, bytes: 0, sha256, unusable }
    }
}

impl Default for Tried {
    fn default() -> Self {
        let (plain, promised, curious, at, reached, seconds, beginning, outcome, failed) = Default::default();
        let way = Way::plain(Form::Float);
        Self { number: 0, way, plain, promised, curious, at, reached, seconds, beginning, outcome, failed }
    }
}

/// All that was tried, and what it is taken to reach.
///
/// Of many ways that were measured on few samples, the best are also the luckiest. But noise was measured in every value of every answer.
/// So ways are taken to lose about as much as others with about as much noise, and no less than those with less of it, as far as chance
/// explains how they differ (isotonic regression, Ayer et al. 1955; shrinkage, James and Stein 1961).
pub struct Standings<'a> {
    tried: &'a [Tried],
    /// For each way that is fit for use and was measured on all samples: its place, its objectives, and its noise.
    usable: Vec<(usize, Objectives, f64)>,
}

/// What was measured of a way.
struct Measured {
    place: usize,
    noise: f64,
    lost: f64,
    /// How far that may be off, as few samples tell: a variance.
    unsure: f64,
    samples: f64,
}

/// Logarithms of noise that are told apart, and the steps in which they are counted.
const NEAR: f64 = 0.35;
const STEP: f64 = 0.1;

impl<'a> Standings<'a> {
    /// Those of ways that were measured; `of_share` says that what they lost are points of a share.
    pub fn new(tried: &'a [Tried], of_share: bool) -> Self {
        let mut lost: Vec<f64> = tried.iter().map(|t| t.outcome.as_ref().map_or(0.0, |o| o.objectives.lost)).collect();
        // Trained ways lose otherwise by the same noise. An error is the noise itself.
        for trained in [false, true].into_iter().filter(|_| of_share) {
            let measured = |(place, t): (usize, &Tried)| {
                let o = t.outcome.as_ref().filter(|_| (t.way.epochs() > 0) == trained)?;
                let (lost, samples) = (o.objectives.lost, o.samples.max(1) as f64);
                Some(Measured { place, noise: o.noise, lost, unsure: o.unsure(), samples })
            };
            for (place, taken) in shrunk(tried.iter().enumerate().filter_map(measured).collect()) {
                lost[place] = taken;
            }
        }
        let usable = |(i, t): (usize, &'a Tried)| {
            let o = t.outcome.as_ref().filter(|o| o.unusable.is_none() && !o.behind)?;
            Some((i, Objectives { lost: lost[i], ..o.objectives }, o.noise))
        };
        Self { tried, usable: tried.iter().enumerate().filter_map(usable).collect() }
    }

    /// The ways that no other beats, and what they are taken to reach.
    pub fn front(&self) -> Vec<(&'a Tried, Objectives)> {
        let points: Vec<(Objectives, f64)> =
            self.usable.iter().map(|(_, objectives, noise)| (*objectives, *noise)).collect();
        front(&points).into_iter().map(|i| (&self.tried[self.usable[i].0], self.usable[i].1)).collect()
    }

    /// What all that are fit for use are taken to reach, in the order in which they were tried.
    pub fn all(&self) -> impl Iterator<Item = (&'a Tried, Objectives)> {
        self.usable.iter().map(|(i, objectives, _)| (&self.tried[*i], *objectives))
    }
}

/// What ways are taken to have lost, by their places: between what was measured of each, and what ways with so much noise lose.
fn shrunk(all: Vec<Measured>) -> Vec<(usize, f64)> {
    let mut steps: BTreeMap<i64, Vec<Measured>> = BTreeMap::new();
    let mut taken = vec![];
    for own in all {
        match own.noise > 0.0 {
            true => steps.entry((own.noise.ln() / STEP).round() as i64).or_default().push(own),
            // What is not changed loses nothing, and says nothing of others.
            false => taken.push((own.place, own.lost)),
        }
    }
    let sum = |step: &[Measured], of: &dyn Fn(&Measured) -> f64| step.iter().map(|m| m.samples * of(m)).sum::<f64>();
    // The mean over steps with about as much noise.
    let smooth = |each: &BTreeMap<i64, (f64, f64)>, at: i64| {
        let near = |step: i64| (-((step - at) as f64 * STEP / NEAR).powi(2)).exp();
        let of = |part: &dyn Fn(&(f64, f64)) -> f64| each.iter().map(|(step, v)| near(*step) * part(v)).sum::<f64>();
        of(&|v| v.1) / of(&|v| v.0).max(f64::MIN_POSITIVE)
    };
    let each = |of: &dyn Fn(i64, &Measured) -> f64| -> BTreeMap<i64, (f64, f64)> {
        steps.iter().map(|(at, step)| (*at, (sum(step, &|_| 1.0), sum(step, &|m| of(*at, m))))).collect()
    };
    let lost = each(&|_, m| m.lost);
    let fitted = rising(lost.iter().map(|(at, (samples, _))| (*samples, smooth(&lost, *at))).collect());
    let fitted: BTreeMap<i64, f64> = lost.keys().copied().zip(fitted).collect();
    let (squares, unsure) = (each(&|at, m| (m.lost - fitted[&at]).powi(2)), each(&|_, m| m.unsure));
    for (at, step) in &steps {
        let by_chance = smooth(&unsure, *at);
        let differ = (smooth(&squares, *at) - by_chance).max(0.0);
        for m in step {
            // By itself, what was lucky looks sure.
            let part = differ / (differ + by_chance.max(m.unsure)).max(1e-12);
            taken.push((m.place, part * m.lost + (1.0 - part) * fitted[at]));
        }
    }
    taken
}

/// The nearest to some values, with weights, that never falls: neighbours that do are pooled.
fn rising(values: Vec<(f64, f64)>) -> Vec<f64> {
    // The weight, the mean and the number of those that were pooled.
    let mut blocks: Vec<(f64, f64, usize)> = vec![];
    for (weight, value) in values {
        blocks.push((weight, value, 1));
        while let [.., (w, a, n), (v, b, m)] = blocks[..]
            && a > b
        {
            blocks.truncate(blocks.len() - 2);
            blocks.push((w + v, (w * a + v * b) / (w + v), n + m));
        }
    }
    blocks.into_iter().flat_map(|(_, mean, count)| std::iter::repeat_n(mean, count)).collect()
}

impl Outcome {
    /// How far the points of a share that were lost may be off, as few samples tell: a variance. One sample more might have changed its
    /// answer, where noise is strong enough to change any.
    pub fn unsure(&self) -> f64 {
        let samples = self.samples.max(1) as f64;
        let changed = self.agreement.map_or(self.objectives.lost.abs(), |agreement| 1.0 - agreement);
        (changed + changed_by(self.noise).min(1.0 / samples)) / samples
    }
}

/// Which ways are trained that have no zeros and no fewer channels. Each is tried without training first, then with the epochs of one rung
/// after the other (successive halving, Jamieson and Talwalkar 2016). None is once training left the answers of one as they were.
pub struct Training<'a> {
    tried: &'a [Tried],
    rungs: &'a [usize],
    changes: bool,
}

impl<'a> Training<'a> {
    pub fn new(tried: &'a [Tried], rungs: &'a [usize]) -> Self {
        let changes = |t: &Tried| match (&t.outcome, outcome(tried, &t.way, Care::Careful)) {
            (Some(trained), Some(before)) => trained.noise != before.noise,
            _ => true,
        };
        Self { tried, rungs, changes: tried.iter().filter(|t| t.way.trains_codes()).all(changes) }
    }

    /// Whether `way` is one to try. Training that brings back what has gone always is.
    pub fn allows(&self, way: &Way) -> bool {
        let before = self.rungs.iter().rev().find(|epochs| **epochs < way.epochs());
        let before = before.map_or(Care::Careful, |epochs| Care::Trained(*epochs));
        !way.trains_codes() || self.changes && outcome(self.tried, way, before).is_some()
    }
}

/// What came of a way with other care.
fn outcome<'a>(tried: &'a [Tried], way: &Way, care: Care) -> Option<&'a Outcome> {
    let way = Way { care, ..way.clone() };
    tried.iter().find(|t| t.way == way)?.outcome.as_ref()
}

/// The share of samples that change their answer by so much noise, guessed: half of them where it is as strong as the signal.
pub fn changed_by(noise: f64) -> f64 {
    (0.5 * noise.max(0.0).sqrt()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_trained_rung_by_rung_while_that_changes_answers() {
        let of = |care: Care, noise: f64| {
            let way = Way { care, ..Way::plain(Form::Int8) };
            Tried { way, ..tried(0, 0.1, noise, 100) }
        };
        let rungs = [1, 4, 16];
        let allows =
            |epochs: usize, tried: &[Tried]| Training::new(tried, &rungs).allows(&of(Care::Trained(epochs), 0.0).way);
        assert!(!allows(1, &[]) && !allows(4, &[of(Care::Careful, 0.1)]));
        let [careful, one] = [of(Care::Careful, 0.1), of(Care::Trained(1), 0.05)];
        assert!(allows(1, std::slice::from_ref(&careful)) && allows(4, &[careful.clone(), one.clone()]));
        assert!(!allows(16, &[careful.clone(), one]));
        assert!(!allows(4, &[careful, of(Care::Trained(1), 0.1)]), "training left answers as they were");
        let pruned = Way { channels: 30, care: Care::Trained(16), ..Way::plain(Form::Int8) };
        assert!(Training::new(&[], &rungs).allows(&pruned), "what has gone comes back by training");
    }

    fn tried(number: usize, lost: f64, noise: f64, samples: usize) -> Tried {
        let objectives = Objectives { lost, time: 0.5, size: 0.5 };
        let way = Way { zeros: number, ..Way::plain(Form::Int8) };
        Tried {
            number,
            way,
            outcome: Some(Outcome { objectives, noise, agreement: Some(1.0 - lost), samples, ..Outcome::default() }),
            ..Tried::default()
        }
    }

    #[test]
    fn ways_with_less_noise_are_taken_to_lose_no_more() {
        // Two samples of 166 tell them apart.
        let all = [tried(1, 4.0 / 166.0, 1.7e-3, 166), tried(2, 2.0 / 166.0, 2.8e-3, 166), tried(3, 0.2, 0.1, 166)];
        let standings = Standings::new(&all, true);
        let lost: Vec<f64> = standings.all().map(|(_, o)| o.lost).collect();
        assert!(lost[0] == lost[1] && lost[0] < 4.0 / 166.0 && lost[2] > 0.15, "{lost:?}");
        assert_eq!(standings.front().len(), 1, "equal losses, times and sizes: the one with less noise");
    }

    #[test]
    fn luck_counts_less_where_others_with_as_much_noise_lose() {
        let of = |samples, of_share| -> Vec<f64> {
            let all = [(0.03, 0.1), (0.02, 0.11), (0.0, 0.1), (0.0, 1e-4), (0.0, 0.0)].into_iter().enumerate();
            let all: Vec<Tried> = all.map(|(i, (lost, noise))| tried(i + 1, lost, noise, samples)).collect();
            Standings::new(&all, of_share).all().map(|(_, o)| o.lost).collect()
        };
        let lost = |samples| of(samples, true);
        let few = lost(100);
        assert!(few[2] > 0.005 && few[2] <= few[0], "the lucky one is taken to lose about what others lose, {few:?}");
        assert!(few[3] < 1e-6 && few[4] == 0.0, "of other noise nothing is known, and what is equal is equal");
        assert!(lost(1_000_000)[2] < 1e-3, "many samples tell by themselves");
        assert_eq!(rising(vec![(1.0, 0.0), (1.0, 3.0), (3.0, 1.0), (1.0, 2.0)]), [0.0, 1.5, 1.5, 2.0]);
        assert_eq!(of(100, false), [0.03, 0.02, 0.0, 0.0, 0.0]);
    }
}
