//! What a model is made of.

use crate::{ChannelGroup, Inspection, shown};
use compress_compiler::words::counted;

/// Channels that go together, for people.
pub fn groups(groups: &[ChannelGroup]) -> String {
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

/// What a model is made of, for people.
pub fn inspection(i: &Inspection) -> String {
    let f = &i.file;
    let mut t = vec![format!(
        "{}: opset {}, {}, {} operators, {} parameters, {} MACs a sample{}",
        f.path,
        i.opset,
        shown::bytes(f.bytes),
        f.nodes,
        f.parameters,
        shown::count(f.macs),
        if i.sizes_open { " where sizes that the model leaves open are 1" } else { "" }
    )];
    for (kind, list) in [("input", &i.inputs), ("output", &i.outputs)] {
        t.extend(list.iter().map(|s| format!("  {kind:<7} {}: {}", s.name, s.r#type)));
    }
    t.push("operators".into());
    t.extend(i.operators.iter().map(|(name, n)| format!("  {n:>5} {name}")));
    let op = i.layers.iter().map(|l| l.op.len() + 2).fold(10, usize::max);
    t.push(format!("layers{:>28}{:>op$}{:>10}{:>8}{:>10}", "", "operator", "weight", "zeros", "MACs"));
    t.extend(i.layers.iter().map(|l| {
        let macs = shown::count(l.macs);
        format!("  {:<32}{:>op$}{:>10}{:>7.1}%{macs:>10}", l.node, l.op, l.precision, l.sparsity * 100.0)
    }));
    t.extend(i.opaque.iter().map(|(n, why)| format!("  note: `{n}` is kept as it is and can't be run here: {why}")));
    t.extend(i.warnings.iter().map(|w| format!("  note: {w}")));
    t.join("\n") + "\n"
}
