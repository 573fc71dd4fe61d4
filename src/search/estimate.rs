//! What a way would cost and gain, before it is tried: from layers alone, and from ways that were tried.
//!
//! A first guess adds up what layers do alone: noise, as parts of the signal, and time and bytes. What was measured of ways that are
//! alike corrects it, the nearer the more (Nadaraya 1964, over the logarithms of what guesses missed). There, ways that are like each other
//! count as one: else fifty variants of one way outweigh the only one that is of the same form.

use super::{
    front::Objectives,
    tried::{Outcome, Tried, changed_by},
    way::{Care, Form, Way},
};
use compress_passes::sensitivity::LayerAlone;

/// What is expected of a way.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    pub objectives: Objectives,
    /// The noise of its answers, in parts of the signal.
    pub noise: f64,
    /// Seconds to try it.
    pub seconds: f64,
    /// How many ways like it were measured: the more, the less doubt.
    pub alike: f64,
}

/// What is known of a model before anything is tried.
pub struct Known<'a> {
    pub table: &'a [LayerAlone],
    /// The time of each layer in floats and in INT8, in parts of a run of the original.
    pub times: &'a [[f64; 2]],
    /// Seconds that judging layers alone took, in 8 bits and in 4.
    pub seconds: f64,
    /// Bytes of the original.
    pub bytes: f64,
    /// Whether a share is measured; else the error of the outputs is.
    pub of_share: bool,
    /// How many ways were tried before this process: what those began with is not in memory.
    pub before: usize,
}

/// Makes estimates.
pub struct Estimator<'a> {
    known: &'a Known<'a>,
    tried: &'a [Tried],
    measured: Vec<Measured<'a>>,
}

/// A way that was measured.
struct Measured<'a> {
    way: &'a Way,
    outcome: &'a Outcome,
    guessed: Estimate,
    /// How many of those that were measured are like it, itself too.
    crowd: f64,
}

/// The noise of zeros and of fewer channels: hundredths, and parts of the signal. A first guess, from many convolutional networks.
const ZEROS: [(f64, f64); 6] = [(0.0, 1e-5), (30.0, 2e-3), (50.0, 1e-2), (70.0, 5e-2), (90.0, 0.4), (100.0, 1.5)];
const CHANNELS: [(f64, f64); 5] = [(0.0, 1e-5), (10.0, 2e-2), (30.0, 0.12), (50.0, 0.35), (100.0, 1.5)];
/// What care leaves of the noise: the search of INT8, an epoch of training of that of zeros and channels, and any training of that of
/// codes, which were rounded well before.
const CAREFUL: f64 = 0.6;
const TRAINED: f64 = 0.4;
const TRAINED_CODES: f64 = 0.8;
/// Decibels that all of the gain of INT8 in time buys; and what is saved at most where fewer are wanted.
const DB_FOR_ALL: f64 = 30.0;
const CHEAPER: f64 = 0.05;
/// Decibels that the search of INT8 reaches at any cost, where nobody says what to aim for.
const AT_ANY_COST: f64 = 20.0;
/// Codes of 8 bits are so many times as fine as those of 4, in power.
const FINER: f64 = 256.0;
/// The part of a run that fewer multiply-accumulates and zeros save, of what they are.
const CHANNELS_SAVE: f64 = 0.7;
const ZEROS_SAVE: f64 = 0.1;
/// Bytes of a weight.
const FLOAT: f64 = 4.0;
const INT8: f64 = 1.02;
const INT4: f64 = 0.6;
/// How much a first guess counts beside one way that was tried and is the same.
const GUESS: f64 = 0.15;
/// Ways that estimates are made from: the last ones, so that a long search does not slow down.
const MOST: usize = 300;
/// Logarithms of noise that are told apart, for what is lost by noise.
const NEAR_NOISE: f64 = 1.5;
/// Seconds of a quick try before any; and how many times as long other parts take, as long as nothing like them was tried. The search of
/// INT8 takes as long as judging its layers alone so many times.
const TRY: f64 = 5.0;
const CAREFUL_TRY: f64 = 15.0;
const PRUNED_TRY: f64 = 10.0;
const EPOCH: f64 = 4.0;

