//! Operators that repeat, turn round, crop or blank out elements.

use super::{
    Args, empty_value,
    fill::constant,
    index::{entries, joined, permute, pick},
    movement::take,
    numbers::{Host, Numbers, of_floats, whole},
};
use crate::burn::{
    host::{IntArray, check_host},
    tensor::{Value, check_size},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        crop::{CenterCropPad, ReverseSequence},
        one_hot::{EyeLike, OneHot, Trilu},
        slice::Taken,
        space::{Blocks, Col2Im},
    },
    tensor::DType,
    value,
};

/// Repeats along each axis.
pub(super) fn tile(mut a: Args) -> Result<Value> {
    let (mut x, repeats) = (a.take(0)?, a.ints(1)?);
    if repeats.len() != x.shape().len() || repeats.iter().any(|r| *r < 0) {
        return Err(Error::malformed(format!("repeats {repeats:?} of an input of {:?}", x.shape())));
    }
    let shape: Vec<usize> = x.shape().iter().zip(repeats.iter()).map(|(n, r)| n.saturating_mul(*r as usize)).collect();
    check_size(&shape)?;
    if shape.contains(&0) {
        return empty_value(x.dtype(), &shape, a.device);
    }
    for (axis, count) in shape.into_iter().enumerate() {
        let size = x.shape()[axis];
        if count != size {
            check_host(&[count])?;
            x = entries(x, axis, (0..count).map(|i| (i % size) as i64).collect())?;
        }
    }
    Ok(x)
}

fn sides(x: &Value) -> Result<[usize; 4]> {
    let shape = x.shape();
    shape.try_into().map_err(|_| Error::malformed(format!("a picture has 4 axes, not {}", shape.len())))
}

/// Spreads channels over blocks of pixels.
pub(super) fn depth_to_space(op: &Blocks, mut a: Args) -> Result<Value> {
    let (x, b) = (a.take(0)?, op.size);
    let [n, c, h, w] = sides(&x)?;
    if c % (b * b) != 0 {
        return Err(Error::malformed(format!("{c} channels do not divide into blocks of {b} by {b}")));
    }
    let d = c / (b * b);
    let (split, order) =
        if op.crd { ([n, d, b, b, h, w], [0, 1, 4, 2, 5, 3]) } else { ([n, b, b, d, h, w], [0, 3, 4, 1, 5, 2]) };
    permute(x.reshape(&split)?, &order)?.reshape(&[n, d, h * b, w * b])
}

