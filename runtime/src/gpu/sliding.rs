//! What is launched to slide over images one channel at a time.

use super::{
    functions::Function,
    patches::GeometryLaunch,
    tile::{End, Finish},
    window::{self, TapsLaunch},
};
use crate::cpu::device as cpu;
use ::burn::backend::{DType as BurnDType, Shape};
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use compress_kernels::{Finish8, Rescale, UnaryOp, Window};
use cubecl::{calculate_cube_count_elemwise, prelude::*, server::Handle};

/// A convolution of each channel by itself.
pub struct Depthwise {
    /// `[taps][channels]`.
    weights: Handle,
    start: Handle,
    scale: Handle,
    bias: Handle,
    pub end: End,
    /// Those of the function that follows.
    numbers: [f32; 2],
    /// Whether that may make large numbers, which halves don't hold.
    makes_f32: bool,
    zero: u32,
    low: f32,
    high: f32,
    out_zero: i32,
    pub channels: usize,
}

impl Depthwise {
    /// Of codes, whose padding is `zero`.
    pub fn of_codes(cube: &CubeDevice, weight: &cpu::Weight<i8>, zero: u8, finish: &Finish8) -> Self {
        let client = cube.client();
        let send = |bytes: &[u8]| client.create_from_slice(bytes);
        let nothing = send(&[0; 4]);
        let this = Self {
            weights: send(bytemuck::cast_slice(&by_taps(weight))),
            start: nothing.clone(),
            scale: nothing.clone(),
            bias: nothing,
            end: End::of(Finish::Codes),
            numbers: [0.0; 2],
            makes_f32: false,
            zero: zero.into(),
            low: 0.0,
            high: 0.0,
            out_zero: 0,
            channels: weight.outputs,
        };
        match finish {
            Finish8::Requantize { bias, scale, zero, min, max } => Self {
                start: send(bytemuck::cast_slice(bias)),
                scale: send(bytemuck::cast_slice(scale)),
                out_zero: i32::from(*zero),
                low: f32::from(*min) - f32::from(*zero),
                high: f32::from(*max) - f32::from(*zero),
                ..this
            },
            Finish8::Scale { bias, scale, min, max } => Self {
                start: send(bytemuck::cast_slice(&vec![0i32; weight.outputs])),
                scale: send(bytemuck::cast_slice(scale)),
                bias: send(bytemuck::cast_slice(bias)),
                end: End::of(Finish::Scaled),
                low: *min,
                high: *max,
                ..this
            },
        }
    }

    /// Of floats, within bounds.
    pub fn of_floats(cube: &CubeDevice, weight: &cpu::Weight<f32>, bias: &[f32], [low, high]: [f32; 2]) -> Self {
        let client = cube.client();
        let nothing = client.create_from_slice(&[0; 4]);
        Self {
            weights: client.create_from_slice(bytemuck::cast_slice(&by_taps(weight))),
            start: nothing.clone(),
            scale: nothing,
            bias: client.create_from_slice(bytemuck::cast_slice(bias)),
            end: End::of(Finish::Floats),
            numbers: [0.0; 2],
            makes_f32: false,
            zero: 0,
            low,
            high,
            out_zero: 0,
            channels: weight.outputs,
        }
    }

    /// The same, and a function of floats.
    pub fn then(self, then: Option<UnaryOp>) -> Self {
        let (then, numbers) = then.map_or((Function::Same, [0.0; 2]), Function::of);
        Self { end: End { then, ..self.end }, numbers, makes_f32: !then.is_bounded(numbers), ..self }
    }

