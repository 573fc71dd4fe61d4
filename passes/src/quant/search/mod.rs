//! Searches for a way to quantise that keeps the answers.
//!
//! Remedies are tried one after the other, cheap ones first, on samples that calibration does not see. A remedy is kept
//! where the answers get better by a margin. Those that cost speed are tried as long as the [`Goal`] is not reached, and as
//! long as they cost no more than a tenth of what quantisation gains.

mod bias;
mod cost;
mod options;
mod products;
mod ranges;
mod weights;

use super::{
    choices::Choices,
    params::{self, Affine},
    ptq::{Int8, Variant},
    qdq,
    values::QuantisedValues,
};
use crate::{layers::Layer, nested::Nested};
use compress_compiler::{
    choice,
    error::{Error, Result},
    graph::Graph,
    node::Port,
    pass::{Context, Judge, Likeness, Outcome, Trial},
    tensor::Tensor,
    verify::verify,
};
use cost::Costs;
use std::{cell::RefCell, collections::HashMap};

/// How long to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Effort {
    /// No search: every layer that can be quantised is, by one rule.
    Quick,
    /// Remedies that take about as long as calibration does, each.
    #[default]
    Normal,
    /// All of them.
    Best,
}

choice!(Effort, "effort", [
    Quick "quick" "no search: one rule for all layers",
    Normal "normal" "every remedy that takes seconds to some minutes",
    Best "best" "every remedy",
]);

/// When the answers are good enough: one of both is.
const GOAL: Goal = Goal { sqnr_db: 30.0 };

/// Part of the gain in speed that remedies may cost.
const MOST_COST: f64 = 0.1;

/// What is wanted of the answers.
#[derive(Debug, Clone, Copy)]
struct Goal {
    sqnr_db: f64,
}

impl Goal {
    fn is_reached(&self, likeness: &Likeness) -> bool {
        likeness.sqnr_db() >= self.sqnr_db
    }
}

/// A remedy: its name, what it does, and whether it makes the model slower.
struct Remedy {
    name: &'static str,
    effort: Effort,
    costs: bool,
    /// Decibels by which the answers have to get better.
    margin_db: f64,
    /// What to try, given the best way so far.
    propose: fn(&Search, &Best) -> Result<Vec<Proposal>>,
}

/// Something to try.
struct Proposal {
    what: String,
    variant: Variant,
}

/// The remedies, in the order in which they are tried.
const REMEDIES: &[Remedy] = &[
    Remedy { name: "ranges", effort: Effort::Normal, costs: false, margin_db: 0.3, propose: ranges::of_all },
    Remedy { name: "smooth", effort: Effort::Normal, costs: false, margin_db: 0.2, propose: products::smoothed },
    Remedy { name: "rounding", effort: Effort::Normal, costs: false, margin_db: 0.1, propose: weights::rounded },
    Remedy { name: "bias", effort: Effort::Normal, costs: false, margin_db: 0.1, propose: bias::corrected },
    Remedy { name: "forms", effort: Effort::Normal, costs: true, margin_db: 0.2, propose: options::mixed },
    Remedy { name: "rounding", effort: Effort::Normal, costs: false, margin_db: 0.1, propose: weights::rounded },
    Remedy { name: "bias", effort: Effort::Normal, costs: false, margin_db: 0.1, propose: bias::corrected },
];

/// The best way so far.
struct Best {
    variant: Variant,
    likeness: Likeness,
    cost: f64,
}

/// What remedies are given.
pub(super) struct Search<'a> {
    int8: &'a Int8,
    whole: &'a [Nested],
    cx: &'a Context<'a>,
    judge: Box<dyn Judge + 'a>,
    costs: Costs,
    /// What a run takes in floats.
    float_cost: f64,
    tried: RefCell<Vec<Trial>>,
}

