//! Searches for a way to quantise that keeps the answers.
//!
//! Remedies are tried one after the other, cheap ones first, on samples that calibration does not see. A remedy is kept
//! where the answers get better by a margin. Those that cost speed are tried as long as the [`Goal`] is not reached; where
//! nobody asked for one, as long as they cost no more than a tenth of what quantisation gains.

mod bias;
mod blame;
mod cost;
mod equalise;
mod figures;
mod forms;
mod groups;
mod options;
mod placement;
mod ranges;
mod weights;

pub(crate) use figures::figures;
pub use figures::{CurvePoint, Left, ValueSensitivity};

use super::{
    choices::Choices,
    params::{self, Affine},
    ptq::{Int8, Variant},
    qdq,
    scheme::INT8,
    values::QuantisedValues,
};
use crate::{layers::Layer, nested::Nested};
use compress_compiler::{
    bound, choice,
    error::{Error, Result},
    graph::Graph,
    judge::{Judge, Likeness, Trial},
    node::{NodeId, Port},
    pass::{Calibrator, Context, Outcome},
    tensor::Tensor,
    verify::verify,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    time::{Duration, Instant},
};

/// How long to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Effort {
    /// No search: every layer that can be quantised is, by one rule.
    Quick,
    /// Every remedy.
    #[default]
    Normal,
}

choice!(Effort, "effort", [
    Quick "quick" "no search: one rule for all layers",
    Normal "normal" "every remedy: about a minute for a model of 20 million weights",
]);

/// What a search may take, and when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// After so long nothing else is tried. What is found in a time differs from machine to machine.
    pub time: Option<Duration>,
    /// What the answers have to keep.
    pub goal: Goal,
}

/// What the answers have to keep. Without any figure it is [`USUAL_DB`], as far as that costs little speed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Goal {
    /// Signal to noise, in decibels.
    pub sqnr_db: Option<f64>,
    /// The most that the metric may drop.
    pub drop: Option<f64>,
}

/// Signal to noise that is enough where nobody asked for more.
const USUAL_DB: f64 = 30.0;

/// The samples that are searched on flatter what was found on them: a goal that was asked for has to hold by this margin.
const MARGIN_DB: f64 = 1.0;

/// Below this, answers are of little use, and remedies may cost anything.
const USABLE_DB: f64 = 20.0;

/// Part of the gain in speed that remedies may cost where nobody asked for more accuracy.
const MOST_COST: f64 = 0.1;

/// A way that takes this part less of a run is kept if it loses no more than so many decibels.
const FASTER: f64 = 0.02;
const AS_NEAR_DB: f64 = 0.3;

impl Goal {
    fn is_asked(&self) -> bool {
        *self != Self::default()
    }

    fn is_reached(&self, likeness: &Likeness) -> bool {
        if !self.is_asked() {
            return likeness.sqnr_db() >= USUAL_DB;
        }
        self.sqnr_db.is_none_or(|db| likeness.sqnr_db() >= db + MARGIN_DB)
            && self.drop.is_none_or(|most| likeness.drop.is_some_and(|drop| drop <= most))
    }
}

/// A remedy: its name, what it does, and whether it makes the model slower.
struct Remedy {
    name: &'static str,
    costs: bool,
    /// Decibels by which the answers have to get better.
    margin_db: f64,
    /// What to try, given the best way so far.
    propose: fn(&Search, &Best) -> Result<Vec<Proposal>>,
}

/// Something to try. It is made when it is tried: each may have weights of its own, and only some are tried.
struct Proposal {
    what: String,
    make: Box<dyn FnOnce() -> Result<Variant>>,
}

impl Proposal {
    fn of(what: String, variant: Variant) -> Self {
        Self { what, make: Box::new(|| Ok(variant)) }
    }
}

/// The remedies, in the order in which they are tried.
const REMEDIES: &[Remedy] = &[
    Remedy { name: "ranges", costs: false, margin_db: 0.5, propose: ranges::of_all },
    Remedy { name: "placement", costs: false, margin_db: 0.2, propose: placement::ways },
    Remedy { name: "equalise", costs: false, margin_db: 0.1, propose: equalise::folded },
    Remedy { name: "smooth", costs: true, margin_db: 0.2, propose: equalise::smoothed },
    Remedy { name: "rounding", costs: false, margin_db: 0.1, propose: weights::rounded },
    Remedy { name: "bias", costs: false, margin_db: 0.1, propose: bias::corrected },
    Remedy { name: "forms", costs: true, margin_db: 0.2, propose: options::mixed },
    Remedy { name: "rounding", costs: false, margin_db: 0.1, propose: weights::rounded },
    Remedy { name: "bias", costs: false, margin_db: 0.1, propose: bias::corrected },
];

