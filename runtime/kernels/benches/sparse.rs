//! From which share of zeros on a sparse product beats the dense one, on one thread:
//! `cargo bench -p compress-kernels --bench sparse [ROUNDS]`, with `COMPRESS_ISA` another
//! instruction set. Microseconds, and how many times as fast as the dense product.
//!
//! The two take turns, and the least time of each counts: what else a machine does only adds to
//! it.

use compress_kernels::{ConvF, Isa, Rows, RowsMut, SparseF, Window};
use std::{hint::black_box, time::Instant};

/// Positions, channels and outputs.
const SHAPES: [(usize, usize, usize); 10] = [
    (3136, 256, 64),
    (3136, 24, 144),
    (3136, 16, 64),
    (784, 64, 256),
    (49, 512, 512),
    (1, 1024, 1024),
    (2, 1024, 1024),
    (8, 1024, 1024),
    (16, 1024, 1024),
    (64, 1024, 1024),
];

/// Percents of the weights that are zero.
const ZEROS: [u64; 9] = [50, 60, 70, 75, 80, 85, 90, 95, 98];

fn main() {
    let rounds = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(300);
    let isa = std::env::var("COMPRESS_ISA").ok().and_then(|name| name.parse().ok()).unwrap_or_else(Isa::detect);
    println!("| positions x channels x outputs | dense | {} |", ZEROS.map(|z| format!("{z}%")).join(" | "));
    println!("|---|---|{}", "---|".repeat(ZEROS.len()));
    for (rows, channels, outputs) in SHAPES {
        print!("| {rows} x {channels} x {outputs}");
        for (i, zeros) in ZEROS.into_iter().enumerate() {
            let [dense, sparse] = times(isa, [rows, channels, outputs], zeros, rounds);
            if i == 0 {
                print!(" | {dense:.0}");
            }
            print!(" | {sparse:.0} ({:.2}x)", dense / sparse);
        }
        println!(" |");
    }
}

/// Microseconds of the dense and of the sparse product.
fn times(isa: Isa, [rows, channels, outputs]: [usize; 3], zeros: u64, rounds: usize) -> [f64; 2] {
    let mut noise = 1u64;
    let mut weight = || {
        noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if (noise >> 33) % 100 < zeros { 0.0 } else { (noise >> 40) as f32 * 1e-6 }
    };
    let weights: Vec<f32> = (0..outputs * channels).map(|_| weight()).collect();
    let (window, bias, low, high) = (Window::pixel(rows), vec![1.0; outputs], 0.0, f32::INFINITY);
    let dense = ConvF::new(isa, &weights, outputs, [1, 1], channels, 1, bias.clone(), low, high);
    let sparse = SparseF::new(isa, &weights, channels, bias, low, high);
    let mut scratch = vec![0; dense.scratch(&window, 1).max(sparse.scratch(&window, 1))];
    let x: Vec<f32> = (0..rows * channels).map(|i| (i % 251) as f32).collect();
    let mut y = vec![0.0; rows * outputs];
    let mut least = [f64::INFINITY; 2];
    for _ in 0..rounds {
        for (kernel, least) in least.iter_mut().enumerate() {
            let (x, y) = (black_box(Rows::dense(&x, rows, channels)), RowsMut::dense(&mut y, rows, outputs));
            let start = Instant::now();
            match kernel {
                0 => dense.run(x, &window, None, y, &mut scratch, 1),
                _ => sparse.run(x, &window, None, y, &mut scratch, 1),
            }
            *least = least.min(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    least
}
