//! Steps on a device: operators of [`DeviceOp`], made ready to run.

use super::{
    dense::{By, Product, Weight},
    elementwise,
    rows::{self, LayerNorm},
    sliding::{self, Depthwise},
    tile::{Finish, Numbers},
};
use crate::{
    burn::{
        fused::Fused,
        host::broadcast,
        precision::Precision,
        tensor::{Float, Value, check_size},
    },
    cpu::device::{self as cpu, Affine, DeviceOp, Sliding},
    device::Device,
};
use ::burn::backend::{DType as BurnDType, Shape};
use burn_cubecl::{
    CubeDevice,
    kernel::into_contiguous,
    ops::{permute, reshape},
    tensor::CubeTensor,
};
use compress_compiler::{
    error::{Error, Result},
    op::{Inputs, Op, Operator},
    ops::pool::Pool,
    tensor::DType,
    value::{Dim, Fact},
};
use compress_kernels::{Add8, Mul8, Rescale, UnaryOp, Window};
use cubecl::server::Handle;

enum Kind {
    Product {
        product: Product,
        at: Sliding,
        outputs: usize,
    },
    Depthwise {
        depthwise: Depthwise,
        at: Sliding,
    },
    Function(UnaryOp),
    Softmax {
        log: bool,
        of_pixels: bool,
    },
    LayerNorm(LayerNorm),
    Add(Add8),
    Mul(Mul8),
    Lookup(Handle),
    Quantize(Affine),
    Dequantize(Affine),
    MaxPool(Pool),
    Average(Pool, Rescale),
    GlobalAverage(Rescale),
    Mean {
        rescale: Rescale,
        keeps: bool,
    },
    Same,
    Reshape {
        op: Op,
        facts: Vec<Option<Fact>>,
    },
    Transpose(Vec<usize>),
    Concat {
        axis: usize,
        tables: Vec<Option<Handle>>,
    },
    /// Codes of 8-bit integers that Burn has; whether those are signed.
    Encode {
        signed: bool,
    },
    /// 8-bit integers as Burn has them, of codes.
    Decode {
        signed: bool,
    },
}

/// A step that makes a value of a graph.
pub struct Step {
    kind: Kind,
    device: Device,
    /// Whether it makes an output of the model, in 32 bits.
    is_output: bool,
}

/// Pixels along an axis that a window may reach: kernels count them in 32 bits.
const FARTHEST: usize = 1 << 30;

/// A window over `x`, which has to have as many channels as are read, and the shape of what it makes.
fn window_of(at: &Sliding, x: &[usize], inputs: usize, outputs: usize) -> Result<(Window, Vec<usize>)> {
    let has = match at {
        Sliding::Rows => x.last(),
        Sliding::Window { .. } => x.get(1),
    };
    if has != Some(&inputs) {
        return Err(Error::malformed(format!("an input of {x:?} by a weight for {inputs} channels")));
    }
    let (window, y) = match at {
        Sliding::Rows => {
            let mut y = x.to_vec();
            y.pop();
            y.push(outputs);
            (Window::pixel(x.iter().rev().skip(1).product()), y)
        }
        Sliding::Window { window, kernel } => {
            let mut y = vec![x[0], outputs];
            for (axis, size) in x[2..].iter().enumerate() {
                let taps = kernel[2 - (x.len() - 2) + axis] as i64;
                let made = window.output(axis, &Dim::from(*size), taps)?.known().unwrap_or(0);
                y.push(usize::try_from(made).map_err(|_| Error::malformed(format!("a window over {x:?}")))?);
            }
            (cpu::window(window, *kernel, x, &y), y)
        }
    };
    reaches(&window, &y)?;
    Ok((window, y))
}

/// Refuses windows that reach too far, and results that are too large.
fn reaches(window: &Window, y: &[usize]) -> Result<()> {
    check_size(y)?;
    let far = |axis: usize| {
        let positions = window.output[axis].saturating_mul(window.stride[axis]);
        positions.saturating_add(window.kernel[axis].saturating_mul(window.dilation[axis])).max(window.pad[axis])
    };
    match [far(0), far(1)].iter().all(|n| *n < FARTHEST) || window.is_pixel() {
        true => Ok(()),
        false => Err(Error::unsupported(format!("a window that reaches over {FARTHEST} pixels"))),
    }
}

/// `[N, C, ...]` with one row for each pixel: its channels.
fn by_pixels(t: CubeTensor) -> CubeTensor {
    let rank = t.meta.num_dims();
    let axes: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    into_contiguous(permute(t, &axes))
}

/// Rows of channels as `[N, C, ...]`, of shape `dims`, where they are.
fn by_channels(mut t: CubeTensor, dims: &[usize]) -> CubeTensor {
    let rank = dims.len();
    let lies: Vec<usize> = [dims[0]].iter().chain(&dims[2..]).chain([&dims[1]]).copied().collect();
    t = CubeTensor::new_contiguous(t.client, t.device, Shape::from(lies), t.handle, t.dtype);
    let axes: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    permute(t, &axes)
}