    /// What it makes of rows of channels.
    pub fn run(&self, x: CubeTensor, window: &Window) -> CubeTensor {
        let dtype = match self.end.finish {
            Finish::Codes => BurnDType::U8,
            Finish::Scaled => BurnDType::F32,
            Finish::Floats if self.makes_f32 => BurnDType::F32,
            // As wide as what is read.
            Finish::Floats => x.dtype,
        };
        let vector = if self.channels.is_multiple_of(4) { 4 } else { 1 };
        let mut l = Launch::of(&x, window, self.channels, vector, dtype);
        l.bounds = (self.zero, self.low, self.high, self.out_zero);
        l.numbers = self.numbers;
        let geometry = l.geometry(window);
        // SAFETY: there are as many constants as channels.
        let buffer = |h: &Handle| unsafe { BufferArg::from_raw_parts(h.clone(), self.channels) };
        let constants = (buffer(&self.start), buffer(&self.scale), buffer(&self.bias));
        // SAFETY: there is a row of weights for each tap.
        let weights = unsafe { BufferArg::from_raw_parts(self.weights.clone(), self.channels * window.taps()) };
        macro_rules! launch {
            ($x:ty, $w:ty, $c:ty, $y:ty) => {
                // SAFETY: the kernel reads pixels of `window` and writes its positions.
                unsafe {
                    window::depthwise::launch_unchecked::<$x, $w, $c, $y>(
                        &x.client,
                        l.cubes.clone(),
                        l.dim,
                        l.address,
                        l.vector,
                        l.read(&x),
                        weights,
                        constants.0,
                        constants.1,
                        constants.2,
                        l.written(),
                        geometry,
                        l.taps(window),
                        self.end,
                    )
                }
            };
        }
        match self.end.finish {
            Finish::Codes => launch!(u8, i8, i32, u8),
            Finish::Scaled => launch!(u8, i8, i32, f32),
            Finish::Floats => match (x.dtype, dtype) {
                (BurnDType::BF16, BurnDType::F32) => launch!(half::bf16, f32, f32, f32),
                (BurnDType::BF16, _) => launch!(half::bf16, f32, f32, half::bf16),
                (BurnDType::F16, BurnDType::F32) => launch!(half::f16, f32, f32, f32),
                (BurnDType::F16, _) => launch!(half::f16, f32, f32, half::f16),
                _ => launch!(f32, f32, f32, f32),
            },
        }
        l.made(&x)
    }
}

/// A weight of one channel a group as `[taps][channels]`.
fn by_taps<T: Copy>(weight: &cpu::Weight<T>) -> Vec<T> {
    let of = |tap: usize| (0..weight.outputs).map(move |c| weight.data[c * weight.taps + tap]);
    (0..weight.taps).flat_map(of).collect()
}

/// How what slides channel by channel is launched.
struct Launch {
    channels: usize,
    rows: usize,
    vector: usize,
    dtype: BurnDType,
    handle: Handle,
    dim: CubeDim,
    cubes: CubeCount,
    address: AddressType,
    bounds: (u32, f32, f32, i32),
    numbers: [f32; 2],
}

impl Launch {
    fn of(x: &CubeTensor, window: &Window, channels: usize, vector: usize, dtype: BurnDType) -> Self {
        let rows = window.positions();
        let dim = CubeDim::new_1d(256);
        Self {
            channels,
            rows,
            vector,
            dtype,
            handle: x.client.empty(rows * channels * dtype.size()),
            dim,
            cubes: calculate_cube_count_elemwise(&x.client, rows * channels / vector, dim),
            address: AddressType::from_len((rows * channels).max(x.meta.num_elements())),
            bounds: (0, 0.0, 0.0, 0),
            numbers: [0.0; 2],
        }
    }

    fn geometry(&self, window: &Window) -> GeometryLaunch {
        let pixel = self.channels / self.vector;
        let (outside, low, high, zero) = self.bounds;
        let [height, width] = window.input.map(|n| n as i32);
        let [stride_y, stride_x] = window.stride.map(|n| n as i32);
        let [step_y, step_x] = window.dilation.map(|n| n as i32);
        let [pad_y, pad_x] = window.pad.map(|n| n as i32);
        GeometryLaunch::new(
            self.rows,
            self.channels,
            self.channels,
            0,
            0,
            pixel,
            pixel,
            height,
            width,
            window.output[0],
            window.output[1],
            stride_y,
            stride_x,
            step_y,
            step_x,
            pad_y,
            pad_x,
            outside,
            low,
            high,
            zero,
            self.numbers[0],
            self.numbers[1],
            0,
        )
    }

    fn taps(&self, window: &Window) -> TapsLaunch {
        let [step_y, step_x] = window.dilation.map(|n| n as i32);
        TapsLaunch::new(window.kernel[0], window.kernel[1], step_y, step_x)
    }

    fn read(&self, x: &CubeTensor) -> BufferArg {
        // SAFETY: the handle has as many elements as the tensor, which is dense.
        unsafe { BufferArg::from_raw_parts(x.handle.clone(), x.meta.num_elements()) }
    }

    fn written(&self) -> BufferArg {
        // SAFETY: `of` made it of this size.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.rows * self.channels) }
    }

    fn made(self, x: &CubeTensor) -> CubeTensor {
        let shape = Shape::from(vec![self.rows, self.channels]);
        CubeTensor::new_contiguous(x.client.clone(), x.device.clone(), shape, self.handle, self.dtype)
    }
}

