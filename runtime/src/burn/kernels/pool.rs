//! MaxPool, AveragePool, LpPool, their global forms, and MaxUnpool.
//!
//! A window over several axes is one over each in turn: a maximum of maxima, a sum of sums. That
//! is how the CPU does it here, for any number of axes. Other devices, and training, have kernels
//! of their own for the frequent cases.

use super::{Args, conv::output, pool_device};
use crate::{
    burn::{
        host::{self, IntArray, check_host},
        tensor::{Float, Value, check_size},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        max_unpool::MaxUnpool,
        pool::{GlobalPool, Pool, PoolKind},
        reduce::ReduceKind,
    },
    tensor::DType,
    value::Dim,
};
use rayon::prelude::*;
use std::ops::{Add, Div, Range};

/// A window along one axis.
struct Axis {
    size: usize,
    out: usize,
    taps: usize,
    stride: usize,
    dilation: usize,
    begin: usize,
    end: usize,
}

impl Axis {
    /// The taps that lie in `range`, counted from the start of the padding, at a position.
    fn taps(&self, position: usize, range: Range<usize>) -> Range<usize> {
        let start = position.saturating_mul(self.stride);
        let before = |at: usize| at.saturating_sub(start).div_ceil(self.dilation).min(self.taps);
        before(range.start)..before(range.end)
    }

    /// The elements that a position sees.
    fn seen(&self, position: usize) -> impl Iterator<Item = usize> {
        let start = position.saturating_mul(self.stride);
        let (begin, dilation) = (self.begin, self.dilation);
        self.taps(position, begin..begin + self.size).map(move |t| start + t * dilation - begin)
    }

    /// How many taps an average is over: those in the input, or also those in the padding, but
    /// never those beyond it (the overhang of ceil_mode).
    fn counted(&self, position: usize, padding: bool) -> usize {
        let all = self.begin + self.size + self.end;
        self.taps(position, if padding { 0..all } else { self.begin..self.begin + self.size }).len()
    }

    /// Folds what each position sees along an axis with `inner` elements behind each entry.
    fn fold<T: Copy + Send + Sync>(
        &self,
        x: &[T],
        inner: usize,
        start: T,
        f: impl Fn(T, T) -> T + Sync,
        finish: impl Fn(T, usize) -> T + Sync,
    ) -> Vec<T> {
        let mut y = vec![start; x.len() / self.size * self.out];
        y.par_chunks_mut(self.out * inner).zip(x.par_chunks(self.size * inner)).for_each(|(y, x)| {
            for (position, to) in y.chunks_mut(inner).enumerate() {
                for at in self.seen(position) {
                    for (t, v) in to.iter_mut().zip(&x[at * inner..][..inner]) {
                        *t = f(*t, *v);
                    }
                }
                to.iter_mut().for_each(|t| *t = finish(*t, position));
            }
        });
        y
    }
}

/// Folds over all axes, one after the other. `finish` also gets the axis.
fn fold<T: Copy + Send + Sync>(
    axes: &[Axis],
    mut x: Vec<T>,
    start: T,
    f: impl Fn(T, T) -> T + Sync,
    finish: impl Fn(T, &Axis, usize) -> T + Sync,
) -> Result<Vec<T>> {
    for (i, axis) in axes.iter().enumerate() {
        let inner: usize = axes[i + 1..].iter().map(|a| a.size).product();
        check_size(&[x.len() / axis.size, axis.out])?;
        x = axis.fold(&x, inner, start, &f, |v, position| finish(v, axis, position));
    }
    Ok(x)
}

/// What pools compute with.
trait Real: Copy + Send + Sync + PartialOrd + Add<Output = Self> + Div<Output = Self> {
    const LEAST: Self;
    const ZERO: Self;
    fn count(n: usize) -> Self;
    fn power(self, p: f64) -> Self;
}

macro_rules! real {
    ($($t:ty),*) => {$(
        impl Real for $t {
            const LEAST: Self = <$t>::NEG_INFINITY;
            const ZERO: Self = 0.0;
            fn count(n: usize) -> Self { n as $t }
            fn power(self, p: f64) -> Self { self.abs().powf(p as $t) }
        }
    )*};
}
real!(f32, f64);

