//! Boxes and regions of pictures: NonMaxSuppression, RoiAlign, MaxRoiPool.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// The boxes that are left when those which overlap a better one are dropped. Inputs: boxes, scores,
/// how many boxes a class may have, how much two may overlap, the least score.
#[derive(Debug, Clone, PartialEq)]
pub struct NonMaxSuppression {
    /// Whether a box is a centre and sizes, rather than two corners.
    pub center_point_box: bool,
}

impl NonMaxSuppression {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { center_point_box: r.flag("center_point_box", false)? })
    }
}

impl Operator for NonMaxSuppression {
    fn op_type(&self) -> &str {
        "NonMaxSuppression"
    }
    fn attrs(&self) -> Attrs {
        if self.center_point_box { vec![("center_point_box", true.into())] } else { vec![] }
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=5
    }
    fn infer(&self, _: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(Some(DType::I64), Some(vec![Dim::Unknown, Dim::Known(3)]))])
    }
    fn since(&self) -> i64 {
        10
    }
}

/// A side of a pooled region.
fn side(v: i64) -> Result<usize> {
    let side = usize::try_from(v).ok().filter(|n| (1..=1 << 20).contains(n));
    side.ok_or_else(|| Error::malformed(format!("regions of a side of {v}")))
}

/// `[regions, channels, height, width]`.
fn pooled(x: &Inputs, size: [usize; 2]) -> Vec<Fact> {
    let regions = x.dims(1).and_then(|d| d.first()).cloned().unwrap_or(Dim::Unknown);
    let channels = x.dims(0).and_then(|d| d.get(1)).cloned().unwrap_or(Dim::Unknown);
    vec![Fact::new(x.get(0).dtype, Some(vec![regions, channels, Dim::from(size[0]), Dim::from(size[1])]))]
}

/// Channels pass, and regions; pictures are chosen by number.
fn regions(at: Axis, sides: &Sides) -> Flow {
    sides.alike(at, "it takes regions of these", |axis| match axis {
        Axis::In(1 | 2, 0) | Axis::Out(_, 0) => Some("region"),
        Axis::In(0, 1) | Axis::Out(_, 1) => Some("channel"),
        _ => None,
    })
}

/// Samples regions of pictures by bilinear interpolation. Inputs: pictures, regions, the picture
/// that each region is of.
#[derive(Debug, Clone, PartialEq)]
pub struct RoiAlign {
    /// The output's height and width.
    pub size: [usize; 2],
    /// The samples along each side of an output pixel; 0 takes as many as it has pixels.
    pub sampling_ratio: usize,
    /// From the regions' coordinates to pixels.
    pub spatial_scale: f32,
    /// Whether the largest sample counts, rather than the mean.
    pub max: bool,
    /// Whether a pixel's centre is at half its coordinates.
    pub half_pixel: bool,
}

impl RoiAlign {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let before = if r.opset < 16 { "output_half_pixel" } else { "half_pixel" };
        let half_pixel = match r.string("coordinate_transformation_mode", before)?.as_str() {
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => return Err(Error::malformed(format!("coordinate_transformation_mode={other}"))),
        };
        let max = match r.string("mode", "avg")?.as_str() {
            "avg" => false,
            "max" => true,
            other => return Err(Error::malformed(format!("mode={other}"))),
        };
        let ratio = r.int("sampling_ratio", 0)?;
        Ok(Self {
            size: [side(r.int("output_height", 1)?)?, side(r.int("output_width", 1)?)?],
            sampling_ratio: if ratio > 0 { side(ratio)? } else { 0 },
            spatial_scale: r.float("spatial_scale", 1.0)?,
            max,
            half_pixel,
        })
    }
}

impl Operator for RoiAlign {
    fn op_type(&self) -> &str {
        "RoiAlign"
    }

    fn attrs(&self) -> Attrs {
        let mode = if self.half_pixel { "half_pixel" } else { "output_half_pixel" };
        let mut a: Attrs = vec![
            ("coordinate_transformation_mode", mode.into()),
            ("output_height", (self.size[0] as i64).into()),
            ("output_width", (self.size[1] as i64).into()),
            ("sampling_ratio", (self.sampling_ratio as i64).into()),
            ("spatial_scale", self.spatial_scale.into()),
        ];
        if self.max {
            a.push(("mode", "max".into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(pooled(x, self.size))
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        regions(at, sides)
    }

    fn since(&self) -> i64 {
        16
    }
}

/// The maxima of the parts of regions. Inputs: pictures, regions, each after its picture's index.
#[derive(Debug, Clone, PartialEq)]
pub struct MaxRoiPool {
    /// The output's height and width.
    pub size: [usize; 2],
    /// From the regions' coordinates to pixels.
    pub spatial_scale: f32,
}

impl MaxRoiPool {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let size = match r.opt_ints("pooled_shape")?.as_deref() {
            Some([h, w]) => [side(*h)?, side(*w)?],
            _ => return Err(Error::malformed("pooled_shape is not a height and a width")),
        };
        Ok(Self { size, spatial_scale: r.float("spatial_scale", 1.0)? })
    }
}

impl Operator for MaxRoiPool {
    fn op_type(&self) -> &str {
        "MaxRoiPool"
    }
    fn attrs(&self) -> Attrs {
        let size: Vec<i64> = self.size.iter().map(|n| *n as i64).collect();
        vec![("pooled_shape", size.into()), ("spatial_scale", self.spatial_scale.into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(pooled(x, self.size))
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        regions(at, sides)
    }
}
