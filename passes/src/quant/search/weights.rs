//! Weights rounded with a view to what their layers read.

use super::{Best, Search, groups::at_once, remedies::Proposal};
use crate::{
    layers::Layer,
    moments::{Inputs, Moments, observe},
    quant::{
        choices::Rounded,
        params,
        ptq::Variant,
        qdq::{self, LeastScales},
        rounding::{MOST_INPUTS, Triangle},
        scheme::Weights,
    },
    weight_matrix::WeightMatrix,
};
use compress_compiler::{
    bound,
    error::{Error, Result},
    graph::Graph,
    node::Port,
    part::only,
    verify::verify,
    words::counted,
};
use rayon::prelude::*;
use std::sync::Arc;

/// Observations for each input of a layer, and at least: means of fewer shift biases at random.
const OBSERVATIONS: usize = 6;
const LEAST: usize = 8192;

/// Bytes of moments that are gathered at a time.
const MOMENTS_BYTES: usize = 192 << 20;

/// A weight to round.
pub(super) struct Task {
    layer: Layer,
    input: Port,
    layout: WeightMatrix,
    inputs: Inputs,
    /// Whether its bias may make up for the mean of the errors.
    is_shifted: bool,
}

impl Task {
    pub fn of(g: &Graph, layer: &Layer) -> Option<Self> {
        let layout = WeightMatrix::of(g, layer)?;
        let inputs = Inputs::of(g, layer, layout)?;
        Some(Self {
            layer: *layer,
            input: g.operand(layer.node, 0)?,
            layout,
            inputs,
            is_shifted: layer.axes.bias.is_some(),
        })
    }

    /// The same, whose bias stays.
    pub fn without_shift(self) -> Self {
        Self { is_shifted: false, ..self }
    }

    fn bytes(&self) -> usize {
        self.inputs.groups() * self.layout.columns().pow(2) * size_of::<f64>()
    }
}

/// All weights rounded by second moments, which are those of the inputs in floats.
pub(super) fn rounded(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let (variant, count) = round(search, &best.variant)?;
    let what = format!("{} rounded by what their layers read (GPTQ)", counted(count, "weight"));
    Ok(if count > 0 { vec![Proposal::of(what, variant)] } else { vec![] })
}

/// A variant with all weights rounded that are not yet, and how many those are.
pub(super) fn round(search: &Search, variant: &Variant) -> Result<(Variant, usize)> {
    let g = &variant.graph;
    let plan = search.values(variant)?;
    let alone = |l: &&Layer| plan.layers.iter().filter(|o| o.weight == l.weight).count() == 1;
    let is_new = |l: &&Layer| !variant.choices.rounded.contains_key(&l.weight);
    let tasks: Vec<Task> = plan.layers.iter().filter(alone).filter(is_new).filter_map(|l| Task::of(g, l)).collect();
    let mut new = variant.clone();
    if tasks.is_empty() {
        return Ok((new, 0));
    }
    let params = search.parameters(variant, plan)?;
    let floors = search.least_scales(variant, &params)?;
    let mut count = 0;
    let scheme = search.int8.scheme.weights;
    each(search, g, tasks, scheme, &floors, &mut |layer, rounded, shift| {
        let rounded = search.settled(variant, layer, &params, rounded);
        new.choices.rounded.insert(layer.weight, Arc::new(rounded));
        if let Some(shift) = shift {
            new.choices.biases.insert(layer.node, shift.into());
        }
        count += 1;
    })?;
    Ok((new, count))
}

/// What to do with a layer's weight that was rounded, and with the change of its bias.
type Settle<'a> = dyn FnMut(&Layer, Rounded, Option<Vec<f32>>) + 'a;

