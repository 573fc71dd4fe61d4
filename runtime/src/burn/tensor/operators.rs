//! The operators that have training kernels of ours: forward passes and vector-Jacobian products.

use super::extension::Vjp;
use ::burn::backend::{
    DType, Flex, Shape, Slice, TensorMetadata,
    ops::{ConvOptions, FloatTensorOps},
};
use burn_flex::{FlexTensor, Layout};
use compress_kernels::train::{self, Codes, FactorWidth, Function, Picked, Shape2d, Signs, Span};
use std::sync::Arc;

pub(super) fn dims(t: &FlexTensor) -> Vec<usize> {
    t.shape().iter().copied().collect()
}

/// The elements of a contiguous tensor, which may lie inside of a larger one.
pub(super) fn elements(t: &FlexTensor) -> &[f32] {
    t.as_slice().unwrap_or_default()
}

pub(super) fn tensor(data: Vec<f32>, dims: &[usize]) -> FlexTensor {
    let layout = Layout::contiguous(Shape::from(dims.to_vec()));
    FlexTensor::new(::burn::tensor::Bytes::from_elems(data), layout, DType::F32)
}

/// A convolution, with or without a bias.
#[derive(Clone, Debug)]
pub struct Conv {
    /// Where the window stands.
    pub options: ConvOptions<2>,
    /// The width of what is multiplied, in both passes.
    pub width: FactorWidth,
}

impl Conv {
    fn shape(&self, x: &[usize], weight: &[usize]) -> Shape2d {
        Shape2d {
            samples: x[0],
            channels: x[1],
            rows: x[2],
            columns: x[3],
            filters: weight[0],
            kernel: [weight[2], weight[3]],
            stride: self.options.stride,
            dilation: self.options.dilation,
            pads: self.options.padding,
            groups: self.options.groups,
        }
    }

    pub fn run(&self, x: FlexTensor, weight: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
        let (x, weight, bias) = (x.to_contiguous(), weight.to_contiguous(), bias.map(|b| b.to_contiguous()));
        let at = self.shape(&dims(&x), &dims(&weight));
        let [rows, columns] = at.output();
        let y = train::conv(self.width, &at, elements(&x), elements(&weight), bias.as_ref().map(elements));
        tensor(y, &[at.samples, at.filters, rows, columns])
    }

    fn gradients(
        &self,
        x: Option<FlexTensor>,
        weight: Option<FlexTensor>,
        dy: FlexTensor,
        wants: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let (Some(x), Some(weight)) = (x, weight) else { return [const { None }; 3] };
        let (x, weight, dy) = (x.to_contiguous(), weight.to_contiguous(), dy.to_contiguous());
        let (xs, ws) = (dims(&x), dims(&weight));
        let at = self.shape(&xs, &ws);
        [
            wants[0]
                .then(|| tensor(train::conv_input_gradient(self.width, &at, elements(&weight), elements(&dy)), &xs)),
            wants[1].then(|| tensor(train::conv_weight_gradient(self.width, &at, elements(&x), elements(&dy)), &ws)),
            wants[2].then(|| tensor(train::conv_bias_gradient(&at, elements(&dy)), &ws[..1])),
        ]
    }
}

impl Vjp<2> for Conv {
    type Saved = ();
    const READS: [bool; 2] = [true; 2];
    const CHEAP: bool = false;

    fn forward(&self, [x, weight]: [FlexTensor; 2]) -> (FlexTensor, ()) {
        (self.run(x, weight, None), ())
    }

    fn backward(
        &self,
        [x, weight]: [Option<FlexTensor>; 2],
        (): (),
        dy: FlexTensor,
        wants: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let [dx, dw, _] = self.gradients(x, weight, dy, [wants[0], wants[1], false]);
        [dx, dw]
    }
}

impl Vjp<3> for Conv {
    type Saved = ();
    const READS: [bool; 3] = [true, true, false];
    const CHEAP: bool = false;

    fn forward(&self, [x, weight, bias]: [FlexTensor; 3]) -> (FlexTensor, ()) {
        (self.run(x, weight, Some(bias)), ())
    }

    fn backward(
        &self,
        [x, weight, _]: [Option<FlexTensor>; 3],
        (): (),
        dy: FlexTensor,
        wants: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        self.gradients(x, weight, dy, wants)
    }
}

/// Normalisation by the batch's own statistics.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    /// Added to variances.
    pub epsilon: f32,
    /// Whether a rectifier follows.
    pub rectified: bool,
}

