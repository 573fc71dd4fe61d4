//! Random changes to samples, of which a model sees more variety than a set has.

use super::random::{Purpose, Random};
use crate::{dataset::InputSpec, memory, settings::Settings};
use compress_compiler::{
    error::{Error, Result},
    serde_as_text,
    tensor::{DType, Tensor},
};
use rayon::prelude::*;
use std::{fmt, str::FromStr};

const SETTINGS: Settings = Settings {
    of: "augmentation",
    known: "`none`, or a list such as flip,crop=4,brightness=0.2,noise=0.05,mixup=0.2 \
        (every part may be left out: mirroring every other picture; shifting by up to so many pixels; \
        adding one number of at most that size to a picture; adding noise of that standard deviation; \
        mixing samples by shares from Beta(a, a))",
};

/// The bytes of a value: only `f32` is changed.
const WIDTH: usize = 4;

/// What to change at random, after preprocessing.
///
/// It is read from text with [`FromStr`] and written back with [`Display`](fmt::Display).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Augment {
    /// Mirrors every other picture, left to right.
    pub flip: bool,
    /// Pads each side by so many zeros and cuts the original size out anywhere.
    pub crop: Option<usize>,
    /// Adds to all values of a picture one number, evenly drawn up to this size.
    pub brightness: Option<f32>,
    /// Adds to every value normal noise of this standard deviation.
    pub noise: Option<f32>,
    /// Mixes each sample with another of its batch, by a share from Beta(a, a) drawn for the batch.
    pub mixup: Option<f32>,
}

/// How the samples of a batch were mixed; their labels are to be mixed alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// For each sample, the place in the batch of that mixed into it.
    pub partner: Vec<usize>,
    /// What is left of the sample itself, from 0 to 1.
    pub share: f32,
}

/// Where a batch stands in a job, from which its random numbers follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub seed: u64,
    pub epoch: u64,
    /// The place in the epoch of the batch's first sample.
    pub first: usize,
}

impl Augment {
    /// Checks that these inputs can be changed like this.
    ///
    /// # Errors
    /// Usage, with the reason, when they can't.
    pub fn check(&self, inputs: &[InputSpec]) -> Result<()> {
        let of_pictures = self.flip || self.crop.is_some() || self.brightness.is_some();
        if !of_pictures && self.noise.is_none() && self.mixup.is_none() {
            return Ok(());
        }
        for spec in inputs {
            let InputSpec { name, dtype, shape, .. } = spec;
            if *dtype != DType::F32 {
                return Err(Error::usage(format!(
                    "augmentation: `{self}` changes {}, but `{name}` is {dtype}",
                    DType::F32
                ))
                .help("leave the augmentation out"));
            }
            if !of_pictures {
                continue;
            }
            if shape.len() != 4 {
                return Err(Error::usage(format!(
                    "augmentation: flip, crop and brightness change pictures, [N, C, H, W], but `{name}` has {} axes",
                    shape.len()
                ))
                .help("only noise and mixup change other data"));
            }
            let smallest = shape[2..].iter().filter_map(|axis| axis.known()).min();
            if let (Some(pad), Some(side)) = (self.crop, smallest)
                && pad as i64 >= side
            {
                return Err(SETTINGS
                    .bad(format!("crop={pad} could shift the pictures of `{name}` out of sight: a side has {side}")));
            }
        }
        Ok(())
    }

    /// Changes each sample by itself. The inputs passed [`check`](Self::check).
    pub(super) fn each(&self, inputs: Vec<Tensor>, at: Position) -> Result<Vec<Tensor>> {
        if (Self { mixup: None, ..*self }) == Self::default() {
            return Ok(inputs);
        }
        let one = |(input, x): (usize, Tensor)| {
            rewritten(&x, |out, sample| {
                let samples = out.par_chunks_exact_mut(sample).zip(x.bytes().par_chunks_exact(sample));
                samples.enumerate().for_each(|(i, (out, from))| {
                    let random = |purpose| Random::new(at.seed, purpose, at.epoch, at.first + i);
                    let mut picture = random(Purpose::Picture);
                    match *x.shape() {
                        [_, _, height, width] => self.cut(from, out, [height, width], &mut picture),
                        _ => out.copy_from_slice(from),
                    }
                    if let Some(most) = self.brightness {
                        let more = most * (2.0 * picture.unit() - 1.0) as f32;
                        values(out).for_each(|v| set(v, get(v) + more));
                    }
                    if let Some(std) = self.noise {
                        add_noise(out, std.into(), random(Purpose::Noise(input)));
                    }
                });
            })
        };
        inputs.into_iter().enumerate().map(one).collect()
    }

