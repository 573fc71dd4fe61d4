//! How far what was asked for was done: layers and multiply-accumulates, and why others were left alone.

use super::CompressPlan;
use crate::{
    facts,
    report::{Coverage, LayerFacts, Left, Report},
};
use compress_compiler::{
    captured,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    pass::reasons,
    words::option::{EXCLUDE, KEEP_LAYERS, LAYER, STOP_AFTER, TARGET, WEIGHTS},
};
use compress_passes::{nested, pipeline, quant::layer_forms::LayerRule};
use regex::Regex;
use std::collections::{HashMap, HashSet};

/// Less than this share of the multiply-accumulates is told on stderr too.
const HALF: f64 = 0.5;
/// Passes that flags ask for.
const ASKED: [&str; 8] = ["layers", "channels", "low-rank", "target", "prune", "recover", "weights", "int8"];
/// Reasons that a sentence names.
const NAMED: usize = 3;

/// Finds out how far `plan` was done in `graph`, the result, at the sizes that were measured.
pub fn find(plan: &CompressPlan, graph: &Graph, report: &mut Report) {
    let options = &plan.options;
    let named = (&options.exclude[..], &options.rules[..]);
    if options.scheme.is_some() && plan.recipe.stop_after.is_none() {
        let is_int8 = |l: &LayerFacts| l.precision == "int8";
        let covered = covered("int8", graph, report, named, &is_int8);
        add(report, "INT8", "quantised", covered);
        let inside = facts::layers_in_loops(graph).iter().filter(|l| is_int8(l)).count();
        if inside > 0 {
            let layers = if inside == 1 { "1 INT8 layer is".into() } else { format!("{inside} INT8 layers are") };
            report.warnings.push(format!(
                "{layers} inside Loop or Scan, where our runtime computes in floats: the latency here says nothing of \
                 them. ONNX Runtime has integer kernels there"
            ));
        }
    }
    if options.prune.is_some_and(|f| f > 0.0) || options.pattern.is_some() {
        let covered = covered("prune", graph, report, named, &|l| l.dead_bytes > 0);
        if covered.layers == 0 {
            add(report, "pruning", "pruned", covered);
        } else {
            report.coverage.push(covered);
        }
    }
    let did = |name: &str| report.passes.iter().any(|p| p.name == name && p.edits > 0);
    let (tables, weights) = (did("tables"), did("weights"));
    if let Some(pass) = report.passes.iter().find(|p| p.name == "weights" && p.edits == 0 && !tables) {
        let why = reasons(&pass.skipped);
        report.undone.push(format!("asked for {WEIGHTS}: no weight became codes ({why})"));
    }
    // Rules name the layers that are meant: what is not done of those the pass says.
    if options.weights.is_some() && weights {
        let is_code = |l: &LayerFacts| !matches!(&l.precision[..], "f32" | "f16" | "bf16");
        let covered = covered("weights", graph, report, named, &is_code);
        add(report, &WEIGHTS.to_string(), "stored in codes", covered);
    }
    report.undone.extend(missed(plan));
    let by_codes = |g: &Graph| g.operators().any(|n| matches!(g.op(n), Op::DynamicLstm(_)));
    // Weights in blocks are read back as what they stand for.
    let in_blocks = weights || tables && options.weights.is_some();
    let is_used = in_blocks && options.target.capabilities().by_bits || graph.and_bodies().into_iter().any(by_codes);
    let target = report.passes.iter().find(|p| p.name == "target" && p.edits == 0 && !is_used);
    if let Some(pass) = target {
        let why = match &pass.skipped[..] {
            [] => "the model has neither attention nor RMS normalisation in a form that is known, and no LSTM by codes"
                .to_string(),
            [first, ..] => format!("{}: {}", first.node, first.reason),
        };
        report.undone.push(format!("asked for {TARGET} {}: no operator was replaced ({why})", options.target));
    }
    if let (Some(asked), Some(0)) = (options.layers, report.passes.iter().find(|p| p.name == "layers").map(|p| p.edits))
    {
        report.undone.push(format!("asked for {KEEP_LAYERS} {asked}: the model has no more layers"));
    }
    report.undone.extend(report.passes.iter().flat_map(|pass| pass.undone.clone()));
}

