use super::*;
use crate::testing::{Grid, Guarded, Noise, cases, isas};
use proptest::prelude::*;

/// The shapes of an operand that may be one row or one column for all.
fn shape_of(kind: usize, rows: usize, width: usize) -> (usize, usize) {
    [(rows, width), (1, width), (rows, 1), (1, 1)][kind]
}

fn round(x: f32) -> u8 {
    x.round_ties_even().clamp(0.0, 255.0) as u8
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn quantize_dequantize_and_lookup(rows in 1usize..6, width in 1usize..200, gap in 0usize..3, threads in 1usize..4, seed: u64) {
        let mut noise = Noise(seed);
        let (scale, zero) = (0.001 + noise.float().abs() / 50.0, noise.byte());
        let table: [u8; 256] = std::array::from_fn(|_| noise.byte());
        let x = Grid::new(rows, width, gap, 7.0, || 4.0 * noise.float());
        let x8 = Grid::new(rows, width, gap, 7, || noise.byte());
        for isa in isas() {
            let mut y = Grid::new(rows, width, gap, 9, || 1);
            quantize(isa, x.rows(), scale, zero, y.rows_mut(), threads);
            let want = x.values().iter().map(|x| round((x / scale).round_ties_even() + f32::from(zero))).collect::<Vec<_>>();
            assert_eq!(y.values(), want, "{isa}");
            let mut y = Grid::new(rows, width, gap, 9.0, || 1.0);
            dequantize(isa, x8.rows(), scale, zero, y.rows_mut(), threads);
            let want = x8.values().iter().map(|x| (i32::from(*x) - i32::from(zero)) as f32 * scale).collect::<Vec<_>>();
            assert_eq!(y.values(), want, "{isa}");
            let mut y = Grid::new(rows, width, gap, 9, || 1);
            lookup(isa, x8.rows(), &table, y.rows_mut(), threads);
            let want = x8.values().iter().map(|x| table[usize::from(*x)]).collect::<Vec<_>>();
            assert_eq!(y.values(), want, "{isa}");
        }
    }

    #[test]
    fn add_and_mul_of_any_shapes(
        rows in 1usize..6, width in 1usize..150, gap in 0usize..3, threads in 1usize..4,
        a in 0usize..4, b in 0usize..4, seed: u64,
    ) {
        let mut noise = Noise(seed);
        let [(a_rows, a_width), (b_rows, b_width)] = [a, b].map(|kind| shape_of(kind, rows, width));
        let mut scale = || 0.001 + noise.float().abs() / 10.0;
        let [a_scale, b_scale, y_scale] = [scale(), scale(), scale()];
        let [a_zero, b_zero, y_zero] = [noise.byte(), noise.byte(), noise.byte()];
        let (min, max) = (noise.byte() / 2, 128 + noise.byte() / 2);
        let add = Add8 { a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, min, max };
        let mul = Mul8 { a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, min, max };
        let a = Grid::new(a_rows, a_width, gap, 7, || noise.byte());
        let b = Grid::new(b_rows, b_width, gap, 7, || noise.byte());
        let (ra, rb) = (a_scale / y_scale, b_scale / y_scale);
        let fixed = f32::from(y_zero) - ra.mul_add(f32::from(a_zero), rb * f32::from(b_zero));
        let fixed_swapped = f32::from(y_zero) - rb.mul_add(f32::from(b_zero), ra * f32::from(a_zero));
        for isa in isas() {
            let (mut sum, mut product) = (Grid::new(rows, width, gap, 9, || 1), Grid::new(rows, width, gap, 9, || 1));
            add.run(isa, a.rows(), b.rows(), sum.rows_mut(), threads);
            mul.run(isa, a.rows(), b.rows(), product.rows_mut(), threads);
            sum.values();
            product.values();
            for i in 0..rows {
                for j in 0..width {
                    let va = a.at(i.min(a_rows - 1), j.min(a_width - 1));
                    let vb = b.at(i.min(b_rows - 1), j.min(b_width - 1));
                    let (fa, fb) = (f32::from(va), f32::from(vb));
                    let want = if a_width < width {
                        fb.mul_add(rb, fa.mul_add(ra, fixed_swapped))
                    } else {
                        fa.mul_add(ra, fb.mul_add(rb, fixed))
                    };
                    assert_eq!(sum.at(i, j), round(want).clamp(min, max), "{isa} {add:?}: {va} + {vb}");
                    let want = (i32::from(va) - i32::from(a_zero)) * (i32::from(vb) - i32::from(b_zero));
                    let want = want as f32 * (a_scale * b_scale / y_scale) + f32::from(y_zero);
                    assert_eq!(product.at(i, j), round(want).clamp(min, max), "{isa} {mul:?}: {va} * {vb}");
                }
            }
        }
    }
}

#[test]
fn what_has_no_nearest_integer_saturates() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 0.5, 1.5, 2.5, -0.5, 3e9];
    for isa in isas() {
        let mut y = [1; 10];
        quantize(isa, Rows::dense(&x, 1, 10), 1.0, 10, RowsMut::dense(&mut y, 1, 10), 1);
        assert_eq!(y, [0, 255, 0, 255, 0, 10, 12, 12, 10, 255], "{isa}");
    }
}

#[test]
fn signs_are_flipped_in_guarded_memory() {
    let x = Guarded::new(&[0x00, 0x7f, 0x80, 0xff, 0x01]);
    let mut y = Guarded::new(&[9; 5]);
    xor_sign(&x, &mut y);
    assert_eq!(*y, [0x80, 0xff, 0x00, 0x7f, 0x81]);
}
