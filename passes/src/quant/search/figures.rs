//! What INT8 costs: the noise of every layer and every value alone, and what layers in floats bring.

use super::{Search, options::NOISY};
use crate::nested::Nested;
use crate::quant::{
    choices::Choices,
    ptq::{Int8, Variant},
    qdq,
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    judge::{Judge, Likeness, decibels},
    node::{NodeId, Port},
    pass::{Context, Skipped},
    verify::verify,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::{collections::HashMap, rc::Rc};

/// What INT8 costs the layers and values of a graph.
pub(crate) struct Figures {
    /// The noise of each layer that can be quantised, when it alone is.
    pub layers: Vec<(NodeId, Likeness)>,
    /// Layers that can't be, and why.
    pub skipped: Vec<Skipped>,
    /// Samples that they were judged on.
    pub samples: usize,
    /// The noise of each value, when it alone becomes codes.
    pub values: Vec<ValueSensitivity>,
    /// What more and more layers in floats bring.
    pub curve: Vec<CurvePoint>,
}

/// What INT8 does to layers that alone are in it.
pub(crate) struct Alone {
    /// The noise of each.
    pub layers: Vec<(NodeId, Likeness)>,
    /// The share of the time of floats that each is predicted to save on ONNX Runtime.
    pub gains: HashMap<NodeId, f64>,
}

/// A value that becomes codes, alone.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct ValueSensitivity {
    /// Its name.
    pub name: String,
    /// Whether it is a weight; else it is an activation.
    pub is_weight: bool,
    /// Its range on calibration data; that of a weight is its own.
    pub range: (f32, f32),
    /// What of the answers is left.
    #[serde(flatten)]
    pub left: Left,
}

/// What is left of the answers.
#[derive(Debug, Clone, Copy, JsonSchema, Serialize)]
#[schemars(rename = "AnswersLeft")]
pub struct Left {
    /// Signal to noise of a typical sample (the geometric mean), in decibels, before a last Softmax or Sigmoid, which hide
    /// noise; absent where nothing changed. The noise of a sample counts as at most the signal, and as at least 80 dB below it.
    pub typical_db: Option<f64>,
    /// Signal to noise of the outputs, as gates have it; absent where nothing changed.
    pub sqnr_db: Option<f64>,
    /// Whether the answers are no numbers any more, so that the figures mean nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

/// A quantised model of which some layers are in floats.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct CurvePoint {
    /// How many layers are in floats. ONNX Runtime quantises one between codes by itself, so that this stays in codes until a
    /// neighbour joins it.
    pub float_layers: usize,
    /// The layer that joins them: of the others, that which makes the most noise for what it gains.
    pub layer: Option<String>,
    /// Signal to noise of a typical sample in decibels, as the noise of the other layers alone predicts it; absent where no
    /// layer is left.
    pub predicted_db: Option<f64>,
    /// What was measured; absent where nothing was.
    pub measured: Option<Left>,
    /// How many times as fast as floats ONNX Runtime is predicted to be.
    pub predicted_speedup: f64,
}

impl Left {
    pub(crate) fn of(likeness: &Likeness) -> Self {
        let db = |noise| (likeness.noise > 0.0).then(|| decibels(noise));
        Self { typical_db: db(likeness.typical), sqnr_db: db(likeness.noise), lost: *likeness == Likeness::LOST }
    }
}

/// Multiply-accumulates of all that is judged alone: some seconds to a minute on two cores. Each layer is judged about so many
/// times: in INT8, with zeros, without channels.
const JUDGED_MACS: u64 = 400_000_000_000;
const PER_LAYER: u64 = 6;
const LEAST: usize = 4;

/// Points of the curve that are measured, by the part of the layers that is in floats.
const MEASURED: [f64; 4] = [0.0, 0.1, 0.25, 0.5];

/// Quantises each layer and each value of `g` alone.
///
/// # Errors
/// Whatever running the graph can raise; interrupted.
pub(crate) fn figures(int8: &Int8, g: &Graph, judge: &dyn Judge, cx: &Context) -> Result<Figures> {
    let start = start(int8, g, cx)?;
    let (search, Alone { layers, gains }) = each_alone(int8, &start, judge, cx)?;
    let skipped = int8.quantise(&mut g.clone(), WHOLE, &start.seen, &start.choices)?.skipped;
    let values = values(&search, &start)?;
    let curve = curve(&search, &start, &layers, &gains)?;
    Ok(Figures { layers, skipped, samples: search.few, values, curve })
}

/// Quantises each layer of `g` alone.
///
/// # Errors
/// As for [`figures`].
pub(crate) fn alone(int8: &Int8, g: &Graph, judge: &dyn Judge, cx: &Context) -> Result<Alone> {
    Ok(each_alone(int8, &start(int8, g, cx)?, judge, cx)?.1)
}

/// What is inside of If, Loop and Scan stays in floats.
const WHOLE: &[Nested] = &[];

fn start(int8: &Int8, g: &Graph, cx: &Context) -> Result<Variant> {
    let seen = Rc::new(int8.seen(g, WHOLE, cx)?);
    Ok(Variant { graph: g.clone(), seen, choices: Choices::default() })
}