impl Step {
    /// Makes `op` ready on `device`, which multiplies by tensor cores or without, as `by` says: constants are sent there. An
    /// output of the model is made in 32 bits.
    pub fn new(device: &Device, cube: &CubeDevice, by: By, op: DeviceOp, is_output: bool) -> Self {
        let client = cube.client();
        let kind = match op {
            DeviceOp::Codes { weight, at, zero, finish, then } => {
                if weight.channels == 1 && weight.outputs == weight.groups && weight.groups > 1 {
                    Kind::Depthwise { depthwise: Depthwise::of_codes(cube, &weight, zero, &finish).then(then), at }
                } else {
                    let outputs = weight.outputs;
                    let product = Product::of_codes(cube, by, &dense(&weight), zero, &finish).then(then);
                    Kind::Product { product, at, outputs }
                }
            }
            DeviceOp::Floats { weight, at, bias, bounds, then } => {
                if weight.channels == 1 && weight.outputs == weight.groups && weight.groups > 1 {
                    Kind::Depthwise { depthwise: Depthwise::of_floats(cube, &weight, &bias, bounds).then(then), at }
                } else {
                    let outputs = weight.outputs;
                    let product = Product::of_floats(cube, by, device.products(), &dense(&weight), &bias, bounds);
                    Kind::Product { product: product.then(then).made_wide(is_output), at, outputs }
                }
            }
            DeviceOp::Function(f) => Kind::Function(f),
            DeviceOp::Softmax { log, of_pixels } => Kind::Softmax { log, of_pixels },
            DeviceOp::LayerNorm { scale, bias, epsilon } => {
                Kind::LayerNorm(LayerNorm::new(cube, &scale, bias.as_deref(), epsilon))
            }
            DeviceOp::Add(op) => Kind::Add(op),
            DeviceOp::Mul(op) => Kind::Mul(op),
            DeviceOp::Lookup(table) => Kind::Lookup(client.create_from_slice(&table[..])),
            DeviceOp::Quantize(to) => Kind::Quantize(to),
            DeviceOp::Dequantize(of) => Kind::Dequantize(of),
            DeviceOp::MaxPool(pool) => Kind::MaxPool(pool),
            DeviceOp::Average(pool, rescale) => Kind::Average(pool, rescale),
            DeviceOp::GlobalAverage(rescale) => Kind::GlobalAverage(rescale),
            DeviceOp::Mean { rescale, keeps } => Kind::Mean { rescale, keeps },
            DeviceOp::Same => Kind::Same,
            DeviceOp::Reshape { op, facts } => Kind::Reshape { op, facts },
            DeviceOp::Transpose(order) => Kind::Transpose(order),
            DeviceOp::Concat { axis, tables } => {
                let sent = tables.iter().map(|t| t.as_ref().map(|t| client.create_from_slice(&t[..]))).collect();
                Kind::Concat { axis, tables: sent }
            }
        };
        Self { kind, device: device.clone(), is_output }
    }

    /// The step that makes codes of 8-bit integers that Burn has.
    pub fn encode(device: &Device, signed: bool) -> Self {
        Self { kind: Kind::Encode { signed }, device: device.clone(), is_output: false }
    }

    /// The step back.
    pub fn decode(device: &Device, signed: bool) -> Self {
        Self { kind: Kind::Decode { signed }, device: device.clone(), is_output: false }
    }
}

fn dense<T>(weight: &cpu::Weight<T>) -> Weight<'_, T> {
    let cpu::Weight { data, outputs, kernel, channels, groups, .. } = weight;
    Weight { data, outputs: *outputs, kernel: *kernel, channels: *channels, groups: *groups }
}

