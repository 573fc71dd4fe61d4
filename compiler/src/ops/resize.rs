//! Resize: nearest neighbour and linear interpolation by whole or fractional scales.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// How values between pixels are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Interpolation {
    Nearest,
    Linear,
}

/// ONNX's `coordinate_transformation_mode`, those we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Coordinates {
    HalfPixel,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
}

/// ONNX's `nearest_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// Resizes input 0. Inputs: x, roi (unused), scales, sizes; one of the last two is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    /// How values between pixels are found.
    pub mode: Interpolation,
    /// How output pixels map to input pixels.
    pub coordinates: Coordinates,
    /// How nearest rounds.
    pub nearest: Nearest,
}

impl Resize {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let no = |what: &str, v: &str| Error::unsupported(format!("Resize with {what}={v}"));
        let mode = match r.string("mode", "nearest")?.as_str() {
            "nearest" => Interpolation::Nearest,
            "linear" => Interpolation::Linear,
            other => return Err(no("mode", other)),
        };
        if r.opset < 11 {
            // Upsample and Resize of opset 10: x, scales; asymmetric, rounding down.
            return Err(no("opset", &r.opset.to_string()));
        }
        let coordinates = match r.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
            "half_pixel" => Coordinates::HalfPixel,
            "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
            "align_corners" => Coordinates::AlignCorners,
            "asymmetric" => Coordinates::Asymmetric,
            other => return Err(no("coordinate_transformation_mode", other)),
        };
        let nearest = match r.string("nearest_mode", "round_prefer_floor")?.as_str() {
            "round_prefer_floor" => Nearest::RoundPreferFloor,
            "round_prefer_ceil" => Nearest::RoundPreferCeil,
            "floor" => Nearest::Floor,
            "ceil" => Nearest::Ceil,
            other => return Err(no("nearest_mode", other)),
        };
        // These matter to modes we refused above; at other values they change nothing.
        r.float("cubic_coeff_a", -0.75)?;
        r.float("extrapolation_value", 0.0)?;
        r.flag("exclude_outside", false)?;
        if r.flag("antialias", false)? {
            return Err(no("antialias", "1"));
        }
        match r.string("keep_aspect_ratio_policy", "stretch")?.as_str() {
            "stretch" => {}
            other => return Err(no("keep_aspect_ratio_policy", other)),
        }
        if r.opt_ints("axes")?.is_some() {
            return Err(Error::unsupported("Resize with axes"));
        }
        Ok(Self { mode, coordinates, nearest })
    }

    /// The output's shape.
    ///
    /// # Errors
    /// Malformed when the lists don't fit the rank or a scale is not positive.
    pub fn output(shape: &[usize], scales: Option<&[f32]>, sizes: Option<&[i64]>) -> Result<Vec<usize>> {
        let bad = || Error::malformed(format!("scales {scales:?}, sizes {sizes:?} do not fit {shape:?}"));
        match (scales.filter(|s| !s.is_empty()), sizes.filter(|s| !s.is_empty())) {
            (Some(s), None) if s.len() == shape.len() && s.iter().all(|s| *s > 0.0 && s.is_finite()) => {
                Ok(shape.iter().zip(s).map(|(n, s)| (*n as f32 * s).floor() as usize).collect())
            }
            (None, Some(s)) if s.len() == shape.len() => {
                s.iter().map(|n| usize::try_from(*n).map_err(|_| bad())).collect()
            }
            _ => Err(bad()),
        }
    }
}

impl Operator for Resize {
    fn op_type(&self) -> &str {
        "Resize"
    }

    fn attrs(&self) -> Attrs {
        let mode = match self.mode {
            Interpolation::Nearest => "nearest",
            Interpolation::Linear => "linear",
        };
        let coordinates = match self.coordinates {
            Coordinates::HalfPixel => "half_pixel",
            Coordinates::PytorchHalfPixel => "pytorch_half_pixel",
            Coordinates::AlignCorners => "align_corners",
            Coordinates::Asymmetric => "asymmetric",
        };
        let nearest = match self.nearest {
            Nearest::RoundPreferFloor => "round_prefer_floor",
            Nearest::RoundPreferCeil => "round_prefer_ceil",
            Nearest::Floor => "floor",
            Nearest::Ceil => "ceil",
        };
        vec![
            ("mode", mode.into()),
            ("coordinate_transformation_mode", coordinates.into()),
            ("nearest_mode", nearest.into()),
        ]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=4
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(x.get(0).dtype, None)]) };
        let unknown = vec![Dim::Unknown; data.len()];
        let shape = match (x.ints(3), x.opt(2).and_then(|f| f.floats.as_ref())) {
            (Some(s), _) if s.len() == data.len() => s.into_iter().map(Dim::Known).collect(),
            (None, Some(s)) if s.len() == data.len() => {
                let scaled = data.iter().zip(s).map(|(d, s)| match (d.known(), *s == 1.0) {
                    (_, true) => d.clone(),
                    (Some(n), false) => Dim::Known((n as f32 * s).floor() as i64),
                    (None, false) => Dim::Unknown,
                });
                scaled.collect()
            }
            _ => unknown,
        };
        Ok(vec![Fact::new(x.get(0).dtype, Some(shape))])
    }

    fn since(&self) -> i64 {
        11
    }

    fn quant(&self) -> Quant {
        if self.mode == Interpolation::Nearest { Quant::Same } else { Quant::Float }
    }
}
