//! GridSample and AffineGrid.

use super::{
    Args,
    index::mixed,
    numbers::{floats, of_floats},
};
use crate::{
    burn::{
        host::check_host,
        tensor::{Float, Value},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::grid::{AffineGrid, GridSample, Outside, Sampling},
    tensor::DType,
};
use rayon::prelude::*;

/// Pictures of more axes are refused: each quadruples the pixels that a cubic looks at.
const MOST_AXES: usize = 6;

/// A pixel along one axis, if it is inside, and its weight.
type Tap = (Option<usize>, f64);

/// One axis of the picture.
struct Axis<'a> {
    op: &'a GridSample,
    size: usize,
}

impl Axis<'_> {
    /// The outermost coordinates.
    fn bounds(&self) -> (f64, f64) {
        let n = self.size as f64;
        if self.op.align_corners { (0.0, n - 1.0) } else { (-0.5, n - 0.5) }
    }

    fn reflected(&self, v: f64) -> f64 {
        let (low, high) = self.bounds();
        let range = high - low;
        if range <= 0.0 || (low..=high).contains(&v) {
            return v.clamp(low, high);
        }
        let beyond = if v < low { low - v } else { v - high };
        let back = beyond % range;
        let odd = (beyond / range).floor() % 2.0 != 0.0;
        if (v < low) != odd { low + back } else { high - back }
    }

    /// The coordinate that a place from -1 to 1 means, inside of the picture where it continues.
    fn coordinate(&self, place: f64, wide: bool) -> f64 {
        let n = self.size as f64;
        let mut v =
            if self.op.align_corners { (place + 1.0) / 2.0 * (n - 1.0) } else { ((place + 1.0) * n - 1.0) / 2.0 };
        if !wide {
            // In the arithmetic of the grid, on which it depends what is half way between two pixels.
            let (p, n) = (place as f32, n as f32);
            v = f64::from(if self.op.align_corners {
                (p + 1.0) / 2.0 * (n - 1.0)
            } else {
                ((p + 1.0) * n - 1.0) / 2.0
            });
        }
        if self.op.mode == Sampling::Nearest {
            v = v.round_ties_even();
        }
        let (low, high) = self.bounds();
        match self.op.outside {
            // A cubic near the border still sees pixels inside: there, the border is repeated tap by tap,
            // as PyTorch and ONNX Runtime do it (ONNX's reference moves the place to the border).
            Outside::Border if self.op.mode == Sampling::Cubic => v.clamp(-3.0, n + 2.0),
            Outside::Border if v < low || v > high => v.clamp(0.0, n - 1.0),
            Outside::Reflection => self.reflected(v),
            _ => v,
        }
    }

    fn pixel(&self, i: i64) -> Option<usize> {
        let last = self.size as i64 - 1;
        match self.op.outside {
            Outside::Zeros => usize::try_from(i).ok().filter(|i| *i < self.size),
            Outside::Border => Some(i.clamp(0, last) as usize),
            Outside::Reflection => Some((self.reflected(i as f64) as i64).clamp(0, last) as usize),
        }
    }

    /// The pixels that make the value at a coordinate.
    fn taps(&self, v: f64) -> Vec<Tap> {
        if v.is_nan() {
            return vec![(self.pixel(0), f64::NAN)];
        }
        let low = v.floor();
        let (first, t) = (low as i64, v - low);
        let tap = |offset: i64, weight: f64| (self.pixel(first.saturating_add(offset)), weight);
        match self.op.mode {
            Sampling::Nearest => vec![tap(0, 1.0)],
            Sampling::Linear => vec![tap(0, 1.0 - t), tap(1, t)],
            Sampling::Cubic => {
                let a = -0.75;
                let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
                let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
                vec![tap(-1, far(t + 1.0)), tap(0, near(t)), tap(1, near(1.0 - t)), tap(2, far(2.0 - t))]
            }
        }
    }
}

