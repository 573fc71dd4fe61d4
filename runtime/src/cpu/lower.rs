//! From a part of a graph to lowered operators.

use super::{
    lowering::{Form, Lowering, Want},
    ops,
    program::{Placed, Program},
    scope::{Scope, is_constant},
};
use compress_compiler::{
    error::{Error, Result},
    forms::packed_rows,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    tensor::DType,
};
use compress_kernels::Isa;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
};

/// The form in which a value lies outside, between executors: `None` for those that only Burn has.
pub(crate) fn outside(graph: &Graph, port: Port) -> Option<Form> {
    match graph.fact(port).dtype? {
        DType::F32 => Some(Form::Float),
        DType::U8 | DType::I8 | DType::Bool => Some(Form::Codes),
        _ => None,
    }
}

/// The nodes of `order` that make sizes, as those that Reshape reads: small integers that follow from shapes alone. Planning
/// knows them, and nothing computes them. So are comparisons of such by which others of them are chosen.
fn sizes(graph: &Graph, order: &[NodeId]) -> HashSet<NodeId> {
    let mut found = HashSet::new();
    for id in order {
        let known = |p: Port| graph.constant(p).is_some() || found.contains(&p.node);
        let follow = match graph.op(*id) {
            Op::Input(_) | Op::Constant(_) | Op::Opaque(_) => false,
            Op::Shape(_) | Op::Size(_) => true,
            _ => graph.operands(*id).into_iter().flatten().all(known),
        };
        let fact = graph.fact((*id).into());
        let chooses =
            || graph.uses((*id).into()).iter().all(|u| matches!(graph.op(u.node), Op::Where(_)) && u.slot == 0);
        let fits = graph.node(*id).outputs.len() == 1
            && match fact.dtype {
                Some(DType::I64 | DType::I32) => true,
                Some(DType::Bool) => chooses() && !graph.is_output((*id).into()),
                _ => false,
            };
        if follow && fits && fact.elems.is_some() {
            found.insert(*id);
        }
    }
    // Nobody else can be given a comparison.
    let is_bool = |id: NodeId| graph.fact(id.into()).dtype == Some(DType::Bool);
    loop {
        let lost = |id: &NodeId, found: &HashSet<NodeId>| {
            let read = || graph.uses((*id).into()).iter().any(|u| !found.contains(&u.node));
            let made = |p: Port| graph.constant(p).is_some() || found.contains(&p.node);
            let reads = || graph.operands(*id).into_iter().flatten().any(|p| is_bool(p.node) && !made(p));
            is_bool(*id) && read() || !matches!(graph.op(*id), Op::Shape(_) | Op::Size(_)) && reads()
        };
        let gone: Vec<NodeId> = found.iter().copied().filter(|id| lost(id, &found)).collect();
        if gone.is_empty() {
            return found;
        }
        gone.iter().for_each(|id| _ = found.remove(id));
    }
}

/// The nodes of `order` that can be lowered, each by itself, and those that make sizes.
pub(crate) fn known(graph: &Graph, order: &[NodeId]) -> HashSet<NodeId> {
    let nothing = HashSet::new();
    let all = |_| true;
    let scope = Scope::new(graph, order, &all, &nothing, false);
    let is_known = |id: NodeId| {
        !matches!(graph.op(id), Op::Input(_) | Op::Constant(_) | Op::Opaque(_))
            && (0..graph.node(id).outputs.len()).all(|slot| {
                let port = Port { node: id, slot };
                outside(graph, port).is_some_and(|form| ops::lowering(&scope, Want { port, form }).is_some())
            })
    };
    let mut known = sizes(graph, order);
    known.extend(order.iter().copied().filter(|id| is_known(*id)));
    // Sums of integers are no value here: who makes floats of them makes them too.
    let sums = order.iter().copied().filter(|id| {
        matches!(graph.op(*id), Op::IntegerMatMul(_))
            && graph
                .only_use((*id).into())
                .is_some_and(|by| matches!(graph.op(by.node), Op::Cast(_)) && known.contains(&by.node))
    });
    known.extend(sums.collect::<Vec<_>>());
    // Nor are bytes as numbers of rows: who looks these up reads the bytes.
    let casts = order.iter().copied().filter(|id| {
        let reader = graph.only_use((*id).into()).filter(|by| by.slot == 1 && known.contains(&by.node));
        packed_rows::bytes(graph, (*id).into()).is_some()
            && reader.is_some_and(|by| matches!(graph.op(by.node), Op::Gather(_)))
    });
    known.extend(casts.collect::<Vec<_>>());
    known
}

