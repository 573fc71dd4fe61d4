use super::*;
use crate::{
    Bits,
    testing::{Guarded, Noise, cases},
};
use proptest::prelude::*;

/// What is left of a block of terms.
fn rounded(x: &[f32]) -> Vec<f64> {
    let most = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = f64::from(most / 127.0);
    x.iter().map(|v| f64::from((v * (127.0 / most)).round_ties_even()) * scale).collect()
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn rows_by_codes_are_rounded_rows_by_what_they_stand_for(
        rows in 1usize..20, depth in 1usize..150, outputs in 1usize..50, of in 0usize..4, with_zeros: bool, seed: u64,
    ) {
        let (mut noise, block) = (Noise(seed), [8, 16, 32, 64][of]);
        let blocks = depth.div_ceil(block);
        let codes: Vec<u8> = (0..depth * outputs).map(|_| noise.byte() & 15).collect();
        let scales: Vec<f32> = (0..blocks * outputs).map(|_| noise.float() * 0.1).collect();
        let zeros: Vec<u8> = (0..blocks * outputs).map(|_| noise.byte() & 15).collect();
        let bias: Vec<f32> = (0..outputs).map(|_| noise.float()).collect();
        let zeros = with_zeros.then_some(&zeros[..]);
        let matrix = Coded { codes: &codes, bits: Bits::Four, block, scales: &scales, zeros };
        let x: Vec<f32> = (0..rows * depth).map(|_| noise.float()).collect();
        let of_x: Vec<f64> = x.chunks(depth).flat_map(|row| row.chunks(block).flat_map(rounded)).collect();
        let weight = |k: usize, j: usize| {
            let at = k / block * outputs + j;
            let zero = zeros.map_or(8, |zeros| i64::from(zeros[at]));
            f64::from(scales[at]) * (i64::from(codes[k * outputs + j]) - zero) as f64
        };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let op = Coded4::new(isa, matrix, depth, bias.clone(), (-1.5, 1.5)).then(Some(UnaryOp::Neg));
            let x = Guarded::new(&x);
            let mut y = Guarded::new(&vec![f32::NAN; rows * outputs]);
            let mut scratch = vec![0xFF; op.scratch(rows)];
            op.run(Rows::dense(&x, rows, depth), RowsMut::dense(&mut y, rows, outputs), &mut scratch, 3);
            for (i, y) in y.iter().enumerate() {
                let (row, j) = (i / outputs, i % outputs);
                let sum: f64 = (0..depth).map(|k| of_x[row * depth + k] * weight(k, j)).sum();
                let want = -(sum + f64::from(bias[j])).clamp(-1.5, 1.5);
                prop_assert!((f64::from(*y) - want).abs() < 2e-5, "{isa} {depth}x{outputs} of {block}: {y} for {want}");
            }
        }
    }
}

#[test]
fn zeros_stay_and_what_is_not_finite_shows() {
    let (codes, scales) = ([9u8; 32], [0.5f32; 2]);
    let matrix = Coded { codes: &codes, bits: Bits::Four, block: 16, scales: &scales, zeros: None };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let op = Coded4::new(isa, matrix, 32, vec![0.25], (f32::NEG_INFINITY, f32::INFINITY));
        let mut scratch = vec![0; op.scratch(1)];
        for (value, want) in
            [(0.0, Some(0.25)), (1e-38, Some(0.25)), (2.0, Some(1.25)), (f32::NAN, None), (f32::INFINITY, None)]
        {
            let mut x = [0.0; 32];
            x[20] = value;
            let mut y = [9.0];
            op.run(Rows::dense(&x, 1, 32), RowsMut::dense(&mut y, 1, 1), &mut scratch, 1);
            assert!(want.map_or(y[0].is_nan(), |want| y[0] == want), "{isa}: {} for {value}", y[0]);
        }
    }
}
