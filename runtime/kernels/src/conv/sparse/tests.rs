use super::*;
use crate::{
    ConvF,
    testing::{Grid, Guarded, Noise, cases, isas},
};
use proptest::prelude::*;

/// A product to be tried.
#[derive(Debug, Clone, Copy)]
struct Case {
    rows: usize,
    channels: usize,
    outputs: usize,
    /// Percent of the weights.
    zeros: usize,
    /// What rows of the input, the output, and what is added are longer than wide.
    gaps: [usize; 3],
    add: bool,
    threads: usize,
    seed: u64,
}

impl Case {
    /// Compares with a loop over all weights, and parts with the whole.
    fn check(&self) {
        let Case { rows, channels, outputs, gaps, threads, .. } = *self;
        let mut noise = Noise(self.seed);
        let x = Grid::new(rows, channels, gaps[0], f32::NAN, || noise.float());
        let add = Grid::new(rows, outputs, gaps[2], f32::NAN, || noise.float());
        let add = self.add.then(|| add.rows());
        let mut weight = || if noise.below(100) < self.zeros { 0.0 } else { noise.float() };
        let weights: Vec<f32> = (0..outputs * channels).map(|_| weight()).collect();
        let bias: Vec<f32> = (0..outputs).map(|_| noise.float()).collect();
        let (min, max) = if self.seed.is_multiple_of(2) { (-0.5, 1.0) } else { (f32::NEG_INFINITY, f32::INFINITY) };
        for isa in isas() {
            let product = SparseF::new(isa, &weights, channels, bias.clone(), min, max);
            let run = |first: usize, rows: usize, threads: usize| {
                let window = Window::pixel(rows);
                let mut y = Grid::new(rows, outputs, gaps[1], 99.0, || 7.0);
                let mut scratch = Guarded::new(&vec![0xff; product.scratch(&window, threads)]);
                let add = add.map(|add| add.part(first, rows));
                product.run(x.rows().part(first, rows), &window, add, y.rows_mut(), &mut scratch, threads);
                y.values()
            };
            let y = run(0, rows, threads);
            assert_eq!(y.len(), rows * outputs);
            for (i, &y) in y.iter().enumerate() {
                let (row, output) = (i / outputs, i % outputs);
                let add = add.map_or(0.0, |add| f64::from(add.row(row)[output]));
                // Errors are relative to the sum without signs.
                let (mut sum, mut size) = (f64::from(bias[output]) + add, 1.0);
                for (x, w) in x.rows().row(row).iter().zip(&weights[output * channels..]) {
                    let product = f64::from(*x) * f64::from(*w);
                    (sum, size) = (sum + product, size + product.abs());
                }
                let want = sum.clamp(min.into(), max.into());
                assert!((f64::from(y) - want).abs() <= 1e-5 * size, "{isa}, {i}: {y}, not {want}, in {self:?}");
            }
            assert!(y == run(0, rows, 1), "{isa}: {threads} threads have other results: {self:?}");
            for row in [0, rows / 2, rows.saturating_sub(1)].into_iter().filter(|row| *row < rows) {
                let alone = run(row, 1, threads);
                assert!(alone == y[row * outputs..][..outputs], "{isa}: row {row} has other results alone: {self:?}");
            }
        }
    }
}

/// Every size of a tile, full and in part, and as many channels as make tiles small.
#[test]
fn chosen_products() {
    let products = [
        (1, 1, 1, 0),
        (1, 300, 200, 90),
        (2, 7, 65, 50),
        (9, 16, 16, 80),
        (17, 33, 15, 90),
        (33, 5, 17, 100),
        (64, 64, 64, 90),
        (65, 20, 30, 70),
        (200, 40, 3, 95),
        (70, 1200, 18, 90),
    ];
    for (rows, channels, outputs, zeros) in products {
        for threads in 1..=3 {
            for (add, gaps) in [(false, [0; 3]), (true, [3, 2, 1])] {
                Case { rows, channels, outputs, zeros, gaps, add, threads, seed: rows as u64 }.check();
            }
        }
    }
}

#[test]
fn nothing_is_computed_of_nothing() {
    let none = Case { rows: 0, channels: 3, outputs: 4, zeros: 50, gaps: [0; 3], add: true, threads: 2, seed: 0 };
    none.check();
    Case { rows: 3, outputs: 0, gaps: [1; 3], ..none }.check();
}