/// The pool, and the flat indices of maxima if asked for.
fn on_host<T: Real>(op: &Pool, axes: &[Axis], x: Vec<T>) -> Result<(Vec<T>, Option<Vec<i64>>)> {
    let as_is = |v, _: &Axis, _| v;
    match op.kind {
        PoolKind::Max if op.indices => {
            // Of equal elements the first is found.
            let better = |a: (T, i64), b: (T, i64)| {
                if a.1 < 0 || b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) { b } else { a }
            };
            let x = x.into_iter().zip(0..).collect();
            let (y, at) = fold(axes, x, (T::LEAST, -1), better, |v, _, _| v)?.into_iter().unzip();
            Ok((y, Some(at)))
        }
        #[allow(clippy::eq_op)] // NaN is not equal to itself, and wins as in numpy.
        PoolKind::Max => Ok((fold(axes, x, T::LEAST, |a, b| if b > a || b != b { b } else { a }, as_is)?, None)),
        PoolKind::Average => {
            let mean = |v, axis: &Axis, p| v / T::count(axis.counted(p, op.count_include_pad).max(1));
            Ok((fold(axes, x, T::ZERO, |a, b| a + b, mean)?, None))
        }
        PoolKind::Lp(p) => {
            let powers = x.into_iter().map(|v| v.power(p as f64)).collect();
            let sums = fold(axes, powers, T::ZERO, |a, b| a + b, as_is)?;
            Ok((sums.into_iter().map(|v| v.power(1.0 / p as f64)).collect(), None))
        }
    }
}

/// A pool over a window.
pub(super) fn pool(op: &Pool, mut a: Args) -> Result<Vec<Value>> {
    // A maximum of quantised values is one of their integers.
    let x = match op.kind {
        PoolKind::Max => a.take(0)?.into_device(a.device)?,
        _ => a.float(0)?,
    };
    let (n, shape, dtype) = (op.kernel.len(), x.shape().to_vec(), x.dtype());
    if n == 0 || shape.len() != n + 2 {
        return Err(Error::malformed(format!("kernel_shape {:?} on an input of {shape:?}", op.kernel)));
    }
    op.window.check_rank(n)?;
    let mut out = shape[..2].to_vec();
    let mut axes = vec![];
    for (i, taps) in op.kernel.iter().enumerate() {
        let (size, taps) = (shape[2 + i], *taps as usize);
        let (begin, end) = op.window.padding(i, size as i64, taps as i64);
        let (stride, dilation) = (op.window.stride(i) as usize, op.window.dilation(i) as usize);
        let places = output(&op.window, i, size, taps)?;
        out.push(places);
        axes.push(Axis { size, out: places, taps, stride, dilation, begin: begin as usize, end: end as usize });
    }
    check_size(&out)?;
    if op.indices {
        check_host(&shape)?;
    }
    // The host's loops have no gradient.
    if (x.is_tracked() || !a.device.is_cpu()) && pool_device::can(op, &x) {
        return Ok(vec![Value::Float(pool_device::pool(op, x, &out, a.device)?)]);
    }
    if x.is_tracked() && op.kind != PoolKind::Max {
        return Ok(vec![Value::Float(by_slices(op, &axes, x, &out, a.device)?)]);
    }
    if x.is_tracked() {
        // Where the maxima are has no derivative, and what is there is picked.
        let (n, by_index) = (x.elements(), Pool { indices: true, ..op.clone() });
        let (_, at) = on_host(&by_index, &axes, x.clone().detached().into_f64s()?)?;
        let at = at.ok_or_else(|| Error::bug("a pool without indices"))?;
        // A window in the padding sees nothing.
        let from = at.iter().map(|at| usize::try_from(*at).unwrap_or(n) as i64).collect();
        let y = x.reshape(&[n])?.pad(&[(0, 1)], f32::NEG_INFINITY)?.select(0, from)?.reshape(&out)?;
        let at = op.indices.then(|| Value::Int(IntArray::new(DType::I64, out, numbered(op, at, &shape))));
        return Ok([Some(Value::Float(y)), at].into_iter().flatten().collect());
    }
    let (y, at) = if dtype == DType::F64 {
        let (y, at) = on_host(op, &axes, x.into_f64s()?)?;
        (Float::from_f64s(y, &out, dtype, a.device)?, at)
    } else {
        let (y, at) = on_host(op, &axes, x.into_vec()?)?;
        (Float::from_vec(y, &out, a.device)?.with_dtype(dtype), at)
    };
    let mut made = vec![Value::Float(y)];
    made.extend(at.map(|at| Value::Int(IntArray::new(DType::I64, out, numbered(op, at, &shape)))));
    Ok(made)
}

/// Flat indices of an input of `shape` as the operator counts them.
fn numbered(op: &Pool, mut at: Vec<i64>, shape: &[usize]) -> Vec<i64> {
    if op.column_major {
        at.iter_mut().for_each(|at| *at = column_major(*at, &shape[2..]));
    }
    at
}

