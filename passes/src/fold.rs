//! Pass "fold": computes what does not depend on the model's inputs.
//!
//! Three things become constants: operators over constants, run by the interpreter; integers
//! that follow from shapes, which inference already knows although the input of `Shape` is
//! no constant; and the target of a Reshape or Expand of which all but one size is known.
//! The last two end the chains of `Shape`, `Gather` and `Concat` that exporters leave behind.

use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{binary::Binary, reshape::Reshape},
    pass::{Context, Outcome, Pass, Skipped},
    rewrite::remove_dead,
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
};

/// Up to this size a result is worth having whatever it is made from, as long as there is room.
const SMALL: usize = 64 << 10;

/// By so much the constants of a graph may grow, and by a tenth. What computes them goes.
const ROOM: usize = 64 << 10;

/// The pass "fold".
#[derive(Debug)]
pub struct Fold;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        FoldWithin::of(graph).run(graph, cx)
    }
}

/// The pass "fold" with a limit for the bytes of all constants together, however often it runs.
#[derive(Debug)]
pub struct FoldWithin(usize);

impl FoldWithin {
    /// The limit for what becomes of `graph`.
    pub fn of(graph: &Graph) -> Self {
        let now = constants(graph);
        Self(now.saturating_add(now / 10).saturating_add(ROOM))
    }
}

/// The bytes of all constants.
fn constants(graph: &Graph) -> usize {
    graph.ids().filter_map(|n| graph.constant(n.into())).fold(0, |sum, t| sum.saturating_add(t.bytes().len()))
}

impl Pass for FoldWithin {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut done = Outcome::default();
        let mut room = Room { left: self.0.saturating_sub(constants(graph)), made: HashMap::new() };
        for n in graph.topological()? {
            // What was folded before may have taken this node along, or reused its id.
            if !graph.contains(n) || matches!(graph.op(n), Op::Input(_) | Op::Constant(_)) {
                continue;
            }
            cx.check()?;
            // What was folded before sharpens what is known here.
            graph.infer(n)?;
            if keeps(graph.op(n)) {
                continue;
            }
            done.edits += known_elements(graph, n, cx);
            if !graph.contains(n) {
                continue;
            }
            done.edits += fixed_target(graph, n, cx)?;
            match evaluate(graph, n, cx, &mut room)? {
                Verdict::Variable => {}
                Verdict::Folded => done.edits += 1,
                Verdict::Skipped(reason) => {
                    let node = graph.node(n).display_name().to_string();
                    done.skipped.push(Skipped { rule: "fold".into(), node, reason });
                }
            }
        }
        Ok(done)
    }
}

/// Whether an operator stays although its operands are constants: quantised weights are
/// stored as integers and scaled when the model runs, nobody knows what an opaque operator
/// computes, nor how long a loop takes.
fn keeps(op: &Op) -> bool {
    matches!(op, Op::Quantize(_) | Op::Dequantize(_) | Op::Opaque(_)) || !op.bodies().is_empty()
}

/// Makes every reader of `port` read `tensor` instead, under the same name.
fn replace(graph: &mut Graph, port: Port, tensor: Tensor) -> NodeId {
    let constant = graph.add_constant("", tensor);
    graph.redirect(port, constant.into(), &[]);
    graph.take_name(port, constant.into());
    constant
}

/// Replaces outputs whose elements inference knows.
fn known_elements(graph: &mut Graph, node: NodeId, cx: &Context) -> usize {
    let known: Vec<(Port, Tensor)> = (0..graph.node(node).outputs.len())
        .map(|slot| Port { node, slot })
        .filter(|port| graph.is_read(*port))
        .filter_map(|port| Some((port, elements(graph.fact(port)).or_else(|| nothing(graph, port))?)))
        .collect();
    let mut edits = 0;
    for (port, tensor) in known {
        if cx.edits.allow("known elements", || graph.node(node).label()) {
            replace(graph, port, tensor);
            edits += 1;
        }
    }
    if edits > 0 {
        remove_dead(graph, node);
    }
    edits
}

