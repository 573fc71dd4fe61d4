//! Operator set and IR versions.

use crate::{
    error::{Error, Result},
    graph::Graph,
    narrow::is_narrow,
    node::NodeId,
    op::{Op, Operator},
    tensor::DType,
};
use onnx_protobuf::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

/// The newest version of the default operator set that we read.
pub const NEWEST: i64 = 28;

/// A version that every runtime knows.
const USUAL: i64 = 13;

/// The domain of ONNX Runtime's own operators, of which there is one version.
pub const MICROSOFT: &str = "com.microsoft";

/// An `opset_import` entry.
pub fn import(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.into(), version, ..Default::default() }
}

/// Whether `domain` names the default operator set.
pub fn is_default(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// The name by which our table of operators knows a node's: outside of the default domain, of
/// which we know little, with the domain in front.
pub fn operator_name(node: &NodeProto) -> Option<String> {
    match &node.domain[..] {
        domain if is_default(domain) => Some(node.op_type.clone()),
        "ai.onnx.preview" => Some(format!("{}.{}", node.domain, node.op_type)),
        MICROSOFT if matches!(&node.op_type[..], "DynamicQuantizeLSTM" | "GroupQueryAttention") => {
            Some(format!("{}.{}", node.domain, node.op_type))
        }
        _ => None,
    }
}

/// Why an operator that our table of operators can't know is not understood.
pub fn unknown(node: &NodeProto) -> Error {
    let name = format!("operator {}::{}", node.domain, node.op_type);
    Error::unsupported(match &node.domain[..] {
        "com.microsoft.nchwc" => format!(
            "{name}: a layout of the machine that ONNX Runtime optimised it on; optimise at level extended, not all"
        ),
        _ => name,
    })
}

/// The imported version of the default operator set.
pub fn default_domain(imports: &[OperatorSetIdProto]) -> Option<i64> {
    versions(imports).next()
}

/// Every imported version of the default operator set: a set has two names.
fn versions(imports: &[OperatorSetIdProto]) -> impl Iterator<Item = i64> {
    imports.iter().filter(|i| is_default(&i.domain)).map(|i| i.version)
}

/// The version of the default operator set that `model` imports, whose graph is `graph`. A model
/// that needs none, as all its operators are others', is given one for what passes put in.
///
/// # Errors
/// Malformed when there is none, or more than one, or one that does not exist.
pub fn imported(model: &mut ModelProto, graph: &GraphProto) -> Result<i64> {
    if default_domain(&model.opset_import).is_none() && !model.opset_import.is_empty() && !needs_default(graph) {
        let fits = (1..=USUAL).rev().find(|v| ir_version(*v) <= model.ir_version);
        model.opset_import.push(import("", fits.unwrap_or(1)));
    }
    let version = default_domain(&model.opset_import)
        .ok_or_else(|| Error::malformed("the file imports no version of the default operator set"))?;
    if let Some(other) = versions(&model.opset_import).find(|v| *v != version) {
        return Err(Error::malformed(format!("the file imports the opsets {version} and {other}")));
    }
    if !(1..=NEWEST).contains(&version) {
        return Err(Error::malformed(format!("opset {version}; versions 1 to {NEWEST} exist")));
    }
    Ok(version)
}

/// Whether a graph has an operator of the default set, also inside others.
fn needs_default(graph: &GraphProto) -> bool {
    graph.node.iter().any(|n| is_default(&n.domain) || subgraphs(n).any(needs_default))
}

/// The IR version that came with `opset` (ONNX's table of releases); files must have at least it.
pub fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=8 => 3,
        9 => 4,
        10 => 5,
        11 => 6,
        12..=14 => 7,
        15..=18 => 8,
        19..=20 => 9,
        21..=22 => 10,
        23 => 11,
        24 => 12,
        25..=27 => 13,
        _ => 14,
    }
}