fn each_alone<'a>(
    int8: &'a Int8,
    start: &Variant,
    judge: &'a dyn Judge,
    cx: &'a Context<'a>,
) -> Result<(Search<'a>, Alone)> {
    let mut search = Search::new(int8, WHOLE, start, judge, cx)?;
    let plan = search.values(start)?;
    let all: Vec<NodeId> = plan.layers.iter().map(|l| l.node).collect();
    let sized = judge.sized(&start.graph)?;
    let macs = sized.operators().map(|n| sized.macs(n)).sum::<u64>().max(1);
    let judged = PER_LAYER * all.len() as u64 + plan.wanted.len() as u64;
    search.few = search.few.min(((JUDGED_MACS / macs / judged.max(1)) as usize).max(LEAST));
    let (mut layers, mut gains) = (vec![], HashMap::new());
    for (i, layer) in plan.layers.iter().enumerate() {
        (cx.progress)("INT8 layers alone", i, all.len());
        let (only, cost) = search.only(start, std::slice::from_ref(layer), &all)?;
        let likeness = judge.judge(&verify(&only)?, search.few)?;
        layers.push((layer.node, likeness));
        gains.insert(layer.node, 1.0 - cost.time);
    }
    Ok((search, Alone { layers, gains }))
}

fn values(search: &Search, start: &Variant) -> Result<Vec<ValueSensitivity>> {
    let (g, plan) = (&start.graph, search.values(start)?);
    let mut weights = plan.layers.clone();
    weights.sort_by_key(|l| l.weight);
    weights.dedup_by_key(|l| l.weight);
    let activations: Vec<Port> = plan.wanted.iter().copied().collect();
    let count = weights.len() + activations.len();
    let params = search.parameters(start, plan)?;
    let floors = search.least_scales(start, &params)?;
    let mut found = vec![];
    let mut tell = |g: &Graph, port: Port, is_weight, range, changed: &Graph| -> Result<()> {
        search.cx.check()?;
        (search.cx.progress)("INT8 values alone", found.len(), count);
        let left = Left::of(&search.judge.judge(&verify(changed)?, search.few)?);
        found.push(ValueSensitivity { name: g.value(port).name.clone(), is_weight, range, left });
        Ok(())
    };
    for port in activations {
        let mut changed = g.clone();
        let coded = qdq::pair(&mut changed, port, params[&port], &search.int8.scheme)?;
        let quantize = changed.operand(coded.node, 0).map_or(coded.node, |q| q.node);
        changed.redirect(port, coded, &[quantize]);
        tell(g, port, false, start.seen.extremes(port).unwrap_or_default(), &changed)?;
    }
    for layer in weights {
        let mut changed = g.clone();
        let rounded = search.rounded(g, &layer, &start.choices, &floors)?;
        let range = |of: &[f32]| of.iter().fold((0f32, 0f32), |(low, high), v| (low.min(*v), high.max(*v)));
        let range = g.constant(layer.weight.into()).and_then(|t| t.as_f32().map(|v| range(&v))).unwrap_or_default();
        changed.set_constant(layer.weight, rounded);
        tell(g, layer.weight.into(), true, range, &changed)?;
    }
    Ok(found)
}

/// Layers in floats, one more at each point.
fn curve(
    search: &Search,
    start: &Variant,
    layers: &[(NodeId, Likeness)],
    gains: &HashMap<NodeId, f64>,
) -> Result<Vec<CurvePoint>> {
    /// A layer that gains less is worth no noise.
    const LEAST_GAIN: f64 = 1e-4;
    let merit = |(n, l): &(NodeId, Likeness)| l.typical / gains[n].max(LEAST_GAIN);
    let mut order = layers.to_vec();
    order.sort_by(|a, b| merit(b).total_cmp(&merit(a)));
    let measured = MEASURED.map(|part| (part * order.len() as f64).round() as usize);
    let mut variant = start.clone();
    let mut curve: Vec<CurvePoint> = vec![];
    for count in 0..=order.len() {
        (search.cx.progress)("layers in floats", count, order.len() + 1);
        search.cx.check()?;
        let layer = count.checked_sub(1).map(|i| order[i].0);
        variant.choices.float.extend(layer.map(|n| (n, NOISY)));
        // As it would be written: ONNX Runtime quantises a lone one.
        let written = search.without_lone(variant.clone())?;
        let quantised = search.quantised(&written)?;
        let noise: f64 =
            layers.iter().filter(|(n, _)| !written.choices.float.contains_key(n)).map(|(_, l)| l.typical).sum();
        let measured = match measured.contains(&count) && noise > 0.0 {
            true => Some(Left::of(&search.judge.judge(&verify(&quantised)?, search.judge.samples())?)),
            false => None,
        };
        curve.push(CurvePoint {
            float_layers: written.choices.float.len(),
            layer: layer.map(|n| start.graph.node(n).display_name().into()),
            predicted_db: (noise > 0.0).then(|| decibels(noise)),
            measured,
            predicted_speedup: 1.0 / search.cost(&written, &quantised)?.time.max(f64::MIN_POSITIVE),
        });
    }
    (search.cx.progress)("layers in floats", order.len() + 1, order.len() + 1);
    Ok(curve)
}
