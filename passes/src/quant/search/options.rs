//! Which layers are quantised how: those that make the most noise for what they gain get another form.
//!
//! The noise of layers that are quantised alone adds up to that of all of them, so one short run for each layer predicts every
//! choice. What another form leaves of a layer's noise is measured at the output of the layer. Convolutions in floats come in blocks: ONNX Runtime quantises a lone one, between codes on both
//! sides, on its own, by one scale for the whole weight.

use super::{
    Best, Cost, Search,
    forms::{FORMS, Form, reshape},
    groups::groups,
    local::{Power, Twins},
    remedies::Proposal,
    weights,
};
use crate::{
    layers::Layer,
    quant::{equalise::Group, ptq::Variant},
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    judge::{Likeness, decibels},
    node::{NodeId, Port},
    op::Op,
    verify::verify,
    words::counted,
};
use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

/// Why a layer stays in floats.
pub(super) const NOISY: &str = "it stays in floats, as its codes would cost more accuracy than they gain speed";

/// A proposal removes this part of the noise at least that the one before leaves.
const STEP: f64 = 0.12;

/// Gains of less than this part of a run can't be told from none.
const LEAST_COST: f64 = 0.002;

/// What is decided as one.
pub(super) enum Item {
    /// A convolution.
    Layer(Layer),
    /// Products that read one value.
    Group(Group),
}

/// What may be done to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Float,
    Form(Form),
}

/// The noise in the answers, in parts of the signal: that of strong samples, and that of a typical one ([`Likeness`]). A choice by one alone
/// leaves layers in codes that spoil the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noise {
    strong: f64,
    typical: f64,
}

impl Noise {
    const NONE: Self = Self { strong: 0.0, typical: 0.0 };

    pub fn of(likeness: &Likeness) -> Self {
        Self { strong: likeness.strong, typical: likeness.typical }
    }

    /// The noise of all of them together.
    fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().fold(Self::NONE, |a, b| Self { strong: a.strong + b.strong, typical: a.typical + b.typical })
    }

    /// What is left where one part becomes another.
    fn with(self, before: Self, after: Self) -> Self {
        let left = |all: f64, before: f64, after: f64| (all - before + after).max(LEAST_NOISE);
        Self {
            strong: left(self.strong, before.strong, after.strong),
            typical: left(self.typical, before.typical, after.typical),
        }
    }

    fn times(self, factor: f64) -> Self {
        Self { strong: self.strong * factor, typical: self.typical * factor }
    }

    /// Both in one, as [`Likeness::nearness`] has them.
    pub fn both(self) -> f64 {
        (self.strong * self.typical).sqrt()
    }
}

/// Differences of sums below this are rounding.
const LEAST_NOISE: f64 = 1e-12;

/// An item, quantised alone.
pub(super) struct Alone {
    pub item: Item,
    /// The noise that it makes.
    pub noise: Noise,
    /// What else may be done: the noise that is left then, and what it costs, in parts of a run in floats.
    pub changes: Vec<(Change, Noise, f64)>,
}

impl Item {
    fn group(&self) -> Option<&Group> {
        match self {
            Item::Layer(_) => None,
            Item::Group(group) => Some(group),
        }
    }

    pub fn layers(&self) -> &[Layer] {
        match self {
            Item::Layer(l) => std::slice::from_ref(l),
            Item::Group(group) => &group.layers,
        }
    }
}

/// Every layer that is quantised, alone.
pub(super) fn alone(search: &Search, variant: &Variant) -> Result<Vec<Alone>> {
    let layers = search.values(variant)?.layers;
    let is_product = |group: &Group| !matches!(variant.graph.op(group.layers[0].node), Op::Conv(_));
    let groups: Vec<Group> = groups(search, variant)?.into_iter().filter(is_product).collect();
    let grouped: HashSet<NodeId> = groups.iter().flat_map(|g| &g.layers).map(|l| l.node).collect();
    let single = layers.iter().filter(|l| !grouped.contains(&l.node)).map(|l| Item::Layer(*l));
    let items: Vec<Item> = single.chain(groups.into_iter().map(Item::Group)).collect();
    let all: Vec<NodeId> = layers.iter().map(|l| l.node).collect();
    let products: Vec<&Group> = items.iter().filter_map(Item::group).collect();
    let left = left(search, variant, &products)?;
    let (_, floats) = search.only(variant, &[], &all)?;
    let floats = search.limits.given_up(floats);
    let count = items.len();
    let mut found = vec![];
    for (i, item) in items.into_iter().enumerate() {
        (search.cx.progress)("layers alone", i, count);
        let (only, cost) = search.only(variant, item.layers(), &all)?;
        let noise = Noise::of(&search.judge.judge(&verify(&only)?, search.few)?);
        let gained = floats - search.limits.given_up(cost);
        let mut changes = vec![(Change::Float, Noise::NONE, gained.max(LEAST_COST))];
        if let Item::Group(group) = &item {
            for (form, left) in &left {
                let mut tried = variant.clone();
                if let (Some(left), true) = (left.get(&group.input), reshape(&mut tried, group, *form)?) {
                    let (_, more) = search.only(&tried, item.layers(), &all)?;
                    let more = search.limits.given_up(more) - search.limits.given_up(cost);
                    changes.push((Change::Form(*form), noise.times(*left), more.max(LEAST_COST)));
                }
            }
        }
        let name = variant.graph.node(item.layers()[0].node).display_name();
        tracing::info!(layer = name, ?noise, ?changes, "alone");
        search.noise.borrow_mut().extend(item.layers().iter().map(|l| (l.node, noise.both())));
        found.push(Alone { item, noise, changes });
    }
    (search.cx.progress)("layers alone", count, count);
    Ok(found)
}

