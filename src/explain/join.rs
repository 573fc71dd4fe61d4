//! Which kernels compute which nodes, on one engine and on the other.
//!
//! An engine fuses nodes, so that few of a graph's values exist when it runs. A kernel *ends* in the nodes whose values it makes;
//! every other node is computed by a kernel that ends in one of its readers. Kernels of two engines that share a node belong
//! to one part: the smallest one in which the times of both are of the same work.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
};
use compress_runtime::{cpu::Spent, onnxruntime::Ran};
use std::collections::{HashMap, HashSet};

/// A kernel that ran.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// The node that it ran for.
    pub node: String,
    /// Milliseconds of a run.
    pub ms: f64,
    /// Whether it works on 8-bit codes.
    pub on_codes: bool,
    /// Whether it changes the type or the layout of a value alone.
    pub converts: bool,
}

/// The kernels of an engine, in groups: one that makes values of the graph, and those that prepare for it.
#[derive(Debug, Default)]
pub struct Kernels {
    groups: Vec<Vec<Kernel>>,
    /// The group that ends in a node.
    ends: HashMap<NodeId, usize>,
}

/// Operators that ONNX Runtime fuses into the layer before. A layer by codes rounds its result, too.
const FUSED: &[&str] =
    &["Add", "Relu", "Clip", "Sigmoid", "HardSigmoid", "LeakyRelu", "Tanh", "BatchNormalization", "QuantizeLinear"];

/// Nodes, and all that computes them.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// The nodes, in the order of the graph.
    pub nodes: Vec<NodeId>,
    /// Our runtime's kernels.
    pub ours: Vec<Kernel>,
    /// ONNX Runtime's.
    pub theirs: Vec<Kernel>,
}

impl Part {
    /// What to call a part without nodes: by what its kernel ran for.
    pub fn nameless(&self) -> String {
        self.kernels().find(|k| !k.node.is_empty()).map_or_else(|| "(between nodes)".into(), |k| k.node.clone())
    }

    /// All kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.ours.iter().chain(&self.theirs)
    }
}

impl Kernels {
    /// Those of our runtime: each step names the node that it ends in.
    pub fn ours(graph: &Graph, spent: &[Spent]) -> Self {
        let labels: HashMap<String, NodeId> = graph.operators().map(|n| (graph.node(n).label(), n)).collect();
        let mut all = Self::default();
        for step in spent {
            let kernel = Kernel {
                name: step.kernel.name.into(),
                node: step.node.clone(),
                ms: step.ms,
                on_codes: step.kernel.on_codes(),
                converts: step.kernel.converts(),
            };
            all.add(vec![kernel], labels.get(&step.node).map(std::slice::from_ref).unwrap_or_default());
        }
        all
    }

    /// Those of ONNX Runtime, whose optimised graph keeps the names of the values that it makes, or calls a node after the
    /// value or the node that it stands for.
    pub fn onnxruntime(graph: &Graph, order: &[NodeId], ran: &[Ran]) -> Self {
        let mut values: HashMap<&str, NodeId> = HashMap::new();
        let mut nodes: HashMap<&str, NodeId> = HashMap::new();
        for n in graph.operators() {
            nodes.insert(&graph.node(n).name, n);
            values.extend(graph.node(n).outputs.iter().map(|v| (&v.name[..], n)));
        }
        nodes.remove("");
        let ends = |r: &Ran| -> Vec<NodeId> {
            let made: Vec<NodeId> = r.node.outputs.iter().filter_map(|o| values.get(&o[..]).copied()).collect();
            if !made.is_empty() {
                return made;
            }
            let name = untagged(&r.node.name);
            let of_value = name.strip_suffix("_nchwc").and_then(|value| values.get(value));
            of_value.or_else(|| nodes.get(name).filter(|_| !r.converts())).copied().into_iter().collect()
        };
        let readers: HashMap<&str, usize> =
            ran.iter().enumerate().rev().flat_map(|(i, r)| r.node.inputs.iter().map(move |v| (&v[..], i))).collect();
        let found: Vec<Vec<NodeId>> = ran.iter().map(ends).collect();
        // A kernel that makes no value of the graph prepares for the first one that reads what it makes.
        let leader = |mut i: usize| {
            for _ in 0..ran.len() {
                let next = ran[i].node.outputs.iter().find_map(|o| readers.get(&o[..]));
                match next {
                    Some(next) if found[i].is_empty() => i = *next,
                    _ => break,
                }
            }
            i
        };
        let mut members: HashMap<usize, Vec<Kernel>> = HashMap::new();
        for (i, r) in ran.iter().enumerate() {
            let kernel = Kernel {
                name: r.kernel(),
                node: r.node.name.clone(),
                ms: r.ms,
                on_codes: r.on_codes(),
                converts: r.converts(),
            };
            members.entry(leader(i)).or_default().push(kernel);
        }
        let mut all = Self::default();
        let mut open = HashSet::new();
        for (i, ends) in found.into_iter().enumerate() {
            if let Some(kernels) = members.remove(&i) {
                all.add(kernels, &ends);
                // It makes none of the graph's values: what it computes ends somewhere behind the node that it is called after.
                if !ran[i].node.outputs.iter().any(|o| values.contains_key(&o[..])) {
                    open.extend(ends);
                }
            }
        }
        all.extend(graph, order, open);
        all
    }

