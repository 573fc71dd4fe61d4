//! Made-up samples and seeded choices.

use super::{
    InputSpec, MadeUpIntegers,
    leaves::{self, Normal},
    size,
    source::SampleSource,
    values,
};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
    value::Dim,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::index};
use rayon::prelude::*;
use std::path::PathBuf;

/// Samples that exist only while a batch needs them.
pub(super) struct Synthetic {
    pub(super) seed: u64,
    rows: usize,
    /// The samples of a batch, where the model takes but one number of them.
    pub(super) fixed: Option<usize>,
    axes: Vec<Axes>,
    /// Whether inputs that have the shape of a picture show one.
    pictures: bool,
    /// The inputs of all samples, where they are more than noise.
    made: Option<Vec<Tensor>>,
}

/// The axes of an input, `None` for those that count the samples.
type Axes = Vec<Option<usize>>;

impl Synthetic {
    pub(super) fn new(inputs: &[InputSpec], rows: usize, seed: u64, pictures: bool) -> Result<Self> {
        let (axes, fixed) = batched(inputs);
        for (spec, axes) in inputs.iter().zip(&axes) {
            let fits = values::check_type(spec.dtype).and_then(|()| values::size_of(spec.dtype, &shape(axes, 1)));
            fits.map_err(|e| e.about(format_args!("input `{}`", spec.name)))?;
        }
        Ok(Self { seed, rows: rows.max(fixed.unwrap_or(1)), fixed, axes, pictures, made: None })
    }

    /// Whether the first axis of every input counts the samples, and no other does.
    pub(super) fn apart(&self) -> bool {
        self.axes.iter().all(|axes| lies_apart(axes))
    }

    /// The same set with these inputs, batch by batch: all samples in order.
    pub(super) fn holding(&self, batches: &[Vec<Tensor>]) -> Result<Self> {
        let joined = |(i, axes): (usize, &Axes)| {
            let parts = batches.iter().filter_map(|b| b.get(i));
            let dtype = parts.clone().next().map(Tensor::dtype).ok_or_else(|| Error::bug("no batch was made"))?;
            let bytes: Vec<u8> = parts.flat_map(|t| t.bytes()).copied().collect();
            Tensor::new(dtype, shape(axes, self.rows), bytes)
        };
        let made = self.axes.iter().enumerate().map(joined).collect::<Result<_>>()?;
        Ok(Self { axes: self.axes.clone(), made: Some(made), ..*self })
    }

    /// The size of an input that shows pictures.
    fn picture(&self, axes: &Axes) -> Option<[usize; 3]> {
        leaves::is_picture(axes).filter(|_| self.pictures && lies_apart(axes))
    }

    /// Whether an input shows pictures.
    pub(super) fn has_pictures(&self) -> bool {
        self.axes.iter().any(|axes| self.picture(axes).is_some())
    }

    /// Whether the samples are more than noise.
    pub(super) fn is_made(&self) -> bool {
        self.made.is_some()
    }
}

impl SampleSource for Synthetic {
    fn len(&self) -> usize {
        self.rows
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![]
    }

    fn stacks(&self) -> bool {
        self.axes.iter().flatten().any(Option::is_none)
    }

    fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>> {
        if let Some(made) = &self.made {
            let some = |(t, axes): (&Tensor, &Axes)| {
                let each = t.bytes().len() / self.rows;
                let bytes: Vec<u8> = rows.iter().flat_map(|r| &t.bytes()[r * each..(r + 1) * each]).copied().collect();
                Tensor::new(t.dtype(), shape(axes, rows.len()), bytes)
            };
            return made.iter().zip(&self.axes).map(some).collect();
        }
        let one = |(i, (spec, axes)): (usize, (&InputSpec, &Axes))| {
            // Samples that don't lie one after the other are not made one by one.
            let apart = lies_apart(axes);
            let rows_apart = if apart { rows } else { &rows[..1] };
            let part_bytes = values::size_of(spec.dtype, &shape(&axes[usize::from(apart)..], rows.len()))?;
            let mut out = values::room(rows_apart.len(), part_bytes)?;
            // A sample may be empty, which leaves nothing to cut into chunks.
            if spec.dtype.is_float() && part_bytes > 0 {
                let len = part_bytes / spec.dtype.size();
                let picture = self.picture(axes);
                out.par_chunks_mut(part_bytes).zip(rows_apart).for_each(|(out, row)| {
                    let mut rng = generator(self.seed, *row, i);
                    let made = match picture {
                        Some(size) => leaves::picture(&mut rng, size),
                        None => {
                            let mut normal = Normal::default();
                            (0..len).map(|_| normal.next(&mut rng)).collect()
                        }
                    };
                    values::write_floats(spec.dtype, &made, out);
                });
            }
            if !spec.dtype.is_float() && part_bytes > 0 && spec.whole != MadeUpIntegers::Zeros {
                let parts = out.chunks_mut(part_bytes).zip(rows_apart);
                parts.for_each(|(out, row)| whole(spec, self.seed, *row, i, out));
            }
            Tensor::new(spec.dtype, shape(axes, rows.len()), out)
        };
        inputs.iter().zip(&self.axes).enumerate().map(one).collect()
    }
}

