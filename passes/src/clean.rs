//! Pass "clean": removes what changes nothing, what is computed twice, and what nobody reads.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{binary::Binary, control::Body},
    pass::{Context, Outcome, Pass},
    rewrite::{Edit, Rule, Verdict, remove_dead, rewrite},
    tensor::{DType, Tensor, is_tiny},
    value::Fact,
};
use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
};

/// The pass "clean".
#[derive(Debug)]
pub struct Clean;

impl Pass for Clean {
    fn name(&self) -> &'static str {
        "clean"
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let unread = remove_unread(graph)?;
        let mut done = rewrite(graph, &[Box::new(NoOp)], cx)?;
        done.edits += unread + merge_equal(graph, cx)?;
        let flushed = flush_tiny(graph, cx);
        if flushed > 0 {
            done.edits += 1;
            done.warnings.push(format!(
                "{flushed} weights below 1e-30 were set to zero: they change no output, and processors compute with such \
                 numbers, or with the denormal products of them, many times more slowly"
            ));
        }
        Ok(done)
    }
}

/// Sets [tiny](compress_compiler::tensor::TINY) weights of layers to zero, and says how many: training with weight decay leaves them behind.
fn flush_tiny(graph: &mut Graph, cx: &Context) -> usize {
    let weights: BTreeSet<NodeId> = graph
        .operators()
        .filter_map(|n| graph.operand(n, graph.op(n).weight()?.slot))
        .filter(|p| graph.constant(*p).is_some_and(|t| t.tiny() > 0))
        .map(|p| p.node)
        .collect();
    let mut flushed = 0;
    for node in weights {
        let Some(values) =
            graph.constant(node.into()).and_then(|t| Some((t.shape().to_vec(), t.as_f32()?.into_owned())))
        else {
            continue;
        };
        if !cx.edits.allow("flush tiny", || graph.node(node).label()) {
            continue;
        }
        let (shape, mut values) = values;
        for v in values.iter_mut().filter(|v| is_tiny(**v)) {
            *v = 0.0;
            flushed += 1;
        }
        graph.set_constant(node, Tensor::f32(&shape, &values));
    }
    flushed
}

/// Removes what no output depends on.
fn remove_unread(graph: &mut Graph) -> Result<usize> {
    let order = graph.topological()?;
    let dead: Vec<NodeId> = order.into_iter().filter(|n| graph.is_dead(*n)).collect();
    for n in &dead {
        remove_dead(graph, *n);
    }
    Ok(dead.len())
}

/// Lets later nodes that compute the same as an earlier one step aside for it.
fn merge_equal(graph: &mut Graph, cx: &Context) -> Result<usize> {
    let mut seen: HashMap<u64, Vec<NodeId>> = HashMap::new();
    let mut edits = 0;
    for n in graph.topological()? {
        cx.check()?;
        if matches!(graph.op(n), Op::Input(_)) || by_chance(graph.op(n)) {
            continue;
        }
        let same = seen.entry(hash(graph, n)).or_default();
        let Some(first) = same.iter().copied().find(|m| equal(graph, *m, n)) else {
            same.push(n);
            continue;
        };
        if !cx.edits.allow("merge equal", || graph.node(n).label()) {
            continue;
        }
        for slot in 0..graph.node(n).outputs.len() {
            graph.redirect(Port { node: n, slot }, Port { node: first, slot }, &[]);
        }
        remove_dead(graph, n);
        edits += 1;
    }
    Ok(edits)
}

/// Whether an operator may make something else each time: training's Dropout, and what nobody knows.
fn by_chance(op: &Op) -> bool {
    let inside = |b: &&Body| b.graph().operators().any(|n| by_chance(b.graph().op(n)));
    op.is_random() || op.bodies().iter().any(inside)
}

