//! The choices of a [`Maker`]: numbers, tensors, and values that fit.

use crate::maker::{Entrant, Maker, V};
use compress_compiler::tensor::{DType, Tensor};
use rand::Rng;
use std::{
    f32::consts::{FRAC_1_SQRT_2, SQRT_2},
    ops::RangeInclusive,
};

impl Maker {
    // --- chance ---

    /// Whether something of probability `p` happens.
    pub fn chance(&mut self, p: f64) -> bool {
        self.rng.random_bool(p)
    }

    /// A number from `low` to `high`.
    pub fn int(&mut self, low: i64, high: i64) -> i64 {
        self.rng.random_range(low..=high)
    }

    /// A size from `low` to `high`.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        self.rng.random_range(low..=high)
    }

    /// One of some things.
    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())].clone()
    }

    /// A small shape.
    pub fn any_shape(&mut self, rank: usize) -> Vec<usize> {
        let sizes = self.sizes;
        (0..rank).map(|_| self.one(sizes)).collect()
    }

    /// The order of `n` things.
    pub fn order(&mut self, n: usize) -> Vec<i64> {
        let mut order: Vec<i64> = (0..n as i64).collect();
        (1..n).for_each(|i| order.swap(i, self.rng.random_range(0..=i)));
        order
    }

    /// An axis of `rank` axes, perhaps counted from the end.
    pub fn axis(&mut self, rank: usize) -> i64 {
        let r = rank as i64;
        self.int(-r, r - 1)
    }

    // --- tensors ---

    /// Elements of `dtype` from `low` to `high`: for floats, integers among them now and then.
    pub fn filled(&mut self, dtype: DType, shape: &[usize], low: f32, high: f32) -> Tensor {
        let n = shape.iter().product();
        if dtype.is_float() {
            let whole = self.chance(0.25) && (high - low) >= 2.0;
            let mut draw = || self.rng.random_range(low..=high);
            let values: Vec<f32> = (0..n).map(|_| if whole { draw().trunc() } else { draw() }).collect();
            return Tensor::floats(dtype, shape, &values);
        }
        let (least, most) = dtype.int_range().unwrap_or((0, 1));
        let (low, high) = ((low as i64).max(least), (high as i64).min(most));
        let values: Vec<i64> = (0..n).map(|_| self.int(low, high.max(low))).collect();
        Tensor::ints(dtype, shape, &values)
    }

    /// A tensor as models have them: often numbers like any, often all the same.
    pub fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        if self.chance(0.3) {
            let v = self.one(&[0.0, 1.0, 1.0, -1.0, 0.5, 2.0, 3.0, FRAC_1_SQRT_2, SQRT_2, 0.044715]);
            let n: usize = shape.iter().product();
            return match dtype.is_float() {
                true => Tensor::floats(dtype, shape, &vec![v; n]),
                false => {
                    let (low, high) = dtype.int_range().unwrap_or((0, 1));
                    Tensor::ints(dtype, shape, &vec![(v as i64).clamp(low, high); n])
                }
            };
        }
        self.filled(dtype, shape, -3.0, 3.0)
    }

    // --- picking ---

    /// The elements of a value.
    pub fn at(&self, v: V) -> &Tensor {
        &self.values[v].known.tensor
    }

    pub fn shape(&self, v: V) -> Vec<usize> {
        self.at(v).shape().to_vec()
    }

    pub fn rank(&self, v: V) -> usize {
        self.at(v).shape().len()
    }

    pub fn dtype(&self, v: V) -> DType {
        self.at(v).dtype()
    }

    /// One of the values that pass `test`, late ones rather than early ones, computed ones rather than constants.
    pub fn pick(&mut self, test: impl Fn(&Entrant) -> bool) -> Option<V> {
        self.pick_any(|v| !v.known.tensor.is_empty() && test(v))
    }

    /// As [`Maker::pick`], among values without elements too.
    pub fn pick_any(&mut self, test: impl Fn(&Entrant) -> bool) -> Option<V> {
        let fits: Vec<V> = (0..self.values.len()).filter(|v| test(&self.values[*v])).collect();
        let variable: Vec<V> = fits.iter().copied().filter(|v| !self.values[*v].constant).collect();
        let from = if variable.is_empty() || self.rng.random_bool(0.1) { fits } else { variable };
        let last = from.len().checked_sub(1)?;
        let back = if self.rng.random_bool(0.6) { self.size(0, last.min(2)) } else { self.size(0, last) };
        Some(from[last - back])
    }

    /// A value of type `dtype` and any rank among `ranks`; a new one if need be.
    pub fn of(&mut self, dtype: DType, ranks: RangeInclusive<usize>) -> V {
        let fits = |v: &Entrant| {
            let t = &v.known.tensor;
            t.dtype() == dtype && ranks.contains(&t.shape().len()) && v.known.is_tame()
        };
        if !self.rng.random_bool(0.08)
            && let Some(v) = self.pick(fits)
        {
            return v;
        }
        let rank = self.size(*ranks.start(), (*ranks.end()).min(5));
        let shape = self.any_shape(rank);
        self.source(dtype, &shape)
    }

    /// A float value, `f32` nearly always.
    pub fn float(&mut self, ranks: RangeInclusive<usize>) -> V {
        let other = |v: &Entrant| {
            let t = &v.known.tensor;
            matches!(t.dtype(), DType::F16 | DType::F64 | DType::BF16) && ranks.contains(&t.shape().len())
        };
        match self.rng.random_bool(0.15).then(|| self.pick(other)).flatten() {
            Some(v) => v,
            None => self.of(DType::F32, ranks),
        }
    }

    /// An `f32` value of this rank: one that there is, or one reshaped.
    pub fn x(&mut self, rank: usize) -> V {
        let fits = |v: &Entrant| v.known.tensor.dtype() == DType::F32 && v.known.is_tame();
        let same = self.pick(|v| fits(v) && v.known.tensor.shape().len() == rank);
        match same {
            Some(v) if self.chance(0.8) => return v,
            _ => {}
        }
        let other = self.pick(|v| fits(v) && v.known.tensor.len() >= 4);
        match other {
            Some(v) if self.chance(0.4) && rank > 0 => {
                let mut shape = vec![1; rank];
                let mut rest = self.at(v).len();
                for s in shape.iter_mut().take(rank - 1) {
                    let factors: Vec<usize> = (1..=6).filter(|f| rest.is_multiple_of(*f)).collect();
                    *s = self.one(&factors);
                    rest /= *s;
                }
                shape[rank - 1] = rest;
                self.reshape(v, &shape).unwrap_or_else(|| self.fresh(rank))
            }
            _ => self.fresh(rank),
        }
    }

    fn fresh(&mut self, rank: usize) -> V {
        let shape = self.any_shape(rank);
        let tensor = self.filled(DType::F32, &shape, -3.0, 3.0);
        self.input(tensor)
    }

    /// A value whose elements no rewriting can change.
    pub fn exact(&mut self, dtype: DType, ranks: RangeInclusive<usize>) -> V {
        let fits = |v: &Entrant| {
            let t = &v.known.tensor;
            t.dtype() == dtype && ranks.contains(&t.shape().len()) && v.known.exact && v.known.is_tame()
        };
        self.pick(fits).unwrap_or_else(|| {
            let rank = self.size(*ranks.start(), (*ranks.end()).min(4));
            let shape = self.any_shape(rank);
            let tensor = self.filled(dtype, &shape, -3.0, 3.0);
            self.input(tensor)
        })
    }

    /// An `f32` value with all elements from `low` to `high`: clipped if need be.
    pub fn within(&mut self, low: f32, high: f32) -> Option<V> {
        let inside = |t: &Tensor| t.dtype() == DType::F32 && t.all_f32(|v| v >= low && v <= high) == Some(true);
        if self.chance(0.3)
            && let Some(v) = self.pick(|v| inside(&v.known.tensor) && inside(&v.known.shadow) && !v.constant)
        {
            return Some(v);
        }
        let x = self.of(DType::F32, 0..=5);
        let limits = [low, high].map(|v| Some(self.shared(Tensor::f32(&[], &[v]))));
        self.op("Clip", &[Some(x), limits[0], limits[1]], &[])
    }

    /// A weight: a constant of this shape, another value now and then.
    pub fn weight(&mut self, dtype: DType, shape: &[usize]) -> V {
        let fits =
            |v: &Entrant| v.known.tensor.dtype() == dtype && v.known.tensor.shape() == shape && v.known.is_tame();
        if self.rng.random_bool(0.15)
            && let Some(v) = self.pick(fits)
        {
            return v;
        }
        let tensor = self.tensor(dtype, shape);
        if self.chance(0.08) { self.input(tensor) } else { self.constant(tensor) }
    }

    /// Perhaps a weight.
    pub fn maybe_weight(&mut self, p: f64, dtype: DType, shape: &[usize]) -> Option<V> {
        if self.chance(p) { Some(self.weight(dtype, shape)) } else { None }
    }

    /// What broadcasts with `x` to the shape of `x`.
    pub fn beside(&mut self, x: V) -> V {
        let (dtype, shape) = (self.dtype(x), self.shape(x));
        let fits =
            |v: &Entrant| v.known.tensor.dtype() == dtype && v.known.tensor.shape() == shape && v.known.is_tame();
        if self.chance(0.35)
            && let Some(v) = self.pick(fits)
        {
            return v;
        }
        let shape: Vec<usize> = match self.int(0, 4) {
            0 => vec![],
            1 => vec![1; shape.len()],
            2 => shape[self.size(0, shape.len())..].to_vec(),
            3 => shape.iter().map(|n| if self.rng.random_bool(0.5) { 1 } else { *n }).collect(),
            _ => shape,
        };
        self.weight(dtype, &shape)
    }
}
