//! Which units go: those of the lowest score, as many as a budget asks for, where that makes the model faster.

use super::{
    cut::{Cut, Sizes},
    groups::{Groups, Unit},
    score::{ChannelSaliency, Scored},
    structured::{ChannelBudget, Channels},
};
use crate::layers::Layer;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    pass::{Context, Outcome, Skipped, Stopwatch},
    verify::verify,
    words::option::{CHANNELS_BUDGET, CHECK, CUT_ANYWAY},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
};

/// The share of the time which its multiply-accumulates would take that a cut has to save.
const PAYS: f64 = 0.05;

/// The whole has to be faster by this: less is noise.
const FASTER: f64 = 0.99;

/// Of units at the same places, this share stays at least.
const FLOOR: f64 = 0.1;

/// The choice of the units to remove.
pub struct Selection<'a> {
    plan: &'a Channels,
    g: &'a Graph,
    all: &'a Groups,
    candidates: Vec<Candidates<'a>>,
    /// What the model costs: nodes that multiply, or constants.
    costs: Vec<NodeId>,
    watch: Option<&'a dyn Stopwatch>,
    /// Milliseconds of the graph, whole and by what stays of its axes, as far as they were measured.
    times: RefCell<BTreeMap<Sizes, [f64; 2]>>,
    cx: &'a Context<'a>,
}

/// Units at the same places: the channels of one layer, or those that a sum ties across several. A concatenation makes a group of
/// the channels of several layers, of which each has candidates of its own.
struct Candidates<'a> {
    /// Where.
    places: Vec<usize>,
    /// How many units there are.
    all: usize,
    /// Those that may go, with their scores, the least important first.
    units: Vec<(&'a Unit, f64)>,
    /// Those of all costs that depend on the places.
    costs: Vec<NodeId>,
    /// What the units that stay are a multiple of; all stay where that is all of them.
    step: usize,
    /// Whether nothing goes as no step was found that pays.
    slow: bool,
}

