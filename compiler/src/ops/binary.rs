//! Operators of two inputs, elementwise, broadcast as numpy does.

use crate::{
    error::Result,
    op::{Inputs, Operator, Quant},
    tensor::DType,
    value::{Dim, Fact, broadcast},
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
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $(stringify!($name) => Some(Self::$name),)* _ => None }
            }

            fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

binary!(Add, Sub, Mul, Div, Pow, Min, Max, PRelu, Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And, Or, Xor);

impl Binary {
    /// Whether the result is a truth value.
    pub fn is_logical(self) -> bool {
        use Binary::*;
        matches!(self, Equal | Less | LessOrEqual | Greater | GreaterOrEqual | And | Or | Xor)
    }

    /// Whether the operands may be swapped.
    pub fn commutes(self) -> bool {
        use Binary::*;
        matches!(self, Add | Mul | Min | Max | Equal | And | Or | Xor)
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
            _ => Dim::Unknown,
        }
    }
}

impl Operator for Binary {
    fn op_type(&self) -> &str {
        self.name()
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let (a, b) = (x.get(0), x.get(1));
        let dtype = if self.is_logical() { Some(DType::Bool) } else { a.dtype.or(b.dtype) };
        let mut fact = Fact::new(dtype, broadcast(&a.shape, &b.shape)?);
        if let (Some(p), Some(q)) = (&a.elems, &b.elems)
            && !self.is_logical()
            && (p.len() == q.len() || p.len() == 1 || q.len() == 1)
        {
            let n = if p.len() == 1 { q.len() } else { p.len() };
            fact.elems = Some((0..n).map(|i| self.of_dims(&p[i % p.len()], &q[i % q.len()])).collect());
        }
        Ok(vec![fact])
    }

    fn since(&self) -> i64 {
        match self {
            Binary::LessOrEqual | Binary::GreaterOrEqual => 12,
            Binary::Min | Binary::Max => 8,
            _ => 7,
        }
    }

    fn quant(&self) -> Quant {
        if *self == Binary::Add { Quant::Arithmetic } else { Quant::Float }
    }
}
