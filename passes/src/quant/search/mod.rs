//! Searches for a way to quantise that keeps the answers.
//!
//! Remedies are tried one after the other, cheap ones first, on samples that calibration does not see. A remedy is kept
//! where the answers get better by a margin. Those that cost speed or size are tried as long as the [`Goal`] is not reached;
//! where nobody asked for one, as long as they cost no more than a tenth of what quantisation gains.

mod bias;
mod blame;
mod bracket;
mod cost;
mod equalise;
mod figures;
mod forms;
mod groups;
mod limits;
mod local;
mod options;
mod placement;
mod ranges;
mod recurrent;
mod remedies;
mod storage;
mod training;
mod weights;

use bracket::Bracket;
pub use figures::{CurvePoint, Left, ValueSensitivity};
pub(crate) use figures::{alone, figures};
pub use limits::Goal;
use limits::{Cost, Limits, Price, Standing};
use remedies::{Make, Proposal, Remedy};

use super::{
    choices::{Choices, Rounded},
    params::{self, Affine},
    ptq::{Int8, Variant},
    qdq::{self, LeastScales},
    reduce_range::{Pairs, ReduceRange},
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
    collections::{BTreeMap, HashMap},
    rc::Rc,
    time::{Duration, Instant},
};

/// How long to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Effort {
    /// No search: every layer that can be quantised is, by one rule.
    Quick,
    /// Every remedy that takes seconds.
    #[default]
    Normal,
    /// The same, and training of the weights as they will be rounded.
    Best,
}

choice!(Effort, "effort", [
    Quick "quick" "no search: one rule for all layers",
    Normal "normal" "every remedy but training: about a minute for a model of 20 million weights",
    Best "best" "every remedy, and training of the weights as they will be rounded: some minutes",
]);

/// What a search may take, and when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// Which remedies are tried.
    pub effort: Effort,
    /// After so long nothing else is tried. What is found in a time differs from machine to machine.
    pub time: Option<Duration>,
    /// What the answers have to keep.
    pub goal: Goal,
}

/// A way that gives up so much less of the gain is kept if it loses no more than so many decibels.
const FASTER: f64 = 0.05;
const AS_NEAR_DB: f64 = 0.3;

/// What a bias takes, or a scale, costs nothing.
const FREE: f64 = 0.005;

/// What is better for most samples is not kept if the noise of all of them together grows by so many decibels.
const SPOILT_DB: f64 = 0.6;

/// Decibels that all of the gain is worth: what a way gives up of it, the answers have to get better by this part of them.
const DB_FOR_ALL: f64 = 15.0;

/// A way to quantise that was tried: the best so far.
struct Best {
    variant: Variant,
    likeness: Likeness,
    cost: Cost,
}

/// A prediction above this is told: those nearer to 1 say neither.
const SLOWER: f64 = 1.1;

/// What remedies are given.
pub(super) struct Search<'a> {
    int8: &'a Int8,
    whole: &'a [Nested],
    cx: &'a Context<'a>,
    judge: &'a dyn Judge,
    /// What a run takes in floats, and its weights.
    float: (f64, u64),
    limits: Limits,
    /// Calibration samples that statistics are made of.
    samples: usize,
    /// Samples that a layer alone is judged by.
    few: usize,
    /// When nothing else is tried, if a time was given.
    ends: Option<Instant>,
    tried: RefCell<Vec<Trial>>,
    warnings: RefCell<Vec<String>>,
    /// The noise that layers make alone, as far as that was measured.
    noise: RefCell<HashMap<NodeId, f64>>,
}

