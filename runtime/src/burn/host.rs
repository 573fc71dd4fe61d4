//! Integer tensors on the host, and the index arithmetic that moving elements comes down to.

use crate::memory;
use compress_compiler::{
    error::{Error, Result},
    ops::slice::Taken,
    tensor::{DType, Tensor},
    value,
};
use std::sync::Arc;

/// Host values with more elements than this are refused: 1 GiB.
pub(crate) const MAX_HOST_ELEMENTS: usize = 1 << 27;

/// An integer or bool tensor on the host. `u64` is held as the `i64` of the same bits.
#[derive(Clone, Debug, PartialEq)]
pub struct IntArray {
    /// The ONNX element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub data: Arc<Vec<i64>>,
}

impl IntArray {
    /// A tensor of `data`, which fills `shape`.
    pub fn new(dtype: DType, shape: Vec<usize>, data: Vec<i64>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Self { dtype, shape, data: Arc::new(data) }
    }

    /// The elements of a tensor.
    ///
    /// # Errors
    /// Unsupported for strings and floats.
    pub(crate) fn from_tensor(t: &Tensor) -> Result<Self> {
        let data = t.as_i64().ok_or_else(|| Error::unsupported(format!("{} values on the host", t.dtype())))?;
        Ok(Self::new(t.dtype(), t.shape().to_vec(), data))
    }

