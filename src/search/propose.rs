//! Which way is tried next.
//!
//! Flags alone come first, each as it is. Then ways are made of those on the front (a step of one of their parts, parts of two of them)
//! and by chance, and the one is tried that is expected to add most to the hypervolume for the seconds that it takes: cheap tries come
//! first, and training only where it promises most.

use super::{
    Search, Strategy,
    estimate::{Estimate, Estimator, Known},
    front::{Objectives, Worst},
    tried::{Standings, Training, Tried},
    way::{AIMS, CHANNELS, Care, Form, Way, ZEROS, rungs},
};
use crate::shard::Shard;
use compress_compiler::choice::Choice;
use compress_passes::quant::calibrators::Calibration;
use rand::{Rng, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeSet, HashSet};

/// Ways that are made of each on the front, and by chance; and the most that are looked at.
const CHILDREN: usize = 24;
const BY_CHANCE: usize = 100;
/// The part of the seconds that goes to tries by chance though others promise more; these come from the most promising eighth.
const CURIOUS: f64 = 0.15;
const CURIOUS_OF: usize = 8;
/// Ways that every search begins with.
const BEGUN: usize = 2;
/// What a way has to add to the hypervolume: less would keep the search at variants of one way that differ by nothing.
const WORTH: f64 = 0.0005;
/// How much better than expected a way may be, and how likely: improvement is expected over all of these (Jones et al. 1998). The first
/// number counts steps: each takes these parts off its loss and its time, less of a way like many that were measured.
const MAY_BE: [(f64, f64); 4] = [(0.0, 0.5), (1.0, 0.25), (2.0, 0.15), (4.0, 0.1)];
const LESS_LOST: f64 = 0.5;
const LESS_TIME: f64 = 0.1;
/// The hypervolume that ways of a kind are taken to have promised, and kept, before any was tried.
const TRUSTED: f64 = 0.01;
/// How much of the seconds counts: less than all, as what a long try shows helps others.
const THRIFT: f64 = 0.8;

/// A way to try next.
pub struct Proposal {
    pub way: Way,
    /// What it promises to add to the hypervolume; nothing where it was not chosen for that.
    pub promised: Option<f64>,
    /// Whether it was chosen by chance though others promise more.
    pub curious: bool,
}

impl From<Way> for Proposal {
    fn from(way: Way) -> Self {
        Self { way, promised: None, curious: false }
    }
}

/// A way, and what it promises to add to the hypervolume, beside the seconds and what such promises are worth.
struct Scored {
    score: f64,
    way: Way,
}

/// Makes proposals.
pub struct Proposer<'a> {
    known: &'a Known<'a>,
    worst: Worst,
    strategy: Strategy,
    shard: Option<Shard>,
    forms: Vec<Form>,
    cares: Vec<Care>,
    /// Epochs of training.
    rungs: Vec<usize>,
    /// Layers that INT8 may have in floats, the worst noise for the time that codes save first.
    spared: Vec<usize>,
    /// Layers whose weights may have 4 bits.
    stored: Vec<usize>,
    /// A way that was chosen by chance though others promised more, which waits until there are seconds for it.
    drawn: Option<Way>,
    random: ChaCha8Rng,
}

impl<'a> Proposer<'a> {
    /// Proposals of what `search` allows.
    pub fn new(search: &Search, known: &'a Known<'a>, worst: Worst) -> Self {
        let of = |has: &dyn Fn(usize) -> bool| (0..known.table.len()).filter(|i| has(*i)).collect::<Vec<_>>();
        let mut spared = of(&|i| known.table[i].int8.is_some());
        let merit = |i: &usize| {
            let [float, int8] = known.times.get(*i).copied().unwrap_or_default();
            known.table[*i].int8.unwrap_or(0.0) / (float - int8).max(1e-4)
        };
        spared.sort_by(|a, b| merit(b).total_cmp(&merit(a)));
        let stored = of(&|i| known.table[i].int4.is_some());
        let mut forms = vec![Form::Float];
        if !spared.is_empty() {
            forms.push(Form::Int8);
        }
        if !stored.is_empty() {
            let all = [Form::Dynamic, Form::WeightsInt8, Form::WeightsInt4].into_iter();
            forms.extend(all.filter(|form| *form != Form::Dynamic || search.target.capabilities().dynamic));
        }
        let rungs = rungs(search.epochs.map(|n| n.get()));
        let trained = rungs.iter().map(|epochs| Care::Trained(*epochs));
        let cares = [Care::Quick, Care::Careful].into_iter().chain(trained).collect();
        let mut random = ChaCha8Rng::seed_from_u64(search.on.seed.0);
        // Those that search at once choose otherwise.
        random.set_stream(search.shard.map_or(0, |shard| shard.index as u64));
        // One that goes on draws others than before.
        random.set_word_pos((known.before as u128) << 32);
        Self {
            known,
            worst,
            strategy: search.strategy,
            shard: search.shard,
            forms,
            cares,
            rungs,
            spared,
            stored,
            drawn: None,
            random,
        }
    }

