//! Gemm: a matrix product with bias.

use super::conv::size;
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, WeightAxes, Width},
    value::Fact,
};
use std::ops::RangeInclusive;

/// `Y = alpha * A' * B' + beta * C`, where A' and B' are A and B, transposed if asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemm {
    /// Scales the product.
    pub alpha: f32,
    /// Scales the bias C.
    pub beta: f32,
    /// Whether A is `[K, M]`.
    pub trans_a: bool,
    /// Whether B is `[N, K]`.
    pub trans_b: bool,
}

impl Gemm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opset < 7 {
            // C was broadcast only on demand.
            r.flag("broadcast", false)?;
        }
        Ok(Self {
            alpha: r.float("alpha", 1.0)?,
            beta: r.float("beta", 1.0)?,
            trans_a: r.flag("transA", false)?,
            trans_b: r.flag("transB", false)?,
        })
    }
}

impl Operator for Gemm {
    fn op_type(&self) -> &str {
        "Gemm"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.alpha != 1.0 {
            a.push(("alpha", self.alpha.into()));
        }
        if self.beta != 1.0 {
            a.push(("beta", self.beta.into()));
        }
        if self.trans_a {
            a.push(("transA", true.into()));
        }
        if self.trans_b {
            a.push(("transB", true.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn parameters(&self) -> &'static [usize] {
        &[0, 1, 2]
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let (Some(a), Some(b)) = (x.dims(0), x.dims(1)) else {
            return Ok(vec![Fact::new(dtype, None)]);
        };
        let ([a0, a1], [b0, b1]) = (a, b) else {
            return Err(Error::malformed(format!("operands of rank {} and {} should be matrices", a.len(), b.len())));
        };
        let (m, k) = if self.trans_a { (a1, a0) } else { (a0, a1) };
        let (k2, n) = if self.trans_b { (b1, b0) } else { (b0, b1) };
        if let (Some(p), Some(q)) = (k.known(), k2.known())
            && p != q
        {
            return Err(Error::malformed(format!("inner dimensions {p} and {q} differ")));
        }
        Ok(vec![Fact::new(dtype, Some(vec![m.clone(), n.clone()]))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let (a, b) =
            (if self.trans_a { ["k", "m"] } else { ["m", "k"] }, if self.trans_b { ["n", "k"] } else { ["k", "n"] });
        let named = |names: &[&'static str], i: usize| names.get(i).copied();
        sides.alike(at, "an operand that is not a matrix", |axis| match axis {
            Axis::In(0, i) => named(&a, i),
            Axis::In(1, i) => named(&b, i),
            // C broadcasts.
            Axis::In(_, i) => named(&["m", "n"], (i + 2).checked_sub(sides.dims(axis)?.len())?),
            Axis::Out(_, i) => named(&["m", "n"], i),
        })
    }

    fn since(&self) -> i64 {
        7
    }

    fn quant(&self) -> Quant {
        // ONNX Runtime's integer Gemm wants A as it is, and no scale but that of the tensors.
        if self.trans_a || self.alpha != 1.0 || self.beta != 1.0 { Quant::Float } else { Quant::Weighted }
    }

    fn weight(&self) -> Option<WeightAxes> {
        Some(WeightAxes {
            slot: 1,
            output: usize::from(!self.trans_b),
            input: usize::from(self.trans_b),
            rank: Some(2),
            bias: Some(2),
        })
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        let inner = x.dims(1).map(|b| &b[if self.trans_b { 1..2 } else { 0..1 }]);
        size(inner) * size(outputs[0].dims())
    }

    fn width(&self) -> Width {
        Width::Product
    }

    fn neutral_element(&self) -> Option<f32> {
        Some(0.0) // of the product, before the bias
    }
}
