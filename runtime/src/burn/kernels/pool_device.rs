//! Pools over one or two axes by the kernels that devices have.

use super::conv::{axes, geometry};
use crate::{
    burn::tensor::{Float, Geometry},
    device::Device,
};
use compress_compiler::{
    error::Result,
    ops::pool::{Pool, PoolKind},
    tensor::DType,
};

/// Whether there are kernels for this pool.
pub(super) fn can(op: &Pool, x: &Float) -> bool {
    let known = op.kind == PoolKind::Average || op.kind == PoolKind::Max && !op.indices;
    known && op.kernel.len() <= 2 && x.dtype() != DType::F64
}

/// A pool whose output has `shape`; the caller has checked that all fits.
pub(super) fn pool(op: &Pool, x: Float, shape: &[usize], device: &Device) -> Result<Float> {
    let taps: Vec<usize> = op.kernel.iter().map(|k| *k as usize).collect();
    let at = geometry(&op.window, &x.shape()[2..], &taps);
    let (four, wide) = (axes::<2>(x.shape()), axes::<2>(shape));
    let (size, out) = ([four[2], four[3]], [wide[2], wide[3]]);
    let kernel = [if taps.len() == 2 { taps[0] } else { 1 }, taps[taps.len() - 1]];
    let x = x.reshape(&four)?;
    let y = match op.kind {
        PoolKind::Max => max(x, kernel, &at, size, out)?,
        _ => average(x, kernel, &at, size, out, op, device)?,
    };
    y.reshape(shape)
}

/// The padding behind each axis that makes the last position fit.
fn needed(kernel: [usize; 2], at: &Geometry<2>, size: [usize; 2], out: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|i| {
        let reach = (out[i] - 1) * at.stride[i] + at.dilation[i] * (kernel[i] - 1) + 1;
        reach.saturating_sub(size[i] + at.pads[i].0)
    })
}

fn max(x: Float, kernel: [usize; 2], at: &Geometry<2>, size: [usize; 2], out: [usize; 2]) -> Result<Float> {
    if let Some(y) = x.max_pooled(kernel, at, out) {
        return Ok(y);
    }
    // Burn pads both ends alike. More padding than asked for is harmless to a maximum, as
    // long as it adds no position.
    let fits = |i: usize| {
        let room = size[i] + 2 * at.pads[i].0;
        let reach = at.dilation[i] * (kernel[i] - 1) + 1;
        room >= reach && (room - reach) / at.stride[i] + 1 == out[i]
    };
    if fits(0) && fits(1) {
        return Ok(x.max_pool2d(kernel, at, false, out));
    }
    let end = needed(kernel, at, size, out);
    let border = [(0, 0), (0, 0), (at.pads[0].0, end[0]), (at.pads[1].0, end[1])];
    let bare = Geometry { pads: [(0, 0); 2], ..*at };
    let x = x.pad(&border, f32::NEG_INFINITY)?;
    // What lies behind the last position is cut, lest it make another.
    Ok(cut(x, kernel, at, out)?.max_pool2d(kernel, &bare, false, out))
}

/// Cuts what no position reaches.
fn cut(mut x: Float, kernel: [usize; 2], at: &Geometry<2>, out: [usize; 2]) -> Result<Float> {
    for i in 0..2 {
        let reach = (out[i] - 1) * at.stride[i] + at.dilation[i] * (kernel[i] - 1) + 1;
        if reach < x.shape()[2 + i] {
            x = x.slice(2 + i, 0, reach, 1)?;
        }
    }
    Ok(x)
}