/// The tensor that a fact describes to the last element.
fn elements(fact: &Fact) -> Option<Tensor> {
    let (elems, shape, dtype) = (fact.known_elems()?, fact.fixed()?, fact.dtype?);
    let (low, high) = dtype.int_range()?;
    let fits = shape.iter().product::<usize>() == elems.len() && elems.iter().all(|e| (low..=high).contains(e));
    fits.then(|| Tensor::ints(dtype, &shape, &elems))
}

/// The zeros that a product of integers with zeros is. Floating point has NaN and infinity.
fn nothing(graph: &Graph, port: Port) -> Option<Tensor> {
    let Op::Binary(Binary::Mul) = graph.op(port.node) else { return None };
    let (shape, dtype) = (graph.fact(port).fixed()?, graph.fact(port).dtype?);
    dtype.int_range()?;
    let zeros = |p: Port| graph.constant(p).is_some_and(|t| !t.is_empty() && t.bytes().iter().all(|b| *b == 0));
    let small = dtype.bytes(&shape).is_some_and(|n| n <= SMALL);
    let some = small && graph.operands(port.node).into_iter().flatten().any(zeros);
    some.then(|| Tensor::ints(dtype, &shape, &vec![0; shape.iter().product()]))
}

/// Gives a Reshape or Expand a constant target where one says the same.
fn fixed_target(graph: &mut Graph, node: NodeId, cx: &Context) -> Result<usize> {
    let (Some(data), Some(old)) = (graph.operand(node, 0), graph.operand(node, 1)) else { return Ok(0) };
    let op = graph.op(node);
    if graph.constant(old).is_some() || !matches!(op, Op::Reshape(_) | Op::Expand(_)) {
        return Ok(0);
    }
    // What the file declares of the output may be what its exporter saw once.
    let Ok(inferred) = graph.infer_op(op, &graph.operands(node)) else { return Ok(0) };
    let output = inferred.first().and_then(Fact::dims);
    let (Some(input), Some(output)) = (graph.fact(data).dims(), output) else { return Ok(0) };
    let target = if matches!(op, Op::Expand(_)) { expand_target(input, output) } else { reshape_target(input, output) };
    let Some(target) = target else { return Ok(0) };
    if !cx.edits.allow("fixed target", || graph.node(node).label()) {
        return Ok(0);
    }
    if matches!(op, Op::Reshape(_)) {
        graph.set_op(node, Reshape { allow_zero: false }.into());
    }
    let name = graph.value(old).name.clone();
    graph.set_operand(node, 1, None);
    remove_dead(graph, old.node);
    let constant = graph.add_constant(&name, Tensor::i64s(&target));
    graph.set_operand(node, 1, Some(constant.into()));
    // This may show that what the file declared was wrong.
    graph.infer(node)?;
    Ok(1)
}

/// The constant with which a Reshape (without `allow_zero`) turns `input` into `output`: the sizes
/// that are not known are copied, or there is one of them, which is left to find. Not both, as -1 is
/// undefined where what is copied is 0.
pub(crate) fn reshape_target(input: &[Dim], output: &[Dim]) -> Option<Vec<i64>> {
    let target: Option<Vec<i64>> = (0..output.len())
        .map(|i| match &output[i] {
            // An empty axis would need `allow_zero`, and leaves -1 undefined.
            Dim::Known(n) => (*n > 0).then_some(*n),
            d if input.get(i).is_some_and(|x| x.same(d)) => Some(0),
            _ => Some(-1),
        })
        .collect();
    let count = |what: i64| target.iter().flatten().filter(|n| **n == what).count();
    (count(-1) == 0 || count(-1) == 1 && count(0) == 0).then_some(target?)
}

