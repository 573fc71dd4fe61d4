//! Pruning of whole channels: units of the dependency graph are scored, chosen under a budget, and sliced away.

use super::{
    cut::Cut,
    groups::{Group, Groups},
    reconstruct::resolve,
    recover,
    score::{Score, scores},
};
use crate::{
    clean::Clean,
    layers::{Layer, excluded, layers, obstacle},
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    pass::{Context, Outcome, Pass, Skipped, Stopwatch},
    verify::verify,
};
use regex::Regex;
use std::collections::BTreeMap;

/// What a cut is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Measure {
    /// Multiply-accumulates of one sample.
    #[default]
    Macs,
    /// Elements of constants.
    Parameters,
}

/// Which channels are removed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Channels {
    /// The fraction to remove.
    pub fraction: f64,
    /// Of what.
    pub of: Measure,
    /// Which go first.
    pub by: Score,
    /// Those that stay are a multiple of this, where there are enough.
    pub round: usize,
    /// Whether only what makes the model faster here goes.
    pub pays: bool,
}

/// Removes channels.
pub struct PruneChannels {
    /// Which.
    pub channels: Channels,
    /// Layers to leave alone.
    pub exclude: Vec<Regex>,
    /// Whether the layers that read what stays are solved for on calibration data.
    pub reconstruct: bool,
    /// Whether the model is trained then, and if so whether it is an error when it can't be.
    pub train: Option<bool>,
}

/// How much faster a model has to be without the channels of a group, and as a whole, for that to pay: less is noise.
const PAYS: f64 = 0.99;

/// Of a group, this share of the units stays at least.
const FLOOR: f64 = 0.1;

impl Pass for PruneChannels {
    fn name(&self) -> &'static str {
        "channels"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let groups = Groups::find(g)?;
        let layers = layers(g)?;
        let mut out = Outcome::default();
        let mut open = vec![];
        for group in &groups.groups {
            match self.closed(g, &groups, group, &layers) {
                None => open.push(group),
                Some(reason) => {
                    let node = name(g, &groups, group, &layers);
                    out.skipped.push(Skipped { rule: self.name().into(), node, reason });
                }
            }
        }
        let calibrator = cx.calibrator.filter(|_| self.reconstruct);
        let scores = scores(g, &groups, &open, &layers, (self.channels.by, calibrator), cx)?;
        let dense = g.clone();
        let choice = Choice::new(&self.channels, &dense, &groups, &open, &layers, scores);
        let cut = match cx.stopwatch.filter(|_| self.channels.pays) {
            Some(watch) => choice.choose_what_pays(watch, cx, &mut out)?,
            None => Some(choice.choose(cx)?),
        };
        let Some(cut) = cut else { return Ok(out) };
        let (before, after) = (choice.size(&Cut::new(&groups)), choice.size(&cut));
        let told = choice.tell(&cut);
        if told.is_empty() {
            let why = "no channel may go, or too few for a step; `passes` in the report says why";
            out.warnings.push(format!("--prune-channels {} removed nothing: {why}", self.channels.fraction));
            return Ok(out);
        }
        if let Some(calibrator) = calibrator {
            let keep = cut.mask(g, &layers);
            resolve(g, &dense, &keep, calibrator, cx)?;
        }
        cut.apply(g)?;
        out.add(Clean.run(g, cx)?);
        if let Some(must) = self.train {
            out.add(recover::train(g, vec![], None, must, cx)?);
        }
        out.edits += told.len();
        let what = match self.channels.of {
            Measure::Macs => "multiply-accumulates",
            Measure::Parameters => "parameters",
        };
        out.warnings.push(format!(
            "--prune-channels {} left {after} of {before} {what} ({:.1}%): {}; {} groups of layers were left alone (see `passes` in the report)",
            self.channels.fraction,
            100.0 * after as f64 / before.max(1) as f64,
            told.join(", "),
            out.skipped.len(),
        ));
        Ok(out)
    }
}

impl PruneChannels {
    /// Why nothing of a group may go, if so.
    fn closed(&self, g: &Graph, all: &Groups, group: &Group, layers: &[Layer]) -> Option<String> {
        for l in all.makers(group, layers) {
            if excluded(g, l, &self.exclude) {
                return Some("excluded by --exclude".into());
            }
            if let Some(why) = obstacle(g, l, layers) {
                return Some(why);
            }
        }
        let obstacles: Vec<Option<&str>> = group.units.iter().map(|unit| all.obstacle(unit)).collect();
        match obstacles.iter().position(Option::is_none) {
            Some(_) if group.units.len() > 1 => None,
            Some(_) => Some("all of its channels depend on each other".into()),
            None => obstacles.first().copied().flatten().map(String::from),
        }
    }
}

/// What a group is called: the layers that make its channels.
fn name(g: &Graph, all: &Groups, group: &Group, layers: &[Layer]) -> String {
    all.makers(group, layers).iter().map(|l| g.node(l.node).display_name()).collect::<Vec<_>>().join(" + ")
}

/// Which units go.
struct Choice<'a> {
    plan: &'a Channels,
    g: &'a Graph,
    all: &'a Groups,
    open: &'a [&'a Group],
    layers: &'a [Layer],
    /// Of each unit of each group: how much it matters for what it costs.
    scores: Vec<Vec<f64>>,
    nodes: Vec<NodeId>,
}