/// Rounds the weights of `tasks`, as many at a time as memory allows.
pub(super) fn each(
    search: &Search,
    g: &Graph,
    mut rest: Vec<Task>,
    scheme: Weights,
    floors: &LeastScales,
    settle: &mut Settle,
) -> Result<()> {
    rest.retain(|t| t.layout.columns() <= MOST_INPUTS);
    let (all, mut done) = (rest.len(), 0);
    if all == 0 {
        return Ok(());
    }
    let sized = search.judge.sized(g)?;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|t| {
            bytes += t.bytes();
            bytes <= MOMENTS_BYTES
        });
        let many = at_once(&rest, |t| bound::bytes(sized.fact(t.input))).min(fits.count().max(1));
        let now: Vec<Task> = rest.drain(..many).collect();
        let moments = gather(search, g, &now)?;
        search.cx.check()?;
        (search.cx.progress)("round weights", done, all);
        done += now.len();
        let each = now.par_iter().zip(&moments).map(|(task, moments)| round_one(scheme, g, task, moments, floors));
        for (task, rounded) in now.iter().zip(each.collect::<Vec<_>>()) {
            if let Some((rounded, shift)) = rounded? {
                settle(&task.layer, rounded, shift);
            }
        }
    }
    (search.cx.progress)("round weights", all, all);
    Ok(())
}

/// What the layers read, in moments.
fn gather(search: &Search, g: &Graph, tasks: &[Task]) -> Result<Vec<Vec<Moments>>> {
    let calibrator = search.cx.calibrator.ok_or_else(|| Error::bug("no calibration data"))?;
    let mut ports: Vec<Port> = tasks.iter().map(|t| t.input).collect();
    ports.sort();
    ports.dedup();
    let read = only(g, &ports);
    let mut moments: Vec<Vec<Moments>> = tasks.iter().map(|t| Moments::none(&t.inputs)).collect();
    let samples = search.samples;
    calibrator.run(&[&verify(&read)?], samples, &mut |made| {
        for (task, moments) in tasks.iter().zip(&mut moments) {
            // Every port is in the list that it was made from.
            let Ok(at) = ports.binary_search(&task.input) else { continue };
            let each = (OBSERVATIONS * task.layout.columns()).max(LEAST).div_ceil(samples.max(1));
            observe(&task.inputs, moments, &made[0][at], None, each)
                .map_err(|e| e.at(g.node(task.layer.node).label()))?;
        }
        Ok(())
    })?;
    Ok(moments)
}

/// The weight of a task, rounded, and by how much its bias makes up for the mean of the errors; nothing where its layer was
/// not seen to read numbers.
fn round_one(
    weights: Weights,
    g: &Graph,
    task: &Task,
    moments: &[Moments],
    floors: &LeastScales,
) -> Result<Option<(Rounded, Option<Vec<f32>>)>> {
    if moments.iter().any(Moments::are_void) {
        return Ok(None);
    }
    let tensor = g.constant(task.layer.weight.into()).ok_or_else(|| Error::bug("a weight is not a constant"))?;
    let stored = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?;
    let d = task.layout.columns();
    let floor = |c: usize| qdq::least_scale(floors, &task.layer, c);
    let scales = params::weight_scales(&stored, tensor.shape(), task.layer.axes.output, weights, floor);
    let matrix = task.layout.matrix(&stored);
    let rows = task.layout.rows / moments.len();
    let mut values = vec![0f32; matrix.len()];
    let mut shift = vec![0f32; task.layout.rows];
    for (group, moments) in moments.iter().enumerate() {
        let (h, mean) = moments.second(task.is_shifted);
        let triangle = Triangle::of(&h, d);
        let from = group * rows;
        values[from * d..(from + rows) * d].par_chunks_mut(d).zip(&mut shift[from..from + rows]).enumerate().for_each(
            |(r, (to, shift))| {
                let row = &matrix[(from + r) * d..(from + r + 1) * d];
                let scale = scales[from + r];
                let codes = triangle.round(row, scale, weights.codes.range());
                to.iter_mut().zip(codes).for_each(|(to, code)| *to = code * scale);
                *shift = row.iter().zip(&*to).zip(&mean).map(|((w, q), m)| f64::from(w - q) * m).sum::<f64>() as f32;
            },
        );
    }
    let rounded = Rounded { values: task.layout.stored(&values), scales };
    Ok(Some((rounded, task.is_shifted.then_some(shift))))
}
