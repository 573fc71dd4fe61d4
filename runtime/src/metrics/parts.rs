//! Values of two kinds in one tensor: a detector may have places in pixels and scores below 1 side by side, and the noise of
//! the ones would hide that of the others.

use super::noise::{Sqnr, masked_below};

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

/// Values at each index from which its size is known: one of a few may be near 0 by chance.
const LEAST: usize = 32;

/// The largest value of the smaller kind is at least this part of the larger kind's: a score is beside places in pixels. Classes
/// that never appear, and channels that are always off, are below.
const ALIVE: f32 = 1e-4;

impl Parts {
    /// The axis, how many of its indices are of the smaller kind, and how many there are, if there are two kinds.
    pub fn smaller(&self) -> Option<(usize, usize, usize)> {
        (self.size > 1).then(|| (self.axis, self.large.iter().filter(|large| !**large).count(), self.size))
    }

    /// Adds elements before and after, of samples of such a shape, to the kinds that they are of: the smaller, the larger.
    pub fn add(&self, [small, large]: &mut [Sqnr; 2], shape: &[usize], before: &[f32], after: &[f32]) {
        if self.size == 1 {
            return large.add(before, after);
        }
        let (behind, masked) = (behind(shape, self.axis), masked_below(before));
        for (i, (a, b)) in before.chunks(behind).zip(after.chunks(behind)).enumerate() {
            let kind = if self.large[i % self.size] { &mut *large } else { &mut *small };
            kind.add_above(masked, a, b);
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
    each: Vec<Index>,
}

/// Sums for an index.
#[derive(Debug, Clone, Default, PartialEq)]
struct Index {
    values: usize,
    /// Of the roots, which few values don't rule: a place in a picture that showed something once is of no kind of its own.
    roots: f64,
    largest: f32,
    noise: Sqnr,
}

impl Mixture {
    /// Adds the elements of a batch before and after.
    pub fn add(&mut self, shape: &[usize], before: &[f32], after: &[f32]) {
        let axes = self.axes.get_or_insert_with(|| {
            let may = shape.iter().enumerate().skip(1).filter(|(_, size)| (2..=MOST).contains(*size));
            may.map(|(axis, &size)| Axis { axis, each: vec![Index::default(); size] }).collect()
        });
        // Other axes may have other sizes in other samples.
        axes.retain(|a| shape.get(a.axis) == Some(&a.each.len()));
        let masked = masked_below(before);
        for a in axes {
            let (behind, size) = (behind(shape, a.axis), a.each.len());
            for (i, (before, after)) in before.chunks(behind).zip(after.chunks(behind)).enumerate() {
                let index = &mut a.each[i % size];
                for v in before.iter().filter(|v| v.is_finite() && f64::from(**v) > masked) {
                    index.values += 1;
                    index.roots += f64::from(v.abs()).sqrt();
                    index.largest = index.largest.max(v.abs());
                }
                index.noise.add_above(masked, before, after);
            }
        }
    }

    /// The kinds that were found.
    pub fn parts(&self) -> Parts {
        self.found().map_or(Parts { axis: 0, size: 1, large: vec![true] }, |(parts, _)| parts)
    }

    /// The noise of the smaller kind and of the larger, if there are two.
    pub fn noise(&self) -> Option<[Sqnr; 2]> {
        let (parts, axis) = self.found()?;
        let mut kinds = [Sqnr::default(); 2];
        for (index, large) in axis.each.iter().zip(&parts.large) {
            kinds[usize::from(*large)] += index.noise;
        }
        Some(kinds)
    }

    /// The kinds, and the axis that tells them apart: of several axes that on which they are farthest apart.
    fn found(&self) -> Option<(Parts, &Axis)> {
        let all = self.axes.iter().flatten().filter_map(|axis| {
            let (apart, large) = axis.kinds()?;
            Some((apart, Parts { axis: axis.axis, size: axis.each.len(), large }, axis))
        });
        all.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, parts, axis)| (parts, axis))
    }
}

