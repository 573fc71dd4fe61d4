//! Softmax, which exporters from JAX and TensorFlow write as arithmetic.

use super::{beside_number, shared};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{
        binary::Binary,
        reduce::{Reduce, ReduceKind},
        softmax::{Softmax, SoftmaxKind},
        unary::Unary,
    },
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
};

/// `exp(x - m) / sum(exp(x - m))` is one Softmax, whatever `m` is (as a rule the largest of the row), if it is the same along the axis.
pub(super) struct FindSoftmax {
    /// The newest opset that the model can move to.
    pub(super) newest: i64,
}

impl Rule for FindSoftmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Div"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some((x, exp, axis)) = find(graph, node) else { return Ok(Verdict::No) };
        if self.newest < 13 {
            return Ok(Verdict::Skip("the model can't move to opset 13, whose Softmax is along one axis".into()));
        }
        // The sum and the quotient.
        if graph.uses(exp).len() != 2 || graph.is_output(exp) {
            return Ok(shared(graph, exp));
        }
        if let Some(sum) = graph.operand(node, 1).filter(|sum| graph.only_use(*sum).is_none()) {
            return Ok(shared(graph, sum));
        }
        let mut edit = Edit::new();
        let op = Softmax { kind: SoftmaxKind::Soft, axis, coerced: false };
        let softmax = edit.node(&graph.node(node).name, op, &[Some(x.into())]);
        edit.replace(node.into(), softmax);
        Ok(Verdict::Apply(edit))
    }
}

/// What a Div is the Softmax of, the exponential, and the axis from the end.
fn find(graph: &Graph, node: NodeId) -> Option<(Port, Port, i64)> {
    let (exp, sum) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
    let Op::Unary(Unary::Exp) = graph.op(exp.node) else { return None };
    let axis = summed(graph, exp, sum)?;
    let power = graph.operand(exp.node, 0)?;
    let rank = graph.fact(power).rank()? as i64;
    let x = match graph.op(power.node) {
        Op::Binary(Binary::Sub) => {
            let (x, m) = (graph.operand(power.node, 0)?, graph.operand(power.node, 1)?);
            let along = |port: Port| graph.fact(port).dims()?.iter().rev().nth((rank - 1 - axis) as usize).cloned();
            let is_same = graph.fact(m).rank()? as i64 <= rank && along(m).is_none_or(|d| d.known() == Some(1));
            let keeps_shape = graph.fact(power).has_shape_of(graph.fact(x)) || is_column(graph, m, x, axis);
            if is_same && keeps_shape { x } else { power }
        }
        _ => power,
    };
    Some((x, exp, axis - rank))
}

/// The only axis along which `sum` is the sum of `exp`, which stays, counted from the front.
fn summed(graph: &Graph, exp: Port, sum: Port) -> Option<i64> {
    let Op::Reduce(op @ Reduce { kind: ReduceKind::Sum, keepdims: true, .. }) = graph.op(sum.node) else { return None };
    let axes = graph.constant(graph.operand(sum.node, 1)?)?.as_i64()?;
    let axes = op.axes(Some(&axes), graph.fact(exp).rank()?).ok()?;
    match axes[..] {
        [axis] if graph.operand(sum.node, 0) == Some(exp) => Some(axis as i64),
        _ => None,
    }
}

/// Operators between a row and its largest element.
const STEPS: usize = 4;

/// Whether `m` is made of a reduction of the rows of a matrix `x`, and of one number for each as `axis` is of size 1 in it: where shapes
/// are not known, a column of as many.
fn is_column(graph: &Graph, mut m: Port, x: Port, axis: i64) -> bool {
    if graph.fact(x).rank() != Some(2) || axis != 1 || graph.fact(m).rank() != Some(2) {
        return false;
    }
    for _ in 0..STEPS {
        let operands = graph.operands(m.node).into_iter().flatten();
        let computed: Vec<Port> = operands.filter(|p| graph.constant(*p).is_none()).collect();
        match (graph.op(m.node), &computed[..]) {
            (Op::Reduce(op), [of]) if *of == x => {
                let axes = graph.operand(m.node, 1).and_then(|p| graph.constant(p)?.as_i64());
                return axes.and_then(|axes| op.axes(Some(&axes), 2).ok()).is_some_and(|axes| axes == [1]);
            }
            (Op::Reduce(_), _) => return false,
            (op, [only]) if op.reshapes() => m = *only,
            (Op::Binary(Binary::Max), [only]) if beside_number(graph, m.node).is_some() => m = *only,
            _ => return false,
        }
    }
    false
}
