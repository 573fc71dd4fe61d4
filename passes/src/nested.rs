//! The graphs inside a graph (If, Loop, Scan), taken out one by one and put back, for passes that change each.

use crate::bodies::SMALL;
use compress_compiler::{
    captured::drop_unread,
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Use},
    op::{Op, Operator},
    ops::{control::Body, source::Input},
    pass::Outcome,
    rewrite::remove_dead,
    tensor::Tensor,
    words::option::TARGET,
};
use std::collections::{BTreeMap, HashMap};

/// Where a graph is: from the outermost one in, the operator that runs it, and which of its bodies it is.
pub type Way = Vec<(NodeId, usize)>;

/// A graph inside another.
#[derive(Clone)]
pub struct Nested {
    /// Where it is.
    pub way: Way,
    /// The graph.
    pub graph: Graph,
}

/// The graphs that the operators of `graph` run, whatever their depth, each after the one around it.
pub fn take(graph: &Graph) -> Vec<Nested> {
    let inside = |way: &[(NodeId, usize)], g: &Graph| -> Vec<Nested> {
        let bodies = g.operators().flat_map(|n| g.op(n).bodies().into_iter().enumerate().map(move |(i, b)| (n, i, b)));
        bodies.map(|(n, i, b)| Nested { way: [way, &[(n, i)]].concat(), graph: b.graph().clone() }).collect()
    };
    let mut found = inside(&[], graph);
    let mut at = 0;
    while at < found.len() {
        let more = inside(&found[at].way, &found[at].graph);
        found.extend(more);
        at += 1;
    }
    found
}

/// Puts the graphs that [`take`] found back, after changes that kept their operators with bodies, and what those read.
/// What no body reads any more is no longer handed to them.
///
/// # Errors
/// What inference raises.
pub fn put_back(graph: &mut Graph, mut found: Vec<Nested>) -> Result<()> {
    let places: HashMap<Way, usize> = found.iter().enumerate().map(|(at, f)| (f.way.clone(), at)).collect();
    // Inner graphs come after those around them, and the bodies of an operator one after the other.
    while let Some(Nested { way, graph: inner }) = found.pop() {
        let Some(((node, place), around)) = way.split_last() else { continue };
        let outer = match around {
            [] => &mut *graph,
            _ => places.get(around).and_then(|at| found.get_mut(*at)).map(|f| &mut f.graph).ok_or_else(lost)?,
        };
        let mut op = outer.op(*node).clone();
        let mut bodies: Vec<Body> = op.bodies().into_iter().cloned().collect();
        bodies[*place] = Body::new(inner, bodies[*place].captures());
        op.set_bodies(bodies);
        outer.set_op(*node, op);
        if *place == 0 {
            drop_unread(outer, *node);
            outer.infer(*node)?;
        }
    }
    Ok(())
}

/// Changes `graph`, and then [each of those inside it](change_inside).
///
/// # Errors
/// What `change` and inference raise.
pub(crate) fn change_each(graph: &mut Graph, mut change: impl FnMut(&mut Graph) -> Result<Outcome>) -> Result<Outcome> {
    let mut done = change(graph)?;
    done.add(change_inside(graph, |_, found| {
        let mut done = Outcome::default();
        for body in found {
            done.add(change(&mut body.graph)?);
        }
        Ok(done)
    })?);
    Ok(done)
}

/// Changes the graphs inside `graph`; `change` is shown the whole as it was, and them. Constants around that only graphs inside read are
/// constants of each of these meanwhile. What several of them have alike afterwards is stored once, around them.
///
/// # Errors
/// What `change` and inference raise.
pub(crate) fn change_inside(
    graph: &mut Graph,
    change: impl FnOnce(&Graph, &mut [Nested]) -> Result<Outcome>,
) -> Result<Outcome> {
    let mut found = take(graph);
    if found.is_empty() {
        return Ok(Outcome::default());
    }
    own_constants(graph, &mut found);
    // What a graph has of its own now, those inside it no longer read through it.
    let mut owning = graph.clone();
    put_back(&mut owning, found)?;
    let mut found = take(&owning);
    let mut inside = change(&owning, &mut found)?;
    if inside.edits > 0 {
        put_back(&mut owning, found)?;
        *graph = owning;
        let often = share(graph)?;
        if often > 0 {
            let size = match often {
                0..1_000_000 => format!("{:.1} kB", often as f64 / 1e3),
                _ => format!("{:.1} MB", often as f64 / 1e6),
            };
            inside.warnings.push(format!(
                "{size} of codes in blocks are stored again in each branch that reads them: ONNX Runtime can't load a model whose \
                 branches share them. {TARGET} onnxruntime stores them once, in another form"
            ));
        }
    }
    Ok(inside)
}

