//! Products of matrices by kernels of ours, and their gradients.

use super::extension::Vjp;
use super::operators::{dims, tensor};
use burn_flex::FlexTensor;
use compress_kernels::train::{FactorWidth, Matrices, product};

/// The product over the last two axes, of equal batches, with factors of a width.
#[derive(Clone, Debug)]
pub struct Product(pub FactorWidth);

/// The matrices of the last two axes, wherever their elements lie.
struct Stored(FlexTensor);

impl Stored {
    fn of(x: FlexTensor) -> Self {
        let forward = x.layout().strides().iter().all(|step| *step >= 0);
        Self(if forward { x } else { x.to_contiguous() })
    }

    /// As they are, or turned.
    fn matrices(&self, turned: bool) -> Matrices<'_> {
        let steps: Vec<usize> = self.0.layout().strides().iter().map(|step| step.unsigned_abs()).collect();
        let (batches, last) = steps.split_at(steps.len() - 2);
        let mut starts = vec![self.0.layout().start_offset()];
        for (size, step) in dims(&self.0).iter().zip(batches) {
            starts = starts.iter().flat_map(|start| (0..*size).map(move |i| start + i * step)).collect();
        }
        let (row_step, column_step) = if turned { (last[1], last[0]) } else { (last[0], last[1]) };
        Matrices { data: self.0.storage::<f32>(), starts, row_step, column_step }
    }

    /// Rows and columns.
    fn size(&self) -> [usize; 2] {
        let dims = dims(&self.0);
        [dims[dims.len() - 2], dims[dims.len() - 1]]
    }
}

/// Products of pairs of matrices, in a tensor with the batches of the left ones.
fn multiplied(width: FactorWidth, left: (&Stored, bool), right: (&Stored, bool)) -> FlexTensor {
    let turn = |[rows, columns]: [usize; 2], turned| if turned { [columns, rows] } else { [rows, columns] };
    let ([m, k], [_, n]) = (turn(left.0.size(), left.1), turn(right.0.size(), right.1));
    let mut shape = dims(&left.0.0);
    shape.truncate(shape.len() - 2);
    shape.extend([m, n]);
    tensor(product(width, [m, k, n], &left.0.matrices(left.1), &right.0.matrices(right.1)), &shape)
}

impl Vjp<2> for Product {
    type Saved = ();
    const READS: [bool; 2] = [true; 2];
    const CHEAP: bool = false;

    /// Each for the gradient of the other.
    fn reads([x, y]: [bool; 2]) -> [bool; 2] {
        [y, x]
    }

    fn forward(&self, x: [FlexTensor; 2]) -> (FlexTensor, ()) {
        let [x, y] = x.map(Stored::of);
        (multiplied(self.0, (&x, false), (&y, false)), ())
    }

    fn backward(
        &self,
        x: [Option<FlexTensor>; 2],
        (): (),
        dz: FlexTensor,
        wants: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let ([x, y], dz) = (x.map(|x| x.map(Stored::of)), Stored::of(dz));
        [
            y.filter(|_| wants[0]).map(|y| multiplied(self.0, (&dz, false), (&y, true))),
            x.filter(|_| wants[1]).map(|x| multiplied(self.0, (&x, true), (&dz, false))),
        ]
    }
}