    /// Adds to kernels whose end is `open` the sums and activations behind it in which no kernel ends: they are fused.
    fn extend(&mut self, graph: &Graph, order: &[NodeId], mut open: HashSet<NodeId>) {
        for n in order.iter().filter(|n| FUSED.contains(&graph.op(**n).op_type())) {
            let before = graph.operands(*n).into_iter().flatten().rfind(|p| open.contains(&p.node));
            let group = before.and_then(|p| self.ends.get(&p.node).copied());
            if let (Some(group), false) = (group, self.ends.contains_key(n)) {
                self.ends.insert(*n, group);
                open.insert(*n);
            }
        }
    }

    /// Adds kernels that end in some nodes. If others made these before, they only change the layout of what those made.
    fn add(&mut self, kernels: Vec<Kernel>, ends: &[NodeId]) {
        let taken = ends.iter().find_map(|node| self.ends.get(node).copied());
        let group = taken.unwrap_or_else(|| {
            self.groups.push(vec![]);
            self.groups.len() - 1
        });
        self.groups[group].extend(kernels);
        for node in ends {
            self.ends.entry(*node).or_insert(group);
        }
    }

    /// The group that computes each node; `order` is topological.
    fn computing(&self, graph: &Graph, order: &[NodeId]) -> HashMap<NodeId, usize> {
        let mut by: HashMap<NodeId, usize> = HashMap::new();
        for n in order.iter().rev() {
            let ports = (0..graph.node(*n).outputs.len()).map(|slot| Port { node: *n, slot });
            let readers = || ports.flat_map(|port| graph.uses(port)).find_map(|u| by.get(&u.node).copied());
            if let Some(group) = self.ends.get(n).copied().or_else(readers) {
                by.insert(*n, group);
            }
        }
        by
    }
}

/// A name without the number that ONNX Runtime adds to make it a new one.
fn untagged(name: &str) -> &str {
    match name.rsplit_once("_token_") {
        Some((own, number)) if number.bytes().all(|b| b.is_ascii_digit()) => own,
        _ => name,
    }
}

/// The parts of a graph whose nodes are in `order`.
pub fn parts(graph: &Graph, order: &[NodeId], ours: Kernels, theirs: Kernels) -> Vec<Part> {
    let order: Vec<NodeId> = computed(graph, order);
    let by = [ours.computing(graph, &order), theirs.computing(graph, &order)];
    // Groups of both engines are numbered together.
    let first = ours.groups.len();
    let mut whole: Vec<usize> = (0..first + theirs.groups.len()).collect();
    for n in &order {
        if let (Some(a), Some(b)) = (by[0].get(n), by[1].get(n)) {
            let (a, b) = (root(&mut whole, *a), root(&mut whole, first + b));
            whole[a.max(b)] = a.min(b);
        }
    }
    let mut parts: HashMap<usize, Part> = HashMap::new();
    for n in order {
        let group = by[0].get(&n).copied().or_else(|| by[1].get(&n).map(|b| first + b));
        if let Some(group) = group {
            parts.entry(root(&mut whole, group)).or_default().nodes.push(n);
        }
    }
    for (i, group) in ours.groups.into_iter().chain(theirs.groups).enumerate() {
        let part = parts.entry(root(&mut whole, i)).or_default();
        (if i < first { &mut part.ours } else { &mut part.theirs }).extend(group);
    }
    let mut parts: Vec<(usize, Part)> = parts.into_iter().collect();
    parts.sort_by_key(|(root, _)| *root);
    parts.into_iter().map(|(_, part)| part).collect()
}

/// The operators that depend on an input: the others are computed when a model is loaded.
fn computed(graph: &Graph, order: &[NodeId]) -> Vec<NodeId> {
    let mut fixed: HashSet<NodeId> = HashSet::new();
    for n in order {
        let constant = match graph.op(*n) {
            Op::Constant(_) => true,
            Op::Input(_) => false,
            op => op.bodies().is_empty() && graph.operands(*n).into_iter().flatten().all(|p| fixed.contains(&p.node)),
        };
        if constant {
            fixed.insert(*n);
        }
    }
    order.iter().copied().filter(|n| !fixed.contains(n) && !matches!(graph.op(*n), Op::Input(_))).collect()
}

/// The least group of those that `group` is joined with.
fn root(whole: &mut [usize], mut group: usize) -> usize {
    while whole[group] != group {
        whole[group] = whole[whole[group]];
        group = whole[group];
    }
    group
}
