//! Points that no other is better than, and how much of what could be reached they reach.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a way to compress costs and gains, beside the original. Less is better throughout.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Objectives {
    /// The points of a share that are lost (0.01 is a point), or the error of the outputs in parts of them where no share is measured.
    pub lost: f64,
    /// The time of a run, in parts of the original's.
    pub time: f64,
    /// The size, in parts of the original's.
    pub size: f64,
}

/// Times that are nearer to each other than this are taken for the same: timing tells no more.
const SAME_TIME: f64 = 0.02;

impl Objectives {
    /// The step of a scale of times that are told apart.
    fn pace(&self) -> i64 {
        (self.time.max(1e-6).ln() / SAME_TIME).round() as i64
    }

    /// Whether nothing of `other` is better, and something is worse. Of two that lose as much, the one with less `noise` loses less.
    pub fn beats(&self, noise: f64, other: &Self, other_noise: f64) -> bool {
        let (a, b) = ((self.lost, noise), (other.lost, other_noise));
        let no_worse = a <= b && self.pace() <= other.pace() && self.size <= other.size;
        no_worse && (a < b || self.pace() < other.pace() || self.size < other.size)
    }
}

/// The places of those points that no other beats; a point is its objectives and the noise of its answers.
pub fn front(points: &[(Objectives, f64)]) -> Vec<usize> {
    let beaten = |i: usize| {
        let (own, noise) = points[i];
        // Of two that are equal the first counts.
        let equal = |j: usize| j < i && points[j] == points[i];
        (0..points.len()).any(|j| j != i && (points[j].0.beats(points[j].1, &own, noise) || equal(j)))
    };
    (0..points.len()).filter(|i| !beaten(*i)).collect()
}

/// The worst that counts: no faster than the original, no smaller, and so much lost.
#[derive(Debug, Clone, Copy)]
pub struct Worst(pub f64);

/// Ten points of a share; an error of three tenths (10 dB).
pub const MOST_LOST: f64 = 0.1;
/// See [`MOST_LOST`].
pub const MOST_ERROR: f64 = 0.3;

impl Worst {
    /// The part of what lies between the worst and nothing lost in no time and no bytes that some points dominate
    /// (the hypervolume; Zitzler and Thiele 1998).
    pub fn hypervolume(&self, points: &[Objectives]) -> f64 {
        let inside = |p: &Objectives| [p.lost.max(0.0) / self.0, p.time.max(0.0), p.size.max(0.0)];
        let mut boxes: Vec<[f64; 3]> = points.iter().map(inside).filter(|p| p.iter().all(|v| *v < 1.0)).collect();
        boxes.sort_by(|a, b| a[2].total_cmp(&b[2]));
        let mut volume = 0.0;
        // Slices by size: what the points up to it dominate of the other two.
        for i in 0..boxes.len() {
            let deep = boxes.get(i + 1).map_or(1.0, |next| next[2]) - boxes[i][2];
            if deep > 0.0 {
                volume += deep * area(&boxes[..=i]);
            }
        }
        volume
    }
}

/// The part of the unit square that lies beyond some points.
fn area(points: &[[f64; 3]]) -> f64 {
    let mut flat: Vec<(f64, f64)> = points.iter().map(|p| (p[0], p[1])).collect();
    flat.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let (mut sum, mut lowest) = (0.0, 1.0);
    for (x, y) in flat {
        if y < lowest {
            sum += (1.0 - x) * (lowest - y);
            lowest = y;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(lost: f64, time: f64, size: f64) -> Objectives {
        Objectives { lost, time, size }
    }

    #[test]
    fn a_front_has_what_no_other_beats() {
        let points = [
            (point(0.0, 1.0, 1.0), 0.0),
            (point(0.01, 0.5, 0.5), 0.1),
            (point(0.02, 0.505, 0.5), 0.1),
            (point(0.01, 0.5, 0.5), 0.2),
            (point(0.03, 0.5, 0.25), 0.3),
            (point(0.03, 0.5, 0.25), 0.3),
        ];
        assert_eq!(
            front(&points),
            [0, 1, 4],
            "more noise loses more, equal times are the same, and so are equal points"
        );
        assert!(front(&[]).is_empty());
    }

    #[test]
    fn a_hypervolume_is_that_of_all_boxes_together() {
        let worst = Worst(0.1);
        assert_eq!(worst.hypervolume(&[]), 0.0);
        assert!((worst.hypervolume(&[point(0.05, 0.5, 0.5)]) - 0.125).abs() < 1e-12);
        // Two boxes of 0.75 * 0.5 * 0.5 and 0.5 * 0.5 * 0.75 share 0.5 * 0.5 * 0.5.
        let two = [point(0.025, 0.5, 0.5), point(0.05, 0.5, 0.25)];
        assert!((worst.hypervolume(&two) - (0.1875 + 0.1875 - 0.125)).abs() < 1e-12);
        assert_eq!(worst.hypervolume(&[point(0.2, 0.1, 0.1), point(0.0, 1.0, 0.5)]), 0.0, "outside");
        assert!(
            (worst.hypervolume(&[point(-0.05, 0.0, 0.0)]) - 1.0).abs() < 1e-12,
            "what is gained counts as nothing lost"
        );
    }

    #[test]
    fn a_hypervolume_counts_as_a_grid_does() {
        let points: Vec<Objectives> = (0..12)
            .map(|i| {
                let at = |k: usize| ((i * k + 3) % 11) as f64 / 11.0;
                point(at(7) * 0.1, at(5), at(3))
            })
            .collect();
        let cells = 44;
        let mid = |i: usize| (i as f64 + 0.5) / cells as f64;
        let mut inside = 0;
        for (x, y, z) in (0..cells).flat_map(|x| (0..cells).flat_map(move |y| (0..cells).map(move |z| (x, y, z)))) {
            let covers = |p: &Objectives| p.lost / 0.1 <= mid(x) && p.time <= mid(y) && p.size <= mid(z);
            inside += usize::from(points.iter().any(covers));
        }
        let counted = inside as f64 / (cells * cells * cells) as f64;
        assert!((Worst(0.1).hypervolume(&points) - counted).abs() < 1e-9);
    }
}
