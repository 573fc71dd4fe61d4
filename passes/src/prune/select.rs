//! Which units go: those of the lowest score, as many as a budget asks for, where that makes the model faster.

use super::{
    cut::Cut,
    groups::{Group, Groups},
    score::{Score, Scored},
    structured::{Channels, Measure},
};
use crate::layers::Layer;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    pass::{Context, Outcome, Skipped, Stopwatch},
    verify::verify,
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

/// The share of the time which its multiply-accumulates would take that a cut has to save.
const PAYS: f64 = 0.2;

/// The whole has to be faster by this: less is noise.
const FASTER: f64 = 0.99;

/// Of a group, this share of the units stays at least.
const FLOOR: f64 = 0.1;

/// The choice of the units to remove.
pub struct Selection<'a> {
    plan: &'a Channels,
    g: &'a Graph,
    all: &'a Groups,
    open: &'a [&'a Group],
    /// Of each unit of each group: how much it matters.
    scores: Vec<Vec<f64>>,
    nodes: Vec<NodeId>,
    /// Of each group, what the units that stay are a multiple of; all stay where that is all of them.
    steps: Vec<usize>,
    watch: Option<&'a dyn Stopwatch>,
    /// Milliseconds of the graph, whole and by what stays of its axes, as far as they were measured.
    times: RefCell<BTreeMap<Vec<(usize, usize)>, [f64; 2]>>,
    cx: &'a Context<'a>,
}

impl<'a> Selection<'a> {
    /// Scores the units.
    ///
    /// # Errors
    /// Whatever running the graph can raise; interrupted.
    pub fn new(plan: &'a Channels, scored: &Scored<'a>, reconstruct: bool, cx: &'a Context<'a>) -> Result<Self> {
        let Scored { g, all, groups: open } = *scored;
        // What isn't solved for then is not weighed as if it were.
        let solved = plan.by == Score::Solved && reconstruct && cx.calibrator.is_some();
        let by = if plan.by == Score::Solved && !solved { Score::L2 } else { plan.by };
        let mut this = Self {
            plan,
            g,
            all,
            open,
            scores: scored.scores(by, cx)?,
            nodes: g.operators().filter(|n| g.macs(*n) > 0).collect(),
            steps: open.iter().map(|group| plan.round.unwrap_or_else(|| usual_step(group.units.len()))).collect(),
            watch: cx.stopwatch,
            times: RefCell::default(),
            cx,
        };
        if solved {
            this.weigh();
        }
        Ok(this)
    }

    /// Puts scores in relation to what removing a unit saves, in parts of the whole.
    fn weigh(&mut self) {
        // Kernels are faster by steps, of which single channels tell nothing.
        let size = |cut: &Cut| match self.plan.of {
            Measure::Parameters => cut.parameters(self.g),
            Measure::Macs | Measure::Latency => self.macs(cut),
        };
        let whole = size(&Cut::new(self.all)) as f64;
        let mut scores = self.scores.clone();
        // Units at the same places save the same.
        let mut saved: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
        for (group, scores) in self.open.iter().zip(&mut scores) {
            for (unit, score) in group.units.iter().zip(scores) {
                let places = unit.members.iter().map(|(place, _)| *place).collect();
                *score /= *saved.entry(places).or_insert_with(|| {
                    let mut cut = Cut::new(self.all);
                    cut.remove(unit);
                    (whole - size(&cut) as f64).max(1.0) / whole.max(1.0)
                });
            }
        }
        self.scores = scores;
    }

    /// What the model costs after a cut, in what the budget is one of. Of latency, that is milliseconds.
    ///
    /// # Errors
    /// Whatever running the graph can raise; interrupted.
    pub fn size(&self, cut: &Cut) -> Result<f64> {
        Ok(match self.plan.of {
            Measure::Macs => self.macs(cut) as f64,
            Measure::Parameters => cut.parameters(self.g) as f64,
            Measure::Latency => {
                let [whole, now] = self.times(cut)?;
                // By turns with the whole, which is the only thing to compare with.
                let first = self.times(&Cut::new(self.all))?[0];
                first * now / whole.max(f64::MIN_POSITIVE)
            }
        })
    }