/// The best way to quantise that was found, from `start` on. What was tried goes to `out`.
///
/// # Errors
/// Whatever running the graph can raise; interrupted.
pub(super) fn run(
    int8: &Int8,
    effort: Effort,
    whole: &[Nested],
    start: Variant,
    cx: &Context,
    out: &mut Outcome,
) -> Result<Variant> {
    let judges = cx.judges.ok_or_else(|| Error::bug("a search without samples to judge by"))?;
    let judge = judges.beside(&verify(&start.graph)?)?;
    let costs = Costs::default();
    let float_cost = costs.of(&judge.sized(&start.graph)?);
    let search = Search { int8, whole, cx, judge, costs, float_cost, tried: RefCell::default() };
    let (likeness, cost) = search.evaluate(&start)?;
    search.tell("start", "every layer that can be quantised", likeness, cost, true);
    let limit = cost + MOST_COST * (1.0 - cost).max(0.0);
    let mut best = Best { variant: start, likeness, cost };
    for remedy in REMEDIES.iter().filter(|r| r.effort <= effort) {
        if remedy.costs && GOAL.is_reached(&best.likeness) {
            continue;
        }
        for Proposal { what, variant } in (remedy.propose)(&search, &best)? {
            cx.check()?;
            let (likeness, cost) = search.evaluate(&variant)?;
            let better = likeness.nearness() >= best.likeness.nearness() + remedy.margin_db;
            let kept = better && cost <= limit.max(best.cost);
            search.tell(remedy.name, &what, likeness, cost, kept);
            if kept {
                best = Best { variant, likeness, cost };
            }
            if remedy.costs && (cost > limit || GOAL.is_reached(&best.likeness)) {
                break;
            }
        }
    }
    out.tried = search.tried.into_inner();
    Ok(best.variant)
}

impl Search<'_> {
    /// The graph as `variant` quantises it.
    fn quantised(&self, variant: &Variant) -> Result<Graph> {
        let mut g = variant.graph.clone();
        self.int8.quantise(&mut g, self.whole, &variant.seen, &variant.choices)?;
        qdq::freeze(&mut g, &self.int8.scheme)?;
        Ok(g)
    }

    /// What the answers are like, and what a run costs, in parts of a run in floats.
    fn evaluate(&self, variant: &Variant) -> Result<(Likeness, f64)> {
        let quantised = self.quantised(variant)?;
        let likeness = self.judge.judge(&verify(&quantised)?, self.judge.samples())?;
        let cost = self.costs.of(&self.judge.sized(&quantised)?) / self.float_cost.max(f64::MIN_POSITIVE);
        Ok((likeness, cost))
    }

    fn values(&self, variant: &Variant) -> Result<QuantisedValues> {
        self.int8.values(variant)
    }

    /// The parameters of each value that becomes codes.
    fn parameters(&self, variant: &Variant, mut plan: QuantisedValues) -> Result<HashMap<Port, Affine>> {
        let range = |p: &Port| (*p, self.int8.range(&variant.seen, (0, *p), &variant.choices));
        let ranges = plan.wanted.iter().map(range).collect();
        plan.parameters(&variant.graph, ranges, self.int8.scheme.activations.codes())
    }

    /// The weight of a layer, as its codes will have it.
    fn rounded(&self, g: &Graph, layer: &Layer, choices: &Choices) -> Result<Tensor> {
        let tensor = g.constant(layer.weight.into()).ok_or_else(|| Error::bug("a weight is not a constant"))?;
        if let Some(rounded) = choices.rounded.get(&layer.weight) {
            return Ok(Tensor::f32(tensor.shape(), &rounded.values));
        }
        let stored = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?;
        let values = params::rounded(&stored, tensor.shape(), layer.axes.output, self.int8.scheme.weights);
        Ok(Tensor::f32(tensor.shape(), &values))
    }

    fn tell(&self, name: &'static str, what: &str, likeness: Likeness, cost: f64, kept: bool) {
        let db = likeness.sqnr_db();
        tracing::info!(name, what, db, agreement = likeness.agreement, cost, kept);
        self.tried.borrow_mut().push(Trial { name, what: what.into(), likeness, cost, kept });
    }
}
