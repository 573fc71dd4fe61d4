//! MatMul of two activations: the products of attention.

use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{error::Result, node::Port, op::Op, tensor::DType};
use compress_kernels::{GemmF, Rows};

/// The float value `port`, where it is a product of matrices. (One by a constant matrix is a
/// product of rows, whose weights are packed once.)
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let is_matrix = |p: &Port| g.fact(*p).dtype == Some(DType::F32) && s.rank(*p).is_some_and(|r| r >= 2);
    if !s.has(port.node) || !matches!(g.op(port.node), Op::MatMul(_)) {
        return None;
    }
    let [a, b] = [0, 1].map(|slot| g.operand(port.node, slot).filter(is_matrix));
    let (a, b) = (Matrices::of(s, a?, false)?, Matrices::of(s, b?, true)?);
    let operands = vec![Want::float(a.0), Want::float(b.0)];
    Some(Lowering::of(operands, MatMul([a.1, b.1])))
}

/// Which axes of a value are those of matrices: a Transpose, that need not be computed.
pub(super) struct Matrices(pub Vec<usize>);

impl Matrices {
    /// The value in which the matrices of `port` lie row by row; or, if `either`, column by column.
    fn of(s: &Scope, port: Port, either: bool) -> Option<(Port, Self)> {
        let rank = s.rank(port)?;
        if let Op::Transpose(op) = s.graph.op(port.node)
            && s.inner(port).is_some()
        {
            let perm = op.resolve(rank).ok()?;
            if perm[rank - 1] == rank - 1 || either && perm[rank - 2] == rank - 1 {
                return Some((s.graph.operand(port.node, 0)?, Self(perm)));
            }
        }
        Some((port, Self((0..rank).collect())))
    }

    /// Whether columns lie one after the other.
    pub fn transposed(&self) -> bool {
        self.0.last() != Some(&(self.0.len() - 1))
    }

    /// How they lie in a dense value of sizes `dims`.
    pub fn strided(&self, dims: &[usize]) -> StridedMatrices {
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        let axes: Vec<(usize, usize)> = self.0.iter().map(|axis| (dims[*axis], strides[*axis])).collect();
        let (batch, matrix) = axes.split_at(axes.len() - 2);
        StridedMatrices {
            batch: batch.to_vec(),
            size: [matrix[0].0, matrix[1].0],
            stride: matrix[0].1.max(matrix[1].1),
        }
    }
}

/// Where matrices lie.
pub(super) struct StridedMatrices {
    /// How many along each axis before the last two, and how far apart.
    pub batch: Vec<(usize, usize)>,
    /// Rows and columns.
    pub size: [usize; 2],
    /// Elements from row to row, or from column to column.
    pub stride: usize,
}

impl StridedMatrices {
    /// Where each of the matrices begins that are broadcast to `batch`.
    pub fn starts(&self, batch: &[usize]) -> Vec<usize> {
        let mut starts = vec![0];
        let missing = batch.len() - self.batch.len();
        for (axis, n) in batch.iter().enumerate() {
            let step = axis.checked_sub(missing).map_or(0, |own| match self.batch[own] {
                (1, _) => 0,
                (_, step) => step,
            });
            starts = starts.iter().flat_map(|at| (0..*n).map(move |i| at + i * step)).collect();
        }
        starts
    }
}

/// The product of the matrices of two values.
struct MatMul([Matrices; 2]);

impl Lowered for MatMul {
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool {
        // The first axis is one of matrices, not of their rows.
        output.len() > 2
            && inputs.iter().zip(&self.0).all(|(x, matrices)| match x.is_constant {
                true => x.dims.len() < output.len() || x.dims[matrices.0[0]] == 1,
                false => x.dims.len() == output.len() && matrices.0[0] == 0,
            })
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let [a, b] = [0, 1].map(|i| self.0[i].strided(p.dims(inputs[i])));
        let reads = [0, 1].map(|i| p.dense(inputs[i]));
        let y = p.output(output, Layout::Plain);
        let dims = p.dims(output);
        let batch = &dims[..dims.len() - 2];
        let ([rows, depth], [_, columns]) = (a.size, b.size);
        let starts: Vec<(usize, usize)> = a.starts(batch).into_iter().zip(b.starts(batch)).collect();
        let kernel = GemmF::new(p.isa(), depth, columns, self.0[1].transposed());
        let n = starts.len();
        // To pack a matrix is to read and to write it.
        let work = cost::macs32(p.isa(), n as u64 * kernel.macs(rows)) + cost::bytes(8 * n * depth * columns);
        let scratch = kernel.scratch_each(n, rows, p.parts(work));
        let b_size = if self.0[1].transposed() { [columns, depth] } else { [depth, columns] };
        p.step("matmul_f32", output, &reads, y, scratch, work, move |o| {
            let (of_a, of_b, parts) = (o.slice(0), o.slice(1), o.parts);
            let (y, scratch) = o.write();
            let operands = |i: usize| {
                let (at_a, at_b) = starts[i];
                let a_rows = Rows::new(&of_a[at_a..], rows, depth, a.stride);
                [a_rows, Rows::new(&of_b[at_b..], b_size[0], b_size[1], b.stride)]
            };
            kernel.run_each(n, operands, y, scratch, parts);
        });
        Ok(())
    }
}
