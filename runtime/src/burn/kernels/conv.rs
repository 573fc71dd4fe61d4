//! Conv and ConvTranspose over one to three spatial axes; one is two with a size of 1.

use super::Args;
use crate::burn::tensor::{Float, Geometry, Value, check_size};
use compress_compiler::{
    error::{Error, Result},
    ops::{conv::Conv, conv_transpose::ConvTranspose, window::Window},
    value::Dim,
};

/// The window over axes of sizes `data` with `kernel` taps, as one over `N`: axes missing in front
/// have size 1 under a kernel of 1 tap.
pub(super) fn geometry<const N: usize>(w: &Window, data: &[usize], kernel: &[usize]) -> Geometry<N> {
    let each = |f: &dyn Fn(usize) -> i64, default: i64| {
        std::array::from_fn(|i| (i + data.len()).checked_sub(N).map_or(default, f) as usize)
    };
    let pad = |i: usize| w.padding(i, data[i] as i64, kernel[i] as i64);
    let (begin, end): ([_; N], [_; N]) = (each(&|i| pad(i).0, 0), each(&|i| pad(i).1, 0));
    Geometry {
        stride: each(&|i| w.stride(i), 1),
        dilation: each(&|i| w.dilation(i), 1),
        pads: std::array::from_fn(|i| (begin[i], end[i])),
    }
}

/// `[A, B, ...]` with `N` axes behind the first two, those missing of size 1.
pub(super) fn axes<const N: usize>(shape: &[usize]) -> Vec<usize> {
    let mut out = shape[..2].to_vec();
    out.resize((2 + N).saturating_sub(shape.len() - 2), 1);
    out.extend_from_slice(&shape[2..]);
    out
}

/// The number of spatial axes.
///
/// # Errors
/// Malformed below one.
pub(super) fn spatial(rank: usize) -> Result<usize> {
    match rank {
        0..=2 => Err(Error::malformed(format!("an input of rank {rank} has no spatial axes"))),
        _ => Ok(rank - 2),
    }
}

fn too_many(axes: usize) -> Error {
    Error::unsupported(format!("convolution over {axes} axes"))
}

fn check_weight(x: &[usize], w: &[usize], kernel: &[i64]) -> Result<usize> {
    let n = spatial(x.len())?;
    if w.len() != n + 2 {
        return Err(Error::malformed(format!("a weight of {w:?} on an input of {x:?}")));
    }
    let same = |(k, s): (&i64, &usize)| *k == *s as i64;
    let told = kernel.len() == n && kernel.iter().zip(&w[2..]).all(same);
    if !(told || kernel.is_empty()) {
        return Err(Error::malformed(format!("kernel_shape {kernel:?} is not that of the weight {w:?}")));
    }
    Ok(n)
}

fn check_bias(bias: Option<&Float>, channels: usize) -> Result<()> {
    match bias {
        Some(b) if b.shape() != [channels] => {
            Err(Error::malformed(format!("a bias of {:?} for {channels} channels", b.shape())))
        }
        _ => Ok(()),
    }
}

/// The shape of a convolution's output.
///
/// # Errors
/// Malformed when the shapes don't fit.
pub(super) fn output_shape(op: &Conv, x: &[usize], w: &[usize], bias: Option<&Float>) -> Result<Vec<usize>> {
    let n = check_weight(x, w, &op.kernel)?;
    op.window.check_rank(n)?;
    let (filters, groups) = (w[0], op.group as usize);
    if w[1].checked_mul(groups) != Some(x[1]) || filters % groups != 0 {
        return Err(Error::malformed(format!("a weight of {w:?} in {groups} groups on an input of {x:?}")));
    }
    check_bias(bias, filters)?;
    let mut out = vec![x[0], filters];
    for i in 0..n {
        out.push(output(&op.window, i, x[2 + i], w[2 + i])?);
    }
    Ok(out)
}

/// Convolution.
pub(super) fn conv(op: &Conv, mut a: Args) -> Result<Value> {
    convolve(op, a.float(0)?, a.float(1)?, a.opt_float(2)?).map(Value::Float)
}