/// Sums over a window, axis by axis, each a sum of slices: what has a gradient, for any number of axes.
fn by_slices(op: &Pool, axes: &[Axis], x: Float, out: &[usize], device: &Device) -> Result<Float> {
    let dtype = x.dtype();
    let mut y = match op.kind {
        PoolKind::Lp(p) => x.abs().pow_scalar(p as f64, device)?,
        _ => x,
    };
    for (i, axis) in axes.iter().enumerate() {
        let at = 2 + i;
        let reach = (axis.out - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1;
        let mut border = vec![(0, 0); out.len()];
        border[at] = (axis.begin, reach.saturating_sub(axis.begin + axis.size));
        let padded = y.pad(&border, 0.0)?;
        let tap = |t: usize| padded.clone().slice(at, t * axis.dilation, axis.out, axis.stride as i64);
        y = tap(0)?;
        for t in 1..axis.taps {
            y = y.add(tap(t)?)?;
        }
        if op.kind == PoolKind::Average {
            let counts = (0..axis.out).map(|p| axis.counted(p, op.count_include_pad).max(1) as f64).collect();
            let mut shape = vec![1; out.len()];
            shape[at] = axis.out;
            y = y.div(Float::from_f64s(counts, &shape, dtype, device)?)?;
        }
    }
    match op.kind {
        PoolKind::Lp(p) => y.root(p as f64, device),
        _ => Ok(y),
    }
}

/// A flat index into planes of `shape`, where these are counted column by column.
fn column_major(at: i64, shape: &[usize]) -> i64 {
    let plane: i64 = shape.iter().product::<usize>() as i64;
    let (mut rest, mut step, mut index) = (at % plane, plane, 0);
    for size in shape.iter().rev() {
        step /= *size as i64;
        index += rest % *size as i64 * step;
        rest /= *size as i64;
    }
    at - at % plane + index
}

/// A pool over all spatial axes.
pub(super) fn global(op: &GlobalPool, mut a: Args) -> Result<Value> {
    let x = match op.kind {
        PoolKind::Max => a.take(0)?.into_device(a.device)?,
        _ => a.float(0)?,
    };
    if x.shape().len() < 2 {
        return Err(Error::malformed(format!("an input of {:?} has no channels", x.shape())));
    }
    let axes: Vec<usize> = (2..x.shape().len()).collect();
    Ok(Value::Float(match op.kind {
        PoolKind::Max => x.reduce(ReduceKind::Max, &axes, true)?,
        PoolKind::Average => x.reduce(ReduceKind::Mean, &axes, true)?,
        PoolKind::Lp(p) => {
            let sums = x.abs().pow_scalar(p as f64, a.device)?.reduce(ReduceKind::Sum, &axes, true)?;
            sums.root(p as f64, a.device)?
        }
    }))
}

/// Values at the places where a pool found them, zeros elsewhere.
pub(super) fn unpool(op: &MaxUnpool, mut a: Args) -> Result<Value> {
    let (x, at, asked) = (a.float(0)?, a.take(1)?, a.opt_ints(2)?);
    if at.shape() != x.shape() {
        return Err(Error::malformed(format!("indices of {:?} for values of {:?}", at.shape(), x.shape())));
    }
    let dims: Vec<Dim> = x.shape().iter().map(|n| Dim::from(*n)).collect();
    let pooled = op.pooled(&dims)?.iter().map(|d| d.known().map(|n| n as usize)).collect::<Option<Vec<_>>>();
    let pooled = pooled.ok_or_else(|| Error::limit("the output is too large"))?;
    let asked = match asked {
        None => pooled.clone(),
        Some(a) => a.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect(),
    };
    if asked.len() != pooled.len() || asked.iter().zip(&pooled).any(|(a, p)| a < p) {
        return Err(Error::malformed(format!("output_shape {asked:?} has no room for {pooled:?}")));
    }
    // Each place is picked from X, or from a zero behind it.
    let zero = x.elements();
    let mut from = vec![zero as i64; check_host(&pooled)?];
    for (n, at) in at.into_ints()?.data.iter().enumerate() {
        let place = usize::try_from(*at).ok().and_then(|at| from.get_mut(at));
        *place.ok_or_else(|| Error::malformed(format!("index {at} is outside of {pooled:?}")))? = n as i64;
    }
    host::check_host(&asked)?;
    let border: Vec<(usize, usize)> = asked.iter().zip(&pooled).map(|(a, p)| (0, a - p)).collect();
    let all = x.reshape(&[zero])?.pad(&[(0, 1)], 0.0)?;
    all.select(0, from)?.reshape(&pooled)?.pad(&border, 0.0).map(Value::Float)
}
