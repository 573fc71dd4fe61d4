//! The loops of training on the CPU, forward and backward, on 32-bit floats: convolutions, batch normalisation, maximum
//! pools, and what else takes time. Convolutions and products of matrices may round to bfloat16 what they multiply
//! ([`FactorWidth`]).
//!
//! Unlike inference, training keeps the graph's own form: contiguous NCHW. Work is divided over
//! rayon's threads; what is summed over samples is summed in parts that depend on the shape alone,
//! so that results are the same to the last bit for any number of threads.
//!
//! # Panics
//! Every function does when a slice is not as long as its shape says.

mod batch_norm;
mod conv;
mod copy;
mod correlate;
mod elementwise;
mod factors;
mod function;
mod lines;
mod max_pool;
mod place;
mod product;
mod quantise;
#[cfg(test)]
mod tests;
mod tile;
mod unroll;
mod weight_gradient;

pub use batch_norm::{BatchNorm, NormGradients, Normalised};
pub use conv::{conv, conv_bias_gradient, conv_input_gradient};
pub use elementwise::{Signs, add, copied, relu, relu_gradient};
pub use factors::FactorWidth;
pub use function::{Function, function, function_gradient};
pub use lines::{LayerNorm, add_to_lines, softmax, softmax_gradient, sums_of_lines};
pub use max_pool::{max_pool, max_pool_gradient};
pub use place::{Picked, Span, place};
pub use product::{Matrices, product};
pub use quantise::{Codes, dequantise, dequantise_gradients, quantise, quantise_gradients};
pub use weight_gradient::conv_weight_gradient;

use unroll::Axis;

/// Where a convolution or pooling over NCHW pictures stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape2d {
    /// Pictures.
    pub samples: usize,
    /// Planes of an input picture.
    pub channels: usize,
    /// Rows of an input plane.
    pub rows: usize,
    /// Columns of an input plane.
    pub columns: usize,
    /// Planes of an output picture; for a pool as many as channels.
    pub filters: usize,
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Steps from one window to the next.
    pub stride: [usize; 2],
    /// Steps from one tap to the next.
    pub dilation: [usize; 2],
    /// What is added before and after, of rows and of columns.
    pub pads: [(usize, usize); 2],
    /// Parts into which channels and filters are divided.
    pub groups: usize,
}

impl Shape2d {
    /// Rows and columns of an output plane, rounded down.
    pub fn output(&self) -> [usize; 2] {
        let input = [self.rows, self.columns];
        [0, 1].map(|axis| {
            let (begin, end) = self.pads[axis];
            let window = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            (input[axis] + begin + end).checked_sub(window).map_or(0, |rest| rest / self.stride[axis] + 1)
        })
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.samples * self.channels * self.plane()
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.samples * self.filters * self.pixels()
    }

    /// Elements of the weight.
    pub fn weight_len(&self) -> usize {
        self.filters * self.group_channels() * self.taps()
    }

    /// Elements of an input plane.
    fn plane(&self) -> usize {
        self.rows * self.columns
    }

    /// Elements of an output plane.
    fn pixels(&self) -> usize {
        self.output().iter().product()
    }

    /// Elements of the window.
    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Channels of a group.
    fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Filters of a group.
    fn group_filters(&self) -> usize {
        self.filters / self.groups
    }

    /// The width to multiply in where `width` is asked for: what is read for one filter alone takes longer to narrow than
    /// its products take in 32 bits.
    fn width(&self, width: FactorWidth) -> FactorWidth {
        if self.group_filters() == 1 { FactorWidth::F32 } else { width }
    }

    /// What a convolution reads, by axis.
    fn axes(&self) -> [Axis; 2] {
        let (input, output) = ([self.rows, self.columns], self.output());
        [0, 1].map(|axis| Axis {
            input: input[axis],
            output: output[axis],
            taps: self.kernel[axis],
            stride: self.stride[axis],
            dilation: self.dilation[axis],
            first: -(self.pads[axis].0 as isize),
        })
    }

    /// Panics unless this is a convolution of operands of these lengths; those left out are right.
    #[track_caller]
    fn check(&self, x: Option<&[f32]>, weight: Option<&[f32]>, y: Option<&[f32]>) {
        let counts = [self.kernel, self.stride, self.dilation].concat();
        assert!(counts.iter().all(|&n| n > 0) && self.groups > 0, "a window of nothing: {self:?}");
        assert!(
            self.channels.is_multiple_of(self.groups) && self.filters.is_multiple_of(self.groups),
            "channels and filters are not divisible into groups: {self:?}"
        );
        assert!(x.is_none_or(|x| x.len() == self.input_len()), "the input doesn't fit {self:?}");
        assert!(weight.is_none_or(|w| w.len() == self.weight_len()), "the weight doesn't fit {self:?}");
        assert!(y.is_none_or(|y| y.len() == self.output_len()), "the output doesn't fit {self:?}");
    }
}
