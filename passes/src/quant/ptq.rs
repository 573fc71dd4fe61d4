//! Pass "int8": which layers are quantised, with which parameters, inside of branches and loops too.

use super::{
    calibrators::MINMAX,
    choices::Choices,
    clipped,
    layer_forms::{self, LayerForm, LayerRule},
    observe::Observer,
    params::{self, Affine},
    qdq, recurrent,
    reduce_range::{self, Channels, ReduceRange},
    scheme::Scheme,
    search::{self, Budget},
    seen::{Reach, Seen},
    storage,
    values::QuantisedValues,
};
use crate::{
    layers::{Layer, excluded, is_left_out, layers, obstacle},
    nested::{self, ConstantRef, Nested, Reader, Way},
    target::Target,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    node::{NodeId, Port, Site},
    op::{Operator, Quant},
    part::unreached,
    pass::{Context, Outcome, Pass, Skipped, Training, reasons},
    tensor::DType,
    verify::verify,
    words::{
        counted,
        option::{INT8, REDUCE_RANGE},
    },
};
use regex::Regex;
use std::{
    collections::{BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
};

/// Static quantisation, after training or with it; biases are INT32.
#[derive(Debug)]
pub struct Int8 {
    /// What numbers become.
    pub scheme: Scheme,
    /// What has to run them.
    pub target: Target,
    /// Layers to leave in floating point.
    pub exclude: Vec<Regex>,
    /// Layers whose form the user named: those of another form than INT8 stay.
    pub rules: Vec<LayerRule>,
    /// What the search for a better way to quantise may take, if there is one.
    pub search: Option<Budget>,
    /// Whether weights and scales are trained as they will be rounded (quantisation-aware training).
    pub train: bool,
    /// Whether what calibrates runs operators that are not known here.
    pub any_operator: bool,
}

impl Pass for Int8 {
    fn name(&self) -> &'static str {
        "int8"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut out = Outcome::default();
        super::feasible(g, self.target, &self.scheme, layer_forms::store_weights(&self.rules))?;
        let whole = nested::take(g);
        let seen = self.seen_once(g, &whole, cx)?;
        cx.check()?;
        let zero = seen.values.values().filter(|seen| seen.range(MINMAX, 1.0) == Some((0.0, 0.0))).count();
        if zero > 0 {
            let what = if zero == 1 { "1 activation is".into() } else { format!("{zero} activations are") };
            out.warnings.push(format!("{what} zero on all of the calibration data, which says nothing of their range"));
        }
        let start = Variant { graph: g.clone(), seen, choices: self.start(g)? };
        let best = match self.search {
            Some(budget) if cx.judges.is_some() => search::run(self, budget, &whole, start, cx, &mut out)?,
            _ => start,
        };
        out.warnings.extend(self.cut_off(&best)?);
        // Training changes ranges: those that it learns are not measured.
        if !self.train {
            out.clipping = Some(clipped::of(self, &best)?).filter(|c| c.values > 0);
        }
        *g = best.graph.clone();
        let done = self.quantise(g, &whole, &best.seen, &best.choices)?;
        out.add(done);
        if out.edits == 0 {
            // The weights of layers in floats are stored in fewer bits all the same.
            out.edits = self.finish(g, &best.choices)?;
            let stored = match out.edits {
                0 => String::new(),
                n => format!("; {} stored in fewer bits", counted(n, "weight")),
            };
            out.warnings.push(format!("{INT8}: nothing was quantised: {}{stored}", reasons(&out.skipped)));
            return Ok(out);
        }
        if self.train {
            let trainer = cx.trainer.ok_or_else(|| Error::bug("training was planned without data"))?;
            let masked = g.ids().filter(|n| g.constant((*n).into()).is_some_and(|t| t.shape().len() > 1)).collect();
            let deploy = |g: &mut Graph| qdq::freeze(g, &self.scheme);
            let training = Training { name: "qat", share: 1.0, masked, masking: None, scales: true, deploy: &deploy };
            out.trained.push(trainer.train(g, training)?);
        }
        self.finish(g, &best.choices)?;
        Ok(out)
    }
}

