//! Cast, CastLike, BitCast.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    narrow::RoundMode,
    op::{Inputs, Operator},
    tensor::DType,
    value::Fact,
};
use std::ops::RangeInclusive;

/// How numbers that a narrow floating-point type cannot hold are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounding {
    /// Whether what is too large becomes the largest number.
    pub saturate: bool,
    /// The direction, for `f8e8m0` alone.
    pub mode: RoundMode,
}

impl Default for Rounding {
    fn default() -> Self {
        Self { saturate: true, mode: RoundMode::Up }
    }
}

impl Rounding {
    fn read(r: &mut Reader) -> Result<Self> {
        let saturate = r.flag("saturate", true)?;
        let mode = match r.string("round_mode", "up")?.as_str() {
            "up" => RoundMode::Up,
            "down" => RoundMode::Down,
            "nearest" => RoundMode::Nearest,
            other => return Err(Error::malformed(format!("round_mode={other}"))),
        };
        Ok(Self { saturate, mode })
    }

    fn attrs(self, attrs: &mut Attrs) {
        if !self.saturate {
            attrs.push(("saturate", false.into()));
        }
        match self.mode {
            RoundMode::Up => {}
            RoundMode::Down => attrs.push(("round_mode", "down".into())),
            RoundMode::Nearest => attrs.push(("round_mode", "nearest".into())),
        }
    }

    fn since(self) -> i64 {
        match (self.mode, self.saturate) {
            (RoundMode::Up, true) => 1,
            (RoundMode::Up, false) => 19,
            _ => 24,
        }
    }
}

/// Converts elements to another type.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// The new type.
    pub to: DType,
    /// How it rounds.
    pub rounding: Rounding,
}

fn read_to(r: &mut Reader) -> Result<DType> {
    let to = r.opt_dtype("to")?.ok_or_else(|| Error::malformed("attribute `to` is missing"))?;
    if to == DType::String {
        return Err(Error::unsupported(format!("{} to strings", r.op_type)));
    }
    Ok(to)
}

impl Cast {
    /// A cast to `to`, rounding as ONNX does by default.
    pub fn new(to: DType) -> Self {
        Self { to, rounding: Rounding::default() }
    }

    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { rounding: Rounding::read(r)?, to: read_to(r)? })
    }
}

/// What a value with the elements of `x` becomes: whole numbers that fit survive.
fn cast_fact(x: &Fact, to: Option<DType>) -> Fact {
    let mut fact = Fact::new(to, x.shape.clone());
    if matches!(to, Some(DType::I64 | DType::I32)) {
        fact.elems = x.elems.clone();
    }
    fact
}

impl Operator for Cast {
    fn op_type(&self) -> &str {
        "Cast"
    }
    fn attrs(&self) -> Attrs {
        let mut attrs: Attrs = vec![("to", (self.to as i64).into())];
        self.rounding.attrs(&mut attrs);
        attrs
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![cast_fact(x.get(0), Some(self.to))])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }
    fn since(&self) -> i64 {
        let types = match self.to {
            DType::F6E2M3 | DType::F6E3M2 => 28,
            DType::U2 | DType::I2 => 25,
            DType::F8E8M0 => 24,
            DType::F4E2M1 => 23,
            DType::U4 | DType::I4 => 21,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => 19,
            DType::BF16 => 13,
            _ => 6,
        };
        self.rounding.since().max(types)
    }

    fn is_unchanged(&self, x: &Inputs, _: &Fact) -> bool {
        x.get(0).dtype == Some(self.to)
    }
}

/// Converts elements to the type of another value. Inputs: x, like.
#[derive(Debug, Clone, PartialEq)]
pub struct CastLike {
    /// How it rounds.
    pub rounding: Rounding,
}

impl CastLike {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { rounding: Rounding::read(r)? })
    }
}

impl Operator for CastLike {
    fn op_type(&self) -> &str {
        "CastLike"
    }
    fn attrs(&self) -> Attrs {
        let mut attrs = vec![];
        self.rounding.attrs(&mut attrs);
        attrs
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![cast_fact(x.get(0), x.get(1).dtype)])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }
    fn since(&self) -> i64 {
        self.rounding.since().max(15)
    }
}

/// Takes the bits of elements as those of another type of the same width.
#[derive(Debug, Clone, PartialEq)]
pub struct BitCast {
    /// The new type.
    pub to: DType,
}

impl BitCast {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { to: read_to(r)? })
    }
}

impl Operator for BitCast {
    fn op_type(&self) -> &str {
        "BitCast"
    }
    fn attrs(&self) -> Attrs {
        vec![("to", (self.to as i64).into())]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(from) = x.get(0).dtype.filter(|from| from.bits() != self.to.bits()) {
            return Err(Error::malformed(format!("BitCast from {from} to {}: their widths differ", self.to)));
        }
        Ok(vec![Fact::new(Some(self.to), x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }
    fn since(&self) -> i64 {
        26
    }
}

#[cfg(test)]
mod tests {
    use crate::{node::Port, text, value::Dim};

    #[test]
    fn what_wraps_around_is_not_known() {
        let graph = text::parse(
            r#"graph "wide" {
                const %n: i64[2] = [3, 4294967299]
                %narrow = Cast(%n) {to=6}
                %wide = Cast(%narrow) {to=7}
                output %wide
            }"#,
        )
        .unwrap();
        let wide: Port = graph.outputs()[0].port;
        assert_eq!(graph.fact(wide).elems, Some(vec![Dim::Known(3), Dim::Unknown]));
    }
}