impl BatchNorm {
    fn of<'a>(&self, x: &'a FlexTensor, scale: &'a FlexTensor, bias: &'a FlexTensor) -> train::BatchNorm<'a> {
        let dims = dims(x);
        // Without an axis of channels there is one channel.
        let shape = [dims[0], dims.get(1).copied().unwrap_or(1), dims.iter().skip(2).product()];
        let [x, scale, bias] = [x, scale, bias].map(elements);
        train::BatchNorm { x, shape, scale, bias, epsilon: self.epsilon, rectified: self.rectified }
    }
}

impl Vjp<3> for BatchNorm {
    type Saved = (FlexTensor, FlexTensor);
    const READS: [bool; 3] = [true; 3];
    const CHEAP: bool = true;

    fn forward(&self, x: [FlexTensor; 3]) -> (FlexTensor, Self::Saved) {
        let [x, scale, bias] = x.map(|t| t.to_contiguous());
        let made = self.of(&x, &scale, &bias).run();
        let statistic = |v: Vec<f32>| {
            let n = v.len();
            tensor(v, &[n])
        };
        (tensor(made.y, &dims(&x)), (statistic(made.mean), statistic(made.variance)))
    }

    fn backward(
        &self,
        x: [Option<FlexTensor>; 3],
        (mean, variance): Self::Saved,
        dy: FlexTensor,
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let [Some(x), Some(scale), Some(bias)] = x.map(|t| t.map(|t| t.to_contiguous())) else {
            return [const { None }; 3];
        };
        let dy = dy.to_contiguous();
        let made = self.of(&x, &scale, &bias).gradients(elements(&mean), elements(&variance), elements(&dy));
        let channels = [made.scale.len()];
        [tensor(made.x, &dims(&x)), tensor(made.scale, &channels), tensor(made.bias, &channels)].map(Some)
    }
}

/// Where a maximum is taken: the kernel, and the size of the output.
#[derive(Clone, Copy, Debug)]
pub struct Window2d {
    /// Taps.
    pub kernel: [usize; 2],
    /// Steps between positions.
    pub stride: [usize; 2],
    /// Steps between taps.
    pub dilation: [usize; 2],
    /// (begin, end) padding; the end is not looked at beyond `out`.
    pub pads: [(usize, usize); 2],
    /// Positions.
    pub out: [usize; 2],
}

impl Window2d {
    fn shape(&self, x: &[usize]) -> Shape2d {
        Shape2d {
            samples: x[0],
            channels: x[1],
            rows: x[2],
            columns: x[3],
            filters: x[1],
            kernel: self.kernel,
            stride: self.stride,
            dilation: self.dilation,
            pads: self.pads,
            groups: x[1],
        }
    }
}

impl Vjp<1> for Window2d {
    type Saved = (Vec<usize>, Arc<Vec<u32>>);
    const READS: [bool; 1] = [false];
    const CHEAP: bool = false;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Self::Saved) {
        let x = x.to_contiguous();
        let shape = dims(&x);
        let (y, winners) = train::max_pool(&self.shape(&shape), self.out, elements(&x));
        (tensor(y, &[shape[0], shape[1], self.out[0], self.out[1]]), (shape, Arc::new(winners)))
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 1],
        (shape, winners): Self::Saved,
        dy: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let dx = train::max_pool_gradient(&self.shape(&shape), self.out, elements(&dy.to_contiguous()), &winners);
        [Some(tensor(dx, &shape))]
    }
}

/// Changes elements in place where nobody else holds them, in a copy otherwise.
pub(super) fn changed<T>(mut x: FlexTensor, change: impl FnOnce(&mut [f32]) -> T) -> (FlexTensor, T) {
    if x.is_contiguous()
        && size_of_val(elements(&x)) == x.bytes().len()
        && let Some(own) = x.try_storage_mut::<f32>()
    {
        let made = change(own);
        return (x, made);
    }
    let x = x.to_contiguous();
    let mut data = train::copied(elements(&x));
    let made = change(&mut data);
    (tensor(data, &dims(&x)), made)
}

/// `max(x, 0)`.
#[derive(Clone, Debug)]
pub struct Relu;

impl Vjp<1> for Relu {
    type Saved = Arc<Signs>;
    const READS: [bool; 1] = [false];
    const CHEAP: bool = true;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Self::Saved) {
        let (y, signs) = changed(x, train::relu);
        (y, Arc::new(signs))
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 1],
        signs: Self::Saved,
        dy: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        [Some(changed(dy, |dy| train::relu_gradient(&signs, dy)).0)]
    }
}

impl Vjp<1> for Function {
    type Saved = ();
    const READS: [bool; 1] = [true];
    const CHEAP: bool = true;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, ()) {
        let x = x.to_contiguous();
        (tensor(train::function(*self, elements(&x)), &dims(&x)), ())
    }

    fn backward(&self, [x]: [Option<FlexTensor>; 1], (): (), dy: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [x.map(|x| {
            let x = x.to_contiguous();
            changed(dy, |dy| train::function_gradient(*self, elements(&x), dy)).0
        })]
    }
}

