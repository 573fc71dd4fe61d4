//! Biases that make up for the mean error of their layers (Nagel et al. 2019, section 4.2).

use super::{Best, Proposal, Search, groups::at_once};
use crate::{
    layers::Layer,
    quant::{
        params::Affine,
        qdq::{self, LeastScales},
    },
};
use compress_compiler::{
    bound,
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    ops::reduce::{Reduce, ReduceKind},
    part::only,
    tensor::Tensor,
    verify::verify,
    words::counted,
};
use std::collections::HashMap;

/// Each bias changed by the mean over calibration data of what its layer answers in floats, less what it answers with
/// codes for its input and its weight: one layer at a time, which reads what the layers before it make in floats.
pub(super) fn corrected(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let plan = search.values(&best.variant)?;
    let layers: Vec<Layer> = plan.layers.iter().copied().filter(|l| l.axes.bias.is_some()).collect();
    if layers.is_empty() {
        return Ok(vec![]);
    }
    let mut variant = best.variant.clone();
    let params = search.parameters(&best.variant, plan)?;
    let floors = search.least_scales(&best.variant, &params)?;
    let sized = search.judge.sized(&best.variant.graph)?;
    let of =
        |n: NodeId| sized.operand(n, 0).map_or(0, |x| bound::bytes(sized.fact(x))) + bound::bytes(sized.fact(n.into()));
    let mut rest = &layers[..];
    while !rest.is_empty() {
        let (now, later) = rest.split_at(at_once(rest, |l| of(l.node)));
        for (layer, shift) in now.iter().zip(shifts(search, best, (&params, &floors), now)?) {
            variant.choices.biases.insert(layer.node, shift.into());
        }
        rest = later;
    }
    Ok(vec![Proposal::of(format!("the biases of {} make up for mean errors", counted(layers.len(), "layer")), variant)])
}

/// The mean error of each output channel of each layer.
fn shifts(
    search: &Search,
    best: &Best,
    (params, floors): (&HashMap<Port, Affine>, &LeastScales),
    layers: &[Layer],
) -> Result<Vec<Vec<f32>>> {
    let mut g = best.variant.graph.clone();
    let mut ports = vec![];
    let mut inputs: HashMap<Port, Port> = HashMap::new();
    for l in layers {
        let Some(x) = g.operand(l.node, 0) else { continue };
        let coded = match inputs.get(&x) {
            Some(coded) => *coded,
            None => qdq::pair(&mut g, x, params[&x], &search.int8.scheme)?,
        };
        inputs.insert(x, coded);
        let weight = search.rounded(&g, l, &best.variant.choices, floors)?;
        let weight = g.add_constant("weight", weight);
        let mut operands = g.operands(l.node);
        operands[0] = Some(coded);
        operands[l.axes.slot] = Some(weight.into());
        let (op, name) = (g.op(l.node).clone(), g.fresh("rounded"));
        let rounded = g.add_node(&name, op, &operands, &[&name])?;
        ports.extend([mean(&mut g, l.node)?, mean(&mut g, rounded)?]);
    }
    let calibrator = search.cx.calibrator.ok_or_else(|| Error::bug("no calibration data"))?;
    let channels = layers.iter().map(|l| g.constant(l.weight.into()).map_or(0, |t| t.shape()[l.axes.output]));
    let mut sums: Vec<Vec<f64>> = channels.map(|n| vec![0.0; n]).collect();
    let mut samples = 0;
    calibrator.run(&[&verify(&only(&g, &ports))?], search.samples, &mut |made| {
        samples += made[0].first().and_then(|t| t.shape().first().copied()).unwrap_or(0);
        for (sum, pair) in sums.iter_mut().zip(made[0].chunks(2)) {
            let [float, coded] = pair else { continue };
            let (Some(float), Some(coded)) = (float.as_f32(), coded.as_f32()) else { continue };
            let channels = sum.len().max(1);
            for (i, (a, b)) in float.iter().zip(coded.iter()).enumerate() {
                sum[i % channels] += f64::from(a - b);
            }
        }
        Ok(())
    })?;
    let mean = |sum: &Vec<f64>| sum.iter().map(|s| (s / samples.max(1) as f64) as f32).collect();
    Ok(sums.iter().map(mean).collect())
}

/// The mean of what a node makes, over all axes but samples and channels.
fn mean(g: &mut Graph, node: NodeId) -> Result<Port> {
    let rank = g.fact(node.into()).rank().unwrap_or(2);
    if rank <= 2 {
        return Ok(node.into());
    }
    let axes = g.add_constant("axes", Tensor::i64s(&(2..rank as i64).collect::<Vec<_>>())).into();
    let op = Reduce { kind: ReduceKind::Mean, keepdims: false, noop_with_empty_axes: false };
    let name = g.fresh("mean");
    Ok(g.add_node(&name, op.into(), &[Some(node.into()), Some(axes)], &[&name])?.into())
}
