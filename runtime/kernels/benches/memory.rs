//! What kernels cost that do little with each element, beside a copy of as many bytes, on one
//! thread: `cargo bench -p compress-kernels --bench memory [WORD]`.

use compress_kernels::*;
use criterion::{Criterion, Throughput};
use std::hint::black_box;

const PIXELS: usize = 56 * 56;

fn window(side: usize, kernel: usize, stride: usize) -> Window {
    let pad = kernel / 2;
    Window {
        batch: 1,
        input: [side; 2],
        output: [(side + 2 * pad - kernel) / stride + 1; 2],
        kernel: [kernel; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pad: [pad; 2],
    }
}

/// Times `body`, which reads and writes so many bytes, and a copy of as many.
fn against_copy(criterion: &mut Criterion, name: &str, bytes: usize, mut body: impl FnMut()) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function("kernel", |b| b.iter(&mut body));
    let (from, mut to) = (vec![1u8; bytes / 2], vec![0u8; bytes / 2]);
    group.bench_function("copy", |b| b.iter(|| to.copy_from_slice(black_box(&from))));
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let c = &mut criterion;
    let isa = std::env::var("COMPRESS_ISA").ok().and_then(|name| name.parse().ok()).unwrap_or_else(Isa::detect);
    let n = 64 * PIXELS;
    let bytes = |n: usize| (0..n).map(|i| (i * 7) as u8).collect::<Vec<_>>();
    let floats = |n: usize| (0..n).map(|i| (i % 251) as f32 / 25.0 - 5.0).collect::<Vec<_>>();
    let (a8, b8, a, b) = (bytes(n), bytes(n), floats(n), floats(n));
    let (mut y8, mut y) = (bytes(n), floats(n));

    let image = floats(3 * 224 * 224);
    let mut pixels = bytes(3 * 224 * 224);
    against_copy(c, "quantize_transpose 3x224x224", 5 * pixels.len(), || {
        let y = RowsMut::dense(&mut pixels, 224 * 224, 3);
        quantize_transpose(isa, black_box(&image), 1, 3, 224 * 224, 0.02, 114, y, 1);
    });
    against_copy(c, "quantize_transpose 64x56x56", 5 * n, || {
        quantize_transpose(isa, black_box(&a), 1, 64, PIXELS, 0.02, 114, RowsMut::dense(&mut y8, PIXELS, 64), 1);
    });
    against_copy(c, "transpose u8 64x56x56", 2 * n, || {
        transpose(isa, black_box(&a8), 1, 64, PIXELS, RowsMut::dense(&mut y8, PIXELS, 64), 1);
    });
    against_copy(c, "transpose f32 64x56x56", 8 * n, || {
        transpose(isa, black_box(&a), 1, 64, PIXELS, RowsMut::dense(&mut y, PIXELS, 64), 1);
    });
    against_copy(c, "transpose f32 back", 8 * n, || {
        transpose(isa, black_box(&a), 1, PIXELS, 64, RowsMut::dense(&mut y, 64, PIXELS), 1);
    });
    against_copy(c, "transpose f32 3x224x224", 8 * image.len(), || {
        let y = RowsMut::dense(&mut y[..image.len()], 224 * 224, 3);
        transpose(isa, black_box(&image), 1, 3, 224 * 224, y, 1);
    });
    against_copy(c, "permute f32 49x4x32 heads", 8 * 6272, || {
        permute(black_box(&a[..6272]), &[1, 49, 4, 32], &[0, 2, 3, 1], &mut y[..6272], 1);
    });
    against_copy(c, "quantize", 5 * n, || {
        quantize(isa, Rows::dense(black_box(&a), 1, n), 0.02, 114, RowsMut::dense(&mut y8, 1, n), 1);
    });
    against_copy(c, "dequantize", 5 * n, || {
        dequantize(isa, Rows::dense(black_box(&a8), 1, n), 0.02, 114, RowsMut::dense(&mut y, 1, n), 1);
    });
    let table: [u8; 256] = std::array::from_fn(|i| (i * 3) as u8);
    against_copy(c, "lookup", 2 * n, || {
        lookup(isa, Rows::dense(black_box(&a8), 1, n), &table, RowsMut::dense(&mut y8, 1, n), 1);
    });
    let (a_scale, b_scale, y_scale, a_zero, b_zero, y_zero) = (0.02, 0.03, 0.04, 100, 120, 114);
    let add = Add8 { a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, min: 114, max: 255 };
    let mul = Mul8 { a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, min: 0, max: 255 };
    against_copy(c, "add8", 3 * n, || {
        let (a, b) = (Rows::dense(black_box(&a8), PIXELS, 64), Rows::dense(&b8, PIXELS, 64));
        add.run(isa, a, b, RowsMut::dense(&mut y8, PIXELS, 64), 1);
    });
    against_copy(c, "mul8 by channels", 2 * n, || {
        let (a, b) = (Rows::dense(black_box(&a8), PIXELS, 64), Rows::dense(&b8, 1, 64));
        mul.run(isa, a, b, RowsMut::dense(&mut y8, PIXELS, 64), 1);
    });
    against_copy(c, "add f32", 12 * n, || {
        let (a, b) = (Rows::dense(black_box(&a), PIXELS, 64), Rows::dense(&b, PIXELS, 64));
        binary(isa, BinaryOp::Add, a, b, RowsMut::dense(&mut y, PIXELS, 64), 1);
    });
    for (name, f) in [
        ("exp", UnaryOp::Exp),
        ("sigmoid", UnaryOp::Sigmoid),
        ("tanh", UnaryOp::Tanh),
        ("gelu", UnaryOp::Gelu),
        ("log", UnaryOp::Log),
    ] {
        against_copy(c, name, 8 * n, || {
            unary(isa, f, Rows::dense(black_box(&a), PIXELS, 64), RowsMut::dense(&mut y, PIXELS, 64), 1);
        });
    }
    for width in [49, 1000] {
        let rows = n / width;
        against_copy(c, &format!("softmax {width}"), 8 * rows * width, || {
            softmax(isa, Rows::dense(black_box(&a), rows, width), RowsMut::dense(&mut y, rows, width), 1);
        });
    }
    let scale = vec![1.0; 192];
    against_copy(c, "layer_norm 192", 8 * 196 * 192, || {
        let (x, y) = (Rows::dense(black_box(&a), 196, 192), RowsMut::dense(&mut y, 196, 192));
        layer_norm(isa, x, &scale, Some(&scale), 1e-5, y, 1);
    });

    let w = window(112, 3, 2);
    let (x8, x) = (bytes(64 * 112 * 112), floats(64 * 112 * 112));
    against_copy(c, "max_pool u8 3x3/2 64x112x112", 5 * n, || {
        let (x, y) = (Rows::dense(black_box(&x8), 112 * 112, 64), RowsMut::dense(&mut y8, PIXELS, 64));
        max_pool(isa, x, &w, y, 1);
    });
    against_copy(c, "max_pool f32 3x3/2 64x112x112", 20 * n, || {
        let (x, y) = (Rows::dense(black_box(&x), 112 * 112, 64), RowsMut::dense(&mut y, PIXELS, 64));
        max_pool(isa, x, &w, y, 1);
    });
    let rescale = Rescale { x_scale: 0.1, x_zero: 3, y_scale: 0.1, y_zero: 3 };
    against_copy(c, "average_pool8 3x3 64x56x56", 2 * n, || {
        let (x, y) = (Rows::dense(black_box(&a8), PIXELS, 64), RowsMut::dense(&mut y8, PIXELS, 64));
        average_pool8(isa, x, &window(56, 3, 1), Divisor::Inside, rescale, y, 1);
    });
    against_copy(c, "global_average8 512x13x13", 512 * 170, || {
        let (x, y) = (Rows::dense(black_box(&a8), 169, 512), RowsMut::dense(&mut y8, 1, 512));
        global_average8(isa, x, 1, rescale, y, 1);
    });
    against_copy(c, "global_average f32 512x7x7", 4 * 512 * 50, || {
        let (x, y) = (Rows::dense(black_box(&a), 49, 512), RowsMut::dense(&mut y, 1, 512));
        global_average(isa, x, 1, y, 1);
    });

    for (kernel, stride, channels) in [(3, 1, 96), (3, 2, 96), (5, 1, 96), (3, 1, 32)] {
        let (side, w) = (56, window(56, kernel, stride));
        let (x8, x) = (bytes(channels * side * side), floats(channels * side * side));
        let weights = bytes(channels * kernel * kernel);
        let signed: Vec<i8> = weights.iter().map(|w| *w as i8).collect();
        let finish =
            Finish8::Requantize { bias: vec![0; channels], scale: vec![0.001; channels], zero: 9, min: 0, max: 255 };
        let op = Depthwise8::new(isa, &signed, kernel * kernel, channels, 5, finish);
        let op_f = DepthwiseF::new(
            isa,
            &floats(weights.len()),
            kernel * kernel,
            channels,
            vec![0.0; channels],
            0.0,
            f32::INFINITY,
        );
        let outputs = channels * w.positions();
        let (mut y8, mut y) = (vec![0; outputs], vec![0.0; outputs]);
        let mut scratch = vec![0; op.scratch(&w, 1)];
        let name = format!("depthwise {kernel}x{kernel}/{stride} {channels}x56x56");
        against_copy(c, &format!("{name} u8"), x8.len() + outputs, || {
            let x = Rows::dense(black_box(&x8), w.pixels(), channels);
            op.run_u8(x, &w, RowsMut::dense(&mut y8, w.positions(), channels), &mut scratch, 1);
        });
        against_copy(c, &format!("{name} f32"), 4 * (x.len() + outputs), || {
            let x = Rows::dense(black_box(&x), w.pixels(), channels);
            op_f.run(x, &w, RowsMut::dense(&mut y, w.positions(), channels), &mut [], 1);
        });
    }
    criterion.final_summary();
}
