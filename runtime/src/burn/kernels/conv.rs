//! Conv and ConvTranspose over one or two spatial axes; one is two with a size of 1.

use super::Args;
use crate::burn::tensor::{Float, Geometry, Value, check_size};
use compress_compiler::{
    error::{Error, Result},
    ops::{conv::Conv, conv_transpose::ConvTranspose, window::Window},
    value::Dim,
};

/// The window over one or two axes of sizes `data` with `kernel` taps, as one over two.
pub(super) fn geometry(w: &Window, data: &[usize], kernel: &[usize]) -> Geometry {
    let n = data.len();
    // A missing first axis is one of size 1 under a kernel of 1 tap.
    let at = |i: usize, f: &dyn Fn(usize) -> i64, default: i64| (i + n).checked_sub(2).map_or(default, f) as usize;
    let each = |f: &dyn Fn(usize) -> i64, default| [at(0, f, default), at(1, f, default)];
    let pad = |i: usize| w.padding(i, data[i] as i64, kernel[i] as i64);
    let (begin, end) = (each(&|i| pad(i).0, 0), each(&|i| pad(i).1, 0));
    Geometry {
        stride: each(&|i| w.stride(i), 1),
        dilation: each(&|i| w.dilation(i), 1),
        pads: [(begin[0], end[0]), (begin[1], end[1])],
    }
}

/// `[A, B, L]` as `[A, B, 1, L]`; four axes stay.
pub(super) fn two_axes(shape: &[usize]) -> Vec<usize> {
    match *shape {
        [a, b, l] => vec![a, b, 1, l],
        _ => shape.to_vec(),
    }
}

/// The number of spatial axes, when there is a kernel for so many.
///
/// # Errors
/// Malformed below one, unsupported above two.
pub(super) fn spatial(rank: usize) -> Result<usize> {
    match rank {
        0..=2 => Err(Error::malformed(format!("an input of rank {rank} has no spatial axes"))),
        3 | 4 => Ok(rank - 2),
        _ => Err(Error::unsupported(format!("windows over {} axes", rank - 2))),
    }
}

fn check_weight(x: &Float, w: &Float, kernel: &[i64]) -> Result<usize> {
    let n = spatial(x.shape().len())?;
    if w.shape().len() != n + 2 {
        return Err(Error::malformed(format!("a weight of {:?} on an input of {:?}", w.shape(), x.shape())));
    }
    let same = |(k, s): (&i64, &usize)| *k == *s as i64;
    let told = kernel.len() == n && kernel.iter().zip(&w.shape()[2..]).all(same);
    if !(told || kernel.is_empty()) {
        return Err(Error::malformed(format!("kernel_shape {kernel:?} is not that of the weight {:?}", w.shape())));
    }
    Ok(n)
}

fn check_bias(bias: &Option<Float>, channels: usize) -> Result<()> {
    match bias {
        Some(b) if b.shape() != [channels] => {
            Err(Error::malformed(format!("a bias of {:?} for {channels} channels", b.shape())))
        }
        _ => Ok(()),
    }
}

/// Convolution.
pub(super) fn conv(op: &Conv, mut a: Args) -> Result<Value> {
    let (x, w, bias) = (a.float(0)?, a.float(1)?, a.opt_float(2)?);
    let n = check_weight(&x, &w, &op.kernel)?;
    op.window.check_rank(n)?;
    let (filters, groups) = (w.shape()[0], op.group as usize);
    if w.shape()[1].checked_mul(groups) != Some(x.shape()[1]) || filters % groups != 0 {
        let (w, x) = (w.shape(), x.shape());
        return Err(Error::malformed(format!("a weight of {w:?} in {groups} groups on an input of {x:?}")));
    }
    check_bias(&bias, filters)?;
    let (data, kernel) = (x.shape()[2..].to_vec(), w.shape()[2..].to_vec());
    let mut out = vec![x.shape()[0], filters];
    for i in 0..n {
        out.push(output(&op.window, i, data[i], kernel[i])?);
    }
    let at = geometry(&op.window, &data, &kernel);
    let (xs, ws) = (two_axes(x.shape()), two_axes(w.shape()));
    // Where the padding differs at both ends, a padded copy is made.
    let padded = |i: usize| xs[2 + i].saturating_add(at.pads[i].0).saturating_add(at.pads[i].1);
    check_size(&[xs[0], xs[1], padded(0), padded(1)])?;
    x.reshape(&xs)?.conv2d(w.reshape(&ws)?, bias, &at, groups)?.reshape(&out).map(Value::Float)
}

/// The positions of a window along an axis.
///
/// # Errors
/// Malformed when it doesn't fit.
pub(super) fn output(w: &Window, axis: usize, size: usize, kernel: usize) -> Result<usize> {
    match w.output(axis, &Dim::from(size), kernel as i64)? {
        Dim::Known(n) if n > 0 => Ok(n as usize),
        _ => Err(Error::malformed(format!("a window of {kernel} taps does not fit an axis of {size}"))),
    }
}

/// Transposed convolution.
pub(super) fn conv_transpose(op: &ConvTranspose, mut a: Args) -> Result<Value> {
    let (x, w, bias) = (a.float(0)?, a.float(1)?, a.opt_float(2)?);
    let n = check_weight(&x, &w, &op.kernel)?;
    op.window.check_rank(n)?;
    let groups = op.group as usize;
    if w.shape()[0] != x.shape()[1] || x.shape()[1] % groups != 0 {
        let (w, x) = (w.shape(), x.shape());
        return Err(Error::malformed(format!("a weight of {w:?} in {groups} groups on an input of {x:?}")));
    }
    let channels = w.shape()[1].checked_mul(groups).ok_or_else(|| Error::limit("too many channels"))?;
    check_bias(&bias, channels)?;
    if !op.output_padding.is_empty() && op.output_padding.len() != n
        || op.output_padding.iter().any(|p| !(0..=i64::from(i32::MAX)).contains(p))
    {
        return Err(Error::malformed(format!("output_padding {:?} does not fit {n} axes", op.output_padding)));
    }
    let mut at = geometry(&op.window, &x.shape()[2..], &w.shape()[2..]);
    let mut extra = [0; 2];
    for (e, p) in extra[2 - n..].iter_mut().zip(&op.output_padding) {
        *e = *p as usize;
    }
    let (xs, ws) = (two_axes(x.shape()), two_axes(w.shape()));
    let mut out = [0; 2];
    for i in 0..2 {
        let full = (xs[2 + i] - 1).checked_mul(at.stride[i]).map(|f| f + at.dilation[i] * (ws[2 + i] - 1) + 1);
        let cut = at.pads[i].0 + at.pads[i].1;
        out[i] = full
            .and_then(|f| (f + extra[i]).checked_sub(cut))
            .filter(|n| *n > 0)
            .ok_or_else(|| Error::malformed(format!("padding {:?} leaves no output", at.pads[i])))?;
    }
    // Burn takes one padding an axis; where begin and end differ, the border is cut after.
    let cut = at.pads;
    let symmetric = cut.iter().all(|(begin, end)| begin == end);
    if !symmetric {
        at.pads = [(0, 0); 2];
    }
    let mut y = x.reshape(&xs)?.conv_transpose2d(w.reshape(&ws)?, bias, &at, extra, groups)?;
    if !symmetric {
        for i in 0..2 {
            y = y.slice(2 + i, cut[i].0, out[i], 1)?;
        }
    }
    let shape = [&[xs[0], channels], &out[2 - n..]].concat();
    y.reshape(&shape).map(Value::Float)
}
