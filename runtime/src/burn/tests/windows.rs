use super::*;
use compress_compiler::{
    error::Kind,
    ops::{
        conv::Conv,
        conv_transpose::ConvTranspose,
        pool::{GlobalPool, Pool, PoolKind},
        window::{AutoPad, Window},
    },
};

fn window(strides: &[i64], pads: &[i64], dilations: &[i64]) -> Window {
    Window { strides: strides.into(), pads: pads.into(), dilations: dilations.into(), ..Window::default() }
}

/// Sizes of two spatial axes, one being two with a size of 1 in front.
fn spatial(shape: &[usize]) -> [usize; 2] {
    if shape.len() == 3 { [1, shape[2]] } else { [shape[2], shape[3]] }
}

/// (stride, dilation, begin, end) of both axes.
fn each(w: &Window, x: [usize; 2], k: [usize; 2], axes: usize) -> [[i64; 4]; 2] {
    let one = |i: usize| {
        let (b, e) = w.padding(i, x[2 - axes + i] as i64, k[2 - axes + i] as i64);
        [w.stride(i), w.dilation(i), b, e]
    };
    if axes == 1 { [[1, 1, 0, 0], one(0)] } else { [one(0), one(1)] }
}

fn naive_conv(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, op: &Conv) -> (Vec<usize>, Vec<f32>) {
    let (n, c, m, cg) = (x.shape()[0], x.shape()[1], w.shape()[0], w.shape()[1]);
    let (xs, ks, axes) = (spatial(x.shape()), spatial(w.shape()), x.shape().len() - 2);
    let at = each(&op.window, xs, ks, axes);
    let out = [0, 1].map(|i| {
        let [s, d, b, e] = at[i];
        ((xs[i] as i64 + b + e - d * (ks[i] as i64 - 1) - 1) / s + 1) as usize
    });
    let (xd, wd) = (floats(x), floats(w));
    let mut y = vec![];
    for b in 0..n {
        for f in 0..m {
            let group = f / (m / op.group as usize);
            for p in 0..out[0] * out[1] {
                let position = [p / out[1], p % out[1]];
                let mut sum = bias.map_or(0.0, |t| floats(t)[f]);
                for ci in 0..cg {
                    for t in 0..ks[0] * ks[1] {
                        let tap = [t / ks[1], t % ks[1]];
                        let pos = [0, 1].map(|i| position[i] as i64 * at[i][0] + tap[i] as i64 * at[i][1] - at[i][2]);
                        if (0..2).all(|i| (0..xs[i] as i64).contains(&pos[i])) {
                            let xi = ((b * c + group * cg + ci) * xs[0] + pos[0] as usize) * xs[1] + pos[1] as usize;
                            sum += xd[xi] * wd[(f * cg + ci) * ks[0] * ks[1] + t];
                        }
                    }
                }
                y.push(sum);
            }
        }
    }
    let shape = if axes == 1 { vec![n, m, out[1]] } else { vec![n, m, out[0], out[1]] };
    (shape, y)
}

#[test]
fn convolutions() {
    let same = |auto_pad| Window { auto_pad, strides: vec![2, 3], ..Window::default() };
    let cases: &[(&[usize], &[usize], i64, Window)] = &[
        (&[2, 3, 7, 5], &[4, 3, 3, 3], 1, window(&[], &[], &[])),
        (&[1, 3, 9, 7], &[4, 3, 3, 2], 1, window(&[2, 1], &[1, 0, 2, 3], &[])),
        (&[2, 4, 8, 9], &[6, 2, 3, 3], 2, window(&[1, 2], &[2, 2, 2, 2], &[2, 2])),
        (&[1, 5, 6, 7], &[5, 1, 3, 3], 5, window(&[1, 1], &[1, 1, 1, 1], &[])),
        (&[1, 5, 6, 7], &[10, 1, 3, 3], 5, window(&[2, 2], &[0, 1, 1, 0], &[1, 2])),
        (&[1, 3, 8, 8], &[2, 3, 1, 1], 1, window(&[3, 3], &[], &[])),
        (&[1, 3, 8, 8], &[2, 3, 3, 4], 1, same(AutoPad::SameUpper)),
        (&[1, 3, 8, 8], &[2, 3, 3, 4], 1, same(AutoPad::SameLower)),
        (&[1, 3, 8, 8], &[2, 3, 3, 4], 1, same(AutoPad::Valid)),
        (&[2, 4, 11], &[4, 2, 3], 2, window(&[2], &[1, 2], &[2])),
        (&[1, 1, 5], &[1, 1, 5], 1, window(&[], &[], &[])),
    ];
    for (xs, ws, group, window) in cases {
        let (x, w, b) = (noise(xs, 1), noise(ws, 2), noise(&ws[..1], 3));
        let op = Conv { window: window.clone(), group: *group, kernel: vec![] };
        let (shape, y) = naive_conv(&x, &w, Some(&b), &op);
        close(&run(op.clone(), &[&x, &w, &b]), &shape, &y);
        let (shape, y) = naive_conv(&x, &w, None, &op);
        close(&run(op, &[&x, &w]), &shape, &y);
    }
}

