//! What is known of a value while its graph grows: its elements, and how far they can be trusted.
//!
//! Rewriting may reorder floating-point sums, so a value that was computed may come out a little different.
//! Each such value has a shadow: the same, computed from the shadows of its operands and shaken a
//! little. Where the shadow strays, small differences grow, and a comparison would say nothing. Operators that make
//! a jump (rounding, comparing, choosing) take exact values only: inputs, constants, and what
//! moving, choosing and integer arithmetic make of those.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::Port,
    op::{Op, Operator},
    ops::source::Input,
    pass::Interpreter,
    tensor::{DType, Tensor},
    value::Fact,
    verify::verify,
};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A value's elements.
#[derive(Clone)]
pub struct Known {
    /// As they are.
    pub tensor: Tensor,
    /// As they may come out, too.
    pub shadow: Tensor,
    /// Whether no rewriting can change them.
    pub exact: bool,
}

/// Why an operator cannot be used on some operands.
pub enum Refusal {
    /// Its results would say nothing.
    Delicate,
    /// It is wrong: it fails, or panics, on legal operands.
    Wrong(String),
}

/// Results with more elements are not worth their time.
const LARGEST: usize = 20_000;

/// Elements whose differences matter: larger ones overflow soon.
const HUGE: f32 = 1e5;

/// Integers up to here are sums and products without rounding.
const COUNTABLE: f32 = 1e6;

/// Exact operands make exact results: elements are moved or chosen, and no rule does arithmetic with them.
const MOVING: &[&str] = &[
    "Identity",
    "Dropout",
    "Relu",
    "Neg",
    "Abs",
    "Max",
    "Min",
    "Clip",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Where",
    "Cast",
    "CastLike",
    "BitCast",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Concat",
    "Split",
    "Slice",
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterND",
    "ScatterElements",
    "TensorScatter",
    "OneHot",
    "EyeLike",
    "Trilu",
    "Tile",
    "Compress",
    "Unique",
    "TopK",
    "DepthToSpace",
    "SpaceToDepth",
    "CenterCropPad",
    "ReverseSequence",
    "Pad",
    "Expand",
    "ConstantOfShape",
    "Hardmax",
    "ReduceMax",
    "ReduceMin",
    "MaxPool",
    "GlobalMaxPool",
    "MaxUnpool",
    "DequantizeLinear",
];

/// Exact while all is integers.
const ARITHMETIC: &[&str] = &["Add", "Sub", "Mul", "Sum", "MatMul", "Gemm", "Conv", "ReduceSum", "CumSum"];

/// Whose floating-point results jump.
const JUMPING: &[&str] = &[
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Hardmax",
    "Shrink",
    "ThresholdedRelu",
    "Mod",
    "GridSample",
    "MaxRoiPool",
    "RoiAlign",
    "Range",
    "BitCast",
    "Unique",
    "DequantizeLinear",
];

/// Whose integer results don't depend on the elements.
const BLIND: &[&str] = &["Shape", "Size", "EyeLike", "ConstantOfShape", "Dropout"];

impl Known {
    /// An input or a constant.
    pub fn given(tensor: Tensor) -> Self {
        Self { shadow: tensor.clone(), tensor, exact: true }
    }

    /// Whether all elements are numbers, and none is huge.
    pub fn is_tame(&self) -> bool {
        self.tensor.all_f32(|v| v.abs() < HUGE).unwrap_or(true)
    }

    fn is_countable(&self) -> bool {
        self.tensor.all_f32(|v| v.abs() < COUNTABLE && v.fract() == 0.0).unwrap_or(true)
    }
}

/// How far apart two computations of one value may be, in parts of its largest element.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 3e-2,
        DType::BF16 => 1e-1,
        _ => 1e-4,
    }
}

/// The largest difference of two tensors in parts of the largest element, or what is wrong.
pub fn apart(a: &Tensor, b: &Tensor) -> std::result::Result<f64, String> {
    if (a.dtype(), a.shape()) != (b.dtype(), b.shape()) {
        return Err(format!("is {b:?} instead of {a:?}"));
    }
    let (Some(x), Some(y)) = (a.as_f32(), b.as_f32()) else {
        let first = a.bytes().iter().zip(b.bytes()).position(|(a, b)| a != b);
        return first
            .map_or(Ok(0.0), |i| Err(format!("differs from byte {i} on: {:?}, not {:?}", b.as_i64(), a.as_i64())));
    };
    let scale = x.iter().filter(|v| v.is_finite()).fold(1e-3f64, |m, v| m.max(f64::from(v.abs())));
    let mut largest = 0f64;
    for (x, y) in x.iter().zip(y.iter()) {
        if x == y || (x.is_nan() && y.is_nan()) {
            continue;
        }
        let d = (f64::from(*x) - f64::from(*y)).abs() / scale;
        if !d.is_finite() {
            return Err(format!("has {y} instead of {x}"));
        }
        largest = largest.max(d);
    }
    Ok(largest)
}

