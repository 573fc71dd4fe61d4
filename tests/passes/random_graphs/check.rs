//! What holds of every graph, and of what simplifying and removing channels make of it.

use crate::{
    known::{Known, Refusal, apart, apply, message, tolerance},
    maker::{Maker, SYMBOLS},
};
use compress_compiler::{
    graph::Graph,
    node::Port,
    onnx::{self, Model},
    op::{Op, Operator},
    pass::{Context, Outcome},
    tensor::Tensor,
    text::{self, digest},
    value::{Dim, Fact},
    verify::verify,
};
use compress_passes::prune::{cut::Cut, groups::Groups};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};
use rand::Rng;
use regex::Regex;
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

type Checked<T = ()> = Result<T, String>;

/// What makes a graph simpler.
pub type Simplify = fn(&mut Graph, &Context) -> compress_compiler::error::Result<Outcome>;

/// Checks all properties of a finished graph.
pub fn check(m: &mut Maker, simplify: Simplify) -> Checked {
    if let Some(failure) = &m.failure {
        return Err(failure.clone());
    }
    let before = m.graph.clone();
    let expected: Vec<Tensor> = before
        .outputs()
        .iter()
        .filter_map(|o| m.values.iter().find(|v| v.port == o.port))
        .map(|v| v.known.tensor.clone())
        .collect();
    let expected: Vec<&Tensor> = expected.iter().collect();
    let got = run(&before, &m.inputs)?;
    same(&before, &expected, &got).map_err(|e| format!("the graph as a whole: {e}"))?;
    for v in &m.values {
        fits(before.fact(v.port), &v.known.tensor).map_err(|e| format!("value `{}` {e}", before.value(v.port).name))?;
    }
    symbols_agree(m.values.iter().map(|v| (before.fact(v.port), &v.known.tensor)))?;
    round_trips(&before, &m.inputs, &expected)?;

    let after = made_simple(&before, simplify)?;
    simplified(&before, &after, &m.inputs, &expected).map_err(|e| format!("simplified: {e}\n{after}"))?;
    if let Some(less) = knowing_less(&before)? {
        let after = made_simple(&less, simplify).map_err(|e| format!("without shapes: {e}\n{less}"))?;
        let checked = simplified(&less, &after, &m.inputs, &expected);
        checked.map_err(|e| format!("without shapes, simplified: {e}\n{after}"))?;
    }
    without_channels(m, &before).map_err(|e| format!("without channels: {e}"))?;
    for _ in 0..3 {
        // Fewer operators are more likely to take other sizes.
        let v = m.size(0, m.values.len() - 1);
        let part = m.alone(v).graph;
        let after = made_simple(&part, simplify)?;
        other_sizes(m, &part, &after).map_err(|e| format!("simplified, {e}\n{after}"))?;
    }
    Ok(())
}

/// Removes some of the channels that may go: what is left computes what the whole does when their weights are zero.
fn without_channels(m: &mut Maker, g: &Graph) -> Checked {
    let groups = Groups::find(g).map_err(|e| e.to_string())?;
    let mut cut = Cut::new(&groups);
    for group in &groups.groups {
        for unit in group.units.iter().filter(|unit| groups.obstacle(unit).is_none()) {
            if m.chance(0.5) {
                cut.remove(unit);
            }
        }
    }
    let (mut masked, mut sliced) = (g.clone(), g.clone());
    cut.mask(&mut masked);
    caught(|| cut.apply(&mut sliced)).map_err(|e| format!("{e}\n{sliced}"))?;
    let expected = run(&masked, &m.inputs)?;
    let got = run(&sliced, &m.inputs).map_err(|e| format!("{e}\n{sliced}"))?;
    same(&sliced, &expected.iter().collect::<Vec<_>>(), &got).map_err(|e| format!("{e}\n{sliced}"))
}