    fn macs(&self, cut: &Cut) -> u64 {
        self.nodes.iter().map(|n| cut.macs(self.g, *n)).sum()
    }

    /// Milliseconds of the whole graph, and after a cut.
    fn times(&self, cut: &Cut) -> Result<[f64; 2]> {
        let Some(watch) = self.watch else { return Ok([1.0, 1.0]) };
        let key = cut.sizes();
        if let Some(known) = self.times.borrow().get(&key) {
            return Ok(*known);
        }
        self.cx.check()?;
        let times = watch.compare([&verify(self.g)?, &verify(&self.after(cut)?)?])?;
        self.times.borrow_mut().insert(key, times);
        Ok(times)
    }

    /// All units that may go, the least important first.
    fn order(&self) -> Vec<(usize, usize)> {
        let mut order: Vec<(usize, usize)> = vec![];
        for (i, group) in self.open.iter().enumerate() {
            let may = |u: &usize| self.all.obstacle(&group.units[*u]).is_none();
            order.extend((0..group.units.len()).filter(may).map(|u| (i, u)));
        }
        let score = |(i, u): &(usize, usize)| self.scores[*i][*u];
        order.sort_by(|a, b| score(a).total_cmp(&score(b)));
        order
    }

    /// The cut after which at most `budget` is left, or as much as may go.
    fn within(&self, budget: f64) -> Result<Cut<'a>> {
        let order = self.order();
        let (mut low, mut high) = (0, order.len());
        while low < high {
            self.cx.check()?;
            let middle = (low + high) / 2;
            let cut = self.without(&order, &self.first(&order, middle));
            if self.size(&cut)? <= budget { high = middle } else { low = middle + 1 }
        }
        let mut goes = self.first(&order, high);
        self.give_back(&order, &mut goes, budget)?;
        Ok(self.without(&order, &goes))
    }

    /// Takes back what rounding removed beyond the budget, the most important first.
    fn give_back(&self, order: &[(usize, usize)], goes: &mut [usize], budget: f64) -> Result<()> {
        let mut may: Vec<usize> = (0..goes.len()).collect();
        loop {
            self.cx.check()?;
            let mut best: Option<(f64, usize)> = None;
            let mut fits = vec![];
            for &i in may.iter().filter(|i| goes[**i] > 0) {
                let back = self.steps[i].min(goes[i]);
                let mut less = goes.to_vec();
                less[i] -= back;
                // What doesn't fit now does so no more when others came back.
                if self.size(&self.without(order, &less))? > budget {
                    continue;
                }
                fits.push(i);
                let mine = order.iter().filter(|(j, _)| *j == i).skip(less[i]).take(back);
                let worth = mine.map(|(_, u)| self.scores[i][*u]).sum::<f64>();
                if best.is_none_or(|(most, _)| worth > most) {
                    best = Some((worth, i));
                }
            }
            let Some((_, i)) = best else { return Ok(()) };
            goes[i] -= self.steps[i].min(goes[i]);
            may = fits;
        }
    }

    /// The cut after which at most `budget` is left, as far as that pays: `None`, and a note, where it doesn't at all.
    ///
    /// # Errors
    /// Whatever running the graph can raise; interrupted.
    pub fn choose(&mut self, budget: f64, out: &mut Outcome) -> Result<Option<Cut<'a>>> {
        let mut cut = self.within(budget)?;
        let Some(watch) = self.watch.filter(|_| self.plan.pays) else { return Ok(Some(cut)) };
        if self.tell(&cut).is_empty() {
            return Ok(Some(cut));
        }
        // What pays does so whatever goes elsewhere, or about.
        let mut paid: BTreeSet<(usize, usize)> = BTreeSet::new();
        loop {
            let before = self.steps.clone();
            for i in 0..self.open.len() {
                (self.cx.progress)("time", i, self.open.len());
                let (all, stays) = (self.open[i].units.len(), self.stays(i, &cut));
                if stays == all || paid.contains(&(i, stays)) {
                    continue;
                }
                if self.pays(watch, i, &cut)? {
                    paid.insert((i, stays));
                } else {
                    // Coarser steps may; in the end it stays whole, and others have to make up for it.
                    self.steps[i] = if self.steps[i] * 2 < all { self.steps[i] * 2 } else { all };
                }
            }
            (self.cx.progress)("time", self.open.len(), self.open.len());
            if self.steps == before {
                break;
            }
            cut = self.within(budget)?;
        }
        for (group, _) in self.open.iter().zip(&self.steps).filter(|(group, step)| **step == group.units.len()) {
            let node = self.all.name(self.g, group);
            let reason = "with fewer channels the model is no faster here; --cut-anyway cuts them".into();
            out.skipped.push(Skipped { rule: "channels".into(), node, reason });
        }
        let [before, after] = self.times(&cut)?;
        if after <= before * FASTER {
            return Ok(Some(cut));
        }
        let (left, all) = (self.macs(&cut), self.macs(&Cut::new(self.all)));
        out.warnings.push(format!(
            "--prune-channels {} removed nothing: with {left} of {all} multiply-accumulates the model would be no faster here \
             ({after:.3} ms instead of {before:.3} ms); --cut-anyway removes them",
            self.plan.fraction
        ));
        Ok(None)
    }

    /// Whether what goes of a group makes the model faster, beside all else that goes.
    fn pays(&self, watch: &dyn Stopwatch, i: usize, cut: &Cut) -> Result<bool> {
        self.cx.check()?;
        let mut without = cut.clone();
        without.restore(self.open[i]);
        let [slow, fast] = watch.compare([&verify(&self.after(&without)?)?, &verify(&self.after(cut)?)?])?;
        let (less, more) = (self.macs(cut) as f64, self.macs(&without) as f64);
        Ok(slow - fast > PAYS * slow * (more - less) / more.max(1.0))
    }

    /// The graph without what a cut removes.
    fn after(&self, cut: &Cut) -> Result<Graph> {
        let mut g = self.g.clone();
        cut.apply(&mut g)?;
        Ok(g)
    }

    /// How many units of each group go with the first `n` of `order`, with what stays rounded.
    fn first(&self, order: &[(usize, usize)], n: usize) -> Vec<usize> {
        let mut goes = vec![0; self.open.len()];
        order[..n].iter().for_each(|(i, _)| goes[*i] += 1);
        goes.into_iter().enumerate().map(|(i, goes)| self.rounded(i, goes)).collect()
    }

    /// The cut by so many units of each group, in order.
    fn without(&self, order: &[(usize, usize)], goes: &[usize]) -> Cut<'a> {
        let (mut cut, mut left) = (Cut::new(self.all), goes.to_vec());
        for (i, u) in order {
            if left[*i] > 0 {
                left[*i] -= 1;
                cut.remove(&self.open[*i].units[*u]);
            }
        }
        cut
    }

    /// How many units of a group go, if it should be about `goes`.
    fn rounded(&self, i: usize, goes: usize) -> usize {
        let (all, step) = (self.open[i].units.len(), self.steps[i]);
        let least = ((all as f64 * FLOOR).ceil() as usize).max(1);
        let stays = (all - goes).max(least);
        let rounded = ((stays as f64 / step as f64).round() as usize * step).clamp(step.min(all), all);
        all - rounded
    }

    /// How many units of a group stay.
    fn stays(&self, i: usize, cut: &Cut) -> usize {
        self.open[i].units.iter().filter(|unit| !cut.removes(unit)).count()
    }

    /// The layers that lose channels, and how many they have before and after.
    pub fn tell(&self, cut: &Cut) -> Vec<(String, [usize; 2])> {
        let of = |l: &Layer| {
            let place = self.all.place(l.weight.into(), l.axes.output)?;
            Some((
                self.g.node(l.node).display_name().to_string(),
                [self.all.places[place].size, cut.kept(place)?.len()],
            ))
        };
        self.all.layers.iter().filter_map(of).collect()
    }
}

/// What the units that stay are a multiple of, where nothing is said.
const STEP: usize = 16;

/// That, for a group of so many: a quarter of a small one is as coarse as it gets, and what an earlier cut left of one as fine as
/// it gets.
fn usual_step(units: usize) -> usize {
    let mut step = STEP;
    while step > 1 && step * 4 > units.next_power_of_two() {
        step /= 2;
    }
    step
}