fn between(points: &[(f64, f64)], at: f64) -> f64 {
    let next = points.iter().position(|(x, _)| *x >= at).unwrap_or(points.len() - 1).max(1);
    let ((x0, y0), (x1, y1)) = (points[next - 1], points[next]);
    let part = ((at - x0) / (x1 - x0)).clamp(0.0, 1.0);
    (y0.ln() * (1.0 - part) + y1.ln() * part).exp()
}

impl<'a> Estimator<'a> {
    /// Estimates by what is `known`, and by what was `tried`.
    pub fn new(known: &'a Known<'a>, tried: &'a [Tried]) -> Self {
        let of = |t: &'a Tried| {
            let (way, outcome) = (&t.way, t.outcome.as_ref()?);
            Some(Measured { way, outcome, guessed: known.guess(way), crowd: 0.0 })
        };
        let mut measured: Vec<Measured> = tried.iter().rev().filter_map(of).take(MOST).collect();
        for i in 0..measured.len() {
            for j in 0..=i {
                let near = nearness(known.distance(measured[i].way, measured[j].way));
                measured[i].crowd += near;
                if i != j {
                    measured[j].crowd += near;
                }
            }
        }
        Self { known, tried, measured }
    }

    /// What is expected of `way`.
    pub fn of(&self, way: &Way) -> Estimate {
        let guess = self.known.guess(way);
        let near: Vec<f64> = self.measured.iter().map(|m| nearness(self.known.distance(way, m.way))).collect();
        let corrected = |of_guess: &dyn Fn(&Estimate) -> f64, of: &dyn Fn(&Outcome) -> f64| {
            let (mut sum, mut weight) = (0.0, GUESS);
            for (near, Measured { outcome, guessed, crowd, .. }) in near.iter().zip(&self.measured) {
                let near = near / crowd;
                sum += near * (of(outcome).max(1e-9) / of_guess(guessed).max(1e-9)).ln();
                weight += near;
            }
            of_guess(&guess) * (sum / weight).exp()
        };
        let noise = corrected(&|e| e.noise, &|o| o.noise);
        let time = corrected(&|e| e.objectives.time, &|o| o.objectives.time);
        let size = corrected(&|e| e.objectives.size, &|o| o.objectives.size);
        let lost = if self.known.of_share { self.lost(noise) } else { noise.sqrt() };
        let alike = near.iter().sum();
        Estimate { objectives: Objectives { lost, time, size }, noise, seconds: self.seconds(way), alike }
    }

    /// What is lost of a share by so much noise: as a first guess has it, and as ways lost that had about as much.
    fn lost(&self, noise: f64) -> f64 {
        let guess = |noise: f64| changed_by(noise.max(1e-9));
        let (mut lost, mut guessed) = (GUESS * guess(noise), GUESS * guess(noise));
        for Measured { outcome, .. } in &self.measured {
            let near = nearness((outcome.noise.max(1e-9) / noise).ln() / NEAR_NOISE);
            lost += near * outcome.objectives.lost.max(0.0);
            guessed += near * guess(outcome.noise);
        }
        (guess(noise) * lost / guessed).min(1.0)
    }

    /// Seconds of a try: those of others of its kind, or the sum of what its parts take; and those until weights and channels are gone,
    /// unless another way began alike.
    pub fn seconds(&self, way: &Way) -> f64 {
        let quick = self.mean(|t| (t.way.care == Care::Quick).then(|| t.own())).unwrap_or(TRY);
        let careful = Kind { care: Care::Careful, searches: true };
        let careful = self.mean(|t| (Kind::of(&t.way) == careful).then(|| (t.own() - quick).max(0.0)));
        let careful = careful.unwrap_or(CAREFUL_TRY * self.known.int8_seconds());
        let epoch = || {
            let trains = |way: &Way| way.epochs() > 0 && way.form == Form::Int8 && way.four.is_empty();
            let rest = |t: &Tried| (t.own() - quick - careful).max(0.0) / t.way.epochs() as f64;
            let of = |t: &Tried| trains(&t.way).then(|| rest(t));
            self.mean(of).unwrap_or(EPOCH * quick) * way.epochs() as f64
        };
        let kind = Kind::of(way);
        let own = self.mean(|t| (Kind::of(&t.way) == kind).then(|| t.own())).unwrap_or_else(|| {
            let searches = kind.searches && way.care != Care::Quick;
            quick + if searches { careful + epoch() } else { 0.0 }
        });
        own + way.beginning().map_or(0.0, |beginning| {
            if self.tried.iter().skip(self.known.before).any(|t| t.way.beginning() == Some(beginning)) {
                return 0.0;
            }
            let of =
                |epochs: usize| self.mean(|t| (t.way.epochs() == epochs && t.beginning > 0.0).then_some(t.beginning));
            of(way.epochs()).unwrap_or_else(|| of(0).unwrap_or(PRUNED_TRY * quick) + epoch())
        })
    }

    fn mean(&self, of: impl Fn(&Tried) -> Option<f64>) -> Option<f64> {
        let all: Vec<f64> = self.tried.iter().filter_map(of).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }
}

