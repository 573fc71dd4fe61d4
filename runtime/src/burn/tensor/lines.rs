//! What runs along the last axis, by kernels of ours, and gradients of it.

use super::extension::Vjp;
use super::operators::{changed, dims, elements, tensor};
use burn_flex::FlexTensor;
use compress_kernels::train;
use std::sync::Arc;

/// The length of the last axis.
fn width(x: &FlexTensor) -> usize {
    dims(x).last().copied().unwrap_or(1)
}

/// Softmax of the last axis.
#[derive(Clone, Debug)]
pub struct Softmax;

impl Vjp<1> for Softmax {
    type Saved = FlexTensor;
    const READS: [bool; 1] = [false];
    const CHEAP: bool = false;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
        let x = x.to_contiguous();
        let y = tensor(train::softmax(elements(&x), width(&x)), &dims(&x));
        (y.clone(), y)
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 1],
        y: FlexTensor,
        dy: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        [Some(changed(dy, |dy| train::softmax_gradient(elements(&y), dy, width(&y))).0)]
    }
}

/// Layer normalisation of the last axis, by a scale and a bias a column.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to variances.
    pub epsilon: f32,
}

impl LayerNorm {
    fn of<'a>(&self, scale: &'a FlexTensor, bias: &'a FlexTensor) -> train::LayerNorm<'a> {
        train::LayerNorm { scale: elements(scale), bias: elements(bias), epsilon: self.epsilon }
    }
}

impl Vjp<3> for LayerNorm {
    type Saved = Arc<Vec<[f32; 2]>>;
    const READS: [bool; 3] = [true; 3];
    const CHEAP: bool = true;

    fn forward(&self, x: [FlexTensor; 3]) -> (FlexTensor, Self::Saved) {
        let [x, scale, bias] = x.map(|t| t.to_contiguous());
        let (y, statistics) = self.of(&scale, &bias).run(elements(&x));
        (tensor(y, &dims(&x)), Arc::new(statistics))
    }

    fn backward(
        &self,
        x: [Option<FlexTensor>; 3],
        statistics: Self::Saved,
        dy: FlexTensor,
        wants: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let [Some(x), Some(scale), Some(bias)] = x.map(|x| x.map(|x| x.to_contiguous())) else {
            return [const { None }; 3];
        };
        let norm = self.of(&scale, &bias);
        let (dx, [ds, db]) = changed(dy, |dy| norm.gradients(elements(&x), &statistics, dy));
        let shape = dims(&scale);
        [wants[0].then_some(dx), wants[1].then(|| tensor(ds, &shape)), wants[2].then(|| tensor(db, &shape))]
    }
}

/// Lines that are added, each to as many lines that follow each other: a bias, or a mask of attention.
#[derive(Clone, Debug)]
pub struct AddLines;

impl Vjp<2> for AddLines {
    type Saved = Vec<usize>;
    const READS: [bool; 2] = [false; 2];
    const CHEAP: bool = true;

    fn forward(&self, [x, lines]: [FlexTensor; 2]) -> (FlexTensor, Vec<usize>) {
        let lines = lines.to_contiguous();
        (changed(x, |x| train::add_to_lines(x, elements(&lines), width(&lines))).0, dims(&lines))
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 2],
        lines: Vec<usize>,
        dy: FlexTensor,
        wants: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let dy = dy.to_contiguous();
        let count: usize = lines.iter().rev().skip(1).product();
        let sums = || tensor(train::sums_of_lines(elements(&dy), width(&dy), count), &lines);
        [wants[0].then(|| dy.clone()), wants[1].then(sums)]
    }
}
