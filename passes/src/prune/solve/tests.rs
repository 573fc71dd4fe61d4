use super::*;

/// Rows over inputs of which the second is the first again, and the third has a life of its own.
fn problem() -> Problem<'static> {
    let h = vec![1.0, 0.999, 0.0, 0.999, 1.0, 0.0, 0.0, 0.0, 0.5];
    let w = [1.0, 1.0, 0.9, 0.1, 0.0, 1.0];
    let g: Vec<f64> =
        w.chunks(3).flat_map(|w| (0..3).map(|c| dot(w, &h[c * 3..c * 3 + 3])).collect::<Vec<_>>()).collect();
    let energy = w.chunks(3).zip(g.chunks(3)).map(|(w, g)| dot(w, g)).collect();
    Problem { parts: vec![Rows { columns: 3, h, g, energy }], stopped: &|| false }
}

fn stays(sparse: &Sparse) -> Vec<bool> {
    sparse.values.iter().map(|v| *v != 0.0).collect()
}

#[test]
fn one_input_takes_over_from_its_copy() {
    let p = problem();
    let dense = p.prune(0, None).unwrap();
    assert!(dense.error.abs() < 1e-12 && (dense.values[2] - 0.9).abs() < 1e-12);
    let sparse = p.prune(3, None).unwrap();
    let [a, b, c, _, _, f] = stays(&sparse)[..] else { panic!() };
    assert_eq!(stays(&sparse).iter().filter(|k| **k).count(), 3);
    // Magnitude would have kept both copies and lost what neither can tell.
    assert!(c && f && a != b);
    assert!(sparse.values[..2].iter().any(|v| (v - 1.999).abs() < 1e-9));
    assert!(sparse.error < 0.02);
}

#[test]
fn one_at_a_time_no_pair_of_copies_goes() {
    // Every other input is the one before it again.
    let n = 12;
    let value = |i: usize, j: usize| {
        if i == j {
            1.001
        } else if i / 2 == j / 2 {
            1.0
        } else {
            0.0
        }
    };
    let h: Vec<f64> = (0..n * n).map(|k| value(k / n, k % n)).collect();
    let w: Vec<f64> = (0..n).map(|c| 1.0 + (c as f64 * 7.0).sin() / 2.0).collect();
    let g: Vec<f64> = h.chunks(n).map(|row| dot(row, &w)).collect();
    let energy = vec![dot(&w, &g)];
    let p = Problem { parts: vec![Rows { columns: n, h, g, energy }], stopped: &|| false };
    let sparse = p.prune(n / 2, None).unwrap();
    assert!(stays(&sparse).chunks(2).all(|pair| pair[0] != pair[1]));
    let curve = p.curve().unwrap();
    let at_half = curve.iter().find(|point| point.0 == n / 2).unwrap().1;
    assert!((at_half - sparse.error).abs() < 1e-9 && sparse.error < 0.02, "{at_half} {}", sparse.error);
    // Those that may go in each group, and no others.
    let groups = Groups { zeros: 1, of: (0..n).map(|c| c / 3).collect() };
    let kept = stays(&p.prune(groups.total(), Some(&groups)).unwrap());
    assert!(kept.chunks(3).all(|group| group.iter().filter(|k| **k).count() == 2));
}

#[test]
fn each_that_goes_costs_least_of_those_left() {
    // More than go together.
    let n = 3 * TOGETHER;
    let value = |i: usize, j: usize| {
        if i == j { 3.0 } else { (1.0 + (i * j % 5) as f64) / (1.0 + i.abs_diff(j) as f64).powi(2) }
    };
    let h: Vec<f64> = (0..n * n).map(|k| value(k / n, k % n)).collect();
    let g: Vec<f64> = (0..n).map(|i| (i as f64 * 3.0).sin()).collect();
    let mut left: Vec<usize> = (0..n).collect();
    let whole = Inverse::of(&h, n, &left);
    for gone in leave(&whole.matrix(n), whole.solve(&g), 100, None) {
        let inverse = Inverse::of(&h, n, &left);
        let w = inverse.solve(&left.iter().map(|i| g[*i]).collect::<Vec<_>>());
        let costs: Vec<f64> = w.iter().zip(&inverse.diagonal).map(|(w, d)| w * w / d).collect();
        let goes = left.iter().position(|i| 100 + i == gone.element).unwrap();
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        assert!((gone.adds - costs[goes]).abs() < 1e-9 && costs[goes] < least + 1e-9);
        left.remove(goes);
    }
    assert!(left.is_empty());
}

#[test]
fn errors_rise_with_zeros_and_one_element_stays() {
    let curve = problem().curve().unwrap();
    assert!(curve.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
    assert_eq!(curve.last().unwrap().0, 5);
    assert_eq!(stays(&problem().prune(6, None).unwrap()).iter().filter(|k| **k).count(), 1);
}

#[test]
fn groups_keep_their_share() {
    let groups = Groups { zeros: 1, of: vec![0, 0, 1, 2, 2, 3] };
    let [a, b, c, _, _, f] = stays(&problem().prune(4, Some(&groups)).unwrap())[..] else { panic!() };
    assert!(!c && !f && a != b);
}

#[test]
fn the_inverse_is_one() {
    let n = 40;
    let value = |i: usize, j: usize| if i == j { 3.0 } else { 1.0 / (1.0 + (i as f64 - j as f64).abs()) };
    let h: Vec<f64> = (0..n * n).map(|k| value(k / n, k % n)).collect();
    let support: Vec<usize> = (0..n).filter(|c| c % 3 != 1).collect();
    let inverse = Inverse::of(&h, n, &support);
    let g: Vec<f64> = support.iter().map(|c| (*c as f64).sin()).collect();
    let w = inverse.solve(&g);
    for (i, want) in support.iter().zip(&g) {
        let found: f64 = support.iter().zip(&w).map(|(j, w)| h[i * n + j] * w).sum();
        assert!((found - want).abs() < 1e-12);
    }
    let mut unit = vec![0.0; support.len()];
    unit[7] = 1.0;
    assert!((inverse.solve(&unit)[7] - inverse.diagonal[7]).abs() < 1e-12);
}
