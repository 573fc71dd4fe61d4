//! What GPUs compute otherwise than Burn would have them.
//!
//! Burn multiplies `f32` on tensor cores in TF32, which keeps 10 of 23 bits: results are 2e-4 off. [`Products`] sums in `f32`, by
//! kernels of the same library that use no tensor cores.

use super::{Float, Prim, Value, prim_shape};
use ::burn::backend::{
    Autodiff, Backend, BackendTensor, Cube, DType, DispatchDevice, DispatchKindConversion, DispatchTensorKind, Shape,
    TensorData, TensorMetadata, backend_extension, ops::FloatTensorOps, tensor::FloatTensor,
};
use burn_autodiff::{
    NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_cubecl::{
    CubeDevice, kernel::matmul::init_matmul_output, ops::numeric::empty_device_contiguous_dtype, tensor::CubeTensor,
};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};
use cubecl::{
    bytes::{AllocationProperty, Bytes},
    prelude::Scalar,
    std::tensor::copy_into,
};
use cubek::{
    matmul::{
        definition::{MatmulElems, MatmulGlobalElems},
        launch::launch_ref,
        multi_level,
        strategy::Strategy,
    },
    std::InputBinding,
};

impl Float {
    /// The tensor of a GPU.
    ///
    /// # Errors
    /// A bug where it is none, or has a gradient.
    pub(crate) fn into_cube(self) -> Result<CubeTensor> {
        match self.t.kind {
            DispatchTensorKind::Cube(t) => Ok(t.float()),
            _ => Err(Error::bug("a tensor of a GPU")),
        }
    }

    /// What a kernel of ours made: floats, or codes as bytes, which only such kernels read.
    pub(crate) fn of_cube(t: CubeTensor, shape: Vec<usize>, dtype: compress_compiler::tensor::DType) -> Self {
        Self::wrap(<Prim as DispatchKindConversion<Cube>>::from_backend(BackendTensor::Float(t)), shape, dtype)
    }
}

/// Inputs of runs that are played again ([`crate::gpu::Recorder`]).
impl Value {
    /// The same with memory of its own, without gaps between rows, where other elements can be put; `None` for what that can't be done
    /// with. Integers of the host are taken as they are.
    pub(crate) fn copied(&self) -> Option<Self> {
        match self {
            Value::Float(f) if f.t.dtype() == DType::F32 => {
                let t = f.clone().into_cube().ok()?;
                let copy = empty_device_contiguous_dtype(
                    t.client.clone(),
                    t.device.clone(),
                    t.meta.shape().clone(),
                    DType::F32,
                );
                copy_into(&copy.client, t.binding(), copy.clone().binding(), f32::elem_type_native());
                Some(Value::Float(Float::of_cube(copy, f.shape.clone(), f.dtype)))
            }
            Value::Float(_) => None,
            Value::Int(_) => Some(self.clone()),
        }
    }

    /// Puts the elements of `from`, of the same type and shape, where its own are.
    ///
    /// # Errors
    /// A bug, where that can't be done.
    pub(crate) fn copy_from(&self, from: &Value) -> Result<()> {
        let (Value::Float(to), Value::Float(from)) = (self, from) else {
            return Err(Error::bug("integers of the host are not copied"));
        };
        let (to, from) = (to.clone().into_cube()?, from.clone().into_cube()?);
        copy_into(&to.client.clone(), from.binding(), to.binding(), f32::elem_type_native());
        Ok(())
    }

    /// Sends the elements of `t`, of the same type and shape, where its own are.
    ///
    /// # Errors
    /// A bug, where that can't be done.
    pub(crate) fn refill(&self, t: &Tensor) -> Result<()> {
        let Value::Float(f) = self else { return Err(Error::bug("an input on the host is not sent")) };
        let to = f.clone().into_cube()?;
        let elements = lent(t).unwrap_or_else(|| {
            Bytes::from_elems(match t.as_f32() {
                Some(floats) => floats.into_owned(),
                None => t.as_i64().unwrap_or_default().into_iter().map(|v| v as f32).collect(),
            })
        });
        if elements.len() != to.meta.num_elements() * size_of::<f32>() {
            return Err(Error::bug("an input of another size"));
        }
        to.client.write(&to.handle, elements);
        Ok(())
    }
}

/// From this size on CubeCL would leave memory to the driver that isn't said to be a file's, which a mapped weight's is.
const STAGED: usize = 64 << 20;

