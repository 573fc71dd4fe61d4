//! Codes for what codes leave over: two terms of eight bits see an input in sixteen.
//!
//! `x = q1 + q2 + e`, with `q1` the value of x's codes and `q2` that of the codes of `x - q1`, whose scale is 1/254 of the
//! first. A product by both is two integer products, of the same weight, and a sum.

use super::{params::Affine, qdq, scheme::Scheme};
use crate::layers::Layer;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    ops::binary::Binary,
};

/// Adds to each of `layers`, which read `coded`, the codes of `x`, its product by what those leave over. `coded` has these
/// parameters.
///
/// # Errors
/// What inference raises.
pub(super) fn add(
    g: &mut Graph,
    x: Port,
    coded: Port,
    layers: &[Layer],
    params: Affine,
    scheme: &Scheme,
) -> Result<Vec<NodeId>> {
    let rest = rest(g, x, coded, params, scheme)?;
    let mut added = vec![];
    for l in layers {
        let mut operands = g.operands(l.node);
        operands[0] = Some(rest);
        if let Some(bias) = l.axes.bias.and_then(|slot| operands.get_mut(slot)) {
            *bias = None;
        }
        let base = g.node(l.node).display_name().to_string();
        let output = g.fresh(&format!("{base}_rest"));
        let op = g.op(l.node).clone();
        let product = g.add_node(&format!("{base}_rest"), op, &operands, &[&output])?;
        let output = g.fresh(&format!("{base}_sum"));
        let operands = [Some(l.node.into()), Some(product.into())];
        let sum = g.add_node(&format!("{base}_sum"), Binary::Add.into(), &operands, &[&output])?;
        g.redirect(l.node.into(), sum.into(), &[sum]);
        added.push(product);
    }
    Ok(added)
}

/// What the codes of `x` leave over, through codes and back.
///
/// # Errors
/// What inference raises.
pub(super) fn rest(g: &mut Graph, x: Port, coded: Port, params: Affine, scheme: &Scheme) -> Result<Port> {
    let name = format!("{}_rest", g.value(x).name);
    let output = g.fresh(&name);
    let rest = g.add_node(&name, Binary::Sub.into(), &[Some(x), Some(coded)], &[&output])?;
    let half = params.scale / 2.0;
    qdq::pair(g, rest.into(), Affine::covering(-half, half, scheme.activations.codes()), scheme)
}
