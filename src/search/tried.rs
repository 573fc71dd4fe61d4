//! What was tried, and what came of it.

use super::{
    front::{Objectives, front},
    way::{Form, Way},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A way that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Its number, from 1.
    pub number: usize,
    pub way: Way,
    /// Whether it is one of those that flags alone ask for.
    pub plain: bool,
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
        let (score, agreement, sha256, unusable) = Default::default();
        Self { objectives, noise: 0.0, score, agreement, bytes: 0, sha256, unusable }
    }
}

impl Default for Tried {
    fn default() -> Self {
        let (plain, at, reached, seconds, beginning, outcome, failed) = Default::default();
        Self { number: 0, way: Way::plain(Form::Float), plain, at, reached, seconds, beginning, outcome, failed }
    }
}

/// All that was tried, and what it is taken to reach.
///
/// Of many ways that were measured on few samples, the best are also the luckiest. So what a way lost counts together with what
/// others lost whose answers have about as much noise (shrinkage; James and Stein 1961).
pub struct Standings<'a> {
    tried: &'a [Tried],
    /// For each way that is fit for use: its place, its objectives, and its noise.
    usable: Vec<(usize, Objectives, f64)>,
}

/// Logarithms of noise that are told apart.
const NEAR: f64 = 0.35;
/// Trained ways lose otherwise by the same noise.
const OTHERWISE: f64 = 0.2;

/// What was measured of a way.
struct Measured<'a> {
    way: &'a Way,
    /// The logarithm of its noise.
    noise: f64,
    lost: f64,
    /// How far that may be off, as few samples tell: a variance.
    unsure: f64,
}

impl<'a> Standings<'a> {
    /// Those of ways that were measured on so many `samples`; `of_share` says that what they lost are points of a share.
    pub fn new(tried: &'a [Tried], samples: usize, of_share: bool) -> Self {
        let measured = |t: &'a Tried| {
            let o = t.outcome.as_ref()?;
            let (noise, lost, unsure) = (o.noise.max(1e-9).ln(), o.objectives.lost, o.unsure(samples));
            Some(Measured { way: &t.way, noise, lost, unsure })
        };
        let all: Vec<Measured> = tried.iter().filter_map(measured).collect();
        let usable = |(i, t): (usize, &'a Tried)| {
            let o = t.outcome.as_ref().filter(|o| o.unusable.is_none())?;
            // An error is the noise itself, and what is not changed loses nothing.
            let lost = if of_share && o.noise > 0.0 { shrunk(&measured(t)?, &all) } else { o.objectives.lost };
            Some((i, Objectives { lost, ..o.objectives }, o.noise))
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

/// What `own` lost, drawn to the mean of those that have about as much noise: the more, the more of their differences chance explains
/// (the positive-part estimator of James and Stein, by estimated variances).
fn shrunk(own: &Measured, all: &[Measured]) -> f64 {
    let near = |other: &Measured| {
        let kind = if (other.way.epochs() > 0) == (own.way.epochs() > 0) { 1.0 } else { OTHERWISE };
        kind * (-((other.noise - own.noise) / NEAR).powi(2)).exp()
    };
    let (mut weight, mut lost, mut squares, mut by_chance) = (0.0, 0.0, 0.0, 0.0);
    for other in all {
        let near = near(other);
        weight += near;
        lost += near * other.lost;
        squares += near * other.lost.powi(2);
        by_chance += near * other.unsure;
    }
    let [lost, squares, by_chance] = [lost, squares, by_chance].map(|sum| sum / weight.max(1e-9));
    let differ = (squares - lost.powi(2) - by_chance).max(0.0);
    let others = weight - 1.0;
    // By itself, what was lucky looks sure. And a mean of few is as unsure as what it is the mean of.
    let by_chance = by_chance.max(own.unsure);
    let part = by_chance / (by_chance + differ).max(1e-12) * (others / (1.0 + others)).max(0.0);
    own.lost + part * (lost - own.lost)
}

impl Outcome {
    /// How far what was lost may be off, measured on so many samples: a variance. One sample more might have changed its answer, where
    /// noise is strong enough to change any.
    pub fn unsure(&self, samples: usize) -> f64 {
        let samples = samples.max(1) as f64;
        let changed = self.agreement.map_or(self.objectives.lost.abs(), |agreement| 1.0 - agreement);
        (changed + changed_by(self.noise).min(1.0 / samples)) / samples
    }
}

/// The share of samples that change their answer by so much noise, guessed: half of them where it is as strong as the signal.
pub fn changed_by(noise: f64) -> f64 {
    (0.5 * noise.max(0.0).sqrt()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(number: usize, lost: f64, noise: f64) -> Tried {
        let objectives = Objectives { lost, time: 0.5, size: 0.5 };
        let way = Way { zeros: number, ..Way::plain(Form::Int8) };
        Tried {
            number,
            way,
            outcome: Some(Outcome { objectives, noise, agreement: Some(1.0 - lost), ..Outcome::default() }),
            ..Tried::default()
        }
    }

    #[test]
    fn luck_counts_less_where_others_with_as_much_noise_lose() {
        let all =
            [tried(1, 0.03, 0.1), tried(2, 0.02, 0.11), tried(3, 0.0, 0.1), tried(4, 0.0, 1e-4), tried(5, 0.0, 0.0)];
        let lost = |samples| Standings::new(&all, samples, true).all().map(|(_, o)| o.lost).collect::<Vec<_>>();
        let few = lost(100);
        assert!(few[2] > 0.005 && few[2] < few[0], "the lucky one is taken to lose about what others lose, {few:?}");
        assert!(few[3] < 1e-6 && few[4] == 0.0, "of other noise nothing is known, and what is equal is equal");
        assert!(lost(1_000_000)[2] < 1e-3, "many samples tell by themselves");
        let error: Vec<f64> = Standings::new(&all, 100, false).all().map(|(_, o)| o.lost).collect();
        assert_eq!(error, [0.03, 0.02, 0.0, 0.0, 0.0]);
    }
}
