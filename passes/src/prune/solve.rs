//! Which elements of a layer to do without, and what the others become so that its output stays: the optimal brain
//! surgeon (Hassibi and Stork, 1993) layer by layer (Frantar et al., 2022), many elements at a time.
//!
//! Of a row `w` the mean squared error at the output is `energy - 2 w g + w H w`, with `H` the second moments of the
//! inputs and `g` those of inputs and wanted output. On a support, the least is at `w = H⁻¹ g`, and doing without the
//! element `j` as well costs `w_j² / H⁻¹_jj`. Of a layer that is small enough, elements go one at a time, row by row, and
//! those are chosen of all rows that cost least. Of others they go in steps, a fifth of those left at a time, and after each
//! step what stays is solved for again.

use super::mask::{Groups, lowest};
use crate::moments::{BLOCK, add_products};
use compress_compiler::{
    error::{Error, Result},
    pass::Stopped,
};
use rayon::prelude::*;
use std::{borrow::Cow, collections::BTreeMap};

/// The most multiplications for which elements go one at a time.
const SINGLE_WORK: f64 = 5e9;

/// Elements that go before the inverse of those left is made anew.
const TOGETHER: usize = 64;

/// Points of a curve of elements that go one at a time.
const POINTS: usize = 64;

/// The share of the elements that stays in each step.
const STEP: f64 = 0.8;

/// The most multiplications that a step before the last may take.
const STEP_WORK: f64 = 2e10;

/// The squared error at the outputs of rows that share their inputs.
pub struct Rows {
    /// Inputs of a row.
    pub columns: usize,
    /// Second moments of the inputs, positive definite: `columns` times `columns`.
    pub h: Vec<f64>,
    /// Those of inputs and wanted output, row by row.
    pub g: Vec<f64>,
    /// Those of the wanted output.
    pub energy: Vec<f64>,
}

/// A layer: rows that share their inputs, and others with inputs of their own (groups of a convolution).
pub struct Problem<'a> {
    /// All of the same number of rows and columns.
    pub parts: Vec<Rows>,
    /// Asked now and then; when it says so, what is being solved ends as interrupted.
    pub stopped: &'a Stopped<'a>,
}

/// A layer with zeros.
pub struct Sparse {
    /// Its matrix.
    pub values: Vec<f64>,
    /// Its squared error at the output.
    pub error: f64,
}

