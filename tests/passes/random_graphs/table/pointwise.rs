//! Elementwise operators, casts, reductions along axes.

use super::{done, entries, f, i, s, some};
use crate::{
    maker::{Maker, V},
    table::Entry,
};
use compress_compiler::tensor::{DType, Tensor};

pub const ENTRIES: &[&[Entry]] = &[
    entries!(true: smooth 8, bounded 3, activation 4, arithmetic 8, power 2, variadic 3, clip 3, swiglu 1, gated 2, cast_float 2,
        reduce 5, softmax 2, cumulative 1, mean_variance 1, lp_norm 1, integers 3, casts 1),
    entries!(false: rounding 2, logical 3, comparing 3, questions 1, modulo 2, bits 2, selecting 3, cast_integer 3, cast_like 1,
        bit_cast 1, narrow_cast 1, arg 2, quantized 3, dynamic_quantized 1, hard 1, loss 1, bit_not 1, identity 3, dropout 2),
];

fn smooth(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=5);
    let names = [
        "Relu",
        "Relu",
        "Relu",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Neg",
        "Abs",
        "Sin",
        "Cos",
        "Softplus",
        "HardSwish",
        "Atan",
        "Asinh",
        "Softsign",
        "Mish",
    ];
    let name = m.one(&names);
    done(m.op(name, &[Some(x)], &[]))
}

fn bounded(m: &mut Maker) -> Option<()> {
    let (name, low, high) = m.one(&[
        ("Exp", -4.0, 4.0),
        ("Log", 0.1, 9.0),
        ("Sqrt", 0.1, 9.0),
        ("Reciprocal", 0.2, 5.0),
        ("Tan", -1.0, 1.0),
        ("Asin", -0.9, 0.9),
        ("Acos", -0.9, 0.9),
        ("Sinh", -3.0, 3.0),
        ("Cosh", -3.0, 3.0),
        ("Acosh", 1.2, 9.0),
        ("Atanh", -0.9, 0.9),
    ]);
    let x = m.within(low, high)?;
    done(m.op(name, &[Some(x)], &[]))
}

fn activation(m: &mut Maker) -> Option<()> {
    let names = ["LeakyRelu", "Elu", "HardSigmoid", "Gelu", "Selu", "Celu", "Swish", "Shrink", "ThresholdedRelu"];
    let name = m.one(&names);
    let jumps = matches!(name, "Shrink" | "ThresholdedRelu");
    let x = if jumps { m.exact(DType::F32, 0..=4) } else { m.float(0..=5) };
    let attrs = match name {
        "LeakyRelu" | "Elu" | "Celu" | "Swish" | "ThresholdedRelu" => vec![("alpha", f(0.3))],
        "HardSigmoid" => vec![("alpha", f(0.25)), ("beta", f(0.4))],
        "Gelu" => vec![("approximate", s("tanh"))],
        "Selu" => vec![("alpha", f(1.5)), ("gamma", f(1.1))],
        _ => vec![("lambd", f(0.7)), ("bias", f(0.2))],
    };
    let attrs = some(m, &attrs);
    done(m.op(name, &[Some(x)], &attrs))
}

fn arithmetic(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=5);
    let y = m.beside(x);
    let name = m.one(&["Add", "Add", "Sub", "Mul", "Mul", "Div", "PRelu"]);
    if name == "Div" {
        let divisor = m.filled(m.dtype(x), &[], 0.5, 3.0);
        let y = if m.chance(0.5) { m.constant(divisor) } else { m.within(0.2, 4.0)? };
        return if m.dtype(x) == m.dtype(y) && m.at(y).len() == 1 {
            done(m.op(name, &[Some(x), Some(y)], &[]))
        } else {
            None
        };
    }
    let turned = name != "PRelu" && m.chance(0.4);
    let operands = if turned { [Some(y), Some(x)] } else { [Some(x), Some(y)] };
    done(m.op(name, &operands, &[]))
}

fn power(m: &mut Maker) -> Option<()> {
    let x = m.within(0.2, 3.0)?;
    let exponent = m.one(&[2.0, 1.0, 0.5, 3.0, -1.0]);
    let y = if m.chance(0.2) { m.scalar(2) } else { m.number(DType::F32, exponent) };
    done(m.op("Pow", &[Some(x), Some(y)], &[]))
}

