//! NonMaxSuppression, RoiAlign and MaxRoiPool.

use super::{
    Args,
    grid::sampled,
    numbers::{Host, floats, number, of_floats, whole},
};
use crate::burn::{
    host::{IntArray, check_host},
    tensor::{Value, check_size},
};
use compress_compiler::{
    error::{Error, Result},
    ops::roi::{MaxRoiPool, NonMaxSuppression, RoiAlign},
    tensor::DType,
};

/// A box: its corners, the lower one first.
#[derive(Clone, Copy)]
struct Rect {
    low: [f64; 2],
    high: [f64; 2],
}

impl Rect {
    fn new(v: &[f64], center: bool) -> Self {
        if center {
            let at = |i: usize, half: f64| v[i] + half * v[2 + i] / 2.0;
            return Self { low: [at(0, -1.0), at(1, -1.0)], high: [at(0, 1.0), at(1, 1.0)] };
        }
        Self { low: [v[0].min(v[2]), v[1].min(v[3])], high: [v[0].max(v[2]), v[1].max(v[3])] }
    }

    fn area(self) -> f64 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// The part of the union of both that both cover.
    fn overlap(self, other: Self) -> f64 {
        let side = |i: usize| self.high[i].min(other.high[i]) - self.low[i].max(other.low[i]);
        let (a, b) = (side(0), side(1));
        if !(a > 0.0 && b > 0.0 && self.area() > 0.0 && other.area() > 0.0) {
            return 0.0;
        }
        // As precise as the specification's, so that a threshold met exactly is.
        f64::from((a * b / (self.area() + other.area() - a * b)) as f32)
    }
}

/// The boxes that are left when those which overlap a better one are dropped.
pub(super) fn non_max_suppression(op: &NonMaxSuppression, mut a: Args) -> Result<Value> {
    let (boxes, scores) = (a.take(0)?, a.take(1)?);
    let most = a.opt(2).map(whole).transpose()?.unwrap_or(0);
    let threshold = a.opt(3).map(number).transpose()?.unwrap_or(0.0);
    let least = a.opt(4).map(number).transpose()?;
    let ([batches, count, 4], [also, classes, same]) = (boxes.shape(), scores.shape()) else {
        return Err(Error::malformed(format!("boxes of {:?}, scores of {:?}", boxes.shape(), scores.shape())));
    };
    let (batches, count, classes) = (*batches, *count, *classes);
    if (*also, *same) != (batches, count) {
        return Err(Error::malformed(format!("boxes of {:?}, scores of {:?}", boxes.shape(), scores.shape())));
    }
    let (boxes, scores) = (floats(boxes.detached())?, floats(scores.detached())?);
    let most = usize::try_from(most).unwrap_or(0).min(count);
    let mut out = vec![];
    for batch in (0..batches).filter(|_| most > 0) {
        let rects: Vec<Rect> = boxes[batch * count * 4..(batch + 1) * count * 4]
            .chunks_exact(4)
            .map(|v| Rect::new(v, op.center_point_box))
            .collect();
        for class in 0..classes {
            let scores = &scores[(batch * classes + class) * count..][..count];
            let mut order: Vec<usize> = (0..count).filter(|i| least.is_none_or(|l| scores[*i] > l)).collect();
            order.sort_by(|i, j| scores[*j].total_cmp(&scores[*i]));
            let mut chosen: Vec<usize> = vec![];
            for i in order {
                if chosen.len() == most {
                    break;
                }
                if chosen.iter().all(|c| rects[*c].overlap(rects[i]) <= threshold) {
                    chosen.push(i);
                    out.extend([batch as i64, class as i64, i as i64]);
                }
            }
        }
    }
    Ok(Value::Int(IntArray::new(DType::I64, vec![out.len() / 3, 3], out)))
}

/// The sizes of pictures.
fn picture(x: &Value) -> Result<[usize; 4]> {
    let shape = x.shape();
    shape.try_into().map_err(|_| Error::malformed(format!("pictures of {shape:?}, not of 4 axes")))
}

fn index(v: i64, size: usize) -> Result<usize> {
    let at = usize::try_from(v).ok().filter(|i| *i < size);
    at.ok_or_else(|| Error::malformed(format!("picture {v} of a batch of {size}")))
}

/// A sample: places in a plane and their weights.
type Sample = [(usize, f64); 4];

/// Where a sample at (`y`, `x`) takes its value from; nowhere outside of the plane.
fn bilinear(mut y: f64, mut x: f64, h: usize, w: usize) -> Option<Sample> {
    let inside = |v: f64, n: usize| (-1.0..=n as f64).contains(&v);
    if !inside(y, h) || !inside(x, w) {
        return None;
    }
    let place = |v: &mut f64, n: usize| {
        *v = v.max(0.0);
        let low = *v as usize;
        if low + 1 >= n {
            *v = (n - 1) as f64;
            (n - 1, n - 1)
        } else {
            (low, low + 1)
        }
    };
    let ((y0, y1), (x0, x1)) = (place(&mut y, h), place(&mut x, w));
    let (ly, lx) = (y - y0 as f64, x - x0 as f64);
    let (hy, hx) = (1.0 - ly, 1.0 - lx);
    Some([(y0 * w + x0, hy * hx), (y0 * w + x1, hy * lx), (y1 * w + x0, ly * hx), (y1 * w + x1, ly * lx)])
}

