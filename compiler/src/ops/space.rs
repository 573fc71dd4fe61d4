//! Blocks of a picture as channels, and channels as blocks: DepthToSpace, SpaceToDepth, Col2Im.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// The attributes that DepthToSpace and SpaceToDepth share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// The height and width of a block.
    pub size: usize,
    /// Whether a channel's block lies together (CRD), rather than a block's channels (DCR).
    pub crd: bool,
}

impl Blocks {
    fn read(r: &mut Reader) -> Result<Self> {
        let size = r.opt_int("blocksize")?.unwrap_or(0);
        let size = usize::try_from(size).ok().filter(|n| (1..=1 << 15).contains(n));
        let crd = match r.string("mode", "DCR")?.as_str() {
            "DCR" => false,
            "CRD" => true,
            other => return Err(Error::malformed(format!("mode={other}"))),
        };
        Ok(Self { size: size.ok_or_else(|| Error::malformed("blocksize is missing or out of range"))?, crd })
    }

    fn attrs(self) -> Attrs {
        let mut a: Attrs = vec![("blocksize", (self.size as i64).into())];
        if self.crd {
            a.push(("mode", "CRD".into()));
        }
        a
    }

    /// How the channels of the picture with few go together with those of the one with many.
    fn axes_map(self, at: Axis, sides: &Sides, [few, many]: [Axis; 2]) -> Flow {
        match (at, sides.size(few)) {
            (Axis::In(0, 1) | Axis::Out(0, 1), Some(channels)) => {
                let of_many = |i: usize| if self.crd { i / (self.size * self.size) } else { i % channels.max(1) };
                sides.labelled(at, [(few, &(|i| i) as &dyn Fn(usize) -> usize), (many, &of_many)])
            }
            (Axis::In(0, 1) | Axis::Out(0, 1), None) => Flow::closed(UNKNOWN),
            _ => sides.passes(at, "it makes blocks of these", |axis| axis != 0),
        }
    }
}

/// The four axes of a picture's dimensions.
fn picture(dims: &[Dim]) -> Result<&[Dim; 4]> {
    dims.try_into().map_err(|_| Error::malformed(format!("a picture has 4 axes, not {}", dims.len())))
}

fn part(d: &Dim, by: usize) -> Result<Dim> {
    match d.known() {
        Some(n) if n % by as i64 != 0 => Err(Error::malformed(format!("an axis of {n} does not divide by {by}"))),
        Some(n) => Ok(Dim::Known(n / by as i64)),
        None if by == 1 => Ok(d.clone()),
        None => Ok(Dim::Unknown),
    }
}

/// Spreads channels over blocks of pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthToSpace(pub Blocks);

/// Collects blocks of pixels into channels.
#[derive(Debug, Clone, PartialEq)]
pub struct SpaceToDepth(pub Blocks);

impl DepthToSpace {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self(Blocks::read(r)?))
    }
}

impl SpaceToDepth {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self(Blocks::read(r)?))
    }
}

impl Operator for DepthToSpace {
    fn op_type(&self) -> &str {
        "DepthToSpace"
    }
    fn attrs(&self) -> Attrs {
        self.0.attrs()
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match x.dims(0) {
            Some(data) => {
                let ([n, c, h, w], b) = (picture(data)?, self.0.size);
                let side = Dim::from(b);
                vec![n.clone(), part(c, b * b)?, h.times(&side), w.times(&side)]
            }
            None => vec![Dim::Unknown; 4],
        };
        Ok(vec![Fact::new(x.get(0).dtype, Some(shape))])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        self.0.axes_map(at, sides, [Axis::Out(0, 1), Axis::In(0, 1)])
    }
    fn since(&self) -> i64 {
        if self.0.crd { 11 } else { 1 }
    }
    fn quant(&self) -> Quant {
        Quant::Same
    }
}

impl Operator for SpaceToDepth {
    fn op_type(&self) -> &str {
        "SpaceToDepth"
    }
    fn attrs(&self) -> Attrs {
        self.0.attrs()
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match x.dims(0) {
            Some(data) => {
                let ([n, c, h, w], b) = (picture(data)?, self.0.size);
                vec![n.clone(), c.times(&Dim::from(b * b)), part(h, b)?, part(w, b)?]
            }
            None => vec![Dim::Unknown; 4],
        };
        Ok(vec![Fact::new(x.get(0).dtype, Some(shape))])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        self.0.axes_map(at, sides, [Axis::In(0, 1), Axis::Out(0, 1)])
    }
    fn since(&self) -> i64 {
        if self.0.crd { 28 } else { 1 }
    }
    fn quant(&self) -> Quant {
        Quant::Same
    }
}

/// Adds columns of blocks up to the image that they were cut from. Inputs: columns, the image's
/// shape, the block's shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Col2Im {
    /// From one block to the next, by axis; 1 where empty.
    pub strides: Vec<i64>,
    /// The border that the blocks reach into: begins, then ends; none where empty.
    pub pads: Vec<i64>,
    /// From one pixel of a block to the next, by axis; 1 where empty.
    pub dilations: Vec<i64>,
}

impl Col2Im {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let mut list = |name: &str, least: i64| -> Result<Vec<i64>> {
            let list = r.opt_ints(name)?.unwrap_or_default();
            if list.iter().any(|v| !(least..=i64::from(i32::MAX)).contains(v)) {
                return Err(Error::malformed(format!("{name} {list:?}")));
            }
            Ok(list)
        };
        Ok(Self { strides: list("strides", 1)?, pads: list("pads", 0)?, dilations: list("dilations", 1)? })
    }
}

impl Operator for Col2Im {
    fn op_type(&self) -> &str {
        "Col2Im"
    }

    fn attrs(&self) -> Attrs {
        let lists = [("dilations", &self.dilations), ("pads", &self.pads), ("strides", &self.strides)];
        lists.into_iter().filter(|(_, l)| !l.is_empty()).map(|(n, l)| (n, l.clone().into())).collect()
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let (batch, columns) = match x.dims(0) {
            Some([n, c, _]) => (n.clone(), c.clone()),
            Some(d) => return Err(Error::malformed(format!("columns of rank {}, not 3", d.len()))),
            None => (Dim::Unknown, Dim::Unknown),
        };
        let Some(image) = &x.get(1).elems else { return Ok(vec![Fact::new(dtype, None)]) };
        let image = value::sizes(image)?;
        let block = x.ints(2).map(|b| b.iter().try_fold(1i64, |n, v| n.checked_mul(*v)));
        let channels = match block {
            Some(Some(n)) if (1..=i64::from(i32::MAX)).contains(&n) => part(&columns, n as usize)?,
            Some(_) => return Err(Error::malformed("the block's shape is out of range")),
            None => Dim::Unknown,
        };
        Ok(vec![Fact::new(dtype, Some([&[batch, channels], image].concat()))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let block = sides.inputs.ints(2).and_then(|b| b.iter().try_fold(1i64, |n, v| n.checked_mul(*v)));
        match (at, block.and_then(|n| usize::try_from(n).ok())) {
            (Axis::In(0, 1) | Axis::Out(0, 1), Some(block)) => {
                sides.blocks(at, [(Axis::In(0, 1), block), (Axis::Out(0, 1), 1)])
            }
            (Axis::In(0, 1) | Axis::Out(0, 1), None) => Flow::closed(UNKNOWN),
            _ => sides.passes(at, "it makes blocks of these", |axis| axis != 0),
        }
    }

    fn since(&self) -> i64 {
        18
    }
}
