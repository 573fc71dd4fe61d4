//! DeformConv over two axes: what the moved taps see is gathered on the host, and a matrix
//! product does the rest.

use super::{Args, conv};
use crate::burn::{
    host::check_host,
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::deform_conv::DeformConv,
};
use rayon::prelude::*;

/// A plane of the input.
struct Plane<'a> {
    data: &'a [f64],
    height: i64,
    width: i64,
}

impl Plane<'_> {
    /// The value at a point between elements; beyond the edge all are 0.
    fn at(&self, y: f64, x: f64) -> f64 {
        let (top, left) = (y.floor(), x.floor());
        let (down, right) = (y - top, x - left);
        let get = |y: i64, x: i64| {
            let inside = (0..self.height).contains(&y) && (0..self.width).contains(&x);
            if inside { self.data[(y * self.width + x) as usize] } else { 0.0 }
        };
        let row = |y: i64| {
            let x = left as i64;
            get(y, x) * (1.0 - right) + get(y, x.saturating_add(1)) * right
        };
        let y = top as i64;
        row(y) * (1.0 - down) + row(y.saturating_add(1)) * down
    }
}

/// A convolution whose taps are moved by input 2 and weighed by input 4.
pub(super) fn deform_conv(op: &DeformConv, mut a: Args) -> Result<Value> {
    let (x, w, offset) = (a.float(0)?, a.float(1)?, a.float(2)?);
    let (bias, mask) = (a.opt_float(3)?, a.opt_float(4)?);
    let out = conv::output_shape(&op.conv, x.shape(), w.shape(), bias.as_ref())?;
    let ([n, c, height, width], [_, _, kh, kw]) = (x.shape(), w.shape()) else {
        return Err(Error::unsupported(format!("DeformConv over {} axes", x.shape().len() - 2)));
    };
    let (n, c, height, width, kh, kw) = (*n, *c, *height, *width, *kh, *kw);
    let (taps, groups, own) = (kh * kw, op.conv.group as usize, op.offset_group as usize);
    let (rows, columns) = (out[2], out[3]);
    let points = rows * columns;
    let wanted = |each: usize| [n, own.saturating_mul(each), rows, columns];
    if c % own != 0 || offset.shape() != wanted(2 * taps) || mask.as_ref().is_some_and(|m| m.shape() != wanted(taps)) {
        let (offset, mask) = (offset.shape(), mask.map(|m| m.shape().to_vec()));
        return Err(Error::malformed(format!(
            "offsets of {offset:?} and a mask of {mask:?} in {own} groups for an output of {out:?}"
        )));
    }
    let dtype = x.dtype();
    let (x, offset, mask) = (x.into_f64s()?, offset.into_f64s()?, mask.map(Float::into_f64s).transpose()?);
    let mut seen = vec![0.0; check_host(&[n, c, taps, points])?];
    let axis = |i: usize, size: usize, kernel: usize| {
        let begin = op.conv.window.padding(i, size as i64, kernel as i64).0;
        move |p: usize, t: usize| p as i64 * op.conv.window.stride(i) + t as i64 * op.conv.window.dilation(i) - begin
    };
    let (down, across) = (axis(0, height, kh), axis(1, width, kw));
    seen.par_chunks_mut(taps * points).enumerate().for_each(|(i, seen)| {
        let plane =
            Plane { data: &x[i * height * width..][..height * width], height: height as i64, width: width as i64 };
        let group = i / c * own + i % c / (c / own);
        for (j, seen) in seen.iter_mut().enumerate() {
            let (tap, point) = (j / points, j % points);
            let moved = |axis: usize| offset[((group * taps + tap) * 2 + axis) * points + point];
            let y = down(point / columns, tap / kw) as f64 + moved(0);
            let x = across(point % columns, tap % kw) as f64 + moved(1);
            let weight = mask.as_ref().map_or(1.0, |m| m[(group * taps + tap) * points + point]);
            *seen = plane.at(y, x) * weight;
        }
    });
    let terms = c / groups * taps;
    let seen = Float::from_f64s(seen, &[n, groups, terms, points], dtype, a.device)?;
    let w = w.reshape(&[1, groups, out[1] / groups, terms])?;
    let mut y = w.matmul(seen)?.reshape(&out)?;
    if let Some(bias) = bias {
        y = y.add(bias.reshape(&[1, out[1], 1, 1])?)?;
    }
    Ok(Value::Float(y))
}