/// Makes the large constants that graphs inside alone read constants of each.
fn own_constants(graph: &Graph, found: &mut [Nested]) {
    let whole = found.to_vec();
    let graphs = Graphs::new(graph, &whole);
    // A constant may have thousands of readers.
    let mut known: HashMap<ConstantRef, bool> = HashMap::new();
    let mut alone =
        |source: &ConstantRef| *known.entry(source.clone()).or_insert_with(|| graphs.is_captured_alone(source));
    for (part, Nested { way, graph: old }) in found.iter_mut().zip(&whole) {
        for input in old.inputs() {
            let source = graphs.source(way, (*input).into()).filter(&mut alone);
            let constant = source.and_then(|source| graphs.at(&source.0)?.constant(source.1.into()).cloned());
            if let Some(tensor) = constant.filter(|t| t.bytes().len() > SMALL) {
                own(&mut part.graph, (*input).into(), tensor);
            }
        }
    }
}

/// Puts a constant of the same name in the place of an input.
fn own(part: &mut Graph, input: Port, tensor: Tensor) {
    let constant = part.add_constant("", tensor).into();
    part.take_name(input, constant);
    part.redirect(input, constant, &[]);
}

/// A constant in a graph inside another: the operator that runs that graph, which of its bodies it is, and the constant's node.
type Inner = (NodeId, usize, NodeId);

/// Stores once, around them, the large constants that several graphs inside `graph` have alike. Returns the bytes of those that have
/// to stay where they are, without one of each.
fn share(graph: &mut Graph) -> Result<u64> {
    let nodes: Vec<NodeId> = graph.operators().filter(|n| !graph.op(*n).bodies().is_empty()).collect();
    let mut bodies: BTreeMap<NodeId, Vec<Graph>> = BTreeMap::new();
    for n in nodes {
        let inner: Vec<Graph> = graph.op(n).bodies().into_iter().map(|b| b.graph().clone()).collect();
        bodies.insert(n, inner);
    }
    let mut often = 0;
    for inner in bodies.values_mut().flatten() {
        often += share(inner)?;
    }
    let captures = |n: NodeId| graph.op(n).bodies().first().map_or(0, |b| b.captures());
    let mut counts: BTreeMap<NodeId, usize> = bodies.keys().map(|n| (*n, captures(*n))).collect();
    for alike in alike(&bodies) {
        let (n, at, constant) = alike[0];
        let Some(tensor) = bodies[&n][at].constant(constant.into()).cloned() else { continue };
        if alike.iter().any(|(n, at, constant)| has_codes_in_blocks(&bodies[n][*at], *constant)) {
            often += (tensor.bytes().len() * (alike.len() - 1)) as u64;
            continue;
        }
        let outer = graph.add_constant(&bodies[&n][at].value(constant.into()).name, tensor);
        let mut readers: Vec<NodeId> = alike.iter().map(|(n, ..)| *n).collect();
        readers.dedup();
        for n in readers {
            for (at, inner) in bodies.get_mut(&n).into_iter().flatten().enumerate() {
                let own = alike.iter().filter(|inner| (inner.0, inner.1) == (n, at)).map(|inner| inner.2);
                capture(inner, graph, outer, own.collect())?;
            }
            let operands = [&graph.operands(n)[..], &[Some(outer.into())]].concat();
            graph.set_operands(n, &operands);
            counts.entry(n).and_modify(|count| *count += 1);
        }
    }
    for (n, inner) in bodies {
        let mut op = graph.op(n).clone();
        op.set_bodies(inner.into_iter().map(|g| Body::new(g, counts[&n])).collect());
        graph.set_op(n, op);
    }
    Ok(often)
}

/// Adds an input to `inner` for the constant `outer` around it, which takes the place of `own`, its own constants.
fn capture(inner: &mut Graph, graph: &Graph, outer: NodeId, own: Vec<NodeId>) -> Result<()> {
    let value = graph.value(outer.into());
    let name = inner.fresh(&value.name);
    let input = inner.add_input(&name, value.fact.clone(), Op::Input(Input { default: None }))?;
    for constant in own {
        inner.take_name(constant.into(), input.into());
        inner.redirect(constant.into(), input.into(), &[]);
        remove_dead(inner, constant);
    }
    Ok(())
}

/// The large constants that are the same in more than one of `bodies`, by the order of the first of each.
fn alike(bodies: &BTreeMap<NodeId, Vec<Graph>>) -> Vec<Vec<Inner>> {
    let mut groups: Vec<Vec<Inner>> = vec![];
    let mut known: HashMap<u64, Vec<usize>> = HashMap::new();
    let tensor = |(n, at, constant): &Inner| bodies[n][*at].constant((*constant).into());
    for (n, inner) in bodies {
        for (at, g) in inner.iter().enumerate() {
            for constant in g.ids() {
                let Some(t) = g.constant(constant.into()).filter(|t| t.bytes().len() > SMALL) else { continue };
                let candidates = known.entry(t.storage().digest()).or_default();
                let same = candidates.iter().find(|i| tensor(&groups[**i][0]) == Some(t));
                match same {
                    Some(i) => groups[*i].push((*n, at, constant)),
                    None => {
                        candidates.push(groups.len());
                        groups.push(vec![(*n, at, constant)]);
                    }
                }
            }
        }
    }
    let several = |group: &Vec<Inner>| group.iter().any(|(n, at, _)| (*n, *at) != (group[0].0, group[0].1));
    groups.retain(several);
    groups
}