/// What the end of the pipeline leaves out of what was asked for.
pub fn missed(plan: &CompressPlan) -> Option<String> {
    let stop = plan.recipe.stop_after.as_deref()?;
    let reached = plan.pipeline(&plan.options).passes;
    let missed = pipeline(&plan.options, None).passes.into_iter().skip(reached.len()).map(|p| p.name());
    let asked: Vec<&str> = missed.filter(|name| ASKED.contains(name)).collect();
    (!asked.is_empty()).then(|| format!("{STOP_AFTER} {stop} ends before {}", asked.join(", ")))
}

fn add(report: &mut Report, what: &str, done: &str, covered: Coverage) {
    let low = covered.layers == 0 || covered.macs.is_some_and(|m| m < HALF);
    if low {
        let noun = if covered.of_layers == 1 { "layer is" } else { "layers are" };
        let share = covered.macs.filter(|_| covered.layers > 0);
        let share = share.map_or(String::new(), |m| format!(", {:.0}% of the multiply-accumulates", 100.0 * m));
        let left = sentence(&covered.left);
        let line = format!("asked for {what}: {} of {} {noun} {done}{share}{left}", covered.layers, covered.of_layers);
        report.undone.push(line);
    }
    report.coverage.push(covered);
}

/// Why layers were left, in a parenthesis.
fn sentence(left: &[Left]) -> String {
    let one = |l: &Left| {
        let share = l.macs.map_or(String::new(), |m| format!("{:.0}% of the multiply-accumulates are in ", 100.0 * m));
        format!("{share}{} {}: {}", l.layers, l.op, l.reason)
    };
    match left {
        [] => " (the model has no layers with weights)".into(),
        _ => format!(" ({})", left.iter().take(NAMED).map(one).collect::<Vec<_>>().join("; ")),
    }
}

/// The layers for which `is_done` holds, and the others.
fn covered(
    pass: &'static str,
    graph: &Graph,
    report: &Report,
    (exclude, rules): (&[Regex], &[LayerRule]),
    is_done: &dyn Fn(&LayerFacts) -> bool,
) -> Coverage {
    let skipped: HashMap<&str, &str> = report
        .passes
        .iter()
        .filter(|p| p.name == pass || pass == "prune" && p.name == "recover")
        .flat_map(|p| &p.skipped)
        .map(|s| (s.node.as_str(), s.reason.as_str()))
        .collect();
    // All zeros come from rounding where pruning changed nothing.
    let edits = |name: &str| report.passes.iter().find(|p| p.name == name).map(|p| p.edits);
    let rounded = edits("prune") == Some(0) && edits("int8").is_some_and(|n| n > 0);
    let (graphs, inner) = (graph.and_bodies(), nested::take(graph));
    // In the same order.
    let outer: HashSet<(usize, NodeId)> = nested::readers(graph, &inner).iter().map(|r| (r.at + 1, r.node)).collect();
    // Of a layer whose sizes are not known, neither are the multiply-accumulates.
    let mut unsized_layers = false;
    let opaque = graphs.iter().any(|g| g.operators().any(|n| matches!(g.op(n), Op::Opaque(_))));
    let mut covered = Coverage { request: pass, layers: 0, of_layers: 0, macs: None, left: vec![] };
    let (mut done, mut all, mut left) = (0u64, 0u64, vec![]);
    // With weights from around them, which have the same nodes.
    let moved = captured::moved_in(graph).ok().flatten();
    let whole = moved.as_ref().unwrap_or(graph).and_bodies();
    for (at, (g, whole)) in graphs.iter().zip(whole).enumerate() {
        let known: HashMap<NodeId, LayerFacts> = facts::layers(whole).into_iter().collect();
        for node in g.operators() {
            let macs = g.macs(node);
            all += macs;
            let name = g.node(node).display_name();
            let layer = known.get(&node);
            let is_layer = layer.is_some() || has_weights(g, node) || outer.contains(&(at, node));
            covered.of_layers += usize::from(is_layer);
            unsized_layers |= is_layer && macs == 0;
            // Rounding makes zeros too, of layers that pruning left alone.
            let left_alone = pass == "prune" && (at > 0 || rounded || skipped.contains_key(name));
            if layer.is_some_and(is_done) && !left_alone {
                covered.layers += 1;
                done += macs;
            } else if is_layer || macs > 0 {
                let label = g.node(node).label();
                let reason = skipped.get(name).or_else(|| skipped.get(&label[..])).map(ToString::to_string);
                let excluded = || exclude.iter().any(|r| r.is_match(name)).then(|| format!("excluded by {EXCLUDE}"));
                let ruled = || {
                    let rule = rules.iter().find(|rule| rule.name.is_match(name))?;
                    (pass == "int8").then(|| format!("{LAYER} says {}", rule.form))
                };
                let reason =
                    reason.or_else(excluded).or_else(ruled).unwrap_or_else(|| usual(g, whole, node, at > 0, pass));
                left.push((g.op(node).op_type().to_string(), reason, macs));
            }
        }
    }
    let share = |macs: u64| (all > 0 && !opaque && !unsized_layers).then(|| macs as f64 / all as f64);
    covered.macs = share(done);
    let mut groups: Vec<(Left, u64)> = vec![];
    for (op, reason, macs) in left {
        match groups.iter_mut().find(|(l, _)| l.op == op && l.reason == reason) {
            Some((l, sum)) => (l.layers, *sum) = (l.layers + 1, *sum + macs),
            None => groups.push((Left { op, layers: 1, macs: None, reason }, macs)),
        }
    }
    groups.sort_by_key(|(_, macs)| std::cmp::Reverse(*macs));
    covered.left = groups.into_iter().map(|(l, macs)| Left { macs: share(macs), ..l }).collect();
    covered
}

