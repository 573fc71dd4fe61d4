//! A weight as the product of two thin ones.
//!
//! Of a matrix `W` whose inputs have the second moments `H` the mean square of the outputs is the trace of `W H Wᵀ`. With `U` the `k`
//! eigenvectors of that with the largest eigenvalues, `U Uᵀ W` is the matrix of rank `k` whose outputs are nearest (the SVD of
//! `W H^½`, which SVD-LLM, Wang et al. 2024, and ASVD, Yuan et al. 2023, approach by other roots of `H`); what it misses are the
//! eigenvalues that are left out. With the identity for `H` that is the plain SVD of the weight.

use crate::weight_matrix::WeightMatrix;
use compress_compiler::error::{Error, Result};
use faer::{Mat, MatRef, Side};

/// Rows that are multiplied at a time.
const ROWS: usize = 2048;

/// The outputs of a layer, by the directions in which they vary most.
pub(super) struct Spectrum {
    /// The mean square of the outputs in each direction, the largest first.
    energy: Vec<f64>,
    /// The directions, as columns: as many as there may be.
    directions: Mat<f32>,
}

/// Two weights, of which the second multiplies what the first makes.
pub(super) struct Factors {
    /// Of the matrix `[rank, inputs]`, as a weight is stored.
    pub down: Vec<f32>,
    /// Of the matrix `[outputs, rank]`, as a weight is stored.
    pub up: Vec<f32>,
}

impl Spectrum {
    /// That of a weight, stored as `layout` says; `h` are the second moments of its inputs, if they are known. Keeps `most` directions.
    ///
    /// # Errors
    /// Unsupported where the eigenvalues don't converge; those of `check`, which is asked between steps.
    pub fn of(
        (stored, layout): (&[f32], &WeightMatrix),
        h: Option<&[f64]>,
        most: usize,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let (rows, columns) = (layout.rows, layout.columns());
        let most = most.min(rows).min(columns);
        let root = h.map(|h| root(h, columns)).transpose()?;
        // Rows of the weight times the root: the squares of their lengths are the mean squares of the outputs.
        let weighed = |part: &[f32]| {
            let w = wide(part, columns);
            match &root {
                Some(root) => w * root,
                None => w,
            }
        };
        let parts = || (0..rows).step_by(ROWS).map(|at| at..(at + ROWS).min(rows));
        if rows <= columns {
            let all = weighed(&layout.some_rows(stored, 0..rows));
            check()?;
            let (energy, directions) = eigen((&all * all.transpose()).as_ref(), most)?;
            return Ok(Self { energy, directions: narrow(directions.as_ref()) });
        }
        let mut square = Mat::<f64>::zeros(columns, columns);
        for part in parts() {
            check()?;
            let m = weighed(&layout.some_rows(stored, part));
            square += m.transpose() * &m;
        }
        let (energy, inner) = eigen(square.as_ref(), most)?;
        let mut directions = Mat::<f32>::zeros(rows, most);
        for part in parts() {
            check()?;
            let outputs = weighed(&layout.some_rows(stored, part.clone())) * &inner;
            for (at, i) in part.enumerate() {
                for k in 0..most {
                    let length = energy[k].sqrt();
                    directions[(i, k)] = if length > 0.0 { (outputs[(at, k)] / length) as f32 } else { 0.0 };
                }
            }
        }
        Ok(Self { energy, directions })
    }

    /// The share of the mean square of the outputs that each rank misses, from 0 on.
    pub fn missed(&self) -> Vec<f64> {
        let all: f64 = self.energy.iter().sum();
        let mut left: Vec<f64> = self
            .energy
            .iter()
            .rev()
            .scan(0.0, |sum, v| {
                *sum += v;
                Some(*sum / all.max(f64::MIN_POSITIVE))
            })
            .collect();
        left.reverse();
        left.push(0.0);
        left
    }

    /// The two weights of rank `rank` of a weight that is stored as `layout` says.
    pub fn factors(&self, (stored, layout): (&[f32], &WeightMatrix), rank: usize) -> Factors {
        let (rows, columns) = (layout.rows, layout.columns());
        let directions = self.directions.get(.., ..rank);
        let mut inner = Mat::<f32>::zeros(rank, columns);
        for at in (0..rows).step_by(ROWS) {
            let part = at..(at + ROWS).min(rows);
            let rows = layout.some_rows(stored, part.clone());
            inner += directions.get(part, ..).transpose()
                * MatRef::from_row_major_slice(&rows, rows.len() / columns, columns);
        }
        // Both get the root of how much a direction varies: so neither has rows or columns much larger than its others, which
        // rounding and training mind.
        let scale: Vec<f32> = self.energy[..rank].iter().map(|v| v.powf(0.25) as f32).collect();
        let inverse = |v: f32| if v > 0.0 { 1.0 / v } else { 0.0 };
        let down: Vec<f32> =
            (0..rank * columns).map(|i| inner[(i / columns, i % columns)] * inverse(scale[i / columns])).collect();
        let up: Vec<f32> = (0..rows * rank).map(|i| directions[(i / rank, i % rank)] * scale[i % rank]).collect();
        Factors { down: layout.with_rows(rank).stored(&down), up: layout.with_columns(rank).stored(&up) }
    }
}