#[test]
fn convolutions_that_do_not_fit() {
    let op = Conv { window: Window::default(), group: 1, kernel: vec![] };
    let x = noise(&[1, 3, 4, 4], 1);
    let refused = |w: &[usize]| fails(op.clone(), &[&x, &noise(w, 1)]);
    assert_eq!(refused(&[2, 4, 3, 3]), Kind::Malformed);
    assert_eq!(refused(&[2, 3, 5, 3]), Kind::Malformed);
    assert_eq!(refused(&[2, 3, 3]), Kind::Malformed);
    assert_eq!(fails(op.clone(), &[&x, &noise(&[2, 3, 3, 3], 1), &noise(&[3], 1)]), Kind::Malformed);
    let (x, w) = (noise(&[1, 1, 3, 3, 3, 3], 1), noise(&[1, 1, 1, 1, 1, 1], 1));
    assert_eq!(fails(op.clone(), &[&x, &w]), Kind::Unsupported);
    let wide = Conv { window: window(&[], &[i32::MAX as i64; 4], &[]), ..op };
    assert_eq!(fails(wide, &[&noise(&[1, 3, 4, 4], 1), &noise(&[2, 3, 3, 3], 1)]), Kind::Limit);
}

#[test]
fn transposed_convolutions() {
    let cases: &[(&[usize], &[usize], i64, Window, &[i64])] = &[
        (&[1, 2, 3, 4], &[2, 3, 3, 3], 1, window(&[], &[], &[]), &[]),
        (&[2, 4, 3, 3], &[4, 2, 2, 3], 2, window(&[2, 3], &[1, 0, 1, 0], &[1, 2]), &[1, 0]),
        (&[1, 2, 4, 3], &[2, 1, 3, 3], 1, window(&[2, 2], &[1, 0, 0, 2], &[]), &[1, 1]),
        (&[1, 2, 5], &[2, 3, 4], 1, window(&[2], &[1, 2], &[]), &[1]),
        (&[1, 2, 5], &[2, 1, 3], 2, window(&[3], &[1, 1], &[2]), &[]),
    ];
    for (xs, ws, group, window, extra) in cases {
        let (x, w) = (noise(xs, 4), noise(ws, 5));
        let m = ws[1] * *group as usize;
        let b = noise(&[m], 6);
        let op = ConvTranspose {
            window: window.clone(),
            group: *group,
            kernel: vec![],
            output_padding: extra.to_vec(),
            output_shape: vec![],
        };
        // Each input element adds the kernel to the output.
        let (sx, sk, axes) = (spatial(xs), spatial(ws), xs.len() - 2);
        let at = each(window, sx, sk, axes);
        let out = [0, 1].map(|i| {
            let [s, d, begin, end] = at[i];
            let extra = (i + axes).checked_sub(2).and_then(|i| extra.get(i)).unwrap_or(&0);
            (s * (sx[i] as i64 - 1) + extra + d * (sk[i] as i64 - 1) + 1 - begin - end) as usize
        });
        let (xd, wd, bd) = (floats(&x), floats(&w), floats(&b));
        let mut y: Vec<f32> = (0..xs[0] * m * out[0] * out[1]).map(|i| bd[i / (out[0] * out[1]) % m]).collect();
        let (cg, mg) = (xs[1] / *group as usize, ws[1]);
        for (i, v) in xd.iter().enumerate() {
            let (w0, rest) = (i % sx[1], i / sx[1]);
            let (h0, c, b) = (rest % sx[0], rest / sx[0] % xs[1], rest / sx[0] / xs[1]);
            for f in 0..mg {
                for t in 0..sk[0] * sk[1] {
                    let (pos, tap) = ([h0, w0], [t / sk[1], t % sk[1]]);
                    let o = [0, 1].map(|i| pos[i] as i64 * at[i][0] + tap[i] as i64 * at[i][1] - at[i][2]);
                    if (0..2).all(|i| (0..out[i] as i64).contains(&o[i])) {
                        let channel = c / cg * mg + f;
                        let yi = ((b * m + channel) * out[0] + o[0] as usize) * out[1] + o[1] as usize;
                        y[yi] += v * wd[(c * mg + f) * sk[0] * sk[1] + t];
                    }
                }
            }
        }
        let shape = if axes == 1 { vec![xs[0], m, out[1]] } else { vec![xs[0], m, out[0], out[1]] };
        close(&run(op, &[&x, &w, &b]), &shape, &y);
    }
}

