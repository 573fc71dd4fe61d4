//! `compress inspect`: what a model is made of.

use crate::{args::InspectArgs, facts, terminal};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::Port,
    onnx,
    op::{Op, Operator},
    pass::Context,
    report::counted,
};
use compress_passes::{
    layers::Layer,
    prune::groups::{Group, Groups, Unit},
    simplify,
};
use compress_runtime::burn::BurnEvaluator;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Serialize)]
struct Inspection {
    file: compress_compiler::report::FileFacts,
    opset: i64,
    inputs: Vec<Signature>,
    outputs: Vec<Signature>,
    operators: BTreeMap<String, usize>,
    opaque: Vec<(String, String)>,
    layers: Vec<compress_compiler::report::LayerFacts>,
    warnings: Vec<String>,
    /// Whether sizes besides the batch are open, so that multiply-accumulates are those of the least.
    sizes_open: bool,
}

#[derive(Serialize)]
struct Signature {
    name: String,
    r#type: String,
}

/// Runs the subcommand.
pub fn run(args: InspectArgs) -> Result<()> {
    let model = onnx::read_with(&args.model, &args.read.into())?;
    let g = &model.graph;
    if args.ir {
        terminal::print(&g.to_string())?;
        return Ok(());
    }
    if args.groups {
        let groups = groups(g)?;
        terminal::print(&if args.json { terminal::json(&groups)? } else { groups_text(&groups) })?;
        return Ok(());
    }
    let mut operators = BTreeMap::new();
    let mut opaque = vec![];
    for (g, n) in g.and_bodies().into_iter().flat_map(|g| g.operators().map(move |n| (g, n))) {
        *operators.entry(g.op(n).op_type().to_string()).or_insert(0) += 1;
        if let Op::Opaque(o) = g.op(n) {
            opaque.push((g.node(n).display_name().to_string(), o.reason.clone()));
        }
    }
    let i = Inspection {
        file: facts::file(&args.model, &model),
        opset: model.opset(),
        inputs: g.inputs().iter().map(|n| signature(g, &g.value((*n).into()).name, (*n).into())).collect(),
        outputs: g.outputs().iter().map(|o| signature(g, &o.name, o.port)).collect(),
        operators,
        opaque,
        layers: facts::all_layers(g),
        warnings: model.warnings.clone(),
        sizes_open: facts::has_open_sizes(g),
    };
    terminal::print(&if args.json { terminal::json(&i)? } else { text(&i) })?;
    Ok(())
}

/// Channels that can only be pruned together.
#[derive(Serialize)]
struct ChannelGroup {
    /// The layers that make them.
    made_by: Vec<String>,
    /// The layers that read them.
    read_by: Vec<String>,
    /// How many can go on their own, if several in turn, those as one.
    units: usize,
    /// How many of these may go.
    open: usize,
    /// Why the others may not.
    closed: Vec<String>,
}

/// The groups of a graph as `--prune-channels` sees them: simplified.
fn groups(g: &Graph) -> Result<Vec<ChannelGroup>> {
    let mut g = g.clone();
    simplify(&mut g, &Context::new(&BurnEvaluator::cpu()))?;
    let all = Groups::find(&g)?;
    let name = |l: &Layer| g.node(l.node).display_name().to_string();
    let group = |group: &Group| {
        let whole = all.closed(&g, group);
        let why = |unit: &Unit| all.obstacle(unit).or(whole.as_deref()).map(String::from);
        let why: Vec<Option<String>> = group.units.iter().map(why).collect();
        ChannelGroup {
            made_by: all.makers(group).map(name).collect(),
            read_by: all.readers(group).map(name).collect(),
            units: why.len(),
            open: why.iter().filter(|why| why.is_none()).count(),
            closed: why.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().collect(),
        }
    };
    Ok(all.groups.iter().map(group).collect())
}

fn groups_text(groups: &[ChannelGroup]) -> String {
    if groups.is_empty() {
        return "no channels: the model has no layer with constant float weights\n".into();
    }
    let mut t = vec![];
    for group in groups {
        let of = if group.open == group.units { String::new() } else { format!("{} of ", group.open) };
        let readers = if group.read_by.is_empty() { "no layer".into() } else { group.read_by.join(", ") };
        t.push(format!("{of}{} of {}, read by {readers}", counted(group.units, "unit"), group.made_by.join(", ")));
        t.extend(group.closed.iter().map(|why| format!("  closed: {why}")));
    }
    t.join("\n") + "\n"
}

fn signature(g: &Graph, name: &str, port: Port) -> Signature {
    Signature { name: name.into(), r#type: g.fact(port).to_string() }
}

fn text(i: &Inspection) -> String {
    let f = &i.file;
    let mut t = vec![format!(
        "{}: opset {}, {}, {} operators, {} parameters, {} MACs a sample{}",
        f.path,
        i.opset,
        terminal::bytes(f.bytes),
        f.nodes,
        f.parameters,
        terminal::count(f.macs),
        if i.sizes_open { " where sizes that the model leaves open are 1" } else { "" }
    )];
    for (kind, list) in [("input", &i.inputs), ("output", &i.outputs)] {
        t.extend(list.iter().map(|s| format!("  {kind:<7} {}: {}", s.name, s.r#type)));
    }
    t.push("operators".into());
    t.extend(i.operators.iter().map(|(name, n)| format!("  {n:>5} {name}")));
    t.push(format!("layers{:>38}{:>10}{:>8}{:>10}", "operator", "weight", "zero", "MACs"));
    t.extend(i.layers.iter().map(|l| {
        let macs = terminal::count(l.macs);
        format!("  {:<32}{:>10}{:>10}{:>7.1}%{macs:>10}", l.node, l.op, l.precision, l.sparsity * 100.0)
    }));
    t.extend(i.opaque.iter().map(|(n, why)| format!("  note: `{n}` is kept as it is and can't be run here: {why}")));
    t.extend(i.warnings.iter().map(|w| format!("  note: {w}")));
    t.join("\n") + "\n"
}
