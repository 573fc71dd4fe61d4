//! Rows of a table in codes of 4 bits, two a byte, as every runtime can look them up: bytes are gathered, each names two of 16
//! levels in a list of all 256 pairs, and each block of a row is multiplied by its scale.
//!
//! ONNX's Gather takes no codes of 4 bits, and a DequantizeLinear in front of it would make floats of the whole table in each run.

use crate::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        binary::Binary,
        cast::{Cast, Rounding},
        gather::Gather,
        reshape::Reshape,
    },
    rewrite::{Edit, Ref},
    tensor::{DType, Tensor},
};

/// Bytes that two codes of 4 bits can be.
const PAIRS: usize = 256;

/// A lookup of such rows.
pub struct PackedRows<'g> {
    /// The constant that the table is.
    pub codes_from: Port,
    /// The table, U8 `[rows, columns / 2]`: the code of an even column is in the low half of its byte.
    pub codes: &'g Tensor,
    /// What each byte stands for, F32 `[256, 2]`.
    pub pairs: &'g Tensor,
    /// The scale of each block, F32 `[rows, blocks]`.
    pub scales: &'g Tensor,
    /// The constant that has these.
    pub scales_from: Port,
    /// What is subtracted from the levels of each block, I8 `[rows, blocks]`, and the constant that has it.
    pub zeros: Option<(&'g Tensor, Port)>,
    /// Which rows.
    pub ids: Port,
}

/// The bytes that are the indices `ids`, if they are.
pub fn bytes(g: &Graph, ids: Port) -> Option<Port> {
    let Op::Cast(Cast { to: DType::I32 | DType::I64, .. }) = g.op(ids.node) else { return None };
    g.operand(ids.node, 0).filter(|of| g.fact(*of).dtype == Some(DType::U8))
}

/// The constant from which `node` gathers what bytes stand for, if it does.
pub fn levels(g: &Graph, node: NodeId) -> Option<NodeId> {
    let (levels, _, ids) = gathered(g, node.into())?;
    bytes(g, ids).map(|_| levels.node)
}

/// What `node` gathers along axis 0 of a constant, and by which indices.
fn gathered(g: &Graph, port: Port) -> Option<(Port, &Tensor, Port)> {
    let Op::Gather(Gather { axis: 0 }) = g.op(port.node) else { return None };
    let (table, ids) = (g.operand(port.node, 0)?, g.operand(port.node, 1)?);
    Some((table, g.constant(table)?, ids))
}

/// What `node` reshapes, and the last sizes that it gives it.
fn reshaped<const N: usize>(g: &Graph, node: NodeId) -> Option<(Port, [usize; N])> {
    let Op::Reshape(_) = g.op(node) else { return None };
    let to = g.fact(g.operand(node, 1)?).known_elems()?;
    let last: [i64; N] = to.get(to.len().checked_sub(N)?..)?.try_into().ok()?;
    let sizes = last.map(|n| usize::try_from(n).unwrap_or(0));
    sizes.iter().all(|n| *n > 0).then_some((g.operand(node, 0)?, sizes))
}

/// The zero points of rows `ids`, as floats with a last axis of 1.
fn zero_points(g: &Graph, zeros: Port, ids: Port) -> Option<(&Tensor, Port)> {
    let (cast, [_, 1]) = reshaped(g, zeros.node)? else { return None };
    let Op::Cast(Cast { to: DType::F32, .. }) = g.op(cast.node) else { return None };
    let (from, zeros, same) = gathered(g, g.operand(cast.node, 0)?)?;
    (same == ids).then_some((zeros, from))
}