/// For each form, the part of the noise of each group that is left where its input has that form.
fn left(search: &Search, variant: &Variant, groups: &[&Group]) -> Result<Vec<(Form, HashMap<Port, f64>)>> {
    if groups.is_empty() {
        return Ok(vec![]);
    }
    // Forms undo how weights were rounded: without that, all are alike.
    let mut plain = variant.clone();
    plain.choices.rounded.clear();
    let layers = |groups: &[&Group]| groups.iter().flat_map(|group| group.layers.clone()).collect::<Vec<Layer>>();
    let before = Twins::new(search, &plain)?.powers(&layers(groups))?;
    let mut found = vec![];
    for form in FORMS {
        let (mut tried, mut reshaped) = (plain.clone(), vec![]);
        for group in groups {
            if reshape(&mut tried, group, form)? {
                reshaped.push(*group);
            }
        }
        let after = Twins::new(search, &tried)?.powers(&layers(&reshaped))?;
        // Of the new form a layer makes only a part of the signal.
        let part = |noise: &HashMap<NodeId, Power>, group: &Group| -> f64 {
            group.layers.iter().map(|l| noise[&l.node].beside(&before[&l.node].signal)).sum()
        };
        let of = |group: &&Group| (group.input, part(&after, group) / part(&before, group).max(f64::MIN_POSITIVE));
        found.push((form, reshaped.iter().map(of).collect()));
    }
    Ok(found)
}

impl Search<'_> {
    /// The graph in which of `all` layers only some are quantised, and what a run of it costs.
    pub(super) fn only(&self, variant: &Variant, layers: &[Layer], all: &[NodeId]) -> Result<(Graph, Cost)> {
        self.cx.check()?;
        let mut only = variant.clone();
        let others = all.iter().filter(|n| layers.iter().all(|l| l.node != **n)).map(|n| (*n, NOISY));
        only.choices.float.extend(others);
        let quantised = self.quantised(&only)?;
        let cost = self.cost(&only, &quantised)?;
        Ok((quantised, cost))
    }
}

/// More and more layers in another form: those first whose change removes the most noise for what it costs.
pub(super) fn mixed(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let alone: Rc<[Alone]> = alone(search, &best.variant)?.into();
    let next_to = neighbours(&best.variant.graph, &alone);
    let mut chosen: Vec<Option<usize>> = vec![None; alone.len()];
    let mut left: Vec<Noise> = alone.iter().map(|a| a.noise).collect();
    let mut proposals = vec![];
    let at_outputs = search.limits.goal.db(&best.likeness) - best.likeness.nearness();
    let mut before = Noise::sum(&left).both();
    while let Some((i, change)) = best_change(&alone, &chosen, &left) {
        apply(&alone, &mut chosen, &mut left, (i, change));
        if lacks_neighbour(&best.variant.graph, &alone, &chosen, &next_to, i) {
            let merit = |j: &usize| alone[*j].noise.both() / alone[*j].changes[0].2;
            let companion = next_to[i].iter().copied().max_by(|a, b| merit(a).total_cmp(&merit(b)));
            if let Some(j) = companion {
                apply(&alone, &mut chosen, &mut left, (j, 0));
            }
        }
        let noise = Noise::sum(&left).both();
        if noise <= before * (1.0 - STEP) {
            before = noise;
            // Noise of the outputs differs from that before functions that hide it.
            let db = decibels(noise) + at_outputs;
            let what = format!("{}; predicted {db:.1} dB", described(&alone, &chosen));
            let paid = alone.iter().zip(&chosen).filter_map(|(a, change)| Some(a.changes[(*change)?].2));
            let is_enough = search.limits.may_be_enough(db, search.limits.given_up(best.cost) + paid.sum::<f64>());
            let (variant, alone, chosen) = (best.variant.clone(), alone.clone(), chosen.clone());
            proposals.push(Proposal {
                what,
                is_enough,
                make: Box::new(move |search| changed(search, variant, &alone, &chosen)),
            });
        }
    }
    Ok(proposals)
}