impl Fused for Step {
    fn run(&self, operands: Vec<Value>) -> Result<Value> {
        let mut operands = operands.into_iter();
        let mut next = || operands.next().ok_or_else(|| Error::bug("an operand is missing"));
        // As it is held.
        let held = |v: Value| match v {
            Value::Float(f) => Ok((f.shape().to_vec(), f.into_cube()?)),
            Value::Int(_) => Err(Error::bug("integers of the host")),
        };
        let tensor_in = |mut v: Value, width: Precision| {
            v.hold(width);
            held(v)
        };
        let tensor = |v: Value| tensor_in(v, Precision::F32);
        // Of a wide value a wide one is made.
        let suited = |v: Value| if self.is_output { tensor(v) } else { held(v) };
        let made = |t: CubeTensor, dims: Vec<usize>| {
            let dtype = if t.dtype == BurnDType::U8 { DType::U8 } else { DType::F32 };
            Ok(Value::Float(Float::of_cube(t, dims, dtype)))
        };
        let slid = |at: &Sliding,
                    (dims, x): (Vec<usize>, CubeTensor),
                    add: Option<(Vec<usize>, CubeTensor)>,
                    [inputs, outputs]: [usize; 2],
                    run: &dyn Fn(CubeTensor, Option<CubeTensor>, &Window) -> CubeTensor| {
            let (window, to) = window_of(at, &dims, inputs, outputs)?;
            if let Some((other, _)) = add.as_ref().filter(|(other, _)| *other != to) {
                return Err(Error::malformed(format!("the sum of {to:?} and {other:?}")));
            }
            let add = add.map(|(_, t)| t);
            match at {
                Sliding::Rows => {
                    let y = run(into_contiguous(x), add.map(into_contiguous), &window);
                    made(reshape(y, Shape::from(to.clone())), to)
                }
                Sliding::Window { .. } => made(by_channels(run(by_pixels(x), add.map(by_pixels), &window), &to), to),
            }
        };
        match &self.kind {
            Kind::Product { product, at, outputs } => {
                let width = product.width();
                let x = tensor_in(next()?, width)?;
                let add = next().ok().map(held).transpose()?;
                slid(at, x, add, [product.inputs(), *outputs], &|x, add, window| product.run(x, add, window))
            }
            Kind::Depthwise { depthwise, at } => {
                slid(at, suited(next()?)?, None, [depthwise.channels; 2], &|x, _, window| depthwise.run(x, window))
            }
            Kind::Add(op) => {
                let ((da, a), (db, b)) = (tensor(next()?)?, tensor(next()?)?);
                let to = broadcast(&da, &db)?;
                check_size(&to)?;
                made(elementwise::added(a, b, op), to)
            }
            Kind::Mul(op) => {
                let ((da, a), (db, b)) = (tensor(next()?)?, tensor(next()?)?);
                let to = broadcast(&da, &db)?;
                check_size(&to)?;
                made(elementwise::multiplied(a, b, op), to)
            }
            Kind::Function(f) => {
                let (dims, x) = suited(next()?)?;
                made(elementwise::applied(x, *f), dims)
            }
            Kind::Softmax { log, of_pixels: true } => {
                let (dims, x) = suited(next()?)?;
                made(by_channels(rows::softmax(by_pixels(x), dims[1], *log), &dims), dims)
            }
            Kind::Softmax { log, of_pixels: false } => {
                let (dims, x) = suited(next()?)?;
                made(rows::softmax(into_contiguous(x), dims[dims.len() - 1], *log), dims)
            }
            Kind::LayerNorm(norm) => {
                let (dims, x) = suited(next()?)?;
                if dims.last() != Some(&norm.width) {
                    return Err(Error::malformed(format!("a scale of {} elements for {dims:?}", norm.width)));
                }
                made(norm.run(into_contiguous(x)), dims)
            }
            Kind::Lookup(table) => {
                let (dims, x) = tensor(next()?)?;
                made(elementwise::looked_up(x, table), dims)
            }
            Kind::Quantize(to) => {
                let (dims, x) = tensor(next()?)?;
                made(elementwise::quantized(x, *to), dims)
            }
            Kind::Dequantize(of) => {
                let (dims, x) = tensor(next()?)?;
                made(elementwise::dequantized(x, of.scale, of.zero.into()), dims)
            }
            Kind::MaxPool(pool) => {
                let (dims, x) = tensor(next()?)?;
                let to = self.inferred(&Op::Pool(pool.clone()), &dims, &[])?;
                let kernel: Vec<usize> = pool.kernel.iter().map(|k| *k as usize).collect();
                let taps = if let [h, w] = kernel[..] { [h, w] } else { [1, kernel[0]] };
                let window = cpu::window(&pool.window, taps, &dims, &to);
                reaches(&window, &to)?;
                let pooled = sliding::max_pooled(by_pixels(x), &window, dims[1]);
                made(by_channels(pooled, &to), to)
            }
            Kind::Average(pool, r) => {
                let (dims, x) = tensor(next()?)?;
                let to = self.inferred(&Op::Pool(pool.clone()), &dims, &[])?;
                let (window, counts, whole) = cpu::average_window(pool, &dims, &to);
                reaches(&window, &to)?;
                let x = by_pixels(x);
                let y = match whole {
                    true => sliding::averaged(x, dims[0], r),
                    false => sliding::average_pooled(x, &window, dims[1], &counts, r),
                };
                made(by_channels(y, &to), to)
            }
            Kind::GlobalAverage(r) => {
                let (dims, x) = tensor(next()?)?;
                let mut to = dims.clone();
                to[2..].fill(1);
                made(reshape(sliding::averaged(by_pixels(x), dims[0], r), Shape::from(to.clone())), to)
            }
            Kind::Mean { rescale, keeps } => {
                let (dims, x) = tensor(next()?)?;
                let mut to = dims[..2].to_vec();
                to.resize(if *keeps { dims.len() } else { 2 }, 1);
                made(reshape(sliding::mean(by_pixels(x), dims[0], rescale), Shape::from(to.clone())), to)
            }
            Kind::Same => next(),
            Kind::Reshape { op, facts } => {
                let (dims, x) = tensor(next()?)?;
                let to = self.inferred(op, &dims, facts)?;
                let held = if to.is_empty() { vec![1] } else { to.clone() };
                made(reshape(x, Shape::from(held)), to)
            }
            Kind::Transpose(order) => {
                let (dims, x) = tensor(next()?)?;
                if order.is_empty() {
                    return made(x, dims);
                }
                made(permute(x, order), order.iter().map(|axis| dims[*axis]).collect())
            }
            Kind::Concat { axis, tables } => {
                let (mut parts, mut to) = (vec![], vec![]);
                for table in tables {
                    let (dims, mut x) = tensor(next()?)?;
                    if let Some(table) = table {
                        x = elementwise::looked_up(x, table);
                    }
                    if to.is_empty() {
                        to = dims;
                    } else {
                        let same = |(i, (a, b)): (usize, (&usize, &usize))| i == *axis || a == b;
                        if to.len() != dims.len() || !to.iter().zip(&dims).enumerate().all(same) {
                            return Err(Error::malformed(format!("{dims:?} behind {to:?} along axis {axis}")));
                        }
                        to[*axis] += dims[*axis];
                    }
                    parts.push(x);
                }
                check_size(&to)?;
                made(elementwise::joined(parts, *axis), to)
            }
            Kind::Encode { signed } => {
                let (dims, x) = tensor(Value::Float(next()?.into_device(&self.device)?))?;
                let zero = if *signed { 128 } else { 0 };
                made(elementwise::quantized(x, Affine { scale: 1.0, zero }), dims)
            }
            Kind::Decode { signed } => {
                let (dims, x) = tensor(next()?)?;
                let (zero, dtype) = if *signed { (128, DType::I8) } else { (0, DType::U8) };
                Ok(Value::Float(Float::of_cube(elementwise::dequantized(x, 1.0, zero), dims, dtype)))
            }
        }
    }