/// Samples regions by bilinear interpolation.
pub(super) fn roi_align(op: &RoiAlign, mut a: Args) -> Result<Value> {
    let (x, regions, of) = (a.take(0)?, a.take(1)?, a.ints(2)?);
    let ([batch, channels, h, w], [out_h, out_w], dtype) = (picture(&x)?, op.size, x.dtype());
    if regions.shape() != [of.len(), 4] {
        return Err(Error::malformed(format!("{} pictures for regions of {:?}", of.len(), regions.shape())));
    }
    let shape = [of.len(), channels, out_h, out_w];
    let mut out = Vec::with_capacity(check_host(&shape)?);
    let taped = match &x {
        Value::Float(x) if x.is_tracked() && !op.max => Some(x.clone()),
        _ => None,
    };
    let x = floats(if taped.is_some() { x.detached() } else { x })?;
    let regions = floats(regions)?;
    let mut taps = vec![];
    let offset = if op.half_pixel { 0.5 } else { 0.0 };
    for (region, picture) in regions.chunks_exact(4).zip(of.iter()) {
        let picture = index(*picture, batch)?;
        let at = |i: usize| region[i] * f64::from(op.spatial_scale) - offset;
        let (left, top) = (at(0), at(1));
        let least = if op.half_pixel { f64::NEG_INFINITY } else { 1.0 };
        let (height, width) = ((at(3) - top).max(least) / out_h as f64, (at(2) - left).max(least) / out_w as f64);
        let grid = |size: f64| if op.sampling_ratio > 0 { op.sampling_ratio } else { size.ceil() as usize };
        let (rows, columns) = (grid(height), grid(width));
        check_size(&[rows, columns, out_h, out_w])?;
        let samples = check_host(&[rows, columns])?;
        let sample = |pixel: usize, i: usize| {
            let (py, px) = ((pixel / out_w) as f64, (pixel % out_w) as f64);
            let y = top + py * height + ((i / columns) as f64 + 0.5) * height / rows as f64;
            let x = left + px * width + ((i % columns) as f64 + 0.5) * width / columns as f64;
            bilinear(y, x, h, w)
        };
        if taped.is_some() {
            taps.extend((0..out_h * out_w).map(|pixel| {
                let all = (0..samples).filter_map(|i| sample(pixel, i)).flatten();
                let one = |(at, weight)| ((picture * h * w + at) as i64, weight / samples.max(1) as f64);
                all.map(one).collect::<Vec<_>>()
            }));
            continue;
        }
        for channel in 0..channels {
            let plane = &x[(picture * channels + channel) * h * w..][..h * w];
            for pixel in 0..out_h * out_w {
                let value = |i| sample(pixel, i).map_or([0.0; 4], |s| s.map(|(at, weight)| plane[at] * weight));
                let values = (0..samples).map(value);
                out.push(if op.max {
                    values.flatten().reduce(f64::max).unwrap_or(0.0)
                } else {
                    values.flatten().sum::<f64>() / samples.max(1) as f64
                });
            }
        }
    }
    if let Some(x) = taped.filter(|_| !taps.is_empty()) {
        return sampled(x, &taps, &shape, a.device).map(Value::Float);
    }
    of_floats(out, &shape, dtype, a.device)
}

/// The maxima of the parts of regions.
pub(super) fn max_roi_pool(op: &MaxRoiPool, mut a: Args) -> Result<Value> {
    let (x, regions) = (a.take(0)?, a.take(1)?);
    let ([batch, channels, h, w], [out_h, out_w]) = (picture(&x)?, op.size);
    let [count, 5] = regions.shape()[..] else {
        return Err(Error::malformed(format!("regions of {:?}", regions.shape())));
    };
    let shape = [count, channels, out_h, out_w];
    let mut out = Vec::with_capacity(check_host(&shape)?);
    let (x, regions) = (Host::of(x)?, floats(regions)?);
    let dtype = x.dtype;
    let x = x.into_floats();
    for region in regions.chunks_exact(5) {
        let picture = index(region[0] as i64, batch)?;
        let at = |i: usize| (region[i] * f64::from(op.spatial_scale)).round().clamp(-1e9, 1e9);
        // The pixels of part `i` of a side.
        let part = |i: usize, start: f64, end: f64, parts: usize, size: usize| {
            let each = (end - start + 1.0).max(1.0) / parts as f64;
            let bound = |v: f64| (v + start).clamp(0.0, size as f64) as usize;
            bound((i as f64 * each).floor())..bound(((i + 1) as f64 * each).ceil())
        };
        for channel in 0..channels {
            let plane = &x[(picture * channels + channel) * h * w..][..h * w];
            for pixel in 0..out_h * out_w {
                let rows = part(pixel / out_w, at(2), at(4), out_h, h);
                let columns = part(pixel % out_w, at(1), at(3), out_w, w);
                let values = rows.flat_map(|y| columns.clone().map(move |x| plane[y * w + x]));
                out.push(values.reduce(f64::max).unwrap_or(0.0));
            }
        }
    }
    of_floats(out, &shape, dtype, a.device)
}