impl<'g> PackedRows<'g> {
    /// The lookup that `node` is the last operator of.
    pub fn of(g: &'g Graph, node: NodeId) -> Option<Self> {
        let (product, [columns]) = reshaped(g, node)?;
        let Op::Binary(Binary::Mul) = g.op(product.node) else { return None };
        let (a, b) = (g.operand(product.node, 0)?, g.operand(product.node, 1)?);
        [(a, b), (b, a)].into_iter().find_map(|(blocks, scales)| {
            let (blocks, zeros) = match g.op(blocks.node) {
                Op::Binary(Binary::Sub) => (g.operand(blocks.node, 0)?, Some(g.operand(blocks.node, 1)?)),
                _ => (blocks, None),
            };
            let (pairs, [parts, block]) = reshaped(g, blocks.node)?;
            let (_, pairs, codes) = gathered(g, pairs)?;
            let (codes_from, codes, ids) = gathered(g, bytes(g, codes)?)?;
            let (scales, [_, 1]) = reshaped(g, scales.node)? else { return None };
            let (scales_from, scales, same) = gathered(g, scales)?;
            let [rows, half] = *codes.shape() else { return None };
            let zeros = match zeros {
                Some(zeros) => Some(zero_points(g, zeros, ids)?),
                None => None,
            };
            let fits = codes.dtype() == DType::U8
                && (pairs.dtype(), pairs.shape()) == (DType::F32, &[PAIRS, 2])
                && (scales.dtype(), scales.shape()) == (DType::F32, &[rows, parts])
                && zeros.is_none_or(|(zeros, _)| (zeros.dtype(), zeros.shape()) == (DType::I8, &[rows, parts]))
                && same == ids
                && [parts * block, 2 * half] == [columns; 2];
            fits.then_some(Self { codes_from, codes, pairs, scales, scales_from, zeros, ids })
        })
    }

    /// Codes of a block.
    pub fn block(&self) -> usize {
        2 * self.codes.shape()[1] / self.scales.shape()[1]
    }

    /// Whether the levels are the numbers from -8 to 7.
    pub fn is_by_numbers(&self) -> bool {
        *self.pairs == numbers()
    }

    /// Adds the operators to `edit`, as node `name`: rows `ids`, of `rank` axes, of the table `codes` with `scales`.
    pub fn write(
        edit: &mut Edit,
        name: &str,
        (codes, scales): (Tensor, Tensor),
        table: &str,
        ids: (Port, usize),
    ) -> Ref {
        let (ids, rank) = (Ref::from(ids.0), ids.1);
        let (half, parts) = (codes.shape()[1], scales.shape()[1]);
        let shape = |edit: &mut Edit, last: &[usize]| {
            let before = std::iter::repeat_n(0, rank);
            let sizes: Vec<i64> = before.chain(last.iter().map(|n| *n as i64)).collect();
            edit.constant(&format!("{table}_shape"), Tensor::i64s(&sizes))
        };
        let node = |edit: &mut Edit, what: &str, op: Op, operands: [Ref; 2]| {
            edit.node(&format!("{name}_{what}"), op, &operands.map(Some))
        };
        let look_up = || Op::from(Gather { axis: 0 });
        let reshape = || Op::from(Reshape { allow_zero: false });
        let codes = edit.constant(&format!("{table}_quantized"), codes);
        let scales = edit.constant(&format!("{table}_scale"), scales);
        let pairs = edit.constant("pairs_of_4_bits", numbers());
        let codes = node(edit, "codes", look_up(), [codes, ids]);
        let cast = Cast { to: DType::I32, rounding: Rounding::default() };
        let codes = edit.node(&format!("{name}_cast"), cast, &[Some(codes)]);
        let values = node(edit, "pairs", look_up(), [pairs, codes]);
        let by_block = shape(edit, &[parts, 2 * half / parts]);
        let values = node(edit, "blocks", reshape(), [values, by_block]);
        let scales = node(edit, "scales", look_up(), [scales, ids]);
        let of_blocks = shape(edit, &[parts, 1]);
        let scales = node(edit, "scales_of_blocks", reshape(), [scales, of_blocks]);
        let values = node(edit, "scaled", Binary::Mul.into(), [values, scales]);
        let whole = shape(edit, &[2 * half]);
        edit.node(name, reshape(), &[Some(values), Some(whole)])
    }
}

/// For each byte the numbers from -8 to 7 of which it has the codes.
pub fn numbers() -> Tensor {
    let pair = |byte: usize| [byte & 15, byte >> 4].map(|code| code as f32 - 8.0);
    Tensor::f32(&[PAIRS, 2], &(0..PAIRS).flat_map(pair).collect::<Vec<_>>())
}