/// Lowers `nodes`, which come in order and for which `part` is true, as far as `outputs` and
/// `watch` need them. `place` says where every node of the graph stands in its order; `given` are the values from elsewhere
/// that can be had, of which sizes are asked for too.
///
/// # Errors
/// A bug when there is no lowering for a node of the part; what packing raises.
pub(crate) fn lower(
    graph: &Graph,
    place: &HashMap<NodeId, usize>,
    nodes: &[NodeId],
    part: &dyn Fn(NodeId) -> bool,
    (given, outputs): (&[Port], &[Port]),
    watch: &[(usize, Port)],
    isa: Isa,
) -> Result<Program> {
    let is_value = |port: &Port| outside(graph, *port).is_some();
    let watch: Vec<(usize, Port)> = watch.iter().copied().filter(|(_, port)| is_value(port)).collect();
    let computed = outputs.iter().copied().filter(is_value);
    let pinned: HashSet<Port> = computed.chain(watch.iter().map(|w| w.1)).collect();
    let scope = Scope::new(graph, nodes, part, &pinned, false);
    let asked = |port: &Port| {
        outside(graph, *port).map(|form| Want { port: *port, form }).ok_or_else(|| Error::bug("a value of Burn's"))
    };

    // Backwards: what is asked for, last node first, and of a node the first output first, which others of it may make.
    let at = |want: Want| (place[&want.port.node], Reverse(want.port.slot), want);
    let mut open: BTreeSet<(usize, Reverse<usize>, Want)> = BTreeSet::new();
    for port in &pinned {
        open.insert(at(asked(port)?));
    }
    let mut lowerings: Vec<(Want, Lowering)> = vec![];
    let mut inputs: Vec<Want> = vec![];
    while let Some((.., want)) = open.pop_last() {
        if !part(want.port.node) && !is_constant(graph, want.port) {
            inputs.push(want);
            continue;
        }
        let lowering = ops::lowering(&scope, want);
        let lowering = lowering.ok_or_else(|| Error::bug("no lowering").at(graph.node(want.port.node).label()))?;
        open.extend(lowering.operands.iter().map(|w| at(*w)));
        lowerings.push((want, lowering));
    }

    // Forwards: operators in an order in which they can run.
    let mut program = Program::new(isa);
    let mut ids = HashMap::new();
    for want in inputs.into_iter().rev() {
        let are_ints = matches!(graph.fact(want.port).dtype, Some(DType::I64 | DType::I32));
        let is_made = outside(graph, want.port).or(are_ints.then_some(Form::Codes)) == Some(want.form);
        if !is_made {
            return Err(Error::bug(format!("{want:?} is made elsewhere in another form")));
        }
        ids.insert(want, program.add_input(Placed::of(graph, want)));
    }
    for (want, lowering) in lowerings.into_iter().rev() {
        let label = graph.node(want.port.node).label();
        let mut operands: Vec<usize> = lowering.operands.iter().map(|w| ids[w]).collect();
        operands.extend(lowering.shapes.iter().map(|port| program.add_shape(Placed::of(graph, Want::float(*port)))));
        let op = (lowering.make)(isa).map_err(|e| e.at(&label))?;
        ids.insert(want, program.add(label, op, operands, Placed::of(graph, want)));
    }
    for port in outputs {
        match is_value(port) {
            true => program.add_output(ids[&asked(port)?]),
            false => program.add_size(*port),
        }
    }
    for (place, port) in &watch {
        program.add_watch(*place, ids[&asked(port)?]);
    }
    program.find_shape_nodes(graph, place, part, given);
    Ok(program)
}