impl Problem<'_> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|p| p.g.len()).sum()
    }

    /// The most zeros there may be: one element stays.
    pub fn most_zeros(&self) -> usize {
        self.len().saturating_sub(1)
    }

    /// The least squared error at the outputs with so many zeros, from few to the most: `(zeros, error)`.
    ///
    /// # Errors
    /// Interrupted.
    pub fn curve(&self) -> Result<Vec<(usize, f64)>> {
        let mut curve = vec![];
        if self.work(self.len()) > SINGLE_WORK {
            self.steps(self.most_zeros(), None, &mut |zeros, s| curve.push((zeros, s.error)))?;
            return Ok(curve);
        }
        let mut error = self.solve(&vec![true; self.len()])?.0.error;
        let order = self.order(None)?;
        let step = order.len().div_ceil(POINTS);
        for (i, gone) in order[..self.most_zeros()].iter().enumerate() {
            error += gone.adds;
            if (i + 1) % step == 0 || i + 1 == self.most_zeros() {
                curve.push((i + 1, error));
            }
        }
        Ok(curve)
    }

    /// The layer with so many zeros.
    ///
    /// # Errors
    /// Interrupted.
    pub fn prune(&self, zeros: usize, groups: Option<&Groups>) -> Result<Sparse> {
        let zeros = zeros.min(self.most_zeros());
        if self.work(self.len()) > SINGLE_WORK {
            return self.steps(zeros, groups, &mut |_, _| {});
        }
        let mut keep = vec![true; self.len()];
        self.order(groups)?.iter().take(zeros).for_each(|gone| keep[gone.element] = false);
        Ok(self.solve(&keep)?.0)
    }

    fn check(&self) -> Result<()> {
        if (self.stopped)() { Err(Error::interrupted()) } else { Ok(()) }
    }

    /// All elements that may go, in the order in which they go.
    fn order(&self, groups: Option<&Groups>) -> Result<Vec<Gone>> {
        let mut order = vec![];
        let mut done = 0;
        for part in &self.parts {
            let whole = Inverse::of(&part.h, part.columns, &(0..part.columns).collect::<Vec<_>>());
            let inverse = whole.matrix(part.columns);
            let rows = part.g.par_chunks(part.columns).enumerate();
            let row = |(r, g): (usize, &[f64])| {
                self.check()?;
                Ok(leave(&inverse, whole.solve(g), done + r * part.columns, groups))
            };
            order.extend(rows.map(row).collect::<Result<Vec<_>>>()?.concat());
            done += part.g.len();
        }
        order.sort_by(|a, b| a.costs.total_cmp(&b.costs));
        Ok(order)
    }

    fn steps(&self, zeros: usize, groups: Option<&Groups>, seen: &mut dyn FnMut(usize, &Sparse)) -> Result<Sparse> {
        let all = self.len();
        let (mut now, mut costs) = self.solve(&vec![true; all])?;
        let mut left = all;
        while left > all - zeros {
            left = ((left as f64 * STEP) as usize).max(all - zeros);
            // Most of the work is in the first steps, and least depends on them.
            let early = left > all / 2 && groups.is_none();
            if left > all - zeros && (early || self.work(left) > STEP_WORK) {
                continue;
            }
            let keep = lowest(&costs, all - left, groups);
            (now, costs) = self.solve(&keep)?;
            seen(all - left, &now);
        }
        Ok(now)
    }

    /// About how many multiplications it takes to solve for so many elements.
    fn work(&self, left: usize) -> f64 {
        let rows: usize = self.parts.iter().map(|p| p.energy.len()).sum();
        rows as f64 * (left as f64 / rows as f64).powi(3) / 3.0
    }

    /// The best values on a support, and what it costs to do without each as well.
    ///
    /// # Errors
    /// Interrupted.
    pub fn solve(&self, keep: &[bool]) -> Result<(Sparse, Vec<f64>)> {
        let all = self.len();
        let mut now = Sparse { values: vec![0.0; all], error: 0.0 };
        // What is gone already goes first.
        let mut costs = vec![-1.0; all];
        let mut done = 0;
        for part in &self.parts {
            let place = done..done + part.g.len();
            done = place.end;
            let (values, costs) = (&mut now.values[place.clone()], &mut costs[place.clone()]);
            now.error += part.solve(&keep[place], values, costs, &|| self.check())?;
        }
        Ok((now, costs))
    }

    /// Lets sets of inputs go one after the other, the one that costs least first, and the others make up for each: what
    /// each adds to the squared error of all rows, but no less than any before it.
    ///
    /// # Errors
    /// Interrupted.
    pub fn leave(&self, sets: &[Vec<usize>]) -> Result<Vec<f64>> {
        let mut sum = vec![0.0; sets.len()];
        for part in &self.parts {
            let costs = part.leave(sets, &|| self.check())?;
            sum.iter_mut().zip(costs).for_each(|(sum, v)| *sum += v);
        }
        Ok(sum)
    }
}

/// Fails when the user asked to stop.
type Check<'a> = dyn Fn() -> Result<()> + Sync + 'a;

impl Rows {
    /// See [`Problem::leave`].
    fn leave(&self, sets: &[Vec<usize>], check: &Check) -> Result<Vec<f64>> {
        let n = self.columns;
        let all: Vec<usize> = (0..n).collect();
        let whole = Inverse::of(&self.h, n, &all);
        let mut a = whole.matrix(n);
        let mut rows: Vec<Vec<f64>> = self.g.par_chunks(n).map(|g| whole.solve(g)).collect();
        let mut costs = vec![0.0; sets.len()];
        let mut left: Vec<usize> = (0..sets.len()).collect();
        let mut most: f64 = 0.0;
        while !left.is_empty() {
            check()?;
            let block = |set: &[usize]| {
                let values: Vec<f64> =
                    set.iter().flat_map(|i| set.iter().map(|j| a[*i * n + j]).collect::<Vec<_>>()).collect();
                Inverse::of(&values, set.len(), &(0..set.len()).collect::<Vec<_>>())
            };
            let cost = |set: &Vec<usize>| {
                let block = block(set);
                let of = |w: &Vec<f64>| {
                    let w: Vec<f64> = set.iter().map(|i| w[*i]).collect();
                    dot(&w, &block.solve(&w))
                };
                rows.iter().map(of).sum::<f64>()
            };
            let each: Vec<f64> = left.par_iter().map(|s| cost(&sets[*s])).collect();
            let Some(next) = (0..left.len()).min_by(|i, j| each[*i].total_cmp(&each[*j])) else { break };
            most = most.max(each[next]);
            let goes = left.swap_remove(next);
            costs[goes] = most;
            let set = &sets[goes];
            let block = block(set);
            let across: Vec<Vec<f64>> = set.iter().map(|i| a[i * n..(i + 1) * n].to_vec()).collect();
            let make_up = |row: &mut [f64]| {
                let own: Vec<f64> = set.iter().map(|i| row[*i]).collect();
                block.solve(&own).iter().zip(&across).for_each(|(factor, from)| subtract(row, *factor, from));
            };
            rows.par_iter_mut().for_each(|w| make_up(w));
            a.par_chunks_mut(n).for_each(make_up);
            // Rounding must not turn an inverse around.
            (0..n).for_each(|i| a[i * n + i] = a[i * n + i].max(f64::MIN_POSITIVE));
        }
        Ok(costs)
    }

