//! Resize, and Upsample, its name of old.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    tensor::Tensor,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum $name { $($variant),* }

        impl $name {
            fn read(r: &mut Reader, attr: &str, default: Self) -> Result<Self> {
                match r.string(attr, default.text())?.as_str() {
                    $($text => Ok(Self::$variant),)*
                    other => Err(Error::malformed(format!("{attr} {other}"))),
                }
            }

            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

names! {
    /// How values between pixels are found.
    Interpolation { Nearest = "nearest", Linear = "linear", Cubic = "cubic" }
}

names! {
    /// ONNX's `coordinate_transformation_mode`: where in the input an output pixel lies.
    Coordinates {
        HalfPixel = "half_pixel",
        HalfPixelSymmetric = "half_pixel_symmetric",
        PytorchHalfPixel = "pytorch_half_pixel",
        AlignCorners = "align_corners",
        Asymmetric = "asymmetric",
        CropAndResize = "tf_crop_and_resize",
    }
}

names! {
    /// ONNX's `nearest_mode`.
    Nearest {
        RoundPreferFloor = "round_prefer_floor",
        RoundPreferCeil = "round_prefer_ceil",
        Floor = "floor",
        Ceil = "ceil",
    }
}

names! {
    /// ONNX's `keep_aspect_ratio_policy`: what becomes of sizes in another ratio.
    Aspect { Stretch = "stretch", NotLarger = "not_larger", NotSmaller = "not_smaller" }
}

/// Resizes input 0. Inputs: x, roi (of [`Coordinates::CropAndResize`]), scales, sizes; one of the
/// last two is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    /// How values between pixels are found.
    pub mode: Interpolation,
    /// How output pixels map to input pixels.
    pub coordinates: Coordinates,
    /// How nearest rounds.
    pub nearest: Nearest,
    /// The parameter of the cubic kernel.
    pub cubic: f32,
    /// Whether pixels outside weigh nothing, where otherwise those of the edge stand for them.
    pub exclude_outside: bool,
    /// What lies outside for [`Coordinates::CropAndResize`].
    pub extrapolation: f32,
    /// Whether the kernel is widened where the output is smaller.
    pub antialias: bool,
    /// The axes that roi, scales and sizes are for; all when absent.
    pub axes: Option<Vec<i64>>,
    /// What becomes of sizes in another ratio.
    pub aspect: Aspect,
}

impl Default for Resize {
    fn default() -> Self {
        Self {
            mode: Interpolation::Nearest,
            coordinates: Coordinates::HalfPixel,
            nearest: Nearest::RoundPreferFloor,
            cubic: -0.75,
            exclude_outside: false,
            extrapolation: 0.0,
            antialias: false,
            axes: None,
            aspect: Aspect::Stretch,
        }
    }
}

/// What happens to one axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    /// The factor.
    pub scale: f32,
    /// The new size before it was rounded.
    pub width: f32,
    /// The new size.
    pub size: usize,
}

