//! Inputs of layers scaled before their weights are rounded, so that those that count most are rounded best (AWQ, Lin et al. 2024).
//!
//! `W x = (W s) (x / s)`: the larger the factor of an input, the finer the codes of its column, at the cost of others in its block. The
//! factors are the root mean squares of the inputs to a power, that with which the answers have the least error. What makes `x` divides
//! it, at no cost; where it can't, a Mul does, if that makes the error so much smaller that it is worth an operator.

use super::blocks::{Told, blocked};
use crate::{
    quant::{
        equalise::{self, Group, Passed},
        scheme::Codes,
    },
    weight_matrix::WeightMatrix,
};
use compress_compiler::{error::Result, graph::Graph};
use rayon::prelude::*;
use regex::Regex;

/// The powers that are tried besides 0.
const POWERS: [f64; 6] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];

/// Rows of each weight that tell how well a power serves all.
const ROWS: usize = 64;

/// The part of the error without factors that a power has to leave at most: at no cost, and by a Mul.
const WORTH: f64 = 0.98;
const WORTH_A_MUL: f64 = 0.9;

/// The largest ratio of a factor to the mean one.
const MOST: f64 = 64.0;

/// Divides the inputs of a group, whose second moments are `h`, of so many rows `seen`, by the factors that serve its layers best, if that is
/// worth it, and multiplies the columns of their weights. Nothing that `exclude` names changes. Returns what is told of the inputs as they
/// are then.
///
/// # Errors
/// What inference raises.
pub(super) fn scale(
    g: &mut Graph,
    group: &Group,
    layouts: &[WeightMatrix],
    (h, seen): (&[f64], f64),
    (block, codes): (usize, [Codes; 2]),
    exclude: &[Regex],
) -> Result<Told> {
    let (d, plain) = (h.len().isqrt(), Told::of(h));
    let worth = match equalise::passed(g, group, exclude) {
        Passed::AnyFactor => WORTH,
        // Moments of fewer rows than inputs promise more than others keep.
        Passed::Nothing if seen >= d as f64 => WORTH_A_MUL,
        Passed::UpToAClip | Passed::Nothing => return Ok(plain),
    };
    let rows: Vec<Vec<f32>> = group
        .layers
        .iter()
        .zip(layouts)
        .filter_map(|(layer, layout)| {
            let stored = g.constant(layer.weight.into())?.as_f32()?;
            let step = layout.rows.div_ceil(ROWS).max(1);
            let some = (0..layout.rows).step_by(step).map(|row| layout.some_rows(&stored, row..row + 1).into_owned());
            Some(some.collect::<Vec<_>>().concat())
        })
        .collect();
    let error = |factors: &[f64], told: &Told| {
        let each = rows.iter().map(|rows| error(rows, factors, (h, told), block, codes));
        each.sum::<f64>()
    };
    // To the nearest tells which power is best, and takes no time.
    let nearest = |factors: &[f64]| {
        let importance = (0..d).map(|i| h[i * d + i] / factors[i].powi(2)).collect();
        error(factors, &Told { importance, triangle: None })
    };
    let ones = vec![1.0; d];
    let tried = POWERS.iter().map(|power| factors(h, *power)).map(|factors| (nearest(&factors), factors));
    let best = tried.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(error, _)| *error < nearest(&ones));
    let Some((_, factors)) = best else { return Ok(plain) };
    let divided: Vec<f64> = h.iter().enumerate().map(|(i, v)| v / (factors[i / d] * factors[i % d])).collect();
    let told = Told::of(&divided);
    if error(&factors, &told) > worth * error(&ones, &plain) {
        return Ok(plain);
    }
    let narrow: Vec<f32> = factors.iter().map(|s| *s as f32).collect();
    equalise::equalise(g, group, &narrow, false, exclude)?;
    Ok(told)
}

/// The root mean square of each input to a power, around 1.
fn factors(h: &[f64], power: f64) -> Vec<f64> {
    let d = h.len().isqrt();
    let logs: Vec<Option<f64>> =
        (0..d).map(|i| (h[i * d + i] > 0.0).then(|| 0.5 * power * h[i * d + i].ln())).collect();
    let mean = logs.iter().flatten().sum::<f64>() / logs.iter().flatten().count().max(1) as f64;
    // An input that is always zero needs no factor.
    logs.iter().map(|log| log.map_or(1.0, |log| (log - mean).exp().clamp(1.0 / MOST, MOST))).collect()
}

/// The mean square error of the answers of some rows that are rounded under these factors, as `told`, to inputs of moments `h`.
fn error(rows: &[f32], factors: &[f64], (h, told): (&[f64], &Told), block: usize, codes: [Codes; 2]) -> f64 {
    let d = factors.len();
    let scaled: Vec<f32> = rows.iter().enumerate().map(|(i, w)| w * factors[i % d] as f32).collect();
    let layout = WeightMatrix::dense(rows.len() / d, d);
    let (made, codes) = blocked((&scaled, &layout), block, codes, Some(told));
    let values = made.values(codes);
    rows.par_chunks(d)
        .zip(values.par_chunks(d))
        .map(|(row, made)| {
            let each = row.iter().zip(made).zip(factors);
            let far: Vec<f64> = each.map(|((w, q), s)| f64::from(*w) - f64::from(*q) / s).collect();
            let answer = |i: usize| far[i] * h[i * d..(i + 1) * d].iter().zip(&far).map(|(h, f)| h * f).sum::<f64>();
            (0..d).map(answer).sum::<f64>()
        })
        .collect::<Vec<_>>()
        .iter()
        .sum()
}
