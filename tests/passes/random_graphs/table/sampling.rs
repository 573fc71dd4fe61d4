//! Operators that look between elements: resizing, grids, regions, spectra.

use super::{done, entries, f, i, list, s, some};
use crate::{
    maker::Maker,
    table::{Entry, dense::picture},
};
use compress_compiler::tensor::{DType, Tensor};

pub const ENTRIES: &[&[Entry]] =
    &[entries!(false: resize 3, grid_sample 1, affine_grid 1, roi_align 1, max_roi_pool 1,
    non_max_suppression 1, col2im 1, signal_window 1, dft 1, stft 1, mel 1)];

fn resize(m: &mut Maker) -> Option<()> {
    let x = picture(m, 2);
    let mode = m.one(&["nearest", "linear", "cubic"]);
    let how = m.one(&["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]);
    let attrs = some(m, &[("coordinate_transformation_mode", s(how)), ("nearest_mode", s("floor"))]);
    let attrs = [vec![("mode", s(mode))], attrs].concat();
    if m.chance(0.5) {
        let scale = m.one(&[2.0, 1.5, 0.5, 1.0]);
        let scales = m.constant(Tensor::f32(&[4], &[1.0, 1.0, scale, 2.0]));
        return done(m.op("Resize", &[Some(x), None, Some(scales)], &attrs));
    }
    let shape = m.shape(x);
    let sizes = [shape[0] as i64, shape[1] as i64, m.int(1, 7), m.int(1, 7)];
    let sizes = m.ints(&sizes);
    done(m.op("Resize", &[Some(x), None, None, Some(sizes)], &attrs))
}

fn grid_sample(m: &mut Maker) -> Option<()> {
    let shape = [m.size(1, 2), m.size(1, 2), 4, 5];
    let x = m.exact(DType::F32, 4..=4);
    let x = if m.shape(x)[2..].iter().all(|n| *n > 1) { x } else { m.source(DType::F32, &shape) };
    let grid = m.filled(DType::F32, &[m.shape(x)[0], 2, 3, 2], -1.2, 1.2);
    let grid = m.input(grid);
    let (mode, padding) = (m.one(&["linear", "nearest", "cubic"]), m.one(&["zeros", "border", "reflection"]));
    let attrs = some(m, &[("align_corners", i(1)), ("padding_mode", s(padding))]);
    done(m.op("GridSample", &[Some(x), Some(grid)], &[vec![("mode", s(mode))], attrs].concat()))
}

fn affine_grid(m: &mut Maker) -> Option<()> {
    let theta = m.source(DType::F32, &[2, 2, 3]);
    let size = m.ints(&[2, 1, 3, 4]);
    let attrs = some(m, &[("align_corners", i(1))]);
    done(m.op("AffineGrid", &[Some(theta), Some(size)], &attrs))
}

fn roi_align(m: &mut Maker) -> Option<()> {
    let shape = [m.size(1, 2), 2, 5, 5];
    let x = m.source(DType::F32, &shape);
    let rois = m.constant(Tensor::f32(&[2, 4], &[0.3, 0.4, 3.2, 3.6, 1.1, 0.2, 4.3, 2.9]));
    let at = m.ints(&[0, shape[0] as i64 - 1]);
    let mode = m.one(&["avg", "max"]);
    let attrs = [("output_height", i(2)), ("output_width", i(3)), ("mode", s(mode)), ("sampling_ratio", i(2))];
    done(m.op("RoiAlign", &[Some(x), Some(rois), Some(at)], &attrs))
}

fn max_roi_pool(m: &mut Maker) -> Option<()> {
    let x = m.source(DType::F32, &[2, 2, 5, 5]);
    let rois = m.constant(Tensor::f32(&[2, 5], &[0.0, 0.0, 0.0, 3.0, 4.0, 1.0, 1.0, 2.0, 4.0, 4.0]));
    done(m.op("MaxRoiPool", &[Some(x), Some(rois)], &[("pooled_shape", list(&[2, 2])), ("spatial_scale", f(1.0))]))
}

fn non_max_suppression(m: &mut Maker) -> Option<()> {
    let corners = m.filled(DType::F32, &[1, 5, 4], 0.05, 0.9);
    let (boxes, scores) = (m.input(corners), m.source(DType::F32, &[1, 2, 5]));
    let most = m.ints(&[3]);
    let limit = m.shared(Tensor::f32(&[1], &[0.5]));
    done(m.op("NonMaxSuppression", &[Some(boxes), Some(scores), Some(most), Some(limit)], &[]))
}

fn col2im(m: &mut Maker) -> Option<()> {
    let x = m.source(DType::F32, &[1, 8, 4]);
    let (image, block) = (m.ints(&[4, 4]), m.ints(&[2, 2]));
    done(m.op("Col2Im", &[Some(x), Some(image), Some(block)], &[("strides", list(&[2, 2]))]))
}

fn signal_window(m: &mut Maker) -> Option<()> {
    let name = m.one(&["HannWindow", "HammingWindow", "BlackmanWindow"]);
    let n = m.int(2, 8);
    let n = m.scalar(n);
    let attrs = some(m, &[("periodic", i(0))]);
    done(m.op(name, &[Some(n)], &attrs))
}

fn dft(m: &mut Maker) -> Option<()> {
    let last = m.size(1, 2);
    let x = m.source(DType::F32, &[2, 4, last]);
    let axis = m.scalar(1);
    let attrs = if last == 1 { some(m, &[("onesided", i(1))]) } else { some(m, &[("inverse", i(1))]) };
    done(m.op("DFT", &[Some(x), None, Some(axis)], &attrs))
}

fn stft(m: &mut Maker) -> Option<()> {
    let x = m.source(DType::F32, &[1, 12, 1]);
    let (step, length) = (m.scalar(3), m.scalar(4));
    let window = m.maybe_weight(0.5, DType::F32, &[4]);
    done(m.op("STFT", &[Some(x), Some(step), window, Some(length)], &[]))
}

fn mel(m: &mut Maker) -> Option<()> {
    let numbers = [4, 16, 8000].map(|n| Some(m.scalar(n)));
    let edges = [0.0, 4000.0].map(|v| Some(m.shared(Tensor::f32(&[], &[v]))));
    done(m.op("MelWeightMatrix", &[numbers, [edges[0], edges[1], None]].concat()[..5], &[]))
}
