//! Channels evened out: where that is free, and in front of products.

use super::{Best, Proposal, Search, groups::groups, options::Item};
use crate::quant::{
    equalise::{self, Group},
    ptq::Variant,
};
use compress_compiler::{error::Result, node::NodeId, op::Op, words::counted};
use std::rc::Rc;

/// Shares of the range that move into the weights.
const ALPHAS: [f32; 3] = [0.3, 0.5, 0.7];

/// Those that are tried where it costs nothing.
const FOLDED: [Option<f32>; 2] = [None, Some(0.5)];

/// The share of layers whose weights have a scale for each of the channels.
const DEPTHWISE: f32 = 1.0;

/// Every group of convolutions that a layer before can divide, by one share for all.
pub(super) fn folded(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let groups = groups(search, &best.variant)?;
    let g = &best.variant.graph;
    let convs: Vec<&Group> = groups.iter().filter(|group| matches!(g.op(group.layers[0].node), Op::Conv(_))).collect();
    let mut proposals = vec![];
    for alpha in FOLDED {
        let mut variant = best.variant.clone();
        let mut count = 0;
        for group in &convs {
            // A layer that was changed reads other channels than were looked at, but only as its reader is changed.
            let share = if group.is_depthwise(g) { Some(DEPTHWISE) } else { alpha };
            let Some(share) = share else { continue };
            count += usize::from(apply(&mut variant, group, share, true)?);
        }
        if count > 0 {
            variant.seen = Rc::new(search.int8.seen(&variant.graph, search.whole, search.cx)?);
            let what = format!(
                "the inputs of {} equalised{}",
                counted(count, "convolution"),
                alpha.map_or(String::new(), |a| format!(" by {a}"))
            );
            proposals.push(Proposal::of(what, variant));
        }
    }
    Ok(proposals)
}

/// Every group of products by the share that suits it best, tried alone.
pub(super) fn smoothed(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let g = &best.variant.graph;
    let mut groups = groups(search, &best.variant)?;
    groups.retain(|group| !matches!(g.op(group.layers[0].node), Op::Conv(_)));
    if groups.is_empty() {
        return Ok(vec![]);
    }
    let all: Vec<NodeId> = search.values(&best.variant)?.layers.iter().map(|l| l.node).collect();
    let mut variant = best.variant.clone();
    let mut count = 0;
    for (i, group) in groups.iter().enumerate() {
        (search.cx.progress)("smooth", i, groups.len());
        let item = Item::Group(group.clone());
        let (plain, _) = search.alone(&best.variant, &item, &all)?;
        let mut least = (plain.both() * 0.9, None);
        for alpha in ALPHAS {
            let mut tried = best.variant.clone();
            if apply(&mut tried, group, alpha, false)? {
                let (noise, _) = search.alone(&tried, &item, &all)?;
                if noise.both() < least.0 {
                    least = (noise.both(), Some(alpha));
                }
            }
        }
        if let Some(alpha) = least.1 {
            apply(&mut variant, group, alpha, false)?;
            count += 1;
        }
    }
    (search.cx.progress)("smooth", groups.len(), groups.len());
    let what = format!("{count} of {} inputs of products smoothed", groups.len());
    Ok(if count > 0 { vec![Proposal::of(what, variant)] } else { vec![] })
}

/// Evens out a group; `false` where that can't be done, or is not free and has to be. What is free changes other values too,
/// of which the ranges are not known then.
fn apply(variant: &mut Variant, group: &Group, alpha: f32, free: bool) -> Result<bool> {
    let g = &mut variant.graph;
    let Some(factors) = equalise::factors(g, group, alpha) else { return Ok(false) };
    let Some(input) = equalise::equalise(g, group, &factors, free)? else { return Ok(false) };
    let of = |((low, high), s): (&(f32, f32), &f32)| (low / s, high / s);
    let channels = group.channels.iter().zip(&factors).map(of).collect();
    variant.seen = Rc::new(variant.seen.with(input, channels));
    for l in &group.layers {
        variant.choices.rounded.remove(&l.weight);
        variant.choices.biases.remove(&l.node);
    }
    Ok(true)
}