    /// What flags alone ask for. Those that search at once divide it, but for floats and INT8, with which each begins.
    pub fn plain(&self) -> Vec<Way> {
        let way = Way::plain;
        let mut all = vec![way(Form::Float)];
        if self.strategy == Strategy::Random {
            return all;
        }
        if self.forms.contains(&Form::Int8) {
            all.extend([way(Form::Int8), Way { care: Care::Careful, ..way(Form::Int8) }]);
        }
        all.extend(self.forms.iter().filter(|form| !matches!(form, Form::Float | Form::Int8)).map(|form| way(*form)));
        let best = if self.forms.contains(&Form::Int8) { Form::Int8 } else { Form::Float };
        all.extend([
            Way { channels: 30, care: Care::Careful, ..way(best) },
            Way { zeros: 50, care: Care::Careful, ..way(best) },
        ]);
        let mut seen = HashSet::new();
        let all = all.into_iter().map(Way::settled).filter(|way| seen.insert(way.clone())).enumerate();
        let own = |i: usize| i < BEGUN || self.shard.is_none_or(|shard| shard.has(i));
        all.filter(|(i, _)| own(*i)).map(|(_, way)| way).collect()
    }

    /// The way to try next, in no more than `left` seconds; nothing where nothing is left to try.
    pub fn next(&mut self, tried: &[Tried], standings: &Standings, left: f64) -> Option<Proposal> {
        let front = standings.front();
        let known: HashSet<&Way> = tried.iter().map(|t| &t.way).collect();
        let estimator = Estimator::new(self.known, tried);
        let fits = |way: &Way| !known.contains(way) && estimator.seconds(way) <= left;
        if self.strategy == Strategy::Random {
            return (0..BY_CHANCE).map(|_| self.by_chance()).find(fits).map(Proposal::from);
        }
        // Those that lose more than counts have no children, unless there are no others.
        let counts = |objectives: &Objectives| objectives.lost < self.worst.0;
        let some_count = front.iter().any(|(_, objectives)| counts(objectives));
        let parents = front.iter().filter(|(_, objectives)| counts(objectives) || !some_count);
        let parents: Vec<&Way> = parents.map(|(tried, _)| &tried.way).collect();
        let pool = self.pool(&parents);
        let training = Training::new(tried, &self.rungs);
        let pool: Vec<Way> = pool.into_iter().filter(|way| fits(way) && training.allows(way)).collect();
        let reached: Vec<_> = front.iter().map(|(_, objectives)| *objectives).collect();
        let volume = self.worst.hypervolume(&reached);
        let trust = Trust::new(tried);
        let scored = pool.into_iter().map(|way| {
            let expected = estimator.of(&way);
            let promised = promise(self.worst, (&reached, volume), &expected);
            Scored { score: trust.of(&way) * promised / expected.seconds.max(0.1).powf(THRIFT), way }
        });
        let mut scored: Vec<Scored> = scored.collect();
        scored.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.way.cmp(&b.way)));
        if scored.first()?.score == 0.0 {
            let quick = |s: &Scored| 1.0 / estimator.seconds(&s.way).max(0.1);
            return scored.choose_weighted(&mut self.random, quick).ok().map(|s| s.way.clone().into());
        }
        let drawn = self.drawn.take().filter(fits).or_else(|| {
            let most = &scored[..scored.len().div_ceil(CURIOUS_OF)];
            let promising: Vec<&Scored> = most.iter().skip(1).filter(|s| s.score > 0.0).collect();
            promising.choose(&mut self.random).map(|s| s.way.clone())
        });
        let spare = left_to_curiosity(tried);
        let (way, curious) = match drawn {
            Some(way) if estimator.seconds(&way) <= spare => (way, true),
            drawn => {
                self.drawn = drawn;
                (scored[0].way.clone(), false)
            }
        };
        let promised = promise(self.worst, (&reached, volume), &estimator.of(&way));
        Some(Proposal { way, promised: Some(promised), curious })
    }

    /// Ways to choose from, each once.
    fn pool(&mut self, parents: &[&Way]) -> BTreeSet<Way> {
        let mut pool = BTreeSet::new();
        for parent in parents {
            for _ in 0..CHILDREN {
                let other = parents.choose(&mut self.random).map(|way| (*way).clone());
                let mut child = match other.filter(|_| self.random.random_bool(0.3)) {
                    Some(other) => self.crossed(parent, &other),
                    None => (*parent).clone(),
                };
                for _ in 0..self.random.random_range(1..=2) {
                    child = self.stepped(child);
                }
                pool.insert(child.settled());
            }
            pool.extend(self.cares.iter().map(|care| Way { care: *care, ..(*parent).clone() }.settled()));
        }
        pool.extend((0..BY_CHANCE).map(|_| self.by_chance()));
        pool
    }

    /// Parts of two ways.
    fn crossed(&mut self, a: &Way, b: &Way) -> Way {
        let mut child = a.clone();
        let mut takes = || self.random.random_bool(0.5);
        if takes() {
            (child.form, child.calibration) = (b.form, b.calibration.clone());
        }
        if takes() {
            (child.float, child.four) = (b.float.clone(), b.four.clone());
        }
        if takes() {
            child.zeros = b.zeros;
        }
        if takes() {
            child.channels = b.channels;
        }
        if takes() {
            (child.care, child.aim) = (b.care, b.aim);
        }
        child
    }

    /// A way with one part of it changed.
    fn stepped(&mut self, mut way: Way) -> Way {
        match self.random.random_range(0..9) {
            0 => way.form = *self.forms.choose(&mut self.random).unwrap_or(&way.form),
            // The first of those that are spared, more or fewer.
            1 => {
                let most = self.spared.len().div_ceil(2);
                let now = self.spared.iter().take_while(|i| way.float.contains(i)).count();
                let step = self.random.random_range(1..=(most / 6).max(1));
                let next = if self.random.random_bool(0.5) { now + step } else { now.saturating_sub(step) };
                way.float = self.spared.iter().copied().take(next.min(most)).collect();
            }
            2 => toggle(&mut way.float, self.spared.choose(&mut self.random)),
            3 => toggle(&mut way.four, self.stored.choose(&mut self.random)),
            4 => way.zeros = self.beside(&ZEROS, way.zeros),
            5 => way.channels = self.beside(&CHANNELS, way.channels),
            6 => way.calibration = self.calibration(),
            7 => way.aim = *AIMS.choose(&mut self.random).unwrap_or(&0),
            _ => way.care = *self.cares.choose(&mut self.random).unwrap_or(&way.care),
        }
        way
    }

    /// One of `all` beside `now`.
    fn beside(&mut self, all: &[usize], now: usize) -> usize {
        let at = all.iter().position(|n| *n == now).unwrap_or(0);
        let next = if self.random.random_bool(0.5) { at + 1 } else { at.saturating_sub(1) };
        all[next.min(all.len() - 1)]
    }

    fn calibration(&mut self) -> Option<String> {
        let rest = self.random.random_bool(0.7).then(|| Calibration::ALL.choose(&mut self.random)).flatten();
        rest.map(|one| one.name_of().to_string())
    }

    fn by_chance(&mut self) -> Way {
        let some = |random: &mut ChaCha8Rng, of: &[usize]| -> BTreeSet<usize> {
            let share = *[0.0, 0.0, 0.1, 0.25, 0.5].choose(random).unwrap_or(&0.0);
            of.iter().copied().filter(|_| random.random_bool(share)).collect()
        };
        let (float, four) = (some(&mut self.random, &self.spared), some(&mut self.random, &self.stored));
        let one = |random: &mut ChaCha8Rng, of: &[usize]| match random.random_bool(0.5) {
            true => 0,
            false => *of.choose(random).unwrap_or(&0),
        };
        let (zeros, channels) = (one(&mut self.random, &ZEROS), one(&mut self.random, &CHANNELS));
        let form = *self.forms.choose(&mut self.random).unwrap_or(&Form::Float);
        let care = *self.cares.choose(&mut self.random).unwrap_or(&Care::Quick);
        let aim = *AIMS.choose(&mut self.random).unwrap_or(&0);
        Way { form, float, four, aim, calibration: self.calibration(), zeros, channels, care }.settled()
    }
}