    /// What the squared error of all rows of `weight` grows by without each of these sets of inputs, when nothing makes up
    /// for it.
    pub fn alone(&self, weight: &[f64], sets: &[Vec<usize>]) -> Vec<f64> {
        let n = self.columns;
        let rows = |i: usize, j: usize| weight.chunks(n).map(|w| w[i] * w[j]).sum::<f64>();
        let cost = |set: &Vec<usize>| {
            let of = |i: &usize| set.iter().map(|j| self.h[i * n + j] * rows(*i, *j)).sum::<f64>();
            set.iter().map(of).sum()
        };
        sets.par_iter().map(cost).collect()
    }

    /// Solves every row on its support; returns their error.
    fn solve(&self, keep: &[bool], values: &mut [f64], costs: &mut [f64], check: &Check) -> Result<f64> {
        let n = self.columns;
        let support = |keep: &[bool]| (0..n).filter(|c| keep[*c]).collect::<Vec<_>>();
        // Before anything is gone, and where only whole columns and rows are, rows have the same inverse.
        let mut rows = keep.chunks(n).filter(|row| row.contains(&true));
        let first = rows.next().filter(|first| rows.all(|row| row == *first));
        let shared = first.map(|row| Inverse::of(&self.h, n, &support(row)));
        let row = |r: usize, keep: &[bool], values: &mut [f64], costs: &mut [f64]| {
            let support = support(keep);
            check()?;
            if support.is_empty() {
                return Ok(self.energy[r]);
            }
            let g = &self.g[r * n..(r + 1) * n];
            let own = shared.is_none().then(|| Inverse::of(&self.h, n, &support));
            let Some(inverse) = shared.as_ref().or(own.as_ref()) else { return Ok(self.energy[r]) };
            let solved = inverse.solve(&support.iter().map(|c| g[*c]).collect::<Vec<_>>());
            for ((c, w), diagonal) in support.iter().zip(solved).zip(&inverse.diagonal) {
                values[*c] = w;
                costs[*c] = w * w / diagonal;
            }
            Ok(self.energy[r] - values.iter().zip(g).map(|(w, g)| w * g).sum::<f64>())
        };
        let rows = keep.par_chunks(n).zip(values.par_chunks_mut(n)).zip(costs.par_chunks_mut(n));
        let errors: Result<Vec<f64>> =
            rows.enumerate().map(|(r, ((keep, values), costs))| row(r, keep, values, costs)).collect();
        Ok(errors?.iter().sum())
    }
}

/// An element that goes.
#[derive(Clone)]
struct Gone {
    element: usize,
    /// What it adds to the squared error when it goes after those of its row before it.
    adds: f64,
    /// The same, but no less than that of any before it.
    costs: f64,
}

/// The elements of a row in the order in which they go, the one that costs least first, and the others make up for each.
///
/// When an element goes, the inverse of those left loses the product of a vector with itself. Some of these vectors are
/// subtracted together, by one product of matrices; until then only the diagonal and the row of the element that goes are
/// told what is missing. Of the inverse, which is symmetric, only what stands on and right of the diagonal is looked at.
fn leave(inverse: &[f64], mut w: Vec<f64>, first: usize, groups: Option<&Groups>) -> Vec<Gone> {
    let mut a = Cow::Borrowed(inverse);
    let mut at: Vec<usize> = (first..first + w.len()).collect();
    let mut out: Vec<Gone> = vec![];
    let mut lost = BTreeMap::new();
    loop {
        let n = at.len();
        let mut diagonal: Vec<f64> = (0..n).map(|i| a[i * n + i]).collect();
        let (mut stays, mut vectors) = (vec![true; n], Vec::with_capacity(TOGETHER * n));
        for _ in 0..TOGETHER {
            let cost = |i: &usize| w[*i] * w[*i] / diagonal[*i];
            let group = |i: usize| groups.map(|g| g.of[at[i]]);
            let may = |i: &usize| groups.is_none_or(|g| lost.get(&group(*i)).is_none_or(|n| *n < g.zeros));
            let left = (0..n).filter(|i| stays[*i] && may(i));
            let Some(goes) = left.min_by(|i, j| cost(i).total_cmp(&cost(j))) else { return out };
            *lost.entry(group(goes)).or_insert(0) += 1;
            let adds = cost(&goes);
            let costs = out.last().map_or(adds, |before| before.costs.max(adds));
            out.push(Gone { element: at[goes], adds, costs });
            stays[goes] = false;
            let mut vector: Vec<f64> = (0..n).map(|i| a[goes.min(i) * n + goes.max(i)]).collect();
            for before in vectors.chunks(n) {
                subtract(&mut vector, before[goes], before);
            }
            let pivot = diagonal[goes];
            let share = w[goes] / pivot;
            subtract(&mut w, share, &vector);
            let root = pivot.sqrt();
            vector.iter_mut().for_each(|v| *v /= root);
            // Rounding must not turn an inverse around.
            diagonal.iter_mut().zip(&vector).for_each(|(d, v)| *d = (*d - v * v).max(f64::MIN_POSITIVE));
            vectors.extend(vector);
        }
        let stay: Vec<usize> = (0..n).filter(|i| stays[*i]).collect();
        if stay.is_empty() {
            return out;
        }
        let of = |row: &[f64]| stay.iter().map(|i| row[*i]).collect::<Vec<f64>>();
        let vectors: Vec<f64> = vectors.chunks(n).flat_map(of).collect();
        let negative: Vec<f64> = vectors.iter().map(|v| -v).collect();
        (w, at) = (of(&w), stay.iter().map(|i| at[*i]).collect());
        let (left, a) = (stay.len(), a.to_mut());
        let places = stay.iter().flat_map(|i| stay.iter().map(move |j| i * n + j));
        places.enumerate().for_each(|(to, from)| a[to] = a[from]);
        a.truncate(left * left);
        for (i, rows) in a.chunks_mut(BLOCK * left).enumerate() {
            add_products(rows, (&negative, left), (&vectors, left), i * BLOCK, true);
        }
    }
}

