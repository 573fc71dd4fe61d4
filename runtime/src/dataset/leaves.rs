//! Made-up pictures: dead leaves, which have the edges, the even areas and the mixture of scales of natural pictures (Lee,
//! Mumford, Huang 2001). Networks learn nearly as much from such pictures as from real ones (Baradad et al. 2021), and what
//! their layers see of them is far nearer to what they see of real ones than what they see of noise.

use rand::{Rng, rngs::StdRng};
use std::f64::consts::TAU;

/// Leaves of a picture, besides the large ones that lie below all others.
const LEAVES: usize = 400;
const LARGE: usize = 8;
/// The least and the greatest radius, as shares of the longer side.
const RADII: [f64; 2] = [0.01, 0.4];
/// The least radius in pixels.
const PIXELS: f64 = 1.5;
/// How far the colours of a leaf are from its grey; how far its brightness changes from one end to the other; how strong its
/// texture is at most.
const COLOUR: f64 = 0.25;
const SHADE: f64 = 0.3;
const TEXTURE: f64 = 0.1;
/// By how much pictures differ in contrast and in brightness.
const EXPOSURE: f64 = 0.3;

/// Sides from which on an input with one or three channels is taken for a picture.
const SIDE: usize = 16;

/// Channels, height and width of an input of these sizes, if it is a picture, channels first.
pub(super) fn is_picture(sizes: &[Option<usize>]) -> Option<[usize; 3]> {
    match *sizes {
        [_, Some(c @ (1 | 3)), Some(h), Some(w)] if h.min(w) >= SIDE => Some([c, h, w]),
        _ => None,
    }
}

/// What a leaf looks like.
#[derive(Clone, Copy)]
enum Form {
    Ellipse,
    Rectangle,
    Diamond,
}

/// A picture whose pixels have a mean of about 0 and a variance of about 1.
pub(super) fn picture(rng: &mut StdRng, [channels, height, width]: [usize; 3]) -> Vec<f64> {
    let mut pixels = vec![0.0; channels * height * width];
    let side = height.max(width) as f64;
    let [least, most] = [(RADII[0] * side).max(PIXELS), RADII[1] * side];
    let mut normal = Normal::default();
    for i in 0..LARGE + LEAVES {
        let radius = match i < LARGE {
            true => least + most * (1.0 - i as f64 / (LARGE - 1) as f64),
            // The same share of the picture is covered by leaves of every scale: their density falls with the third power.
            false => {
                let share: f64 = rng.random();
                ((1.0 - share) / least.powi(2) + share / most.powi(2)).sqrt().recip()
            }
        };
        let grey: f64 = rng.random();
        let colour: Vec<f64> = (0..channels).map(|_| (grey + COLOUR * normal.next(rng)).clamp(0.0, 1.0)).collect();
        let centre = [rng.random::<f64>() * height as f64, rng.random::<f64>() * width as f64];
        let form = [Form::Ellipse, Form::Rectangle, Form::Diamond][rng.random_range(0..3)];
        let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
        let flat = 0.3 + 0.7 * rng.random::<f64>();
        let shade = [SHADE * normal.next(rng), SHADE * normal.next(rng)];
        let texture = TEXTURE * rng.random::<f64>();
        let range = |centre: f64, end: usize| {
            let end = end as f64;
            (centre - radius).clamp(0.0, end) as usize..(centre + radius + 1.0).clamp(0.0, end) as usize
        };
        for y in range(centre[0], height) {
            for x in range(centre[1], width) {
                let (dy, dx) = (y as f64 - centre[0], x as f64 - centre[1]);
                let (u, v) = ((dy * cos + dx * sin) / radius, (dx * cos - dy * sin) / radius);
                let inside = match form {
                    Form::Ellipse => u * u + (v / flat).powi(2) <= 1.0,
                    Form::Rectangle => u.abs() <= 0.7 && v.abs() <= 0.7 * flat,
                    Form::Diamond => u.abs() + v.abs() / flat <= 1.0,
                };
                if inside {
                    let light = (1.0 + u * shade[0] + v * shade[1]) * (1.0 + texture * normal.next(rng));
                    for (c, colour) in colour.iter().enumerate() {
                        pixels[(c * height + y) * width + x] = colour * light;
                    }
                }
            }
        }
    }
    let n = pixels.len() as f64;
    let mean = pixels.iter().sum::<f64>() / n;
    let deviation = (pixels.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt().max(1e-6);
    let (contrast, brightness) = ((EXPOSURE * normal.next(rng)).exp(), EXPOSURE * normal.next(rng));
    pixels.iter_mut().for_each(|v| *v = (*v - mean) / deviation * contrast + brightness);
    pixels
}

/// Standard normal numbers, which Box and Muller's way makes two at a time.
#[derive(Default)]
pub(super) struct Normal(Option<f64>);

impl Normal {
    pub(super) fn next(&mut self, rng: &mut StdRng) -> f64 {
        if let Some(kept) = self.0.take() {
            return kept;
        }
        // Turned around, because zero has no logarithm.
        let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
        let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
        self.0 = Some(radius * sin);
        radius * cos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn pictures_have_even_areas_and_edges() {
        let made = picture(&mut StdRng::seed_from_u64(1), [3, 64, 96]);
        assert_eq!(made.len(), 3 * 64 * 96);
        let mean = made.iter().sum::<f64>() / made.len() as f64;
        let deviation = (made.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / made.len() as f64).sqrt();
        assert!(mean.abs() < 1.5 && (0.3..3.0).contains(&deviation), "{mean} {deviation}");
        // Neighbours are alike, as those of noise are not, but for edges.
        let steps: Vec<f64> = made.windows(2).map(|w| (w[1] - w[0]).abs() / deviation).collect();
        let share = |test: &dyn Fn(f64) -> bool| steps.iter().filter(|s| test(**s)).count() as f64 / steps.len() as f64;
        assert!(share(&|s| s < 0.2) > 0.5 && share(&|s| s > 0.5) > 0.02);
        assert_eq!(made, picture(&mut StdRng::seed_from_u64(1), [3, 64, 96]));
        assert_ne!(made, picture(&mut StdRng::seed_from_u64(2), [3, 64, 96]));
    }

    #[test]
    fn small_and_other_inputs_are_no_pictures() {
        assert_eq!(is_picture(&[None, Some(3), Some(32), Some(16)]), Some([3, 32, 16]));
        for sizes in [&[None, Some(3), Some(8), Some(99)][..], &[None, Some(64), Some(32), Some(32)], &[None, Some(3)]]
        {
            assert_eq!(is_picture(sizes), None);
        }
    }
}
