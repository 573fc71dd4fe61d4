//! How many zeros each layer gets.

/// The zeros of each layer, `zeros` together, for which the sum of errors is least. A curve has errors at rising numbers of
/// zeros, from some to the most that the layer may have; between them it is taken as straight, and what lies above
/// the straight line between others is left out.
pub fn allocate(curves: &[Vec<(usize, f64)>], zeros: usize) -> Vec<usize> {
    let mut pieces: Vec<(f64, usize, usize)> = vec![];
    for (layer, curve) in curves.iter().enumerate() {
        for pair in hull(curve).windows(2) {
            let ((from, low), (to, high)) = (pair[0], pair[1]);
            pieces.push(((high - low) / (to - from) as f64, layer, to - from));
        }
    }
    // The pieces of a layer come in their order: their slopes rise.
    pieces.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut left = zeros;
    let mut out = vec![0; curves.len()];
    for (_, layer, count) in pieces {
        let taken = count.min(left);
        out[layer] += taken;
        left -= taken;
    }
    out
}

/// Parts of the way to a curve's first point.
const BEGINNING: usize = 8;

/// The lower convex hull of a curve that begins with no zeros and no error, and from there goes to its first point
/// about as the cube of the zeros: so errors of layers were found to rise.
fn hull(curve: &[(usize, f64)]) -> Vec<(usize, f64)> {
    let slope = |a: (usize, f64), b: (usize, f64)| (b.1 - a.1) / (b.0 - a.0) as f64;
    let mut hull = vec![(0, 0.0)];
    let first = curve.first().copied().unwrap_or_default();
    let part = |i: usize| i as f64 / BEGINNING as f64;
    let beginning = (1..BEGINNING).map(|i| (first.0 * i / BEGINNING, first.1 * part(i).powi(3)));
    let points = beginning.chain(curve.iter().copied());
    for (zeros, error) in points {
        if hull.last().is_some_and(|last| zeros <= last.0) {
            continue;
        }
        let point = (zeros, f64::max(error, 0.0));
        while let [.., a, b] = hull[..]
            && slope(a, b) >= slope(b, point)
        {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layer_that_minds_least_gives_most() {
        let cheap = vec![(50, 0.01), (80, 0.05), (99, 0.9)];
        let dear = vec![(5, 0.1), (8, 0.4), (9, 0.8)];
        let given = |zeros| allocate(&[cheap.clone(), dear.clone()], zeros);
        assert_eq!(given(48), [48, 0]);
        assert_eq!(given(85), [80, 5]);
        assert_eq!(given(108), [99, 9]);
        assert_eq!(given(500), [99, 9]);
    }

    #[test]
    fn a_dent_is_no_bargain() {
        let points = hull(&[(8, 0.5), (20, 0.2), (30, 0.9)]);
        assert_eq!(points[points.len() - 2..], [(20, 0.2), (30, 0.9)]);
        assert!(points.iter().all(|p| p.0 != 8) && points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
    }
}
