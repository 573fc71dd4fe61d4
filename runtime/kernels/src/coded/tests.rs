use super::*;
use crate::testing::Guarded;

#[test]
fn rows_by_codes_are_rows_by_what_they_stand_for() {
    let noise = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 1009.0 - 0.5;
    for (depth, outputs, block) in
        [(0usize, 3usize, 2usize), (2, 1, 2), (64, 33, 32), (70, 40, 16), (33, 100, 32), (256, 64, 128)]
    {
        for (bits, most) in [(Bits::Four, 16), (Bits::Eight, 256)] {
            for with_zeros in [false, true] {
                let blocks = depth.div_ceil(block);
                let codes: Vec<u8> = (0..depth * outputs).map(|i| (i * 7919 % most) as u8).collect();
                let scales: Vec<f32> = (0..blocks * outputs).map(|i| noise(i) / most as f32).collect();
                let zeros: Vec<u8> = (0..blocks * outputs).map(|i| (i * 31 % most) as u8).collect();
                let bias: Vec<f32> = (0..outputs).map(|i| noise(i + 7)).collect();
                let zeros = with_zeros.then_some(&zeros[..]);
                let matrix = Coded { codes: &codes, bits, block, scales: &scales, zeros };
                let weight = |k: usize, j: usize| {
                    let at = k / block * outputs + j;
                    let zero = zeros.map_or(bits.middle(), |zeros| zeros[at].into());
                    f64::from(scales[at]) * (i64::from(codes[k * outputs + j]) - zero) as f64
                };
                for rows in [1, 2, 3, 7, 8, 13] {
                    let x: Vec<f32> = (0..rows * depth).map(|i| noise(i + 3)).collect();
                    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                        let op = CodedF::new(isa, matrix, depth, bias.clone(), (-1.5, 1.5));
                        let x = Guarded::new(&x);
                        let mut y = Guarded::new(&vec![f32::NAN; rows * outputs]);
                        let mut scratch = vec![0; op.scratch(rows, 3)];
                        let to = RowsMut::dense(&mut y, rows, outputs);
                        op.run(Rows::dense(&x, rows, depth), to, &mut scratch, 3);
                        for (i, y) in y.iter().enumerate() {
                            let (row, j) = (i / outputs, i % outputs);
                            let sum: f64 = (0..depth).map(|k| f64::from(x[row * depth + k]) * weight(k, j)).sum();
                            let want = (sum + f64::from(bias[j])).clamp(-1.5, 1.5);
                            assert!(
                                (f64::from(*y) - want).abs() < 2e-5,
                                "{isa} {bits:?} {depth}x{outputs} of {block}, {rows} rows: {y} for {want}"
                            );
                        }
                    }
                }
            }
        }
    }
}
