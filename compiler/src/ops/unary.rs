//! Operators of one input, elementwise, without attributes.

use crate::{
    error::Result,
    op::{Inputs, Operator},
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
            pub fn from_name(name: &str) -> Option<Self> {
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
    HardSwish, Not
);

impl Operator for Unary {
    fn op_type(&self) -> &str {
        self.name()
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = if *self == Unary::Not { Some(DType::Bool) } else { x.get(0).dtype };
        Ok(vec![Fact::new(dtype, x.shape(0).clone())])
    }

    fn since(&self) -> i64 {
        if *self == Unary::HardSwish { 14 } else { 1 }
    }
}