    /// The tensor that callers outside see.
    ///
    /// # Errors
    /// None: the elements fill the shape.
    pub(crate) fn into_tensor(self) -> Result<Tensor> {
        Ok(Tensor::ints(self.dtype, &self.shape, &self.data))
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// Malformed when the number of elements differs.
    pub fn reshape(self, shape: &[usize]) -> Result<Self> {
        if check_host(shape)? != self.len() {
            return Err(Error::malformed(format!("{:?} cannot become {shape:?}", self.shape)));
        }
        Ok(Self { shape: shape.to_vec(), ..self })
    }

    fn strided(self, shape: Vec<usize>, strides: &[isize], offset: usize) -> Result<Self> {
        check_host(&shape)?;
        let data = strided(&self.data, &shape, strides, offset);
        Ok(Self::new(self.dtype, shape, data))
    }

    /// Reorders axes: output axis i is input axis `axes[i]`.
    ///
    /// # Errors
    /// None for a permutation.
    pub fn permute(self, axes: &[usize]) -> Result<Self> {
        let s = strides(&self.shape);
        let shape = axes.iter().map(|a| self.shape[*a]).collect();
        let s: Vec<isize> = axes.iter().map(|a| s[*a]).collect();
        self.strided(shape, &s, 0)
    }

    /// Takes what `taken` says, at most once an axis.
    ///
    /// # Errors
    /// None for a resolved slice.
    pub fn slice(self, taken: &[Taken]) -> Result<Self> {
        let (mut shape, mut s, mut offset) = (self.shape.clone(), strides(&self.shape), 0);
        for t in taken {
            if t.count > 0 {
                offset += t.start as isize * s[t.axis];
            }
            shape[t.axis] = t.count as usize;
            s[t.axis] *= t.step as isize;
        }
        // An empty result has nowhere to start.
        let offset = if shape.contains(&0) { 0 } else { offset as usize };
        self.strided(shape, &s, offset)
    }

    /// Broadcasts to `shape`.
    ///
    /// # Errors
    /// Malformed when it doesn't; limit when the result is too large.
    pub fn expand(self, shape: &[usize]) -> Result<Self> {
        if self.shape == shape {
            return Ok(self);
        }
        if broadcast(&self.shape, shape)? != shape {
            return Err(Error::malformed(format!("{:?} does not broadcast to {shape:?}", self.shape)));
        }
        let s = broadcast_strides(&self.shape, shape.len());
        self.strided(shape.to_vec(), &s, 0)
    }

    /// Joins tensors along `axis`.
    ///
    /// # Errors
    /// Malformed when the other axes differ; limit when the result is too large.
    pub(crate) fn cat(parts: &[Self], axis: usize) -> Result<Self> {
        let Some(first) = parts.first() else { return Err(Error::malformed("nothing to join")) };
        let shape = cat_shape(parts.iter().map(|p| &p.shape[..]), axis)?;
        let mut data = Vec::with_capacity(check_host(&shape)?);
        let outer: usize = shape[..axis].iter().product();
        for i in 0..outer {
            for p in parts {
                let block = p.len() / outer;
                data.extend_from_slice(&p.data[i * block..(i + 1) * block]);
            }
        }
        Ok(Self::new(first.dtype, shape, data))
    }

    /// Takes the entries `indices` along `axis`.
    ///
    /// # Errors
    /// Malformed when an index is out of range; limit when the result is too large.
    pub fn select(self, axis: usize, indices: &[i64]) -> Result<Self> {
        let size = self.shape[axis];
        if let Some(i) = indices.iter().find(|i| !(0..size as i64).contains(i)) {
            return Err(Error::malformed(format!("index {i} is out of range for an axis of {size}")));
        }
        let mut shape = self.shape.clone();
        shape[axis] = indices.len();
        let mut data = Vec::with_capacity(check_host(&shape)?);
        let outer: usize = shape[..axis].iter().product();
        let block: usize = shape[axis + 1..].iter().product();
        for i in 0..outer {
            for j in indices {
                let at = (i * size + *j as usize) * block;
                data.extend_from_slice(&self.data[at..at + block]);
            }
        }
        Ok(Self::new(self.dtype, shape, data))
    }

    /// Adds a border of `value`: (before, after) for every axis.
    ///
    /// # Errors
    /// Limit when the result is too large.
    pub fn pad(self, border: &[(usize, usize)], value: i64) -> Result<Self> {
        let shape: Vec<usize> = self.shape.iter().zip(border).map(|(n, (b, e))| n + b + e).collect();
        let mut data = vec![value; check_host(&shape)?];
        let s = strides(&shape);
        let offset = s.iter().zip(border).map(|(s, (b, _))| s * *b as isize).sum::<isize>() as usize;
        let mut source = self.data.iter();
        each_offset(&self.shape, &s, offset, |at| {
            if let Some(v) = source.next() {
                data[at] = *v;
            }
        });
        Ok(Self::new(self.dtype, shape, data))
    }
}

/// `v` cut to the width of `dtype`, as C does; any other value is true for bool.
pub fn wrap(dtype: DType, v: i64) -> i64 {
    match dtype {
        DType::Bool => (v != 0) as i64,
        DType::U8 => i64::from(v as u8),
        DType::I8 => i64::from(v as i8),
        DType::U2 => v & 3,
        DType::U4 => v & 15,
        DType::I2 => v << 62 >> 62,
        DType::I4 => v << 60 >> 60,
        DType::U16 => i64::from(v as u16),
        DType::I16 => i64::from(v as i16),
        DType::I32 => i64::from(v as i32),
        DType::U32 => i64::from(v as u32),
        _ => v,
    }
}

/// The number of elements of a value of `shape`. `None` where it is absurd, and also where it would
/// be but for an empty axis: nobody who computes with parts of such a shape has to think of that,
/// and no file can hold it.
pub fn elements(shape: &[usize]) -> Option<usize> {
    let rest = shape.iter().try_fold(1usize, |n, d| n.checked_mul((*d).max(1))).filter(|n| *n <= 1 << 33)?;
    Some(if shape.contains(&0) { 0 } else { rest })
}

/// # Errors
/// Limit when a host value of `shape` would be too large.
pub(crate) fn check_host(shape: &[usize]) -> Result<usize> {
    let n = elements(shape).filter(|n| *n <= MAX_HOST_ELEMENTS);
    let n = n.ok_or_else(|| {
        Error::limit(format!("an integer value of shape {shape:?} has more than {MAX_HOST_ELEMENTS} elements"))
    })?;
    memory::check(n.saturating_mul(size_of::<i64>()), || format!("an integer value of shape {shape:?}"))?;
    Ok(n)
}

/// The shape two operands broadcast to.
///
/// # Errors
/// Malformed when they don't.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    if a == b {
        return Ok(a.to_vec());
    }
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(Error::malformed(format!("shapes {a:?} and {b:?} do not broadcast"))),
        })
        .collect()
}

/// The shape of a join along `axis`.
///
/// # Errors
/// Malformed when the other axes differ.
pub(crate) fn cat_shape<'a>(parts: impl Iterator<Item = &'a [usize]>, axis: usize) -> Result<Vec<usize>> {
    let mut out: Option<Vec<usize>> = None;
    for shape in parts {
        match &mut out {
            None => out = Some(shape.to_vec()),
            Some(o) => {
                let same = |i: usize| i == axis || o[i] == shape[i];
                if o.len() != shape.len() || !(0..o.len()).all(same) {
                    return Err(Error::malformed(format!("{o:?} and {shape:?} cannot be joined along axis {axis}")));
                }
                o[axis] += shape[axis];
            }
        }
    }
    let out = out.unwrap_or_default();
    value::axis(axis as i64, out.len())?;
    Ok(out)
}

/// The shape after reducing `axes`.
pub(crate) fn reduced_shape(shape: &[usize], axes: &[usize], keepdims: bool) -> Vec<usize> {
    let dim = |(i, n): (usize, &usize)| match (axes.contains(&i), keepdims) {
        (false, _) => Some(*n),
        (true, true) => Some(1),
        (true, false) => None,
    };
    shape.iter().enumerate().filter_map(dim).collect()
}