/// Whether a constant is of codes in blocks that a DequantizeLinear makes floats of. ONNX Runtime 1.31 makes one operator of that and
/// the product, and fails to load a model where the codes are around the graph that has these.
fn has_codes_in_blocks(g: &Graph, constant: NodeId) -> bool {
    let in_blocks = |u: &Use| matches!(g.op(u.node), Op::Dequantize(op) if op.grain.block != 0);
    g.uses(constant.into()).iter().any(in_blocks)
}

fn lost() -> Error {
    Error::bug("a graph inside another lost its way")
}

/// A constant: where its graph is, and its node.
pub type ConstantRef = (Way, NodeId);

/// An operator that reads a weight or a bias from around the graph that it is in.
pub struct Reader {
    /// The place of its graph in the list.
    pub at: usize,
    /// The operator.
    pub node: NodeId,
    /// The constant.
    pub source: ConstantRef,
}

/// The operators in `found`, which are the graphs inside `graph`, that read weights or biases from around them, where
/// these are constants that nothing around reads.
pub(crate) fn outer_weights(graph: &Graph, found: &[Nested]) -> Vec<Reader> {
    let (mut readers, graphs) = (readers(graph, found), Graphs::new(graph, found));
    // A constant may have thousands of readers.
    let mut alone: HashMap<ConstantRef, bool> = HashMap::new();
    readers.retain(|r| *alone.entry(r.source.clone()).or_insert_with(|| graphs.is_captured_alone(&r.source)));
    readers
}

/// The operators in `found`, which are the graphs inside `graph`, that read weights or biases from around them.
pub fn readers(graph: &Graph, found: &[Nested]) -> Vec<Reader> {
    let graphs = Graphs::new(graph, found);
    let mut readers = vec![];
    for (at, part) in found.iter().enumerate() {
        for node in part.graph.operators() {
            let slots = part.graph.op(node).weight().map_or(vec![], |axes| [Some(axes.slot), axes.bias].into());
            for port in slots.into_iter().flatten().filter_map(|slot| part.graph.operand(node, slot)) {
                let source = graphs.source(&part.way, port);
                readers.extend(source.map(|source| Reader { at, node, source }));
            }
        }
    }
    readers
}

/// Gives the graph of each of `readers` a constant of its own in place of the one that it reads.
pub(crate) fn own_weights(graph: &Graph, found: &mut [Nested], readers: &[&Reader]) {
    let whole = found.to_vec();
    let graphs = Graphs::new(graph, &whole);
    for Reader { at, node, source } in readers {
        let Some(tensor) = graphs.at(&source.0).and_then(|g| g.constant(source.1.into())).cloned() else { continue };
        let (way, part) = (&whole[*at].way, &mut found[*at].graph);
        let inputs = part.operands(*node).into_iter().flatten().filter(|p| matches!(part.op(p.node), Op::Input(_)));
        let input = inputs.into_iter().find(|p| graphs.source(way, *p).as_ref() == Some(source));
        if let Some(input) = input {
            own(part, input, tensor);
        }
    }
}

/// A graph and those inside it, by where they are.
struct Graphs<'a>(HashMap<&'a [(NodeId, usize)], &'a Graph>);

impl<'a> Graphs<'a> {
    fn new(graph: &'a Graph, found: &'a [Nested]) -> Self {
        Self(found.iter().map(|f| (&f.way[..], &f.graph)).chain([(&[][..], graph)]).collect())
    }

    fn at(&self, way: &[(NodeId, usize)]) -> Option<&'a Graph> {
        self.0.get(way).copied()
    }

    /// The constant around the graph at `way` that its input `port` stands for.
    fn source(&self, way: &[(NodeId, usize)], port: Port) -> Option<ConstantRef> {
        let ((node, place), around) = way.split_last()?;
        let (inner, outer) = (self.at(way)?, self.at(around)?);
        let input = inner.inputs().iter().position(|i| Port::from(*i) == port)?;
        let formals = outer.op(*node).bodies().get(*place)?.formals();
        let operands = outer.operands(*node);
        let captures = inner.inputs().len() - formals;
        let from = (*operands.get(operands.len() - captures + input.checked_sub(formals)?)?)?;
        match outer.op(from.node) {
            Op::Constant(_) => Some((around.to_vec(), from.node)),
            Op::Input(_) => self.source(around, from),
            _ => None,
        }
    }

    /// Whether only operators with bodies read a constant, for these.
    fn is_captured_alone(&self, (way, node): &ConstantRef) -> bool {
        let Some(outer) = self.at(way) else { return false };
        let captures = |u: &Use| {
            let captured = outer.op(u.node).bodies().first().map_or(0, |b| b.captures());
            u.slot >= outer.operands(u.node).len() - captured
        };
        !outer.is_output((*node).into()) && outer.uses((*node).into()).iter().all(captures)
    }
}