/// Whether a node multiplies by constants of its own.
fn has_weights(g: &Graph, node: NodeId) -> bool {
    match g.op(node) {
        Op::Recurrent(_) | Op::DynamicLstm(_) => true,
        op => op.weight().and_then(|w| facts::stored(g, g.operand(node, w.slot)?)).is_some(),
    }
}

/// Whether the weight of a node is a constant from around the graph; `whole` has these as its own.
fn reads_outer(g: &Graph, whole: &Graph, node: NodeId, op: &Op) -> bool {
    let weight = |g: &Graph| op.weight().and_then(|w| g.operand(node, w.slot));
    let is_constant = weight(whole).is_some_and(|port| whole.constant(port).is_some());
    is_constant && weight(g).is_some_and(|port| matches!(g.op(port.node), Op::Input(_)))
}

/// Why a node is left alone of which the pass said nothing; `whole` is the graph with constants from around it.
fn usual(g: &Graph, whole: &Graph, node: NodeId, inside: bool, pass: &str) -> String {
    match g.op(node) {
        Op::Recurrent(_) if pass == "int8" => "ONNX has no operator for it by codes".into(),
        Op::Recurrent(_) => "weights of recurrent layers stay as they are".into(),
        Op::IntegerConv(_) | Op::IntegerMatMul(_) | Op::DynamicLstm(_) => "it is in integers already".into(),
        Op::ConvTranspose(_) if pass == "int8" => {
            "it is not quantised: ONNX Runtime has no integer kernel for it".into()
        }
        op if inside && pass == "int8" && reads_outer(g, whole, node, op) => {
            "its weight is shared with what is around the branch or loop".into()
        }
        _ if inside && pass == "prune" => "it is inside If, Loop or Scan".into(),
        op if op.weight().is_some() && !has_weights(g, node) => {
            let is_fixed = |p: Port| {
                let made_of = || g.operands(p.node).into_iter().flatten().all(|p| g.constant(p).is_some());
                g.constant(p).is_some() || matches!(g.op(p.node), Op::Transpose(_)) && made_of()
            };
            match g.operands(node).into_iter().flatten().any(is_fixed) {
                true => "its weight isn't a constant matrix on its right side".into(),
                false => "it multiplies two activations".into(),
            }
        }
        _ if pass == "int8" => "it stays in floating point".into(),
        _ => "it was left alone".into(),
    }
}
