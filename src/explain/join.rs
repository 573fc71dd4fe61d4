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
    /// The value of the model that it makes, if it makes one.
    pub value: Option<String>,
    /// Milliseconds of a run.
    pub ms: f64,
    /// Whether it works on 8-bit codes.
    pub on_codes: bool,
    /// Whether it changes the type or the layout of a value alone.
    pub converts: bool,
    /// Whether all that it reads is constant.
    pub of_constants: bool,
}

/// The kernels of an engine, in groups: one that makes values of the graph, and those that prepare for it.
#[derive(Debug, Default)]
pub struct Kernels {
    groups: Vec<Vec<Kernel>>,
    /// The group that ends in a node.
    ends: HashMap<NodeId, usize>,
}

/// From how many steps a weight is made, at most: codes are scaled, transposed, and so on.
const STEPS: usize = 8;

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
                value: None,
                ms: step.ms,
                on_codes: step.kernel.on_codes(),
                converts: step.kernel.converts(),
                of_constants: false,
            };
            all.add(vec![kernel], labels.get(&step.node).map(std::slice::from_ref).unwrap_or_default());
        }
        all
    }

    /// Those of ONNX Runtime, whose optimised graph `ran`.
    pub fn onnxruntime(graph: &Graph, order: &[NodeId], ran: &[Ran]) -> Self {
        let names = Names::new(graph, order);
        let found: Vec<Vec<NodeId>> = ran.iter().map(|r| names.ends(graph, r)).collect();
        let readers: HashMap<&str, usize> =
            ran.iter().enumerate().rev().flat_map(|(i, r)| r.node.inputs.iter().map(move |v| (&v[..], i))).collect();
        // A kernel that makes no value of the graph prepares for the first one that reads what it makes.
        let mut leaders: Vec<usize> = (0..ran.len()).collect();
        for (i, r) in ran.iter().enumerate().rev().filter(|(i, _)| found[*i].is_empty()) {
            // Readers come later, so that theirs are known.
            let reader = r.node.outputs.iter().find_map(|o| readers.get(&o[..])).filter(|reader| **reader > i);
            leaders[i] = reader.map_or(i, |reader| leaders[*reader]);
        }
        let mut members: HashMap<usize, Vec<Kernel>> = HashMap::new();
        for (i, r) in ran.iter().enumerate() {
            names.kernels(r, "", members.entry(leaders[i]).or_default());
        }
        // What brings a result into the layout of the file computes none of the nodes that it makes a value of.
        let only_lays_out = |i: usize| {
            let computes = |n: &NodeId| {
                let op = graph.op(*n);
                op.op_type() != ran[i].node.op && !matches!(op, Op::Quantize(_) | Op::Dequantize(_))
            };
            ran[i].converts() && found[i].iter().all(computes)
        };
        let (later, first): (Vec<usize>, Vec<usize>) = (0..ran.len()).partition(|i| only_lays_out(*i));
        let mut all = Self::default();
        let mut open = HashSet::new();
        for i in first {
            all.add(members.remove(&i).unwrap_or_default(), &found[i]);
            // It makes none of the graph's values: what it computes ends somewhere behind the node that it is called after.
            if names.made(&ran[i]).is_none() {
                open.extend(&found[i]);
            }
        }
        all.extend(graph, order, open);
        for i in later {
            all.add(members.remove(&i).unwrap_or_default(), &found[i]);
        }
        all
    }

    /// Adds to kernels whose end is `open` the operators on single elements behind it in which no kernel ends: they are fused.
    fn extend(&mut self, graph: &Graph, order: &[NodeId], mut open: HashSet<NodeId>) {
        for n in order.iter().filter(|n| is_elementwise(graph.op(**n))) {
            // Of two the one that ran last: it reads what the other made.
            let before = graph.operands(*n).into_iter().flatten().filter(|p| open.contains(&p.node));
            let group = before.filter_map(|p| self.ends.get(&p.node).copied()).max();
            if let (Some(group), false) = (group, self.ends.contains_key(n)) {
                self.ends.insert(*n, group);
                open.insert(*n);
            }
        }
    }

    /// Adds kernels that end in some nodes. If others made these before, they only change the layout of what
    /// those made.
    fn add(&mut self, kernels: Vec<Kernel>, ends: &[NodeId]) {
        if kernels.is_empty() {
            return;
        }
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

/// What ONNX Runtime's optimised graph keeps of a graph: it has the names of the values that it makes, or calls a node after the
/// value or the node that it stands for. Where these have no name, the weight tells which layer it is.
struct Names<'a> {
    /// Which node makes a value.
    values: HashMap<&'a str, NodeId>,
    nodes: HashMap<&'a str, NodeId>,
    /// Which layer alone multiplies by a constant, or by what is made of it.
    weights: HashMap<&'a str, Option<NodeId>>,
    /// What depends on no input, and the values of that.
    fixed: HashSet<NodeId>,
    constants: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn new(graph: &'a Graph, order: &[NodeId]) -> Self {
        let (mut values, mut nodes, mut weights) = (HashMap::new(), HashMap::new(), HashMap::new());
        let fixed = fixed(graph, order);
        for n in order.iter().copied().filter(|n| !matches!(graph.op(*n), Op::Input(_) | Op::Constant(_))) {
            nodes.insert(&graph.node(n).name[..], n);
            values.extend(graph.node(n).outputs.iter().map(|v| (&v.name[..], n)));
            let weight = graph.op(n).weight().and_then(|axes| graph.operand(n, axes.slot));
            let made_of = |p: &Port| graph.operand(p.node, 0).filter(|p| fixed.contains(&p.node));
            for port in std::iter::successors(weight.filter(|p| fixed.contains(&p.node)), made_of).take(STEPS) {
                let only = weights.entry(&graph.value(port).name[..]).or_insert(Some(n));
                *only = only.filter(|known| *known == n);
            }
        }
        nodes.remove("");
        let constants = fixed.iter().flat_map(|n| &graph.node(*n).outputs).map(|v| &v.name[..]).collect();
        Self { values, nodes, weights, fixed, constants }
    }

    /// The nodes whose values a kernel makes. None for one that makes what could be made when the model is loaded: it prepares
    /// for others.
    fn ends(&self, graph: &Graph, ran: &Ran) -> Vec<NodeId> {
        let made: Vec<NodeId> = ran.node.outputs.iter().filter_map(|o| self.values.get(&o[..]).copied()).collect();
        if !made.is_empty() {
            return made.into_iter().filter(|n| !self.fixed.contains(n)).collect();
        }
        let name = untagged(&ran.node.name);
        let of_value = || name.strip_suffix("_nchwc").and_then(|value| self.values.get(value)).copied();
        let of_node = || self.nodes.get(name).copied();
        let of_weight = || ran.node.inputs.iter().find_map(|v| self.weights.get(&v[..]).copied().flatten());
        let end = of_value().or_else(|| if ran.converts() { None } else { of_node().or_else(of_weight) });
        end.filter(|n| !self.fixed.contains(n) && !matches!(graph.op(*n), Op::Constant(_))).into_iter().collect()
    }

    /// The value of the graph that a kernel makes, if it makes one.
    fn made<'b>(&self, ran: &'b Ran) -> Option<&'b String> {
        ran.node.outputs.iter().find(|o| self.values.contains_key(&o[..]))
    }

    /// Adds a kernel, and those inside it, which run for nodes `within` another.
    fn kernels(&self, ran: &Ran, within: &str, to: &mut Vec<Kernel>) {
        let value = self.made(ran).filter(|_| within.is_empty());
        let node = format!("{within}{}", if ran.label.is_empty() { &ran.node.name } else { &ran.label });
        let mut inputs = ran.node.inputs.iter().filter(|v| !v.is_empty()).peekable();
        let of_constants = inputs.peek().is_some() && inputs.all(|v| self.constants.contains(&v[..]));
        let inside = format!("{node}/");
        to.push(Kernel {
            name: ran.kernel(),
            node,
            value: value.cloned(),
            ms: ran.ms,
            on_codes: ran.on_codes(),
            converts: ran.converts(),
            of_constants,
        });
        for ran in &ran.inside {
            self.kernels(ran, &inside, to);
        }
    }
}