impl Resize {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let default = Self::default();
        if r.opset < 11 {
            return Self::read_old(r);
        }
        if r.op_type == "Upsample" {
            return Err(Error::unsupported("Upsample, which ended with opset 9"));
        }
        Ok(Self {
            mode: Interpolation::read(r, "mode", default.mode)?,
            coordinates: Coordinates::read(r, "coordinate_transformation_mode", default.coordinates)?,
            nearest: Nearest::read(r, "nearest_mode", default.nearest)?,
            cubic: r.float("cubic_coeff_a", default.cubic)?,
            exclude_outside: r.flag("exclude_outside", false)?,
            extrapolation: r.float("extrapolation_value", 0.0)?,
            antialias: r.flag("antialias", false)?,
            axes: r.opt_ints("axes")?,
            aspect: Aspect::read(r, "keep_aspect_ratio_policy", default.aspect)?,
        })
    }

    /// Upsample, and Resize of opset 10: x and scales, asymmetric, rounding down; rounding up where Resize shrinks.
    fn read_old(r: &mut Reader) -> Result<Self> {
        let mode = match r.string("mode", "nearest")?.as_str() {
            "nearest" => Interpolation::Nearest,
            "linear" | "bilinear" => Interpolation::Linear,
            other => return Err(Error::malformed(format!("mode {other}"))),
        };
        let shrinks = |s: &&[f32]| r.op_type == "Resize" && s.iter().any(|s| *s < 1.0);
        let nearest = match r.second.floats.as_deref().filter(shrinks) {
            Some(s) if mode == Interpolation::Nearest && s.iter().any(|s| *s > 1.0) => {
                return Err(Error::unsupported("Resize of opset 10 that enlarges one axis and shrinks another"));
            }
            Some(_) => Nearest::Ceil,
            None => Nearest::Floor,
        };
        match r.opt_floats("scales")? {
            Some(scales) => r.lift(2, Tensor::f32(&[scales.len()], &scales)),
            None => r.move_input(1, 2),
        }
        // Opset 11 wants it, be it empty.
        r.lift(1, Tensor::f32(&[0], &[]));
        Ok(Self { mode, coordinates: Coordinates::Asymmetric, nearest, ..Self::default() })
    }

    /// The axes that the lists are for, counted from the front.
    ///
    /// # Errors
    /// Malformed when one is out of range or named twice.
    pub fn axes(&self, rank: usize) -> Result<Vec<usize>> {
        let Some(given) = &self.axes else { return Ok((0..rank).collect()) };
        let axes = given.iter().map(|a| value::axis(*a, rank)).collect::<Result<Vec<_>>>()?;
        match (1..axes.len()).find(|i| axes[..*i].contains(&axes[*i])) {
            Some(i) => Err(Error::malformed(format!("axis {} is named twice", given[i]))),
            None => Ok(axes),
        }
    }

    /// Whether something may happen to an axis: its size or scale isn't known to be the same, or it is cropped.
    fn resizes(&self, axis: usize, sides: &Sides) -> bool {
        let Ok(axes) = self.axes(sides.inputs.get(0).rank().unwrap_or(0)) else { return true };
        let Some(i) = axes.iter().position(|a| *a == axis) else { return false };
        let scales = sides.inputs.get(2).floats.as_deref().and_then(|s| s.get(i));
        let sizes = sides.inputs.ints(3).and_then(|s| s.get(i).copied());
        let same = match (scales, sizes) {
            (Some(scale), None) => *scale == 1.0,
            (None, Some(n)) if self.aspect == Aspect::Stretch => {
                sides.size(Axis::In(0, axis)) == usize::try_from(n).ok()
            }
            _ => false,
        };
        !same || self.coordinates == Coordinates::CropAndResize
    }

    /// What happens to each axis of a tensor of `shape`.
    ///
    /// # Errors
    /// Malformed when the lists don't fit the rank or a scale is not positive.
    pub fn stretches(&self, shape: &[usize], scales: Option<&[f32]>, sizes: Option<&[i64]>) -> Result<Vec<Stretch>> {
        let bad = || Error::malformed(format!("scales {scales:?}, sizes {sizes:?} do not fit {shape:?}"));
        let axes = self.axes(shape.len())?;
        let mut out: Vec<Stretch> = shape.iter().map(|n| Stretch { scale: 1.0, width: *n as f32, size: *n }).collect();
        match (scales.filter(|s| !s.is_empty()), sizes.filter(|s| !s.is_empty())) {
            (Some(s), None) if s.len() == axes.len() && s.iter().all(|s| *s > 0.0 && s.is_finite()) => {
                for (axis, s) in axes.into_iter().zip(s) {
                    let width = shape[axis] as f32 * s;
                    out[axis] = Stretch { scale: *s, width, size: width as usize };
                }
            }
            (None, Some(s)) if s.len() == axes.len() && s.iter().all(|n| *n >= 0) => {
                let by = |(axis, n): (&usize, &i64)| *n as f64 / shape[*axis].max(1) as f64;
                let ratios = axes.iter().zip(s).map(by);
                let common = match self.aspect {
                    Aspect::Stretch => None,
                    Aspect::NotLarger => ratios.reduce(f64::min),
                    Aspect::NotSmaller => ratios.reduce(f64::max),
                };
                for (axis, n) in axes.iter().zip(s) {
                    out[*axis] = match common {
                        Some(scale) => {
                            let width = scale * shape[*axis] as f64;
                            Stretch { scale: scale as f32, width: width as f32, size: (width + 0.5) as usize }
                        }
                        None => Stretch { scale: by((axis, n)) as f32, width: *n as f32, size: *n as usize },
                    };
                }
            }
            _ => return Err(bad()),
        }
        Ok(out)
    }
}

