//! Weights in blocks under training: floats that pass through codes and back, whose scales are learnt (LSQ, Esser et al. 2020).

use super::{
    blocks::{Affine, Blocked, nearest_codes},
    form,
};
use crate::{layers::Layer, quant::scheme::Codes, weight_matrix::WeightMatrix};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::quantize::{Dequantize, Grain, Quantize},
    pass::Context,
    rewrite::remove_dead,
    tensor::Tensor,
};

/// A weight that is trained.
pub(super) struct Pair {
    layer: Layer,
    layout: WeightMatrix,
    codes: Codes,
    block: usize,
    zeros: Vec<i32>,
    scale: NodeId,
    dequantize: NodeId,
}

impl Pair {
    /// Rounds a weight to `blocked`, and has its readers read it through codes.
    pub fn insert(
        g: &mut Graph,
        layer: &Layer,
        layout: &WeightMatrix,
        (blocked, codes): (&Blocked, Codes),
    ) -> Result<Self> {
        let name = g.value(layer.weight.into()).name.clone();
        let (axis, parts) = (layout.input_axis(), blocked.of_row());
        let shape = if axis == 1 { [layout.rows, parts] } else { [parts, layout.rows] };
        let of_blocks = layout.with_columns(parts);
        let tensor = g.constant(layer.weight.into()).ok_or_else(|| Error::bug("a weight is not a constant"))?;
        let values = Tensor::f32(tensor.shape(), &layout.stored(&blocked.values(codes)));
        g.set_constant(layer.weight, values);
        let scales: Vec<f32> = blocked.blocks.iter().map(|by| by.scale).collect();
        let zeros: Vec<i32> = blocked.blocks.iter().map(|by| by.zero).collect();
        let points: Vec<i64> = of_blocks.stored(&zeros).into_iter().map(i64::from).collect();
        let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&shape, &of_blocks.stored(&scales)));
        let zero = g.add_constant(&format!("{name}_zero_point"), Tensor::ints(codes.dtype, &shape, &points));
        let grain = Grain { axis: axis as i64, block: blocked.block as i64 };
        let readers = g.uses(layer.weight.into());
        let mut through = |op: Op, x: NodeId, what: &str| {
            let output = g.fresh(&format!("{name}_{what}"));
            g.add_node("", op, &[Some(x.into()), Some(scale.into()), Some(zero.into())], &[&output])
        };
        let quantize = through(Quantize { grain, ..Quantize::default() }.into(), layer.weight, "in_codes")?;
        let dequantize = through(Dequantize { grain, output: None }.into(), quantize, "rounded")?;
        readers.iter().for_each(|u| g.set_operand(u.node, u.slot, Some(dequantize.into())));
        Ok(Self { layer: *layer, layout: *layout, codes, block: blocked.block, zeros, scale, dequantize })
    }

    /// Makes codes of the weight as it is now, in the form of one that was not trained.
    pub fn freeze(&self, g: &mut Graph, by_bits: bool, cx: &Context) -> Result<()> {
        let bug = || Error::bug("a weight in training is not a constant");
        let floats = |node: NodeId| Some(g.constant(node.into())?.as_f32()?.into_owned());
        let (weight, scales) = floats(self.layer.weight).zip(floats(self.scale)).ok_or_else(bug)?;
        let (columns, block) = (self.layout.columns(), self.block);
        let of_blocks = self.layout.with_columns(columns.div_ceil(block));
        let least = |scale: &f32| scale.abs().max(f32::MIN_POSITIVE);
        let scales = of_blocks.matrix(&scales);
        let blocks = scales.iter().zip(&self.zeros).map(|(scale, zero)| Affine { scale: least(scale), zero: *zero });
        let blocks: Vec<Affine> = blocks.collect();
        let codes = nearest_codes(&self.layout.matrix(&weight), columns, block, &blocks, self.codes);
        let blocked = Blocked { codes, blocks, columns, block };
        g.redirect(self.dequantize.into(), self.layer.weight.into(), &[]);
        remove_dead(g, self.dequantize);
        form::write(g, &self.layer, &self.layout, (&blocked, self.codes), by_bits, cx)
    }
}
