//! How ranges are chosen: for all values alike, and for those that lose most.

use super::{Best, Proposal, Search, options::Noise};
use crate::quant::{
    calibrators::{Calibration, PERCENTILES},
    params::Affine,
    ptq::Variant,
    qdq,
};
use compress_compiler::{choice::Choice, error::Result, node::Port, verify::verify, words::counted};
use std::collections::BTreeMap;

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

/// So many of the noisiest values are given other ranges, if time is left for them.
const MOST: usize = 24;

/// Another range leaves this part of the noise at most.
const WORTH: f64 = 0.85;

/// Scales that are so near make the same noise.
const ALIKE: f32 = 1.05;

/// Of each of the noisiest values, the range with which it changes the answers least when it alone becomes codes.
pub(super) fn of_values(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let (variant, calibrations) = (&best.variant, Calibration::ALL);
    let params = search.parameters(variant, search.values(variant)?)?;
    let mut others = vec![];
    for how in calibrations {
        let mut other = variant.clone();
        other.choices.calibration = Some(*how);
        other.choices.ranges.clear();
        others.push((*how, search.parameters(&other, search.values(&other)?)?));
    }
    // Values that share their parameters are one.
    let mut shared: Vec<(Affine, Vec<Port>)> = vec![];
    let ports: BTreeMap<Port, Affine> = params.into_iter().collect();
    for (port, affine) in ports {
        match shared.iter_mut().find(|(a, _)| *a == affine) {
            Some((_, ports)) => ports.push(port),
            None => shared.push((affine, vec![port])),
        }
    }
    let is_near = |a: &Affine, b: &Affine| a.scale.max(b.scale) / a.scale.min(b.scale) < ALIKE;
    shared.retain(|(affine, ports)| others.iter().any(|(_, other)| !is_near(affine, &other[&ports[0]])));
    let sized = search.judge.sized(&variant.graph)?;
    let macs = sized.operators().map(|n| sized.macs(n)).sum::<u64>().max(1);
    let samples = SAMPLES.min(search.judge.samples());
    let runs = (MACS / macs) as usize;
    let mut ranked = vec![];
    for (i, (affine, ports)) in shared.iter().enumerate() {
        (search.cx.progress)("values alone", i, shared.len());
        let few = (runs / 2 / shared.len().max(1)).max(2).min(samples);
        ranked.push((alone(search, variant, ports, *affine, few)?.both(), *affine, ports));
    }
    (search.cx.progress)("values alone", shared.len(), shared.len());
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.truncate((runs / 2 / samples.max(1) / calibrations.len()).clamp(4, MOST));
    let mut new = variant.clone();
    let mut count = 0;
    for (i, (_, affine, ports)) in ranked.iter().enumerate() {
        (search.cx.progress)("ranges of values", i, ranked.len());
        let mut least = (WORTH * alone(search, variant, ports, *affine, samples)?.both(), None);
        for (how, other) in &others {
            let other = other[&ports[0]];
            if !is_near(affine, &other) {
                let noise = alone(search, variant, ports, other, samples)?.both();
                if noise < least.0 {
                    least = (noise, Some(*how));
                }
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

/// The noise in the answers where only these values become codes, with these parameters.
fn alone(search: &Search, variant: &Variant, ports: &[Port], affine: Affine, samples: usize) -> Result<Noise> {
    search.cx.check()?;
    let mut g = variant.graph.clone();
    for port in ports {
        let coded = qdq::pair(&mut g, *port, affine, &search.int8.scheme)?;
        let quantize = g.operand(coded.node, 0).map_or(coded.node, |q| q.node);
        g.redirect(*port, coded, &[quantize]);
    }
    Ok(Noise::of(&search.judge.judge(&verify(&g)?, samples)?))
}