/// The constant with which an Expand turns `input` into `output`.
fn expand_target(input: &[Dim], output: &[Dim]) -> Option<Vec<i64>> {
    let new = output.len().checked_sub(input.len())?;
    (0..output.len())
        .map(|i| match &output[i] {
            Dim::Known(n) => Some(*n),
            // 1 keeps what the input has.
            d => (i >= new && input[i - new].same(d)).then_some(1),
        })
        .collect()
}

enum Verdict {
    /// Depends on a graph input.
    Variable,
    Folded,
    Skipped(String),
}

/// What constants may still be made.
struct Room {
    /// How many bytes more than now they may have together.
    left: usize,
    /// Those that were made, by their hash: what is computed twice is kept once.
    made: HashMap<u64, NodeId>,
}

impl Room {
    /// The bytes that go when `node` does.
    fn freed(graph: &Graph, node: NodeId) -> usize {
        let operands: BTreeSet<Port> = graph.operands(node).into_iter().flatten().collect();
        let own = |p: &Port| graph.is_read_only_by(*p, node);
        let freed = operands.into_iter().filter(own).filter_map(|p| graph.constant(p));
        freed.fold(0, |sum, t| sum.saturating_add(t.bytes().len()))
    }

    /// Makes every reader of `port` read `tensor` instead, or a constant that is the same.
    fn put(&mut self, graph: &mut Graph, port: Port, tensor: Tensor) {
        fn all(t: &Tensor) -> (DType, &[usize], &[u8]) {
            (t.dtype(), t.shape(), t.bytes())
        }
        let mut hash = DefaultHasher::new();
        all(&tensor).hash(&mut hash);
        let hash = hash.finish();
        let twin = self.made.get(&hash).copied().filter(|n| {
            let there = graph.contains(*n).then(|| graph.constant((*n).into())).flatten();
            there.is_some_and(|t| all(t) == all(&tensor))
        });
        match twin {
            Some(twin) if !graph.is_output(port) => graph.redirect(port, twin.into(), &[]),
            _ => {
                self.left = self.left.saturating_sub(tensor.bytes().len());
                self.made.insert(hash, replace(graph, port, tensor));
            }
        }
    }
}

/// Runs `node` if all it reads is constant and the result is worth keeping.
fn evaluate(graph: &mut Graph, node: NodeId, cx: &Context, room: &mut Room) -> Result<Verdict> {
    let operands = graph.operands(node);
    // Cheap clones: a tensor's bytes are shared.
    let inputs: Vec<Option<Tensor>> = operands.iter().map(|p| graph.constant((*p)?).cloned()).collect();
    if operands.is_empty() || operands.iter().zip(&inputs).any(|(p, t)| p.is_some() && t.is_none()) {
        return Ok(Verdict::Variable);
    }
    let op = graph.op(node).clone();
    let before: usize = inputs.iter().flatten().map(|t| t.bytes().len()).sum();
    // The size is known before anything is allocated; a cast may well widen what it reads.
    let limit = SMALL.max(before.saturating_mul(if op.inflates() { 1 } else { 4 }));
    let freed = Room::freed(graph, node);
    match result_size(&op, graph, node, &inputs) {
        None => return Ok(Verdict::Skipped("the size of its constant result is not known".into())),
        Some(after) if after > limit => {
            let reason = format!("its constant result has {after} bytes, its inputs {before}");
            return Ok(Verdict::Skipped(reason));
        }
        Some(after) if after > room.left.saturating_add(freed) => {
            let reason = format!("its constant result has {after} bytes, and the model is larger for others already");
            return Ok(Verdict::Skipped(reason));
        }
        Some(_) => {}
    }
    let label = graph.node(node).label();
    if !cx.edits.allow("evaluate", || label.clone()) {
        return Ok(Verdict::Variable);
    }
    let results = match cx.interpreter.eval(&op, &inputs) {
        Ok(results) => results,
        Err(e) if e.kind() == Kind::Unsupported => return Ok(Verdict::Skipped(e.message().into())),
        Err(e) => return Err(e.at(label)),
    };
    if results.len() < graph.node(node).outputs.len() {
        return Err(Error::bug(format!("the interpreter made {} outputs", results.len())).at(label));
    }
    for (slot, tensor) in results.into_iter().enumerate().take(graph.node(node).outputs.len()) {
        let port = Port { node, slot };
        if let Err(e) = Fact::of(&tensor).refined(graph.fact(port)) {
            return Err(Error::bug(format!("the interpreter and inference disagree: {}", e.message())).at(label));
        }
        if graph.is_read(port) {
            room.put(graph, port, tensor);
        }
    }
    room.left = room.left.saturating_add(freed);
    remove_dead(graph, node);
    Ok(Verdict::Folded)
}