/// What a way is expected to add to the hypervolume of those on the front, which have the `volume`.
fn promise(worst: Worst, (reached, volume): (&[Objectives], f64), expected: &Estimate) -> f64 {
    let Objectives { lost, time, size } = expected.objectives;
    let added = |(better, likely): (f64, f64)| {
        let less = |of: f64, part: f64| of * (1.0 - part).powf(better / (1.0 + expected.alike));
        let with = Objectives { lost: less(lost, LESS_LOST), time: less(time, LESS_TIME), size };
        let with: Vec<_> = reached.iter().copied().chain([with]).collect();
        likely * (worst.hypervolume(&with) - volume - WORTH).max(0.0)
    };
    MAY_BE.into_iter().map(added).sum()
}

/// How much of what ways promised they kept.
struct Trust<'a> {
    /// Ways that had promised something, what that was, and what they added.
    kept: Vec<(&'a Way, f64, f64)>,
}

impl<'a> Trust<'a> {
    fn new(tried: &'a [Tried]) -> Self {
        let kept = |pair: &'a [Tried]| {
            let [before, tried] = pair else { return None };
            // Of what can't be done nothing is known.
            tried.outcome.as_ref()?;
            Some((&tried.way, tried.promised?, (tried.reached - before.reached).max(0.0)))
        };
        Self { kept: tried.windows(2).filter_map(kept).collect() }
    }

    /// The part that ways of the kind of `way` kept: those with as much care that begin alike, with zeros and fewer channels or without.
    fn of(&self, way: &Way) -> f64 {
        let kind = |way: &Way| (std::mem::discriminant(&way.care), way.beginning().is_some());
        let own = self.kept.iter().filter(|(other, ..)| kind(other) == kind(way));
        let (promised, kept) = own.fold((TRUSTED, TRUSTED), |(p, k), (_, promised, kept)| (p + promised, k + kept));
        (kept / promised).min(1.0)
    }
}