/// Row-major strides.
pub fn strides(shape: &[usize]) -> Vec<isize> {
    let mut out = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        // Without elements, nothing is read by them.
        out[i - 1] = out[i].wrapping_mul(shape[i] as isize);
    }
    out
}

/// Strides that read a tensor of `shape` as if broadcast to a larger one of `rank` axes.
fn broadcast_strides(shape: &[usize], rank: usize) -> Vec<isize> {
    let mut out = vec![0; rank - shape.len()];
    out.extend(strides(shape).into_iter().zip(shape).map(|(s, n)| if *n == 1 { 0 } else { s }));
    out
}

/// Calls `see` with the offset of every index of `shape`, in row-major order.
pub(crate) fn each_offset(shape: &[usize], strides: &[isize], offset: usize, mut see: impl FnMut(usize)) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0usize; shape.len()];
    let mut at = offset as isize;
    loop {
        see(at as usize);
        let mut axis = shape.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= strides[axis] * index[axis] as isize;
            index[axis] = 0;
        }
    }
}

/// The elements of `data` under a shape and strides, in row-major order.
pub(crate) fn strided<T: Copy>(data: &[T], shape: &[usize], strides: &[isize], offset: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(shape.iter().product());
    // A row at a time: most of the time would go into finding where each element is.
    let (Some((width, outer)), Some((step, steps))) = (shape.split_last(), strides.split_last()) else {
        return vec![data[offset]];
    };
    each_offset(if *width == 0 { shape } else { outer }, steps, offset, |at| match step {
        0 => out.resize(out.len() + width, data[at]),
        1 => out.extend_from_slice(&data[at..at + width]),
        _ => out.extend((0..*width).map(|i| data[(at as isize + step * i as isize) as usize])),
    });
    out
}

/// `f` of two operands, each data and shape, broadcast to `shape`.
///
/// # Errors
/// What `f` returns first.
pub fn zip<T: Copy, U: Copy>(
    a: (&[T], &[usize]),
    b: (&[U], &[usize]),
    shape: &[usize],
    mut f: impl FnMut(T, U) -> Result<i64>,
) -> Result<Vec<i64>> {
    check_host(shape)?;
    if a.1 == b.1 {
        return a.0.iter().zip(b.0).map(|(x, y)| f(*x, *y)).collect();
    }
    let x = strided(a.0, shape, &broadcast_strides(a.1, shape.len()), 0);
    let y = strided(b.0, shape, &broadcast_strides(b.1, shape.len()), 0);
    let mut out = Vec::with_capacity(x.len());
    for (x, y) in x.into_iter().zip(y) {
        out.push(f(x, y)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: &[usize], data: &[i64]) -> IntArray {
        IntArray::new(DType::I64, shape.to_vec(), data.to_vec())
    }

    #[test]
    fn moves() {
        let x = array(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(x.clone().permute(&[1, 0]).unwrap(), array(&[3, 2], &[1, 4, 2, 5, 3, 6]));
        assert_eq!(x.clone().select(1, &[2, 0]).unwrap(), array(&[2, 2], &[3, 1, 6, 4]));
        assert_eq!(x.clone().pad(&[(1, 0), (0, 1)], 9).unwrap(), array(&[3, 4], &[9, 9, 9, 9, 1, 2, 3, 9, 4, 5, 6, 9]));
        let taken = [Taken { axis: 1, start: 2, step: -2, count: 2 }];
        assert_eq!(x.clone().slice(&taken).unwrap(), array(&[2, 2], &[3, 1, 6, 4]));
        let none = [Taken { axis: 0, start: 2, step: 1, count: 0 }];
        assert_eq!(x.clone().slice(&none).unwrap(), array(&[0, 3], &[]));
        assert_eq!(IntArray::cat(&[x.clone(), x.clone()], 1).unwrap().shape, [2, 6]);
        assert_eq!(array(&[1, 2], &[1, 2]).expand(&[2, 2]).unwrap(), array(&[2, 2], &[1, 2, 1, 2]));
        assert!(x.clone().expand(&[2, 2]).is_err());
        assert!(x.select(1, &[3]).is_err());
        assert!(array(&[], &[1]).expand(&[1 << 20, 1 << 20]).is_err());
    }

    #[test]
    fn widths() {
        assert_eq!(wrap(DType::U8, -1), 255);
        assert_eq!(wrap(DType::I8, 128), -128);
        assert_eq!(wrap(DType::U32, -1), 0xffff_ffff);
        assert_eq!(wrap(DType::Bool, 5), 1);
        assert_eq!(wrap(DType::I64, i64::MIN), i64::MIN);
    }
}
