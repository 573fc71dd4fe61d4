//! TfIdfVectorizer.

use super::{Args, numbers::of_floats};
use crate::burn::{host::check_host, tensor::Value};
use compress_compiler::{
    error::{Error, Result},
    ops::tfidf::{TfIdf, Weighting},
    tensor::DType,
};
use std::collections::{HashMap, HashSet};

/// Counts n-grams in sequences.
pub(super) fn tfidf(op: &TfIdf, mut a: Args) -> Result<Value> {
    let x = a.take(0)?.into_ints()?;
    let size = op.size()?;
    let (shape, rows, length) = match x.shape[..] {
        [] => (vec![size], 1, 1),
        [n] => (vec![size], 1, n),
        [rows, n] => (vec![rows, size], rows, n),
        _ => return Err(Error::malformed(format!("sequences of {:?}", x.shape))),
    };
    let mut out = vec![0.0; check_host(&shape)?];
    let places: HashMap<&[i64], usize> = op.grams()?.into_iter().collect();
    // Longer n-grams are only looked for where they begin as one of the pool does.
    let beginnings: HashSet<&[i64]> = places.keys().flat_map(|g| (1..=g.len()).map(|n| &g[..n])).collect();
    for row in 0..rows {
        let (sequence, counts) = (&x.data[row * length..(row + 1) * length], &mut out[row * size..(row + 1) * size]);
        for step in 1..=op.max_skip.min(length) + 1 {
            for start in 0..length {
                let mut gram = vec![];
                for item in sequence[start..].iter().step_by(step) {
                    gram.push(*item);
                    if !beginnings.contains(&gram[..]) {
                        break;
                    }
                    // Single items are the same at all steps, and count once.
                    if let Some(place) = places.get(&gram[..]).filter(|_| gram.len() > 1 || step == 1) {
                        counts[*place] += 1.0;
                    }
                }
            }
        }
        for (i, count) in counts.iter_mut().enumerate() {
            let weight = f64::from(op.weights.get(i).copied().unwrap_or(1.0));
            *count = match op.mode {
                Weighting::Tf => *count,
                Weighting::Idf => f64::min(*count, 1.0) * weight,
                Weighting::TfIdf => *count * weight,
            };
        }
    }
    of_floats(out, &shape, DType::F32, a.device)
}