/// The best way so far.
struct Best {
    variant: Variant,
    likeness: Likeness,
    cost: Cost,
}

/// What a way takes, in parts of what the floats do.
#[derive(Debug, Clone, Copy)]
struct Cost {
    time: f64,
    size: f64,
}

/// Proposals of a remedy that cost too much before no other is tried.
const MOST_DEAR: usize = 2;

/// A prediction above this is told: those nearer to 1 say neither.
const SLOWER: f64 = 1.1;

/// How much size counts beside time.
const SIZE: f64 = 0.25;

impl Cost {
    fn whole(self) -> f64 {
        (self.time + SIZE * self.size) / (1.0 + SIZE)
    }
}

/// What remedies are given.
pub(super) struct Search<'a> {
    int8: &'a Int8,
    whole: &'a [Nested],
    cx: &'a Context<'a>,
    judge: &'a dyn Judge,
    /// What a run takes in floats, and its weights.
    float: (f64, u64),
    /// Calibration samples that statistics are made of.
    samples: usize,
    /// Samples that a layer alone is judged by.
    few: usize,
    tried: RefCell<Vec<Trial>>,
    /// The noise that layers make alone, as far as that was measured.
    noise: RefCell<HashMap<NodeId, f64>>,
}

/// Multiply-accumulates for statistics, and for judging all layers alone: some seconds on two cores. Of few samples neither
/// tells much.
const STATISTICS_MACS: u64 = 100_000_000_000;
const LEAST_STATISTICS: usize = 16;
const ALONE_MACS: u64 = 1_500_000_000_000;
const LEAST_ALONE: usize = 6;
const MOST_ALONE: usize = 32;

/// The best way to quantise that was found, from `start` on. What was tried goes to `out`.
///
/// # Errors
/// Whatever running the graph can raise; interrupted.
pub(super) fn run(
    int8: &Int8,
    budget: Budget,
    whole: &[Nested],
    start: Variant,
    cx: &Context,
    out: &mut Outcome,
) -> Result<Variant> {
    let began = Instant::now();
    let judges = cx.judges.ok_or_else(|| Error::bug("a search without samples to judge by"))?;
    let judge = judges.beside(&verify(&start.graph)?)?;
    let search = Search::new(int8, whole, &start, &*judge, cx)?;
    let (likeness, cost) = search.evaluate(&start)?;
    search.tell("start", "every layer that can be quantised", likeness, cost, true);
    let goal = budget.goal;
    let start_cost = cost.whole();
    let limit = |best: &Best| match best.likeness.sqnr_db() {
        db if goal.is_asked() || db < USABLE_DB => f64::INFINITY,
        _ => start_cost + MOST_COST * (1.0 - start_cost).max(0.0),
    };
    let mut best = Best { variant: start, likeness, cost };
    let (mut kept_so_far, mut tried_at) = (0, HashMap::new());
    let is_over = || budget.time.is_some_and(|time| began.elapsed() >= time);
    for remedy in REMEDIES {
        if is_over() {
            break;
        }
        // What was tried on the same way before would do the same.
        let again = tried_at.insert(remedy.name, kept_so_far) == Some(kept_so_far);
        if again || remedy.costs && goal.is_reached(&best.likeness) {
            continue;
        }
        let mut dear = 0;
        for Proposal { what, make } in (remedy.propose)(&search, &best)? {
            cx.check()?;
            if is_over() {
                break;
            }
            let variant = search.without_lone(make()?)?;
            let (likeness, cost) = search.evaluate(&variant)?;
            let better = likeness.nearness() >= best.likeness.nearness() + remedy.margin_db;
            let faster = cost.whole() <= best.cost.whole() * (1.0 - FASTER)
                && likeness.nearness() >= best.likeness.nearness() - AS_NEAR_DB;
            let kept = faster || better && cost.whole() <= limit(&best).max(best.cost.whole());
            search.tell(remedy.name, &what, likeness, cost, kept);
            if kept {
                best = Best { variant, likeness, cost };
                kept_so_far += 1;
                (cx.found)(&|| search.quantised(&best.variant))?;
            }
            dear += usize::from(cost.whole() > limit(&best));
            if remedy.costs && (dear >= MOST_DEAR || goal.is_reached(&best.likeness)) {
                break;
            }
        }
    }
    // The costs are those of ONNX Runtime.
    if best.cost.time > SLOWER && int8.scheme.is_placed_as(&INT8) {
        out.warnings.push(format!(
            "on ONNX Runtime the result is predicted to take {:.2} of the time of floats: its layers are small, or have few \
             channels, for which integer kernels are no faster. INT8 makes the file smaller here, not the model faster",
            best.cost.time
        ));
    }
    if !goal.is_reached(&best.likeness) {
        out.warnings.push(blame::of(&search, &best, goal)?);
    }
    out.tried = search.tried.into_inner();
    Ok(best.variant)
}