/// The elements of a tensor as they lie on the host, if they are `f32`: CubeCL copies them to where a device reads, and that is the only
/// copy.
fn lent(t: &Tensor) -> Option<Bytes> {
    let is_aligned = |bytes: &[u8]| bytes.as_ptr().cast::<f32>().is_aligned();
    let lends = t.dtype() == compress_compiler::tensor::DType::F32 && !t.bytes().is_empty() && is_aligned(t.bytes());
    let property = if t.bytes().len() < STAGED { AllocationProperty::Native } else { AllocationProperty::File };
    lends.then(|| Bytes::from_shared(bytes::Bytes::from_owner(t.storage().clone()), property))
}

/// The same as Burn takes it.
pub fn borrowed(t: &Tensor) -> Option<TensorData> {
    lent(t).map(|bytes| TensorData::from_bytes(bytes, prim_shape(t.shape()), DType::F32))
}

/// Whether a tensor is one that [`Products`] multiplies: `f32` on a GPU.
pub fn has_kernels(t: &Prim) -> bool {
    on_gpu(t) && t.dtype() == DType::F32
}

/// Whether a tensor is on a GPU.
pub fn on_gpu(t: &Prim) -> bool {
    device(t).is_some()
}

/// Whether a device takes NaN for a missing number where it looks for the greater of two, and leaves other functions of it open, as
/// the specification of Vulkan lets it: all but CUDA.
pub fn drops_nan(t: &Prim) -> bool {
    matches!(device(t), Some(CubeDevice::Wgpu(_)))
}

fn device(t: &Prim) -> Option<CubeDevice> {
    match t.device() {
        DispatchDevice::Cube(device) => Some(device),
        DispatchDevice::Autodiff(tape) => match &*tape {
            DispatchDevice::Cube(device) => Some(device.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// Products without tensor cores.
#[backend_extension(Cube, Autodiff)]
pub trait Products: Backend {
    /// The product of `f32` over the last two axes; those before broadcast, and are as many in both.
    fn product(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl Products for Cube {
    fn product(x: CubeTensor, y: CubeTensor) -> CubeTensor {
        let out = init_matmul_output(&x, &y, DType::F32);
        let element = f32::elem_type_native();
        let mut elements = MatmulElems::from_globals(&MatmulGlobalElems { lhs: element, rhs: element, out: element });
        let client = out.client.clone();
        let operand = |t: CubeTensor| InputBinding::new(t.binding(), element);
        let strategy = Strategy::MultiLevel(multi_level::Strategy::SimpleUnit(Default::default()));
        launch_ref(&strategy, &client, operand(x), operand(y), out.clone().binding(), &mut elements)
            // Burn's own operators end so too: a kernel for all shapes that has none is a defect.
            .unwrap_or_else(|e| panic!("a product on the device: {e:?}"));
        out
    }
}

/// The vector-Jacobian product of a product.
#[derive(Debug)]
struct Product;

impl Backward<Cube, 2> for Product {
    /// The operands that are read, and the shapes of both.
    type State = ([Option<NodeId>; 2], [Shape; 2]);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<Cube>(&ops.node);
        let ([x, y], [x_shape, y_shape]) = ops.state;
        let [x_parent, y_parent] = ops.parents;
        let last = dy.shape().num_dims() - 1;
        let turned = |t: CubeTensor| Cube::float_swap_dims(t, last - 1, last);
        if let (Some(parent), Some(y)) = (x_parent, y) {
            let y = checkpointer.retrieve_node_output::<CubeTensor>(y);
            grads.register::<Cube>(parent.id, summed(Cube::product(dy.clone(), turned(y)), &x_shape));
        }
        if let (Some(parent), Some(x)) = (y_parent, x) {
            let x = checkpointer.retrieve_node_output::<CubeTensor>(x);
            grads.register::<Cube>(parent.id, summed(Cube::product(turned(x), dy), &y_shape));
        }
    }
}

/// The sum over axes that were broadcast from one.
fn summed(mut t: CubeTensor, to: &Shape) -> CubeTensor {
    for axis in 0..to.num_dims() {
        if to[axis] == 1 && t.shape()[axis] > 1 {
            t = Cube::float_sum_dim(t, axis);
        }
    }
    t
}

impl<C: CheckpointStrategy> Products for Autodiff<Cube, C> {
    fn product(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
        let shapes = [x.shape(), y.shape()];
        let prep = Product.prepare::<C>([x.node(), y.node()]).compute_bound();
        match prep.stateful() {
            OpsKind::Tracked(mut prep) => {
                // Each gradient needs the other operand.
                let read = [y.is_tracked().then(|| prep.checkpoint(&x)), x.is_tracked().then(|| prep.checkpoint(&y))];
                let out = Cube::product(x.into_primitive(), y.into_primitive());
                prep.finish((read, shapes), out)
            }
            OpsKind::UnTracked(prep) => prep.finish(Cube::product(x.into_primitive(), y.into_primitive())),
        }
    }
}