fn variadic(m: &mut Maker) -> Option<()> {
    let name = m.one(&["Sum", "Mean", "Max", "Min"]);
    let x = if matches!(name, "Max" | "Min") && m.chance(0.3) { m.exact(DType::I64, 0..=3) } else { m.float(0..=4) };
    let n = m.size(0, 2);
    let operands: Vec<Option<V>> = (0..=n).map(|k| Some(if k == 0 { x } else { m.beside(x) })).collect();
    done(m.op(name, &operands, &[]))
}

fn clip(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=5);
    let dtype = m.dtype(x);
    let (low, high) = m.one(&[(0.0, 6.0), (-1.0, 1.0), (0.0, 1.0), (-2.0, 0.5)]);
    let bound = |m: &mut Maker, v: f32| m.chance(0.8).then(|| m.shared(Tensor::floats(dtype, &[], &[v])));
    let operands = [Some(x), bound(m, low), bound(m, high)];
    done(m.op("Clip", &operands, &[]))
}

fn swiglu(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 1..=4);
    let shape = m.shape(x);
    let y = m.weight(DType::F32, &shape);
    let attrs = some(m, &[("alpha", f(1.2))]);
    done(m.op("SwiGLU", &[Some(x), Some(y)], &attrs))
}

/// `x * Sigmoid(x)` and its kind.
fn gated(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=4);
    let name = m.one(&["Sigmoid", "HardSigmoid", "Tanh", "Relu"]);
    let gate = m.op(name, &[Some(x)], &[])?;
    done(m.op("Mul", &[Some(x), Some(gate)], &[]))
}

/// There, and back now and then.
fn cast_float(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=4);
    let to = m.one(&[DType::F16, DType::F64, DType::BF16, DType::F32, DType::F64]);
    let y = m.op("Cast", &[Some(x)], &[("to", i(to as i64))])?;
    if m.chance(0.5) {
        let back = m.dtype(x) as i64;
        m.op("Cast", &[Some(y)], &[("to", i(back))])?;
    }
    Some(())
}

/// Casts of integers, one after another.
fn casts(m: &mut Maker) -> Option<()> {
    let mut x = m.exact(DType::I64, 0..=3);
    for _ in 0..2 {
        let to = m.one(&[DType::I32, DType::F32, DType::I64, DType::F64, DType::Bool, DType::I8]);
        x = m.op("Cast", &[Some(x)], &[("to", i(to as i64))])?;
    }
    Some(())
}

fn reduce(m: &mut Maker) -> Option<()> {
    let names = [
        "ReduceMean",
        "ReduceMean",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
        "ReduceLogSum",
    ];
    let name = m.one(&names);
    let x = match name {
        "ReduceLogSum" => m.within(0.1, 3.0)?,
        "ReduceSum" | "ReduceMax" if m.chance(0.2) => m.exact(DType::I64, 1..=3),
        _ => m.float(1..=5),
    };
    let rank = m.rank(x);
    let n = m.size(1, rank.max(1));
    let axes: Vec<i64> =
        m.order(rank).into_iter().take(n).map(|a| if m.chance(0.3) { a - rank as i64 } else { a }).collect();
    let axes = (m.chance(0.8) && rank > 0).then(|| m.ints(&axes));
    let attrs = some(m, &[("keepdims", i(0)), ("noop_with_empty_axes", i(1))]);
    let y = m.op(name, &[Some(x), axes], &attrs)?;
    let kept = m.rank(y) == rank;
    match axes {
        Some(axes) if m.chance(0.3) => {
            let back = if kept { "Squeeze" } else { "Unsqueeze" };
            done(m.op(back, &[Some(y), Some(axes)], &[]))
        }
        _ => Some(()),
    }
}

fn softmax(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=4);
    let axis = m.axis(m.rank(x));
    let name = m.one(&["Softmax", "Softmax", "LogSoftmax"]);
    let attrs = some(m, &[("axis", i(axis))]);
    done(m.op(name, &[Some(x)], &attrs))
}

fn hard(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 1..=4);
    let axis = m.axis(m.rank(x));
    done(m.op("Hardmax", &[Some(x)], &[("axis", i(axis))]))
}