/// Multiply-accumulates for statistics, and for judging all layers alone: some seconds on two cores. Of few samples neither
/// tells much.
const STATISTICS_MACS: u64 = 50_000_000_000;
const LEAST_STATISTICS: usize = 16;
const ALONE_MACS: u64 = 1_500_000_000_000;
const LEAST_ALONE: usize = 6;
const MOST_ALONE: usize = 16;

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
    let ends = budget.time.map(|time| began + time);
    let mut search = Search { ends, ..Search::new(int8, whole, &start, &*judge, cx)? };
    let (likeness, cost) = search.evaluate(&start)?;
    search.limits = Limits::new(budget.goal, cost);
    let (larger, _, channels) = int8.enlarged(&start)?;
    let room = match larger {
        0 => String::new(),
        _ if int8.scheme.reduce_range == ReduceRange::Never => String::new(),
        _ => format!(
            ", larger scales for {larger} of {channels} output channels, so that sums of two products fit 16 bits"
        ),
    };
    search.tell("start", &format!("every layer that can be quantised{room}"), likeness, cost, true);
    let mut best = Best { variant: start, likeness, cost };
    // How many were kept when a remedy was last tried: on the same way it would do the same again.
    let (mut kept, mut tried_at) = (0, HashMap::new());
    for remedy in if budget.effort == Effort::Best { remedies::BEST } else { remedies::NORMAL } {
        if search.is_over() {
            break;
        }
        if remedy.name == remedies::STORAGE.name {
            search.store_no_codes(&mut best)?;
        }
        let key = (remedy.name, remedy.price);
        if tried_at.get(&key) != Some(&kept) && !search.is_enough(remedy, &best) {
            kept += search.attempt(remedy, &mut best)?;
            tried_at.insert(key, kept);
        }
    }
    // The costs are those of ONNX Runtime.
    if best.cost.time > SLOWER && int8.scheme.is_placed_as(&INT8) {
        out.warnings.push(format!(
            "on ONNX Runtime the result is predicted to take {:.2} of the time of floats: its layers are small, or have few \
             channels, for which integer kernels are no faster. INT8 does not make the model faster here{}",
            best.cost.time,
            if best.cost.size < 1.0 { ", only the file smaller" } else { "" }
        ));
    }
    if search.limits.goal.is_missed(&best.likeness) {
        out.warnings.push(blame::of(&search, &best)?);
    }
    out.warnings.append(&mut search.warnings.into_inner());
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
        let (tried, warnings, noise) = Default::default();
        let limits = Limits::new(Goal::default(), Cost { time: 0.0, size: 0.0 });
        Ok(Self { int8, whole, cx, judge, float, limits, samples, few, ends: None, tried, warnings, noise })
    }

    /// Tries what a remedy proposes, and takes over what is better. Returns how often it was.
    fn attempt(&self, remedy: &Remedy, best: &mut Best) -> Result<usize> {
        let proposals = (remedy.propose)(self, best)?;
        if remedy.climbs {
            return self.climb(remedy, proposals, best);
        }
        let mut kept = 0;
        for proposal in proposals {
            let tried = self.try_out(proposal.make)?;
            let gain = tried.likeness.nearness() - best.likeness.nearness();
            // Ranges that cut off what is rare may help most samples, and spoil the few that show it.
            let may_lose = SPOILT_DB.max(-remedy.margin_db);
            let spoils = tried.likeness.inner_db() < best.likeness.inner_db() - may_lose;
            let (standing, best_standing) = (self.standing(&tried, remedy), self.standing(best, remedy));
            let more = self.limits.given_up(tried.cost) - self.limits.given_up(best.cost);
            let is_free = more <= FREE;
            let may = standing > best_standing || standing == best_standing && (standing != Standing::Dear || is_free);
            let wanted = remedy.margin_db + DB_FOR_ALL * if is_free { 0.0 } else { more };
            let is_better =
                may && gain >= wanted || standing >= best_standing && more <= -FASTER && gain >= -AS_NEAR_DB;
            // What keeps more at no cost is welcome beyond the goal.
            let is_paid_for_nothing =
                more > 0.0 && remedy.price != Price::None && self.limits.goal.is_reached(&best.likeness);
            let is_kept = is_better && !spoils && !is_paid_for_nothing;
            kept += self.settle(remedy, &proposal.what, tried, best, is_kept)?;
            if self.is_over() {
                break;
            }
        }
        Ok(kept)
    }

    /// Finds the first of the proposals that is enough, where each costs more than the one before and keeps more.
    fn climb(&self, remedy: &Remedy, proposals: Vec<Proposal>, best: &mut Best) -> Result<usize> {
        let expected = proposals.partition_point(|p| !p.is_enough);
        let mut bracket = Bracket::new(proposals.len(), expected);
        let mut steps: Vec<Option<Proposal>> = proposals.into_iter().map(Some).collect();
        let mut kept = 0;
        while let Some(at) = bracket.next().filter(|_| !self.is_over()) {
            // No place is tried twice.
            let Some(Proposal { what, make, .. }) = steps[at].take() else { break };
            let tried = self.try_out(make)?;
            let (standing, best_standing) = (self.standing(&tried, remedy), self.standing(best, remedy));
            bracket.tell(at, !matches!(standing, Standing::Short | Standing::Near));
            let is_better = tried.likeness.nearness() >= best.likeness.nearness() + remedy.margin_db;
            let is_cheaper = self.limits.given_up(tried.cost) < self.limits.given_up(best.cost);
            let is_kept = match standing {
                Standing::TooDear => false,
                _ if standing != best_standing => standing > best_standing,
                Standing::Short | Standing::Near => is_better,
                Standing::Dear | Standing::Reached => is_cheaper,
            };
            kept += self.settle(remedy, &what, tried, best, is_kept)?;
        }
        Ok(kept)
    }

    /// Whether all that a remedy may bring costs something, and the goal is reached.
    fn is_enough(&self, remedy: &Remedy, best: &Best) -> bool {
        (remedy.climbs || remedy.price == Price::Any) && self.limits.goal.is_reached(&best.likeness)
    }

    fn standing(&self, way: &Best, remedy: &Remedy) -> Standing {
        self.limits.standing(&way.likeness, way.cost, remedy.price)
    }

    fn try_out(&self, make: Make) -> Result<Best> {
        self.cx.check()?;
        let variant = self.without_lone(make(self)?)?;
        let (likeness, cost) = self.evaluate(&variant)?;
        Ok(Best { variant, likeness, cost })
    }

    /// Tells what was tried, and takes it over if it is kept. Returns how many ways were.
    fn settle(&self, remedy: &Remedy, what: &str, tried: Best, best: &mut Best, is_kept: bool) -> Result<usize> {
        self.tell(remedy.name, what, tried.likeness, tried.cost, is_kept);
        if is_kept {
            *best = tried;
            (self.cx.found)(&|| self.quantised(&best.variant))?;
        }
        Ok(usize::from(is_kept))
    }

    fn is_over(&self) -> bool {
        self.time_left() == Some(Duration::ZERO)
    }

    /// What is left of the time that was given.
    fn time_left(&self) -> Option<Duration> {
        self.ends.map(|ends| ends.saturating_duration_since(Instant::now()))
    }

    /// The graph as `variant` quantises it.
    fn quantised(&self, variant: &Variant) -> Result<Graph> {
        self.quantised_by(self.int8, variant)
    }

    fn quantised_by(&self, int8: &Int8, variant: &Variant) -> Result<Graph> {
        let mut g = variant.graph.clone();
        int8.quantise(&mut g, self.whole, &variant.seen, &variant.choices)?;
        int8.freeze(&mut g, &variant.choices)?;
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

    /// Ends the hope that all weights of layers in floats can be stored as codes: until it is known which can, none is.
    fn store_no_codes(&self, best: &mut Best) -> Result<()> {
        best.variant.choices.stored = Some(BTreeMap::new());
        let quantised = self.quantised(&best.variant)?;
        best.cost = self.cost(&best.variant, &quantised)?;
        if !super::storage::weights(&quantised, &best.variant.choices).is_empty() {
            let what = "weights of layers in floats stored in 16 bits, or as they are";
            self.tell(remedies::STORAGE.name, what, best.likeness, best.cost, true);
        }
        Ok(())
    }

    /// What the graph that a variant is quantised to takes, in parts of what the floats do. The table of costs is of ONNX
    /// Runtime: where codes are placed for another runtime, it is asked for what ONNX Runtime would be given.
    fn cost(&self, variant: &Variant, quantised: &Graph) -> Result<Cost> {
        let (target, exclude, rules) = (self.int8.target, self.int8.exclude.clone(), self.int8.rules.clone());
        let usual = Int8 { target, exclude, rules, ..Int8::of(INT8) };
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
        let shrinks = self.int8.target.capabilities().small_weights;
        let saved = if shrinks { super::storage::saved(quantised, &variant.choices) } else { 0 };
        let bytes = bound::weight_bytes(quantised).saturating_sub(saved);
        Ok(Cost { time, size: bytes as f64 / self.float.1 as f64 })
    }

    fn values(&self, variant: &Variant) -> Result<QuantisedValues> {
        self.int8.values(variant)
    }

    /// The parameters of each value that becomes codes.
    fn parameters(&self, variant: &Variant, mut plan: QuantisedValues) -> Result<HashMap<Port, Affine>> {
        self.int8.parameters(variant, &mut plan)
    }

    /// The least scales of the weights that `variant` quantises, whose activations have these parameters.
    fn least_scales(&self, variant: &Variant, params: &HashMap<Port, Affine>) -> Result<LeastScales> {
        let (plan, scheme) = (self.values(variant)?, &self.int8.scheme);
        Ok(qdq::least_scales(&variant.graph, &plan, params, &variant.seen.channels, scheme, &variant.choices))
    }

    /// A weight that was rounded, with room for sums of two products.
    fn settled(&self, variant: &Variant, layer: &Layer, params: &HashMap<Port, Affine>, rounded: Rounded) -> Rounded {
        let (scheme, known) = (&self.int8.scheme, &variant.seen.channels);
        match Pairs::of(&variant.graph, layer, params, known, scheme, &variant.choices) {
            Some(pairs) => Rounded { values: pairs.settle(&rounded.values, &rounded.scales), ..rounded },
            None => rounded,
        }
    }

    /// The weight of a layer, as its codes will have it.
    fn rounded(&self, g: &Graph, layer: &Layer, choices: &Choices, floors: &LeastScales) -> Result<Tensor> {
        let tensor = g.constant(layer.weight.into()).ok_or_else(|| Error::bug("a weight is not a constant"))?;
        if let Some(rounded) = choices.rounded.get(&layer.weight) {
            return Ok(Tensor::f32(tensor.shape(), &rounded.values));
        }
        let stored = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?;
        let floor = |c: usize| qdq::least_scale(floors, layer, c);
        let values = params::rounded(&stored, tensor.shape(), layer.axes.output, self.int8.scheme.weights, floor);
        Ok(Tensor::f32(tensor.shape(), &values))
    }

    /// Adds a warning to the report, once.
    fn warn(&self, what: String) {
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&what) {
            warnings.push(what);
        }
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