fn made_simple(graph: &Graph, simplify: Simplify) -> Checked<Graph> {
    let mut after = graph.clone();
    let interpreter = BurnInterpreter::cpu();
    caught(|| simplify(&mut after, &Context::new(&interpreter))).map_err(|e| format!("simplifying: {e}"))?;
    Ok(after)
}

fn simplified(before: &Graph, after: &Graph, given: &[Tensor], expected: &[&Tensor]) -> Checked {
    let names = |g: &Graph| -> Vec<String> {
        let inputs = g.inputs().iter().map(|n| g.value((*n).into()).name.clone());
        inputs.chain(g.outputs().iter().map(|o| o.name.clone())).collect()
    };
    if names(before) != names(after) {
        return Err(format!("inputs and outputs are called {:?} instead of {:?}", names(after), names(before)));
    }
    let inputs = |g: &Graph| -> Vec<Fact> { g.inputs().iter().map(|n| g.fact((*n).into()).clone()).collect() };
    if inputs(before) != inputs(after) {
        return Err(format!("inputs became {:?} instead of {:?}", inputs(after), inputs(before)));
    }
    same(after, expected, &run(after, given)?)?;
    all_fit(after, given)?;
    round_trips(after, given, expected)
}

/// The graph without the shapes of its inputs, and so without most that inference found.
fn knowing_less(g: &Graph) -> Checked<Option<Graph>> {
    let Some(known) = digests(g) else { return Ok(None) };
    let replaced = |text: &str, pattern: &str, by: &str| {
        Regex::new(pattern).map(|r| r.replace_all(text, by).into_owned()).map_err(|e| e.to_string())
    };
    // What stands two blanks from the left is not inside of a body.
    let shape = r#"[a-z0-9?]+\[[^\]]*\]"#;
    let text = replaced(&g.to_string(), &format!(r"(?m)^(  (?:%|_|\}}).*) : {shape}(, {shape})*$"), "$1")?;
    let text = replaced(&text, r"(?m)^(  input [^=]*: [a-z0-9]+)\[[^\]=]*\]$", "$1[*]")?;
    caught(|| text::parse_with(&text, &|d| known.get(d).cloned()))
        .map(Some)
        .map_err(|e| format!("without shapes: {e}\n{text}"))
}

/// What `f` returns, panics among the errors.
fn caught<T>(f: impl FnOnce() -> compress_compiler::error::Result<T>) -> Checked<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(format!("panicked: {}", message(&*panic))),
    }
}

/// Verifies a graph and runs it.
pub fn run(g: &Graph, inputs: &[Tensor]) -> Checked<Vec<Tensor>> {
    caught(|| Session::new(&verify(g)?, &Backend::cpu(), &[])?.run(inputs))
}

/// Checks the outputs of `g`.
fn same(g: &Graph, expected: &[&Tensor], got: &[Tensor]) -> Checked {
    for (o, (a, b)) in g.outputs().iter().zip(expected.iter().zip(got)) {
        let d = apart(a, b).map_err(|e| format!("output `{}` {e}", o.name))?;
        if d > tolerance(a.dtype()) {
            return Err(format!("output `{}` differs by {d:.1e} of its largest element", o.name));
        }
    }
    if expected.len() == got.len() { Ok(()) } else { Err(format!("{} outputs", got.len())) }
}

/// Checks that a tensor is what inference said.
fn fits(fact: &Fact, t: &Tensor) -> Checked {
    let shape = fact.dims().is_none_or(|dims| {
        let size = |(d, n): (&Dim, &usize)| d.known().is_none_or(|k| k == *n as i64);
        dims.len() == t.shape().len() && dims.iter().zip(t.shape()).all(size)
    });
    let elems = match (&fact.elems, t.as_i64()) {
        (Some(known), Some(v)) => {
            known.len() == v.len() && known.iter().zip(&v).all(|(k, v)| k.known().is_none_or(|k| k == *v))
        }
        (known, _) => known.is_none(),
    };
    let floats =
        fact.floats.as_ref().is_none_or(|known| t.as_f32().is_some_and(|v| format!("{v:?}") == format!("{known:?}")));
    if shape && elems && floats && fact.dtype.is_none_or(|d| d == t.dtype()) {
        return Ok(());
    }
    let elems = fact.elems.as_ref().map(|e| e.iter().map(ToString::to_string).collect::<Vec<_>>());
    Err(format!("was inferred as {fact} {elems:?}, and is {t:?} {:?}", t.as_i64()))
}

