//! Operators of one input, elementwise, without parameters; and IsInf.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Operator, Width},
    tensor::DType,
    value::Fact,
};

macro_rules! unary {
    ($($name:ident),*) => {
        /// An elementwise function of one input.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Unary { $($name),* }

        impl Unary {
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

unary!(
    Relu, Sigmoid, Tanh, Exp, Log, Sqrt, Erf, Neg, Abs, Sign, Ceil, Floor, Round, Reciprocal, Sin, Cos, Softplus,
    HardSwish, Not, Tan, Asin, Acos, Atan, Sinh, Cosh, Asinh, Acosh, Atanh, Softsign, Mish, IsNaN, BitwiseNot
);

impl Operator for Unary {
    fn op_type(&self) -> &str {
        self.name()
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = if matches!(self, Unary::Not | Unary::IsNaN) { Some(DType::Bool) } else { x.get(0).dtype };
        Ok(vec![Fact::new(dtype, x.shape(0).clone())])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }

    fn since(&self) -> i64 {
        match self {
            Unary::Tan | Unary::Asin | Unary::Acos | Unary::Atan => 7,
            Unary::Sinh | Unary::Cosh | Unary::Asinh | Unary::Acosh | Unary::Atanh | Unary::Erf | Unary::Sign => 9,
            Unary::IsNaN => 9,
            Unary::Round => 11,
            Unary::HardSwish => 14,
            Unary::Mish | Unary::BitwiseNot => 18,
            _ => 1,
        }
    }

    fn width(&self) -> Width {
        match self {
            Unary::Relu => Width::Moving,
            Unary::Sigmoid | Unary::Tanh | Unary::Erf | Unary::HardSwish => Width::Bounded,
            _ => Width::Wide,
        }
    }

    fn clamps(&self, _: &Inputs) -> Option<(f32, f32)> {
        matches!(self, Unary::Relu).then_some((0.0, f32::MAX))
    }

    fn heeds(&self, x: &Inputs) -> Option<(f32, f32)> {
        match self {
            Unary::Sigmoid => Some((-8.0, 8.0)),
            Unary::Tanh => Some((-4.0, 4.0)),
            Unary::Erf => Some((-3.0, 3.0)),
            Unary::HardSwish => Some((-3.0, f32::MAX)),
            Unary::Mish => Some((-10.0, f32::MAX)),
            _ => self.clamps(x),
        }
    }
}

/// Whether an element is infinite.
#[derive(Debug, Clone, PartialEq)]
pub struct IsInf {
    /// Whether negative infinity counts.
    pub negative: bool,
    /// Whether positive infinity counts.
    pub positive: bool,
}

impl IsInf {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { negative: r.flag("detect_negative", true)?, positive: r.flag("detect_positive", true)? })
    }
}

impl Operator for IsInf {
    fn op_type(&self) -> &str {
        "IsInf"
    }
    fn attrs(&self) -> Attrs {
        vec![("detect_negative", self.negative.into()), ("detect_positive", self.positive.into())]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(Some(DType::Bool), x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }
    fn since(&self) -> i64 {
        10
    }
}
