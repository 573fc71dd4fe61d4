//! Resize, one axis after the other: nearest picks entries, the others mix some.

use super::{
    Args, empty_value,
    index::{entries, mixed},
};
use crate::{
    burn::{
        host::{self, IntArray, wrap},
        tensor::{Float, Value, check_size},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::resize::{Coordinates, Interpolation, Nearest, Resize, Stretch},
    tensor::DType,
};

/// More input pixels than this for one output pixel are refused.
const MAX_TAPS: usize = 4096;
/// Longer axes are refused, as each of their pixels has a list of others.
const MAX_PIXELS: usize = 1 << 24;

/// What happens to one axis.
struct Axis {
    from: usize,
    to: usize,
    scale: f32,
    /// The new size before it was rounded.
    width: f32,
    /// The part of the axis that is looked at, in shares of it.
    roi: (f32, f32),
}

/// Resizes input 0 by the scales in input 2 or to the sizes in input 3.
pub(super) fn resize(op: &Resize, mut a: Args) -> Result<Value> {
    let x = a.take(0)?;
    let dtype = x.dtype();
    let roi = a.opt_float(1)?.map(Float::into_f64s).transpose()?.filter(|r| !r.is_empty());
    let scales = a.opt_float(2)?.map(Float::into_f64s).transpose()?;
    let scales: Option<Vec<f32>> = scales.map(|s| s.into_iter().map(|v| v as f32).collect());
    let sizes = a.opt_ints(3)?;
    let old = x.shape().to_vec();
    let axes = op.axes(old.len())?;
    if op.coordinates == Coordinates::CropAndResize && roi.as_ref().is_none_or(|r| r.len() != 2 * axes.len()) {
        return Err(Error::malformed(format!("a region of interest {roi:?} for {} axes", axes.len())));
    }
    let stretches = op.stretches(&old, scales.as_deref(), sizes.as_deref().map(Vec::as_slice))?;
    let new: Vec<usize> = stretches.iter().map(|s| s.size).collect();
    check_size(&new)?;
    if new.contains(&0) {
        return empty_value(dtype, &new, a.device);
    }
    // Mixing whole numbers makes fractions, which are rounded in the end.
    let mixes = op.mode != Interpolation::Nearest;
    let mut x = match x {
        Value::Int(i) if mixes && dtype != DType::Bool => {
            let data = i.data.iter().map(|v| *v as f64).collect();
            Value::Float(Float::from_f64s(data, &old, DType::F64, a.device)?)
        }
        other => other,
    };
    let mut outside = vec![];
    for (i, axis) in axes.iter().enumerate() {
        let roi = match (&roi, op.coordinates) {
            (Some(r), Coordinates::CropAndResize) => (r[i] as f32, r[axes.len() + i] as f32),
            _ => (0.0, 1.0),
        };
        let Stretch { scale, width, size: to } = stretches[*axis];
        let of = Axis { from: old[*axis], to, scale, width, roi };
        if of.is_same() {
            continue;
        }
        check(op, &of)?;
        let at: Vec<f64> = (0..of.to).map(|p| f64::from(of.coordinate(op.coordinates, p as f32))).collect();
        if op.coordinates == Coordinates::CropAndResize {
            let last = (of.from - 1) as f64;
            outside.push((*axis, at.iter().map(|v| i64::from((0.0..=last).contains(v))).collect::<Vec<_>>()));
        }
        x = if mixes {
            Value::Float(mix(op, x.into_device(a.device)?, *axis, &at, &of, a.device)?)
        } else {
            entries(x, *axis, at.iter().map(|v| of.picked(op, *v) as i64).collect())?
        };
    }
    for (axis, inside) in outside.into_iter().filter(|(_, inside)| inside.contains(&0)) {
        let mut shape = vec![1; new.len()];
        shape[axis] = inside.len();
        x = extrapolated(x, IntArray::new(DType::I64, shape, inside), op.extrapolation, a.device)?;
    }
    if mixes { finished(x, dtype) } else { Ok(x) }
}

/// `x` where `inside`, the extrapolation value elsewhere.
fn extrapolated(x: Value, inside: IntArray, value: f32, device: &Device) -> Result<Value> {
    match x {
        Value::Float(x) => {
            let dtype = x.dtype();
            let value = Float::from_f64s(vec![f64::from(value)], &[], dtype, device)?;
            x.select_where(&inside, value).map(|y| Value::Float(y.with_dtype(dtype)))
        }
        Value::Int(x) => {
            let value = wrap(x.dtype, value as i64);
            let pick = |x, inside| Ok(if inside != 0 { x } else { value });
            let data = host::zip((&x.data, &x.shape), (&inside.data, &inside.shape), &x.shape, pick)?;
            Ok(Value::Int(IntArray::new(x.dtype, x.shape, data)))
        }
    }
}

/// Numbers as elements of `dtype`.
fn finished(x: Value, dtype: DType) -> Result<Value> {
    let (x, (low, high)) = match (x, dtype.int_range()) {
        (Value::Float(x), Some(range)) => (x, range),
        (x, _) => return Ok(x),
    };
    let x = x.round().clamp_min(low as f64).clamp_max(high as f64);
    if dtype.bits() <= 16 {
        return Ok(Value::Float(x.with_dtype(dtype)));
    }
    let shape = x.shape().to_vec();
    let data = x.into_f64s()?.into_iter().map(|v| v as i64).collect();
    Ok(Value::Int(IntArray::new(dtype, shape, data)))
}

/// The input pixels that [`Interpolation::Nearest`] picks along every axis of `dims`.
///
/// # Errors
/// As for [`Resize::stretches`].
pub(crate) fn nearest_entries(
    op: &Resize,
    dims: &[usize],
    scales: Option<&[f32]>,
    sizes: Option<&[i64]>,
) -> Result<Vec<Vec<usize>>> {
    let axis = |(from, s): (&usize, &Stretch)| {
        let of = Axis { from: *from, to: s.size, scale: s.scale, width: s.width, roi: (0.0, 1.0) };
        let picked = |p: usize| of.picked(op, f64::from(of.coordinate(op.coordinates, p as f32)));
        if of.is_same() { (0..of.to).collect() } else { (0..of.to).map(picked).collect() }
    };
    Ok(dims.iter().zip(&op.stretches(dims, scales, sizes)?).map(axis).collect())
}

/// The input pixels that make one along an axis, and how much each counts.
pub(crate) type Taps = Vec<(usize, f32)>;

/// The input pixels that are mixed along every axis of `dims`, by another mode than [`Interpolation::Nearest`]; none for axes
/// that stay as they are.
///
/// # Errors
/// As for [`Resize::stretches`]; limit where an axis is too long, or too many pixels make one.
pub(crate) fn mixed_entries(
    op: &Resize,
    dims: &[usize],
    scales: Option<&[f32]>,
    sizes: Option<&[i64]>,
) -> Result<Vec<Option<Vec<Taps>>>> {
    let axis = |(from, s): (&usize, &Stretch)| {
        let of = Axis { from: *from, to: s.size, scale: s.scale, width: s.width, roi: (0.0, 1.0) };
        if of.is_same() {
            return Ok(None);
        }
        check(op, &of)?;
        let of_pixel = |p: usize| {
            let taps = taps(op, f64::from(of.coordinate(op.coordinates, p as f32)), &of);
            taps.into_iter().map(|(pixel, weight)| (pixel as usize, weight as f32)).collect()
        };
        Ok(Some((0..of.to).map(of_pixel).collect()))
    };
    dims.iter().zip(&op.stretches(dims, scales, sizes)?).map(axis).collect()
}

/// Whether an axis is short enough, and one of its pixels is made of few.
fn check(op: &Resize, of: &Axis) -> Result<()> {
    if of.to > MAX_PIXELS {
        return Err(Error::limit(format!("resizing an axis to {}; at most {MAX_PIXELS} are computed", of.to)));
    }
    if op.antialias && 4.0 / of.scale > MAX_TAPS as f32 {
        let (from, to) = (of.from, of.to);
        return Err(Error::limit(format!("more than {MAX_TAPS} pixels of an axis of {from} in one of {to}")));
    }
    Ok(())
}

impl Axis {
    /// Whether nothing happens to the axis.
    fn is_same(&self) -> bool {
        self.scale == 1.0 && self.from == self.to && self.roi == (0.0, 1.0)
    }

    /// The pixel nearest to `at`.
    fn picked(&self, op: &Resize, at: f64) -> usize {
        nearest(op.nearest, at).clamp(0.0, (self.from - 1) as f64) as usize
    }

    /// Where output pixel `i` lies in the input. In `f32` but for one mode, as ONNX Runtime does it,
    /// so that the same pixels are picked.
    fn coordinate(&self, mode: Coordinates, i: f32) -> f32 {
        let (from, to) = (self.from as f32, self.to as f32);
        // A scale is a rounded quotient, so its product may miss a whole number.
        let width = if (self.width - to).abs() <= to * f32::EPSILON { to } else { self.width };
        match mode {
            Coordinates::PytorchHalfPixel if self.to == 1 => 0.0,
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => (i + 0.5) / self.scale - 0.5,
            Coordinates::HalfPixelSymmetric => {
                let offset = from / 2.0 * (1.0 - to / (from * self.scale));
                (f64::from(offset) + f64::from(i + 0.5) / f64::from(self.scale) - 0.5) as f32
            }
            Coordinates::AlignCorners if width == 1.0 => 0.0,
            Coordinates::AlignCorners => i * (from - 1.0) / (width - 1.0),
            Coordinates::Asymmetric => i / self.scale,
            Coordinates::CropAndResize => {
                let ((start, end), last) = (self.roi, from - 1.0);
                let middle = self.to == 1;
                if middle {
                    0.5 * (start + end) * last
                } else {
                    start * last + i * (end - start) * last / (width - 1.0)
                }
            }
        }
    }
}

/// What is closer than this to the middle between two pixels lies there, as in ONNX Runtime.
const TIE: f64 = 1e-6;

fn nearest(mode: Nearest, v: f64) -> f64 {
    let tie = (v - v.floor() - 0.5).abs() < TIE;
    match mode {
        Nearest::RoundPreferFloor if tie => v.floor(),
        Nearest::RoundPreferCeil if tie => v.ceil(),
        Nearest::RoundPreferFloor => (v - 0.5).ceil(),
        Nearest::RoundPreferCeil => (v + 0.5).floor(),
        Nearest::Floor => v.floor(),
        Nearest::Ceil => v.ceil(),
    }
}

/// How much a pixel at distance `t` counts.
fn kernel(op: &Resize, t: f64) -> f64 {
    let (t, a) = (t.abs(), f64::from(op.cubic));
    match op.mode {
        Interpolation::Cubic if t <= 1.0 => ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0,
        Interpolation::Cubic if t < 2.0 => ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a,
        Interpolation::Cubic => 0.0,
        _ => (1.0 - t).max(0.0),
    }
}

/// The input pixels that make one at `at`, and how much each counts.
fn taps(op: &Resize, at: f64, axis: &Axis) -> Vec<(i64, f64)> {
    let last = axis.from as i64 - 1;
    // A kernel that is antialiased spans as many output pixels as it otherwise spans input ones.
    let squeeze = if op.antialias { f64::from(axis.scale).min(1.0) } else { 1.0 };
    let radius = if op.mode == Interpolation::Cubic { 2.0 } else { 1.0 } / squeeze;
    let mut taps: Vec<(i64, f64)> = vec![];
    let mut total = 0.0;
    for i in (at - radius).ceil() as i64..=(at + radius).floor() as i64 {
        let weight = kernel(op, (i as f64 - at) * squeeze);
        if weight == 0.0 || op.exclude_outside && !(0..=last).contains(&i) {
            continue;
        }
        total += weight;
        // Beyond the edge its pixel is repeated.
        match taps.last_mut() {
            Some((pixel, sum)) if *pixel == i.clamp(0, last) => *sum += weight,
            _ => taps.push((i.clamp(0, last), weight)),
        }
    }
    if total != 0.0 && (op.antialias || op.exclude_outside) {
        taps.iter_mut().for_each(|(_, weight)| *weight /= total);
    }
    taps
}

/// Mixes entries of an axis.
fn mix(op: &Resize, x: Float, axis: usize, at: &[f64], of: &Axis, device: &Device) -> Result<Float> {
    // What lies outside of a crop is replaced in the end.
    let cut =
        |v: f64| if op.coordinates == Coordinates::CropAndResize { v.clamp(0.0, (of.from - 1) as f64) } else { v };
    let all: Vec<Vec<(i64, f64)>> = at.iter().map(|v| taps(op, cut(*v), of)).collect();
    mixed(x, axis, &all, device)
}
