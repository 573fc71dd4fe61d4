//! How ranges are chosen: for all values alike, and for those that lose most.

use super::{Best, Search, options::Noise, remedies::Proposal};
use crate::quant::{
    calibrators::{Calibration, PERCENTILES},
    params::Affine,
    ptq::Variant,
    qdq,
};
use compress_compiler::{choice::Choice, error::Result, node::Port, verify::verify, words::counted};
use std::collections::{BTreeMap, HashMap};

/// Each percentile. (Other calibrators never suited all values of any model.)
pub(super) fn of_all(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let others = PERCENTILES.iter().filter(|c| **c != search.int8.scheme.calibration);
    let with = |how: &Calibration| {
        let mut variant = best.variant.clone();
        variant.choices.calibration = Some(*how);
        Proposal::of(format!("{how} for all ranges"), variant)
    };
    Ok(others.map(with).collect())
}

/// Multiply-accumulates of judging values alone: some seconds on two cores.
const MACS: u64 = 600_000_000_000;

/// Samples that a value alone is judged by. By 4, ranges were chosen that suit no others.
const SAMPLES: usize = 16;

/// At most so many of the noisiest values are given other ranges.
const MOST: usize = 24;

/// Another range leaves this part of the noise at most.
const WORTH: f64 = 0.85;

/// Scales that are so near make the same noise.
const ALIKE: f32 = 1.05;

/// The parameters of values.
type Params = HashMap<Port, Affine>;

/// Of each of the noisiest values, the range with which it changes the answers least when it alone becomes codes.
pub(super) fn of_values(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let variant = &best.variant;
    let params = search.parameters(variant, search.values(variant)?)?;
    let others =
        Calibration::ALL.iter().map(|how| Ok((*how, by(search, variant, *how)?))).collect::<Result<Vec<_>>>()?;
    let is_near = |a: &Affine, b: &Affine| a.scale.max(b.scale) / a.scale.min(b.scale) < ALIKE;
    let differs = |other: &Params, ports: &[Port]| ports.iter().any(|p| !is_near(&params[p], &other[p]));
    let mut shared = alike(&params);
    shared.retain(|ports| others.iter().any(|(_, other)| differs(other, ports)));
    let sized = search.judge.sized(&variant.graph)?;
    let macs = sized.operators().map(|n| sized.macs(n)).sum::<u64>().max(1);
    let samples = SAMPLES.min(search.judge.samples());
    let runs = (MACS / macs) as usize;
    let few = (runs / 2 / shared.len().max(1)).max(2).min(samples);
    let mut ranked = vec![];
    for (i, ports) in shared.iter().enumerate().take_while(|_| !search.is_over()) {
        (search.cx.progress)("values alone", i, shared.len());
        ranked.push((alone(search, variant, ports, &params, few)?, ports));
    }
    (search.cx.progress)("values alone", shared.len(), shared.len());
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.truncate((runs / 2 / samples.max(1) / others.len()).clamp(1, MOST));
    let mut new = variant.clone();
    let mut count = 0;
    for (i, (_, ports)) in ranked.iter().enumerate().take_while(|_| !search.is_over()) {
        (search.cx.progress)("ranges of values", i, ranked.len());
        let mut least = (WORTH * alone(search, variant, ports, &params, samples)?, None);
        for (how, other) in others.iter().filter(|(_, other)| differs(other, ports)) {
            let noise = alone(search, variant, ports, other, samples)?;
            if noise < least.0 {
                least = (noise, Some(*how));
            }
        }
        if let Some(how) = least.1 {
            new.choices.ranges.extend(ports.iter().map(|p| (*p, how)));
            count += 1;
        }
    }
    (search.cx.progress)("ranges of values", ranked.len(), ranked.len());
    Ok(match count {
        0 => vec![],
        _ => vec![Proposal::of(format!("other ranges for {}", counted(count, "value")), new)],
    })
}

/// The parameters that values have where a calibrator chooses all ranges.
fn by(search: &Search, variant: &Variant, how: Calibration) -> Result<Params> {
    let mut other = variant.clone();
    other.choices.calibration = Some(how);
    other.choices.ranges.clear();
    search.parameters(&other, search.values(&other)?)
}

/// Values with the same parameters, which they share as a rule, in order.
fn alike(params: &Params) -> Vec<Vec<Port>> {
    let mut found: Vec<(Affine, Vec<Port>)> = vec![];
    for (port, affine) in params.iter().collect::<BTreeMap<_, _>>() {
        match found.iter_mut().find(|(a, _)| a == affine) {
            Some((_, ports)) => ports.push(*port),
            None => found.push((*affine, vec![*port])),
        }
    }
    found.into_iter().map(|(_, ports)| ports).collect()
}

/// The noise in the answers where only these values become codes.
fn alone(search: &Search, variant: &Variant, ports: &[Port], params: &Params, samples: usize) -> Result<f64> {
    search.cx.check()?;
    let mut g = variant.graph.clone();
    for port in ports {
        let coded = qdq::pair(&mut g, *port, params[port], &search.int8.scheme)?;
        let quantize = g.operand(coded.node, 0).map_or(coded.node, |q| q.node);
        g.redirect(*port, coded, &[quantize]);
    }
    Ok(Noise::of(&search.judge.judge(&verify(&g)?, samples)?).both())
}