/// Seconds that are left for tries by chance, of which there were some. If their number counted, those of minutes would take most of the
/// time. Ways that flags alone ask for don't count: where these take long, little is known behind them.
fn left_to_curiosity(tried: &[Tried]) -> f64 {
    let part = |t: &Tried| if t.curious { CURIOUS - 1.0 } else { CURIOUS };
    tried.iter().filter(|t| !t.plain).map(|t| part(t) * t.seconds).sum()
}

fn toggle(set: &mut BTreeSet<usize>, one: Option<&usize>) {
    if let Some(one) = one
        && !set.remove(one)
    {
        set.insert(*one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tried::Outcome;

    #[test]
    fn a_way_that_may_add_is_told_from_one_that_cannot() {
        let reached = [Objectives { lost: 0.02, time: 0.4, size: 0.3 }];
        let of = |alike: f64, lost: f64, time: f64, size: f64| {
            let expected = Estimate { objectives: Objectives { lost, time, size }, noise: 0.0, seconds: 1.0, alike };
            promise(Worst(0.1), (&reached, Worst(0.1).hypervolume(&reached)), &expected)
        };
        let better = of(0.0, 0.01, 0.4, 0.3);
        // It loses more than the front, but would lose less than that if it lost half.
        let maybe = of(0.0, 0.03, 0.4, 0.3);
        assert!(better > maybe && maybe > 0.0);
        assert!(of(20.0, 0.03, 0.4, 0.3) < 0.02 * maybe, "of what was often tried little is hoped");
        // Worse throughout, by more than may be hoped.
        assert!(of(0.0, 0.06, 0.6, 0.4) < 0.3 * maybe);
        assert_eq!(of(0.0, 0.9, 0.9, 0.9), 0.0);
    }

    #[test]
    fn kinds_of_ways_that_keep_no_promise_are_trusted_less() {
        let way = |care: Care, channels: usize| Way { care, channels, ..Way::plain(Form::Int8) };
        let [quick, trained, cut] = [way(Care::Quick, 0), way(Care::Trained(4), 0), way(Care::Trained(16), 30)];
        let outcome = Some(Outcome::default());
        let of = |way: &Way, reached: f64, promised: Option<f64>| Tried {
            way: way.clone(),
            reached,
            promised,
            outcome: outcome.clone(),
            ..Tried::default()
        };
        let plain = of(&Way::plain(Form::Float), 0.1, None);
        let tried = [plain, of(&quick, 0.12, Some(0.03)), of(&cut, 0.12, Some(0.03))];
        let trust = Trust::new(&tried);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(trust.of(&quick), 0.75) && near(trust.of(&trained), 1.0) && near(trust.of(&cut), 0.25));
        assert!(near(trust.of(&way(Care::Trained(1), 50)), 0.25) && near(trust.of(&way(Care::Careful, 30)), 1.0));
    }

    #[test]
    fn curiosity_has_a_part_of_the_seconds() {
        let of = |form: Form, seconds: f64| Tried { way: Way::plain(form), seconds, ..Tried::default() };
        let (int8, float) = (of(Form::Int8, 80.0), Tried { curious: true, ..of(Form::Float, 10.0) });
        let left = |tried: &[Tried]| left_to_curiosity(tried);
        assert!(left(&[]).abs() < 1e-9);
        assert!((left(std::slice::from_ref(&int8)) - 12.0).abs() < 1e-9);
        let plain = Tried { plain: true, ..of(Form::Dynamic, 500.0) };
        assert!((left(&[plain, int8, float]) - 3.5).abs() < 1e-9);
    }
}
