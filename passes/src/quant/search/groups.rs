//! What layers read, and the ranges of its channels.

use super::Search;
use crate::{
    layers::Layer,
    quant::{equalise::Group, ptq::Variant},
};
use compress_compiler::{
    bound,
    error::{Error, Result},
    graph::Graph,
    node::Port,
    part::only,
    verify::verify,
};
use std::collections::BTreeMap;

/// Bytes of a sample's values that are looked at in one go.
const VALUES_BYTES: u64 = 24 << 20;

/// How many of `items` are looked at in one go, where one takes so many bytes of a sample's values: one at least, of one at least.
pub(super) fn at_once<T>(items: &[T], bytes: impl Fn(&T) -> u64) -> usize {
    let mut all = 0;
    let fits = items.iter().take_while(|item| {
        all += bytes(item);
        all <= VALUES_BYTES
    });
    fits.count().max(1)
}

/// The groups of the layers that are quantised, in order, with the ranges of their channels.
pub(super) fn groups(search: &Search, variant: &Variant) -> Result<Vec<Group>> {
    let g = &variant.graph;
    let mut by_input: BTreeMap<Port, Vec<Layer>> = BTreeMap::new();
    for l in search.values(variant)?.layers {
        if let Some(input) = g.operand(l.node, 0) {
            by_input.entry(input).or_default().push(l);
        }
    }
    let mut groups: Vec<Group> =
        by_input.into_iter().filter_map(|(input, layers)| Group::of(g, input, layers)).collect();
    let sized = search.judge.sized(g)?;
    let mut rest = &mut groups[..];
    while !rest.is_empty() {
        let count = at_once(rest, |group| bound::bytes(sized.fact(group.input)));
        let (now, later) = rest.split_at_mut(count);
        see(search, g, now)?;
        rest = later;
    }
    Ok(groups)
}

/// Finds the extremes of the channels of each group.
fn see(search: &Search, g: &Graph, groups: &mut [Group]) -> Result<()> {
    let calibrator = search.cx.calibrator.ok_or_else(|| Error::bug("no calibration data"))?;
    let ports: Vec<Port> = groups.iter().map(|group| group.input).collect();
    calibrator.run(&[&verify(&only(g, &ports))?], search.samples, &mut |made| {
        for (group, t) in groups.iter_mut().zip(&made[0]) {
            let values = t.as_f32().ok_or_else(|| Error::bug("an activation is not f32"))?;
            let behind: usize = t.shape()[group.axis + 1..].iter().product();
            let channels = group.channels.len();
            for (i, part) in values.chunks(behind.max(1)).enumerate() {
                let (low, high) = &mut group.channels[i % channels];
                for v in part {
                    (*low, *high) = (low.min(*v), high.max(*v));
                }
            }
        }
        Ok(())
    })
}