/// Collects blocks of pixels into channels.
pub(super) fn space_to_depth(op: &Blocks, mut a: Args) -> Result<Value> {
    let (x, b) = (a.take(0)?, op.size);
    let [n, c, h, w] = sides(&x)?;
    if h % b != 0 || w % b != 0 {
        return Err(Error::malformed(format!("{h} by {w} pixels do not divide into blocks of {b} by {b}")));
    }
    let order = if op.crd { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
    permute(x.reshape(&[n, c, h / b, b, w / b, b])?, &order)?.reshape(&[n, c * b * b, h / b, w / b])
}

/// Turns round the front of each sequence.
pub(super) fn reverse_sequence(op: &ReverseSequence, mut a: Args) -> Result<Value> {
    let (x, lengths) = (a.take(0)?, a.ints(1)?);
    let shape = x.shape().to_vec();
    if shape.len() < 2 || lengths.len() != shape[op.batch_axis] {
        return Err(Error::malformed(format!("{} lengths for sequences of {shape:?}", lengths.len())));
    }
    let times = shape[op.time_axis] as i64;
    if lengths.iter().any(|n| !(0..=times).contains(n)) {
        return Err(Error::malformed(format!("lengths {lengths:?} of sequences of {times}")));
    }
    let (rows, width) = (check_host(&shape[..2])?, shape[2..].iter().product());
    let from = (0..rows).map(|row| {
        let at = [row / shape[1], row % shape[1]];
        let (batch, time) = (at[op.batch_axis], at[op.time_axis] as i64);
        let time = if time < lengths[batch] { lengths[batch] - 1 - time } else { time } as usize;
        (if op.time_axis == 0 { time * shape[1] + batch } else { batch * shape[1] + time }) as i64
    });
    entries(x.reshape(&[rows, width])?, 0, from.collect())?.reshape(&shape)
}

/// Cuts or pads on both sides.
pub(super) fn center_crop_pad(op: &CenterCropPad, mut a: Args) -> Result<Value> {
    let (mut x, sizes) = (a.take(0)?, a.ints(1)?);
    let mut border = vec![(0, 0); x.shape().len()];
    let mut shape = x.shape().to_vec();
    let mut taken = vec![];
    for (axis, size) in op.axes(shape.len(), sizes.len())?.into_iter().zip(sizes.iter()) {
        let (old, new) = (x.shape()[axis], usize::try_from(*size).unwrap_or(usize::MAX));
        shape[axis] = new;
        check_size(&shape)?;
        if new < old {
            taken.push(Taken { axis, start: ((old - new) / 2) as i64, step: 1, count: new as i64 });
        } else {
            border[axis] = ((new - old) / 2, new - old - (new - old) / 2);
        }
    }
    if shape.contains(&0) {
        return empty_value(x.dtype(), &shape, a.device);
    }
    if !taken.is_empty() {
        x = take(x, &taken, a.device)?;
    }
    constant(x, &border, None)
}

/// A triangle of matrices.
pub(super) fn trilu(upper: &Trilu, mut a: Args) -> Result<Value> {
    let k = a.opt(1).map(whole).transpose()?.unwrap_or(0);
    let x = a.take(0)?;
    let shape = x.shape().to_vec();
    let [.., h, w] = shape[..] else { return Err(Error::malformed("the input of Trilu is not a matrix")) };
    let total = check_host(&shape)?;
    if total == 0 {
        return Ok(x);
    }
    let from = (0..total).map(|at| {
        let (row, column) = ((at / w % h) as i64, (at % w) as i64);
        let kept = if upper.upper { column - row >= k } else { column - row <= k };
        if kept { at as i64 } else { total as i64 }
    });
    let zero = of_floats(vec![0.0], &[1], x.dtype(), a.device)?;
    pick(joined(x.reshape(&[total])?, zero, a.device)?, from.collect(), &shape, a.device)
}

/// Ones on a diagonal.
pub(super) fn eye_like(op: &EyeLike, mut a: Args) -> Result<Value> {
    let x = a.take(0)?;
    let [h, w] = x.shape()[..] else { return Err(Error::malformed("the input of EyeLike is not a matrix")) };
    let mut data = vec![0.0; check_host(&[h, w])?];
    for row in 0..h {
        let column = op.k.saturating_add(row as i64);
        if (0..w as i64).contains(&column) {
            data[row * w + column as usize] = 1.0;
        }
    }
    of_floats(data, &[h, w], op.dtype.unwrap_or(x.dtype()), a.device)
}

/// A new axis, on which the place that an index names differs from the others.
pub(super) fn one_hot(op: &OneHot, mut a: Args) -> Result<Value> {
    let (indices, depth, values) = (Host::of(a.take(0)?.detached())?, whole(a.take(1)?)?, a.take(2)?);
    if values.shape() != [2] {
        return Err(Error::malformed(format!("values of {:?}, not an off and an on", values.shape())));
    }
    let axis = value::axis(op.axis, indices.shape.len() + 1)?;
    let depth_size = usize::try_from(depth).map_err(|_| Error::malformed(format!("a depth of {depth}")))?;
    let mut shape = indices.shape;
    let inner: usize = shape[axis..].iter().product();
    shape.insert(axis, depth_size);
    let mut from = vec![0; check_host(&shape)?];
    let indices = match indices.data {
        Numbers::Ints(data) => data,
        Numbers::Floats(data) => data.into_iter().map(|v| v as i64).collect(),
    };
    for (n, index) in indices.into_iter().enumerate() {
        if (-depth..depth).contains(&index) {
            let at = index.rem_euclid(depth) as usize;
            from[(n / inner * depth_size + at) * inner + n % inner] = 1;
        }
    }
    pick(values, from, &shape, a.device)
}

/// The number of elements.
pub(super) fn size(mut a: Args) -> Result<Value> {
    let n: usize = a.take(0)?.shape().iter().product();
    Ok(Value::Int(IntArray::new(DType::I64, vec![], vec![n as i64])))
}

/// Adds columns of blocks up to the image that they were cut from.
pub(super) fn col2im(op: &Col2Im, mut a: Args) -> Result<Value> {
    let (image, block) = (a.ints(1)?, a.ints(2)?);
    let x = Host::of(a.take(0)?)?;
    let n = image.len();
    let list = |l: &[i64], count: usize, default: i64| -> Result<Vec<i64>> {
        match l.len() {
            0 => Ok(vec![default; count]),
            len if len == count => Ok(l.to_vec()),
            _ => Err(Error::malformed(format!("{l:?}, where {count} numbers are expected"))),
        }
    };
    let (strides, dilations, pads) = (list(&op.strides, n, 1)?, list(&op.dilations, n, 1)?, list(&op.pads, 2 * n, 0)?);
    let valid = |l: &[i64]| l.len() == n && l.iter().all(|v| (1..=i64::from(i32::MAX)).contains(v));
    let [batch, columns, length] = x.shape[..] else {
        return Err(Error::malformed(format!("columns of {:?}, not of 3 axes", x.shape)));
    };
    if !valid(&image) || !valid(&block) {
        return Err(Error::malformed(format!("blocks of {block:?} in an image of {image:?}")));
    }
    // How many blocks there are along each axis.
    let counts: Vec<i64> = (0..n)
        .map(|i| {
            (image[i] + pads[i] + pads[n + i] - dilations[i].saturating_mul(block[i] - 1) - 1).div_euclid(strides[i])
                + 1
        })
        .collect();
    let product = |l: &[i64]| l.iter().try_fold(1usize, |n, v| n.checked_mul(usize::try_from(*v).ok()?));
    let (Some(in_block), Some(blocks)) = (product(&block), product(&counts)) else {
        return Err(Error::malformed(format!("no block of {block:?} fits an image of {image:?}")));
    };
    if blocks != length || columns < in_block || columns % in_block != 0 {
        return Err(Error::malformed(format!("{columns} rows and {length} columns for {blocks} blocks of {block:?}")));
    }
    let channels = columns / in_block;
    let space: Vec<usize> = image.iter().map(|v| *v as usize).collect();
    let shape = [&[batch, channels], &space[..]].concat();
    let plane = check_host(&space)?;
    let total = check_host(&shape)?;
    // The pixel of each element of a channel's columns; `None` is in the border.
    let pixel = |element: usize| -> Option<usize> {
        let (mut offset, mut place) = (element / blocks, element % blocks);
        let (mut at, mut stride) = (0, 1);
        for i in (0..n).rev() {
            let (o, p) = (offset % block[i] as usize, place % counts[i] as usize);
            offset /= block[i] as usize;
            place /= counts[i] as usize;
            let c = p as i64 * strides[i] - pads[i] + o as i64 * dilations[i];
            if !(0..image[i]).contains(&c) {
                return None;
            }
            at += c as usize * stride;
            stride *= space[i];
        }
        Some(at)
    };
    let pixels: Vec<Option<usize>> = (0..in_block * blocks).map(pixel).collect();
    let sums = pixels.iter().enumerate().filter_map(|(e, p)| Some((e, (*p)?)));
    let each = in_block * blocks;
    let data = match x.data {
        Numbers::Floats(x) => {
            let mut out = vec![0.0; total];
            (0..batch * channels).for_each(|c| sums.clone().for_each(|(e, p)| out[c * plane + p] += x[c * each + e]));
            Numbers::Floats(out)
        }
        Numbers::Ints(x) => {
            let mut out = vec![0i64; total];
            (0..batch * channels).for_each(|c| {
                sums.clone().for_each(|(e, p)| out[c * plane + p] = out[c * plane + p].wrapping_add(x[c * each + e]))
            });
            Numbers::Ints(out)
        }
    };
    Host { dtype: x.dtype, shape, data }.into_value(a.device)
}