impl Operator for Resize {
    fn op_type(&self) -> &str {
        "Resize"
    }

    fn attrs(&self) -> Attrs {
        let default = Self::default();
        let mut a: Attrs = vec![
            ("mode", self.mode.text().into()),
            ("coordinate_transformation_mode", self.coordinates.text().into()),
            ("nearest_mode", self.nearest.text().into()),
        ];
        if self.cubic != default.cubic {
            a.push(("cubic_coeff_a", self.cubic.into()));
        }
        if self.exclude_outside {
            a.push(("exclude_outside", true.into()));
        }
        if self.extrapolation != 0.0 {
            a.push(("extrapolation_value", self.extrapolation.into()));
        }
        if self.antialias {
            a.push(("antialias", true.into()));
        }
        if let Some(axes) = &self.axes {
            a.push(("axes", axes.clone().into()));
        }
        if self.aspect != default.aspect {
            a.push(("keep_aspect_ratio_policy", self.aspect.text().into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=4
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let fact = x.get(0);
        let Some(data) = fact.dims() else { return Ok(vec![Fact::new(fact.dtype, None)]) };
        let axes = self.axes(data.len())?;
        let mut shape = data.to_vec();
        let scales = x.opt(2).and_then(|f| f.floats.as_deref()).filter(|s| s.len() == axes.len());
        let sizes = x.ints(3).filter(|s| s.len() == axes.len());
        if let Some(n) = sizes.iter().flatten().find(|n| **n < 0) {
            return Err(Error::malformed(format!("a size of {n}")));
        }
        let fixed = fact.fixed();
        for (i, axis) in axes.iter().enumerate() {
            shape[*axis] = match (scales, &sizes, &fixed) {
                (Some(s), None, _) if s[i] == 1.0 => continue,
                // In `f32`, as other implementations have it.
                (Some(s), None, _) => data[*axis].zip(&Dim::Known(0), |n, _| Some((n as f32 * s[i]).floor() as i64)),
                (None, Some(s), _) if self.aspect == Aspect::Stretch => Dim::Known(s[i]),
                (None, Some(s), Some(fixed)) => Dim::from(self.stretches(fixed, None, Some(s))?[*axis].size),
                _ => Dim::Unknown,
            };
        }
        Ok(vec![Fact::new(fact.dtype, Some(shape))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.passes(at, "it makes more or fewer of these", |axis| self.resizes(axis, sides))
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let rank = sides.inputs.get(0).rank().unwrap_or(0);
        let Some(mut sizes) = sides.inputs.ints(3).filter(|s| !s.is_empty()) else {
            return Ok(ChannelSlice::default());
        };
        for (size, axis) in sizes.iter_mut().zip(self.axes(rank)?) {
            *size = kept.count(Axis::In(0, axis)).map_or(*size, |n| n as i64);
        }
        Ok(ChannelSlice::operands([sides.rewritten(3, &sizes)]))
    }

    fn since(&self) -> i64 {
        match self {
            _ if self.coordinates == Coordinates::HalfPixelSymmetric => 19,
            _ if self.antialias || self.axes.is_some() || self.aspect != Aspect::Stretch => 18,
            _ => 11,
        }
    }

    fn quant(&self) -> Quant {
        // A value that is made up has no place on the input's scale.
        let picks = self.mode == Interpolation::Nearest && self.coordinates != Coordinates::CropAndResize;
        if picks { Quant::Same } else { Quant::Float }
    }
}