/// A graph in floats on its way to codes.
#[derive(Clone)]
pub(super) struct Variant {
    /// As it is in floats.
    pub graph: Graph,
    /// What calibration saw of its values.
    pub seen: Rc<Seen>,
    /// How it is quantised.
    pub choices: Choices,
}

/// Why a layer is in floats that the user named.
const NAMED: &str = "the user named another form for it";

const NEVER: &str = "calibration never ran the branch or loop that it is inside of";
const SHARED_NEVER: &str = "its weight is shared with a branch or loop that calibration never ran";
const SHARED_FLOAT: &str = "its weight is shared with a layer in another branch or loop that stays float";
const SHARED_OFTEN: &str =
    "many branches and loops share its weight: a copy of the codes for each would take more room";

/// Layers that are named whose products are cut off.
const CUT_OFF_NAMED: usize = 3;

/// Codes of so many graphs are smaller together than what they share.
const MOST_COPIES: usize = 3;

/// What is to be quantised: in the graph itself, then in each of those inside it.
struct Draft {
    /// Those inside, with weights of their own.
    inner: Vec<Nested>,
    plans: Vec<QuantisedValues>,
    /// What reads weights from around it.
    readers: Vec<Reader>,
    skipped: Vec<Skipped>,
}

impl Draft {
    /// Whether calibration did not reach what plan `i` quantises.
    fn lacks(&self, i: usize, seen: &Seen) -> bool {
        self.plans[i]
            .wanted
            .iter()
            .any(|p| seen.values.get(&(i, *p)).is_none_or(|seen| seen.range(MINMAX, 1.0).is_none()))
    }

    /// Weights that stay where they are, and why: an operator that reads them stays in floats, as those of plans that are
    /// `never` reached do, or too many would have copies.
    fn shared(&self, never: &[bool]) -> HashMap<ConstantRef, &'static str> {
        let mut read_by: HashMap<&ConstantRef, Vec<&Reader>> = HashMap::new();
        self.readers.iter().for_each(|r| read_by.entry(&r.source).or_default().push(r));
        let is_float = |r: &&Reader| self.plans[r.at + 1].layers.iter().all(|l| l.node != r.node);
        let why = |by: &[&Reader]| match by.iter().map(|r| r.at).collect::<BTreeSet<_>>().len() {
            _ if by.iter().any(|r| never[r.at + 1]) => Some(SHARED_NEVER),
            _ if by.iter().any(is_float) => Some(SHARED_FLOAT),
            copies => (copies > MOST_COPIES).then_some(SHARED_OFTEN),
        };
        read_by.into_iter().filter_map(|(source, by)| Some((source.clone(), why(&by)?))).collect()
    }
}

impl Int8 {
    /// Every layer by `scheme`, for any runtime, and nothing else.
    pub fn of(scheme: Scheme) -> Self {
        let (target, exclude, rules) = (Target::default(), vec![], vec![]);
        Self { scheme, target, exclude, rules, search: None, train: false, any_operator: false }
    }

    /// The choices that a search begins with: recurrent layers stay in floats that the target can't compute by codes, and layers of
    /// which the user says so.
    fn start(&self, g: &Graph) -> Result<Choices> {
        let by_rule = |n: NodeId| layer_forms::form_of(g, n, &self.rules).is_some_and(|form| form != LayerForm::Int8);
        let why = |n: &NodeId| match self.target.capabilities().lstm_by_codes {
            _ if by_rule(*n) => Some(NAMED),
            // Of what is excluded, weights stay too.
            _ if is_left_out(g, *n, &self.exclude) => None,
            true => recurrent::obstacle(g, *n, &self.exclude),
            false => Some(recurrent::no_operator(g, *n)),
        };
        let recurrent = recurrent::layers(g).filter_map(|n| Some((n, why(&n)?)));
        let layers = layers(g)?;
        let named = layers.iter().filter(|l| by_rule(l.node)).map(|l| (l.node, NAMED));
        let float = recurrent.chain(named).collect();
        Ok(Choices { float, ..Choices::default() })
    }