fn cumulative(m: &mut Maker) -> Option<()> {
    let name = m.one(&["CumSum", "CumProd"]);
    let x = if name == "CumProd" { m.within(0.3, 1.6)? } else { m.of(DType::F32, 1..=3) };
    if m.rank(x) == 0 {
        return None;
    }
    let axis = m.axis(m.rank(x));
    let axis = m.scalar(axis);
    let attrs = some(m, &[("exclusive", i(1)), ("reverse", i(1))]);
    done(m.op(name, &[Some(x), Some(axis)], &attrs))
}

fn mean_variance(m: &mut Maker) -> Option<()> {
    let x = m.x(4);
    done(m.op("MeanVarianceNormalization", &[Some(x)], &[]))
}

fn lp_norm(m: &mut Maker) -> Option<()> {
    let x = m.within(0.2, 4.0)?;
    if m.rank(x) == 0 {
        return None;
    }
    let (axis, p) = (m.axis(m.rank(x)), m.int(1, 2));
    done(m.op("LpNormalization", &[Some(x)], &[("axis", i(axis)), ("p", i(p))]))
}

fn integers(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::I64, 0..=3);
    let y = m.beside(x);
    let name = m.one(&["Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign"]);
    let operands = [Some(x), Some(y)];
    let n = if matches!(name, "Neg" | "Abs" | "Sign") { 1 } else { 2 };
    done(m.op(name, &operands[..n], &[]))
}

fn rounding(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 0..=4);
    let name = m.one(&["Floor", "Ceil", "Round", "Sign"]);
    done(m.op(name, &[Some(x)], &[]))
}

fn truth(m: &mut Maker) -> Option<V> {
    let x = m.exact(DType::Bool, 0..=4);
    Some(x)
}

fn logical(m: &mut Maker) -> Option<()> {
    let x = truth(m)?;
    let y = m.beside(x);
    let name = m.one(&["And", "Or", "Xor", "Not", "Equal"]);
    let operands = [Some(x), Some(y)];
    done(m.op(name, &operands[..if name == "Not" { 1 } else { 2 }], &[]))
}

fn comparing(m: &mut Maker) -> Option<()> {
    let dtype = m.one(&[DType::F32, DType::I64]);
    let x = m.exact(dtype, 0..=4);
    let same = m.shape(x);
    let y = m.source(dtype, &same);
    let name = m.one(&["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]);
    done(m.op(name, &[Some(x), Some(y)], &[]))
}

fn questions(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 0..=3);
    let odd = Tensor::f32(&[3], &[f32::NAN, f32::INFINITY, -0.0]);
    let x = if m.chance(0.3) { m.constant(odd) } else { x };
    let name = m.one(&["IsNaN", "IsInf"]);
    let attrs = if name == "IsInf" { some(m, &[("detect_negative", i(0))]) } else { vec![] };
    done(m.op(name, &[Some(x)], &attrs))
}

fn modulo(m: &mut Maker) -> Option<()> {
    let float = m.chance(0.4);
    let x = m.exact(if float { DType::F32 } else { DType::I64 }, 0..=3);
    let divisor = m.int(2, 4);
    let y = if float { m.number(DType::F32, divisor as f32) } else { m.scalar(divisor) };
    if m.chance(0.3) && !float {
        return done(m.op("Div", &[Some(x), Some(y)], &[]));
    }
    done(m.op("Mod", &[Some(x), Some(y)], &if float { vec![("fmod", i(1))] } else { vec![] }))
}

fn bits(m: &mut Maker) -> Option<()> {
    let name = m.one(&["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"]);
    let dtype = if name == "BitShift" { DType::U8 } else { m.one(&[DType::I64, DType::I32, DType::U8]) };
    let x = m.exact(dtype, 0..=3);
    let few = m.filled(dtype, &[], 0.0, 5.0);
    let y = m.constant(few);
    let direction = m.one(&["LEFT", "RIGHT"]);
    let attrs = if name == "BitShift" { vec![("direction", s(direction))] } else { vec![] };
    done(m.op(name, &[Some(x), Some(y)], &attrs))
}

fn bit_not(m: &mut Maker) -> Option<()> {
    let dtype = m.one(&[DType::I64, DType::I32, DType::U8]);
    let x = m.exact(dtype, 0..=3);
    done(m.op("BitwiseNot", &[Some(x)], &[]))
}

fn selecting(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=4);
    let (shape, rank) = (m.shape(x), m.rank(x));
    let shape = if m.chance(0.5) { shape } else { shape[m.size(0, rank)..].to_vec() };
    let condition = m.source(DType::Bool, &shape);
    let y = m.beside(x);
    done(m.op("Where", &[Some(condition), Some(x), Some(y)], &[]))
}

