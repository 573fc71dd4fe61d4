//! A one-hot encoding times a matrix takes rows of the matrix.

use super::{ints, shared, succeed};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, clip::Clip, gather::Gather, squeeze::Squeeze},
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::{DType, Tensor},
    value::Dim,
};

/// `MatMul(Cast(Equal(x, [0, 1, .., n - 1])), W)` is `Gather(W, x)`: how exporters from JAX write an embedding. No class of an
/// index beyond the classes is hot, which makes a row of zeros: that is put behind the rows of W, where the index n and the
/// index -1 find it.
pub(super) struct OneHotProduct {
    /// The newest opset that the model can move to.
    pub(super) newest: i64,
}

/// The first opset whose Clip takes integers.
const CLIPS_INTEGERS: i64 = 12;

impl Rule for OneHotProduct {
    fn name(&self) -> &'static str {
        "one-hot-product"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["MatMul"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(found) = find(graph, node) else { return Ok(Verdict::No) };
        if self.newest < CLIPS_INTEGERS {
            return Ok(Verdict::Skip("the model can't move to opset 12, whose Clip takes integers".into()));
        }
        if let Some(read) = found.between.into_iter().find(|p| graph.only_use(*p).is_none()) {
            return Ok(shared(graph, read));
        }
        let mut edit = Edit::new();
        let last = edit.constant("last_axis", Tensor::i64s(&[-1]));
        let index = edit.node(&graph.node(found.between[0].node).name, Squeeze, &[Some(found.x.into()), Some(last)]);
        let [low, high] = [("before", -1), ("behind", found.classes as i64)]
            .map(|(name, bound)| edit.constant(name, Tensor::ints(found.dtype, &[], &[bound])));
        let clipped = edit.node(&graph.node(found.between[1].node).name, Clip, &[Some(index), Some(low), Some(high)]);
        let table = succeed(graph, &mut edit, found.weight, found.table);
        let gather = edit.node(&graph.node(node).name, Gather { axis: 0 }, &[Some(table), Some(clipped)]);
        edit.replace(node.into(), gather);
        Ok(Verdict::Apply(edit))
    }
}

/// What a one-hot product is made of.
struct Found {
    /// The indices, whose last axis has one entry.
    x: Port,
    dtype: DType,
    classes: usize,
    /// What the Equal and the Cast make.
    between: [Port; 2],
    weight: Port,
    /// The rows of the weight, and one of zeros.
    table: Tensor,
}

fn find(graph: &Graph, node: NodeId) -> Option<Found> {
    let (hot, weight) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
    let (Op::MatMul(_), Op::Cast(_)) = (graph.op(node), graph.op(hot.node)) else { return None };
    let equal = graph.operand(hot.node, 0)?;
    let Op::Binary(Binary::Equal) = graph.op(equal.node) else { return None };
    let (a, b) = (graph.operand(equal.node, 0)?, graph.operand(equal.node, 1)?);
    let (x, of) = if graph.constant(b).is_some() { (a, b) } else { (b, a) };
    let classes = graph.constant(of)?;
    let [before @ .., n] = classes.shape() else { return None };
    let dims = graph.fact(x).dims()?;
    let dtype = graph.fact(x).dtype.filter(|t| matches!(t, DType::I32 | DType::I64))?;
    let in_order = ints(graph, of)?.into_iter().eq(0..*n as i64);
    let by_class = before.iter().all(|n| *n == 1) && classes.shape().len() <= dims.len();
    if !in_order || !by_class || dims.last() != Some(&Dim::Known(1)) || *n < 2 {
        return None;
    }
    let matrix = graph.constant(weight).filter(|t| t.dtype() == DType::F32 && t.shape().len() == 2)?;
    let values = matrix.as_f32()?;
    // Zeros times what is not finite are not zeros.
    if matrix.shape()[0] != *n || values.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let columns = matrix.shape()[1];
    let table = Tensor::f32(&[n + 1, columns], &[&values[..], &vec![0.0; columns]].concat());
    Some(Found { x, dtype, classes: *n, between: [equal, hot], weight, table })
}
