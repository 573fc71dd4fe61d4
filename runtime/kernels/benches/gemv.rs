//! A row by a matrix: packed, and where it lies, on one thread: `cargo bench -p compress-kernels --bench gemv [ROUNDS]`.
//! Microseconds, and how many times as fast as the packed one. The three take turns, and the least time of each counts.

use compress_kernels::{ConvF, GemvF, Isa, Rows, RowsMut, Window};
use std::{hint::black_box, time::Instant};

/// Terms of a sum, and outputs. The last ones leave every cache.
const SHAPES: [(usize, usize); 7] =
    [(400, 120), (512, 1000), (2048, 1000), (768, 3072), (2896, 2896), (9216, 4096), (25088, 4096)];

fn main() {
    let rounds = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(30);
    let isa = std::env::var("COMPRESS_ISA").ok().and_then(|name| name.parse().ok()).unwrap_or_else(Isa::detect);
    println!("| terms x outputs | MB | packed | rows | columns |\n|---|---|---|---|---|");
    for (depth, outputs) in SHAPES {
        let weights: Vec<f32> = (0..outputs * depth).map(|i| (i % 1013) as f32 * 1e-4).collect();
        let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let raw = bytes.as_chunks::<4>().0;
        let (window, bias) = (Window::pixel(1), vec![1.0; outputs]);
        let packed = ConvF::new(isa, &weights, outputs, [1, 1], depth, 1, bias.clone(), 0.0, 1e9);
        let in_place = [false, true].map(|turned| GemvF::new(isa, depth, turned, bias.clone(), 0.0, 1e9));
        let x: Vec<f32> = (0..depth).map(|i| (i % 251) as f32).collect();
        let (mut y, mut scratch) = (vec![0.0; outputs], vec![0; packed.scratch(&window, 1)]);
        let mut least = [f64::INFINITY; 3];
        for _ in 0..rounds {
            let mut time = |i: usize, run: &mut dyn FnMut(&mut [f32])| {
                let start = Instant::now();
                run(black_box(&mut y));
                least[i] = least[i].min(start.elapsed().as_secs_f64() * 1e6);
            };
            time(0, &mut |y| {
                let y = RowsMut::dense(y, 1, outputs);
                packed.run(Rows::dense(&x, 1, depth), &window, None, y, &mut scratch, 1);
            });
            time(1, &mut |y| in_place[0].run(&x, Rows::dense(raw, depth, outputs), None, y, 1));
            time(2, &mut |y| in_place[1].run(&x, Rows::dense(raw, outputs, depth), None, y, 1));
        }
        let [packed, rows, columns] = least;
        let of = |t: f64| format!("{t:.0} ({:.2}x)", packed / t);
        let mb = (4 * depth * outputs) as f64 / 1e6;
        println!("| {depth} x {outputs} | {mb:.1} | {packed:.0} | {} | {} |", of(rows), of(columns));
    }
}