impl<'a> Search<'a> {
    /// A search that begins with `start`, which `judge` compares others with.
    fn new(
        int8: &'a Int8,
        whole: &'a [Nested],
        start: &Variant,
        judge: &'a dyn Judge,
        cx: &'a Context<'a>,
    ) -> Result<Self> {
        let sized = judge.sized(&start.graph)?;
        let float = (cost::of(&sized).max(f64::MIN_POSITIVE), bound::weight_bytes(&start.graph).max(1));
        let macs: u64 = sized.operators().map(|n| sized.macs(n)).sum::<u64>().max(1);
        let calibrated = cx.calibrator.map_or(0, Calibrator::samples);
        let samples = ((STATISTICS_MACS / macs) as usize).max(LEAST_STATISTICS).min(calibrated);
        let layers = int8.values(start)?.layers.len() as u64;
        let few = ((ALONE_MACS / macs / layers.max(1)) as usize).clamp(LEAST_ALONE, MOST_ALONE).min(judge.samples());
        let (tried, noise) = (RefCell::default(), RefCell::default());
        Ok(Self { int8, whole, cx, judge, float, samples, few, tried, noise })
    }

    /// The graph as `variant` quantises it.
    fn quantised(&self, variant: &Variant) -> Result<Graph> {
        self.quantised_by(self.int8, variant)
    }

    fn quantised_by(&self, int8: &Int8, variant: &Variant) -> Result<Graph> {
        let mut g = variant.graph.clone();
        int8.quantise(&mut g, self.whole, &variant.seen, &variant.choices)?;
        qdq::freeze(&mut g, &int8.scheme)?;
        Ok(g)
    }

    /// A variant in which no layer is left in floats that ONNX Runtime would quantise by itself.
    fn without_lone(&self, mut variant: Variant) -> Result<Variant> {
        loop {
            let mut g = variant.graph.clone();
            self.int8.quantise(&mut g, self.whole, &variant.seen, &variant.choices)?;
            let before = variant.choices.float.len();
            variant.choices.float.retain(|n, _| !placement::is_lone(&g, *n));
            if variant.choices.float.len() == before {
                return Ok(variant);
            }
        }
    }

    /// What the answers are like, and what a run costs, in parts of a run in floats.
    fn evaluate(&self, variant: &Variant) -> Result<(Likeness, Cost)> {
        let quantised = self.quantised(variant)?;
        let likeness = self.judge.judge(&verify(&quantised)?, self.judge.samples())?;
        Ok((likeness, self.cost(variant, &quantised)?))
    }

    /// What the graph that a variant is quantised to takes, in parts of what the floats do. The table of costs is of ONNX
    /// Runtime: where codes are placed for another runtime, it is asked for what ONNX Runtime would be given.
    fn cost(&self, variant: &Variant, quantised: &Graph) -> Result<Cost> {
        let (target, exclude) = (self.int8.target, self.int8.exclude.clone());
        let usual = Int8 { scheme: INT8, target, exclude, search: None, train: false };
        let time = match self.int8.scheme.is_placed_as(&usual.scheme) {
            true => cost::of(&self.judge.sized(quantised)?),
            false => {
                // Ranges cost nothing.
                let seen = variant.seen.filled(&usual.values(variant)?.wanted);
                let variant = Variant { seen: Rc::new(seen), ..variant.clone() };
                cost::of(&self.judge.sized(&self.quantised_by(&usual, &variant)?)?)
            }
        };
        let time = time / self.float.0;
        Ok(Cost { time, size: bound::weight_bytes(quantised) as f64 / self.float.1 as f64 })
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

    fn tell(&self, name: &'static str, what: &str, likeness: Likeness, cost: Cost, kept: bool) {
        let db = likeness.sqnr_db();
        let verdict = if kept { "kept" } else { "not kept" };
        let Cost { time, size } = cost;
        (self.cx.note)(&format!(
            "{db:.1} dB, {time:.2} of the time and {size:.2} of the size of floats, {verdict}: {what}"
        ));
        self.tried.borrow_mut().push(Trial { name, what: what.into(), likeness, time, size, kept });
    }
}