impl<'a> Choice<'a> {
    fn new(
        plan: &'a Channels,
        g: &'a Graph,
        all: &'a Groups,
        open: &'a [&'a Group],
        layers: &'a [Layer],
        scores: Vec<Vec<f64>>,
    ) -> Self {
        let nodes = g.operators().filter(|n| g.macs(*n) > 0).collect();
        let mut choice = Self { plan, g, all, open, layers, scores, nodes };
        if plan.by == Score::Solved {
            choice.weigh();
        }
        choice
    }

    /// Puts scores in relation to what removing a unit saves, in parts of the whole.
    fn weigh(&mut self) {
        let whole = self.size(&Cut::new(self.all)) as f64;
        let mut scores = std::mem::take(&mut self.scores);
        // Units at the same places save the same.
        let mut saved: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
        for (group, scores) in self.open.iter().zip(&mut scores) {
            for (unit, score) in group.units.iter().zip(scores) {
                let places = unit.members.iter().map(|(place, _)| *place).collect();
                *score /= *saved.entry(places).or_insert_with(|| {
                    let mut cut = Cut::new(self.all);
                    cut.remove(unit);
                    (whole - self.size(&cut) as f64).max(1.0) / whole.max(1.0)
                });
            }
        }
        self.scores = scores;
    }

    fn size(&self, cut: &Cut) -> u64 {
        match self.plan.of {
            Measure::Macs => self.nodes.iter().map(|n| cut.macs(self.g, *n)).sum(),
            Measure::Parameters => cut.parameters(self.g),
        }
    }

    /// The cut with which at most the budget is left, or as much as may go.
    fn choose(&self, cx: &Context) -> Result<Cut<'a>> {
        let whole = self.size(&Cut::new(self.all));
        let target = (whole as f64 * (1.0 - self.plan.fraction)) as u64;
        let mut order: Vec<(usize, usize)> = vec![];
        for (i, group) in self.open.iter().enumerate() {
            let may = |u: &usize| self.all.obstacle(&group.units[*u]).is_none();
            order.extend((0..group.units.len()).filter(may).map(|u| (i, u)));
        }
        let score = |(i, u): &(usize, usize)| self.scores[*i][*u];
        order.sort_by(|a, b| score(a).total_cmp(&score(b)));
        let (mut low, mut high) = (0, order.len());
        while low < high {
            cx.check()?;
            let middle = (low + high) / 2;
            if self.size(&self.first(&order, middle)) <= target { high = middle } else { low = middle + 1 }
        }
        Ok(self.first(&order, high))
    }

    /// The cut, without groups whose cut doesn't make the model faster; `None`, and a note, when the whole of it doesn't.
    fn choose_what_pays(&self, watch: &dyn Stopwatch, cx: &Context, out: &mut Outcome) -> Result<Option<Cut<'a>>> {
        let mut cut = self.choose(cx)?;
        if self.tell(&cut).is_empty() {
            return Ok(Some(cut));
        }
        for group in self.open {
            let mut without = cut.clone();
            if !without.restore(group) {
                continue;
            }
            let [slow, fast] = watch.compare([&verify(&self.after(&without)?)?, &verify(&self.after(&cut)?)?])?;
            if fast > slow * PAYS {
                // The others don't make up for it: they would lose more than they can do without.
                cut = without;
                let node = name(self.g, self.all, group, self.layers);
                let reason = "with fewer channels the model is no faster here; --cut-anyway cuts them".into();
                out.skipped.push(Skipped { rule: "channels".into(), node, reason });
            }
        }
        let [before, after] = watch.compare([&verify(self.g)?, &verify(&self.after(&cut)?)?])?;
        if after <= before * PAYS {
            return Ok(Some(cut));
        }
        out.warnings.push(format!(
            "--prune-channels {} removed nothing: with {} instead of {} multiply-accumulates the model would be no faster here \
             ({after:.3} ms instead of {before:.3} ms); --cut-anyway removes them",
            self.plan.fraction,
            self.size(&cut),
            self.size(&Cut::new(self.all))
        ));
        Ok(None)
    }

    /// The graph without what a cut removes.
    fn after(&self, cut: &Cut) -> Result<Graph> {
        let mut g = self.g.clone();
        cut.apply(&mut g)?;
        Ok(g)
    }

    /// The cut by the first `n` units of `order`, with what stays of each group rounded.
    fn first(&self, order: &[(usize, usize)], n: usize) -> Cut<'a> {
        let mut cut = Cut::new(self.all);
        for (i, group) in self.open.iter().enumerate() {
            let mine: Vec<usize> = order.iter().filter(|(j, _)| *j == i).map(|(_, u)| *u).collect();
            let goes = order[..n].iter().filter(|(j, _)| *j == i).count();
            for u in &mine[..self.rounded(group, goes).min(mine.len())] {
                cut.remove(&group.units[*u]);
            }
        }
        cut
    }

    /// How many units of a group go, if it should be about `goes`.
    fn rounded(&self, group: &Group, goes: usize) -> usize {
        let all = group.units.len();
        let least = ((all as f64 * FLOOR).ceil() as usize).max(1);
        // A quarter of the channels is as coarse as it gets.
        let mut step = self.plan.round.max(1);
        while step > 1 && step * 4 > all {
            step /= 2;
        }
        let stays = (all - goes).max(least);
        let rounded = ((stays as f64 / step as f64).round() as usize * step).clamp(step.min(all), all);
        all - rounded
    }

    /// What goes, layer by layer.
    fn tell(&self, cut: &Cut) -> Vec<String> {
        let mut told = vec![];
        for l in self.layers {
            let Some(place) = self.all.place(l.weight.into(), l.axes.output) else { continue };
            if let Some(kept) = cut.kept(place) {
                let name = self.g.node(l.node).display_name();
                told.push(format!("{name} {} -> {}", self.all.places[place].size, kept.len()));
            }
        }
        told
    }
}