    /// Shifts and mirrors the planes of a picture, all alike. `out` has zeros.
    fn cut(&self, from: &[u8], out: &mut [u8], [height, width]: [usize; 2], random: &mut Random) {
        let pad = self.crop.unwrap_or(0);
        let (down, right) = (random.below(2 * pad + 1), random.below(2 * pad + 1));
        let mirrored = self.flip && random.below(2) == 1;
        let (rows, columns) = (kept(height, pad, down), kept(width, pad, right));
        let row_bytes = width * WIDTH;
        let planes = out.chunks_exact_mut(height * row_bytes).zip(from.chunks_exact(height * row_bytes));
        for (out, from) in planes {
            for row in 0..rows.len {
                let to = &mut out[(rows.to + row) * row_bytes..][..row_bytes];
                let from = &from[(rows.from + row) * row_bytes..][..row_bytes];
                to[columns.to * WIDTH..][..columns.len * WIDTH]
                    .copy_from_slice(&from[columns.from * WIDTH..][..columns.len * WIDTH]);
                if mirrored {
                    to.as_chunks_mut::<WIDTH>().0.reverse();
                }
            }
        }
    }

    /// Mixes the samples of a batch of `len`, if that is asked for.
    pub(super) fn mix(&self, inputs: Vec<Tensor>, len: usize, at: Position) -> Result<(Vec<Tensor>, Option<Mix>)> {
        let Some(alpha) = self.mixup else { return Ok((inputs, None)) };
        let mut random = Random::new(at.seed, Purpose::Mix, at.epoch, at.first);
        let share = random.beta(alpha.into()) as f32;
        let mut partner: Vec<usize> = (0..len).collect();
        random.shuffle(&mut partner);
        let one = |x: &Tensor| {
            rewritten(x, |out, sample| {
                out.par_chunks_exact_mut(sample).zip(&partner).enumerate().for_each(|(i, (out, partner))| {
                    let read = |i: usize| x.bytes()[i * sample..][..sample].as_chunks::<WIDTH>().0;
                    for ((v, own), other) in values(out).zip(read(i)).zip(read(*partner)) {
                        set(v, share * get(own) + (1.0 - share) * get(other));
                    }
                });
            })
        };
        let mixed = inputs.iter().map(one).collect::<Result<_>>()?;
        Ok((mixed, Some(Mix { partner, share })))
    }
}

/// What remains of an axis that is shifted: `len` entries that move.
struct Kept {
    from: usize,
    to: usize,
    len: usize,
}

/// Of `size` entries, padded by `pad` on both sides, those within `size` from `start` on.
fn kept(size: usize, pad: usize, start: usize) -> Kept {
    let (from, to) = (start.saturating_sub(pad), pad.saturating_sub(start));
    Kept { from: from.min(size), to: to.min(size), len: size.saturating_sub(from.max(to)) }
}

/// The tensor that `fill` makes of `x`, from zeros; it is told the bytes of a sample.
fn rewritten(x: &Tensor, fill: impl FnOnce(&mut [u8], usize)) -> Result<Tensor> {
    // No samples, or samples without values.
    if x.is_empty() {
        return Ok(x.clone());
    }
    let bytes = x.bytes().len();
    memory::check(bytes, || "an augmented batch".to_owned())?;
    let mut out = vec![0; bytes];
    let samples = x.shape().first().copied().unwrap_or(1);
    fill(&mut out, bytes / samples);
    Tensor::new(x.dtype(), x.shape().to_vec(), out)
}

fn add_noise(out: &mut [u8], std: f64, mut random: Random) {
    for pair in out.as_chunks_mut::<WIDTH>().0.chunks_mut(2) {
        for (v, noise) in pair.iter_mut().zip(random.normals()) {
            set(v, get(v) + (std * noise) as f32);
        }
    }
}

fn values(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8; WIDTH]> {
    bytes.as_chunks_mut().0.iter_mut()
}

fn get(bytes: &[u8; WIDTH]) -> f32 {
    f32::from_le_bytes(*bytes)
}

fn set(bytes: &mut [u8; WIDTH], value: f32) {
    *bytes = value.to_le_bytes();
}

serde_as_text!(Augment);