/// Whether each element of the result is computed from one of each operand. A layer by codes rounds its result, too.
fn is_elementwise(op: &Op) -> bool {
    let computes = matches!(op, Op::Unary(_) | Op::Activation(_) | Op::Clip(_) | Op::Binary(_) | Op::Variadic(_));
    computes || matches!(op, Op::BatchNorm(_) | Op::Quantize(_))
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
    let fixed = fixed(graph, order);
    order.iter().copied().filter(|n| !fixed.contains(n) && !matches!(graph.op(*n), Op::Input(_))).collect()
}

/// What depends on no input.
fn fixed(graph: &Graph, order: &[NodeId]) -> HashSet<NodeId> {
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
    fixed
}

/// The least group of those that `group` is joined with.
fn root(whole: &mut [usize], mut group: usize) -> usize {
    while whole[group] != group {
        whole[group] = whole[whole[group]];
        group = whole[group];
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::{onnx::FileNode, text, verify::verify};

    fn ran(op: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> Ran {
        let all = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        let (inputs, outputs, domain) = (all(inputs), all(outputs), String::new());
        let node = FileNode { name: name.into(), op: op.into(), domain, inputs, outputs, ints: vec![], inside: vec![] };
        Ran { node, label: String::new(), types: vec![], ms: 1.0, inside: vec![] }
    }

    /// The nodes of each part, and the kernels that ONNX Runtime has for it.
    fn told(graph: &str, ran: &[Ran]) -> Vec<(Vec<String>, Vec<String>)> {
        let graph = text::parse(graph).unwrap();
        let order = verify(&graph).unwrap().order().to_vec();
        let theirs = Kernels::onnxruntime(&graph, &order, ran);
        let parts = parts(&graph, &order, Kernels::default(), theirs);
        let nodes = |p: &Part| p.nodes.iter().map(|n| graph.node(*n).display_name().to_string()).collect();
        let kernels = |p: &Part| p.theirs.iter().map(|k| k.node.clone()).collect();
        parts.iter().map(|p| (nodes(p), kernels(p))).collect()
    }

    fn part(nodes: &[&str], kernels: &[&str]) -> (Vec<String>, Vec<String>) {
        let all = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        (all(nodes), all(kernels))
    }

    /// Two layers in another layout, the second with a sum and an activation.
    #[test]
    fn what_is_fused_into_a_layer_is_found_by_its_place() {
        let graph = r#"graph "g" {
            input %x: f32[1,16,8,8]
            const %w: f32[16,16,1,1] = zeros
            const %v: f32[16,16,1,1] = zeros
            %a = Conv(%x, %w)
            %h = HardSwish(%a)
            %b = Conv(%h, %v)
            %s = Add(%b, %h)
            %r = Relu(%s)
            %y = GlobalAveragePool(%r)
            output %y
        }"#;
        let ran = [
            ran("ReorderInput", "in", &["x"], &["t0"]),
            ran("Conv", "a_nchwc", &["t0", "t1"], &["t2"]),
            ran("Conv", "b_nchwc", &["t2", "t3", "", "t2"], &["t4"]),
            ran("ReorderOutput", "out", &["t4"], &["r"]),
            ran("GlobalAveragePool", "y", &["r"], &["y"]),
        ];
        let expected =
            [part(&["a", "h"], &["in", "a_nchwc"]), part(&["b", "s", "r"], &["b_nchwc", "out"]), part(&["y"], &["y"])];
        assert_eq!(told(graph, &ran), expected);
    }

    /// Layers by codes that ONNX Runtime made anew of nodes without a name.
    #[test]
    fn a_layer_without_a_name_is_known_by_its_weight_if_that_is_its_own() {
        let graph = r#"graph "g" {
            input %x: f32[1,16,8,8]
            const %s: f32[] = [0.1]
            const %z: i8[] = [0]
            const %w: i8[16,16,1,1] = zeros
            const %v: i8[16,16,1,1] = zeros
            %dw = DequantizeLinear(%w, %s, %z)
            %dv = DequantizeLinear(%v, %s, %z)
            %a = Conv(%x, %dw)
            %b = Conv(%a, %dv)
            %c = Conv(%b, %dv)
            output %c
        }"#;
        let made = [
            ran("QLinearConv", "_token_1", &["x", "s", "z", "w"], &["t0"]),
            ran("DequantizeLinear", "d", &["v", "s", "z"], &["dv"]),
            ran("Conv", "_token_2", &["t0", "dv"], &["t1"]),
            ran("Conv", "_token_3", &["t1", "dv"], &["c"]),
        ];
        let found = told(graph, &made);
        assert_eq!(found[0], part(&["a"], &["_token_1"]));
        assert_eq!(found[1], part(&["b", "c"], &["d", "_token_2", "_token_3"]), "they share a weight");
        assert_eq!(found.len(), 2);
    }
}