    fn kernel(&self) -> &'static str {
        let windowed = |at: &Sliding, window: &'static str, rows: &'static str| match at {
            Sliding::Window { .. } => window,
            Sliding::Rows => rows,
        };
        match &self.kind {
            Kind::Product { product, at, .. } => match product.numbers() {
                Numbers::Codes => windowed(at, "conv_i8", "gemm_i8"),
                Numbers::Floats => windowed(at, "conv_f32", "gemm_f32"),
                Numbers::Tf32 => windowed(at, "conv_tf32", "gemm_tf32"),
                Numbers::Bf16 => windowed(at, "conv_bf16", "gemm_bf16"),
                Numbers::F16 => windowed(at, "conv_f16", "gemm_f16"),
            },
            Kind::Depthwise { depthwise, .. } if depthwise.end.finish == Finish::Floats => "depthwise_f32",
            Kind::Depthwise { .. } => "depthwise_i8",
            Kind::Function(_) => "elementwise",
            Kind::Softmax { .. } => "softmax",
            Kind::LayerNorm(_) => "layer_norm",
            Kind::Add(_) => "add_i8",
            Kind::Mul(_) => "mul_i8",
            Kind::Lookup(_) => "lookup",
            Kind::Quantize(_) | Kind::Encode { .. } => "quantize",
            Kind::Dequantize(_) | Kind::Decode { .. } => "dequantize",
            Kind::MaxPool(_) => "max_pool_i8",
            Kind::Average(..) => "average_pool_i8",
            Kind::GlobalAverage(_) => "global_average_pool_i8",
            Kind::Mean { .. } => "reduce_mean_i8",
            Kind::Same | Kind::Reshape { .. } | Kind::Transpose(_) => "transpose",
            Kind::Concat { .. } => "copy",
        }
    }
}

impl Step {
    /// The shape of what `op` makes of a value of shape `dims` and others of which `facts` are known.
    fn inferred(&self, op: &Op, dims: &[usize], facts: &[Option<Fact>]) -> Result<Vec<usize>> {
        let x = Fact::new(Some(DType::F32), Some(dims.iter().map(|n| Dim::from(*n)).collect()));
        let known: Vec<Option<&Fact>> = [Some(&x)].into_iter().chain(facts.iter().map(Option::as_ref)).collect();
        let made = op.infer(&Inputs(&known))?;
        made.first().and_then(Fact::fixed).ok_or_else(|| Error::unsupported(format!("a shape made of {dims:?}")))
    }
}
