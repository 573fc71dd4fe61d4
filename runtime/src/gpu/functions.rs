//! Functions of one float, by themselves or of what a product makes.

use compress_kernels::UnaryOp;
use cubecl::prelude::*;

/// A function, without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// The number itself.
    Same,
    /// Within two bounds.
    Bounded,
    LeakyRelu,
    Sigmoid,
    Tanh,
    Exp,
    Log,
    Sqrt,
    Neg,
    Abs,
    HardSigmoid,
    HardSwish,
    Silu,
    Gelu,
    GeluTanh,
    Erf,
    Floor,
    Ceil,
    Round,
    Reciprocal,
    Square,
    Cube,
    Sin,
    Cos,
}

impl Function {
    /// The function of an operator, and the two numbers that it takes.
    pub fn of(op: UnaryOp) -> (Self, [f32; 2]) {
        let plain = |f: Self| (f, [0.0; 2]);
        match op {
            UnaryOp::Relu => (Self::Bounded, [0.0, f32::INFINITY]),
            UnaryOp::Clip(low, high) => (Self::Bounded, [low, high]),
            UnaryOp::LeakyRelu(alpha) => (Self::LeakyRelu, [alpha, 0.0]),
            UnaryOp::HardSigmoid(alpha, beta) => (Self::HardSigmoid, [alpha, beta]),
            UnaryOp::HardSwish => (Self::HardSwish, [1.0 / 6.0, 0.5]),
            UnaryOp::Sigmoid => plain(Self::Sigmoid),
            UnaryOp::Tanh => plain(Self::Tanh),
            UnaryOp::Exp => plain(Self::Exp),
            UnaryOp::Log => plain(Self::Log),
            UnaryOp::Sqrt => plain(Self::Sqrt),
            UnaryOp::Neg => plain(Self::Neg),
            UnaryOp::Abs => plain(Self::Abs),
            UnaryOp::Silu => plain(Self::Silu),
            UnaryOp::Gelu => plain(Self::Gelu),
            UnaryOp::GeluTanh => plain(Self::GeluTanh),
            UnaryOp::Erf => plain(Self::Erf),
            UnaryOp::Floor => plain(Self::Floor),
            UnaryOp::Ceil => plain(Self::Ceil),
            UnaryOp::Round => plain(Self::Round),
            UnaryOp::Reciprocal => plain(Self::Reciprocal),
            UnaryOp::Square => plain(Self::Square),
            UnaryOp::Cube => plain(Self::Cube),
            UnaryOp::Sin => plain(Self::Sin),
            UnaryOp::Cos => plain(Self::Cos),
        }
    }

    /// Whether, with its two numbers, it makes numbers of about the size of those it reads, or of 1.
    pub fn is_bounded(self, [alpha, _]: [f32; 2]) -> bool {
        match self {
            Self::Exp | Self::Log | Self::Reciprocal | Self::Square | Self::Cube => false,
            Self::LeakyRelu => alpha.abs() <= 1.0,
            _ => true,
        }
    }
}

/// What `f` with its numbers `alpha` and `beta` makes of `x`.
#[cube]
pub fn applied(x: f32, alpha: f32, beta: f32, #[comptime] f: Function) -> f32 {
    match comptime!(f) {
        Function::Same => x,
        Function::Bounded => bounded(x, alpha, beta),
        Function::LeakyRelu => select(x < 0.0f32, x * alpha, x),
        Function::Sigmoid => sigmoid(x),
        Function::Tanh => x.tanh(),
        Function::Exp => x.exp(),
        Function::Log => x.ln(),
        Function::Sqrt => x.sqrt(),
        Function::Neg => -x,
        Function::Abs => x.abs(),
        Function::HardSigmoid => bounded(x * alpha + beta, 0.0f32, 1.0f32),
        Function::HardSwish => x * bounded(x * alpha + beta, 0.0f32, 1.0f32),
        Function::Silu => x * sigmoid(x),
        Function::Gelu => 0.5f32 * x * (1.0f32 + <f32 as Erf>::erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        // `tanh` by the sigmoid, which neither overflows nor cancels: (1 + tanh z) / 2 = sigmoid(2 z).
        Function::GeluTanh => x * sigmoid(1.595_769_f32 * (x + 0.044_715f32 * x * x * x)),
        Function::Erf => <f32 as Erf>::erf(x),
        Function::Floor => x.floor(),
        Function::Ceil => x.ceil(),
        Function::Round => round(x),
        Function::Reciprocal => 1.0f32 / x,
        Function::Square => x * x,
        Function::Cube => x * x * x,
        Function::Sin => x.sin(),
        Function::Cos => x.cos(),
    }
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (-x).exp())
}

/// `x` between bounds; NaN stays.
#[cube]
pub fn bounded(x: f32, low: f32, high: f32) -> f32 {
    let x = select(x < low, low, x);
    select(x > high, high, x)
}

/// To the nearest integer, of two to the even one. What the device's own does with ties is the driver's choice on some.
#[cube]
fn round(x: f32) -> f32 {
    let floor = x.floor();
    let part = x - floor;
    let is_odd = (floor * 0.5f32).floor() * 2.0f32 != floor;
    let up = part > 0.5f32 || (part == 0.5f32 && is_odd);
    select(up, floor + 1.0f32, floor)
}