/// Convolution of what is on the device.
pub(super) fn convolve(op: &Conv, x: Float, w: Float, bias: Option<Float>) -> Result<Float> {
    let out = output_shape(op, x.shape(), w.shape(), bias.as_ref())?;
    match out.len() - 2 {
        1 | 2 => {
            let at = placed::<2>(&op.window, x.shape(), w.shape())?;
            let (xs, ws, wide) = (axes::<2>(x.shape()), axes::<2>(w.shape()), axes::<2>(&out));
            let (x, w, groups) = (x.reshape(&xs)?, w.reshape(&ws)?, op.group as usize);
            match x.convolved(&w, bias.as_ref(), &at, groups, [wide[2], wide[3]])? {
                Some(y) => y,
                None => x.conv2d(w, bias, &at, groups)?,
            }
            .reshape(&out)
        }
        3 => {
            let at = placed::<3>(&op.window, x.shape(), w.shape())?;
            x.conv3d(w, bias, &at, op.group as usize)
        }
        n => Err(too_many(n)),
    }
}

fn placed<const N: usize>(w: &Window, x: &[usize], weight: &[usize]) -> Result<Geometry<N>> {
    let at: Geometry<N> = geometry(w, &x[2..], &weight[2..]);
    // Where the padding differs at both ends, a padded copy is made.
    let mut padded = axes::<N>(x);
    for (size, (begin, end)) in padded[2..].iter_mut().zip(at.pads) {
        *size = size.saturating_add(begin).saturating_add(end);
    }
    check_size(&padded)?;
    Ok(at)
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
    let n = check_weight(x.shape(), w.shape(), &op.kernel)?;
    op.check_rank(n)?;
    let groups = op.group as usize;
    if w.shape()[0] != x.shape()[1] || x.shape()[1] % groups != 0 {
        let (w, x) = (w.shape(), x.shape());
        return Err(Error::malformed(format!("a weight of {w:?} in {groups} groups on an input of {x:?}")));
    }
    let channels = w.shape()[1].checked_mul(groups).ok_or_else(|| Error::limit("too many channels"))?;
    check_bias(bias.as_ref(), channels)?;
    let mut out = vec![x.shape()[0], channels];
    let mut begins = vec![];
    for i in 0..n {
        let place = op.placed(i, n, x.shape()[2 + i] as i64, w.shape()[2 + i] as i64).filter(|(_, out)| *out > 0);
        let (begin, size) = place.ok_or_else(|| Error::malformed("padding leaves no output"))?;
        begins.push(begin as usize);
        out.push(size as usize);
    }
    check_size(&out)?;
    let y = match n {
        1 | 2 => {
            let (at, extra) = grown::<2>(op, &x, &w, &begins, &out)?;
            let (xs, ws) = (axes::<2>(x.shape()), axes::<2>(w.shape()));
            x.reshape(&xs)?.conv_transpose2d(w.reshape(&ws)?, bias, &at, extra, groups)?
        }
        3 => {
            let (at, extra) = grown::<3>(op, &x, &w, &begins, &out)?;
            x.conv_transpose3d(w, bias, &at, extra, groups)?
        }
        n => return Err(too_many(n)),
    };
    // Burn cuts as much from the end as from the start: what is too much was not added, and what
    // is left is cut here.
    let mut y = y;
    let first = y.shape().len() - n;
    for i in 0..n {
        y = y.slice(first + i, 0, out[2 + i], 1)?;
    }
    y.reshape(&out).map(Value::Float)
}

/// A window whose padding is `begins` at both ends, and how much the output must grow at its end
/// to reach the size of `out`.
fn grown<const N: usize>(
    op: &ConvTranspose,
    x: &Float,
    w: &Float,
    begins: &[usize],
    out: &[usize],
) -> Result<(Geometry<N>, [usize; N])> {
    let (data, kernel) = (&x.shape()[2..], &w.shape()[2..]);
    let mut at: Geometry<N> = geometry(&op.window, data, kernel);
    at.pads = [(0, 0); N];
    let mut extra = [0; N];
    let missing = N - data.len();
    for (i, begin) in begins.iter().enumerate() {
        let reach = at.stride[missing + i]
            .checked_mul(data[i] - 1)
            .and_then(|s| s.checked_add(at.dilation[missing + i].checked_mul(kernel[i] - 1)?)?.checked_add(1));
        let reach = reach.filter(|r| *r <= i32::MAX as usize && *begin <= i32::MAX as usize);
        let reach = reach.ok_or_else(|| Error::limit("the output is too large"))?;
        at.pads[missing + i] = (*begin, *begin);
        extra[missing + i] = (out[2 + i] + 2 * begin).saturating_sub(reach);
    }
    Ok((at, extra))
}