/// Runs one operator.
///
/// # Errors
/// What its kernel says.
pub fn evaluate(op: &Op, inputs: &[Option<Tensor>], outputs: usize) -> Result<Vec<Tensor>> {
    if op.bodies().is_empty() {
        let mut made = BurnInterpreter::cpu().eval(op, inputs)?;
        made.truncate(outputs);
        return Ok(made);
    }
    let mut g = Graph::new("one");
    let mut ports = vec![];
    for (i, t) in inputs.iter().enumerate() {
        ports.push(match t {
            Some(t) => {
                Some(Port::from(g.add_input(&format!("x{i}"), Fact::of(t), Op::Input(Input { default: None }))?))
            }
            None => None,
        });
    }
    let names: Vec<String> = (0..outputs).map(|i| format!("y{i}")).collect();
    let node = g.add_node("", op.clone(), &ports, &names.iter().map(|n| &n[..]).collect::<Vec<_>>())?;
    (0..outputs).for_each(|slot| g.add_output(&names[slot], Port { node, slot }));
    let given: Vec<Tensor> = inputs.iter().flatten().cloned().collect();
    Session::new(&verify(&g)?, &Backend::cpu(), &[])?.run(&given)
}

/// What `op` makes of its operands.
///
/// # Errors
/// See [`Refusal`].
pub fn apply(
    op: &Op,
    operands: &[Option<&Known>],
    outputs: usize,
    shake: &mut dyn FnMut() -> f32,
) -> std::result::Result<Vec<Known>, Refusal> {
    let name = op.op_type();
    let all_exact = operands.iter().flatten().all(|k| k.exact);
    let narrow = |t: &Tensor| t.dtype().is_float() && t.dtype().bits() < 16;
    if JUMPING.contains(&name) && !all_exact {
        return Err(Refusal::Delicate);
    }
    let run = |of: &dyn Fn(&Known) -> Tensor| -> std::result::Result<Vec<Tensor>, Refusal> {
        let inputs: Vec<Option<Tensor>> = operands.iter().map(|k| k.map(of)).collect();
        match catch_unwind(AssertUnwindSafe(|| evaluate(op, &inputs, outputs))) {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(e)) => Err(Refusal::Wrong(e.to_string())),
            Err(panic) => Err(Refusal::Wrong(format!("panicked: {}", message(&*panic)))),
        }
    };
    let now = run(&|k| k.tensor.clone())?;
    if now.iter().any(|t| t.len() > LARGEST) {
        return Err(Refusal::Delicate);
    }
    let jumps = now.iter().any(|t| !t.dtype().is_float() || narrow(t)) && !BLIND.contains(&name);
    if jumps && !all_exact {
        return Err(Refusal::Delicate);
    }
    let countable = ARITHMETIC.contains(&name) && operands.iter().flatten().all(|k| k.is_countable());
    let exact = all_exact && (MOVING.contains(&name) || countable || now.iter().all(|t| !t.dtype().is_float()));
    let mut known: Vec<Known> = now.into_iter().map(Known::given).collect();
    if exact && (MOVING.contains(&name) || known.iter().all(Known::is_countable)) {
        return Ok(known);
    }
    if !known.iter().all(Known::is_tame) {
        return Err(Refusal::Delicate);
    }
    for (k, mut shadow) in known.iter_mut().zip(run(&|k| k.shadow.clone())?) {
        if !k.tensor.dtype().is_float() {
            continue;
        }
        let dtype = k.tensor.dtype();
        if apart(&k.tensor, &shadow).is_err() {
            return Err(Refusal::Delicate);
        }
        let values = shadow.as_f32().unwrap_or_default();
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        // Short floats are not rounded between operators, so a whole step of theirs may come or go.
        let part = if dtype.bits() == 16 { 0.1 } else { 1e-2 };
        let step = largest * tolerance(dtype) as f32 * part;
        let values: Vec<f32> = values.iter().map(|v| v + step * shake()).collect();
        shadow = Tensor::floats(dtype, k.tensor.shape(), &values);
        if !apart(&k.tensor, &shadow).is_ok_and(|d| d < tolerance(dtype) * 0.2) {
            return Err(Refusal::Delicate);
        }
        (k.shadow, k.exact) = (shadow, false);
    }
    Ok(known)
}

/// The words of a panic.
pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}