    /// Makes codes of what was quantised, and of LSTM layers, which can't be trained after that.
    ///
    /// # Errors
    /// What inference raises.
    pub(super) fn freeze(&self, g: &mut Graph, choices: &Choices) -> Result<()> {
        qdq::freeze(g, &self.scheme)?;
        if self.target.capabilities().lstm_by_codes {
            recurrent::to_codes(g, &self.exclude, &self.scheme, choices);
        }
        Ok(())
    }

    /// Stores the weights of a quantised graph in few bits: those that are quantised, and those that `choices` leave in floats.
    /// Returns how many the latter are.
    ///
    /// # Errors
    /// What inference raises.
    pub(super) fn finish(&self, g: &mut Graph, choices: &Choices) -> Result<usize> {
        self.freeze(g, choices)?;
        if !self.target.capabilities().small_weights {
            return Ok(0);
        }
        let mut stored = storage::store(g, choices)?;
        // Nothing judges codes inside of operators: what stays in floats there is stored in 16 bits.
        let mut bodies = nested::take(g);
        for Nested { graph: body, .. } in &mut bodies {
            let float = body.operators().filter(|n| !is_left_out(body, *n, &self.exclude)).map(|n| (n, "")).collect();
            stored += storage::store(body, &Choices { float, ..Choices::default() })?;
        }
        nested::put_back(g, bodies)?;
        Ok(stored)
    }

    /// Quantises the graph, and those inside it, as `choices` say; weights stay floats until [`qdq::freeze`].
    ///
    /// # Errors
    /// Data where calibration reached no value of an activation.
    pub(super) fn quantise(&self, g: &mut Graph, whole: &[Nested], seen: &Seen, choices: &Choices) -> Result<Outcome> {
        let mut out = Outcome::default();
        let mut draft = self.draft(g, whole, &HashMap::new(), choices)?;
        let never: Vec<bool> = (0..draft.plans.len()).map(|i| i > 0 && draft.lacks(i, seen)).collect();
        let shared = draft.shared(&never);
        if !shared.is_empty() {
            draft = self.draft(g, whole, &shared, choices)?;
        }
        out.skipped.append(&mut draft.skipped);
        let Draft { mut inner, plans, .. } = draft;
        let none = Choices::default();
        for (i, mut plan) in plans.into_iter().enumerate() {
            let (part, choices) = if i == 0 { (&mut *g, choices) } else { (&mut inner[i - 1].graph, &none) };
            if never[i] {
                let layers = plan.layers.iter().map(|l| l.node).chain(recurrent::layers(part));
                out.skipped.extend(layers.map(|n| self.skipped(part, n, NEVER)));
                continue;
            }
            let ranges = plan.wanted.iter().map(|p| (*p, self.range(seen, (i, *p), choices))).collect();
            let params = plan.parameters(part, ranges, self.scheme.activations.codes())?;
            let unknown = Channels::new();
            let channels = if i == 0 { &seen.channels } else { &unknown };
            qdq::insert(part, &plan, &params, channels, &self.scheme, choices)?;
            if i == 0 {
                storage::round(part, choices);
            }
            out.edits += plan.layers.len();
            let is_able = self.target.capabilities().lstm_by_codes;
            let coded: BTreeSet<NodeId> = recurrent::by_codes(part, &self.exclude, choices)
                .filter(|_| is_able && (i == 0 || !self.train))
                .collect();
            out.edits += coded.len();
            let why = |n: NodeId| match choices.float.get(&n) {
                Some(why) => why,
                None if is_able => recurrent::obstacle(part, n, &self.exclude).unwrap_or("it is trained through"),
                None => recurrent::no_operator(part, n),
            };
            // Of those that are excluded, the report says so by itself.
            let left = recurrent::layers(part).filter(|n| !coded.contains(n) && !is_left_out(part, *n, &self.exclude));
            out.skipped.extend(left.map(|n| self.skipped(part, n, why(n))));
            if i > 0 {
                // What is inside of an operator is not trained, but what is around it may be, through it.
                if self.train { qdq::freeze(part, &self.scheme)? } else { self.freeze(part, &none)? }
            }
        }
        nested::put_back(g, inner)?;
        Ok(out)
    }

