//! Channels evened out: where that is free, and in front of products.

use super::{Best, Search, groups::groups, local::Twins, options::Noise, remedies::Proposal};
use crate::{
    layers::Layer,
    quant::{
        equalise::{self, Group, Passed},
        ptq::Variant,
    },
};
use compress_compiler::{
    error::Result,
    node::{NodeId, Port},
    op::{Op, Operator, Quant},
    verify::verify,
    words::counted,
};
use std::rc::Rc;

/// Shares of the range that move into the weights.
const ALPHAS: [f32; 7] = [0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0];

/// A share is taken that leaves at most this part of a group's noise: of convolutions, in front of which a product is dear.
const WORTH: f64 = 0.9;
const WORTH_OF_CONV: f64 = 0.4;

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
            count += usize::from(apply(search, &mut variant, group, share, true)?);
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

/// Every group of products, and of convolutions behind functions in floats, by the share with which its layers answer with the
/// least noise. A share is kept if the answers of the graph get better by it, too.
pub(super) fn smoothed(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let g = &best.variant.graph;
    let mut groups = groups(search, &best.variant)?;
    let is_conv = |group: &Group| matches!(g.op(group.layers[0].node), Op::Conv(_));
    // A product of codes by factors would have the scale of the codes; and what is free is done.
    let is_float = |port: Port| !matches!(g.op(port.node), Op::Input(_)) && g.op(port.node).quant() == Quant::Float;
    let is_free = |group: &Group| !matches!(equalise::passed(g, group, &search.int8.exclude), Passed::Nothing);
    let is_behind_floats = |group: &Group| is_float(group.input) && !is_free(group);
    groups.retain(|group| !is_conv(group) || is_behind_floats(group) && !group.is_depthwise(g));
    if groups.is_empty() {
        return Ok(vec![]);
    }
    let layers: Vec<Layer> = groups.iter().flat_map(|group| group.layers.clone()).collect();
    let noise = |variant: &Variant| -> Result<Vec<f64>> {
        let powers = Twins::new(search, variant)?.powers(&layers)?;
        Ok(groups.iter().map(|group| group.layers.iter().map(|l| powers[&l.node].part()).sum()).collect())
    };
    let worth = |group: &Group| if is_conv(group) { WORTH_OF_CONV } else { WORTH };
    let mut least: Vec<(f64, Option<f32>)> =
        noise(&best.variant)?.iter().zip(&groups).map(|(plain, group)| (worth(group) * plain, None)).collect();
    for (i, alpha) in ALPHAS.into_iter().enumerate() {
        (search.cx.progress)("smooth", i, ALPHAS.len());
        let mut tried = best.variant.clone();
        for group in &groups {
            apply(search, &mut tried, group, alpha, false)?;
        }
        for (least, noise) in least.iter_mut().zip(noise(&tried)?) {
            if noise < least.0 {
                *least = (noise, Some(alpha));
            }
        }
    }
    (search.cx.progress)("smooth", ALPHAS.len(), ALPHAS.len());
    let all: Vec<NodeId> = search.values(&best.variant)?.layers.iter().map(|l| l.node).collect();
    let alone = |variant: &Variant, group: &Group| -> Result<f64> {
        let (only, _) = search.only(variant, &group.layers, &all)?;
        Ok(Noise::of(&search.judge.judge(&verify(&only)?, search.few)?).both())
    };
    let mut variant = best.variant.clone();
    let mut count = 0;
    for (i, (group, (_, alpha))) in groups.iter().zip(least).enumerate() {
        (search.cx.progress)("smooth alone", i, groups.len());
        let Some(alpha) = alpha else { continue };
        let mut tried = best.variant.clone();
        // A layer may answer with less noise, but with noise of another kind, that tells more.
        if apply(search, &mut tried, group, alpha, false)?
            && alone(&tried, group)? < worth(group) * alone(&best.variant, group)?
        {
            count += usize::from(apply(search, &mut variant, group, alpha, false)?);
        }
    }
    (search.cx.progress)("smooth alone", groups.len(), groups.len());
    let what = format!("{count} of {} inputs smoothed", groups.len());
    Ok(if count > 0 { vec![Proposal::of(what, variant)] } else { vec![] })
}

/// Evens out a group; `false` where that can't be done, or is not free and has to be. What is free changes other values too,
/// of which the ranges are not known then.
fn apply(search: &Search, variant: &mut Variant, group: &Group, alpha: f32, free: bool) -> Result<bool> {
    let (g, exclude) = (&mut variant.graph, &search.int8.exclude);
    let Some(factors) = equalise::factors(g, group, alpha, exclude) else { return Ok(false) };
    let Some(input) = equalise::equalise(g, group, &factors, free, exclude)? else { return Ok(false) };
    let of = |((low, high), s): (&(f32, f32), &f32)| (low / s, high / s);
    let channels = group.channels.iter().zip(&factors).map(of).collect();
    variant.seen = Rc::new(variant.seen.with(input, channels));
    for l in &group.layers {
        variant.choices.rounded.remove(&l.weight);
        variant.choices.biases.remove(&l.node);
    }
    Ok(true)
}
