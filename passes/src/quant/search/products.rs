//! Inputs of matrix products: their channels share one scale, and a few wide ones spoil it for the others.

use super::{Best, Proposal, Search, options::Item};
use crate::{
    layers::Layer,
    quant::{columns, ptq::Variant, smooth},
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Site},
    op::Op,
    verify::verify,
};
use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::{Mutex, PoisonError},
};

/// A value, and the products that read it: all of its integer readers.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub input: Port,
    pub layers: Vec<Layer>,
    /// The least and the largest value of each of its channels.
    pub channels: Vec<(f32, f32)>,
}

impl Group {
    fn widest(&self) -> Vec<f32> {
        self.channels.iter().map(|(low, high)| high.max(-low)).collect()
    }

    /// The extremes of all channels but some.
    fn range(&self, except: &[usize]) -> (f32, f32) {
        let kept = self.channels.iter().enumerate().filter(|(c, _)| !except.contains(c)).map(|(_, r)| r);
        kept.fold((0.0, 0.0), |a: (f32, f32), b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// The groups of the layers that are quantised, in order.
pub(super) fn groups(search: &Search, variant: &Variant) -> Result<Vec<Group>> {
    let g = &variant.graph;
    let plan = search.values(variant)?;
    let mut by_input: BTreeMap<Port, Vec<Layer>> = BTreeMap::new();
    for l in plan.layers.iter().filter(|l| l.axes.slot == 1) {
        if let Some(input) = g.operand(l.node, 0) {
            by_input.entry(input).or_default().push(*l);
        }
    }
    let mut groups: Vec<Group> = by_input
        .into_iter()
        .filter(|(input, layers)| {
            fits(g, *input, layers) && plan.layers.iter().all(|l| reads_alike(g, l, *input, layers))
        })
        .map(|(input, layers)| Group { input, layers, channels: vec![] })
        .collect();
    see(search, g, &mut groups)?;
    Ok(groups)
}

/// Whether layers are products of the last axis of `input` by weights that nobody else reads.
fn fits(g: &Graph, input: Port, layers: &[Layer]) -> bool {
    let size = |l: &Layer| g.constant(l.weight.into()).map(|t| t.shape()[l.axes.input]);
    let first = layers.first().and_then(size);
    let last = g.fact(input).dims().and_then(|d| d.last()?.known()).and_then(|n| usize::try_from(n).ok());
    let is_product = |l: &Layer| match g.op(l.node) {
        Op::MatMul(_) => true,
        Op::Gemm(gemm) => !gemm.trans_a,
        _ => false,
    };
    let own = |l: &Layer| g.uses(l.weight.into()).iter().all(|u| layers.iter().any(|o| o.node == u.node));
    first.is_some() && last == first && layers.iter().all(|l| is_product(l) && own(l) && size(l) == first)
}

/// Whether a layer is one of `layers` if it reads `input`.
fn reads_alike(g: &Graph, l: &Layer, input: Port, layers: &[Layer]) -> bool {
    g.operand(l.node, 0) != Some(input) || layers.iter().any(|o| o.node == l.node)
}

/// Finds the extremes of the channels of each group.
fn see(search: &Search, g: &Graph, groups: &mut [Group]) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let calibrator = search.cx.calibrator.ok_or_else(|| Error::bug("no calibration data"))?;
    let watch: Vec<Site> = groups.iter().map(|group| group.input.into()).collect();
    let sizes = groups.iter().map(|group| {
        let l = &group.layers[0];
        g.constant(l.weight.into()).map_or(1, |t| t.shape()[l.axes.input]).max(1)
    });
    let seen: Vec<Mutex<Vec<(f32, f32)>>> = sizes.map(|n| Mutex::new(vec![(0.0, 0.0); n])).collect();
    calibrator.observe(&verify(g)?, &watch, &|i, values| {
        let mut channels = seen[i].lock().unwrap_or_else(PoisonError::into_inner);
        let n = channels.len();
        for row in values.chunks(n) {
            for ((low, high), v) in channels.iter_mut().zip(row) {
                (*low, *high) = (low.min(*v), high.max(*v));
            }
        }
        Ok(())
    })?;
    for (group, seen) in groups.iter_mut().zip(seen) {
        group.channels = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    }
    Ok(())
}

/// Shares of the range that move into the weights.
const ALPHAS: [f32; 3] = [0.3, 0.5, 0.7];

/// Every group smoothed by the share that suits it best, tried alone.
pub(super) fn smoothed(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let groups = groups(search, &best.variant)?;
    let all: Vec<NodeId> = search.values(&best.variant)?.layers.iter().map(|l| l.node).collect();
    let mut variant = best.variant.clone();
    let mut count = 0;
    for (i, group) in groups.iter().enumerate() {
        (search.cx.progress)("smooth", i, groups.len());
        let item = Item::Group(group.clone());
        let (plain, _) = search.alone(&best.variant, &item, &all)?;
        let mut least = (plain * 0.9, None);
        for alpha in ALPHAS {
            let mut tried = best.variant.clone();
            if smooth(&mut tried, group, alpha)? {
                let (noise, _) = search.alone(&tried, &item, &all)?;
                if noise < least.0 {
                    least = (noise, Some(alpha));
                }
            }
        }
        if let Some(alpha) = least.1 {
            smooth(&mut variant, group, alpha)?;
            count += 1;
        }
    }
    (search.cx.progress)("smooth", groups.len(), groups.len());
    let what = format!("{count} of {} inputs smoothed", groups.len());
    Ok(if count > 0 { vec![Proposal { what, variant }] } else { vec![] })
}

/// Smooths a group; `false` where that can't be done.
fn smooth(variant: &mut Variant, group: &Group, alpha: f32) -> Result<bool> {
    let g = &mut variant.graph;
    let Some(factors) = smooth::factors(g, &group.layers, &group.widest(), alpha) else { return Ok(false) };
    let input = smooth::smooth(g, group.input, &group.layers, &factors)?;
    let of = |((low, high), s): (&(f32, f32), &f32)| (low / s, high / s);
    let channels = group.channels.iter().zip(&factors).map(of).collect();
    let range = Group { channels, ..group.clone() }.range(&[]);
    variant.seen = Rc::new(variant.seen.with(input, range));
    group.layers.iter().for_each(|l| drop(variant.choices.rounded.remove(&l.weight)));
    Ok(true)
}

/// What may be done to the input of products, beyond smoothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// So many of its widest channels are multiplied in floats.
    Columns(usize),
    /// It is quantised in two terms.
    TwoTerms,
}

/// The forms to try.
pub(super) const FORMS: [Form; 3] = [Form::Columns(4), Form::Columns(16), Form::TwoTerms];

/// Gives the input of a group another form; `false` where that can't be done.
pub(super) fn reshape(variant: &mut Variant, group: &Group, form: Form) -> Result<bool> {
    match form {
        Form::TwoTerms => {
            variant.choices.two_terms.insert(group.input);
        }
        Form::Columns(count) if count * 4 > group.channels.len() => return Ok(false),
        Form::Columns(count) => {
            let widest = group.widest();
            let mut order: Vec<usize> = (0..widest.len()).collect();
            order.sort_by(|a, b| widest[*b].total_cmp(&widest[*a]));
            let mut channels = order[..count].to_vec();
            channels.sort();
            let floats = columns::split(&mut variant.graph, group.input, &group.layers, &channels)?;
            variant.choices.float.extend(floats.into_iter().map(|n| (n, WIDE)));
            variant.seen = Rc::new(variant.seen.with(group.input, group.range(&channels)));
            group.layers.iter().for_each(|l| drop(variant.choices.rounded.remove(&l.weight)));
        }
    }
    Ok(true)
}

const WIDE: &str = "it multiplies the widest channels in floats";