    pub(super) fn range(&self, seen: &Seen, at: (usize, Port), choices: &Choices) -> Reach {
        let own = choices.ranges.get(&at.1).filter(|_| at.0 == 0).copied();
        let how = own.or(choices.calibration).unwrap_or(self.scheme.calibration);
        seen.values.get(&at)?.range(how, self.scheme.activations.codes().steps())
    }

    /// The layers of the graph itself that `choices` make integer, and the values that become codes with them.
    pub(super) fn values(&self, variant: &Variant) -> Result<QuantisedValues> {
        let blocked = self.blocked(&variant.graph)?;
        let layers = self.choose(&variant.graph, &blocked, &variant.choices, &mut vec![])?;
        Ok(QuantisedValues::new(&variant.graph, layers, &self.scheme, &variant.choices))
    }

    /// The parameters of each value of the graph itself that becomes codes.
    pub(super) fn parameters(&self, variant: &Variant, plan: &mut QuantisedValues) -> Result<HashMap<Port, Affine>> {
        let range = |p: &Port| (*p, self.range(&variant.seen, (0, *p), &variant.choices));
        let ranges = plan.wanted.iter().map(range).collect();
        plan.parameters(&variant.graph, ranges, self.scheme.activations.codes())
    }

    /// Output channels of a variant whose scales have to be larger than rounding needs, so that sums of two products fit 16
    /// bits; the layers that have such channels, and all output channels.
    pub(super) fn enlarged(&self, variant: &Variant) -> Result<(usize, Vec<Layer>, usize)> {
        let mut plan = self.values(variant)?;
        let params = self.parameters(variant, &mut plan)?;
        let scheme = Scheme { reduce_range: ReduceRange::Auto, ..self.scheme };
        let (g, seen) = (&variant.graph, &variant.seen);
        let floors = qdq::least_scales(g, &plan, &params, &seen.channels, &scheme, &variant.choices);
        let (mut count, mut layers, mut all) = (0, vec![], 0);
        for l in &plan.layers {
            let Some((t, values)) = g.constant(l.weight.into()).and_then(|t| Some((t, t.as_f32()?))) else { continue };
            let scales = params::weight_scales(&values, t.shape(), l.axes.output, scheme.weights, |_| 0.0);
            let larger = scales.iter().enumerate().filter(|(c, s)| qdq::least_scale(&floors, l, *c) > **s).count();
            (count, all) = (count + larger, all + scales.len());
            layers.extend((larger > 0).then_some(*l));
        }
        Ok((count, layers, all))
    }

    /// What is said where scales leave no room.
    fn cut_off(&self, variant: &Variant) -> Result<Option<String>> {
        if self.scheme.reduce_range != ReduceRange::Never || !self.scheme.may_be_cut_off() {
            return Ok(None);
        }
        let (count, layers, all) = self.enlarged(variant)?;
        let names: Vec<&str> =
            layers.iter().take(CUT_OFF_NAMED).map(|l| variant.graph.node(l.node).display_name()).collect();
        let more = if layers.len() > names.len() { ", .." } else { "" };
        Ok((count > 0).then(|| {
            format!(
                "in {count} of {all} output channels, sums of two products exceed 16 bits on the calibration data: \
                 processors with AVX2 and without VNNI cut them off, and answer otherwise than measured here ({}{more}). \
                 {REDUCE_RANGE} auto leaves room",
                names.join(", ")
            )
        }))
    }

