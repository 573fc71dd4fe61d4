//! Local rewriting: rules, the edits they propose, and the worklist that applies them.
//!
//! A rule is asked about a node of its root operator and answers with an [`Edit`], a reason
//! to skip, or nothing. Rules are bucketed by root operator. After an edit only the new
//! nodes and their neighbours are looked at again, so the cost is linear in the graph; fuel
//! bounds each rule, so a pair of rules that undo each other ends.

use crate::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    pass::{Context, Outcome, Skipped},
    tensor::Tensor,
};
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

/// A value in an edit: one that exists, or one that the edit makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ref {
    /// A value of the graph.
    Old(Port),
    /// Output `slot` of the edit's node `index`.
    New {
        /// The place in the edit.
        index: usize,
        /// The output slot.
        slot: usize,
    },
}

impl From<Port> for Ref {
    fn from(p: Port) -> Self {
        Ref::Old(p)
    }
}

enum Make {
    Constant { name: String, tensor: Tensor },
    Node { name: String, op: Box<Op>, operands: Vec<Option<Ref>>, outputs: usize },
}

/// A change to the graph: nodes to add, and values to replace. What nobody reads any more
/// is removed.
#[derive(Default)]
pub struct Edit {
    makes: Vec<Make>,
    replaces: Vec<(Port, Ref)>,
    channel_scales: Vec<(Ref, Arc<[f32]>)>,
}

impl Edit {
    /// An edit that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a constant; `name` may be changed to stay unique.
    pub fn constant(&mut self, name: &str, tensor: Tensor) -> Ref {
        self.makes.push(Make::Constant { name: name.into(), tensor });
        Ref::New { index: self.makes.len() - 1, slot: 0 }
    }

    /// Adds an operator with one output. `name` is the node's ONNX name.
    pub fn node(&mut self, name: &str, op: impl Into<Op>, operands: &[Option<Ref>]) -> Ref {
        self.nodes(name, op, operands, 1);
        Ref::New { index: self.makes.len() - 1, slot: 0 }
    }

    /// Adds an operator with so many outputs.
    pub fn nodes(&mut self, name: &str, op: impl Into<Op>, operands: &[Option<Ref>], outputs: usize) -> Vec<Ref> {
        self.makes.push(Make::Node {
            name: name.into(),
            op: Box::new(op.into()),
            operands: operands.to_vec(),
            outputs,
        });
        (0..outputs).map(|slot| Ref::New { index: self.makes.len() - 1, slot }).collect()
    }

    /// Makes all readers of `old` read `new`, which keeps the name if the edit made it.
    pub fn replace(&mut self, old: Port, new: Ref) {
        self.replaces.push((old, new));
    }

    /// Says by which scale the channels of `value` were multiplied ([`Value::channel_scale`]).
    ///
    /// [`Value::channel_scale`]: crate::node::Value::channel_scale
    pub fn channel_scale(&mut self, value: Ref, scale: Arc<[f32]>) {
        self.channel_scales.push((value, scale));
    }

    /// An edit that only replaces one value by another.
    pub fn swap(old: Port, new: Port) -> Self {
        let mut e = Self::new();
        e.replace(old, new.into());
        e
    }

    /// Applies the edit. Returns the nodes to look at again.
    fn apply(self, g: &mut Graph) -> Result<Vec<NodeId>> {
        let mut made: Vec<NodeId> = vec![];
        for make in self.makes {
            made.push(match make {
                Make::Constant { name, tensor } => g.add_constant(&name, tensor),
                Make::Node { name, op, operands, outputs } => {
                    let operands: Vec<Option<Port>> = operands.iter().map(|r| r.map(|r| resolve(r, &made))).collect();
                    let base = if name.is_empty() { op.op_type() } else { &name };
                    let suffix = |slot| if slot == 0 { String::new() } else { format!(".{slot}") };
                    let values: Vec<String> =
                        (0..outputs).map(|slot| g.fresh(&format!("{base}{}", suffix(slot)))).collect();
                    g.add_node(&name, *op, &operands, &values.iter().map(|v| &v[..]).collect::<Vec<_>>())?
                }
            });
        }
        for (value, scale) in self.channel_scales {
            g.set_channel_scale(resolve(value, &made), scale);
        }
        let mut again: Vec<NodeId> = made.clone();
        for (old, new) in self.replaces {
            let port = resolve(new, &made);
            again.extend(g.uses(old).iter().map(|u| u.node));
            g.redirect(old, port, &made);
            // Both are the same value, so what was known of one holds for the other; but inputs are as they are.
            if !matches!(g.op(port.node), Op::Input(_))
                && let Ok(fact) = g.fact(port).clone().refined(g.fact(old))
            {
                g.set_fact(port, fact);
            }
            if matches!(new, Ref::New { .. }) {
                g.take_name(old, port);
            }
            again.extend(g.operands(port.node).into_iter().flatten().map(|p| p.node));
            again.push(port.node);
            again.extend(remove_dead(g, old.node));
        }
        again.retain(|n| g.contains(*n));
        Ok(again)
    }
}

