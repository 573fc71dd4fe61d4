//! Codes of floats and floats of codes, functions, sums and products of codes: one by one, as they lie in memory.

use super::{
    finish::{product_alone, round_within},
    functions::{self, Function},
};
use crate::cpu::device::Affine;
use ::burn::backend::{Cube, DType, ops::IntTensorOps};
use burn_cubecl::{kernel::into_contiguous, ops::permute, tensor::CubeTensor};
use compress_kernels::{Add8, Mul8, UnaryOp};
use cubecl::{calculate_cube_count_elemwise, prelude::*, server::Handle};

/// Elements that a unit computes, where there is a whole number of so many.
const VECTOR: usize = 4;

#[cube(launch_unchecked, address_type = "dynamic")]
fn quantize<N: Size>(x: &[Vector<f32, N>], y: &mut [Vector<u8, N>], count: usize, scale: f32, zero: i32) {
    if ABSOLUTE_POS < count {
        let (from, low) = (x[ABSOLUTE_POS], f32::cast_from(0i32 - zero));
        let mut codes = Vector::<u8, N>::new(0u8);
        let width = N::value();
        #[unroll]
        for i in 0..width {
            codes.insert(i, u8::cast_from(round_within(from.extract(i) / scale, low, low + 255.0f32) + zero));
        }
        y[ABSOLUTE_POS] = codes;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn dequantize<N: Size>(x: &[Vector<u8, N>], y: &mut [Vector<f32, N>], count: usize, scale: f32, zero: i32) {
    if ABSOLUTE_POS < count {
        let from = Vector::<i32, N>::cast_from(x[ABSOLUTE_POS]) - Vector::new(zero);
        y[ABSOLUTE_POS] = Vector::<f32, N>::cast_from(from) * Vector::new(scale);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn lookup<N: Size>(x: &[Vector<u8, N>], y: &mut [Vector<u8, N>], table: &[u8], count: usize) {
    if ABSOLUTE_POS < count {
        let from = x[ABSOLUTE_POS];
        let mut found = Vector::<u8, N>::new(0u8);
        let width = N::value();
        #[unroll]
        for i in 0..width {
            found.insert(i, table[usize::cast_from(from.extract(i))]);
        }
        y[ABSOLUTE_POS] = found;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn apply<X: Numeric, Y: Numeric, N: Size>(
    x: &[Vector<X, N>],
    y: &mut [Vector<Y, N>],
    count: usize,
    alpha: f32,
    beta: f32,
    #[comptime] f: Function,
) {
    if ABSOLUTE_POS < count {
        let from = x[ABSOLUTE_POS];
        let mut made = Vector::<Y, N>::new(Y::from_int(0));
        let width = N::value();
        #[unroll]
        for i in 0..width {
            made.insert(i, Y::cast_from(functions::applied(f32::cast_from(from.extract(i)), alpha, beta, f)));
        }
        y[ABSOLUTE_POS] = made;
    }
}

/// A sum, as [`Add8`] has it: by `a_by`, `b_by` and `constant`.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn add<N: Size>(
    a: &[Vector<u8, N>],
    b: &[Vector<u8, N>],
    y: &mut [Vector<u8, N>],
    count: usize,
    a_by: f32,
    b_by: f32,
    constant: f32,
    low: f32,
    high: f32,
) {
    if ABSOLUTE_POS < count {
        let (x, z) = (a[ABSOLUTE_POS], b[ABSOLUTE_POS]);
        let mut sums = Vector::<u8, N>::new(0u8);
        let width = N::value();
        #[unroll]
        for i in 0..width {
            let of_b = fma(f32::cast_from(z.extract(i)), b_by, constant);
            let sum = fma(f32::cast_from(x.extract(i)), a_by, of_b);
            sums.insert(i, u8::cast_from(round_within(sum, low, high)));
        }
        y[ABSOLUTE_POS] = sums;
    }
}

/// A product, as [`Mul8`] has it.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn multiply<N: Size>(
    a: &[Vector<u8, N>],
    b: &[Vector<u8, N>],
    y: &mut [Vector<u8, N>],
    count: usize,
    a_zero: i32,
    b_zero: i32,
    ratio: f32,
    zero: f32,
    low: f32,
    high: f32,
    nothing: u32,
) {
    if ABSOLUTE_POS < count {
        let (x, z) = (a[ABSOLUTE_POS], b[ABSOLUTE_POS]);
        let mut products = Vector::<u8, N>::new(0u8);
        let width = N::value();
        #[unroll]
        for i in 0..width {
            let whole = (i32::cast_from(x.extract(i)) - a_zero) * (i32::cast_from(z.extract(i)) - b_zero);
            let real = product_alone(f32::cast_from(whole), ratio, nothing) + zero;
            products.insert(i, u8::cast_from(round_within(real, low, high)));
        }
        y[ABSOLUTE_POS] = products;
    }
}

/// Axes from that with the greatest steps to that with the least.
fn order(t: &CubeTensor) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..t.meta.num_dims()).collect();
    axes.sort_by_key(|axis| std::cmp::Reverse(t.meta.strides()[*axis]));
    axes
}

/// Whether elements lie without gaps, in whatever order of axes.
fn is_dense(t: &CubeTensor) -> bool {
    let mut step = 1;
    order(t).into_iter().rev().filter(|axis| t.meta.shape()[*axis] != 1).all(|axis| {
        let fits = t.meta.strides()[axis] == step;
        step *= t.meta.shape()[axis];
        fits
    })
}

/// The same elements without gaps.
fn dense(t: CubeTensor) -> CubeTensor {
    if is_dense(&t) { t } else { into_contiguous(t) }
}

/// `t`, broadcast to the shape of `like`, as that lies.
fn as_lies(mut t: CubeTensor, like: &CubeTensor) -> CubeTensor {
    for (axis, n) in like.meta.shape().iter().enumerate() {
        if t.meta.shape()[axis] != *n {
            t.meta.shape_mut()[axis] = *n;
            t.meta.strides_mut()[axis] = 0;
        }
    }
    if t.meta.strides() == like.meta.strides() {
        return t;
    }
    let axes = order(like);
    let mut back = vec![0; axes.len()];
    axes.iter().enumerate().for_each(|(to, axis)| back[*axis] = to);
    permute(into_contiguous(permute(t, &axes)), &back)
}

/// A new tensor that lies as `x` does.
fn like(x: &CubeTensor, dtype: DType) -> CubeTensor {
    let handle = x.client.empty(x.meta.num_elements() * dtype.size());
    CubeTensor { handle, dtype, ..x.clone() }
}

/// How a kernel is launched on as many elements as `x` has.
struct Launch {
    count: usize,
    vector: usize,
    dim: CubeDim,
    cubes: CubeCount,
    address: AddressType,
}

impl Launch {
    fn of(x: &CubeTensor) -> Self {
        let n = x.meta.num_elements();
        let aligned = x.handle.offset_start.unwrap_or(0).is_multiple_of(VECTOR as u64 * 4);
        let vector = if n.is_multiple_of(VECTOR) && aligned { VECTOR } else { 1 };
        let count = n / vector;
        let dim = CubeDim::new_1d(256);
        let cubes = calculate_cube_count_elemwise(&x.client, count, dim);
        Self { count, vector, dim, cubes, address: AddressType::from_len(n) }
    }
}

fn buffer(t: &CubeTensor) -> BufferArg {
    // SAFETY: the handle has as many elements as the tensor, which is dense.
    unsafe { BufferArg::from_raw_parts(t.handle.clone(), t.meta.num_elements()) }
}

/// The codes of floats.
pub fn quantized(x: CubeTensor, to: Affine) -> CubeTensor {
    let x = dense(x);
    let (y, l) = (like(&x, DType::U8), Launch::of(&x));
    // SAFETY: both buffers have `count` vectors.
    unsafe {
        let zero = i32::from(to.zero);
        quantize::launch_unchecked(
            &x.client,
            l.cubes,
            l.dim,
            l.address,
            l.vector,
            buffer(&x),
            buffer(&y),
            l.count,
            to.scale,
            zero,
        );
    }
    y
}

/// `(code - zero) * scale`.
pub fn dequantized(x: CubeTensor, scale: f32, zero: i32) -> CubeTensor {
    let x = dense(x);
    let (y, l) = (like(&x, DType::F32), Launch::of(&x));
    // SAFETY: both buffers have `count` vectors.
    unsafe {
        dequantize::launch_unchecked(
            &x.client,
            l.cubes,
            l.dim,
            l.address,
            l.vector,
            buffer(&x),
            buffer(&y),
            l.count,
            scale,
            zero,
        );
    }
    y
}

/// A function of floats, as wide as these where it makes none that are much larger.
pub fn applied(x: CubeTensor, f: UnaryOp) -> CubeTensor {
    let x = dense(x);
    let (f, [alpha, beta]) = Function::of(f);
    let (y, l) = (like(&x, if f.is_bounded([alpha, beta]) { x.dtype } else { DType::F32 }), Launch::of(&x));
    macro_rules! launch {
        ($x:ty, $y:ty) => {
            // SAFETY: both buffers have `count` vectors.
            unsafe {
                apply::launch_unchecked::<$x, $y>(
                    &x.client,
                    l.cubes,
                    l.dim,
                    l.address,
                    l.vector,
                    buffer(&x),
                    buffer(&y),
                    l.count,
                    alpha,
                    beta,
                    f,
                )
            }
        };
    }
    match (x.dtype, y.dtype) {
        (DType::BF16, DType::BF16) => launch!(half::bf16, half::bf16),
        (DType::BF16, _) => launch!(half::bf16, f32),
        (DType::F16, DType::F16) => launch!(half::f16, half::f16),
        (DType::F16, _) => launch!(half::f16, f32),
        _ => launch!(f32, f32),
    }
    y
}

/// What a table of 256 codes makes of codes.
pub fn looked_up(x: CubeTensor, table: &Handle) -> CubeTensor {
    let x = dense(x);
    let (y, l) = (like(&x, DType::U8), Launch::of(&x));
    // SAFETY: both buffers have `count` vectors, and the table an entry for each code.
    unsafe {
        let table = BufferArg::from_raw_parts(table.clone(), 256);
        lookup::launch_unchecked(
            &x.client,
            l.cubes,
            l.dim,
            l.address,
            l.vector,
            buffer(&x),
            buffer(&y),
            table,
            l.count,
        );
    }
    y
}

/// The shape of two that are broadcast, and both with as many axes.
fn paired(mut a: CubeTensor, mut b: CubeTensor) -> (CubeTensor, CubeTensor) {
    let rank = a.meta.num_dims().max(b.meta.num_dims());
    for t in [&mut a, &mut b] {
        while t.meta.num_dims() < rank {
            t.meta.insert(0, 1, 0);
        }
    }
    let sizes = a.meta.shape().iter().zip(b.meta.shape().iter());
    let to: Vec<usize> = sizes.map(|(a, b)| if *a == 1 { *b } else { *a }).collect();
    let is_whole = |t: &CubeTensor| t.meta.shape().iter().eq(&to);
    match (is_whole(&a), is_whole(&b)) {
        (true, _) => {
            a = dense(a);
            b = as_lies(b, &a);
        }
        (_, true) => {
            b = dense(b);
            a = as_lies(a, &b);
        }
        _ => {
            let mut whole = a.clone();
            let mut step = 1;
            for axis in (0..rank).rev() {
                whole.meta.shape_mut()[axis] = to[axis];
                whole.meta.strides_mut()[axis] = step;
                step *= to[axis];
            }
            (a, b) = (as_lies(a, &whole), as_lies(b, &whole));
        }
    }
    (a, b)
}

/// The sum of codes.
pub fn added(a: CubeTensor, b: CubeTensor, op: &Add8) -> CubeTensor {
    let (a, b) = paired(a, b);
    let (y, l) = (like(&a, DType::U8), Launch::of(&a));
    let (a_by, b_by) = (op.a_scale / op.y_scale, op.b_scale / op.y_scale);
    let zeros = a_by.mul_add(f32::from(op.a_zero), b_by * f32::from(op.b_zero));
    let constant = f32::from(op.y_zero) - zeros;
    // SAFETY: all buffers have `count` vectors.
    unsafe {
        add::launch_unchecked(
            &a.client,
            l.cubes,
            l.dim,
            l.address,
            l.vector,
            buffer(&a),
            buffer(&b),
            buffer(&y),
            l.count,
            a_by,
            b_by,
            constant,
            f32::from(op.min),
            f32::from(op.max),
        );
    }
    y
}

/// The product of codes.
pub fn multiplied(a: CubeTensor, b: CubeTensor, op: &Mul8) -> CubeTensor {
    let (a, b) = paired(a, b);
    let (y, l) = (like(&a, DType::U8), Launch::of(&a));
    let ratio = op.a_scale * op.b_scale / op.y_scale;
    // SAFETY: all buffers have `count` vectors.
    unsafe {
        multiply::launch_unchecked(
            &a.client,
            l.cubes,
            l.dim,
            l.address,
            l.vector,
            buffer(&a),
            buffer(&b),
            buffer(&y),
            l.count,
            i32::from(op.a_zero),
            i32::from(op.b_zero),
            ratio,
            f32::from(op.y_zero),
            f32::from(op.min),
            f32::from(op.max),
            0,
        );
    }
    y
}

/// Codes one behind the other along an axis.
pub fn joined(parts: Vec<CubeTensor>, axis: usize) -> CubeTensor {
    <Cube as IntTensorOps<Cube>>::int_cat(parts, axis)
}
