//! Resize by mixing pixels: linear and cubic.

use crate::{
    burn::kernels::mixed_entries,
    cpu::{
        cost,
        lowering::{Lowered, Lowering, Operand, ValueId, Want},
        plan::{Layout, Planner},
        scope::Scope,
    },
};
use compress_compiler::{
    error::{Error, Result},
    node::Port,
    op::Op,
    ops::resize::{Coordinates, Interpolation, Resize},
    tensor::DType,
};
use compress_kernels::{Mix, Resample};

/// Fewer channels than this are mixed as images of one each.
const FEW: usize = 4;

/// The float value `port`, where its pixels are mixtures of pixels of images in one or two dimensions.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let Op::Resize(op) = g.op(port.node) else { return None };
    let x = g.operand(port.node, 0)?;
    let fits = s.has(port.node)
        && op.mode != Interpolation::Nearest
        && op.coordinates != Coordinates::CropAndResize
        && g.fact(x).dtype == Some(DType::F32)
        && matches!(s.rank(x), Some(3 | 4));
    if !fits {
        return None;
    }
    let scales = match g.operand(port.node, 2) {
        Some(p) => Some(g.constant(p)?.as_f32()?.into_owned()).filter(|s| !s.is_empty()),
        None => None,
    };
    let sizes = match g.operand(port.node, 3) {
        Some(p) => Some(g.constant(p)?.as_i64()?).filter(|s| !s.is_empty()),
        None => None,
    };
    Some(Lowering::of(vec![Want::float(x)], Mixed { op: op.clone(), scales, sizes }))
}

struct Mixed {
    op: Resize,
    scales: Option<Vec<f32>>,
    sizes: Option<Vec<i64>>,
}

impl Lowered for Mixed {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (dims, made) = (p.dims(inputs[0]).to_vec(), p.dims(output).to_vec());
        let entries = mixed_entries(&self.op, &dims, self.scales.as_deref(), self.sizes.as_deref())?;
        if made[..2] != dims[..2] || entries[..2].iter().any(Option::is_some) {
            return Err(Error::unsupported(format!("mixing samples or channels of {dims:?}")));
        }
        let mut axes: Vec<Mix> = entries[2..]
            .iter()
            .zip(&dims[2..])
            .map(|(taps, size)| taps.as_ref().map_or_else(|| Mix::same(*size), |taps| Mix::new(taps)))
            .collect();
        let mut input = dims[2..].to_vec();
        if input.len() == 1 {
            input.insert(0, 1);
            axes.insert(0, Mix::same(1));
        }
        let (Ok(input), Ok(axes)) = (<[usize; 2]>::try_from(input), <[Mix; 2]>::try_from(axes)) else {
            return Err(Error::unsupported(format!("resizing {dims:?}")));
        };
        let (layout, planes, unit) = match dims[1] < FEW {
            true => (Layout::Plain, dims[0] * dims[1], 1),
            false => (Layout::Pixels, dims[0], dims[1]),
        };
        let x = p.read(inputs[0], layout);
        let (x, y) = (p.gathered(inputs[0], x), p.output(output, layout));
        let resample = Resample::new(p.isa(), planes, input, unit, axes);
        p.step("resize", output, &[x], y, 0, cost::bytes(16 * y.len()), move |o| {
            resample.run(o.slice(0), o.out(), o.parts);
        });
        Ok(())
    }
}
