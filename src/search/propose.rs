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
/// The part of the tries that are chosen by chance, among so large a part of the most promising.
const CURIOUS: f64 = 0.15;
const CURIOUS_OF: usize = 8;
/// Ways that every search begins with.
const BEGUN: usize = 2;
/// What a way has to be expected to add to the hypervolume: less would keep the search at variants of one way that differ by nothing.
const WORTH: f64 = 0.002;
/// The parts of the expected loss and time by which a way may be hoped to be better. Where no way is expected to add anything, one is tried
/// that would then (optimism under uncertainty; Lai and Robbins 1985). Of a way like many that were measured less is hoped.
const HOPED_LOST: f64 = 0.5;
const HOPED_TIME: f64 = 0.1;
/// How much of the seconds counts: less than all, as what a long try shows helps others.
const THRIFT: f64 = 0.8;

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
            forms.extend([Form::Dynamic, Form::WeightsInt8, Form::WeightsInt4]);
        }
        let rungs = rungs(search.epochs.map(|n| n.get()));
        let trained = rungs.iter().map(|epochs| Care::Trained(*epochs));
        let cares = [Care::Quick, Care::Careful].into_iter().chain(trained).collect();
        let mut random = ChaCha8Rng::seed_from_u64(search.on.seed.0);
        // Those that search at once choose otherwise.
        random.set_stream(search.shard.map_or(0, |shard| shard.index as u64));
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
    pub fn next(&mut self, tried: &[Tried], standings: &Standings, left: f64) -> Option<Way> {
        let front = standings.front();
        let known: HashSet<&Way> = tried.iter().map(|t| &t.way).collect();
        let estimator = Estimator::new(self.known, tried);
        let fits = |way: &Way| !known.contains(way) && estimator.seconds(way) <= left;
        if self.strategy == Strategy::Random {
            return (0..BY_CHANCE).map(|_| self.by_chance()).find(fits);
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
        let promise = |way: &Way| promise(self.worst, &reached, &estimator.of(way));
        let mut scored: Vec<((f64, f64), Way)> = pool.into_iter().map(|way| (promise(&way), way)).collect();
        scored.sort_by(|((a, x), way), ((b, y), other)| b.total_cmp(a).then(y.total_cmp(x)).then(way.cmp(other)));
        // What is expected may be wrong, above all where nothing promises anything.
        let is_sure = scored.first()?.0.0 > 0.0 && !self.random.random_bool(CURIOUS);
        let hopeful = scored.iter().filter(|((_, hoped), _)| *hoped > 0.0).count();
        let some = scored.len().div_ceil(CURIOUS_OF);
        let from = match (is_sure, hopeful) {
            (true, _) => 1,
            (false, 0) => some,
            (false, _) => some.min(hopeful),
        };
        scored[..from].choose(&mut self.random).map(|(_, way)| way.clone())
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

/// What a way adds to the hypervolume of those on the front for the seconds that it takes: as it is expected, and as it may be hoped.
fn promise(worst: Worst, reached: &[Objectives], expected: &Estimate) -> (f64, f64) {
    let (volume, seconds) = (worst.hypervolume(reached), expected.seconds.max(0.1).powf(THRIFT));
    let added = |with: Objectives| {
        let with: Vec<_> = reached.iter().copied().chain([with]).collect();
        (worst.hypervolume(&with) - volume - WORTH).max(0.0) / seconds
    };
    let Objectives { lost, time, size } = expected.objectives;
    let less = |of: f64, hoped: f64| of * (1.0 - hoped / (1.0 + expected.alike));
    let hoped = Objectives { lost: less(lost, HOPED_LOST), time: less(time, HOPED_TIME), size };
    (added(expected.objectives), added(hoped))
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

    #[test]
    fn a_way_that_may_add_is_told_from_one_that_cannot() {
        let reached = [Objectives { lost: 0.02, time: 0.4, size: 0.3 }];
        let of_like = |alike: f64, lost: f64, time: f64, size: f64, seconds: f64| {
            let expected = Estimate { objectives: Objectives { lost, time, size }, noise: 0.0, seconds, alike };
            promise(Worst(0.1), &reached, &expected)
        };
        let of = |lost: f64, time: f64, size: f64, seconds: f64| of_like(0.0, lost, time, size, seconds);
        let (added, hoped) = of(0.01, 0.4, 0.3, 1.0);
        assert!(added > 0.0 && hoped > added);
        // It loses more than the front, but would lose less than that if it lost half.
        let (added, hoped) = of(0.03, 0.4, 0.3, 1.0);
        assert!(added == 0.0 && hoped > 0.0);
        assert!(of(0.03, 0.4, 0.3, 9.0).1 < hoped, "long tries promise less");
        assert_eq!(of_like(20.0, 0.03, 0.4, 0.3, 1.0).1, 0.0, "of what was often tried nothing is hoped");
        // A variant of the best, worse throughout by more than may be hoped.
        assert_eq!(of(0.06, 0.6, 0.4, 1.0), (0.0, 0.0));
    }
}
