//! What training kernels cost, on one thread: `cargo bench -p compress-kernels --bench train [WORD]`.

use compress_kernels::train::{
    BatchNorm, FactorWidth, Matrices, Shape2d, conv, conv_input_gradient, conv_weight_gradient, max_pool,
    max_pool_gradient, product,
};
use criterion::Criterion;
use std::hint::black_box;

/// A name, samples, channels, pixels of a side, filters, side of the window, stride and groups.
const CONVOLUTIONS: [(&str, [usize; 7]); 9] = [
    ("3x3 3-16 32", [64, 3, 32, 16, 3, 1, 1]),
    ("3x3 16-16 32", [64, 16, 32, 16, 3, 1, 1]),
    ("3x3 32-32 16", [64, 32, 16, 32, 3, 1, 1]),
    ("3x3 64-64 8", [64, 64, 8, 64, 3, 1, 1]),
    ("3x3/2 16-32 32", [64, 16, 32, 32, 3, 2, 1]),
    ("1x1/2 16-32 32", [64, 16, 32, 32, 1, 2, 1]),
    ("3x3 64-64 56", [8, 64, 56, 64, 3, 1, 1]),
    ("1x1 64-128 28", [16, 64, 28, 128, 1, 1, 1]),
    ("depthwise 64 28", [16, 64, 28, 64, 3, 1, 64]),
];

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    for (name, [samples, channels, side, filters, kernel, stride, groups]) in CONVOLUTIONS {
        let at = Shape2d {
            samples,
            channels,
            rows: side,
            columns: side,
            filters,
            kernel: [kernel; 2],
            stride: [stride; 2],
            dilation: [1; 2],
            pads: [(kernel / 2, kernel / 2); 2],
            groups,
        };
        let (x, weight, dy) = (values(at.input_len()), values(at.weight_len()), values(at.output_len()));
        for width in [FactorWidth::F32, FactorWidth::Bf16] {
            let mut group = criterion.benchmark_group(format!("{name} {width:?}"));
            group.bench_function("forward", |b| {
                one.install(|| b.iter(|| conv(width, black_box(&at), &x, &weight, None)));
            });
            group.bench_function("input gradient", |b| {
                one.install(|| b.iter(|| conv_input_gradient(width, black_box(&at), &weight, &dy)));
            });
            group.bench_function("weight gradient", |b| {
                one.install(|| b.iter(|| conv_weight_gradient(width, black_box(&at), &x, &dy)));
            });
            group.finish();
        }
    }
    for [m, k, n] in [[1024, 384, 384], [1024, 384, 1536], [1024, 1536, 384], [384, 1024, 1536]] {
        let (a, b) = (values(m * k), values(k * n));
        let mut group = criterion.benchmark_group(format!("product {m} {k} {n}"));
        for width in [FactorWidth::F32, FactorWidth::Bf16] {
            for turned in [false, true] {
                let [row_step, column_step] = if turned { [1, k] } else { [n, 1] };
                let a = Matrices { data: &a, starts: vec![0], row_step: k, column_step: 1 };
                let b = Matrices { data: &b, starts: vec![0], row_step, column_step };
                let name = format!("{width:?}{}", if turned { " turned" } else { "" });
                group.bench_function(name, |bench| {
                    one.install(|| bench.iter(|| product(width, black_box([m, k, n]), &a, &b)));
                });
            }
        }
        group.finish();
    }
    for (samples, channels, pixels) in [(64, 16, 1024), (64, 64, 64), (64, 512, 1)] {
        let (x, scale) = (values(samples * channels * pixels), values(channels));
        let shape = [samples, channels, pixels];
        for rectified in [false, true] {
            let norm = BatchNorm { x: &x, shape, scale: &scale, bias: &scale, epsilon: 1e-5, rectified };
            let made = norm.run();
            let name = if rectified { "batch norm, relu" } else { "batch norm" };
            let mut group = criterion.benchmark_group(format!("{name} {channels}x{pixels}"));
            group.bench_function("forward", |b| one.install(|| b.iter(|| black_box(&norm).run())));
            group.bench_function("gradients", |b| {
                one.install(|| b.iter(|| black_box(&norm).gradients(&made.mean, &made.variance, &x)))
            });
            group.finish();
        }
    }
    for (kernel, pad) in [(2, 0), (3, 1)] {
        let at = Shape2d {
            samples: 64,
            channels: 16,
            rows: 32,
            columns: 32,
            filters: 16,
            kernel: [kernel; 2],
            stride: [2; 2],
            dilation: [1; 2],
            pads: [(pad, pad); 2],
            groups: 1,
        };
        let x = values(at.input_len());
        let (dy, winners) = max_pool(&at, at.output(), &x);
        let mut group = criterion.benchmark_group(format!("max pool {kernel}x{kernel}/2"));
        group.bench_function("forward", |b| {
            one.install(|| b.iter(|| max_pool(black_box(&at), at.output(), &x)));
        });
        group.bench_function("gradient", |b| {
            one.install(|| b.iter(|| max_pool_gradient(black_box(&at), at.output(), &dy, &winners)));
        });
        group.finish();
    }
    criterion.final_summary();
}

/// Numbers around 0 in no order.
fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1013) as f32 / 512.0 - 1.0).collect()
}