    /// What is quantised, where the weights in `shared` stay where they are.
    fn draft(
        &self,
        g: &Graph,
        whole: &[Nested],
        shared: &HashMap<ConstantRef, &str>,
        choices: &Choices,
    ) -> Result<Draft> {
        let blocked = self.blocked(g)?;
        let none = Choices::default();
        let (mut inner, readers) = (whole.to_vec(), nested::outer_weights(g, whole));
        let (stay, own): (Vec<&Reader>, Vec<&Reader>) = readers.iter().partition(|r| shared.contains_key(&r.source));
        nested::own_weights(g, &mut inner, &own);
        let mut skipped: Vec<Skipped> =
            stay.iter().map(|r| self.skipped(&whole[r.at].graph, r.node, shared[&r.source])).collect();
        let layers = self.choose(g, &blocked, choices, &mut skipped)?;
        let mut plans = vec![QuantisedValues::new(g, layers, &self.scheme, choices)];
        for Nested { way, graph: part } in &inner {
            let around = way.first().and_then(|(n, _)| blocked(*n));
            let layers = self.choose(part, &|_| around.clone(), &none, &mut skipped)?;
            plans.push(QuantisedValues::new(part, layers, &self.scheme, &none));
        }
        Ok(Draft { inner, plans, readers, skipped })
    }

    /// [`Int8::seen`]. Rules leave layers out only afterwards: pipelines that differ in rules and calibration share what is seen, and it is the
    /// same with and without others.
    fn seen_once(&self, g: &Graph, whole: &[Nested], cx: &Context) -> Result<Rc<Seen>> {
        let (scheme, search) = match cx.memo {
            Some(_) => (Scheme { calibration: MINMAX, ..self.scheme }, Some(Budget::default())),
            None => (self.scheme, self.search),
        };
        let (target, exclude, any_operator) = (self.target, self.exclude.clone(), self.any_operator);
        let all = Self { scheme, target, exclude, rules: vec![], search, train: false, any_operator };
        match cx.known(g, format!("seen by {all:?}"), || all.seen(g, whole, cx)) {
            // A layer that rules leave out may meet what is not a number.
            Err(e) if e.kind() == Kind::Data && !self.rules.is_empty() => self.seen(g, whole, cx).map(Rc::new),
            Err(e) => Err(e),
            Ok(seen) if self.rules.is_empty() => Ok(seen),
            Ok(seen) => match seen.of(&self.draft(g, whole, &HashMap::new(), &Choices::default())?.plans) {
                Some(own) => Ok(Rc::new(own)),
                None => self.seen(g, whole, cx).map(Rc::new),
            },
        }
    }

    /// What calibration sees of each value that may be quantised.
    ///
    /// # Errors
    /// Whatever running the graph can raise; data where a value is not a number.
    pub(super) fn seen(&self, g: &Graph, whole: &[Nested], cx: &Context) -> Result<Seen> {
        let draft = self.draft(g, whole, &HashMap::new(), &Choices::default())?;
        let mut seen = self.observe(g, &draft, cx)?;
        let looks = self.scheme.may_be_cut_off() && self.scheme.reduce_range != ReduceRange::Always;
        if let Some(calibrator) = cx.calibrator.filter(|_| looks) {
            seen.channels = reduce_range::observe(g, &draft.plans[0].layers, calibrator)?;
        }
        Ok(seen)
    }