/// NaN and infinity get through the sum, the bias and both bounds, where a weight isn't zero.
#[test]
fn nan_stays_nan() {
    for isa in isas() {
        for rows in [1, 3] {
            let product = SparseF::new(isa, &[1.0, 0.0, 2.0], 1, vec![0.0; 3], 0.0, 6.0);
            for (x, want) in [(f32::NAN, f32::NAN), (f32::INFINITY, 6.0), (f32::NEG_INFINITY, 0.0)] {
                let (x, mut y, window) = (vec![x; rows], vec![9.0; 3 * rows], Window::pixel(rows));
                let mut scratch = vec![0; product.scratch(&window, 1)];
                product.run(Rows::dense(&x, rows, 1), &window, None, RowsMut::dense(&mut y, rows, 3), &mut scratch, 1);
                for y in y.chunks(3) {
                    let same = |y: f32| y == want || y.is_nan() && want.is_nan();
                    assert!(same(y[0]) && y[1] == 0.0 && same(y[2]), "{isa}: {y:?}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "a sparse product over")]
fn a_wider_window_is_refused() {
    let product = SparseF::new(Isa::Portable, &[1.0], 1, vec![0.0], 0.0, 6.0);
    let window = Window { kernel: [1, 3], output: [7, 1], ..Window::pixel(9) };
    product.run(Rows::dense(&[0.0; 9], 9, 1), &window, None, RowsMut::dense(&mut [0.0; 7], 7, 1), &mut [], 1);
}

/// Dense and sparse kernels compute the same numbers.
#[test]
fn dense_products_are_alike() {
    let mut noise = Noise(5);
    let (rows, channels, outputs) = (50, 30, 20);
    let weights: Vec<f32> = (0..outputs * channels).map(|i| if i % 5 == 0 { noise.float() } else { 0.0 }).collect();
    let x: Vec<f32> = (0..rows * channels).map(|_| noise.float()).collect();
    let (window, bias) = (Window::pixel(rows), vec![0.25; outputs]);
    let x = Rows::dense(&x, rows, channels);
    for isa in isas() {
        let dense = ConvF::new(isa, &weights, outputs, [1, 1], channels, 1, bias.clone(), 0.0, 1.0);
        let sparse = SparseF::new(isa, &weights, channels, bias.clone(), 0.0, 1.0);
        let mut y = [vec![0.0; rows * outputs], vec![0.0; rows * outputs]];
        let mut scratch = vec![0; dense.scratch(&window, 1).max(sparse.scratch(&window, 1))];
        dense.run(x, &window, None, RowsMut::dense(&mut y[0], rows, outputs), &mut scratch, 1);
        sparse.run(x, &window, None, RowsMut::dense(&mut y[1], rows, outputs), &mut scratch, 1);
        assert!(y[0].iter().zip(&y[1]).all(|(a, b)| (a - b).abs() < 1e-5), "{isa}");
    }
}

#[test]
fn few_weights_pay() {
    let pays = |percent: usize, positions: usize| SparseF::pays(512, 512, 512 * 512 / 100 * percent, positions);
    assert!(pays(9, 1) && pays(10, 8) && pays(25, 49) && pays(25, usize::MAX));
    assert!(!pays(10, 2) && !pays(30, 8) && !pays(40, 3000) && !pays(100, usize::MAX));
    assert!(!SparseF::pays(1, 1, 0, 1) && !SparseF::pays(16, 64, 10, 3000), "too small a product");
    let weights: Vec<f32> = (0..256 * 64).map(|i| if i % 10 == 0 { 1.0 } else { 0.0 }).collect();
    let product = SparseF::new(Isa::Portable, &weights, 256, vec![0.0; 64], 0.0, 1.0);
    assert!(product.pays_at(100) && !product.pays_at(1));
}

proptest! {
    #![proptest_config(cases(150))]
    #[test]
    fn any_product(
        (rows, channels, outputs) in (0usize..150, 1usize..70, 1usize..70),
        zeros in 0usize..=100,
        gaps in [0usize..=3, 0..=3, 0..=3],
        add: bool,
        threads in 1usize..=3,
        seed: u64,
    ) {
        Case { rows, channels, outputs, zeros, gaps, add, threads, seed }.check();
    }
}
