//! Einsum, as products of two operands at a time, and Det.

use super::{
    Args, empty_value,
    index::{permute, pick},
    numbers::{Host, of_floats},
};
use crate::{
    burn::{
        host::{self, IntArray, check_host, wrap},
        tensor::{Float, Value, check_size},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::einsum::{Einsum, Label},
    tensor::DType,
};
use std::collections::{BTreeMap, BTreeSet};

/// A value whose axes have labels, no two the same.
struct Operand {
    value: Value,
    labels: Vec<Label>,
}

impl Operand {
    /// `value` without the axes of size 1 that broadcast, and the diagonal where a label repeats.
    fn new(value: Value, labels: &[Label], sizes: &BTreeMap<Label, usize>, device: &Device) -> Result<Self> {
        let shape = value.shape().to_vec();
        let kept: Vec<usize> = (0..shape.len()).filter(|i| sizes.get(&labels[*i]) == Some(&shape[*i])).collect();
        let value = value.reshape(&kept.iter().map(|i| shape[*i]).collect::<Vec<_>>())?;
        let labels: Vec<Label> = kept.into_iter().map(|i| labels[i]).collect();
        let mut unique: Vec<Label> = vec![];
        let mut strides: Vec<isize> = vec![];
        for (label, stride) in labels.iter().zip(host::strides(value.shape())) {
            match unique.iter().position(|l| l == label) {
                Some(i) => strides[i] += stride,
                None => {
                    unique.push(*label);
                    strides.push(stride);
                }
            }
        }
        if unique.len() == labels.len() {
            return Ok(Self { value, labels });
        }
        let shape: Vec<usize> = unique.iter().map(|l| sizes[l]).collect();
        let mut from = Vec::with_capacity(check_host(&shape)?);
        host::each_offset(&shape, &strides, 0, |at| from.push(at as i64));
        Ok(Self { value: pick(value, from, &shape, device)?, labels: unique })
    }

    /// The axes in the order of `groups`, each group joined into one axis.
    fn grouped(self, groups: [&[Label]; 3]) -> Result<Value> {
        let at = |l: &Label| self.labels.iter().position(|x| x == l).ok_or_else(|| Error::bug("a label went missing"));
        let order = groups.iter().copied().flatten().map(at).collect::<Result<Vec<_>>>()?;
        let size = |g: &[Label]| -> Result<usize> { g.iter().map(|l| Ok(self.value.shape()[at(l)?])).product() };
        let shape = [size(groups[0])?, size(groups[1])?, size(groups[2])?];
        permute(self.value, &order)?.reshape(&shape)
    }

    /// The sums over all labels but those of `needed`.
    fn summed(self, needed: &BTreeSet<Label>, device: &Device) -> Result<Self> {
        let (kept, gone): (Vec<Label>, Vec<Label>) = self.labels.iter().partition(|l| needed.contains(l));
        if gone.is_empty() {
            return Ok(self);
        }
        let size = |l: &Label| self.labels.iter().position(|x| x == l).map_or(1, |i| self.value.shape()[i]);
        let shape: Vec<usize> = kept.iter().map(size).collect();
        let x = self.grouped([&[], &kept, &gone])?;
        let ones = [1, x.shape()[2], 1];
        let ones = match &x {
            Value::Float(f) => Value::Float(Float::filled(&ones, 1.0, f.dtype(), device)?),
            Value::Int(i) => Value::Int(IntArray::new(i.dtype, ones.to_vec(), vec![1; check_host(&ones)?])),
        };
        Ok(Self { value: product(x, ones)?.reshape(&shape)?, labels: kept })
    }

    /// The product, summed over the labels of both that are not `needed`.
    fn times(self, other: Self, needed: &BTreeSet<Label>) -> Result<Self> {
        let (shared, left): (Vec<Label>, Vec<Label>) = self.labels.iter().partition(|l| other.labels.contains(l));
        let right: Vec<Label> = other.labels.iter().copied().filter(|l| !shared.contains(l)).collect();
        let (batch, inner): (Vec<Label>, Vec<Label>) = shared.iter().partition(|l| needed.contains(l));
        let labels = [&batch[..], &left, &right].concat();
        let size = |l: &Label| {
            let of = |x: &Self| x.labels.iter().position(|y| y == l).map(|i| x.value.shape()[i]);
            of(&self).or_else(|| of(&other)).unwrap_or(1)
        };
        let shape: Vec<usize> = labels.iter().map(size).collect();
        check_size(&shape)?;
        let value = product(self.grouped([&batch, &left, &inner])?, other.grouped([&batch, &inner, &right])?)?;
        Ok(Self { value: value.reshape(&shape)?, labels })
    }
}

/// The products of two batches of matrices.
fn product(x: Value, y: Value) -> Result<Value> {
    match (x, y) {
        (Value::Float(x), Value::Float(y)) => x.matmul(y).map(Value::Float),
        (x, y) => {
            let (x, y) = (x.into_ints()?, y.into_ints()?);
            let ([b, m, k], [_, _, n]) = (&x.shape[..], &y.shape[..]) else {
                return Err(Error::bug("a product of what are not matrices"));
            };
            let (b, m, k, n) = (*b, *m, *k, *n);
            let mut out = vec![0i64; check_host(&[b, m, n])?];
            for (row, out) in out.chunks_exact_mut(n).enumerate() {
                let batch = row / m;
                for i in 0..k {
                    let (v, from) = (x.data[row * k + i], (batch * k + i) * n);
                    out.iter_mut()
                        .zip(&y.data[from..from + n])
                        .for_each(|(o, w)| *o = o.wrapping_add(v.wrapping_mul(*w)));
                }
            }
            out.iter_mut().for_each(|v| *v = wrap(x.dtype, *v));
            Ok(Value::Int(IntArray::new(x.dtype, vec![b, m, n], out)))
        }
    }
}

/// The product of all inputs, summed over the labels that the output lacks.
pub(super) fn einsum(op: &Einsum, a: Args) -> Result<Value> {
    let device = a.device;
    let values: Vec<Value> = a.values.into_iter().flatten().collect();
    let dtype = values.first().map_or(DType::F32, Value::dtype);
    if let Some(v) = values.iter().find(|v| v.dtype() != dtype) {
        return Err(Error::malformed(format!("inputs of types {dtype} and {}", v.dtype())));
    }
    let (labels, output) = op.labels(&values.iter().map(|v| v.shape().len()).collect::<Vec<_>>())?;
    let mut sizes: BTreeMap<Label, usize> = BTreeMap::new();
    for (label, n) in labels.iter().flatten().zip(values.iter().flat_map(|v| v.shape())) {
        let size = sizes.entry(*label).or_insert(1);
        match (*size, *n) {
            (old, new) if old == new || new == 1 => {}
            (1, new) => *size = new,
            (old, new) => return Err(Error::malformed(format!("one label stands for axes of {old} and {new}"))),
        }
    }
    let shape: Vec<usize> = output.iter().map(|l| sizes[l]).collect();
    check_size(&shape)?;
    if shape.contains(&0) {
        return empty_value(dtype, &shape, device);
    }
    if sizes.values().any(|n| *n == 0) {
        return of_floats(vec![0.0; check_host(&shape)?], &shape, dtype, device);
    }
    let mut operands = vec![];
    for (value, labels) in values.into_iter().zip(&labels) {
        let value = if dtype.is_float() { value } else { Value::Int(value.into_ints()?) };
        operands.push(Operand::new(value, labels, &sizes, device)?);
    }
    let mut result: Option<Operand> = None;
    while !operands.is_empty() {
        let next = operands.remove(0);
        let later: BTreeSet<Label> = operands.iter().flat_map(|o| &o.labels).chain(&output).copied().collect();
        // What only this operand has need not go through the product.
        let mut needed = later.clone();
        needed.extend(result.iter().flat_map(|r| &r.labels));
        let next = next.summed(&needed, device)?;
        result = Some(match result {
            None => next,
            Some(r) => {
                let mut needed = later.clone();
                needed.extend(&next.labels);
                r.summed(&needed, device)?.times(next, &later)?
            }
        });
    }
    let result = result.ok_or_else(|| Error::malformed("nothing to multiply"))?;
    result.grouped([&[], &output, &[]])?.reshape(&shape)
}

/// The determinants of square matrices.
pub(super) fn det(mut a: Args) -> Result<Value> {
    let x = Host::of(a.take(0)?)?;
    let (dtype, mut shape) = (x.dtype, x.shape.clone());
    let [.., m, n] = shape[..] else { return Err(Error::malformed("the input of Det is not a matrix")) };
    if m != n || n == 0 {
        return Err(Error::malformed(format!("a matrix of {m} by {n} has no determinant")));
    }
    let mut data = x.into_floats();
    let out = data.chunks_exact_mut(n * n).map(|matrix| determinant(matrix, n)).collect();
    shape.truncate(shape.len() - 2);
    of_floats(out, &shape, dtype, a.device)
}

/// By Gaussian elimination with the largest pivots.
fn determinant(x: &mut [f64], n: usize) -> f64 {
    let mut det = 1.0;
    for i in 0..n {
        let size = |row: &usize| x[row * n + i].abs();
        let pivot = (i..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(i);
        if x[pivot * n + i] == 0.0 {
            return 0.0;
        }
        if pivot != i {
            (0..n).for_each(|c| x.swap(pivot * n + c, i * n + c));
            det = -det;
        }
        det *= x[i * n + i];
        for row in i + 1..n {
            let factor = x[row * n + i] / x[i * n + i];
            (i..n).for_each(|c| x[row * n + c] -= factor * x[i * n + c]);
        }
    }
    det
}