/// Equal nodes hash alike. Attributes and most of a large weight are left to the comparison.
fn hash(graph: &Graph, n: NodeId) -> u64 {
    let mut h = DefaultHasher::new();
    match graph.op(n) {
        Op::Constant(c) => {
            (c.0.dtype(), c.0.shape(), sample(c.0.bytes())).hash(&mut h);
            // With what was looked at much around it came into memory.
            if c.0.bytes().len() >= LARGE {
                c.0.release();
            }
        }
        op => (op.op_type(), graph.operands(n)).hash(&mut h),
    }
    h.finish()
}

/// Bytes of a weight that is not left in memory.
const LARGE: usize = 64 << 20;

/// A few bytes from all over.
fn sample(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.chunks((bytes.len() / 32).max(64)).map(|c| &c[..c.len().min(64)]).collect()
}

fn equal(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    if let (Op::Constant(a), Op::Constant(b)) = (graph.op(a), graph.op(b))
        && a.0.storage().digest() != b.0.storage().digest()
    {
        // Found once for each, however many weights look alike at first sight.
        return false;
    }
    let unnamed = |n| graph.node(n).outputs.iter().map(|v| v.name.is_empty()).collect::<Vec<_>>();
    graph.op(a) == graph.op(b) && graph.operands(a) == graph.operands(b) && unnamed(a) == unnamed(b)
}

/// Nodes of any operator whose first output surely is one of their operands.
struct NoOp;

impl Rule for NoOp {
    fn name(&self) -> &'static str {
        "no-op"
    }

    fn roots(&self) -> &'static [&'static str] {
        &[]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(match unchanged(graph, node) {
            Some(operand) => Verdict::Apply(Edit::swap(node.into(), operand)),
            None => Verdict::No,
        })
    }
}

/// The operand that `node` hands on as it is, if that is certain.
fn unchanged(graph: &Graph, node: NodeId) -> Option<Port> {
    let operands = graph.operands(node);
    let x = operands.first().copied().flatten()?;
    let (from, to) = (graph.fact(x), graph.fact(node.into()));
    if matches!(graph.op(x.node), Op::Input(_)) && says_more(to, from) {
        // An input stays as it is declared, so what the file says of the copy would be lost.
        return None;
    }
    if let Op::Binary(b) = graph.op(node) {
        return neutral(graph, *b, &operands, to);
    }
    let alone = (1..graph.node(node).outputs.len()).all(|slot| !graph.is_read(Port { node, slot }));
    (alone && graph.is_unchanged(node)).then_some(x)
}

/// Whether something is known of `a` that isn't of `b`.
fn says_more(a: &Fact, b: &Fact) -> bool {
    b.clone().refined(a).is_ok_and(|both| both != *b)
}

/// The operand of an elementwise operator whose other operand is its neutral element.
fn neutral(graph: &Graph, op: Binary, operands: &[Option<Port>], to: &Fact) -> Option<Port> {
    let &[Some(a), Some(b)] = operands else { return None };
    let one = match op {
        Binary::Add | Binary::Sub => false,
        Binary::Mul | Binary::Div | Binary::Pow => true,
        _ => return None,
    };
    let swapped = op.commutes().then_some((b, a));
    [Some((a, b)), swapped].into_iter().flatten().find_map(|(x, other)| {
        let t = graph.constant(other)?;
        // A single element never changes the shape of what has as many axes.
        let single = t.len() == 1 && graph.fact(x).rank().unwrap_or(0) >= t.shape().len();
        let kept = (single || graph.fact(x).has_shape_of(to)) && graph.fact(x).dtype == to.dtype;
        (kept && filled_with(t, one)).then_some(x)
    })
}

/// Whether every element is 1, or every element is 0.
fn filled_with(t: &Tensor, one: bool) -> bool {
    let value = match t.dtype() {
        DType::Bool | DType::String => return false,
        d if d.is_float() => Tensor::floats(d, &[], &[one.into()]),
        d => Tensor::ints(d, &[], &[one.into()]),
    };
    t.bytes().chunks_exact(value.bytes().len()).all(|c| c == value.bytes())
}
