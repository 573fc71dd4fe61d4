//! Biases that make up for the mean error of their layers (Nagel et al. 2019, section 4.2).

use super::{Best, Search, groups::at_once, local::Twins, remedies::Proposal};
use crate::layers::Layer;
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
    let twins = Twins::new(search, &best.variant)?;
    let sized = search.judge.sized(&best.variant.graph)?;
    let of =
        |n: NodeId| sized.operand(n, 0).map_or(0, |x| bound::bytes(sized.fact(x))) + bound::bytes(sized.fact(n.into()));
    let mut rest = &layers[..];
    while !rest.is_empty() {
        let (now, later) = rest.split_at(at_once(rest, |l| of(l.node)));
        for (layer, shift) in now.iter().zip(shifts(search, best, &twins, now)?) {
            variant.choices.biases.insert(layer.node, shift.into());
        }
        rest = later;
    }
    Ok(vec![Proposal::of(format!("the biases of {} make up for mean errors", counted(layers.len(), "layer")), variant)])
}

/// The mean error of each output channel of each layer.
fn shifts(search: &Search, best: &Best, twins: &Twins, layers: &[Layer]) -> Result<Vec<Vec<f32>>> {
    let mut g = best.variant.graph.clone();
    let (mut ports, mut inputs) = (vec![], HashMap::new());
    for l in layers {
        let twin = twins.add(&mut g, l, &mut inputs)?;
        ports.extend([mean(&mut g, l.node)?, mean(&mut g, twin)?]);
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
