//! Our training kernels under Burn's automatic differentiation.
//!
//! Burn's CPU backend trains convolutions at a third of the speed that is possible: the gradient of
//! a weight is computed as a convolution whose kernel is the whole picture. [`Train`] is the list of
//! operators that have kernels of ours ([`compress_kernels::train`]); each has a forward pass and a
//! vector-Jacobian product, and [`record`] registers all of them alike. On other devices Burn's own
//! operators run: [`Float`](super::Float) decides which.

use super::{
    hearing,
    lines::{AddLines, LayerNorm, Softmax},
    operators::{Add, BatchNorm, Conv, Pad, Quantised, Relu, Slices, Window2d, elements},
    product::Product,
};
use ::burn::backend::{Autodiff, Backend, Flex, backend_extension, tensor::FloatTensor};
use burn_autodiff::{
    NodeId,
    checkpoint::{
        base::Checkpointer, retro_forward::RetroForward, state::BackwardStates, strategy::CheckpointStrategy,
    },
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_flex::FlexTensor;
use compress_kernels::train::{FactorWidth, Function};
use std::{cell::RefCell, collections::HashSet, fmt::Debug, marker::PhantomData};

/// Operators with kernels of ours. Tensors may lie in memory in any way.
#[backend_extension(Flex, Autodiff)]
pub trait Train: Backend {
    /// Convolution of `[N, C, H, W]` by `[M, C / groups, h, w]`.
    fn train_conv(x: FloatTensor<Self>, weight: FloatTensor<Self>, conv: Conv) -> FloatTensor<Self>;
    /// The same with a bias `[M]`.
    fn train_conv_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        conv: Conv,
    ) -> FloatTensor<Self>;
    /// The products of matrices over the last two axes, of equal batches.
    fn train_product(x: FloatTensor<Self>, y: FloatTensor<Self>, width: FactorWidth) -> FloatTensor<Self>;
    /// Normalisation of `[N, C, ...]` by its own statistics, and these: mean and population variance, `[C]`.
    fn train_batch_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: BatchNorm,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
    /// Maximum over a window of `[N, C, H, W]`.
    fn train_max_pool(x: FloatTensor<Self>, window: Window2d) -> FloatTensor<Self>;
    /// `max(x, 0)`; NaN stays.
    fn train_relu(x: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Softmax of the last axis.
    fn train_softmax(x: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Normalisation of each line of the last axis, by a scale and a bias of its length.
    fn train_layer_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: LayerNorm,
    ) -> FloatTensor<Self>;
    /// `x`, to whose lines of the last axis `lines` are added, each to as many that follow each other.
    fn train_add_lines(x: FloatTensor<Self>, lines: FloatTensor<Self>) -> FloatTensor<Self>;
    /// A function of each element.
    fn train_function(x: FloatTensor<Self>, f: Function) -> FloatTensor<Self>;
    /// `a + b` of equal shapes.
    fn train_add(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
    /// A slice whose steps are positive.
    fn train_slice(x: FloatTensor<Self>, slices: Slices) -> FloatTensor<Self>;
    /// A border of one value.
    fn train_pad(x: FloatTensor<Self>, pad: Pad) -> FloatTensor<Self>;
    /// Codes of what is real, or what is real of codes, by a scale a channel.
    fn train_quantised(x: FloatTensor<Self>, scale: FloatTensor<Self>, by: Quantised) -> FloatTensor<Self>;
    /// `x` as it is; once its gradient is whole, who listens to the parameter of this number hears of it.
    fn train_heard(x: FloatTensor<Self>, clock: FloatTensor<Self>, number: usize) -> FloatTensor<Self>;
    /// The clock, one step deeper.
    fn train_tick(clock: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// An operator with `N` inputs and a vector-Jacobian product.
pub(super) trait Vjp<const N: usize>: Clone + Send + Debug + 'static {
    /// What the product needs besides inputs.
    type Saved: Clone + Send + Debug + 'static;
    /// Which inputs the product reads.
    const READS: [bool; N];
    /// Which of these it reads where only some inputs are `tracked`.
    fn reads(_tracked: [bool; N]) -> [bool; N] {
        Self::READS
    }
    /// Whether the output may be made again when the backward pass reads it, where memory counts more than time.
    const CHEAP: bool;
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
            let (Some(parent), Some(mut grad)) = (parent, grad) else { continue };
            // A value that is read twice has a sum as its gradient, which Burn would take on one thread.
            // Nothing takes a gradient out before the last was given; that of a leaf stays in.
            if !parent.parents.is_empty() && !GIVEN.with_borrow_mut(|given| given.insert(parent.id)) {
                grad = Add.forward([grad, grads.consume::<Flex>(parent)]).0;
            }
            grads.register::<Flex>(parent.id, grad);
        }
    }
}

/// Hands the gradient on, and tells of it.
#[derive(Debug)]
struct Heard;

impl Backward<Flex, 2> for Heard {
    type State = usize;

    fn backward(self, ops: Ops<usize, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<Flex>(&ops.node);
        let [Some(parameter), _] = &ops.parents else { return };
        grads.register::<Flex>(parameter.id, dy);
        // That of a leaf stays in when it is taken out.
        hearing::came(ops.state, || elements(&grads.consume::<Flex>(parameter).to_contiguous()).to_vec());
    }
}

thread_local! {
    /// The values whose gradient has been given a part of by a step of ours, in this pass.
    static GIVEN: RefCell<HashSet<NodeId>> = RefCell::default();
}

/// Before a backward pass: values of former ones are gone.
pub(super) fn begin_backward() {
    GIVEN.with_borrow_mut(HashSet::clear);
}

/// Makes an output again from the inputs.
#[derive(Debug)]
struct Again<O, const N: usize> {
    op: O,
    inputs: [NodeId; N],
}

impl<O: Vjp<N>, const N: usize> RetroForward for Again<O, N> {
    fn forward(&self, states: &mut BackwardStates, output: NodeId) {
        let x = self.inputs.each_ref().map(|id| states.get_state::<FlexTensor>(id));
        states.save(output, self.op.forward(x).0);
    }
}

/// Runs `op` and puts its backward step on the tape.
fn record<O: Vjp<N>, C: CheckpointStrategy, const N: usize>(
    op: O,
    x: [FloatTensor<Autodiff<Flex, C>>; N],
) -> (FloatTensor<Autodiff<Flex, C>>, O::Saved) {
    let prep = Step::<O>(PhantomData).prepare::<C>(x.each_ref().map(|t| t.node()));
    let prep = match O::CHEAP {
        true => prep
            .memory_bound()
            .retro_forward(Again { op: op.clone(), inputs: x.each_ref().map(|t| t.id()) })
            .parents(&x),
        false => prep.compute_bound(),
    };
    match prep.stateful() {
        OpsKind::Tracked(mut prep) => {
            let mut reads = O::reads(x.each_ref().map(|t| t.is_tracked())).into_iter();
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

impl Train for Flex {
    fn train_conv(x: FlexTensor, weight: FlexTensor, conv: Conv) -> FlexTensor {
        conv.run(x, weight, None)
    }

    fn train_conv_bias(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, conv: Conv) -> FlexTensor {
        conv.run(x, weight, Some(bias))
    }

    fn train_product(x: FlexTensor, y: FlexTensor, width: FactorWidth) -> FlexTensor {
        Product(width).forward([x, y]).0
    }

    fn train_batch_norm(
        x: FlexTensor,
        scale: FlexTensor,
        bias: FlexTensor,
        norm: BatchNorm,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (y, (mean, variance)) = norm.forward([x, scale, bias]);
        (y, mean, variance)
    }

    fn train_max_pool(x: FlexTensor, window: Window2d) -> FlexTensor {
        window.forward([x]).0
    }

    fn train_relu(x: FlexTensor) -> FlexTensor {
        Relu.forward([x]).0
    }

    fn train_softmax(x: FlexTensor) -> FlexTensor {
        Softmax.forward([x]).0
    }

    fn train_layer_norm(x: FlexTensor, scale: FlexTensor, bias: FlexTensor, norm: LayerNorm) -> FlexTensor {
        norm.forward([x, scale, bias]).0
    }

    fn train_add_lines(x: FlexTensor, lines: FlexTensor) -> FlexTensor {
        AddLines.forward([x, lines]).0
    }

    fn train_function(x: FlexTensor, f: Function) -> FlexTensor {
        f.forward([x]).0
    }

    fn train_add(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        Add.forward([a, b]).0
    }

    fn train_slice(x: FlexTensor, slices: Slices) -> FlexTensor {
        slices.forward([x]).0
    }

    fn train_pad(x: FlexTensor, pad: Pad) -> FlexTensor {
        pad.forward([x]).0
    }

    fn train_quantised(x: FlexTensor, scale: FlexTensor, by: Quantised) -> FlexTensor {
        by.forward([x, scale]).0
    }

    fn train_heard(x: FlexTensor, _: FlexTensor, _: usize) -> FlexTensor {
        x
    }

    fn train_tick(clock: FlexTensor) -> FlexTensor {
        clock
    }
}

impl<C: CheckpointStrategy> Train for Autodiff<Flex, C> {
    fn train_conv(x: FloatTensor<Self>, weight: FloatTensor<Self>, conv: Conv) -> FloatTensor<Self> {
        record::<_, C, 2>(conv, [x, weight]).0
    }

    fn train_conv_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        conv: Conv,
    ) -> FloatTensor<Self> {
        record::<_, C, 3>(conv, [x, weight, bias]).0
    }

    fn train_product(x: FloatTensor<Self>, y: FloatTensor<Self>, width: FactorWidth) -> FloatTensor<Self> {
        record::<_, C, 2>(Product(width), [x, y]).0
    }

    fn train_batch_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: BatchNorm,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        use ::burn::backend::AutodiffBackend;
        let (y, (mean, variance)) = record::<_, C, 3>(norm, [x, scale, bias]);
        (y, Self::from_inner(mean), Self::from_inner(variance))
    }

    fn train_max_pool(x: FloatTensor<Self>, window: Window2d) -> FloatTensor<Self> {
        record::<_, C, 1>(window, [x]).0
    }

    fn train_relu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<_, C, 1>(Relu, [x]).0
    }

    fn train_softmax(x: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<_, C, 1>(Softmax, [x]).0
    }

    fn train_layer_norm(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: LayerNorm,
    ) -> FloatTensor<Self> {
        record::<_, C, 3>(norm, [x, scale, bias]).0
    }

    fn train_add_lines(x: FloatTensor<Self>, lines: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<_, C, 2>(AddLines, [x, lines]).0
    }

    fn train_function(x: FloatTensor<Self>, f: Function) -> FloatTensor<Self> {
        record::<_, C, 1>(f, [x]).0
    }

    fn train_add(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        record::<_, C, 2>(Add, [a, b]).0
    }

    fn train_slice(x: FloatTensor<Self>, slices: Slices) -> FloatTensor<Self> {
        record::<_, C, 1>(slices, [x]).0
    }

    fn train_pad(x: FloatTensor<Self>, pad: Pad) -> FloatTensor<Self> {
        record::<_, C, 1>(pad, [x]).0
    }

    fn train_quantised(x: FloatTensor<Self>, scale: FloatTensor<Self>, by: Quantised) -> FloatTensor<Self> {
        record::<_, C, 2>(by, [x, scale]).0
    }

    fn train_heard(x: FloatTensor<Self>, clock: FloatTensor<Self>, number: usize) -> FloatTensor<Self> {
        match Heard.prepare::<C>([x.node(), clock.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(number, x.into_primitive()),
            OpsKind::UnTracked(prep) => prep.finish(x.into_primitive()),
        }
    }

    fn train_tick(clock: FloatTensor<Self>) -> FloatTensor<Self> {
        match Heard.prepare::<C>([clock.node(), clock.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(0, clock.into_primitive()),
            OpsKind::UnTracked(prep) => prep.finish(clock.into_primitive()),
        }
    }
}