/// What decides how long a try takes, beside what comes before codes.
#[derive(PartialEq)]
struct Kind {
    care: Care,
    searches: bool,
}

impl Kind {
    fn of(way: &Way) -> Self {
        Self { care: way.care, searches: way.form == Form::Int8 }
    }
}

impl Tried {
    /// Seconds that it took itself.
    fn own(&self) -> f64 {
        (self.seconds - self.beginning).max(0.0)
    }
}

impl Known<'_> {
    /// Seconds of judging layers alone in INT8.
    fn int8_seconds(&self) -> f64 {
        let of = |has: &dyn Fn(&&LayerAlone) -> bool| self.table.iter().filter(has).count() as f64;
        let (int8, int4) = (of(&|layer| layer.int8.is_some()), of(&|layer| layer.int4.is_some()));
        self.seconds * int8 / (int8 + int4).max(1.0)
    }

    fn guess(&self, way: &Way) -> Estimate {
        let each = |of: &dyn Fn(usize, &LayerAlone) -> f64| -> f64 {
            self.table.iter().enumerate().map(|(i, layer)| of(i, layer)).sum()
        };
        let form = |i: usize| match way.form {
            Form::Int8 if way.four.contains(&i) => Form::WeightsInt4,
            Form::Int8 if way.float.contains(&i) => Form::Float,
            form => form,
        };
        let noise = each(&|i, layer| match form(i) {
            Form::Float => 0.0,
            Form::Int8 | Form::Dynamic => layer.int8.unwrap_or(0.0),
            Form::WeightsInt8 => layer.int4.unwrap_or(0.0) / FINER,
            Form::WeightsInt4 => layer.int4.unwrap_or(0.0),
        });
        let gone = |hundredths: usize, points: &[(f64, f64)]| {
            if hundredths == 0 { 0.0 } else { between(points, hundredths as f64) }
        };
        let codes = noise * if way.care == Care::Quick { 1.0 } else { CAREFUL };
        // What is aimed for is bought with time, a decibel for a part of what INT8 gains.
        let aimed = match way.care {
            Care::Quick => codes,
            _ if way.aim > 0 => 10f64.powf(-(way.aim as f64) / 10.0),
            Care::Careful | Care::Trained(_) => codes.min(10f64.powf(-AT_ANY_COST / 10.0)),
        };
        let bought = ((codes.max(1e-9) / aimed.max(1e-9)).log10() * 10.0 / DB_FOR_ALL).clamp(-CHEAPER, 1.0);
        let (of_codes, of_gone) = match way.care {
            Care::Quick | Care::Careful => (1.0, 1.0),
            Care::Trained(epochs) => (TRAINED_CODES, TRAINED / (epochs as f64).sqrt()),
        };
        let gone = gone(way.zeros, &ZEROS) + gone(way.channels, &CHANNELS);
        let noise = (of_codes * aimed + of_gone * gone).max(1e-9);
        let spent = |i: usize| self.times.get(i).copied().unwrap_or_default();
        let layers = each(&|i, layer| match form(i) {
            Form::Int8 if layer.int8.is_some() => spent(i)[1],
            Form::Dynamic if layer.int4.is_some() => spent(i)[1],
            _ => spent(i)[0],
        });
        let rest = (1.0 - each(&|i, _| spent(i)[0])).max(0.0);
        let narrower = 1.0 - way.channels as f64 / 100.0 * CHANNELS_SAVE;
        let layers = layers + bought * (each(&|i, _| spent(i)[0]) - layers).max(0.0);
        let time = (layers + rest) * narrower * (1.0 - (way.zeros as f64 / 100.0).powi(3) * ZEROS_SAVE);
        let bytes = each(&|i, layer| {
            let each = match form(i) {
                Form::Float => FLOAT,
                Form::Int8 if layer.int8.is_none() => FLOAT,
                Form::Dynamic | Form::WeightsInt8 | Form::WeightsInt4 if layer.int4.is_none() => FLOAT,
                Form::Int8 | Form::Dynamic | Form::WeightsInt8 => INT8,
                Form::WeightsInt4 => INT4,
            };
            each * layer.weights as f64
        });
        let known = each(&|_, layer| FLOAT * layer.weights as f64);
        let bytes = (bytes + (self.bytes - known).max(0.0)) * (1.0 - way.channels as f64 / 100.0);
        let lost = noise.sqrt();
        let objectives = Objectives { lost, time, size: bytes / self.bytes.max(1.0) };
        Estimate { objectives, noise, seconds: 0.0, alike: 0.0 }
    }

    /// How unlike two ways are: 1 says that one tells little of the other.
    fn distance(&self, a: &Way, b: &Way) -> f64 {
        let share = |of: &dyn Fn(&Way) -> &std::collections::BTreeSet<usize>| {
            if of(a) == of(b) {
                return 0.0;
            }
            let weight = |i: &usize| self.table.get(*i).map_or(0.0, |layer| layer.int8.unwrap_or(0.0).sqrt());
            let all: f64 = (0..self.table.len()).map(|i| weight(&i)).sum();
            of(a).symmetric_difference(of(b)).map(weight).sum::<f64>() / all.max(1e-9)
        };
        let apart = |a: usize, b: usize, scale: f64| a.abs_diff(b) as f64 / scale;
        let level = |care: Care| match care {
            Care::Quick => 0.0,
            Care::Careful => 0.6,
            Care::Trained(n) => 1.2 + 0.2 * (n as f64).log2(),
        };
        let parts = [
            if a.form == b.form { 0.0 } else { 1.5 },
            2.0 * share(&|w| &w.float),
            2.0 * share(&|w| &w.four),
            if a.calibration == b.calibration { 0.0 } else { 0.4 },
            apart(a.zeros, b.zeros, 25.0),
            apart(a.channels, b.channels, 20.0),
            level(a.care) - level(b.care),
            apart(a.aim, b.aim, 15.0),
        ];
        parts.iter().map(|p| p * p).sum::<f64>().sqrt()
    }
}