fn cast_integer(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 0..=4);
    let to = m.one(&[DType::I64, DType::I32, DType::Bool, DType::I8]);
    done(m.op("Cast", &[Some(x)], &[("to", i(to as i64))]))
}

fn narrow_cast(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 0..=3);
    let to = m.one(&[DType::F8E4M3FN, DType::F8E5M2, DType::F16]);
    let y = m.op("Cast", &[Some(x)], &[("to", i(to as i64))])?;
    done(m.op("Cast", &[Some(y)], &[("to", i(DType::F32 as i64))]))
}

fn cast_like(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=3);
    let other = m.one(&[DType::F64, DType::F32, DType::F16]);
    let like = m.of(other, 0..=2);
    done(m.op("CastLike", &[Some(x), Some(like)], &[]))
}

fn bit_cast(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 0..=3);
    let bits = m.op("BitCast", &[Some(x)], &[("to", i(DType::I32 as i64))])?;
    done(m.op("BitCast", &[Some(bits)], &[("to", i(DType::F32 as i64))]))
}

fn arg(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 1..=4);
    let axis = m.axis(m.rank(x));
    let name = m.one(&["ArgMax", "ArgMin"]);
    let attrs = some(m, &[("axis", i(axis)), ("keepdims", i(0)), ("select_last_index", i(1))]);
    done(m.op(name, &[Some(x)], &attrs))
}

/// To integers and back.
fn quantized(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 1..=4);
    let (axis, rank) = (m.axis(m.rank(x)), m.rank(x) as i64);
    let at = if axis < 0 { axis + rank } else { axis } as usize;
    let shape = if m.chance(0.5) { vec![m.shape(x)[at]] } else { vec![] };
    let scale = m.filled(DType::F32, &shape, 0.1, 0.5);
    let to = m.one(&[DType::U8, DType::I8]);
    let zero = m.filled(to, &shape, 0.0, 3.0);
    let (scale, zero) = (m.constant(scale), m.constant(zero));
    let attrs = [("axis", i(axis))];
    let q = m.op("QuantizeLinear", &[Some(x), Some(scale), Some(zero)], &attrs)?;
    done(m.op("DequantizeLinear", &[Some(q), Some(scale), Some(zero)], &attrs))
}

fn dynamic_quantized(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 1..=3);
    m.ops("DynamicQuantizeLinear", &[Some(x)], &[], 3).map(drop)
}

fn loss(m: &mut Maker) -> Option<()> {
    let rank = m.size(2, 3);
    let x = m.x(rank);
    let mut shape = m.shape(x);
    let classes = shape.remove(1);
    let target = m.filled(DType::I64, &shape, 0.0, classes as f32 - 1.0);
    let target = m.input(target);
    let weights = m.filled(DType::F32, &[classes], 0.2, 2.0);
    let weights = m.chance(0.4).then(|| m.constant(weights));
    let reduction = m.one(&["none", "mean", "sum"]);
    let name = m.one(&["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]);
    let n = if name.starts_with('S') { m.size(1, 2) } else { 1 };
    m.ops(name, &[Some(x), Some(target), weights], &[("reduction", s(reduction))], n).map(drop)
}

fn identity(m: &mut Maker) -> Option<()> {
    let n = m.size(1, 2);
    let mut x = m.pick(|_| true)?;
    for _ in 0..n {
        x = m.op("Identity", &[Some(x)], &[])?;
    }
    Some(())
}

fn dropout(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=4);
    let ratio = m.maybe_weight(0.4, DType::F32, &[]);
    let train = (ratio.is_some() && m.chance(0.3)).then(|| m.shared(Tensor::ints(DType::Bool, &[], &[0])));
    let n = m.size(1, 2);
    m.ops("Dropout", &[Some(x), ratio, train], &[], n).map(drop)
}