fn average(
    x: Float,
    kernel: [usize; 2],
    at: &Geometry<2>,
    size: [usize; 2],
    out: [usize; 2],
    op: &Pool,
    device: &Device,
) -> Result<Float> {
    let undilated = at.dilation == [1, 1];
    let symmetric = at.pads.iter().all(|(begin, end)| begin == end);
    if undilated && symmetric && !op.window.ceil_mode {
        return Ok(x.avg_pool2d(kernel, at, op.count_include_pad, false, out));
    }
    // In general: sums over the zero-padded input, divided by how many taps count.
    let end = needed(kernel, at, size, out);
    let border = [(0, 0), (0, 0), (at.pads[0].0, end[0]), (at.pads[1].0, end[1])];
    let bare = Geometry { pads: [(0, 0); 2], ..*at };
    let x = cut(x.pad(&border, 0.0)?, kernel, at, out)?;
    let taps = kernel[0] * kernel[1];
    let sums = if undilated {
        x.avg_pool2d(kernel, &bare, true, false, out).mul_scalar(taps as f32)
    } else {
        let shape = x.shape().to_vec();
        let ones = Float::full(&[1, 1, kernel[0], kernel[1]], 1.0, device)?;
        let rows = x.reshape(&[shape[0] * shape[1], 1, shape[2], shape[3]])?;
        rows.conv2d(ones, None, &bare, 1)?.reshape(&[shape[0], shape[1], out[0], out[1]])?
    };
    // Taps beyond the padding asked for (the overhang of ceil_mode) never count.
    let count = |i: usize, position: usize| {
        let (low, high) = match op.count_include_pad {
            true => (0, at.pads[i].0 + size[i] + at.pads[i].1),
            false => (at.pads[i].0, at.pads[i].0 + size[i]),
        };
        let tap = |t: usize| position * at.stride[i] + t * at.dilation[i];
        (0..kernel[i]).filter(|t| (low..high).contains(&tap(*t))).count().max(1)
    };
    let counts = |i: usize| (0..out[i]).map(move |p| count(i, p)).collect::<Vec<_>>();
    let (rows, columns) = (counts(0), counts(1));
    let divisors = rows.iter().flat_map(|r| columns.iter().map(move |c| (r * c) as f32)).collect();
    sums.div(Float::from_vec(divisors, &[1, 1, out[0], out[1]], device)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burn::{
        kernels::{Args, pool},
        tensor::Value,
    };
    use compress_compiler::ops::window::{AutoPad, Window};

    /// These kernels and the host's must agree; both run on the CPU.
    #[test]
    fn devices_pool_as_the_host_does() -> Result<()> {
        let device = Device::cpu();
        let window = |strides: &[i64], pads: &[i64], dilations: &[i64], ceil_mode| Window {
            strides: strides.into(),
            pads: pads.into(),
            dilations: dilations.into(),
            ceil_mode,
            auto_pad: AutoPad::NotSet,
        };
        let cases: &[(&[usize], &[i64], Window)] = &[
            (&[2, 3, 9, 8], &[3, 2], window(&[2, 2], &[], &[], false)),
            (&[1, 2, 9, 9], &[3, 3], window(&[2, 2], &[1, 1, 1, 1], &[], false)),
            (&[1, 2, 9, 8], &[3, 3], window(&[2, 2], &[0, 1, 2, 1], &[], false)),
            (&[1, 2, 8, 8], &[3, 3], window(&[2, 2], &[1, 1, 1, 1], &[], true)),
            (&[1, 2, 11, 10], &[3, 2], window(&[2, 1], &[1, 0, 1, 1], &[2, 3], false)),
            (&[2, 3, 15], &[3], window(&[2], &[1, 0], &[], true)),
        ];
        for (shape, kernel, window) in cases {
            let data = (0..shape.iter().product()).map(|i: usize| (i * 37 % 101) as f32 - 50.0).collect();
            let x = Float::from_vec(data, shape, &device)?;
            for (kind, count_include_pad) in
                [(PoolKind::Max, false), (PoolKind::Average, false), (PoolKind::Average, true)]
            {
                let op = Pool { count_include_pad, ..Pool::new(kind, kernel.to_vec(), window.clone()) };
                assert!(can(&op, &x));
                let args = Args::new(vec![Some(Value::Float(x.clone()))], &device);
                let Some(Value::Float(host)) = pool::pool(&op, args)?.pop() else { panic!("no float") };
                let out = host.shape().to_vec();
                let (a, b) = (host.into_vec()?, super::pool(&op, x.clone(), &out, &device)?.into_vec()?);
                assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4), "{op:?}: {a:?} {b:?}");
            }
        }
        Ok(())
    }
}