/// Checks that a name of a size means the same everywhere.
fn symbols_agree<'a>(values: impl Iterator<Item = (&'a Fact, &'a Tensor)>) -> Checked {
    let mut sizes: HashMap<String, i64> = HashMap::new();
    for (fact, t) in values {
        let elements = t.as_i64().unwrap_or_default();
        let elems = fact.elems.iter().flatten().zip(elements);
        let dims = fact.dims().unwrap_or_default().iter().zip(t.shape().iter().map(|n| *n as i64));
        for (d, n) in dims.chain(elems) {
            if let Dim::Sym(s) = d
                && *sizes.entry(s.to_string()).or_insert(n) != n
            {
                return Err(format!("a value inferred as {fact} is {t:?}, but `{s}` is {}", sizes[&**s]));
            }
        }
    }
    Ok(())
}

/// Runs `g` with all its values as outputs, and checks each against what inference said.
fn all_fit(g: &Graph, inputs: &[Tensor]) -> Checked {
    let mut open = g.clone();
    let ports: Vec<Port> = g
        .ids()
        .flat_map(|node| (0..g.node(node).outputs.len()).map(move |slot| Port { node, slot }))
        .filter(|p| !g.value(*p).name.is_empty())
        .collect();
    let outputs = g.outputs().len();
    ports.iter().enumerate().for_each(|(i, p)| open.add_output(&format!("all {i}"), *p));
    let got = run(&open, inputs).map_err(|e| format!("with all values as outputs: {e}"))?;
    for (p, t) in ports.iter().zip(&got[outputs..]) {
        fits(g.fact(*p), t).map_err(|e| format!("value `{}` {e}", g.value(*p).name))?;
    }
    symbols_agree(ports.iter().map(|p| g.fact(*p)).zip(&got[outputs..]))
}

/// All tensors in `g` that the text form gives by their digest.
fn tensors(g: &Graph, found: &mut HashMap<String, Vec<Tensor>>) {
    // Shorter ones are written out.
    let long = |t: &Tensor| t.len() > 16;
    for n in g.ids() {
        if let Op::Constant(c) = g.op(n)
            && long(&c.0)
        {
            found.entry(digest(&c.0)).or_default().push(c.0.clone());
        }
        g.op(n).bodies().into_iter().for_each(|b| tensors(b.graph(), found));
    }
    for n in g.inputs() {
        if let Op::Input(input) = g.op(*n)
            && let Some(t) = input.default.as_ref().filter(|t| long(t))
        {
            found.entry(digest(t)).or_default().push(t.clone());
        }
    }
}

/// What the digests in the text form of `g` stand for, unless one stands for equal bytes in several shapes.
fn digests(g: &Graph) -> Option<HashMap<String, Tensor>> {
    let mut known = HashMap::new();
    tensors(g, &mut known);
    let same = |t: &[Tensor]| t.iter().all(|u| (u.dtype(), u.shape()) == (t[0].dtype(), t[0].shape()));
    known.into_iter().map(|(d, t)| same(&t).then(|| (d, t[0].clone()))).collect()
}

