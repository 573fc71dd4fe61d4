use super::*;
use crate::testing::{Grid, Noise, isas};

/// Attention of one query in `f64`.
fn naive(head: &Head, of: &Heads, query: usize) -> Vec<f64> {
    let q = head.queries.row(query);
    let key = |j: usize, d: usize| if of.keys_are_rows { head.keys.row(j)[d] } else { head.keys.row(d)[j] };
    let at = |rows: usize| if rows == 1 { 0 } else { query };
    let column = |width: usize, j: usize| if width == 1 { 0 } else { j };
    let scores: Vec<f64> = (0..of.keys)
        .map(|j| {
            let dot: f64 = (0..of.depth).map(|d| f64::from(q[d]) * f64::from(key(j, d))).sum();
            head.masks.iter().flatten().fold(dot * f64::from(of.scale), |score, mask| match mask {
                Mask::Added(mask) => score + f64::from(mask.row(at(mask.rows()))[column(mask.width(), j)]),
                Mask::Kept { condition, keeps, other } => {
                    let is = condition.row(at(condition.rows()))[column(condition.width(), j)] != 0;
                    if is == *keeps { score } else { f64::from(*other) }
                }
            })
        })
        .collect();
    let most = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
    let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    (0..of.width)
        .map(|c| {
            let weighed = powers.iter().enumerate().map(|(j, p)| p / sum * f64::from(head.values.row(j)[c]));
            if sum.is_nan() && of.guarded { 0.0 } else { weighed.sum() }
        })
        .collect()
}

#[test]
fn heads_of_all_sizes_are_as_in_double_precision() {
    for isa in isas() {
        for (n, queries, keys, depth, width, threads) in [
            (1, 1, 1, 1, 1, 1),
            (3, 1, 37, 16, 8, 2),
            (2, 3, 5, 33, 17, 4),
            (2, 70, 19, 8, 40, 3),
            (1, 130, 300, 32, 32, 2),
        ] {
            for keys_are_rows in [true, false] {
                let mut noise = Noise(keys as u64);
                let mut one = || noise.float();
                let (k_rows, k_width) = if keys_are_rows { (keys, depth) } else { (depth, keys) };
                let q = Grid::new(n * queries, depth, 3, f32::NAN, &mut one);
                let k = Grid::new(n * k_rows, k_width, 5, f32::NAN, &mut one);
                let v = Grid::new(n * keys, width, 1, f32::NAN, &mut one);
                let added = Grid::new(1, keys, 0, f32::NAN, &mut one);
                let mut count = 0;
                // The last row masks every key.
                let condition = Grid::new(queries, keys, 2, 7u8, || {
                    count += 1;
                    if count <= (queries - 1) * keys { (count % 3) as u8 } else { 0 }
                });
                let kept = Mask::Kept { condition: condition.rows(), keeps: true, other: f32::NEG_INFINITY };
                // One column for all keys.
                let by_query = Grid::new(queries, 1, 0, f32::NAN, &mut one);
                let every_other = Grid::new(queries, 1, 0, 7u8, || {
                    count += 1;
                    (count % 2) as u8
                });
                let of_query = Mask::Kept { condition: every_other.rows(), keeps: false, other: -2.0 };
                let low = Mask::Kept { condition: condition.rows(), keeps: false, other: -1.5 };
                let [added, by_query] = [added.rows(), by_query.rows()].map(Mask::Added);
                for (masks, scale) in [
                    [None; 2],
                    [Some(added), Some(kept)],
                    [Some(kept), None],
                    [Some(low), Some(added)],
                    [Some(of_query), Some(low)],
                    [Some(of_query), Some(by_query)],
                    [Some(by_query), Some(of_query)],
                ]
                .into_iter()
                .flat_map(|masks| [0.7, -0.4, 0.0].map(|scale| (masks, scale)))
                {
                    let heads = Heads { depth, keys, width, keys_are_rows, scale, guarded: true };
                    let (q, k, v) = (q.rows(), k.rows(), v.rows());
                    let of = |i: usize| Head {
                        queries: q.part(i * queries, queries),
                        keys: k.part(i * k_rows, k_rows),
                        values: v.part(i * keys, keys),
                        masks,
                    };
                    let attention = Attention::new(isa, heads);
                    let mut y = Grid::new(n * queries, width, 4, f32::NAN, || 9.0);
                    let mut scratch = vec![0u8; attention.scratch(queries, threads)];
                    attention.run(n, of, y.rows_mut(), &mut scratch, threads);
                    for i in 0..n * queries {
                        let want = naive(&of(i / queries), &heads, i % queries);
                        for (y, want) in y.rows().row(i).iter().zip(want) {
                            assert!((f64::from(*y) - want).abs() < 1e-5, "{isa} {heads:?} {i}: {y} for {want}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_query_that_sees_no_key_is_nan_unless_it_is_guarded() {
    for isa in isas() {
        for queries in [2, 8] {
            let (q, k, v) = (vec![1.0; 4 * queries], [0.5; 12], [2.0; 12]);
            let seen: Vec<u8> = (0..queries).map(|i| u8::from(i != 1)).collect();
            let mask = Mask::Kept { condition: Rows::dense(&seen, queries, 1), keeps: true, other: f32::NEG_INFINITY };
            for guarded in [false, true] {
                let heads = Heads { depth: 4, keys: 3, width: 4, keys_are_rows: true, scale: 0.5, guarded };
                let head = Head {
                    queries: Rows::dense(&q, queries, 4),
                    keys: Rows::dense(&k, 3, 4),
                    values: Rows::dense(&v, 3, 4),
                    masks: [Some(mask), None],
                };
                let attention = Attention::new(isa, heads);
                let mut y = vec![9.0; 4 * queries];
                let mut scratch = vec![0u8; attention.scratch(queries, 1)];
                attention.run(1, |_| head, RowsMut::dense(&mut y, queries, 4), &mut scratch, 1);
                assert!(y[4..8].iter().all(|y| if guarded { *y == 0.0 } else { y.is_nan() }), "{isa} {guarded}: {y:?}");
                assert!(y[..4].iter().chain(&y[8..]).all(|y| (y - 2.0).abs() < 1e-6), "{isa} {guarded}: {y:?}");
            }
        }
    }
}