impl<'a> Selection<'a> {
    /// Scores the units.
    ///
    /// # Errors
    /// Whatever running the graph can raise; interrupted.
    pub fn new(plan: &'a Channels, scored: &Scored<'a>, reconstruct: bool, cx: &'a Context<'a>) -> Result<Self> {
        let Scored { g, all, groups } = *scored;
        if plan.of == ChannelBudget::Latency && cx.stopwatch.is_none() {
            let help = format!("let {CHECK} be other than none, or choose another {CHANNELS_BUDGET}");
            return Err(Error::unsupported("a budget of latency needs a model that runs here").help(help));
        }
        // What isn't solved for then is not weighed as if it were.
        let solved = plan.by == ChannelSaliency::Obs && reconstruct && cx.calibrator.is_some();
        let by = if plan.by == ChannelSaliency::Obs && !solved { ChannelSaliency::L2 } else { plan.by };
        let costs: Vec<NodeId> = match plan.of {
            ChannelBudget::Parameters => g.ids().filter(|n| g.constant((*n).into()).is_some()).collect(),
            ChannelBudget::Macs | ChannelBudget::Latency => g.operators().filter(|n| g.macs(*n) > 0).collect(),
        };
        let known: BTreeSet<NodeId> = costs.iter().copied().collect();
        let mut candidates = vec![];
        for (group, scores) in groups.iter().zip(scored.scores(by, cx)?) {
            let mut alike: BTreeMap<Vec<usize>, Vec<(&'a Unit, f64)>> = BTreeMap::new();
            for (unit, score) in group.units.iter().zip(scores) {
                alike.entry(unit.members.iter().map(|(place, _)| *place).collect()).or_default().push((unit, score));
            }
            for (places, mut units) in alike {
                let ports = places.iter().map(|place| all.places[*place].port);
                let around = ports.flat_map(|port| g.uses(port).into_iter().map(|u| u.node).chain([port.node]));
                let touched: BTreeSet<NodeId> = around.filter(|n| known.contains(n)).collect();
                let (all_units, step) = (units.len(), plan.round.unwrap_or_else(|| usual_step(units.len())));
                units.retain(|(unit, _)| all.obstacle(unit).is_none());
                let costs = touched.into_iter().collect();
                candidates.push(Candidates { places, all: all_units, units, costs, step, slow: false });
            }
        }
        let mut this = Self { plan, g, all, candidates, costs, watch: cx.stopwatch, times: RefCell::default(), cx };
        if solved {
            this.weigh();
        }
        this.candidates.iter_mut().for_each(|of| of.units.sort_by(|a, b| a.1.total_cmp(&b.1)));
        Ok(this)
    }

    /// Puts scores in relation to what removing a unit saves, in parts of the whole.
    fn weigh(&mut self) {
        let nothing = Cut::new(self.all);
        let whole = self.cost(&self.costs, &nothing).max(1.0);
        for i in 0..self.candidates.len() {
            let of = &self.candidates[i];
            let Some((unit, _)) = of.units.first() else { continue };
            let mut cut = nothing.clone();
            cut.remove(unit);
            let saved = (self.cost(&of.costs, &nothing) - self.cost(&of.costs, &cut)).max(1.0) / whole;
            self.candidates[i].units.iter_mut().for_each(|(_, score)| *score /= saved);
        }
    }

    /// What some of the costs are after a cut. Kernels are faster by steps, of which single channels tell nothing: latency
    /// counts as multiply-accumulates here.
    fn cost(&self, of: &[NodeId], cut: &Cut) -> f64 {
        let cost = |n: &NodeId| match self.plan.of {
            ChannelBudget::Parameters => cut.elements(self.g, *n),
            ChannelBudget::Macs | ChannelBudget::Latency => cut.macs(self.g, *n),
        };
        of.iter().map(cost).sum::<u64>() as f64
    }

    /// What the model costs after a cut, in what the budget is one of. Of latency, that is milliseconds.
    ///
    /// # Errors
    /// Whatever running the graph can raise; interrupted.
    pub fn size(&self, cut: &Cut) -> Result<f64> {
        if self.plan.of != ChannelBudget::Latency {
            return Ok(self.cost(&self.costs, cut));
        }
        // By turns with the whole, which is the only thing to compare with.
        let [whole, now] = self.times(cut)?;
        Ok(self.times(&Cut::new(self.all))?[0] * now / whole.max(f64::MIN_POSITIVE))
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

    /// The cut after which at most `budget` is left, or as much as may go.
    fn within(&self, budget: f64) -> Result<Cut<'a>> {
        let of = |(i, of): (usize, &Candidates)| of.units.iter().map(move |(_, score)| (*score, i)).collect::<Vec<_>>();
        let mut order: Vec<(f64, usize)> = self.candidates.iter().enumerate().flat_map(of).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        // With the first so many gone, what stays is rounded.
        let first = |n: usize| {
            let mut goes = vec![0; self.candidates.len()];
            order[..n].iter().for_each(|(_, i)| goes[*i] += 1);
            let mut cut = Cut::new(self.all);
            for (of, goes) in self.candidates.iter().zip(&mut goes) {
                *goes = of.rounded(*goes).min(of.units.len());
                // An axis that would lose its last index keeps it.
                for (unit, _) in &of.units[..*goes] {
                    cut.remove(unit);
                }
            }
            (cut, goes)
        };
        let (mut low, mut high) = (0, order.len());
        while low < high {
            self.cx.check()?;
            let middle = (low + high) / 2;
            if self.size(&first(middle).0)? <= budget { high = middle } else { low = middle + 1 }
        }
        let (mut cut, goes) = first(high);
        self.give_back(&mut cut, goes, budget)?;
        Ok(cut)
    }

    /// Takes back what rounding removed beyond the budget, the most important first.
    fn give_back(&self, cut: &mut Cut, mut goes: Vec<usize>, budget: f64) -> Result<()> {
        let last = |i: usize, goes: usize| {
            let of = &self.candidates[i];
            &of.units[goes.saturating_sub(of.step)..goes]
        };
        let worth = |i: usize, goes: usize| last(i, goes).iter().map(|(_, score)| score).sum::<f64>();
        let mut may: Vec<(f64, usize)> =
            goes.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (worth(i, *n), i)).collect();
        let mut size = self.size(cut)?;
        while let Some(best) = (0..may.len()).max_by(|a, b| may[*a].0.total_cmp(&may[*b].0)) {
            self.cx.check()?;
            let i = may[best].1;
            let (of, back) = (&self.candidates[i], last(i, goes[i]));
            let before = self.cost(&of.costs, cut);
            for (unit, _) in back {
                cut.put_back(unit);
            }
            let now = match self.plan.of {
                ChannelBudget::Latency => self.size(cut)?,
                ChannelBudget::Macs | ChannelBudget::Parameters => size + self.cost(&of.costs, cut) - before,
            };
            if now > budget {
                // What doesn't fit now does so no more when others came back.
                for (unit, _) in back {
                    cut.remove(unit);
                }
                may.swap_remove(best);
                continue;
            }
            size = now;
            goes[i] -= back.len();
            may[best].0 = worth(i, goes[i]);
            if goes[i] == 0 {
                may.swap_remove(best);
            }
        }
        Ok(())
    }