fn apply(alone: &[Alone], chosen: &mut [Option<usize>], left: &mut [Noise], (i, change): (usize, usize)) {
    chosen[i] = Some(change);
    left[i] = alone[i].changes[change].1;
}

/// The change that lowers the noise by the largest factor for what it costs.
fn best_change(alone: &[Alone], chosen: &[Option<usize>], left: &[Noise]) -> Option<(usize, usize)> {
    let all = Noise::sum(left);
    let mut best: Option<(f64, usize, usize)> = None;
    for (i, a) in alone.iter().enumerate() {
        let paid = chosen[i].map_or(0.0, |c| a.changes[c].2);
        for (c, (_, noise, cost)) in a.changes.iter().enumerate() {
            let lowered = (all.both().max(LEAST_NOISE) / all.with(left[i], *noise).both()).ln();
            let more = (cost - paid).max(LEAST_COST);
            if lowered > 1e-9 && chosen[i] != Some(c) && cost + LEAST_COST > paid {
                let merit = lowered / more;
                if best.is_none_or(|(m, _, _)| merit > m) {
                    best = Some((merit, i, c));
                }
            }
        }
    }
    best.map(|(_, i, c)| (i, c))
}

/// Whether a convolution is in floats and none of its neighbours is.
fn lacks_neighbour(g: &Graph, alone: &[Alone], chosen: &[Option<usize>], next_to: &[Vec<usize>], i: usize) -> bool {
    let Item::Layer(layer) = &alone[i].item else { return false };
    let is_float = |j: usize| chosen[j].is_some_and(|c| alone[j].changes[c].0 == Change::Float);
    let reads_input = g.operand(layer.node, 0).is_some_and(|p| matches!(g.op(p.node), Op::Input(_)));
    is_float(i) && !reads_input && next_to[i].iter().all(|j| !is_float(*j))
}

/// The changes in words.
fn described(alone: &[Alone], chosen: &[Option<usize>]) -> String {
    let mut counts: Vec<(String, usize)> = vec![];
    for (a, change) in alone.iter().zip(chosen) {
        let Some(change) = change.map(|c| a.changes[c].0) else { continue };
        let name = match change {
            Change::Float => "in floats".to_string(),
            Change::Form(Form::Columns(n)) => format!("with {n} channels in floats"),
            Change::Form(Form::TwoTerms) => "in two terms".into(),
            Change::Form(Form::Both(n)) => format!("in two terms and with {n} channels in floats"),
        };
        let layers = a.item.layers().len();
        match counts.iter_mut().find(|(n, _)| *n == name) {
            Some((_, count)) => *count += layers,
            None => counts.push((name, layers)),
        }
    }
    counts.iter().map(|(name, n)| format!("{} {name}", counted(*n, "layer"))).collect::<Vec<_>>().join(", ")
}

/// A variant with the changes. Where weights were rounded, those that other forms changed are rounded again.
fn changed(search: &Search, mut variant: Variant, alone: &[Alone], chosen: &[Option<usize>]) -> Result<Variant> {
    let before = variant.choices.rounded.len();
    for (a, change) in alone.iter().zip(chosen) {
        match (change.map(|c| a.changes[c].0), &a.item) {
            (Some(Change::Float), item) => {
                variant.choices.float.extend(item.layers().iter().map(|l| (l.node, NOISY)));
            }
            (Some(Change::Form(form)), Item::Group(group)) => drop(reshape(&mut variant, group, form)?),
            _ => {}
        }
    }
    if before > variant.choices.rounded.len() { Ok(weights::round(search, &variant)?.0) } else { Ok(variant) }
}

/// Which of the convolutions read what each of them makes, with nothing but other operators between, or make what it reads.
fn neighbours(g: &Graph, alone: &[Alone]) -> Vec<Vec<usize>> {
    let single = alone.iter().enumerate().filter(|(_, a)| matches!(a.item, Item::Layer(_)));
    let place: HashMap<NodeId, usize> = single.map(|(i, a)| (a.item.layers()[0].node, i)).collect();
    let layers: HashSet<NodeId> = alone.iter().flat_map(|a| a.item.layers()).map(|l| l.node).collect();
    let mut found = vec![vec![]; alone.len()];
    for (i, a) in alone.iter().enumerate() {
        let Item::Layer(layer) = &a.item else { continue };
        let mut open = vec![layer.node];
        let mut seen = HashSet::new();
        while let Some(n) = open.pop() {
            for u in (0..g.node(n).outputs.len()).flat_map(|slot| g.uses(Port { node: n, slot })) {
                match place.get(&u.node) {
                    Some(j) => {
                        found[i].push(*j);
                        found[*j].push(i);
                    }
                    None if layers.contains(&u.node) => {}
                    None if seen.len() < 16 && seen.insert(u.node) => open.push(u.node),
                    None => {}
                }
            }
        }
    }
    found
}
