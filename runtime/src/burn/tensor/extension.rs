//! Our training kernels under Burn's automatic differentiation.
//!
//! Burn's CPU backend trains convolutions at a third of the speed that is possible: the gradient of
//! a weight is computed as a convolution whose kernel is the whole picture. [`Train`] is the list of
//! operators that have kernels of ours ([`compress_kernels::train`]); each has a forward pass and a
//! vector-Jacobian product, and [`record`] registers all of them alike. On other devices Burn's own
//! operators run: [`Float`](super::Float) decides which.

use ::burn::backend::{
    Autodiff, Backend, DType, Flex, Shape, TensorMetadata, backend_extension, ops::ConvOptions, tensor::FloatTensor,
};
use burn_autodiff::{
    NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_flex::{FlexTensor, Layout};
use compress_kernels::train::{self, Shape2d};
use std::{fmt::Debug, marker::PhantomData, sync::Arc};

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

/// Operators with kernels of ours. All tensors are contiguous or made so.
#[backend_extension(Flex, Autodiff)]
pub trait Train: Backend {
    /// Convolution of `[N, C, H, W]` by `[M, C / groups, h, w]`.
    fn train_conv(x: FloatTensor<Self>, weight: FloatTensor<Self>, options: ConvOptions<2>) -> FloatTensor<Self>;
    /// The same with a bias `[M]`.
    fn train_conv_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self>;
    /// Normalisation of `[N, C, ...]` by its own statistics, and these: mean and population variance, `[C]`.
    fn train_batch_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
    /// Maximum over a window of `[N, C, H, W]`.
    fn train_max_pool(x: FloatTensor<Self>, window: Window2d) -> FloatTensor<Self>;
    /// `max(x, 0)`; NaN stays.
    fn train_relu(x: FloatTensor<Self>) -> FloatTensor<Self>;
    /// `a + b` of equal shapes.
    fn train_add(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// An operator with `N` inputs and a vector-Jacobian product.
trait Vjp<const N: usize>: Clone + Send + Debug + 'static {
    /// What the product needs besides inputs.
    type Saved: Clone + Send + Debug + 'static;
    /// Which inputs the product reads.
    const READS: [bool; N];
    fn forward(&self, x: [FlexTensor; N]) -> (FlexTensor, Self::Saved);
    /// The gradient of each input that `wants` one.
    fn backward(
        &self,
        x: [Option<FlexTensor>; N],
        saved: Self::Saved,
        dy: FlexTensor,
        wants: [bool; N],
    ) -> [Option<FlexTensor>; N];
}

#[derive(Debug)]
struct Step<O>(PhantomData<fn() -> O>);

impl<O: Vjp<N>, const N: usize> Backward<Flex, N> for Step<O> {
    type State = (O, [Option<NodeId>; N], O::Saved);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<Flex>(&ops.node);
        let (op, ids, saved) = ops.state;
        let x = ids.map(|id| id.map(|id| checkpointer.retrieve_node_output::<FlexTensor>(id)));
        let wants = ops.parents.each_ref().map(|p| p.is_some());
        for (parent, grad) in ops.parents.iter().zip(op.backward(x, saved, dy, wants)) {
            if let (Some(parent), Some(grad)) = (parent, grad) {
                grads.register::<Flex>(parent.id, grad);
            }
        }
    }
}

/// Runs `op` and puts its backward step on the tape.
fn record<O: Vjp<N>, C: CheckpointStrategy, const N: usize>(
    op: O,
    x: [FloatTensor<Autodiff<Flex, C>>; N],
) -> (FloatTensor<Autodiff<Flex, C>>, O::Saved) {
    match Step::<O>(PhantomData).prepare::<C>(x.each_ref().map(|t| t.node())).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let mut reads = O::READS.into_iter();
            let ids = x.each_ref().map(|t| reads.next().unwrap_or(false).then(|| prep.checkpoint(t)));
            let (y, saved) = op.forward(x.map(|t| t.into_primitive()));
            (prep.finish((op, ids, saved.clone()), y), saved)
        }
        OpsKind::UnTracked(prep) => {
            let (y, saved) = op.forward(x.map(|t| t.into_primitive()));
            (prep.finish(y), saved)
        }
    }
}

fn dims(t: &FlexTensor) -> Vec<usize> {
    t.shape().iter().copied().collect()
}

/// The elements of a contiguous tensor, which may lie inside of a larger one.
fn elements(t: &FlexTensor) -> &[f32] {
    t.as_slice().unwrap_or_default()
}

fn tensor(data: Vec<f32>, dims: &[usize]) -> FlexTensor {
    let layout = Layout::contiguous(Shape::from(dims.to_vec()));
    FlexTensor::new(::burn::tensor::Bytes::from_elems(data), layout, DType::F32)
}

#[derive(Clone, Debug)]
struct Conv(ConvOptions<2>);

impl Conv {
    fn shape(&self, x: &[usize], weight: &[usize]) -> Shape2d {
        Shape2d {
            samples: x[0],
            channels: x[1],
            rows: x[2],
            columns: x[3],
            filters: weight[0],
            kernel: [weight[2], weight[3]],
            stride: self.0.stride,
            dilation: self.0.dilation,
            pads: self.0.padding,
            groups: self.0.groups,
        }
    }