/// The lower triangle `L` of `L Lᵀ`, which is `h` and a little more: directions in which inputs hardly vary are not to be trusted.
fn root(h: &[f64], d: usize) -> Result<Mat<f64>> {
    const DAMPING: f64 = 0.01;
    let mean = (0..d).map(|i| h[i * d + i]).sum::<f64>() / d.max(1) as f64;
    let damping = if mean > 0.0 { mean * DAMPING } else { 1.0 };
    let h = Mat::from_fn(d, d, |i, j| h[i * d + j] + if i == j { damping } else { 0.0 });
    let root = h.llt(Side::Lower).map_err(|_| Error::unsupported("second moments that are not those of numbers"))?;
    Ok(root.L().to_owned())
}

/// The eigenvalues of a symmetric matrix without negative ones, the largest first, and the vectors of the first `most`.
fn eigen(m: MatRef<f64>, most: usize) -> Result<(Vec<f64>, Mat<f64>)> {
    let n = m.nrows();
    let found = m.self_adjoint_eigen(Side::Lower).map_err(|_| Error::unsupported("eigenvalues that don't converge"))?;
    let (values, vectors) = (found.S(), found.U());
    let energy = (0..n).rev().map(|i| values[i].max(0.0)).collect();
    Ok((energy, Mat::from_fn(n, most, |i, k| vectors[(i, n - 1 - k)])))
}

fn wide(rows: &[f32], columns: usize) -> Mat<f64> {
    Mat::from_fn(rows.len() / columns.max(1), columns, |i, j| f64::from(rows[i * columns + j]))
}

fn narrow(m: MatRef<f64>) -> Mat<f32> {
    Mat::from_fn(m.nrows(), m.ncols(), |i, j| m[(i, j)] as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern.
    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| (((i + 1) * (seed * 2 + 7919) * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    /// The product of the factors as a matrix `[rows, columns]`.
    fn product(f: &Factors, layout: &WeightMatrix, rank: usize) -> Vec<f32> {
        let (up, down) = (layout.with_columns(rank).matrix(&f.up), layout.with_rows(rank).matrix(&f.down));
        let columns = layout.columns();
        let at = |i: usize| (0..rank).map(|k| up[i / columns * rank + k] * down[k * columns + i % columns]).sum();
        (0..layout.rows * columns).map(at).collect()
    }

    /// The mean square of the outputs of `w` for inputs with the moments `h`.
    fn energy(w: &[f32], h: &[f64], d: usize) -> f64 {
        let of =
            |row: &[f32]| -> f64 { (0..d * d).map(|i| f64::from(row[i / d]) * h[i] * f64::from(row[i % d])).sum() };
        w.chunks(d).map(of).sum()
    }

    fn moments(d: usize) -> Vec<f64> {
        let x = numbers(3 * d * d, 5);
        let at =
            |i: usize| x.chunks(d).map(|x| f64::from(x[i / d] * x[i % d]) * (1 + i % d * (i / d)) as f64).sum::<f64>();
        // Some inputs vary far more than others.
        (0..d * d).map(|i| at(i) / (3 * d) as f64).collect()
    }

    #[test]
    fn what_is_missed_is_what_was_said_on_both_sides() {
        for (rows, columns) in [(12, 20), (20, 12)] {
            let (w, layout, h) = (numbers(rows * columns, 1), WeightMatrix::dense(rows, columns), moments(columns));
            let mut damped = h.clone();
            let mean = (0..columns).map(|i| h[i * columns + i]).sum::<f64>() / columns as f64;
            (0..columns).for_each(|i| damped[i * columns + i] += 0.01 * mean);
            let spectrum = Spectrum::of((&w, &layout), Some(&h), 12, &|| Ok(())).unwrap();
            let missed = spectrum.missed();
            for rank in [1, 5, 11, 12] {
                let made = product(&spectrum.factors((&w, &layout), rank), &layout, rank);
                let off: Vec<f32> = w.iter().zip(&made).map(|(a, b)| a - b).collect();
                let share = energy(&off, &damped, columns) / energy(&w, &damped, columns);
                assert!((share - missed[rank]).abs() < 1e-5, "{rows}x{columns}, rank {rank}: {share} {}", missed[rank]);
            }
        }
    }

    #[test]
    fn inputs_that_vary_more_count_more() {
        let (w, layout, h) = (numbers(240, 3), WeightMatrix::dense(12, 20), moments(20));
        let error = |h_of: Option<&[f64]>| {
            let made = product(
                &Spectrum::of((&w, &layout), h_of, 6, &|| Ok(())).unwrap().factors((&w, &layout), 4),
                &layout,
                4,
            );
            energy(&w.iter().zip(&made).map(|(a, b)| a - b).collect::<Vec<_>>(), &h, 20)
        };
        assert!(error(Some(&h)) < 0.9 * error(None), "{} {}", error(Some(&h)), error(None));
    }

    #[test]
    fn a_weight_of_low_rank_is_found_again() {
        let (a, b) = (numbers(16 * 2, 1), numbers(2 * 10, 2));
        let w: Vec<f32> = (0..160).map(|i| (0..2).map(|k| a[i / 10 * 2 + k] * b[k * 10 + i % 10]).sum()).collect();
        let layout = WeightMatrix::dense(16, 10);
        let spectrum = Spectrum::of((&w, &layout), None, 5, &|| Ok(())).unwrap();
        assert!(spectrum.missed()[2] < 1e-9);
        let made = product(&spectrum.factors((&w, &layout), 2), &layout, 2);
        assert!(w.iter().zip(&made).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn zeros_have_factors() {
        let layout = WeightMatrix::dense(4, 6);
        let f = Spectrum::of((&[0.0; 24], &layout), None, 2, &|| Ok(())).unwrap().factors((&[0.0; 24], &layout), 2);
        assert!(f.up.iter().chain(&f.down).all(|v| v.is_finite()));
    }
}
