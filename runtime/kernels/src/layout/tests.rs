use super::*;
use crate::testing::{Grid, Guarded, Noise, cases, isas};
use proptest::prelude::*;

fn noise_of<T: Element>(n: usize, mut one: impl FnMut() -> T) -> Guarded<T> {
    Guarded::new(&(0..n).map(|_| one()).collect::<Vec<_>>())
}

fn check_transpose<T: Element + PartialEq + std::fmt::Debug>(
    [batch, rows, columns, gap, threads]: [usize; 5],
    mut one: impl FnMut() -> T,
) {
    let x = noise_of(batch * rows * columns, &mut one);
    for isa in isas() {
        let mut y = Grid::new(batch * columns, rows, gap, one(), &mut one);
        transpose(isa, &x, batch, rows, columns, y.rows_mut(), threads);
        y.values();
        for b in 0..batch {
            for r in 0..rows {
                for c in 0..columns {
                    let want = x[(b * rows + r) * columns + c];
                    assert_eq!(y.at(b * columns + c, r), want, "{isa}: {batch}x{rows}x{columns}, {b} {r} {c}");
                }
            }
        }
    }
}

fn naive_permute<T: Copy>(x: &[T], dims: &[usize], perm: &[usize]) -> Vec<T> {
    let shape: Vec<usize> = perm.iter().map(|&p| dims[p]).collect();
    (0..x.len())
        .map(|i| {
            let (mut rest, mut from) = (i, 0);
            for (axis, n) in shape.iter().enumerate().rev() {
                from += rest % n * dims[perm[axis] + 1..].iter().product::<usize>();
                rest /= n;
            }
            x[from]
        })
        .collect()
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn transposes(
        batch in 1usize..4,
        rows in prop_oneof![3 => 1usize..71, 1 => 1usize..5],
        columns in prop_oneof![3 => 1usize..71, 1 => 64usize..150],
        gap in 0usize..4,
        threads in 1usize..4,
        seed: u64,
    ) {
        let mut noise = Noise(seed);
        let shape = [batch, rows, columns, gap, threads];
        check_transpose(shape, || noise.byte());
        check_transpose(shape, || noise.float());
        check_transpose(shape, || noise.bits() as u16);
        check_transpose(shape, || noise.bits() as i64);
    }

    #[test]
    fn quantize_transpose_is_both(
        batch in 1usize..4,
        channels in prop_oneof![3 => 1usize..8, 1 => 8usize..50],
        pixels in 1usize..300,
        gap in 0usize..4,
        threads in 1usize..4,
        seed: u64,
    ) {
        let mut noise = Noise(seed);
        let (scale, zero) = (0.001 + noise.float().abs() / 50.0, noise.byte());
        let x = noise_of(batch * channels * pixels, || 3.0 * noise.float());
        for isa in isas() {
            let mut y = Grid::new(batch * pixels, channels, gap, 9, || 1);
            quantize_transpose(isa, &x, batch, channels, pixels, scale, zero, y.rows_mut(), threads);
            y.values();
            for (i, x) in x.iter().enumerate() {
                let want = ((x / scale).round_ties_even() + f32::from(zero)).clamp(0.0, 255.0) as u8;
                let (image, channel, pixel) = (i / pixels / channels, i / pixels % channels, i % pixels);
                assert_eq!(y.at(image * pixels + pixel, channel), want, "{isa}: {image} {channel} {pixel}");
            }
        }
    }

    #[test]
    fn permutations(
        dims in prop::collection::vec(1usize..7, 0..6),
        order in prop::collection::vec(any::<u32>(), 8),
        seed: u64,
    ) {
        let mut perm: Vec<usize> = (0..dims.len()).collect();
        perm.sort_by_key(|&axis| order[axis]);
        let mut noise = Noise(seed);
        let x = noise_of(dims.iter().product(), || noise.float());
        let mut y = Guarded::new(&vec![9.0; x.len()]);
        for threads in 1..4 {
            y.fill(9.0);
            permute(&x, &dims, &perm, &mut y, threads);
            assert_eq!(*y, naive_permute(&x, &dims, &perm), "{dims:?} {perm:?}");
        }
    }

    #[test]
    fn rows_are_copied_and_picked(
        rows in 1usize..9, width in 1usize..70, gaps: [u8; 2], threads in 1usize..4, seed: u64,
    ) {
        let mut noise = Noise(seed);
        let [x_gap, y_gap] = gaps.map(|gap| usize::from(gap % 3));
        let x = Grid::new(rows, width, x_gap, 7, || noise.byte());
        let mut y = Grid::new(rows, width, y_gap, 9, || 1);
        copy(x.rows(), y.rows_mut());
        assert_eq!(y.values(), x.values());

        let mut some = |n: usize, of: usize| -> Vec<u32> {
            (0..n).map(|_| if noise.below(4) == 0 { PADDING } else { noise.below(of) as u32 }).collect()
        };
        let picked = some(rows * 2, rows);
        let columns = some(width + 3, width);
        let first = columns.iter().copied().find(|c| *c != PADDING).unwrap_or(0);
        let run: Vec<u32> = [PADDING; 2].into_iter().chain(first..width as u32).chain([PADDING]).collect();
        let as_run = Columns::Run { first: first as usize, width: width - first as usize, to: 2 };
        let each = [columns, run.clone()].map(|columns| (Columns::Each(columns.clone()), columns));
        for (kind, columns) in each.into_iter().chain([(as_run, run)]) {
            let mut y = Grid::new(picked.len(), columns.len(), y_gap, 9, || 1);
            pick(x.rows(), &picked, &kind, 200, y.rows_mut(), threads);
            let at = |row: u32, column: u32| match row == PADDING || column == PADDING {
                true => 200,
                false => x.at(row as usize, column as usize),
            };
            let want: Vec<u8> = picked.iter().flat_map(|row| columns.iter().map(|c| at(*row, *c))).collect();
            assert_eq!(y.values(), want, "{kind:?}");
        }
    }
}

#[test]
fn permutations_of_attention() {
    let mut noise = Noise(3);
    for (dims, perm) in [
        (vec![2, 17, 4, 24], vec![0, 2, 1, 3]),
        (vec![2, 17, 4, 24], vec![0, 2, 3, 1]),
        (vec![1, 1, 33, 5], vec![3, 2, 1, 0]),
        (vec![2, 3, 4, 2, 3, 2, 2, 3], vec![7, 6, 5, 4, 3, 2, 1, 0]),
        (vec![2, 3, 4, 2, 3, 2, 2, 3], vec![4, 0, 6, 1, 7, 2, 5, 3]),
        (vec![3, 0, 2], vec![2, 1, 0]),
    ] {
        let x = noise_of(dims.iter().product(), || noise.bits() as u32);
        let mut y = Guarded::new(&vec![9; x.len()]);
        permute(&x, &dims, &perm, &mut y, 2);
        assert_eq!(*y, naive_permute(&x, &dims, &perm), "{dims:?} {perm:?}");
    }
}

#[test]
#[should_panic(expected = "not a permutation")]
fn an_axis_that_comes_twice_is_refused() {
    permute(&[1; 4], &[2, 2], &[0, 0], &mut [0; 4], 1);
}