    fn run(&self, x: FlexTensor, weight: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
        let (x, weight, bias) = (x.to_contiguous(), weight.to_contiguous(), bias.map(|b| b.to_contiguous()));
        let at = self.shape(&dims(&x), &dims(&weight));
        let [rows, columns] = at.output();
        let y = train::conv(&at, elements(&x), elements(&weight), bias.as_ref().map(elements));
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
            wants[0].then(|| tensor(train::conv_input_gradient(&at, elements(&weight), elements(&dy)), &xs)),
            wants[1].then(|| tensor(train::conv_weight_gradient(&at, elements(&x), elements(&dy)), &ws)),
            wants[2].then(|| tensor(train::conv_bias_gradient(&at, elements(&dy)), &ws[..1])),
        ]
    }
}

impl Vjp<2> for Conv {
    type Saved = ();
    const READS: [bool; 2] = [true; 2];

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

#[derive(Clone, Debug)]
struct BatchNorm(f32);

/// Samples, channels, and elements of a channel.
fn planes(dims: &[usize]) -> (usize, usize, usize) {
    (dims[0], dims.get(1).copied().unwrap_or(1), dims.iter().skip(2).product())
}

impl Vjp<3> for BatchNorm {
    type Saved = (FlexTensor, FlexTensor);
    const READS: [bool; 3] = [true, true, false];

    fn forward(&self, x: [FlexTensor; 3]) -> (FlexTensor, Self::Saved) {
        let [x, scale, bias] = x.map(|t| t.to_contiguous());
        let shape = dims(&x);
        let (samples, channels, pixels) = planes(&shape);
        let made =
            train::batch_norm(elements(&x), samples, channels, pixels, elements(&scale), elements(&bias), self.0);
        let statistic = |v| tensor(v, &[channels]);
        (tensor(made.y, &shape), (statistic(made.mean), statistic(made.variance)))
    }

    fn backward(
        &self,
        [x, scale, _]: [Option<FlexTensor>; 3],
        (mean, variance): Self::Saved,
        dy: FlexTensor,
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let (Some(x), Some(scale)) = (x, scale) else { return [const { None }; 3] };
        let (x, scale, dy) = (x.to_contiguous(), scale.to_contiguous(), dy.to_contiguous());
        let shape = dims(&x);
        let (samples, channels, pixels) = planes(&shape);
        let (x, scale, dy) = (elements(&x), elements(&scale), elements(&dy));
        let (mean, variance) = (elements(&mean), elements(&variance));
        let made = train::batch_norm_gradients(x, samples, channels, pixels, scale, mean, variance, self.0, dy);
        [tensor(made.x, &shape), tensor(made.scale, &[channels]), tensor(made.bias, &[channels])].map(Some)
    }
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
fn changed(mut x: FlexTensor, change: impl FnOnce(&mut [f32])) -> FlexTensor {
    if x.is_contiguous()
        && size_of_val(elements(&x)) == x.bytes().len()
        && let Some(own) = x.try_storage_mut::<f32>()
    {
        change(own);
        return x;
    }
    let x = x.to_contiguous();
    let mut data = train::copied(elements(&x));
    change(&mut data);
    tensor(data, &dims(&x))
}

#[derive(Clone, Debug)]
struct Relu;

impl Vjp<1> for Relu {
    type Saved = FlexTensor;
    const READS: [bool; 1] = [false];

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
        let y = changed(x, train::relu);
        (y.clone(), y)
    }

    fn backward(
        &self,
        _: [Option<FlexTensor>; 1],
        y: FlexTensor,
        dy: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let y = y.to_contiguous();
        [Some(changed(dy, |dy| train::relu_gradient(elements(&y), dy)))]
    }
}

#[derive(Clone, Debug)]
struct Add;

impl Vjp<2> for Add {
    type Saved = ();
    const READS: [bool; 2] = [false; 2];

    fn forward(&self, [a, b]: [FlexTensor; 2]) -> (FlexTensor, ()) {
        let b = b.to_contiguous();
        (changed(a, |a| train::add(a, elements(&b))), ())
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

impl Train for Flex {
    fn train_conv(x: FlexTensor, weight: FlexTensor, options: ConvOptions<2>) -> FlexTensor {
        Conv(options).run(x, weight, None)
    }

    fn train_conv_bias(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, options: ConvOptions<2>) -> FlexTensor {
        Conv(options).run(x, weight, Some(bias))
    }

    fn train_batch_norm(
        x: FlexTensor,
        scale: FlexTensor,
        bias: FlexTensor,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (y, (mean, variance)) = BatchNorm(epsilon as f32).forward([x, scale, bias]);
        (y, mean, variance)
    }

    fn train_max_pool(x: FlexTensor, window: Window2d) -> FlexTensor {
        window.forward([x]).0
    }

    fn train_relu(x: FlexTensor) -> FlexTensor {
        Relu.forward([x]).0
    }

    fn train_add(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        Add.forward([a, b]).0
    }
}

impl<C: CheckpointStrategy> Train for Autodiff<Flex, C> {
    fn train_conv(x: FloatTensor<Self>, weight: FloatTensor<Self>, options: ConvOptions<2>) -> FloatTensor<Self> {
        record::<_, C, 2>(Conv(options), [x, weight]).0
    }

    fn train_conv_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        record::<_, C, 3>(Conv(options), [x, weight, bias]).0
    }

    fn train_batch_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        use ::burn::backend::AutodiffBackend;
        let (y, (mean, variance)) = record::<_, C, 3>(BatchNorm(epsilon as f32), [x, scale, bias]);
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn train_max_pool(x: FloatTensor<Self>, window: Window2d) -> FloatTensor<Self> {
        record::<_, C, 1>(window, [x]).0
    }

    fn train_relu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<_, C, 1>(Relu, [x]).0
    }

    fn train_add(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<_, C, 2>(Add, [a, b]).0
    }
}
