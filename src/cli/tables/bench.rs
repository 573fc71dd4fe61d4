//! How fast a model is.

use crate::{Figures, NodeTime, Timed};
use std::collections::BTreeMap;

/// Nodes that are listed; --json has all.
const SLOWEST: usize = 10;

/// The nodes or kernels that take longest, with their share.
fn slowest(nodes: &[NodeTime], name: impl Fn(&NodeTime) -> &str, most: usize) -> Vec<(String, f64, usize)> {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for n in nodes {
        let sum = sums.entry(name(n)).or_default();
        *sum = (sum.0 + n.ms, sum.1 + 1);
    }
    let mut list: Vec<(String, f64, usize)> = sums.into_iter().map(|(n, (ms, k))| (n.into(), ms, k)).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1));
    list.truncate(most);
    list
}

/// How fast a model is, for people.
pub fn figures(f: &Figures) -> String {
    let line = |t: &Timed| {
        format!(
            "median {:.3} ms, p90 {:.3} ms, {:.0} samples/s ({}, {}, {} threads)",
            t.median_ms, t.p90_ms, t.samples_per_second, t.device, t.engine, t.threads
        )
    };
    let mut out = format!("{}: batch {}, {} runs\n  {}\n", f.model, f.batch, f.runs, line(&f.on));
    if let (Some(r), Some(d)) = (&f.reference, f.max_relative_difference) {
        out += &format!("  {}\n  {:.2}x, outputs differ by {d:.1e} relative\n", line(r), r.median_ms / f.on.median_ms);
    }
    let all: f64 = f.on.nodes.iter().map(|n| n.ms).sum();
    for (title, list) in [
        ("kernel", slowest(&f.on.nodes, |n| &n.kernel, usize::MAX)),
        ("node", slowest(&f.on.nodes, |n| &n.node, SLOWEST)),
    ] {
        out += &format!("\n  {:>9}  share  calls  {title}\n", "least ms");
        for (name, ms, calls) in list {
            out += &format!("  {ms:>9.4}  {:>4.0}%  {calls:>5}  {name}\n", 100.0 * ms / all);
        }
    }
    out
}
