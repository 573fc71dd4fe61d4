//! Two constants that one value meets in a row are one.

use super::{layer::widened, shared, succeed};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::binary::Binary,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::Tensor,
};

/// `x * a * b` is `x * (a * b)`, `x + a - b` is `x + (a - b)`, and so on, where the result
/// takes no more room than one of the constants.
pub(super) struct ConstantPair;

impl Rule for ConstantPair {
    fn name(&self) -> &'static str {
        "constant-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Add", "Sub", "Mul", "Div"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(fuse(graph, node).unwrap_or(Verdict::No))
    }
}

fn fuse(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let outer = Step::new(graph, node)?;
    let inner = Step::new(graph, outer.x.node)?;
    if outer.op != inner.op {
        return None;
    }
    let (a, b) = (widened(inner.constant)?, widened(outer.constant)?);
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let (many, one) = (inner.constant.shape(), outer.constant.shape());
    let shape = match (many, one) {
        _ if many == one => many,
        _ if b.len() == 1 && one.len() <= many.len() => many,
        _ if a.len() == 1 && many.len() <= one.len() => one,
        _ => return None,
    };
    if graph.only_use(outer.x).is_none() {
        return Some(shared(graph, outer.x));
    }
    let joined: Vec<f32> = (0..a.len().max(b.len()))
        .map(|i| {
            let (a, b) = (a[i % a.len()], b[i % b.len()]);
            let joined = match outer.op {
                Binary::Add => inner.sign(a) + outer.sign(b),
                _ => inner.factor(a) * outer.factor(b),
            };
            joined as f32
        })
        .collect();
    if !joined.iter().all(|v| v.is_finite()) {
        return Some(Verdict::Skip("the joined constant would not be finite".into()));
    }
    let lost = match outer.op {
        Binary::Add => a.iter().chain(&b).any(|v| rounds(*v)),
        _ => joined.iter().any(|v| v.is_subnormal() || *v == 0.0) && !a.contains(&0.0) && !b.contains(&0.0),
    };
    if lost {
        return Some(Verdict::Skip("each constant rounds its other operand, which a single constant would not".into()));
    }
    let mut edit = Edit::new();
    let constant = succeed(graph, &mut edit, inner.port, Tensor::f32(shape, &joined));
    let fused = edit.node(&graph.node(node).name, outer.op, &[Some(inner.x.into()), Some(constant)]);
    edit.replace(node.into(), fused);
    Some(Verdict::Apply(edit))
}

/// Whether adding `v` rounds most of what it is added to: adding 1.5 * 2^23 and taking it away again is
/// how a float is rounded to a whole number.
pub(super) fn rounds(v: f64) -> bool {
    v.abs() >= 65536.0
}

/// A sum or product with a constant.
struct Step<'a> {
    /// Add or Mul.
    op: Binary,
    /// Whether the constant is subtracted or divided by.
    inverse: bool,
    x: Port,
    port: Port,
    constant: &'a Tensor,
}

impl<'a> Step<'a> {
    fn new(graph: &'a Graph, node: NodeId) -> Option<Self> {
        let &Op::Binary(op) = graph.op(node) else { return None };
        let (op, inverse) = match op {
            Binary::Add | Binary::Mul => (op, false),
            Binary::Sub => (Binary::Add, true),
            Binary::Div => (Binary::Mul, true),
            _ => return None,
        };
        let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
        match (graph.constant(a), graph.constant(b)) {
            (None, Some(constant)) => Some(Self { op, inverse, x: a, port: b, constant }),
            (Some(constant), None) if !inverse => Some(Self { op, inverse, x: b, port: a, constant }),
            _ => None,
        }
    }

    fn sign(&self, v: f64) -> f64 {
        if self.inverse { -v } else { v }
    }

    fn factor(&self, v: f64) -> f64 {
        if self.inverse { 1.0 / v } else { v }
    }
}
