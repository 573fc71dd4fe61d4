//! Channels evened out: where that is free, and in front of products.

use super::{Best, Proposal, Search, groups::groups, local::Twins};
use crate::{
    layers::Layer,
    quant::{
        equalise::{self, Group},
        ptq::Variant,
    },
};
use compress_compiler::{error::Result, op::Op, words::counted};
use std::rc::Rc;

/// Shares of the range that move into the weights.
const ALPHAS: [f32; 7] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];

/// A share is taken that leaves at most this part of a group's noise.
const WORTH: f64 = 0.9;

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

/// Every group of products by the share with which its layers answer with the least noise.
pub(super) fn smoothed(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let g = &best.variant.graph;
    let mut groups = groups(search, &best.variant)?;
    groups.retain(|group| !matches!(g.op(group.layers[0].node), Op::Conv(_)));
    if groups.is_empty() {
        return Ok(vec![]);
    }
    let layers: Vec<Layer> = groups.iter().flat_map(|group| group.layers.clone()).collect();
    let noise = |variant: &Variant| -> Result<Vec<f64>> {
        let powers = Twins::new(search, variant)?.powers(&layers)?;
        Ok(groups.iter().map(|group| group.layers.iter().map(|l| powers[&l.node].part()).sum()).collect())
    };
    let mut least: Vec<(f64, Option<f32>)> =
        noise(&best.variant)?.into_iter().map(|plain| (WORTH * plain, None)).collect();
    for (i, alpha) in ALPHAS.into_iter().enumerate() {
        (search.cx.progress)("smooth", i, ALPHAS.len());
        let mut tried = best.variant.clone();
        for group in &groups {
            apply(&mut tried, group, alpha, false)?;
        }
        for (least, noise) in least.iter_mut().zip(noise(&tried)?) {
            if noise < least.0 {
                *least = (noise, Some(alpha));
            }
        }
    }
    (search.cx.progress)("smooth", ALPHAS.len(), ALPHAS.len());
    let mut variant = best.variant.clone();
    let mut count = 0;
    for (group, (_, alpha)) in groups.iter().zip(least) {
        if let Some(alpha) = alpha {
            count += usize::from(apply(&mut variant, group, alpha, false)?);
        }
    }
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
