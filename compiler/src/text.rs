//! The text form of a graph: what tests, dumps and error messages show, and what tests read.
//!
//! ```text
//! graph "main" {
//!   input %x: f32[batch,1,28,28]
//!   input %gain: f32[1] = [1.0]                // an initializer that callers may replace
//!   const %w: f32[2,1,1,1] = [0.5, -1.0]       // longer ones: = #82f63b78ab04 (600 B)
//!   %y = Conv(%x, %w) {pads=[1, 1, 1, 1]} "node/name" : f32[batch,2,30,30]
//!   %a, %b = Split(%y) {axis=1} : f32[batch,1,30,30], f32[batch,1,30,30]
//!   %c = Clip(%b, _, %gain) : f32[batch,1,30,30]
//!   %d = If(%cond, %c) {then_branch=graph "yes" {
//!     capture %c: f32[batch,1,30,30]           // an outer value: the operand behind the operator's own
//!     %n = Neg(%c) : f32[batch,1,30,30]
//!     output %n
//!   }, else_branch=graph "no" {
//!     capture %c: f32[batch,1,30,30]
//!     output %c
//!   }} : f32[batch,1,30,30]
//!   output %a as "logits"                      // without `as`: under the value's own name
//! }
//! ```
//!
//! `_` is an absent operand, or an output nobody asked for; names that are not plain words are
//! quoted, as in `%"a/b:0"`. Attributes are those of [`Operator::attrs`] and are read back
//! through [`crate::attr::Reader`], so an operator needs nothing of its own here.
//!
//! What is printed parses to the same graph, but for constants given by their digest (the
//! caller of [`parse_with`] knows those) and operators that are kept as they came. A parser's
//! input may also leave out the types of operators, and give a constant as `zeros`,
//! `fill(VALUE)` or `random(SEED)`.

mod literal;
mod parse;
#[cfg(test)]
mod tests;

pub use parse::{parse, parse_with};

use crate::{
    attr::Attr,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::{collections::HashSet, fmt};

/// Constants with more elements are printed as a digest.
const INLINE: usize = 16;

/// The operator set that the text form is written in.
const OPSET: i64 = 24;

/// Twelve hexadecimal digits that stand for a tensor's bytes. Tells tensors apart in a dump;
/// no protection against forgery.
pub fn digest(t: &Tensor) -> String {
    // FNV-1a, folded to 48 bits.
    let hash =
        t.bytes().iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    format!("{:012x}", (hash >> 48) ^ (hash & 0xffff_ffff_ffff))
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        graph(self, 0, 0, f)?;
        writeln!(f)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints a graph whose last `captures` inputs are outer values, `indent` blanks from the left.
fn graph(g: &Graph, captures: usize, indent: usize, f: &mut fmt::Formatter) -> fmt::Result {
    writeln!(f, "graph {:?} {{", g.name)?;
    let inner = indent + 2;
    for (i, &n) in g.inputs().iter().enumerate() {
        let value = g.value(n.into());
        let keyword = if i + captures < g.inputs().len() { "input" } else { "capture" };
        write!(f, "{:inner$}{keyword} {}: {}", "", Name(&value.name), Type(&value.fact))?;
        if let Op::Input(input) = g.op(n)
            && let Some(default) = &input.default
        {
            write!(f, " = {}", Elements(default))?;
        }
        writeln!(f)?;
    }
    let mut printed = HashSet::new();
    // A graph with a cycle is broken, but must be seen all the more.
    for n in g.topological().unwrap_or_else(|_| g.ids().collect()) {
        if !matches!(g.op(n), Op::Input(_) | Op::Constant(_)) {
            for p in g.operands(n).into_iter().flatten() {
                constant(g, p.node, &mut printed, inner, f)?;
            }
            operator(g, n, inner, f)?;
        }
    }
    for n in g.ids() {
        constant(g, n, &mut printed, inner, f)?;
    }
    for o in g.outputs() {
        let name = &g.value(o.port).name;
        write!(f, "{:inner$}output {}", "", Name(name))?;
        if *name != o.name {
            write!(f, " as {:?}", o.name)?;
        }
        writeln!(f)?;
    }
    write!(f, "{:indent$}}}", "")
}

/// Prints node `n` if it is a constant that was not printed yet.
fn constant(g: &Graph, n: NodeId, printed: &mut HashSet<NodeId>, indent: usize, f: &mut fmt::Formatter) -> fmt::Result {
    let value = g.value(n.into());
    match g.constant(n.into()) {
        Some(t) if printed.insert(n) => {
            writeln!(f, "{:indent$}const {}: {} = {}", "", Name(&value.name), Type(&value.fact), Elements(t))
        }
        _ => Ok(()),
    }
}

fn operator(g: &Graph, n: NodeId, indent: usize, f: &mut fmt::Formatter) -> fmt::Result {
    let node = g.node(n);
    let results: Vec<String> = node.outputs.iter().map(|v| Name(&v.name).to_string()).collect();
    write!(f, "{:indent$}{} = ", "", results.join(", "))?;
    let mut operands: Vec<String> = vec![];
    match &node.op {
        Op::Opaque(o) => {
            operands.extend([format!("{:?}", o.proto.domain), format!("{:?}", o.proto.op_type)]);
            f.write_str("opaque")?;
        }
        op => f.write_str(op.op_type())?,
    }
    let name = |p: Option<Port>| p.map_or("_".into(), |p| Name(&g.value(p).name).to_string());
    operands.extend(g.operands(n).into_iter().map(name));
    write!(f, "({})", operands.join(", "))?;
    for (i, (name, attr)) in node.op.attrs().iter().enumerate() {
        write!(f, "{}{name}=", if i == 0 { " {" } else { ", " })?;
        match attr {
            Attr::Graph(body) => graph(body.graph(), body.captures(), indent, f)?,
            attr => write!(f, "{}", Value(attr))?,
        }
    }
    if !node.op.attrs().is_empty() {
        f.write_str("}")?;
    }
    if !node.name.is_empty() {
        write!(f, " {:?}", node.name)?;
    }
    let types: Vec<String> = node.outputs.iter().map(|v| Type(&v.fact).to_string()).collect();
    writeln!(f, " : {}", types.join(", "))
}

/// Whether `s` needs no quotes.
fn is_word(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
}

/// A value's name.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            "" => f.write_str("_"),
            name if is_word(name) => write!(f, "%{name}"),
            name => write!(f, "%{name:?}"),
        }
    }
}