fn subtract(from: &mut [f64], factor: f64, vector: &[f64]) {
    from.iter_mut().zip(vector).for_each(|(to, v)| *to -= factor * v);
}

/// The inverse of a positive definite matrix, by its Cholesky factor.
struct Inverse {
    /// The inverse of the factor: row by row, its lower triangle.
    factor: Vec<f64>,
    /// The diagonal of the inverse of the matrix.
    diagonal: Vec<f64>,
}

impl Inverse {
    /// That of the rows and columns `support` of `h`, which has `n`.
    fn of(h: &[f64], n: usize, support: &[usize]) -> Self {
        let s = support.len();
        let mut l = vec![0.0; s * s];
        for i in 0..s {
            let (above, rest) = l.split_at_mut(i * s);
            let row = &mut rest[..=i];
            let from = &h[support[i] * n..(support[i] + 1) * n];
            for j in 0..i {
                let other = &above[j * s..j * s + j + 1];
                row[j] = (from[support[j]] - dot(&row[..j], &other[..j])) / other[j];
            }
            // Rounding may leave less than nothing of an input that others determine.
            let left = from[support[i]] - dot(&row[..i], &row[..i]);
            row[i] = left.max(from[support[i]].abs() * 1e-12).max(f64::MIN_POSITIVE).sqrt();
        }
        // Row i of the inverse of L is made of those above it.
        let mut sum = vec![0.0; s];
        let mut diagonal = vec![0.0; s];
        for i in 0..s {
            let (above, rest) = l.split_at_mut(i * s);
            let row = &mut rest[..=i];
            let sum = &mut sum[..i];
            sum.fill(0.0);
            for (k, factor) in row[..i].iter().enumerate() {
                for (to, v) in sum.iter_mut().zip(&above[k * s..=k * s + k]) {
                    *to += factor * v;
                }
            }
            let scale = 1.0 / row[i];
            row[i] = scale;
            for (to, v) in row.iter_mut().zip(sum) {
                *to = -*v * scale;
            }
            for (d, v) in diagonal.iter_mut().zip(&*row) {
                *d += v * v;
            }
        }
        Self { factor: l, diagonal }
    }

    /// The inverse itself, of `s` rows.
    fn matrix(&self, s: usize) -> Vec<f64> {
        let mut out = vec![0.0; s * s];
        // The transpose of the factor's inverse times that: of a row, the first elements of all rows below it.
        out.par_chunks_mut(s).enumerate().for_each(|(i, to)| {
            for row in self.factor.chunks(s).enumerate().skip(i).map(|(k, row)| &row[..=k]) {
                to.iter_mut().zip(row).for_each(|(to, v)| *to += row[i] * v);
            }
        });
        out
    }

    /// The inverse times a vector.
    fn solve(&self, g: &[f64]) -> Vec<f64> {
        let s = g.len();
        let mut out = vec![0.0; s];
        for i in 0..s {
            let row = &self.factor[i * s..=i * s + i];
            let middle = dot(row, &g[..=i]);
            for (to, v) in out.iter_mut().zip(row) {
                *to += v * middle;
            }
        }
        out
    }
}

/// The product of two vectors, summed in lanes, so that the compiler can keep them in registers.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a.zip(b) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests;
