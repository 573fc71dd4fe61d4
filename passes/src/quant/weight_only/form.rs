//! How codes of weights are written.

use super::blocks::Blocked;
use crate::{
    layers::Layer,
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
    rewrite::remove_dead,
    tensor::{DType, Tensor},
};

/// As a MatMulNBits of ONNX Runtime's domain in the place of each layer that reads the weight.
pub(super) fn by_bits(
    g: &mut Graph,
    layer: &Layer,
    layout: &WeightMatrix,
    blocked: &Blocked,
    codes: Codes,
) -> Result<()> {
    let name = g.value(layer.weight.into()).name.clone();
    let (rows, columns, parts) = (layout.rows, layout.columns(), blocked.of_row());
    let bits = codes.dtype.bits();
    // Codes of both kinds are stored without a sign, zero in the middle if it has no point of its own.
    let zero_points = codes.symmetry == Symmetry::Asymmetric;
    let (unsigned, middle) = if bits == 4 { (DType::U4, 8) } else { (DType::U8, 128) };
    let shift = if zero_points { 0 } else { middle };
    let bytes = |values: &[i64], each: usize, padded: usize, shift: i64| -> Vec<u8> {
        let row = |row: &[i64]| {
            let mut row: Vec<i64> = row.iter().map(|v| v + shift).collect();
            row.resize(padded, 0);
            Tensor::ints(unsigned, &[padded], &row).bytes().to_vec()
        };
        values.chunks(each).flat_map(row).collect()
    };
    let blob = blocked.block * bits / 8;
    let packed = bytes(&blocked.codes, columns, parts * blocked.block, shift);
    let packed = Tensor::new(DType::U8, vec![rows, parts, blob], packed)?;
    let scales: Vec<f32> = blocked.blocks.iter().map(|by| by.scale).collect();
    let of_row = (parts * bits).div_ceil(8);
    let zeros: Vec<i64> = blocked.blocks.iter().map(|by| by.zero).collect();
    let zeros =
        zero_points.then(|| Tensor::new(DType::U8, vec![rows, of_row], bytes(&zeros, parts, of_row * 8 / bits, 0)));
    let packed = g.add_constant(&format!("{name}_quantized"), packed);
    let scales = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[rows, parts], &scales));
    let zeros = zeros.transpose()?.map(|zeros| g.add_constant(&format!("{name}_zero_point"), zeros));
    let product = MatMulNBits {
        inputs: columns,
        outputs: rows,
        bits: bits as i64,
        block: blocked.block as i64,
        accuracy_level: IN_CODES,
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

/// Whether a layer that reads the weight can be one: rows times a matrix, and a bias that is added as it is.
pub(super) fn has_bits(g: &Graph, layer: &Layer) -> bool {
    g.uses(layer.weight.into()).iter().all(|reader| match g.op(reader.node) {
        Op::MatMul(_) => true,
        Op::Gemm(gemm) => !gemm.trans_a && gemm.alpha == 1.0 && gemm.beta == 1.0,
        _ => false,
    })
}

/// The accuracy_level in which rows become codes of 8 bits.
const IN_CODES: i64 = 4;

/// As a DequantizeLinear with blocks, of opset 21.
pub(super) fn dequantised(
    g: &mut Graph,
    layer: &Layer,
    layout: &WeightMatrix,
    blocked: &Blocked,
    codes: Codes,
) -> Result<()> {
    let name = g.value(layer.weight.into()).name.clone();
    let axis = layout.input_axis();
    let scales: Vec<f32> = blocked.blocks.iter().map(|by| by.scale).collect();
    let of_blocks = layout.with_columns(blocked.of_row());
    let shape = |rows: usize, columns: usize| if axis == 1 { vec![rows, columns] } else { vec![columns, rows] };
    let (rows, columns, parts) = (layout.rows, layout.columns(), blocked.of_row());
    let tensor = Tensor::ints(codes.stored, &shape(rows, columns), &layout.stored(&blocked.codes));
    let scales = Tensor::f32(&shape(rows, parts), &of_blocks.stored(&scales));
    let scales = g.add_constant(&format!("{name}_scale"), scales);
    let zeros = (codes.symmetry == Symmetry::Asymmetric).then(|| {
        let zeros: Vec<i64> = blocked.blocks.iter().map(|by| by.zero).collect();
        let zeros = Tensor::ints(codes.stored, &shape(rows, parts), &of_blocks.stored(&zeros));
        g.add_constant(&format!("{name}_zero_point"), zeros)
    });
    let readers = g.uses(layer.weight.into());
    let coded = g.add_constant(&format!("{name}_quantized"), tensor);
    let output = g.fresh(&format!("{name}_dequantized"));
    let op = Dequantize { grain: Grain { axis: axis as i64, block: blocked.block as i64 }, output: None };
    let inputs = [Some(coded.into()), Some(scales.into()), zeros.map(Into::into)];
    let dq = g.add_node("", op.into(), &inputs, &[&output])?;
    readers.iter().for_each(|u| g.set_operand(u.node, u.slot, Some(dq.into())));
    remove_dead(g, layer.weight);
    Ok(())
}