/// The bytes of all outputs of `node`, if they are known and can be counted.
fn result_size(op: &Op, graph: &Graph, node: NodeId, inputs: &[Option<Tensor>]) -> Option<usize> {
    if matches!(op, Op::Range(_)) {
        return range_size(inputs);
    }
    graph.node(node).outputs.iter().try_fold(0usize, |sum, v| {
        let size = v.fact.dtype?.bytes(&v.fact.fixed()?)?;
        sum.checked_add(size)
    })
}

/// The bytes of a Range, which inference cannot tell.
fn range_size(inputs: &[Option<Tensor>]) -> Option<usize> {
    let number = |slot: usize| {
        let t = inputs.get(slot)?.as_ref()?;
        let floats = t.as_f32().and_then(|v| v.first().map(|v| f64::from(*v)));
        floats.or_else(|| Some(*t.as_i64()?.first()? as f64))
    };
    let (start, limit, delta) = (number(0)?, number(1)?, number(2)?);
    let count = ((limit - start) / delta).ceil();
    // A cast from floating point saturates: a count too large to hold is too large to keep.
    let size = inputs[0].as_ref()?.dtype().size();
    count.is_finite().then(|| (count as usize).saturating_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::{pass::Interpreter, text};

    /// Answers every question with the same words.
    struct Fake(Result<Vec<Tensor>>);

    impl Interpreter for Fake {
        fn eval(&self, _: &Op, _: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
            self.0.clone()
        }
    }

    fn fold(answer: Result<Vec<Tensor>>) -> Result<(Outcome, String)> {
        let mut graph = text::parse(
            r#"graph "g" {
                const %a: f32[2] = [1, 2]
                %y = Neg(%a) "minus"
                output %y
            }"#,
        )?;
        let fake = Fake(answer);
        let cx = Context::new(&fake);
        let done = Fold.run(&mut graph, &cx)?;
        Ok((done, graph.to_string()))
    }

    #[test]
    fn takes_the_interpreters_word() {
        let (done, text) = fold(Ok(vec![Tensor::f32(&[2], &[-1.0, -2.0])])).unwrap();
        assert_eq!(done.edits, 1);
        assert!(text.contains("const %y: f32[2] = [-1.0, -2.0]"), "{text}");
    }

    #[test]
    fn what_cannot_run_stays() {
        let (done, _) = fold(Err(Error::unsupported("no kernel"))).unwrap();
        assert_eq!(
            (done.edits, done.skipped[0].node.as_str(), done.skipped[0].reason.as_str()),
            (0, "minus", "no kernel")
        );
    }

    #[test]
    fn a_broken_model_is_an_error_at_its_node() {
        let e = fold(Err(Error::malformed("nonsense"))).unwrap_err();
        assert_eq!(e.to_string(), "node `minus` (Neg): nonsense");
    }

    #[test]
    fn a_broken_interpreter_is_a_bug() {
        for answer in [vec![], vec![Tensor::f32(&[1], &[0.0])]] {
            assert_eq!(fold(Ok(answer)).unwrap_err().kind(), Kind::Bug);
        }
    }
}
