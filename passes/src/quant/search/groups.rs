//! What layers read, and the ranges of its channels.

use super::Search;
use crate::{
    layers::Layer,
    quant::{equalise::Group, ptq::Variant, reduce_range},
};
use compress_compiler::{
    error::{Error, Result},
    node::Port,
};
use std::{collections::BTreeMap, sync::Arc};

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
    let of = |(input, layers)| Group::of(g, input, layers);
    let mut groups: Vec<Group> = by_input.into_iter().filter_map(of).collect();
    let known = &variant.seen.channels;
    let others = groups.iter().filter(|group| !known.contains_key(&group.input));
    let others: Vec<Layer> = others.flat_map(|group| group.layers.clone()).collect();
    let calibrator = search.cx.calibrator.ok_or_else(|| Error::bug("no calibration data"))?;
    let seen = reduce_range::observe(g, &others, calibrator)?;
    // One of which nothing was seen stays as it is.
    groups.retain_mut(|group| {
        let channels = known.get(&group.input).or_else(|| seen.get(&group.input));
        let is_known = |channels: &&Arc<[(f32, f32)]>| {
            channels.len() == group.channels.len() && channels.iter().all(|(low, high)| low <= high)
        };
        let Some(channels) = channels.filter(is_known) else { return false };
        group.channels = channels.to_vec();
        if let Some(extremes) = variant.seen.extremes(group.input) {
            group.reach(extremes);
        }
        true
    });
    Ok(groups)
}