/// A value's type and shape.
struct Type<'a>(&'a Fact);

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.0.dtype.map_or("?", DType::name))?;
        let Some(dims) = self.0.dims() else { return f.write_str("[*]") };
        let quoted = |s: &str| !is_word(s) || s.starts_with(|c: char| c.is_ascii_digit());
        let dims = dims.iter().map(|d| match d {
            Dim::Sym(s) if quoted(s) => format!("{s:?}"),
            d => d.to_string(),
        });
        write!(f, "[{}]", dims.collect::<Vec<_>>().join(","))
    }
}

/// The elements of a tensor, or its digest.
struct Elements<'a>(&'a Tensor);

impl fmt::Display for Elements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let t = self.0;
        if t.len() > INLINE {
            return write!(f, "#{} ({} B)", digest(t), t.bytes().len());
        }
        let elements: Vec<String> = match (t.dtype(), t.as_f32(), t.as_i64()) {
            (DType::F64, ..) => {
                t.bytes().as_chunks().0.iter().map(|c| format!("{:?}", f64::from_le_bytes(*c))).collect()
            }
            (_, Some(v), _) => v.iter().map(|v| format!("{v:?}")).collect(),
            (_, None, Some(v)) => v.iter().map(i64::to_string).collect(),
            _ => return write!(f, "#{} ({} B)", digest(t), t.bytes().len()),
        };
        write!(f, "[{}]", elements.join(", "))
    }
}

/// An attribute's value.
struct Value<'a>(&'a Attr);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            Attr::Int(v) => write!(f, "{v}"),
            Attr::Float(v) => write!(f, "{v:?}"),
            Attr::Str(v) => write!(f, "{v:?}"),
            Attr::Ints(v) => write!(f, "{v:?}"),
            Attr::Floats(v) => write!(f, "{v:?}"),
            Attr::Strs(v) => write!(f, "{v:?}"),
            Attr::Tensor(t) => write!(f, "{} = {}", Type(&Fact::of(t)), Elements(t)),
            Attr::Graph(body) => write!(f, "{body:?}"),
        }
    }
}
