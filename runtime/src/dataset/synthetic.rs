//! Made-up samples and seeded choices.

use super::{InputSpec, array::batch_shape, values};
use compress_compiler::{error::Result, tensor::Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::index};
use rayon::prelude::*;
use std::f64::consts::TAU;

/// Samples that exist only while a batch needs them.
pub(super) struct Synthetic {
    pub(super) seed: u64,
    pub(super) rows: usize,
    pub(super) stacked: bool,
    /// The shape of a sample of each input.
    shapes: Vec<Vec<usize>>,
}

impl Synthetic {
    pub(super) fn new(inputs: &[InputSpec], rows: usize, seed: u64) -> Result<Self> {
        let stacked = values::stacks(inputs);
        let mut shapes = Vec::new();
        for spec in inputs {
            values::check_type(spec.dtype).map_err(|e| e.about(format_args!("input `{}`", spec.name)))?;
            let axes = values::sample_axes(spec, stacked);
            let shape: Vec<usize> = axes.iter().map(|axis| axis.unwrap_or(1)).collect();
            values::size_of(spec.dtype, &shape).map_err(|e| e.about(format_args!("input `{}`", spec.name)))?;
            shapes.push(shape);
        }
        Ok(Self { seed, rows, stacked, shapes })
    }

    pub(super) fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>> {
        let one = |(i, (spec, shape)): (usize, (&InputSpec, &Vec<usize>))| {
            let sample_bytes = values::size_of(spec.dtype, shape)?;
            let mut out = values::room(rows.len(), sample_bytes)?;
            // A sample may be empty, which leaves nothing to cut into chunks.
            if spec.dtype.is_float() && sample_bytes > 0 {
                let len = sample_bytes / spec.dtype.size();
                out.par_chunks_mut(sample_bytes).zip(rows).for_each(|(out, row)| {
                    let normal: Vec<f64> = normals(self.seed, *row, i).take(len).collect();
                    values::write_floats(spec.dtype, &normal, out);
                });
            }
            Tensor::new(spec.dtype, batch_shape(self.stacked, rows.len(), shape), out)
        };
        inputs.iter().zip(&self.shapes).enumerate().map(one).collect()
    }
}

/// Standard normal numbers that depend on nothing but the arguments.
fn normals(seed: u64, row: usize, input: usize) -> impl Iterator<Item = f64> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&(row as u64).to_le_bytes());
    key[16..24].copy_from_slice(&(input as u64).to_le_bytes());
    let mut rng = StdRng::from_seed(key);
    // Box and Muller's way makes two numbers at a time.
    let pair = move || {
        // Turned around, because zero has no logarithm.
        let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
        let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
        [radius * cos, radius * sin]
    };
    std::iter::repeat_with(pair).flatten()
}

/// A seeded fifth of `0..len` is held out: gives the rest and those held out.
///
/// Both are ascending, they share nothing, and the same arguments give the same split. From two
/// on, at least one is held out.
pub fn hold_out(len: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let count = (len / 5).max(usize::from(len > 1));
    let mut out = vec![false; len];
    for i in index::sample(&mut StdRng::seed_from_u64(seed), len, count) {
        out[i] = true;
    }
    (0..len).partition(|i| !out[*i])
}

/// `count` of `from` chosen by `seed`, ascending; all of them when there are fewer.
pub fn sample(from: &[usize], count: usize, seed: u64) -> Vec<usize> {
    let count = count.min(from.len());
    let picked = index::sample(&mut StdRng::seed_from_u64(seed), from.len(), count);
    let mut picked: Vec<_> = picked.into_iter().map(|i| from[i]).collect();
    picked.sort_unstable();
    picked
}

#[cfg(test)]
mod tests {
    use super::super::{Dataset, testing::spec};
    use super::*;
    use compress_compiler::{error::Kind, tensor::DType};

    #[test]
    fn samples_depend_on_seed_and_index_alone() {
        let mut specs = vec![spec("x", &[None, Some(3), None, Some(700)]), spec("ids", &[None, None])];
        specs[1].dtype = DType::I64;
        let set = Dataset::synthetic(&specs, 100, 7).unwrap();
        let batch = set.batch(&[42, 3]).unwrap();
        assert_eq!(batch.inputs[0].shape(), [2, 3, 1, 700]);
        assert_eq!(batch.inputs[1].as_i64().unwrap(), [0, 0]);
        let all = batch.inputs[0].as_f32().unwrap();
        let alone = set.batch(&[3]).unwrap();
        assert_eq!(all[2100..], *alone.inputs[0].as_f32().unwrap());
        assert_ne!(all[..2100], all[2100..]);
        let mean = all.iter().sum::<f32>() / 4200.0;
        let variance = all.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 4200.0;
        assert!(mean.abs() < 0.1 && (variance - 1.0).abs() < 0.1, "{mean} {variance}");
        let other = Dataset::synthetic(&specs, 100, 8).unwrap().batch(&[3]).unwrap();
        assert_ne!(other.inputs[0], alone.inputs[0]);
        assert_eq!(set.digest().unwrap(), "synthetic:7");
        assert_eq!((set.len(), set.is_labelled(), alone.labels), (100, false, None));

        specs[0].shape.push(Some(usize::MAX));
        assert_eq!(Dataset::synthetic(&specs, 1, 0).err().unwrap().kind(), Kind::Limit);
        assert_eq!(Dataset::synthetic(&specs[1..], 0, 0).err().unwrap().kind(), Kind::Data);
    }

    #[test]
    fn splits_are_seeded_disjoint_and_ascending() {
        let (rest, out) = hold_out(103, 1);
        assert_eq!((rest.len(), out.len()), (83, 20));
        assert!(rest.is_sorted() && out.is_sorted() && !rest.iter().any(|i| out.contains(i)));
        assert_eq!(hold_out(103, 1).1, out);
        assert_ne!(hold_out(103, 2).1, out);
        assert_eq!([0, 1, 2, 5].map(|len| hold_out(len, 0).1.len()), [0, 0, 1, 1]);

        let picked = sample(&rest, 10, 3);
        assert_eq!((picked.len(), &picked), (10, &sample(&rest, 10, 3)));
        assert!(picked.is_sorted() && picked.iter().all(|i| rest.contains(i)));
        assert_eq!(sample(&rest, 999, 3), rest);
    }
}