fn round_trips(g: &Graph, inputs: &[Tensor], expected: &[&Tensor]) -> Checked {
    if let Some(known) = digests(g) {
        let printed = g.to_string();
        let parsed = caught(|| text::parse_with(&printed, &|d| known.get(d).cloned()))
            .map_err(|e| format!("its text: {e}\n{printed}"))?;
        if parsed.to_string() != printed {
            return Err(format!("its text\n{printed}became\n{parsed}"));
        }
    }
    let written =
        |g: &Graph| caught(|| onnx::to_bytes(&Model::new(g.clone()))).map_err(|e| format!("writing ONNX: {e}"));
    let read = |bytes: &[u8]| caught(|| onnx::read_bytes(bytes)).map_err(|e| format!("reading what was written: {e}"));
    let first = written(g)?;
    let model = read(&first)?;
    same(&model.graph, expected, &run(&model.graph, inputs).map_err(|e| format!("from ONNX: {e}"))?)
        .map_err(|e| format!("from ONNX: {e}"))?;
    let second = caught(|| onnx::to_bytes(&model))?;
    // A constant that a body has as a capture and does not read is gone when it is read.
    // Without shapes to begin with, the first file may say more of them than the second.
    // Operators on codes are QDQ when they are read.
    let on_codes = g.operators().any(|n| g.op(n).op_type().starts_with("QLinear"));
    let untold = g.inputs().iter().any(|n| g.fact((*n).into()).shape.is_none());
    let free = g.and_bodies().len() > 1 || on_codes || untold;
    let third = if free { written(&read(&second)?.graph)? } else { first.clone() };
    if second != third {
        let (a, b) = (read(&third)?.graph, read(&second)?.graph);
        return Err(format!("written again it is {} bytes instead of {}:\n{a}became\n{b}", second.len(), third.len()));
    }
    Ok(())
}

/// Runs both with other sizes where sizes have names, unless the graph does not take them.
fn other_sizes(m: &mut Maker, before: &Graph, after: &Graph) -> Checked {
    let sizes: HashMap<&str, usize> = SYMBOLS.iter().map(|(s, _)| (*s, m.rng.random_range(1..=6))).collect();
    let mut inputs = vec![];
    for (n, old) in before.inputs().iter().zip(m.inputs.clone()) {
        let dims = before.fact((*n).into()).dims().unwrap_or_default();
        let shape: Option<Vec<usize>> = dims
            .iter()
            .zip(old.shape())
            .map(|(d, n)| match d {
                Dim::Sym(s) => sizes.get(&**s).copied(),
                _ => Some(*n),
            })
            .collect();
        let shape = shape.unwrap_or_default();
        let kept = before.fact((*n).into()).shape.is_none() || shape == old.shape();
        inputs.push(if kept { old } else { m.filled(old.dtype(), &shape, 0.0, 2.0) });
    }
    let Some(expected) = traced(m, before, &inputs) else { return Ok(()) };
    let sizes: Vec<&[usize]> = inputs.iter().map(|t| t.shape()).collect();
    let checked = run(after, &inputs).and_then(|got| same(after, &expected.iter().collect::<Vec<_>>(), &got));
    checked.map_err(|e| format!("with inputs of {sizes:?}: {e}"))
}

/// The outputs of `g`, if they are worth comparing.
fn traced(m: &mut Maker, g: &Graph, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
    let mut known: HashMap<Port, Known> = HashMap::new();
    for n in g.topological().ok()? {
        let made = match g.op(n) {
            Op::Input(_) => vec![Known::given(inputs[g.inputs().iter().position(|i| *i == n)?].clone())],
            Op::Constant(c) => vec![Known::given(c.0.clone())],
            op => {
                let operands: Vec<Option<&Known>> = g.operands(n).iter().map(|p| p.map(|p| &known[&p])).collect();
                match apply(op, &operands, g.node(n).outputs.len(), &mut || m.rng.random_range(-1.0..=1.0)) {
                    Ok(made) => made,
                    Err(Refusal::Delicate | Refusal::Wrong(_)) => return None,
                }
            }
        };
        known.extend(made.into_iter().enumerate().map(|(slot, k)| (Port { node: n, slot }, k)));
    }
    g.outputs().iter().map(|o| Some(known[&o.port].tensor.clone())).collect()
}