fn resolve(r: Ref, made: &[NodeId]) -> Port {
    match r {
        Ref::Old(p) => p,
        Ref::New { index, slot } => Port { node: made[index], slot },
    }
}

/// Removes `start` if nobody reads it, and then what only it read. Returns the surviving
/// producers, which have lost a reader.
pub fn remove_dead(g: &mut Graph, start: NodeId) -> Vec<NodeId> {
    let mut stack = vec![start];
    let mut touched = vec![];
    while let Some(n) = stack.pop() {
        if !g.contains(n) {
            continue;
        }
        if !g.is_dead(n) {
            touched.push(n);
            continue;
        }
        stack.extend(g.operands(n).into_iter().flatten().map(|p| p.node));
        g.remove(n);
    }
    touched
}

/// What a rule says of a node.
pub enum Verdict {
    /// The rule does not match.
    No,
    /// The rule matches but must not apply; the reason is one that a user understands.
    Skip(String),
    /// The change to make.
    Apply(Edit),
}

/// A local rewriting rule.
pub trait Rule {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// The operators (ONNX names) at whose nodes it is asked; empty for every operator.
    fn roots(&self) -> &'static [&'static str];

    /// What to do at `node`.
    ///
    /// # Errors
    /// What evaluating constants can raise.
    fn apply(&self, graph: &Graph, node: NodeId, cx: &Context) -> Result<Verdict>;
}

/// Rules by the operators at which they are asked.
struct Buckets {
    by_root: HashMap<&'static str, Vec<usize>>,
    /// Those asked everywhere, which the lists above contain too.
    anywhere: Vec<usize>,
}

impl Buckets {
    fn new(rules: &[Box<dyn Rule>]) -> Self {
        let of = |root: Option<&str>| {
            let asked = |r: &dyn Rule| r.roots().is_empty() || root.is_some_and(|root| r.roots().contains(&root));
            (0..rules.len()).filter(|i| asked(&*rules[*i])).collect()
        };
        let roots = rules.iter().flat_map(|r| r.roots());
        Self { by_root: roots.map(|r| (*r, of(Some(r)))).collect(), anywhere: of(None) }
    }

    fn of(&self, op: &Op) -> &[usize] {
        self.by_root.get(op.op_type()).unwrap_or(&self.anywhere)
    }
}

/// Applies `rules` to `graph` until none has anything to say.
///
/// # Errors
/// What a rule raises; a bug, naming the rule, when it proposes nodes that inference refuses.
pub fn rewrite(graph: &mut Graph, rules: &[Box<dyn Rule>], cx: &Context) -> Result<Outcome> {
    let buckets = Buckets::new(rules);
    let mut queue: VecDeque<NodeId> = graph.topological()?.into();
    let mut queued: HashSet<NodeId> = queue.iter().copied().collect();
    let mut fuel = vec![4 * queue.len() + 64; rules.len()];
    let mut edits = 0;
    let mut skipped = BTreeSet::new();
    while let Some(node) = queue.pop_front() {
        queued.remove(&node);
        if !graph.contains(node) || matches!(graph.op(node), Op::Input(_) | Op::Constant(_)) {
            continue;
        }
        cx.check()?;
        for &i in buckets.of(graph.op(node)) {
            if fuel[i] == 0 {
                continue;
            }
            let rule = &rules[i];
            match rule.apply(graph, node, cx)? {
                Verdict::No => {}
                Verdict::Skip(reason) => {
                    skipped.insert((i, node, graph.node(node).display_name().to_string(), reason));
                }
                Verdict::Apply(edit) => {
                    let label = graph.node(node).label();
                    if !cx.edits.allow(rule.name(), || label.clone()) {
                        continue;
                    }
                    fuel[i] -= 1;
                    edits += 1;
                    tracing::trace!(rule = rule.name(), node = label);
                    let again = edit
                        .apply(graph)
                        .map_err(|e| Error::bug(format!("rule `{}`: {}", rule.name(), e.message())).at(label))?;
                    for n in again {
                        if queued.insert(n) {
                            queue.push_back(n);
                        }
                    }
                    break;
                }
            }
        }
    }
    let skipped = skipped
        .into_iter()
        // An id may have been given to another node since.
        .filter(|(_, n, name, _)| graph.contains(*n) && graph.node(*n).display_name() == name)
        .map(|(i, _, node, reason)| Skipped { rule: rules[i].name().into(), node, reason })
        .collect();
    Ok(Outcome { edits, skipped, ..Outcome::default() })
}