impl Axis {
    /// Which indices are of the larger kind, and how many times larger: above the first gap from the largest down.
    fn kinds(&self) -> Option<(f64, Vec<bool>)> {
        if self.each.iter().any(|index| index.values < LEAST) {
            return None;
        }
        let size = |index: &Index| (index.roots / index.values as f64).powi(2);
        let mut sorted: Vec<f64> = self.each.iter().map(size).collect();
        sorted.sort_by(f64::total_cmp);
        let gap = sorted.windows(2).rev().find(|pair| pair[1] > APART * pair[0])?;
        let large: Vec<bool> = self.each.iter().map(|index| size(index) >= gap[1]).collect();
        let largest = |of: bool| {
            let each = self.each.iter().zip(&large).filter(|(_, large)| **large == of);
            each.fold(0f32, |most, (index, _)| most.max(index.largest))
        };
        (largest(false) >= ALIVE * largest(true)).then_some((gap[1] / gap[0], large))
    }
}

/// Elements behind each index of an axis.
fn behind(shape: &[usize], axis: usize) -> usize {
    shape[axis + 1..].iter().product::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which indices of an axis are of the larger kind, where each has so many times these values.
    fn large(times: usize, values: &[&[f32]]) -> Vec<bool> {
        let mut mixture = Mixture::default();
        let all: Vec<f32> = values.iter().flat_map(|of_index| of_index.repeat(times)).collect();
        mixture.add(&[1, values.len(), times * values[0].len()], &all, &all);
        mixture.parts().large
    }

    #[test]
    fn places_and_scores_are_of_two_kinds() {
        assert_eq!(large(64, &[&[90.0, 30.0], &[50.0, 70.0], &[0.1, 0.4]]), [true, true, false]);
    }

    #[test]
    fn few_values_tell_nothing() {
        assert_eq!(large(10, &[&[90.0, 30.0], &[50.0, 70.0], &[0.1, 0.4]]), [true]);
    }

    #[test]
    fn classes_that_never_appear_are_of_no_kind_of_their_own() {
        let with_places: [&[f32]; 5] = [&[90.0], &[70.0], &[0.5], &[0.4], &[1e-6]];
        assert_eq!(large(64, &with_places), [true, true, false, false, false]);
        assert_eq!(large(64, &with_places[2..]), [true]);
        assert_eq!(large(64, &[&[0.5], &[0.4], &[0.0]]), [true]);
    }

    #[test]
    fn a_value_that_is_small_or_infinite_once_is_of_no_kind_of_its_own() {
        assert_eq!(large(64, &[&[1e-6, 0.5], &[0.4, 0.1], &[f32::INFINITY, 0.3]]), [true]);
    }

    #[test]
    fn what_is_masked_is_of_no_kind() {
        assert_eq!(large(64, &[&[-1e9, 0.5], &[-1e9, 0.1], &[0.2, 0.3]]), [true]);
    }

    #[test]
    fn a_place_that_shows_something_once_is_of_no_kind_of_its_own() {
        let (empty, shown) = ([1e-3; 100], {
            let mut once = [1e-3; 100];
            once[7] = 1.0;
            once
        });
        assert_eq!(large(1, &[&empty, &shown, &empty]), [true]);
    }

    #[test]
    fn each_kind_has_its_own_noise() {
        let mut mixture = Mixture::default();
        for n in [64, 32] {
            let before = [vec![80.0; n], vec![0.1; n]].concat();
            let after = [vec![81.0; n], vec![0.15; n]].concat();
            mixture.add(&[1, 2, n], &before, &after);
        }
        let [small, large] = mixture.noise().unwrap().map(|noise| noise.db().unwrap().round());
        assert_eq!((small, large, mixture.parts().smaller()), (6.0, 38.0, Some((1, 1, 2))));
    }
}
