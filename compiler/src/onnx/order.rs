//! The order of nodes, and what they read from around them.

use super::opset;
use crate::error::{Error, Result};
use onnx_protobuf::NodeProto;
use std::collections::{HashMap, HashSet, VecDeque};

/// The names that a node's subgraphs read and don't make: values of an outer graph.
pub fn captured(node: &NodeProto) -> Vec<String> {
    let mut out = vec![];
    for g in opset::subgraphs(node) {
        let mut own: HashSet<&str> = g.input.iter().map(|v| &v.name[..]).collect();
        own.extend(g.initializer.iter().map(|t| &t.name[..]));
        own.extend(g.node.iter().flat_map(|n| n.output.iter().map(|o| &o[..])));
        let inner = g.node.iter().flat_map(|n| n.input.iter().cloned().chain(captured(n)));
        let results = g.output.iter().map(|o| o.name.clone());
        for name in inner.chain(results) {
            if !name.is_empty() && !own.contains(&name[..]) && !out.contains(&name) {
                out.push(name);
            }
        }
    }
    out
}

/// The nodes, each after those it reads from: files are meant to be sorted, many aren't.
///
/// # Errors
/// Malformed for a cycle, and for a value that two nodes make.
pub fn sorted(nodes: Vec<NodeProto>) -> Result<Vec<NodeProto>> {
    let mut maker: HashMap<&str, usize> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        for o in n.output.iter().filter(|o| !o.is_empty()) {
            if maker.insert(o, i).is_some() {
                return Err(Error::malformed(format!("two nodes make `{o}`")));
            }
        }
    }
    let mut waiting = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for (i, n) in nodes.iter().enumerate() {
        let captures = captured(n);
        for name in n.input.iter().chain(&captures) {
            if let Some(&m) = maker.get(&name[..]) {
                waiting[i] += 1;
                readers[m].push(i);
            }
        }
    }
    let mut ready: VecDeque<usize> = (0..nodes.len()).filter(|i| waiting[*i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(i) = ready.pop_front() {
        order.push(i);
        for &r in &readers[i] {
            waiting[r] -= 1;
            if waiting[r] == 0 {
                ready.push_back(r);
            }
        }
    }
    if order.len() < nodes.len() {
        let stuck = waiting.iter().position(|w| *w > 0).map_or("", |i| &nodes[i].name);
        return Err(Error::malformed("the graph has a cycle").at(format!("`{stuck}`")));
    }
    // A file that is sorted already keeps its order.
    if readers.iter().enumerate().all(|(i, r)| r.iter().all(|r| *r > i)) {
        return Ok(nodes);
    }
    let mut slots: Vec<Option<NodeProto>> = nodes.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|i| slots[i].take()).collect())
}
