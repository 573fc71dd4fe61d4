//! Values of two kinds in one tensor: a detector may have places in pixels and scores below 1 side by side, and the noise of
//! the ones would hide that of the others.

use super::noise::Sqnr;

/// Which elements of a tensor are of which kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The axis that tells them apart, and its size: 1 where nothing does.
    axis: usize,
    size: usize,
    /// For each index, whether it is of the larger kind.
    large: Vec<bool>,
}

/// An axis of more is of places or of classes, not of what is told of each.
const MOST: usize = 128;

/// Kinds are so many times apart.
pub const APART: f64 = 20.0;

impl Parts {
    /// The axis and how many of its indices are of the smaller kind, if there are two.
    pub fn smaller(&self) -> Option<(usize, usize)> {
        (self.size > 1).then(|| (self.axis, self.large.iter().filter(|large| !**large).count()))
    }

    /// Adds elements before and after, of samples of such a shape, to the kinds that they are of: the smaller, the larger.
    pub fn add(&self, [small, large]: &mut [Sqnr; 2], shape: &[usize], before: &[f32], after: &[f32]) {
        if self.size == 1 {
            return large.add(before, after);
        }
        let behind = behind(shape, self.axis);
        for (i, (a, b)) in before.chunks(behind).zip(after.chunks(behind)).enumerate() {
            if self.large[i % self.size] { large.add(a, b) } else { small.add(a, b) }
        }
    }
}

/// Sums from which follows of which kinds the values of a tensor are, and their noise. The samples of a batch are its first
/// axis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mixture {
    /// Of each axis that may tell kinds apart.
    axes: Option<Vec<Axis>>,
}

/// Sums for each index of an axis.
#[derive(Debug, Clone, PartialEq)]
struct Axis {
    axis: usize,
    /// Of the roots, which few values don't rule: a place in a picture that showed something once is of no kind of its own.
    roots: Vec<f64>,
    noise: Vec<Sqnr>,
}

impl Mixture {
    /// Adds the elements of a batch before and after.
    pub fn add(&mut self, shape: &[usize], before: &[f32], after: &[f32]) {
        let axes = self.axes.get_or_insert_with(|| {
            let may = shape.iter().enumerate().skip(1).filter(|(_, size)| (2..=MOST).contains(*size));
            may.map(|(axis, &size)| Axis { axis, roots: vec![0.0; size], noise: vec![Sqnr::default(); size] }).collect()
        });
        // Other axes may have other sizes in other samples.
        axes.retain(|a| shape.get(a.axis) == Some(&a.roots.len()));
        for a in axes {
            let behind = behind(shape, a.axis);
            for (i, (before, after)) in before.chunks(behind).zip(after.chunks(behind)).enumerate() {
                let index = i % a.roots.len();
                a.roots[index] += before.iter().map(|v| f64::from(v.abs()).sqrt()).sum::<f64>();
                a.noise[index].add(before, after);
            }
        }
    }

    /// The kinds that were found: where the sizes of an axis are farthest apart, the largest from the next.
    pub fn parts(&self) -> Parts {
        self.found().map_or(Parts { axis: 0, size: 1, large: vec![true] }, |(parts, _)| parts)
    }

    /// The noise of the smaller kind and of the larger, if there are two.
    pub fn noise(&self) -> Option<[Sqnr; 2]> {
        let (parts, axis) = self.found()?;
        let mut kinds = [Sqnr::default(); 2];
        for (noise, large) in axis.noise.iter().zip(&parts.large) {
            kinds[usize::from(*large)] += *noise;
        }
        Some(kinds)
    }

    fn found(&self) -> Option<(Parts, &Axis)> {
        let gaps = self.axes.iter().flatten().filter_map(|axis| {
            let sizes: Vec<f64> = axis.roots.iter().map(|s| s.powi(2)).collect();
            let mut sorted = sizes.clone();
            sorted.sort_by(f64::total_cmp);
            // From the largest down: classes that never appear are the least.
            let pair = sorted.windows(2).rev().find(|pair| pair[0] > 0.0 && pair[1] / pair[0] > APART)?;
            let large = sizes.iter().map(|r| *r >= pair[1]).collect();
            Some((pair[1] / pair[0], Parts { axis: axis.axis, size: sizes.len(), large }, axis))
        });
        gaps.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, parts, axis)| (parts, axis))
    }
}

/// Elements behind each index of an axis.
fn behind(shape: &[usize], axis: usize) -> usize {
    shape[axis + 1..].iter().product::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which indices are of the larger kind, of samples with these values.
    fn large(shape: &[usize], samples: &[&[f32]]) -> Vec<bool> {
        let mut mixture = Mixture::default();
        samples.iter().for_each(|values| mixture.add(shape, values, values));
        mixture.parts().large
    }

    #[test]
    fn places_and_scores_are_of_two_kinds() {
        assert_eq!(large(&[1, 3, 2], &[&[90.0, 30.0, 50.0, 70.0, 0.1, 0.4]]), [true, true, false]);
    }

    #[test]
    fn classes_that_never_appear_are_not_apart_from_others() {
        let values = [90.0, 70.0, 0.5, 0.4, 1e-6, 1e-6];
        assert_eq!(large(&[1, 6], &[&values]), [true, true, false, false, false, false]);
    }

    #[test]
    fn a_value_that_is_small_once_is_of_no_kind_of_its_own() {
        assert_eq!(large(&[1, 3], &[&[1e-6, 0.4, 0.2], &[0.5, 0.1, 0.3]]), [true]);
    }

    #[test]
    fn a_place_that_shows_something_once_is_of_no_kind_of_its_own() {
        let empty: &[f32] = &[1e-3, 1e-3, 1e-3];
        let mut samples = vec![empty; 47];
        samples.push(&[1e-3, 1.0, 1e-3]);
        assert_eq!(large(&[1, 3], &samples), [true]);
    }

    #[test]
    fn each_kind_has_its_own_noise() {
        let mut mixture = Mixture::default();
        mixture.add(&[1, 2, 2], &[90.0, 70.0, 0.1, 0.1], &[90.0, 70.0, 0.1, 0.2]);
        mixture.add(&[1, 2, 3], &[80.0, 70.0, 90.0, 0.1, 0.1, 0.0], &[80.0, 71.0, 90.0, 0.1, 0.1, 0.0]);
        let [small, large] = mixture.noise().unwrap().map(|noise| noise.db().unwrap().round());
        assert_eq!((small, large, mixture.parts().smaller()), (6.0, 45.0, Some((1, 1))));
    }
}
