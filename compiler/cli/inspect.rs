//! `compress inspect`: what a model is made of.

use crate::{args::InspectArgs, facts, terminal};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::Port,
    onnx,
    op::{Op, Operator},
};
use serde::Serialize;
use std::collections::BTreeMap;

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
        terminal::print(&g.to_string());
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
        layers: facts::layers(g).into_iter().map(|(_, l)| l).collect(),
        warnings: model.warnings.clone(),
    };
    terminal::print(&if args.json { terminal::json(&i)? } else { text(&i) });
    Ok(())
}

fn signature(g: &Graph, name: &str, port: Port) -> Signature {
    Signature { name: name.into(), r#type: g.fact(port).to_string() }
}

fn text(i: &Inspection) -> String {
    let f = &i.file;
    let mut t = vec![format!(
        "{}: opset {}, {}, {} operators, {} parameters, {} MACs a sample",
        f.path,
        i.opset,
        terminal::bytes(f.bytes),
        f.nodes,
        f.parameters,
        terminal::count(f.macs)
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
