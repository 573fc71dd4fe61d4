//! Operators of two inputs, elementwise, broadcast as numpy does.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
    tensor::DType,
    value::{self, Dim, Fact, broadcast},
};
use std::ops::RangeInclusive;

macro_rules! binary {
    ($($name:ident),*) => {
        /// An elementwise function of two inputs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Binary { $($name),* }

        impl Binary {
            /// The operator called `name` in ONNX.
            pub(crate) fn from_name(name: &str) -> Option<Self> {
                match name { $(stringify!($name) => Some(Self::$name),)* _ => None }
            }

            fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

binary!(
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
    PRelu,
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Xor,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor
);

impl Binary {
    /// Before opset 7 the second input was broadcast only on demand, and from any axis on.
    pub(super) fn read(self, r: &mut Reader) -> Result<Self> {
        if r.opset >= 7 {
            return Ok(self);
        }
        let (axis, slope) = (r.opt_int("axis")?, self == Binary::PRelu);
        r.flag("broadcast", false)?;
        // A slope stood for the channels.
        let axis = axis.or((slope && r.second.fixed() != Some(vec![1])).then_some(1));
        let Some(axis) = axis else { return Ok(self) };
        let ends = |a: usize, b: usize| value::axis(axis, a).is_ok_and(|axis| axis + b == a);
        match (r.first.rank(), r.second.rank()) {
            (Some(a), Some(b)) if ends(a, b) => Ok(self),
            _ => Err(Error::unsupported(format!("{} broadcast from axis {axis}", r.op_type))),
        }
    }

    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        use Binary::*;
        matches!(self, Equal | Less | LessOrEqual | Greater | GreaterOrEqual | And | Or | Xor)
    }

    /// Whether the operands may be swapped.
    pub fn commutes(self) -> bool {
        use Binary::*;
        matches!(self, Add | Mul | Min | Max | Equal | And | Or | Xor | BitwiseAnd | BitwiseOr | BitwiseXor)
    }

    fn of_dims(self, a: &Dim, b: &Dim) -> Dim {
        match self {
            // What is neutral keeps a symbol alive.
            Binary::Mul | Binary::Div if *b == Dim::Known(1) => a.clone(),
            Binary::Mul if *a == Dim::Known(1) => b.clone(),
            Binary::Add | Binary::Sub if *b == Dim::Known(0) => a.clone(),
            Binary::Add if *a == Dim::Known(0) => b.clone(),
            Binary::Add => a.zip(b, i64::checked_add),
            Binary::Sub => a.zip(b, i64::checked_sub),
            Binary::Mul => a.zip(b, i64::checked_mul),
            Binary::Div => a.zip(b, i64::checked_div),
            Binary::Min => a.zip(b, |a, b| Some(a.min(b))),
            Binary::Max => a.zip(b, |a, b| Some(a.max(b))),
            Binary::Equal if a.same(b) => Dim::Known(1),
            // A symbol is a size, which is not negative.
            Binary::Equal if matches!((a, b), (Dim::Sym(_), Dim::Known(n)) | (Dim::Known(n), Dim::Sym(_)) if *n < 0) => {
                Dim::Known(0)
            }
            Binary::Equal => a.zip(b, |a, b| Some((a == b).into())),
            Binary::Less => a.zip(b, |a, b| Some((a < b).into())),
            Binary::LessOrEqual => a.zip(b, |a, b| Some((a <= b).into())),
            Binary::Greater => a.zip(b, |a, b| Some((a > b).into())),
            Binary::GreaterOrEqual => a.zip(b, |a, b| Some((a >= b).into())),
            Binary::And => a.zip(b, |a, b| Some(a & b)),
            Binary::Or => a.zip(b, |a, b| Some(a | b)),
            Binary::Xor => a.zip(b, |a, b| Some(a ^ b)),
            _ => Dim::Unknown,
        }
    }
}

/// The elements that `f` makes of two shape-like values, vectors or scalars.
fn zip_elems(a: &Fact, b: &Fact, f: impl Fn(&Dim, &Dim) -> Dim) -> Option<Vec<Dim>> {
    let (p, q) = (a.elems.as_ref()?, b.elems.as_ref()?);
    let n = if p.len() == 1 { q.len() } else { p.len() };
    let fits = |v: &[Dim]| v.len() == n || v.len() == 1;
    let vectors = [a, b].iter().all(|f| f.rank().is_some_and(|r| r <= 1));
    (vectors && fits(p) && fits(q)).then(|| (0..n).map(|i| f(&p[i % p.len()], &q[i % q.len()])).collect())
}

impl Operator for Binary {
    fn op_type(&self) -> &str {
        self.name()
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn parameters(&self) -> &'static [usize] {
        match self {
            Binary::Add | Binary::Sub | Binary::Mul => &[0, 1],
            Binary::PRelu => &[1],
            _ => &[],
        }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let (a, b) = (x.get(0), x.get(1));
        let dtype = if self.is_logical() { Some(DType::Bool) } else { a.dtype.or(b.dtype) };
        let mut fact = Fact::new(dtype, broadcast(&a.shape, &b.shape)?);
        // The elements of u64 are held in the bits of i64, which order differently.
        if a.dtype != Some(DType::U64) {
            fact.elems = zip_elems(a, b, |p, q| self.of_dims(p, q));
        }
        Ok(vec![fact])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..2)
    }

    fn since(&self) -> i64 {
        match self {
            Binary::LessOrEqual | Binary::GreaterOrEqual => 12,
            Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => 18,
            Binary::Min | Binary::Max => 8,
            _ => 7,
        }
    }

    fn quant(&self) -> Quant {
        if *self == Binary::Add { Quant::Arithmetic } else { Quant::Float }
    }

    fn width(&self) -> Width {
        if matches!(self, Binary::Add | Binary::Sub) { Width::Moving } else { Width::Wide }
    }
}

/// The remainder of a division. Inputs: a, b.
#[derive(Debug, Clone, PartialEq)]
pub struct Mod {
    /// Whether the quotient is rounded towards zero, as C does, and not down.
    pub fmod: bool,
}

impl Mod {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { fmod: r.flag("fmod", false)? })
    }

    fn of_dims(&self, a: i64, b: i64) -> Option<i64> {
        let rest = a.checked_rem(b)?;
        let down = !self.fmod && rest != 0 && (rest < 0) != (b < 0);
        Some(if down { rest + b } else { rest })
    }
}

