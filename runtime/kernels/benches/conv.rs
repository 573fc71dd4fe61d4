//! What convolutions and products cost, on one thread: `cargo bench -p compress-kernels --bench conv [WORD]`.

use compress_kernels::{Conv8, ConvF, Finish8, Isa, Rows, RowsMut, Window};
use criterion::{Criterion, Throughput};
use std::hint::black_box;

/// A name, kernel, stride, padding, channels, outputs and pixels of a side.
const CONVOLUTIONS: [(&str, usize, usize, usize, usize, usize, usize); 13] = [
    ("3x3 64-64 56", 3, 1, 1, 64, 64, 56),
    ("1x1 256-64 56", 1, 1, 0, 256, 64, 56),
    ("7x7/2 3-64 224", 7, 2, 3, 3, 64, 224),
    ("3x3/2 3-64 224", 3, 2, 1, 3, 64, 224),
    ("3x3 16-64 55", 3, 1, 1, 16, 64, 55),
    ("1x1 512-1000 13", 1, 1, 0, 512, 1000, 13),
    ("3x3 16-16 32", 3, 1, 1, 16, 16, 32),
    ("3x3 512-512 7", 3, 1, 1, 512, 512, 7),
    ("1x1/2 256-512 56", 1, 2, 0, 256, 512, 56),
    ("1x1 64-16 55", 1, 1, 0, 64, 16, 55),
    ("1x1 16-64 55", 1, 1, 0, 16, 64, 55),
    ("1x1 24-144 56", 1, 1, 0, 24, 144, 56),
    ("16x16/16 3-192 224", 16, 16, 0, 3, 192, 224),
];

/// Rows, depth and outputs.
const PRODUCTS: [(usize, usize, usize); 4] = [(1, 2048, 1000), (8, 768, 768), (197, 192, 768), (1, 400, 120)];

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for (name, kernel, stride, pad, channels, outputs, side) in CONVOLUTIONS {
        let positions = (side + 2 * pad - kernel) / stride + 1;
        let window = Window {
            batch: 1,
            input: [side; 2],
            output: [positions; 2],
            kernel: [kernel; 2],
            stride: [stride; 2],
            dilation: [1; 2],
            pad: [pad; 2],
        };
        convolution(&mut criterion, name, &window, channels, outputs);
    }
    for (rows, depth, outputs) in PRODUCTS {
        convolution(&mut criterion, &format!("{rows}x{depth}x{outputs}"), &Window::pixel(rows), depth, outputs);
    }
    criterion.final_summary();
}

fn convolution(criterion: &mut Criterion, name: &str, window: &Window, channels: usize, outputs: usize) {
    let isa = std::env::var("COMPRESS_ISA").ok().and_then(|name| name.parse().ok()).unwrap_or_else(Isa::detect);
    let weights = outputs * window.taps() * channels;

    let x: Vec<u8> = (0..window.pixels() * channels).map(|i| (i * 7) as u8).collect();
    let scale = vec![1e-3; outputs];
    let finish = Finish8::Requantize { bias: vec![5; outputs], scale, zero: 100, min: 100, max: 255 };
    let w: Vec<i8> = (0..weights).map(|i| (i * 13) as i8).collect();
    let conv = Conv8::new(isa, &w, outputs, window.kernel, channels, 1, 120, finish);
    let mut y = vec![0; window.positions() * outputs];
    let mut scratch = vec![0; conv.scratch(window, 1)];
    let mut group = criterion.benchmark_group(name);
    // An operation is half of a multiply-accumulate, as tables elsewhere have it.
    group.throughput(Throughput::Elements(2 * conv.macs(window)));
    group.bench_function("int8", |b| {
        b.iter(|| {
            let (x, y) =
                (Rows::dense(&x, window.pixels(), channels), RowsMut::dense(&mut y, window.positions(), outputs));
            conv.run_u8(black_box(x), window, y, &mut scratch, 1)
        });
    });

    let x: Vec<f32> = x.into_iter().map(f32::from).collect();
    let w: Vec<f32> = w.into_iter().map(f32::from).collect();
    let conv = ConvF::new(isa, &w, outputs, window.kernel, channels, 1, vec![1.0; outputs], 0.0, f32::INFINITY);
    let mut y = vec![0.0; window.positions() * outputs];
    let mut scratch = vec![0; conv.scratch(window, 1)];
    group.bench_function("f32", |b| {
        b.iter(|| {
            let (x, y) =
                (Rows::dense(&x, window.pixels(), channels), RowsMut::dense(&mut y, window.positions(), outputs));
            conv.run(black_box(x), window, None, y, &mut scratch, 1)
        });
    });
    group.finish();
}