/// Integers as `spec` wants them.
fn whole(spec: &InputSpec, seed: u64, row: usize, input: usize, out: &mut [u8]) {
    let mut rng = generator(seed, row, input);
    for out in out.chunks_exact_mut(spec.dtype.size()) {
        let value = match spec.whole {
            MadeUpIntegers::Below(n) if n > 1 => rng.random_range(0..n),
            MadeUpIntegers::Ones => 1,
            _ => 0,
        };
        out.copy_from_slice(&value.to_le_bytes()[..out.len()]);
    }
}

fn lies_apart(axes: &[Option<usize>]) -> bool {
    axes.first() == Some(&None) && !axes[1..].contains(&None)
}

fn shape(axes: &[Option<usize>], samples: usize) -> Vec<usize> {
    axes.iter().map(|axis| axis.unwrap_or(samples)).collect()
}

/// Which axes of the inputs count the samples, and how many there have to be. All others that are
/// free become 1.
fn batched(inputs: &[InputSpec]) -> (Vec<Axes>, Option<usize>) {
    let fronts = || inputs.iter().filter_map(|i| i.shape.first());
    let free = |axis: &Dim| size(axis).is_none();
    let mut axes: Vec<Axes> =
        inputs.iter().map(|i| i.shape.iter().map(|axis| Some(size(axis).unwrap_or(1))).collect()).collect();
    let any_free = fronts().any(free);
    // A single entry beside a free batch is there for all samples, as positions are.
    if let Some(n) = values::fixed_front(inputs).filter(|n| (*n != 1 || !any_free) && values::stacks(inputs)) {
        axes.iter_mut().for_each(|axes| axes[0] = None);
        return (axes, Some(n));
    }
    if !any_free {
        return (axes, Some(1));
    }
    // What comes first in a mask `[length, length]` is found behind the batch elsewhere.
    let behind = |axis: &Dim| {
        let other = |i: &&InputSpec| i.shape.first().is_some_and(|front| free(front) && front != axis);
        inputs.iter().filter(other).any(|i| i.shape[1..].contains(axis))
    };
    let mut names: Vec<&Dim> = fronts().filter(|axis| matches!(axis, Dim::Sym(_)) && !behind(axis)).collect();
    if names.is_empty() {
        names.extend(fronts().find(|axis| matches!(axis, Dim::Sym(_))));
    }
    for (axes, spec) in axes.iter_mut().zip(inputs) {
        for (i, (size, axis)) in axes.iter_mut().zip(&spec.shape).enumerate() {
            if names.contains(&axis) || (i == 0 && *axis == Dim::Unknown) {
                *size = None;
            }
        }
    }
    (axes, None)
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

fn generator(seed: u64, row: usize, input: usize) -> StdRng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&(row as u64).to_le_bytes());
    key[16..24].copy_from_slice(&(input as u64).to_le_bytes());
    StdRng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::super::{
        Dataset,
        testing::{named, spec},
    };
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

        specs[0].shape.push(Dim::Known(i64::MAX));
        assert_eq!(Dataset::synthetic(&specs, 1, 0).err().unwrap().kind(), Kind::Limit);
        assert_eq!(Dataset::synthetic(&specs[1..], 0, 0).err().unwrap().kind(), Kind::Data);
    }

    #[test]
    fn axes_of_the_same_name_have_the_same_size() {
        let shapes = |inputs: &[&str], samples: usize| {
            let specs: Vec<_> = inputs.iter().map(|shape| named("x", shape)).collect();
            let set = Dataset::synthetic(&specs, samples, 0).unwrap();
            let batch = set.batch(&(0..samples).collect::<Vec<_>>()).unwrap();
            let shapes: Vec<_> = batch.inputs.iter().map(|t| t.shape().to_vec()).collect();
            (shapes, set.fixed_batch())
        };
        for (inputs, expected) in [
            // A mask shared by all samples, before and behind the batch.
            (&["S, T", "B, S, 4"], [vec![1, 1], vec![3, 1, 4]]),
            (&["B, S, 4", "S, T"], [vec![3, 1, 4], vec![1, 1]]),
            // Several names for the batch.
            (&["B1, S", "B2, S"], [vec![3, 1], vec![3, 1]]),
            // The batch is elsewhere in a state, and no part of a scalar or of positions.
            (&["B, S", "2, B, 4"], [vec![3, 1], vec![2, 3, 4]]),
            (&["B, S", ""], [vec![3, 1], vec![]]),
            (&["1, S", "B, S"], [vec![1, 1], vec![3, 1]]),
            // One name twice in an input.
            (&["N, N", "N, 4"], [vec![3, 3], vec![3, 4]]),
            // Which of two is the batch nobody can tell.
            (&["S, B, 4", "B, S"], [vec![3, 1, 4], vec![1, 3]]),
            (&["?, S", "?, T"], [vec![3, 1], vec![3, 1]]),
        ] {
            assert_eq!(shapes(inputs, 3), (expected.to_vec(), None), "{inputs:?}");
        }
        // A batch that is fixed, and models that know none.
        assert_eq!(shapes(&["3, S", "?, 2"], 3), (vec![vec![3, 1], vec![3, 2]], Some(3)));
        assert_eq!(shapes(&["3, 4", "2, S"], 1), (vec![vec![3, 4], vec![2, 1]], Some(1)));
        assert_eq!(shapes(&["0, 4"], 1), (vec![vec![0, 4]], Some(1)));
        assert_eq!(Dataset::synthetic(&[named("x", "70, 2")], 64, 0).unwrap().len(), 70);
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
