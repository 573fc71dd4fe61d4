//! The noise at the output of each layer itself. One run measures that of all layers, and it is enough to compare ways of
//! quantising one layer.

use super::Search;
use crate::{
    layers::Layer,
    quant::{
        params::Affine,
        ptq::Variant,
        qdq::{self, LeastScales},
        two_terms,
    },
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        binary::Binary,
        reduce::{Reduce, ReduceKind},
    },
    part::only,
    tensor::Tensor,
    verify::verify,
};
use std::collections::{HashMap, hash_map::Entry};

/// Layers beside the same ones with codes for their input and weight; both read what the layers before make in floats.
pub(super) struct Twins<'a> {
    search: &'a Search<'a>,
    variant: &'a Variant,
    params: HashMap<Port, Affine>,
    floors: LeastScales,
}

/// Sums of squares over calibration data: of each row of what products make, and of each sample of what convolutions do.
#[derive(Debug, Clone, Default)]
pub(super) struct Power {
    /// Of what a layer answers.
    pub signal: Vec<f32>,
    /// Of what codes change.
    noise: Vec<f32>,
}

/// Rows with less than this part of the mean signal say little.
const LEAST_SIGNAL: f64 = 1e-3;

impl Power {
    /// The noise in parts of the signal.
    pub fn part(&self) -> f64 {
        self.beside(&self.signal)
    }

    /// The noise in parts of a signal: the mean of the rows, as a normalisation after them makes all rows alike.
    pub fn beside(&self, signal: &[f32]) -> f64 {
        let count = signal.len().max(1) as f64;
        let mean = signal.iter().map(|s| f64::from(*s)).sum::<f64>() / count;
        let least = (mean * LEAST_SIGNAL).max(f64::MIN_POSITIVE);
        self.noise.iter().zip(signal).map(|(n, s)| f64::from(*n) / f64::from(*s).max(least)).sum::<f64>() / count
    }
}

impl<'a> Twins<'a> {
    pub fn new(search: &'a Search, variant: &'a Variant) -> Result<Self> {
        let params = search.parameters(variant, search.values(variant)?)?;
        let floors = search.least_scales(variant, &params)?;
        Ok(Self { search, variant, params, floors })
    }

    /// Adds to `g`, a copy of the variant's graph, a layer that reads codes. `inputs` holds those that were made before.
    pub fn add(&self, g: &mut Graph, l: &Layer, inputs: &mut HashMap<Port, Port>) -> Result<NodeId> {
        let x = g.operand(l.node, 0).ok_or_else(|| Error::bug("a layer reads nothing"))?;
        let coded = match inputs.entry(x) {
            Entry::Occupied(e) => *e.get(),
            Entry::Vacant(e) => *e.insert(self.coded(g, x)?),
        };
        let weight = self.search.rounded(g, l, &self.variant.choices, &self.floors)?;
        let weight = g.add_constant("weight", weight);
        let mut operands = g.operands(l.node);
        operands[0] = Some(coded);
        operands[l.axes.slot] = Some(weight.into());
        let (op, name) = (g.op(l.node).clone(), g.fresh("rounded"));
        g.add_node(&name, op, &operands, &[&name])
    }

    fn coded(&self, g: &mut Graph, x: Port) -> Result<Port> {
        let (params, scheme) = (self.params[&x], &self.search.int8.scheme);
        let coded = qdq::pair(g, x, params, scheme)?;
        if !self.variant.choices.two_terms.contains(&x) {
            return Ok(coded);
        }
        let rest = two_terms::rest(g, x, coded, params, scheme)?;
        let name = g.fresh("both");
        Ok(g.add_node(&name, Binary::Add.into(), &[Some(coded), Some(rest)], &[&name])?.into())
    }

    /// The power of each of `layers` and of the noise that codes make there.
    pub fn powers(&self, layers: &[Layer]) -> Result<HashMap<NodeId, Power>> {
        if layers.is_empty() {
            return Ok(HashMap::new());
        }
        let mut g = self.variant.graph.clone();
        let (mut ports, mut inputs) = (vec![], HashMap::new());
        for l in layers {
            let twin = self.add(&mut g, l, &mut inputs)?;
            let name = g.fresh("change");
            let change = g.add_node(&name, Binary::Sub.into(), &[Some(l.node.into()), Some(twin.into())], &[&name])?;
            ports.extend([power(&mut g, l, l.node)?, power(&mut g, l, change)?]);
        }
        let mut powers = vec![Power::default(); layers.len()];
        let calibrator = self.search.cx.calibrator.ok_or_else(|| Error::bug("no calibration data"))?;
        calibrator.run(&[&verify(&only(&g, &ports))?], self.search.few, &mut |made| {
            let add = |to: &mut Vec<f32>, t: &Tensor| to.extend(t.as_f32().iter().flat_map(|v| v.iter()));
            for (power, pair) in powers.iter_mut().zip(made[0].chunks(2)) {
                let [signal, noise] = pair else { continue };
                add(&mut power.signal, signal);
                add(&mut power.noise, noise);
            }
            Ok(())
        })?;
        Ok(layers.iter().map(|l| l.node).zip(powers).collect())
    }
}

/// The sums of the squares of the rows or samples of `node`, which makes what a layer does.
fn power(g: &mut Graph, l: &Layer, node: NodeId) -> Result<Port> {
    let rank = g.fact(node.into()).rank().unwrap_or(2) as i64;
    let axes: Vec<i64> = if matches!(g.op(l.node), Op::Conv(_)) { (1..rank).collect() } else { vec![rank - 1] };
    let axes = g.add_constant(&g.fresh("axes"), Tensor::i64s(&axes)).into();
    let op = Reduce { kind: ReduceKind::SumSquare, keepdims: false, noop_with_empty_axes: false };
    let name = g.fresh("power");
    Ok(g.add_node(&name, op.into(), &[Some(node.into()), Some(axes)], &[&name])?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_as_much_as_one_of_a_thousand_times_its_power() {
        let power = Power { signal: vec![1.0, 1000.0], noise: vec![0.1, 1.0] };
        assert!((power.part() - (0.1 + 0.001) / 2.0).abs() < 1e-9);
        let all_in_one = Power { signal: vec![1.0, 1e9], noise: vec![0.1, 1e6] };
        assert!(all_in_one.part() < 1e-3, "a row of next to nothing counts for nothing");
    }
}