/// Samples pictures at given places.
pub(super) fn grid_sample(op: &GridSample, mut a: Args) -> Result<Value> {
    let (x, grid) = (a.take(0)?, a.take(1)?);
    let (xs, gs, dtype) = (x.shape().to_vec(), grid.shape().to_vec(), x.dtype());
    let space = xs.len().saturating_sub(2);
    if space == 0 || gs.len() != xs.len() || gs[0] != xs[0] || gs[space + 1] != space {
        return Err(Error::malformed(format!("a grid of {gs:?} on pictures of {xs:?}")));
    }
    if space > MOST_AXES {
        return Err(Error::unsupported(format!("GridSample over {space} axes")));
    }
    let shape = [&xs[..2], &gs[1..=space]].concat();
    check_host(&shape)?;
    let wide = grid.dtype() == DType::F64;
    let grid = floats(grid)?;
    let axes: Vec<Axis> = xs[2..].iter().map(|n| Axis { op, size: *n }).collect();
    let (plane, places): (usize, usize) = (xs[2..].iter().product(), gs[1..=space].iter().product());
    // For each place, all pixels that matter, and their weights: the same in all channels.
    let sample = |place: &[f64]| -> Vec<(usize, f64)> {
        let mut taps = vec![(0, 1.0)];
        // The grid lists the innermost axis first.
        for (axis, place) in axes.iter().zip(place.iter().rev()) {
            let next = axis.taps(axis.coordinate(*place, wide));
            taps = taps
                .into_iter()
                .flat_map(|(at, weight)| {
                    next.iter().filter_map(move |(i, w)| Some((at * axis.size + (*i)?, weight * w)))
                })
                .collect();
        }
        taps
    };
    let channels = xs[1];
    let mut out = vec![0.0; shape.iter().product()];
    if out.is_empty() || plane == 0 {
        return of_floats(out, &shape, dtype, a.device);
    }
    let x = match x {
        Value::Float(x) if x.is_tracked() => {
            let taps = grid.chunks_exact(space).enumerate().map(|(place, at)| {
                let from = place / places * plane;
                sample(at).into_iter().map(|(at, weight)| ((from + at) as i64, weight)).collect()
            });
            return sampled(x, &taps.collect::<Vec<_>>(), &shape, a.device).map(Value::Float);
        }
        x => floats(x)?,
    };
    out.par_chunks_mut(channels * places).enumerate().for_each(|(n, out)| {
        for i in 0..places {
            let taps = sample(&grid[(n * places + i) * space..][..space]);
            for c in 0..channels {
                let plane = &x[(n * channels + c) * plane..][..plane];
                out[c * places + i] = taps.iter().map(|(at, weight)| plane[*at] * weight).sum();
            }
        }
    });
    of_floats(out, &shape, dtype, a.device)
}

/// Mixes pixels of pictures, whose places are counted over all samples but within one channel, to pictures of
/// `shape`. Unlike loops on the host this has a gradient.
pub(super) fn sampled(x: Float, taps: &[Vec<(i64, f64)>], shape: &[usize], device: &Device) -> Result<Float> {
    let (samples, channels) = (x.shape()[0], x.shape()[1]);
    let plane = x.shape()[2..].iter().product();
    let x = x.reshape(&[samples, channels, plane])?.permute(&[1, 0, 2]).reshape(&[channels, samples * plane])?;
    let y = mixed(x, 1, taps, device)?.reshape(&[channels, shape[0], taps.len() / shape[0]])?;
    y.permute(&[1, 0, 2]).reshape(shape)
}

/// The places to which affine transforms send the pixels of a picture.
pub(super) fn affine_grid(op: &AffineGrid, mut a: Args) -> Result<Value> {
    let (theta, size) = (a.take(0)?, a.ints(1)?);
    let sides: Option<Vec<usize>> = size.iter().map(|n| usize::try_from(*n).ok()).collect();
    let (Some(sides), 4 | 5) = (sides, size.len()) else {
        return Err(Error::malformed(format!("pictures of {size:?}")));
    };
    let (n, sides) = (sides[0], &sides[2..]);
    let space = sides.len();
    if theta.shape() != [n, space, space + 1] {
        return Err(Error::malformed(format!("matrices of {:?} for pictures of {size:?}", theta.shape())));
    }
    let shape = [&[n], sides, &[space]].concat();
    let mut out = Vec::with_capacity(check_host(&shape)?);
    let dtype = theta.dtype();
    let theta = floats(theta)?;
    let places: usize = sides.iter().product();
    for matrix in theta.chunks_exact(space * (space + 1)).filter(|_| places > 0) {
        for place in 0..places {
            let (mut rest, mut at) = (place, vec![1.0; space + 1]);
            // The innermost axis is the first coordinate.
            for (i, side) in sides.iter().rev().enumerate() {
                let (c, n) = ((rest % side) as f64, *side as f64);
                rest /= side;
                at[i] = match (op.align_corners, *side) {
                    (true, 1) => -1.0,
                    (true, _) => -1.0 + 2.0 * c / (n - 1.0),
                    (false, _) => (2.0 * c + 1.0) / n - 1.0,
                };
            }
            out.extend(matrix.chunks_exact(space + 1).map(|row| row.iter().zip(&at).map(|(m, v)| m * v).sum::<f64>()));
        }
    }
    of_floats(out, &shape, dtype, a.device)
}