    /// The cut after which at most `budget` is left, as far as that pays; a sentence where it doesn't at all.
    ///
    /// # Errors
    /// Whatever running the graph can raise; interrupted.
    pub fn choose(&mut self, budget: f64, out: &mut Outcome) -> Result<Result<Cut<'a>, String>> {
        let mut cut = self.within(budget)?;
        if !self.plan.pays || self.tell(&cut).is_empty() {
            return Ok(Ok(cut));
        }
        let Some(watch) = self.watch else {
            let what = "the model is not run here: whether fewer channels make it faster was not measured";
            out.warnings.push(what.into());
            return Ok(Ok(cut));
        };
        // What was measured of a group holds for all with the same shapes, whatever goes elsewhere.
        let mut known: HashMap<String, bool> = HashMap::new();
        loop {
            let mut coarser = false;
            for i in 0..self.candidates.len() {
                (self.cx.progress)("time", i, self.candidates.len());
                let of = &self.candidates[i];
                if !of.units.iter().any(|(unit, _)| cut.removes(unit)) {
                    continue;
                }
                let shapes = of.costs.iter().map(|n| cut.shape(self.g, *n)).collect::<Vec<_>>().join(";");
                let pays = match known.get(&shapes) {
                    Some(known) => *known,
                    None => self.pays(watch, of, &cut)?,
                };
                known.insert(shapes, pays);
                if !pays {
                    // Coarser steps may; in the end it stays whole, and others have to make up for it.
                    let of = &mut self.candidates[i];
                    of.slow = of.step * 2 >= of.all;
                    of.step = if of.slow { of.all } else { of.step * 2 };
                    coarser = true;
                }
            }
            (self.cx.progress)("time", self.candidates.len(), self.candidates.len());
            if !coarser {
                break;
            }
            cut = self.within(budget)?;
        }
        for of in self.candidates.iter().filter(|of| of.slow) {
            let reason = format!("with fewer channels the model is no faster here; {CUT_ANYWAY} cuts them");
            out.skipped.push(Skipped { rule: "channels".into(), node: self.name(of), reason });
        }
        let [before, after] = self.times(&cut)?;
        if after <= before * FASTER {
            return Ok(Ok(cut));
        }
        let macs = |cut: &Cut| self.g.operators().map(|n| cut.macs(self.g, n)).sum::<u64>();
        Ok(Err(format!(
            "with {} of {} multiply-accumulates the model would be no faster here ({after:.3} ms instead of {before:.3} ms); \
             {CUT_ANYWAY} removes them",
            macs(&cut),
            macs(&Cut::new(self.all)),
        )))
    }

    /// Whether what goes of a group makes the model faster, beside all else that goes.
    fn pays(&self, watch: &dyn Stopwatch, of: &Candidates, cut: &Cut) -> Result<bool> {
        self.cx.check()?;
        let mut without = cut.clone();
        of.units.iter().for_each(|(unit, _)| without.put_back(unit));
        let (whole, less) = (self.cost(&self.costs, &without), self.cost(&of.costs, cut));
        let saved = (self.cost(&of.costs, &without) - less) / whole.max(1.0);
        let (without, with) = (self.after(&without)?, self.after(cut)?);
        let (without, with) = (verify(&without)?, verify(&with)?);
        // Other work on the machine can hide what a cut saves, but not twice.
        for _ in 0..2 {
            let [slow, fast] = watch.compare([&without, &with])?;
            if slow - fast > PAYS * slow * saved {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The layers that make candidates.
    fn name(&self, of: &Candidates) -> String {
        let makes = |l: &&Layer| {
            self.all.place(l.weight.into(), l.axes.output).is_some_and(|place| of.places.binary_search(&place).is_ok())
        };
        let names: Vec<&str> =
            self.all.layers.iter().filter(makes).map(|l| self.g.node(l.node).display_name()).collect();
        match of.places.first() {
            Some(place) if names.is_empty() => self.g.value(self.all.places[*place].port).name.clone(),
            _ => names.join(" + "),
        }
    }

    /// The graph without what a cut removes.
    fn after(&self, cut: &Cut) -> Result<Graph> {
        let mut g = self.g.clone();
        cut.apply(&mut g)?;
        Ok(g)
    }

    /// The layers that lose channels, and how many they have before and after.
    pub fn tell(&self, cut: &Cut) -> Vec<(String, [usize; 2])> {
        let of = |l: &Layer| {
            let place = self.all.place(l.weight.into(), l.axes.output)?;
            let sizes = [self.all.places[place].size, cut.kept(place)?.len()];
            Some((self.g.node(l.node).display_name().to_string(), sizes))
        };
        self.all.layers.iter().filter_map(of).collect()
    }
}

impl Candidates<'_> {
    /// How many units go, if it should be about `goes`.
    fn rounded(&self, goes: usize) -> usize {
        let (all, step) = (self.all, self.step);
        let least = ((all as f64 * FLOOR).ceil() as usize).max(1);
        let stays = (all - goes).max(least);
        let rounded = ((stays as f64 / step as f64).round() as usize * step).clamp(step.min(all), all);
        all - rounded
    }
}

/// What the units that stay are a multiple of, where nothing is said.
const STEP: usize = 16;

/// That, for so many: a quarter of few is as coarse as it gets, and what an earlier cut left of them as fine as it gets.
fn usual_step(units: usize) -> usize {
    let mut step = STEP;
    while step > 1 && step * 4 > units.next_power_of_two() {
        step /= 2;
    }
    step
}
