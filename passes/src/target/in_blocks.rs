//! Products and lookups by codes in blocks, as the operators of ONNX Runtime's domain that are made for them.

use compress_compiler::{
    error::Result,
    forms::packed_rows::PackedRows,
    graph::Graph,
    node::{NodeId, Port, Use},
    op::Op,
    ops::{
        gather_blocks::GatherBlocks,
        matmul_nbits::{MatMulNBits, Packed},
        quantize::Dequantize,
    },
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::{DType, Tensor},
};

/// A product with a matrix of codes in blocks is one MatMulNBits, whose kernels read the codes as they lie: DequantizeLinear would
/// make floats of all of them in each run.
pub(super) struct ToNBits;

impl Rule for ToNBits {
    fn name(&self) -> &'static str {
        "nbits"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["MatMul"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, cx: &Context) -> Result<Verdict> {
        let Some((op, x, packed)) = of_blocks(graph, node) else { return Ok(Verdict::No) };
        let mut edit = Edit::new();
        let mut operands = vec![Some(x.into())];
        for (name, tensor) in [("quantized", packed.codes), ("scale", packed.scales)] {
            operands.push(Some(edit.constant(name, cx.kept(tensor)?)));
        }
        operands.extend(packed.zeros.map(|zeros| Some(edit.constant("zero_point", zeros))));
        let made = edit.node(&graph.node(node).name, op, &operands);
        edit.replace(node.into(), made);
        Ok(Verdict::Apply(edit))
    }
}

/// A lookup of rows in codes of 4 bits is one GatherBlockQuantized.
pub(super) struct ToGatherBlocks;

impl Rule for ToGatherBlocks {
    fn name(&self) -> &'static str {
        "gather-blocks"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Reshape"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(looked_up(graph, node).unwrap_or(Verdict::No))
    }
}

fn looked_up(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let rows = PackedRows::of(graph, node).filter(PackedRows::is_by_numbers)?;
    let (block, columns) = (rows.block(), 2 * rows.codes.shape()[1]);
    if !(block.is_power_of_two() && block >= 16) {
        return None;
    }
    let mut edit = Edit::new();
    let name = |port: Port| &graph.value(port).name;
    let codes = edit.constant(name(rows.codes_from), rows.codes.clone());
    let scales = edit.constant(name(rows.scales_from), rows.scales.clone());
    let mut operands = vec![Some(codes), Some(rows.ids.into()), Some(scales)];
    if let Some((zeros, from)) = rows.zeros {
        operands.push(Some(edit.constant(name(from), packed(zeros)?)));
    }
    let op = GatherBlocks { block: block as i64, columns };
    let made = edit.node(&graph.node(node).name, op, &operands);
    edit.replace(node.into(), made);
    Some(Verdict::Apply(edit))
}

/// Zero points around 0 as codes around 8, two a byte; a row of an odd number ends with a half that is not read.
fn packed(zeros: &Tensor) -> Option<Tensor> {
    let [rows, each] = *zeros.shape() else { return None };
    let values = zeros.as_i64()?;
    if values.iter().any(|zero| !(-8..8).contains(zero)) {
        return None;
    }
    let at = |i: usize| values.get(i).map_or(0, |zero| (zero + 8) as u8);
    let byte = |row: usize, i: usize| at(row * each + i) | if i + 1 < each { at(row * each + i + 1) << 4 } else { 0 };
    let bytes: Vec<u8> =
        (0..rows).flat_map(|row| (0..each).step_by(2).map(move |i| (row, i))).map(|(r, i)| byte(r, i)).collect();
    Tensor::new(DType::U8, vec![rows, each.div_ceil(2)], bytes).ok()
}

fn of_blocks(graph: &Graph, node: NodeId) -> Option<(MatMulNBits, Port, Packed)> {
    let (x, weight) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
    let Op::Dequantize(Dequantize { grain, .. }) = graph.op(weight.node) else { return None };
    let fits =
        matches!(grain.axis, 0 | -2) && graph.fact(x).dtype == Some(DType::F32) && graph.fact(x).rank() >= Some(2);
    // Others that read the floats would need both forms of the weight.
    let multiplies = |u: &Use| u.slot == 1 && matches!(graph.op(u.node), Op::MatMul(_));
    let alone = !graph.is_output(weight) && graph.uses(weight).iter().all(multiplies);
    if !fits || !alone || graph.fact(weight).dtype != Some(DType::F32) {
        return None;
    }
    let read = |slot: usize| graph.operand(weight.node, slot);
    let zeros = match read(2) {
        Some(port) => Some(graph.constant(port)?),
        None => None,
    };
    let (op, packed) = MatMulNBits::of(graph.constant(read(0)?)?, graph.constant(read(1)?)?, zeros, grain.block)?;
    Some((op, x, packed))
}