    /// Watches each value that is quantised.
    fn observe(&self, g: &Graph, draft: &Draft, cx: &Context) -> Result<Seen> {
        let ways = std::iter::once(vec![]).chain(draft.inner.iter().map(|n| n.way.clone()));
        let sites = |(i, (within, plan)): (usize, (Way, &QuantisedValues))| {
            plan.wanted.iter().map(move |port| (i, Site { within: within.clone(), port: *port })).collect::<Vec<_>>()
        };
        let (places, watch): (Vec<usize>, Vec<Site>) = ways.zip(&draft.plans).enumerate().flat_map(sites).unzip();
        let looks_inside = self.search.is_some() || self.scheme.calibration.looks_inside();
        let observers: Vec<Observer> = watch.iter().map(|_| Observer::new(looks_inside)).collect();
        if !watch.is_empty() {
            let calibrator = cx.calibrator.ok_or_else(|| Error::bug("int8 was planned without calibration data"))?;
            calibrator.observe(&verify(g)?, &watch, &|i, values| {
                observers[i].add(values).map_err(|e| e.at(g.node(watch[i].outermost()).label()))
            })?;
        }
        let ports = places.into_iter().zip(&watch).map(|(i, s)| (i, s.port));
        Ok(Seen { values: ports.zip(observers.into_iter().map(Arc::new)).collect(), channels: Channels::new() })
    }

    /// Says why a node can't be run.
    fn blocked<'a>(&self, g: &'a Graph) -> Result<impl Fn(NodeId) -> Option<String> + use<'a>> {
        let unreached = if self.any_operator { HashMap::new() } else { unreached(g)? };
        Ok(move |n: NodeId| {
            let first = unreached.get(&n)?;
            Some(format!("it depends on {}, which can't be run here", g.node(*first).label()))
        })
    }

    /// The layers that can be quantised; the others are reported. `blocked` says why a node can't be run.
    fn choose(
        &self,
        g: &Graph,
        blocked: &dyn Fn(NodeId) -> Option<String>,
        choices: &Choices,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Vec<Layer>> {
        let mut chosen = vec![];
        for l in &layers(g)? {
            let reason = excluded(g, l, &self.exclude)
                .or_else(|| layer_forms::not_int8(g, l.node, &self.rules))
                .or_else(|| blocked(l.node))
                .or_else(|| obstacle(g, l))
                .or_else(|| scaling_obstacle(g, l))
                .or_else(|| bias_obstacle(g, l))
                .or_else(|| input_obstacle(g, l))
                .or_else(|| choices.float.get(&l.node).map(|why| why.to_string()));
            match reason {
                None => chosen.push(*l),
                Some(reason) => skipped.push(self.skipped(g, l.node, &reason)),
            }
        }
        Ok(chosen)
    }

    fn skipped(&self, g: &Graph, node: NodeId, reason: &str) -> Skipped {
        Skipped { rule: self.name().into(), node: g.node(node).display_name().into(), reason: reason.into() }
    }
}

fn scaling_obstacle(g: &Graph, l: &Layer) -> Option<String> {
    (g.op(l.node).quant() != Quant::Weighted).then(|| "it scales its product, which no integer kernel does".into())
}

fn bias_obstacle(g: &Graph, l: &Layer) -> Option<String> {
    let port = g.operand(l.node, l.axes.bias?)?;
    let channels = g.constant(l.weight.into())?.shape()[l.axes.output];
    match g.constant(port) {
        None => Some("its bias is computed".into()),
        Some(t)
            if !(t.len() == 1 || t.shape().last() == Some(&t.len()) && t.len() == channels)
                || t.dtype() != DType::F32 =>
        {
            Some(format!("its bias is {t:?}, not one value a channel"))
        }
        Some(t) if !t.as_f32()?.iter().all(|v| v.is_finite()) => Some("its bias has NaN or infinite values".into()),
        Some(_) => None,
    }
}

fn input_obstacle(g: &Graph, l: &Layer) -> Option<String> {
    let input = g.operand(l.node, 0)?;
    (g.constant(input).is_some() || g.fact(input).dtype != Some(DType::F32))
        .then(|| "its input is not an f32 activation".into())
}