impl Operator for Mod {
    fn op_type(&self) -> &str {
        "Mod"
    }
    fn attrs(&self) -> Attrs {
        if self.fmod { vec![("fmod", true.into())] } else { vec![] }
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let (a, b) = (x.get(0), x.get(1));
        let mut fact = Fact::new(a.dtype.or(b.dtype), broadcast(&a.shape, &b.shape)?);
        if a.dtype != Some(DType::U64) {
            fact.elems = zip_elems(a, b, |p, q| p.zip(q, |p, q| self.of_dims(p, q)));
        }
        Ok(vec![fact])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..2)
    }
    fn since(&self) -> i64 {
        10
    }
}

/// Shifts the bits of integers. Inputs: x, by how many.
#[derive(Debug, Clone, PartialEq)]
pub struct BitShift {
    /// Whether they move towards the lower ones.
    pub right: bool,
}

impl BitShift {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        match r.string("direction", "")?.as_str() {
            "RIGHT" => Ok(Self { right: true }),
            "LEFT" => Ok(Self { right: false }),
            other => Err(Error::malformed(format!("direction={other}"))),
        }
    }
}

impl Operator for BitShift {
    fn op_type(&self) -> &str {
        "BitShift"
    }
    fn attrs(&self) -> Attrs {
        vec![("direction", if self.right { "RIGHT" } else { "LEFT" }.into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype.or(x.get(1).dtype), broadcast(x.shape(0), x.shape(1))?)])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..2)
    }
    fn since(&self) -> i64 {
        11
    }
}