fn naive_pool(x: &Tensor, op: &Pool) -> (Vec<usize>, Vec<f32>) {
    let (xs, axes) = (spatial(x.shape()), x.shape().len() - 2);
    let ks = if axes == 1 { [1, op.kernel[0] as usize] } else { [op.kernel[0] as usize, op.kernel[1] as usize] };
    let at = each(&op.window, xs, ks, axes);
    let out = [0, 1].map(|i| {
        let [s, d, b, e] = at[i];
        let room = xs[i] as i64 + b + e - d * (ks[i] as i64 - 1) - 1;
        let mut out = room / s + 1;
        if op.window.ceil_mode && room % s != 0 && out * s < xs[i] as i64 + b {
            out += 1;
        }
        out as usize
    });
    let (xd, planes) = (floats(x), x.shape()[0] * x.shape()[1]);
    let mut y = vec![];
    for plane in 0..planes {
        for p in 0..out[0] * out[1] {
            let position = [p / out[1], p % out[1]];
            let (mut max, mut sum, mut count) = (f32::NEG_INFINITY, 0.0, 0);
            for t in 0..ks[0] * ks[1] {
                let tap = [t / ks[1], t % ks[1]];
                let pos = [0, 1].map(|i| position[i] as i64 * at[i][0] + tap[i] as i64 * at[i][1] - at[i][2]);
                if (0..2).all(|i| (0..xs[i] as i64).contains(&pos[i])) {
                    let v = xd[(plane * xs[0] + pos[0] as usize) * xs[1] + pos[1] as usize];
                    (max, sum, count) = (max.max(v), sum + v, count + 1);
                } else if op.count_include_pad && (0..2).all(|i| pos[i] < xs[i] as i64 + at[i][3]) {
                    count += 1;
                }
            }
            y.push(if op.kind == PoolKind::Max { max } else { sum / count as f32 });
        }
    }
    let mut shape = x.shape()[..2].to_vec();
    shape.extend_from_slice(&out[2 - axes..]);
    (shape, y)
}

#[test]
fn pools() {
    let ceil = |w: Window| Window { ceil_mode: true, ..w };
    let same = |auto_pad| Window { auto_pad, strides: vec![2, 2], ..Window::default() };
    let cases: &[(&[usize], &[i64], Window)] = &[
        (&[2, 3, 7, 8], &[3, 3], window(&[2, 2], &[1, 1, 1, 1], &[])),
        (&[1, 2, 7, 8], &[2, 3], window(&[2, 2], &[], &[])),
        (&[1, 2, 7, 8], &[2, 2], ceil(window(&[2, 2], &[], &[]))),
        (&[1, 2, 6, 9], &[3, 3], ceil(window(&[2, 2], &[1, 1, 1, 1], &[]))),
        (&[1, 2, 6, 9], &[3, 2], window(&[2, 1], &[1, 0, 2, 1], &[])),
        (&[1, 2, 8, 9], &[2, 3], window(&[1, 2], &[0, 1, 1, 2], &[2, 2])),
        (&[1, 2, 9, 9], &[3, 3], ceil(window(&[3, 2], &[1, 1, 1, 0], &[2, 1]))),
        (&[1, 2, 7, 8], &[3, 3], same(AutoPad::SameUpper)),
        (&[1, 2, 7, 8], &[3, 2], same(AutoPad::SameLower)),
        (&[1, 3, 10], &[4], window(&[3], &[1, 2], &[])),
        (&[1, 3, 10], &[3], ceil(window(&[2], &[], &[2]))),
    ];
    for (shape, kernel, window) in cases {
        let x = noise(shape, 7);
        for (kind, count_include_pad) in [(PoolKind::Max, false), (PoolKind::Average, false), (PoolKind::Average, true)]
        {
            let op = Pool { count_include_pad, ..Pool::new(kind, kernel.to_vec(), window.clone()) };
            let (shape, y) = naive_pool(&x, &op);
            close(&run(op, &[&x]), &shape, &y);
        }
    }
}

#[test]
fn pools_of_quantised_values_keep_their_type() {
    let op = Pool::new(PoolKind::Max, vec![2], Window::default());
    let y = run(op, &[&Tensor::ints(DType::I8, &[1, 1, 4], &[-128, -5, 127, 3])]);
    assert_eq!(y.dtype(), DType::I8);
    same_ints(&y, &[1, 1, 3], &[-5, 127, 127]);
}

#[test]
fn global_pools() {
    let x = noise(&[2, 3, 4, 5], 8);
    let planes: Vec<Vec<f32>> = floats(&x).chunks(20).map(<[f32]>::to_vec).collect();
    let mean: Vec<f32> = planes.iter().map(|p| p.iter().sum::<f32>() / 20.0).collect();
    let max: Vec<f32> = planes.iter().map(|p| p.iter().copied().fold(f32::MIN, f32::max)).collect();
    close(&run(GlobalPool { kind: PoolKind::Average }, &[&x]), &[2, 3, 1, 1], &mean);
    close(&run(GlobalPool { kind: PoolKind::Max }, &[&x]), &[2, 3, 1, 1], &max);
}
