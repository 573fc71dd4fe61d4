//! Rotary position embedding, as exporters write it, in one kernel.

use super::{elementwise, logic};
use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{
    error::{Error, Result},
    forms::rotary::Rotary,
    node::Port,
    op::Op,
    ops::binary::Binary,
    tensor::DType,
};
use compress_kernels::{self as kernels, Rows};

/// The float value `port`, where it is features turned by angles.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let Op::Binary(Binary::Add) = s.graph.op(port.node) else { return None };
    let Rotary { x, cos, sin, products } = Rotary::of(s.graph, port.node).filter(|_| s.has(port.node))?;
    let inner = products.iter().all(|node| s.inner((*node).into()).is_some());
    let fits = |p: &Port| s.graph.fact(*p).dtype == Some(DType::F32) && s.rank(*p).is_some_and(|r| r > 0);
    let operands = [x, cos, sin];
    (inner && operands.iter().all(fits)).then(|| Lowering::of(operands.map(Want::float).into(), Rotate))
}

struct Rotate;

impl Lowered for Rotate {
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool {
        output.len() > 1 && elementwise::is_by_sample(inputs, output)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let dims = p.dims(output).to_vec();
        let width = dims[dims.len() - 1];
        if width == 0 || p.dims(inputs[0]) != dims || inputs[1..].iter().any(|id| p.dims(*id).last() != Some(&width)) {
            return Err(Error::unsupported("angles that are broadcast to features"));
        }
        // For each axis before the last, its size, and from one entry to the next how many rows of cosines and of sines.
        let steps = [1, 2].map(|i| logic::steps(p.dims(inputs[i]), &dims));
        let axes: Vec<(usize, [usize; 2])> =
            (0..dims.len() - 1).map(|axis| (dims[axis], [0, 1].map(|i| steps[i][axis] / width))).collect();
        let angle = move |mut row: usize| {
            let mut at = [0, 0];
            for (n, steps) in axes.iter().rev() {
                (0..2).for_each(|i| at[i] += row % n * steps[i]);
                row /= n;
            }
            at
        };
        let x = p.read(inputs[0], Layout::Plain);
        let angles = [p.dense(inputs[1]), p.dense(inputs[2])];
        let (y, isa) = (p.output(output, Layout::Plain), p.isa());
        p.step("rotary", output, &[x, angles[0], angles[1]], y, 0, cost::bytes(16 * y.len()), move |o| {
            let [cos, sin] = [1, 2].map(|i| o.slice::<f32>(i)).map(|t| Rows::dense(t, t.len() / width, width));
            kernels::rotate(isa, o.read(0), [cos, sin], &angle, o.out(), o.parts);
        });
        Ok(())
    }
}