/// Operators whose older form means something else, or nothing, from an opset on.
const CHANGED: &[(&str, i64)] = &[
    ("BatchNormalization", 9),
    ("Scan", 9),
    ("Upsample", 9),
    ("Slice", 10),
    ("Upsample", 10),
    ("TopK", 10),
    ("TopK", 11),
    ("Pad", 11),
    ("Clip", 11),
    ("Scatter", 11),
    ("Resize", 11),
    ("Dropout", 12),
    ("Softmax", 13),
    ("LogSoftmax", 13),
    ("Hardmax", 13),
    ("Squeeze", 13),
    ("Unsqueeze", 13),
    ("ReduceSum", 13),
    ("Split", 13),
    ("BatchNormalization", 14),
    ("Split", 18),
    ("ReduceL1", 18),
    ("ReduceL2", 18),
    ("ReduceLogSum", 18),
    ("ReduceLogSumExp", 18),
    ("ReduceMax", 18),
    ("ReduceMean", 18),
    ("ReduceMin", 18),
    ("ReduceProd", 18),
    ("ReduceSumSquare", 18),
    ("DFT", 20),
    ("GridSample", 20),
    ("GroupNormalization", 21),
];

/// The lowest opset, `from` or above, that has every operator of `graph` as it is used.
///
/// # Errors
/// Unsupported when there is none, naming an operator that needs a newer opset, and one that is not in it.
pub fn lowest(graph: &Graph, from: i64) -> Result<i64> {
    let graphs = graph.and_bodies();
    let mut to = from;
    let mut why = format!("the model is of opset {from}");
    for (g, n) in graphs.iter().flat_map(|g| g.operators().map(move |n| (g, n))) {
        let since = g.op(n).since().max(since_types(g, n));
        if since > to {
            to = since;
            why = format!("{} needs opset {since}", g.node(n).label());
        }
    }
    for (g, n) in graphs.iter().flat_map(|g| g.operators().map(move |n| (g, n))) {
        let checked = match g.op(n) {
            Op::Opaque(op) => check_raise(&op.proto, op.opset, to),
            op => match op.until().filter(|last| *last < to) {
                Some(last) => {
                    let message = format!("this form of the operator ends with opset {last}");
                    Err(Error::unsupported(message).at(g.node(n).label()))
                }
                None => Ok(()),
            },
        };
        checked.map_err(|e| e.about(&why).help("export the model at a newer opset"))?;
    }
    Ok(to)
}

/// The opset from which on an operator takes the types that it has here.
fn since_types(g: &Graph, n: NodeId) -> i64 {
    let dtype = match g.op(n) {
        Op::Quantize(_) | Op::Clip(_) => g.fact(n.into()).dtype,
        Op::Dequantize(_) => g.operand(n, 0).and_then(|p| g.fact(p).dtype),
        _ => None,
    };
    match (g.op(n), dtype) {
        (Op::Clip(_), Some(DType::I64 | DType::I32 | DType::U64 | DType::I8 | DType::U8)) => 12,
        (Op::Quantize(_) | Op::Dequantize(_), Some(dtype)) if is_narrow(dtype) && dtype.bits() == 8 => 19,
        (Op::Quantize(_) | Op::Dequantize(_), Some(DType::U16 | DType::I16 | DType::U4 | DType::I4)) => 21,
        _ => 1,
    }
}

/// Checks that a node kept byte for byte means the same at opset `to` as at `from`.
///
/// # Errors
/// Unsupported, naming the operator.
fn check_raise(node: &NodeProto, from: i64, to: i64) -> Result<()> {
    // Most operators changed with opset 7, and what is understood here is not kept as it is.
    let old = (from < 7 && to >= 7).then_some(7);
    let changed =
        || CHANGED.iter().find(|(n, at)| *n == node.op_type && (from + 1..=to).contains(at)).map(|(_, at)| *at);
    if is_default(&node.domain)
        && let Some(at) = old.or_else(changed)
    {
        return Err(Error::unsupported(format!(
            "operator {} of opset {from} is kept as it is, but changed in opset {at}",
            node.op_type
        ))
        .at(format!(
            "`{}` ({})",
            if node.name.is_empty() { node.output.first().map_or("", |o| o) } else { &node.name },
            node.op_type
        )));
    }
    subgraphs(node).flat_map(|g| &g.node).try_for_each(|n| check_raise(n, from, to))
}

/// The subgraphs in a node's attributes.
pub fn subgraphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs))
}
