//! Products by weights in blocks of codes. Beside codes of 4 bits, activations become codes of 8 bits, block by block, as ONNX Runtime has
//! it too; beside those of 8 bits, which are nearer than that, they stay floats.

use super::{End, Kind, Product, vector};
use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{
    error::{Error, Result},
    op::Op,
    ops::quantize::Grain,
    tensor::{DType, Tensor},
};
use compress_kernels::{Bits, Coded, Coded4, CodedF};
use std::sync::Arc;

/// The floats that product `p` makes, where its weight is codes with a scale for each block of inputs.
pub(super) fn lowering<'g>(s: &Scope<'g>, p: &Product<'g>, end: End) -> Option<Lowering<'g>> {
    let g = s.graph;
    let Kind::Rows { transposed } = p.kind else { return None };
    let Op::Dequantize(op) = g.op(p.weight.node) else { return None };
    let operand = |slot: usize| g.operand(p.weight.node, slot).and_then(|port| g.constant(port));
    let (codes, scales, zeros) = (operand(0)?, operand(1)?, operand(2));
    let [a, b] = *codes.shape() else { return None };
    let (depth, outputs, axis) = if transposed { (b, a, 1) } else { (a, b, 0) };
    let bits = match codes.dtype() {
        DType::I4 | DType::U4 => Bits::Four,
        DType::I8 | DType::U8 => Bits::Eight,
        _ => return None,
    };
    let Grain { axis: along, block } = op.grain;
    let block = usize::try_from(block).ok().filter(|n| *n > 0 && n.is_multiple_of(2))?;
    let blocks = depth.div_ceil(block);
    let by = if transposed { [outputs, blocks] } else { [blocks, outputs] };
    let fits = (along == axis || along == axis - 2)
        && scales.dtype() == DType::F32
        && scales.shape() == by
        && zeros.is_none_or(|zeros| zeros.shape() == by && zeros.dtype() == codes.dtype())
        && op.output.is_none_or(|to| to == DType::F32)
        && p.alpha == 1.0
        && p.norm.is_none();
    if !fits {
        return None;
    }
    let (codes, scales, zeros) = (codes.clone(), scales.clone(), zeros.cloned());
    let (bias, beta) = (p.bias.map(|b| s.constant_later(b)), p.beta);
    Some(Lowering::with(vec![Want::float(p.x)], move |isa| {
        let bias = vector(bias.map(|bias| bias()).transpose()?, outputs, beta);
        let bug = || Error::bug("codes of a weight");
        let shift = if matches!(codes.dtype(), DType::I4 | DType::I8) { bits.middle() } else { 0 };
        let rows = |t: &Tensor| -> Result<Vec<u8>> {
            let values: Vec<u8> = t.as_i64().ok_or_else(bug)?.into_iter().map(|v| (v + shift) as u8).collect();
            Ok(if transposed { turned(&values, outputs) } else { values })
        };
        let by = scales.as_f32().ok_or_else(bug)?;
        let by = if transposed { turned(&by, outputs) } else { by.to_vec() };
        let zeros = zeros.as_ref().map(rows).transpose()?;
        let matrix = Coded { codes: &rows(&codes)?, bits, block, scales: &by, zeros: zeros.as_deref() };
        let bounds = (end.low, end.high);
        let kernel = match bits == Bits::Four && Coded4::fits(block) {
            true => Kernel::Integers(Coded4::new(isa, matrix, depth, bias, bounds).then(end.then)),
            false => Kernel::Floats(CodedF::new(isa, matrix, depth, bias, bounds).then(end.then)),
        };
        codes.release();
        scales.release();
        Ok(InBlocks(kernel.into()))
    }))
}

/// The columns of rows, one after the other.
fn turned<T: Copy>(values: &[T], rows: usize) -> Vec<T> {
    let columns = values.len() / rows.max(1);
    (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied()).collect()
}

/// A product by weights in blocks.
struct InBlocks(Arc<Kernel>);

enum Kernel {
    Floats(CodedF),
    Integers(Coded4),
}

impl Lowered for InBlocks {
    fn weight_bytes(&self) -> usize {
        match &*self.0 {
            Kernel::Floats(k) => k.bytes(),
            Kernel::Integers(k) => k.bytes(),
        }
    }

    fn is_by_sample(&self, inputs: &[Operand], _: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let rows = Layout::Plain.rows(p.dims(inputs[0])).0;
        let x = p.read(inputs[0], Layout::Plain);
        let y = p.output(output, Layout::Plain);
        let (kernel, read) = (self.0.clone(), cost::bytes(self.weight_bytes()));
        let (name, work, scratch) = match &*kernel {
            Kernel::Floats(k) => {
                let work = cost::macs32(p.isa(), k.macs(rows)).max(read);
                ("gemm_coded_f32", work, k.scratch(rows, p.parts(work)))
            }
            Kernel::Integers(k) => ("gemm_coded_i8", cost::macs8(p.isa(), k.macs(rows)).max(read), k.scratch(rows)),
        };
        p.step(name, output, &[x], y, scratch, work, move |o| {
            let (x, parts) = (o.read(0), o.parts);
            let (y, scratch) = o.write();
            match &*kernel {
                Kernel::Floats(k) => k.run(x, y, scratch, parts),
                Kernel::Integers(k) => k.run(x, y, scratch, parts),
            }
        });
        Ok(())
    }
}