/// `a + b` of equal shapes.
#[derive(Clone, Debug)]
pub struct Add;

impl Vjp<2> for Add {
    type Saved = ();
    const READS: [bool; 2] = [false; 2];
    const CHEAP: bool = true;

    fn forward(&self, [a, b]: [FlexTensor; 2]) -> (FlexTensor, ()) {
        let b = b.to_contiguous();
        (changed(a, |a| train::add(a, elements(&b))).0, ())
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 2],
        (): (),
        dy: FlexTensor,
        wants: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        wants.map(|w| w.then(|| dy.clone()))
    }
}

/// A slice whose steps are positive.
#[derive(Clone, Debug)]
pub struct Slices(pub Vec<Slice>);

impl Vjp<1> for Slices {
    type Saved = Vec<usize>;
    const READS: [bool; 1] = [false];
    const CHEAP: bool = true;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Vec<usize>) {
        let shape = dims(&x);
        (Flex::float_slice(x, &self.0), shape)
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 1],
        shape: Vec<usize>,
        dy: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let span = |(slice, size): (&Slice, &usize)| Span {
            size: *size,
            start: slice.start.unsigned_abs(),
            step: slice.step.unsigned_abs(),
        };
        [Some(placed(&dy, &self.0.iter().zip(&shape).map(span).collect::<Vec<_>>(), 0.0))]
    }
}

/// A border of one value.
#[derive(Clone, Debug)]
pub struct Pad {
    /// (before, after) of each axis.
    pub border: Vec<(usize, usize)>,
    /// The value.
    pub value: f32,
}

impl Vjp<1> for Pad {
    type Saved = Vec<usize>;
    const READS: [bool; 1] = [false];
    const CHEAP: bool = true;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Vec<usize>) {
        let shape = dims(&x);
        let span = |(n, (before, after)): (&usize, &(usize, usize))| Span {
            size: n + before + after,
            start: *before,
            step: 1,
        };
        let spans: Vec<Span> = shape.iter().zip(&self.border).map(span).collect();
        (placed(&x, &spans, self.value), shape)
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 1],
        shape: Vec<usize>,
        dy: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let inside =
            |((before, _), n): (&(usize, usize), &usize)| Slice::new(*before as isize, Some((before + n) as isize), 1);
        let slices: Vec<Slice> = self.border.iter().zip(&shape).map(inside).collect();
        [Some(Flex::float_slice(dy, &slices))]
    }
}

/// A tensor, wherever its elements lie, in a larger one.
fn placed(x: &FlexTensor, spans: &[Span], fill: f32) -> FlexTensor {
    let axes: Vec<(usize, isize)> = dims(x).into_iter().zip(x.layout().strides().iter().copied()).collect();
    let picked = Picked { data: x.storage::<f32>(), first: x.layout().start_offset(), axes: &axes };
    let shape: Vec<usize> = spans.iter().map(|span| span.size).collect();
    tensor(train::place(picked, spans, fill), &shape)
}

/// QuantizeLinear, or DequantizeLinear, by a scale a channel. Gradients pass through rounding; zero points have none.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// Which codes, and which elements share a scale.
    pub codes: Codes,
    /// A zero point a channel.
    pub zero: Vec<f32>,
    /// Whether codes become what they stand for.
    pub back: bool,
}

impl Vjp<2> for Quantised {
    type Saved = ();
    const READS: [bool; 2] = [true; 2];
    const CHEAP: bool = true;

    fn forward(&self, [x, scale]: [FlexTensor; 2]) -> (FlexTensor, ()) {
        let (x, scale) = (x.to_contiguous(), scale.to_contiguous());
        let run = if self.back { train::dequantise } else { train::quantise };
        (tensor(run(elements(&x), &self.codes, elements(&scale), &self.zero), &dims(&x)), ())
    }

    fn backward(
        &self,
        [x, scale]: [Option<FlexTensor>; 2],
        (): (),
        dy: FlexTensor,
        _: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (Some(x), Some(scale)) = (x, scale) else { return [const { None }; 2] };
        let (x, scale, dy) = (x.to_contiguous(), scale.to_contiguous(), dy.to_contiguous());
        let run = if self.back { train::dequantise_gradients } else { train::quantise_gradients };
        let (dx, ds) = run(elements(&x), elements(&dy), &self.codes, elements(&scale), &self.zero);
        [Some(tensor(dx, &dims(&x))), Some(tensor(ds, &dims(&scale)))]
    }
}