impl FromStr for Augment {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut read = Self::default();
        if text.trim() == "none" {
            return Ok(read);
        }
        SETTINGS.each(text, |key, value| {
            match (key, value) {
                ("flip", None) => read.flip = true,
                ("crop", Some(v)) => read.crop = Some(SETTINGS.pixels(key, v)?),
                ("brightness", Some(v)) => read.brightness = Some(SETTINGS.positive(key, v)?),
                ("noise", Some(v)) => read.noise = Some(SETTINGS.positive(key, v)?),
                ("mixup", Some(v)) => read.mixup = Some(SETTINGS.positive(key, v)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(read)
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let number = |key: &str, value: Option<f32>| value.map(|v| format!("{key}={v}"));
        let parts = [
            self.flip.then(|| "flip".to_owned()),
            self.crop.map(|v| format!("crop={v}")),
            number("brightness", self.brightness),
            number("noise", self.noise),
            number("mixup", self.mixup),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "none".to_owned() } else { parts.join(",") }.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::{error::Kind, value::Dim};

    const AT: Position = Position { seed: 3, epoch: 1, first: 20 };

    fn spec(shape: &[i64]) -> InputSpec {
        let shape = shape.iter().map(|n| if *n < 0 { Dim::Unknown } else { Dim::Known(*n) }).collect();
        InputSpec::new("x", DType::F32, shape)
    }

    /// `samples` pictures of two planes of 3 rows and 5 columns, all values different and not zero.
    fn pictures(samples: usize) -> Tensor {
        let values: Vec<f32> = (1..=samples * 30).map(|v| v as f32).collect();
        Tensor::f32(&[samples, 2, 3, 5], &values)
    }

    fn each(text: &str, x: &Tensor, at: Position) -> Vec<f32> {
        let augment: Augment = text.parse().unwrap();
        augment.check(&[spec(&[-1, 2, 3, 5])]).unwrap();
        let out = augment.each(vec![x.clone()], at).unwrap();
        assert_eq!(out[0].shape(), x.shape());
        out[0].as_f32().unwrap().into_owned()
    }

    #[test]
    fn round_trips_through_text() {
        for text in ["none", "flip", "flip,crop=4,mixup=0.2", "crop=1,brightness=0.1,noise=1e-7"] {
            let read: Augment = text.parse().unwrap();
            assert_eq!(read, read.to_string().parse().unwrap(), "{text}");
        }
        assert_eq!(" mixup = 0.2 , flip ".parse::<Augment>().unwrap().to_string(), "flip,mixup=0.2");
    }

    #[test]
    fn what_is_not_known_or_makes_no_sense_is_refused() {
        for text in [
            "",
            ",",
            "spin",
            "flip=1",
            "flip,flip",
            "crop",
            "crop=0",
            "crop=-1",
            "crop=99999",
            "mixup",
            "mixup=0",
            "mixup=inf",
            "noise=NaN",
            "noise=",
            "none,flip",
        ] {
            let e = text.parse::<Augment>().expect_err(text);
            assert_eq!(e.kind(), Kind::Usage, "{text}");
            assert!(e.to_string().contains("crop=4"), "{e}");
        }
        let refused = |text: &str, spec: InputSpec| {
            let e = text.parse::<Augment>().unwrap().check(&[spec]).expect_err(text);
            assert_eq!(e.kind(), Kind::Usage);
            e.to_string()
        };
        assert!(refused("flip", spec(&[-1, 10])).contains("has 2 axes"));
        assert!(refused("crop=28", spec(&[-1, 1, 28, 32])).contains("a side has 28"));
        let integers = || InputSpec { dtype: DType::I64, ..spec(&[-1, 3, 8, 8]) };
        assert!(refused("mixup=1", integers()).contains("is i64"));
        "none".parse::<Augment>().unwrap().check(&[integers()]).unwrap();
        "mixup=1,noise=1".parse::<Augment>().unwrap().check(&[spec(&[-1, 10])]).unwrap();
        "crop=27".parse::<Augment>().unwrap().check(&[spec(&[-1, -1, -1, 28])]).unwrap();
    }

    #[test]
    fn flip_mirrors_half_of_the_pictures() {
        let x = pictures(400);
        let (x, out) = (x.as_f32().unwrap(), each("flip", &x, AT));
        let mut flipped = 0;
        for (x, out) in x.chunks(30).zip(out.chunks(30)) {
            let mirrored: Vec<f32> = x.chunks(5).flat_map(|row| row.iter().rev().copied()).collect();
            assert!(out == x || out == mirrored, "{out:?}");
            flipped += usize::from(out == mirrored);
        }
        assert!((160..240).contains(&flipped), "{flipped}");
    }

    #[test]
    fn crop_shifts_whole_pictures_anywhere_and_leaves_zeros() {
        let tensor = pictures(600);
        let (x, out) = (tensor.as_f32().unwrap(), each("crop=2", &tensor, AT));
        let mut seen = [[0; 5]; 5];
        for (x, out) in x.chunks(30).zip(out.chunks(30)) {
            let shifted = |down: i64, right: i64| -> Vec<f32> {
                let at = |plane: i64, y: i64, x_: i64| match (0..3).contains(&y) && (0..5).contains(&x_) {
                    true => x[(plane * 15 + y * 5 + x_) as usize],
                    false => 0.0,
                };
                let places = (0..30).map(|i| (i / 15, i % 15 / 5, i % 5));
                places.map(|(plane, y, x)| at(plane, y + down, x + right)).collect()
            };
            let shift = (0..25).find(|i| out == shifted(i / 5 - 2, i % 5 - 2)).expect("not a shift") as usize;
            seen[shift / 5][shift % 5] += 1;
        }
        assert!(seen.as_flattened().iter().all(|n| (8..48).contains(n)), "{seen:?}");
        // A pad beyond the picture's sides, as sides not known beforehand may be.
        let far: Augment = "crop=9".parse().unwrap();
        far.each(vec![tensor.clone()], AT).unwrap();
        assert_eq!(far.each(vec![Tensor::f32(&[2, 3, 0, 4], &[])], AT).unwrap()[0].len(), 0);
    }

    #[test]
    fn a_sample_is_changed_by_its_place_alone() {
        let x = pictures(4);
        for text in ["flip", "crop=2", "brightness=1", "noise=1", "flip,crop=2,brightness=1,noise=1"] {
            let all = each(text, &x, AT);
            let last = Tensor::f32(&[2, 2, 3, 5], &x.as_f32().unwrap()[60..]);
            assert_eq!(all[60..], each(text, &last, Position { first: 22, ..AT }), "{text}");
            let many = pictures(50);
            let base = each(text, &many, AT);
            for other in [Position { epoch: 2, ..AT }, Position { seed: 4, ..AT }, Position { first: 0, ..AT }] {
                assert_ne!(base, each(text, &many, other), "{text}");
            }
        }
        // Several inputs are cut alike, but each has noise of its own.
        let two = |text: &str| {
            let augment: Augment = text.parse().unwrap();
            let out = augment.each(vec![pictures(50), pictures(50)], AT).unwrap();
            out[0] == out[1]
        };
        assert!(two("flip,crop=2,brightness=1") && !two("noise=1"));
    }

    #[test]
    fn brightness_moves_a_picture_and_noise_each_value() {
        let x = Tensor::f32(&[300, 2, 3, 5], &[0.0; 9000]);
        let bright = each("brightness=0.5", &x, AT);
        assert!(bright.chunks(30).all(|sample| sample.iter().all(|v| *v == sample[0] && v.abs() <= 0.5)));
        let noise = each("noise=0.1", &x, AT);
        for (values, variance) in [(bright, 0.25 / 3.0), (noise, 0.01)] {
            let mean = values.iter().sum::<f32>() / 9000.0;
            let found = values.iter().map(|v| v * v).sum::<f32>() / 9000.0;
            assert!(mean.abs() < 0.05 && (found / variance - 1.0).abs() < 0.15, "{mean} {found}");
        }
    }

    #[test]
    fn mixup_blends_each_sample_with_one_other_of_its_batch() {
        let augment: Augment = "mixup=0.4".parse().unwrap();
        let x = Tensor::f32(&[8, 2], &(0..16).map(|v| v as f32).collect::<Vec<_>>());
        let (out, mix) = augment.mix(vec![x.clone()], 8, AT).unwrap();
        let Mix { partner, share } = mix.unwrap();
        let mut sorted = partner.clone();
        sorted.sort_unstable();
        assert!(sorted == (0..8).collect::<Vec<_>>() && (0.0..=1.0).contains(&share));
        let out = out[0].as_f32().unwrap();
        for (i, v) in out.iter().enumerate() {
            let other = (partner[i / 2] * 2 + i % 2) as f32;
            assert!((v - (share * i as f32 + (1.0 - share) * other)).abs() < 1e-5);
        }
        let (_, other) = augment.mix(vec![x.clone()], 8, Position { first: 28, ..AT }).unwrap();
        assert_ne!(other.unwrap().share, share);
        let (same, none) = Augment::default().mix(vec![x.clone()], 8, AT).unwrap();
        assert!(same[0] == x && none.is_none());
    }
}