/// The greatest code of each window, of rows of channels.
pub fn max_pooled(x: CubeTensor, window: &Window, channels: usize) -> CubeTensor {
    let vector = if channels.is_multiple_of(4) { 4 } else { 1 };
    let l = Launch::of(&x, window, channels, vector, BurnDType::U8);
    // SAFETY: the kernel reads pixels of `window` and writes its positions.
    unsafe {
        window::max_pool::launch_unchecked(
            &x.client,
            l.cubes.clone(),
            l.dim,
            l.address,
            l.vector,
            l.read(&x),
            l.written(),
            l.geometry(window),
            l.taps(window),
        );
    }
    l.made(&x)
}

/// The average of each window, of rows of channels: `counts` taps of each row and column of positions.
pub fn average_pooled(
    x: CubeTensor,
    window: &Window,
    channels: usize,
    counts: &[Vec<usize>; 2],
    r: &Rescale,
) -> CubeTensor {
    let mut l = Launch::of(&x, window, channels, 1, BurnDType::U8);
    l.bounds = (r.x_zero.into(), 0.0, 255.0, r.y_zero.into());
    let [rows, columns] = counts.each_ref().map(|list| {
        let counts: Vec<u32> = list.iter().map(|n| *n as u32).collect();
        (x.client.create_from_slice(bytemuck::cast_slice(&counts)), counts.len())
    });
    // SAFETY: the kernel reads pixels of `window`, a count for each row and column of its positions, and writes these.
    unsafe {
        window::average_pool::launch_unchecked(
            &x.client,
            l.cubes.clone(),
            l.dim,
            l.address,
            l.read(&x),
            l.written(),
            BufferArg::from_raw_parts(rows.0, rows.1),
            BufferArg::from_raw_parts(columns.0, columns.1),
            l.geometry(window),
            l.taps(window),
            r.x_scale,
            r.y_scale,
        );
    }
    l.made(&x)
}

/// The average of each of `images` images, of codes in rows of channels.
pub fn averaged(x: CubeTensor, images: usize, r: &Rescale) -> CubeTensor {
    let whole = Images::of(&x, images);
    let scale = r.x_scale / (r.y_scale * whole.pixels as f32);
    // SAFETY: the kernel reads `pixels` rows of channels of each image and writes a code for each channel.
    unsafe {
        window::global_average::launch_unchecked(
            &x.client,
            whole.cubes.clone(),
            whole.dim,
            whole.address,
            whole.read(&x),
            whole.written(),
            whole.count,
            whole.channels,
            whole.pixels,
            i32::from(r.x_zero),
            scale,
            i32::from(r.y_zero),
        );
    }
    whole.made(&x)
}

/// The same, where the mean is one of floats.
pub fn mean(x: CubeTensor, images: usize, r: &Rescale) -> CubeTensor {
    let whole = Images::of(&x, images);
    // SAFETY: as for `averaged`.
    unsafe {
        window::mean::launch_unchecked(
            &x.client,
            whole.cubes.clone(),
            whole.dim,
            whole.address,
            whole.read(&x),
            whole.written(),
            whole.count,
            whole.channels,
            whole.pixels,
            i32::from(r.x_zero),
            r.x_scale,
            r.y_scale,
            i32::from(r.y_zero),
            0,
        );
    }
    whole.made(&x)
}

/// How what makes one code of all pixels of a channel is launched.
struct Images {
    count: usize,
    channels: usize,
    pixels: usize,
    handle: Handle,
    dim: CubeDim,
    cubes: CubeCount,
    address: AddressType,
}

impl Images {
    fn of(x: &CubeTensor, images: usize) -> Self {
        let shape = x.meta.shape();
        let channels = shape[shape.len() - 1];
        let (count, dim) = (images * channels, CubeDim::new_1d(64));
        Self {
            count,
            channels,
            pixels: x.meta.num_elements().checked_div(count).unwrap_or(0),
            handle: x.client.empty(count),
            dim,
            cubes: calculate_cube_count_elemwise(&x.client, count, dim),
            address: AddressType::from_len(x.meta.num_elements()),
        }
    }

    fn read(&self, x: &CubeTensor) -> BufferArg {
        // SAFETY: the handle has as many elements as the tensor, which is dense.
        unsafe { BufferArg::from_raw_parts(x.handle.clone(), x.meta.num_elements()) }
    }

    fn written(&self) -> BufferArg {
        // SAFETY: `of` made it of this size.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.count) }
    }

    fn made(self, x: &CubeTensor) -> CubeTensor {
        let shape = Shape::from(vec![self.count / self.channels, self.channels]);
        CubeTensor::new_contiguous(x.client.clone(), x.device.clone(), shape, self.handle, BurnDType::U8)
    }
}
