//! How codes of weights are written.

use super::blocks::{Blocked, middle};
use crate::{
    layers::{self, Layer},
    quant::scheme::{Codes, Symmetry},
    weight_matrix::WeightMatrix,
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::Port,
    op::Op,
    ops::binary::Binary,
    ops::matmul_nbits::MatMulNBits,
    ops::quantize::{Dequantize, Grain},
    pass::Context,
    rewrite::remove_dead,
    tensor::{DType, Tensor},
};
use rayon::prelude::*;

/// In the form that the target has kernels for, `by_bits` if it has MatMulNBits.
pub(super) fn write(
    g: &mut Graph,
    layer: &Layer,
    layout: &WeightMatrix,
    blocked: (&Blocked, Codes),
    by_bits: bool,
    cx: &Context,
) -> Result<()> {
    match by_bits && has_bits(g, layer) {
        true => self::by_bits(g, layer, layout, blocked, cx),
        false => dequantised(g, layer, layout, blocked, cx),
    }
}

/// As a MatMulNBits of ONNX Runtime's domain in the place of each layer that reads the weight.
fn by_bits(
    g: &mut Graph,
    layer: &Layer,
    layout: &WeightMatrix,
    (blocked, codes): (&Blocked, Codes),
    cx: &Context,
) -> Result<()> {
    let name = g.value(layer.weight.into()).name.clone();
    let (rows, columns, parts) = (layout.rows, layout.columns(), blocked.of_row());
    let bits = codes.dtype.bits();
    let zero_points = codes.symmetry == Symmetry::Asymmetric;
    let blob = blocked.block * bits / 8;
    let packed = rows_of(&blocked.codes, columns, parts * blocked.block, bits);
    let packed = Tensor::new(DType::U8, vec![rows, parts, blob], packed)?;
    let scales: Vec<f32> = blocked.blocks.iter().map(|by| by.scale).collect();
    let of_row = (parts * bits).div_ceil(8);
    let zeros: Vec<u8> = blocked.blocks.iter().map(|by| by.zero as u8).collect();
    let zeros = rows_of(&zeros, parts, of_row * 8 / bits, bits);
    let zeros = zero_points.then(|| Tensor::new(DType::U8, vec![rows, of_row], zeros));
    let packed = g.add_constant(&format!("{name}_quantized"), cx.kept(packed)?);
    let scales = g.add_constant(&format!("{name}_scale"), cx.kept(Tensor::f32(&[rows, parts], &scales))?);
    let zeros = zeros.transpose()?.map(|zeros| g.add_constant(&format!("{name}_zero_point"), zeros));
    let product = MatMulNBits {
        inputs: columns,
        outputs: rows,
        bits: bits as i64,
        block: blocked.block as i64,
        accuracy_level: MatMulNBits::IN_CODES,
    };
    for reader in g.uses(layer.weight.into()) {
        let mut operands = vec![g.operand(reader.node, 0), Some(packed.into()), Some(scales.into())];
        operands.extend(zeros.map(|zeros| Some(zeros.into())));
        let bias = g.operand(reader.node, 2);
        let (node, old) = (g.node(reader.node).name.clone(), Port::from(reader.node));
        let made = g.fresh(&format!("{}_product", g.value(old).name));
        let mut made: Port = g.add_node(&node, product.clone().into(), &operands, &[&made])?.into();
        if let Some(bias) = bias {
            let sum = g.fresh(&format!("{}_sum", g.value(old).name));
            made = g.add_node("", Binary::Add.into(), &[Some(made), Some(bias)], &[&sum])?.into();
        }
        g.redirect(old, made, &[]);
        remove_dead(g, reader.node);
    }
    Ok(())
}

/// Rows of codes of `bits` bits, each filled with zeros to `padded` of them.
fn rows_of(codes: &[u8], each: usize, padded: usize, bits: usize) -> Vec<u8> {
    match each == padded {
        true => packed(codes, bits),
        false => codes.chunks(each).flat_map(|row| packed(&[row, &vec![0; padded - each]].concat(), bits)).collect(),
    }
}

/// Codes as bytes: two of 4 bits in each, the first in its lower half.
pub(super) fn packed(codes: &[u8], bits: usize) -> Vec<u8> {
    match bits {
        4 => codes.par_chunks(2).map(|two| two[0] & 15 | two.get(1).map_or(0, |code| code << 4)).collect(),
        _ => codes.to_vec(),
    }
}

/// Whether all layers that read the weight can be one: rows times a matrix, read the same way round, and a bias that is added as it is.
fn has_bits(g: &Graph, layer: &Layer) -> bool {
    g.uses(layer.weight.into()).iter().all(|reader| {
        let same = layers::layer(g, reader.node).is_some_and(|other| other.axes == layer.axes);
        same && match g.op(reader.node) {
            Op::MatMul(_) => true,
            Op::Gemm(gemm) => !gemm.trans_a && gemm.alpha == 1.0 && gemm.beta == 1.0,
            _ => false,
        }
    })
}

/// As a DequantizeLinear with blocks, of opset 21.
fn dequantised(
    g: &mut Graph,
    layer: &Layer,
    layout: &WeightMatrix,
    (blocked, codes): (&Blocked, Codes),
    cx: &Context,
) -> Result<()> {
    let axis = layout.input_axis();
    let scales: Vec<f32> = blocked.blocks.iter().map(|by| by.scale).collect();
    let of_blocks = layout.with_columns(blocked.of_row());
    let shape = |rows: usize, columns: usize| if axis == 1 { vec![rows, columns] } else { vec![columns, rows] };
    let (rows, columns, parts) = (layout.rows, layout.columns(), blocked.of_row());
    // A number below zero has the bits of what is as far above the middle.
    let sign = middle(codes) as u8;
    let signed: Vec<u8> = layout.stored(&blocked.codes).into_par_iter().map(|code| code ^ sign).collect();
    let tensor = Tensor::new(codes.stored, shape(rows, columns), packed(&signed, codes.stored.bits()))?;
    let scales = cx.kept(Tensor::f32(&shape(rows, parts), &of_blocks.stored(&scales)))?;
    let zeros = (codes.symmetry == Symmetry::Asymmetric).then(|| {
        let zeros: Vec<i64> = blocked.blocks.iter().map(|by| i64::from(by.zero)).collect();
        Tensor::ints(codes.stored, &shape(rows, parts), &of_blocks.stored(&zeros))
    });
    let op = Dequantize { grain: Grain { axis: axis as i64, block: blocked.block as i64 }, output: None };
    read_through(g, layer, op, [Some(cx.kept(tensor)?), Some(scales), zeros])
}

/// Has the readers of a weight read what `op` makes of its codes, their scales, and perhaps their zero points.
pub(super) fn read_through(g: &mut Graph, layer: &Layer, op: Dequantize, of: [Option<Tensor>; 3]) -> Result<()> {
    let name = g.value(layer.weight.into()).name.clone();
    let readers = g.uses(layer.weight.into());
    let named = of.into_iter().zip(["quantized", "scale", "zero_point"]);
    let inputs: Vec<Option<Port>> =
        named.map(|(t, what)| t.map(|t| g.add_constant(&format!("{name}_{what}"), t).into())).collect();
    let output = g.fresh(&format!("{name}_dequantized"));
    let dq = g.add_node("", op.into(), &inputs, &[&output])?;
    readers.iter().for_each(|u| g.set_operand(u.node, u.slot, Some(dq.into())));
    remove_dead(g, layer.weight);
    Ok(())
}
