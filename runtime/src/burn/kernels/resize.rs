//! Resize, one axis after the other: nearest picks entries, linear mixes two of them.

use super::{Args, index::entries};
use crate::{
    burn::tensor::{Float, Value, check_size},
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::resize::{Coordinates, Interpolation, Nearest, Resize},
};

/// Resizes input 0 by the scales in input 2 or to the sizes in input 3.
pub(super) fn resize(op: &Resize, mut a: Args) -> Result<Value> {
    let mut x = a.take(0)?;
    let scales = a.opt_float(2)?.map(Float::into_vec).transpose()?;
    let sizes = a.opt_ints(3)?;
    let old = x.shape().to_vec();
    let new = Resize::output(&old, scales.as_deref(), sizes.as_deref().map(Vec::as_slice))?;
    check_size(&new)?;
    if new.contains(&0) {
        return Err(Error::unsupported("Resize to an empty tensor"));
    }
    for axis in 0..old.len() {
        let (from, to) = (old[axis], new[axis]);
        let scale = match scales.as_deref().filter(|s| !s.is_empty()) {
            Some(s) => s[axis],
            None => to as f32 / from as f32,
        };
        if scale == 1.0 && from == to {
            continue;
        }
        let at: Vec<f32> = (0..to).map(|i| coordinate(op.coordinates, i, scale, from, to)).collect();
        x = match op.mode {
            Interpolation::Nearest => {
                let pick = |v: &f32| (nearest(op.nearest, *v) as i64).clamp(0, from as i64 - 1);
                entries(x, axis, at.iter().map(pick).collect())?
            }
            Interpolation::Linear => Value::Float(linear(super::as_float(x)?, axis, &at, a.device)?),
        };
    }
    Ok(x)
}

/// Where output pixel `i` lies in the input. In `f32`, as ONNX Runtime does it, so that the
/// same pixels are picked; and like it, with `to` whole, where ONNX's reference implementation
/// aligns the corners of an output of fractional size.
fn coordinate(mode: Coordinates, i: usize, scale: f32, from: usize, to: usize) -> f32 {
    let i = i as f32;
    match mode {
        Coordinates::HalfPixel => (i + 0.5) / scale - 0.5,
        Coordinates::PytorchHalfPixel if to > 1 => (i + 0.5) / scale - 0.5,
        Coordinates::PytorchHalfPixel => 0.0,
        Coordinates::AlignCorners if to > 1 => i * (from - 1) as f32 / (to - 1) as f32,
        Coordinates::AlignCorners => 0.0,
        Coordinates::Asymmetric => i / scale,
    }
}

fn nearest(mode: Nearest, v: f32) -> f32 {
    match mode {
        Nearest::RoundPreferFloor => (v - 0.5).ceil(),
        Nearest::RoundPreferCeil => (v + 0.5).floor(),
        Nearest::Floor => v.floor(),
        Nearest::Ceil => v.ceil(),
    }
}

fn linear(x: Float, axis: usize, at: &[f32], device: &Device) -> Result<Float> {
    let last = x.shape()[axis] - 1;
    let (mut low, mut high, mut weight) = (vec![], vec![], vec![]);
    for v in at {
        // Beyond the edge its pixel is repeated.
        let v = v.clamp(0.0, last as f32);
        let l = (v as usize).min(last);
        low.push(l as i64);
        high.push((l + 1).min(last) as i64);
        weight.push(v - l as f32);
    }
    let mut shape = vec![1; x.shape().len()];
    shape[axis] = at.len();
    let weight = Float::from_vec(weight, &shape, device)?;
    let (low, high) = (x.clone().select(axis, low)?, x.select(axis, high)?);
    let step = high.sub(low.clone())?.mul(weight)?;
    low.add(step)
}
