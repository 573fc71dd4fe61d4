//! HardSwish, which exporters write as arithmetic around Clip or HardSigmoid (Howard et al. 2019).

use super::{beside_number, shared};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{activation::Activation, binary::Binary, unary::Unary},
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::{DType, Tensor},
};

/// `x * clip(x + 3, 0, 6)` is `6 * HardSwish(x)`, and `x * HardSigmoid(x)` is HardSwish where that has a slope of 1/6.
pub(super) struct FindHardSwish {
    /// The newest opset that the model can move to.
    pub(super) newest: i64,
}

impl Rule for FindHardSwish {
    fn name(&self) -> &'static str {
        "hard-swish"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Mul"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let (Some(a), Some(b)) = (graph.operand(node, 0), graph.operand(node, 1)) else { return Ok(Verdict::No) };
        let Some((x, gate)) = [(a, b), (b, a)].into_iter().find_map(|(x, g)| Some((x, Gate::of(graph, x, g)?))) else {
            return Ok(Verdict::No);
        };
        if graph.fact(x).dtype != Some(DType::F32) {
            return Ok(Verdict::No);
        }
        if self.newest < 14 {
            return Ok(Verdict::Skip("the model can't move to opset 14, which has it".into()));
        }
        if let Some(other) = gate.values.iter().find(|value| graph.only_use(**value).is_none()) {
            return Ok(shared(graph, *other));
        }
        let mut edit = Edit::new();
        let name = &graph.node(node).name;
        let mut fused = edit.node(name, Unary::HardSwish, &[Some(x.into())]);
        if (gate.factor - 1.0).abs() > 1e-6 {
            let factor = edit.constant("factor", Tensor::f32(&[], &[gate.factor as f32]));
            fused = edit.node(&format!("{name}_scale"), Binary::Mul, &[Some(fused), Some(factor)]);
        }
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

/// The other operand: so many times `clip(x / 6 + 0.5, 0, 1)`.
struct Gate {
    factor: f64,
    /// The values between, which nobody else may read.
    values: Vec<Port>,
}

impl Gate {
    fn of(graph: &Graph, x: Port, port: Port) -> Option<Self> {
        let operand = graph.operand(port.node, 0)?;
        let values = vec![port];
        match graph.op(port.node) {
            Op::Activation(Activation::HardSigmoid { alpha, beta })
                if operand == x && near(f64::from(*alpha), 1.0 / 6.0) && *beta == 0.5 =>
            {
                Some(Self { factor: 1.0, values })
            }
            // 3 is added to x, and 6 is the most that is left.
            Op::Clip(_) if graph.clamps(port.node) == Some((0.0, 6.0)) => {
                let Op::Binary(Binary::Add) = graph.op(operand.node) else { return None };
                let (shifted, three) = beside_number(graph, operand.node)?;
                (shifted == x && three == 3.0).then(|| Self { factor: 6.0, values: vec![port, operand] })
            }
            Op::Binary(op @ (Binary::Mul | Binary::Div)) => {
                let (inner, number) = beside_number(graph, port.node)?;
                let by = match op {
                    Binary::Mul => number,
                    _ if graph.operand(port.node, 1) == Some(inner) => return None,
                    _ => 1.0 / number,
                };
                let mut gate = matches!(graph.op(inner.node), Op::Clip(_)).then(|| Self::of(graph, x, inner))??;
                gate.values.push(port);
                (by.is_finite() && by != 0.0).then_some(Self { factor: gate.factor * by, ..gate })
            }
            _ => None,
        }
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6
}
