//! Random numbers that depend on what they are for, and stay the same from version to version.
//!
//! The generator is ChaCha8, which is specified, and what is drawn from it is computed here: a
//! job that resumes after an upgrade goes on with the numbers that it would have drawn.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use std::f64::consts::TAU;

/// What numbers are drawn for. Each purpose has numbers of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// The order of the samples in an epoch.
    Order,
    /// How a sample is cut, mirrored and lit.
    Picture,
    /// Which samples of a batch are mixed, and how.
    Mix,
    /// The noise on this input of a sample.
    Noise(usize),
    /// Weights to begin with.
    Weights,
}

/// A sequence of random numbers.
pub(super) struct Random(ChaCha8Rng);

impl Random {
    /// The numbers that job `seed` draws for `purpose` at this place of this epoch.
    pub(super) fn new(seed: u64, purpose: Purpose, epoch: u64, place: usize) -> Self {
        let purpose = match purpose {
            Purpose::Order => 0,
            Purpose::Picture => 1,
            Purpose::Mix => 2,
            Purpose::Noise(input) => 3 + input as u64,
            Purpose::Weights => u64::MAX,
        };
        let mut key = [0; 32];
        for (part, value) in key.chunks_exact_mut(8).zip([seed, purpose, epoch, place as u64]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// One of `0..n`, each as likely; `n` is not zero.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }

    /// Between zero and one, and neither.
    pub(super) fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Two standard normal numbers, by Box and Muller's way.
    pub(super) fn normals(&mut self) -> [f64; 2] {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        let (sin, cos) = (TAU * self.unit()).sin_cos();
        [radius * cos, radius * sin]
    }

    /// A number from the beta distribution with both parameters `alpha`, which is above zero.
    pub(super) fn beta(&mut self, alpha: f64) -> f64 {
        // The share of one of two gamma variates. Small parameters make those too small for a
        // float, their logarithms never.
        let (a, b) = (self.log_gamma_variate(alpha), self.log_gamma_variate(alpha));
        1.0 / (1.0 + (b - a).exp())
    }

    /// The logarithm of a number from the gamma distribution, by Marsaglia and Tsang's way.
    fn log_gamma_variate(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.log_gamma_variate(shape + 1.0) + self.unit().ln() / shape;
        }
        let d = shape - 1.0 / 3.0;
        loop {
            let [x, _] = self.normals();
            let v = (1.0 + x / (9.0 * d).sqrt()).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d.ln() + v.ln();
            }
        }
    }

    /// Puts `items` in a random order, each order as likely.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_key_counts_and_nothing_else() {
        let first = |seed, purpose, epoch, place| Random::new(seed, purpose, epoch, place).unit();
        let base = first(1, Purpose::Order, 2, 3);
        assert_eq!(base, first(1, Purpose::Order, 2, 3));
        for other in [
            first(2, Purpose::Order, 2, 3),
            first(1, Purpose::Mix, 2, 3),
            first(1, Purpose::Order, 3, 3),
            first(1, Purpose::Order, 2, 4),
        ] {
            assert_ne!(base, other);
        }
        assert_ne!(first(1, Purpose::Noise(0), 2, 3), first(1, Purpose::Noise(1), 2, 3));
        let (mut order, mut rng) = ([0, 1, 2, 3, 4, 5, 6, 7], Random::new(1, Purpose::Order, 0, 0));
        rng.shuffle(&mut order);
        // Fixed for good, since jobs resume by it; another ChaCha8 gives the same.
        assert_eq!(order, [6, 1, 0, 7, 5, 4, 2, 3]);
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut rng = Random::new(5, Purpose::Mix, 0, 0);
        let moments = |mut draw: Box<dyn FnMut() -> f64 + '_>| {
            let drawn: Vec<f64> = (0..40_000).map(|_| draw()).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            (mean, drawn.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / drawn.len() as f64)
        };
        let close = |(mean, variance): (f64, f64), m: f64, v: f64| {
            assert!((mean - m).abs() < 0.02 && (variance / v - 1.0).abs() < 0.05, "{mean} {variance}, not {m} {v}");
        };
        close(moments(Box::new(|| rng.unit())), 0.5, 1.0 / 12.0);
        close(moments(Box::new(|| rng.normals()[1])), 0.0, 1.0);
        close(moments(Box::new(|| rng.below(5) as f64)), 2.0, 2.0);
        for alpha in [1e-3, 0.2, 1.0, 8.0] {
            // The variance of a beta distribution.
            close(moments(Box::new(|| rng.beta(alpha))), 0.5, 0.25 / (2.0 * alpha + 1.0));
        }
        close(moments(Box::new(|| f64::from(u8::from(rng.beta(1e-9).is_finite())) + rng.unit())), 1.5, 1.0 / 12.0);
    }
}