fn nearness(distance: f64) -> f64 {
    (-distance * distance).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::way::AIMS;

    fn table() -> Vec<LayerAlone> {
        let layer = |name: &str, noise: f64| LayerAlone {
            node: name.into(),
            op: "Conv".into(),
            macs: 1000,
            weights: 100,
            int8: Some(noise),
            gain: 0.1,
            int4: Some(noise * 50.0),
        };
        vec![layer("a", 0.01), layer("b", 0.0001)]
    }

    fn known(table: &[LayerAlone]) -> Known<'_> {
        Known { table, times: &TIMES, seconds: 1.0, bytes: 1000.0, of_share: true, before: 0 }
    }

    const TIMES: [[f64; 2]; 2] = [[0.5, 0.2], [0.3, 0.1]];

    #[test]
    fn a_first_guess_adds_up_layers() {
        let table = table();
        let known = known(&table);
        let all = Estimator::new(&known, &[]);
        let int8 = all.of(&Way::plain(Form::Int8));
        let spared = all.of(&Way { float: [0].into(), ..Way::plain(Form::Int8) });
        assert!((int8.noise - 0.0101).abs() < 1e-9 && (spared.noise - 0.0001).abs() < 1e-9);
        assert!((int8.objectives.time - 0.5).abs() < 1e-9 && (spared.objectives.time - 0.8).abs() < 1e-9);
        assert!(int8.objectives.size < spared.objectives.size && spared.objectives.size < 1.0);
        let pruned = Way { care: Care::Careful, channels: 70, ..Way::plain(Form::Int8) };
        let aimed = all.of(&Way { aim: 40, ..pruned.clone() });
        assert!(aimed.noise > 0.3 && all.of(&pruned).noise > 0.3, "what INT8 aims for brings no channels back");
        let noisy: Vec<_> = table.iter().map(|l| LayerAlone { int8: l.int8.map(|n| 20.0 * n), ..l.clone() }).collect();
        let (noisy, care) = (Known { table: &noisy, ..known }, Care::Careful);
        let noisy = Estimator::new(&noisy, &[]);
        let [quick, careful] = [Care::Quick, care].map(|care| noisy.of(&Way { care, ..Way::plain(Form::Int8) }));
        assert!(quick.noise > 0.2 && careful.noise < 0.011, "the search of INT8 reaches 20 dB at any cost");
        assert!(careful.objectives.time > quick.objectives.time && careful.objectives.time < 1.0, "which takes time");
        let epochs = |way: &Way| all.of(&Way { care: Care::Trained(16), ..way.clone() }).noise / all.of(way).noise;
        assert!(epochs(&pruned) < 0.15 && epochs(&Way { channels: 0, ..pruned }) > 0.7, "epochs bring channels back");
        let float = all.of(&Way::plain(Form::Float)).objectives;
        assert!((float.time - 1.0).abs() < 1e-9 && (float.size - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_tried_corrects_the_guess_of_what_is_like_it() {
        let table = table();
        let known = known(&table);
        let way = Way::plain(Form::Int8);
        let objectives = Objectives { lost: 0.08, time: 0.9, size: 0.4 };
        let outcome = Outcome { objectives, noise: 0.2, ..Outcome::default() };
        let tried = [Tried { way: way.clone(), outcome: Some(outcome), seconds: 3.0, ..Tried::default() }];
        let with = Estimator::new(&known, &tried);
        let (same, other) = (with.of(&way), with.of(&Way { channels: 70, ..way.clone() }));
        assert!(same.objectives.time > 0.8 && same.noise > 0.1 && same.objectives.lost > 0.05, "{same:?}");
        let before = Estimator::new(&known, &[]).of(&Way { channels: 70, ..way });
        let moved = (other.objectives.time / before.objectives.time).ln().abs();
        assert!(moved < 0.1, "a way far off is guessed as before, {moved}");
        assert_eq!(same.seconds, 3.0);
        assert!(same.alike > 0.9 && other.alike < 0.1);
    }

    #[test]
    fn many_variants_count_as_one() {
        let table = table();
        let known = known(&table);
        let of = |way: &Way, time: f64| {
            let outcome = Outcome { objectives: Objectives { lost: 0.0, time, size: 0.5 }, ..Outcome::default() };
            Tried { way: way.clone(), outcome: Some(outcome), seconds: 1.0, ..Tried::default() }
        };
        let (int8, float) = (Way { care: Care::Careful, ..Way::plain(Form::Int8) }, Way::plain(Form::Float));
        // INT8 is slower than floats here, though its layers alone promised half of the time.
        let variants = AIMS.iter().flat_map(|aim| [0, 1].map(|four| (aim, four)));
        let variants = variants.map(|(aim, four)| Way { aim: *aim, four: (0..four).collect(), ..int8.clone() });
        let tried: Vec<Tried> = std::iter::once(of(&float, 1.0)).chain(variants.map(|way| of(&way, 1.2))).collect();
        let pruned = Way { channels: 10, care: Care::Careful, ..float };
        let time = Estimator::new(&known, &tried).of(&pruned).objectives.time;
        assert!(time < 1.04, "one way in floats says more of floats than twelve in INT8: {time}");
    }
}
