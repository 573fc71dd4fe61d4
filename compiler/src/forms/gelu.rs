//! GELU, which exporters write as arithmetic around Erf or Tanh.
//!
//! There are many ways to write it: `x/2 * (1 + erf(x/√2))`, `x * ((erf(x * 0.7071) + 1) / 2)`,
//! with `x*x*x` or `Pow(x, 3)` in the approximation. So the arithmetic is not matched node by
//! node: it is read as a polynomial in `x` and the function's value, and polynomials are
//! compared. (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.)

use crate::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, unary::Unary},
    tensor::DType,
};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// Arithmetic nodes that one GELU is made of at most.
const NODES: usize = 12;

/// How deep they nest at most. A value may be read twice, so the reading doubles with each.
const DEPTH: usize = 6;

/// Coefficients of 1, x, x², x³; then the same, times the function's value.
type Poly = [[f64; 4]; 2];

/// A GELU that is written as arithmetic.
#[derive(Debug, Clone, PartialEq)]
pub struct Gelu {
    /// What it is the GELU of.
    pub x: Port,
    /// Whether by the approximation with tanh.
    pub tanh: bool,
    /// The value of Erf or Tanh.
    pub gate: Port,
}

impl Gelu {
    /// The GELU that `node` is the last operator of.
    pub fn of(graph: &Graph, node: NodeId) -> Option<Self> {
        let gate = gate(graph, node)?;
        let tanh = *graph.op(gate.node) == Op::Unary(Unary::Tanh);
        let inner = graph.operand(gate.node, 0)?;
        // sqrt(2/pi) = 2/sqrt(pi) / sqrt(2)
        let scale = if tanh { FRAC_2_SQRT_PI * FRAC_1_SQRT_2 } else { FRAC_1_SQRT_2 };
        let argument = [[0.0, scale, 0.0, if tanh { 0.044715 * scale } else { 0.0 }], [0.0; 4]];
        let whole = [[0.0, 0.5, 0.0, 0.0]; 2];
        let dtype = graph.fact(node.into()).dtype;
        let x = variables(graph, inner).into_iter().find(|x| {
            let read = Reading { graph, x: *x, gate };
            read.port(inner, DEPTH).is_some_and(|p| near(&p, &argument, dtype))
                && read.port(node.into(), DEPTH).is_some_and(|p| near(&p, &whole, dtype))
        })?;
        Some(Self { x, tanh, gate })
    }

    /// The nodes between `x` and the result of `node`, which is the last of them.
    pub fn nodes(&self, graph: &Graph, node: NodeId) -> Vec<NodeId> {
        let (mut nodes, mut open) = (vec![], vec![node]);
        while let Some(n) = open.pop() {
            if nodes.contains(&n) {
                continue;
            }
            nodes.push(n);
            let operands = graph.operands(n).into_iter().flatten();
            open.extend(operands.filter(|p| *p != self.x && graph.constant(*p).is_none()).map(|p| p.node));
        }
        nodes
    }
}

/// The Erf or Tanh that the arithmetic at `node` is about, if there is one only.
fn gate(graph: &Graph, node: NodeId) -> Option<Port> {
    let mut found = None;
    let mut open = vec![node];
    let mut seen = 0;
    while let Some(n) = open.pop() {
        seen += 1;
        match graph.op(n) {
            Op::Unary(Unary::Erf | Unary::Tanh) if found.is_none() => found = Some(Port::from(n)),
            Op::Unary(Unary::Erf | Unary::Tanh) => return None,
            Op::Binary(Binary::Mul | Binary::Add | Binary::Div) if seen <= NODES => {
                open.extend(graph.operands(n).into_iter().flatten().map(|p| p.node));
            }
            _ => {}
        }
    }
    found
}

/// The values that the arithmetic at `port` could be a polynomial of.
fn variables(graph: &Graph, port: Port) -> Vec<Port> {
    let mut found = vec![port];
    let mut at = 0;
    while at < found.len() && found.len() <= NODES {
        if let Op::Binary(_) = graph.op(found[at].node) {
            for p in graph.operands(found[at].node).into_iter().flatten() {
                if graph.constant(p).is_none() && !found.contains(&p) {
                    found.push(p);
                }
            }
        }
        at += 1;
    }
    found
}

/// Whether two polynomials are the same, as far as the constants' type can tell.
fn near(a: &Poly, b: &Poly, dtype: Option<DType>) -> bool {
    let tolerance = if matches!(dtype, Some(DType::F16 | DType::BF16)) { 4e-3 } else { 1e-5 };
    let (a, b) = (a.as_flattened(), b.as_flattened());
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * b.abs().max(0.01))
}

struct Reading<'a> {
    graph: &'a Graph,
    x: Port,
    gate: Port,
}

impl Reading<'_> {
    /// The value at `port` as a polynomial, found within `depth` steps.
    fn port(&self, port: Port, depth: usize) -> Option<Poly> {
        if port == self.x {
            return Some([[0.0, 1.0, 0.0, 0.0], [0.0; 4]]);
        }
        if port == self.gate {
            return Some([[0.0; 4], [1.0, 0.0, 0.0, 0.0]]);
        }
        if let Some(t) = self.graph.constant(port) {
            // A number of more axes than `x` would give them to the result.
            let fits = t.shape().len() <= self.graph.fact(self.x).rank().unwrap_or(0);
            return match t.as_f32()?[..] {
                [v] if fits => Some([[f64::from(v), 0.0, 0.0, 0.0], [0.0; 4]]),
                _ => None,
            };
        }
        let Op::Binary(op) = self.graph.op(port.node) else { return None };
        let depth = depth.checked_sub(1)?;
        let [a, b] = self.graph.operands(port.node)[..] else { return None };
        let (a, b) = (self.port(a?, depth)?, self.port(b?, depth)?);
        match op {
            Binary::Add => Some(combine(a, b, 1.0)),
            Binary::Sub => Some(combine(a, b, -1.0)),
            Binary::Mul => multiply(&a, &b),
            Binary::Div => {
                let by = number(&b).filter(|v| *v != 0.0)?;
                multiply(&a, &[[1.0 / by, 0.0, 0.0, 0.0], [0.0; 4]])
            }
            Binary::Pow => match number(&b)? {
                2.0 => multiply(&a, &a),
                3.0 => multiply(&multiply(&a, &a)?, &a),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The constant that a polynomial is.
fn number(p: &Poly) -> Option<f64> {
    let rest = p.as_flattened()[1..].iter().all(|v| *v == 0.0);
    rest.then_some(p[0][0])
}

fn combine(mut a: Poly, b: Poly, sign: f64) -> Poly {
    a.as_flattened_mut().iter_mut().zip(b.as_flattened()).for_each(|(a, b)| *a += sign * b);
    a
}

/// The product, if it stays within x³ and has the function only once.
fn multiply(a: &Poly, b: &Poly) -> Option<Poly> {
    let mut out = [[0.0; 4]; 2];
    for (i, p) in a.as_flattened().iter().enumerate().filter(|(_, p)| **p != 0.0) {
        for (j, q) in b.as_flattened().iter().enumerate().filter(|(_, q)| **q != 0.0) {
            *out.get_mut(i / 4 + j / 4)?.get_mut(i % 4 + j % 4)? += p * q;
        }
    }
    Some(out)
}
