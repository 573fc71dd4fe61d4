//! Weights on the device, and what is launched to multiply by them.

use super::{
    functions::Function,
    patches::GeometryLaunch,
    plain, product,
    tile::{CELL, CHUNK, COLUMNS, End, Finish, Form, Numbers, Tile, pack, pad},
};
use crate::{burn::precision::Precision, device::FloatProducts};
use ::burn::backend::{DType, Shape};
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use compress_kernels::{Finish8, UnaryOp, Window};
use cubecl::{prelude::*, server::Handle};
use std::borrow::Cow;

/// Tiles, those first that read least. More registers a unit, as 128 by 128 take, leave a processor too few units to wait with.
pub const TILES: [Tile; 4] = [
    Tile { planes: [2, 2], fragments: [4, 4] },
    Tile { planes: [2, 2], fragments: [4, 2] },
    Tile { planes: [4, 2], fragments: [2, 1] },
    Tile { planes: [1, 4], fragments: [2, 1] },
];

/// What multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Tensor cores, which `mma.sync` of PTX reaches.
    TensorCores,
    /// The device's threads, without tensor cores.
    Units,
}

impl By {
    /// The best that a device has; `None` where it has neither.
    pub fn of(device: &CubeDevice) -> Option<Self> {
        use cubecl::{
            features::TypeUsage,
            ir::{ElemType, IntKind, UIntKind},
        };
        let (client, u8, i8) = (device.client(), ElemType::UInt(UIntKind::U8), ElemType::Int(IntKind::I8));
        let (features, hardware) = (&client.properties().features, &client.properties().hardware);
        if features.matmul.mma.iter().any(|m| (m.a_type, m.b_type, m.k) == (i8, u8, 32)) {
            return Some(Self::TensorCores);
        }
        let has_bytes = [u8, i8].iter().all(|e| features.type_usage(*e).contains(TypeUsage::Buffer));
        let has_room = hardware.max_shared_memory_size >= plain::SHARED;
        let has_units = hardware.max_units_per_cube as usize >= plain::UNITS;
        (has_bytes && has_room && has_units).then_some(Self::Units)
    }
}

/// A weight as `[outputs][taps, line by line][channels of a group]`.
pub struct Weight<'a, T> {
    pub data: &'a [T],
    pub outputs: usize,
    pub kernel: [usize; 2],
    pub channels: usize,
    pub groups: usize,
}

/// A weight on the device, and what its sums become.
pub struct Product {
    by: By,
    numbers: Numbers,
    end: End,
    /// Those of the function that follows.
    by_function: [f32; 2],
    weights: Handle,
    taps: Handle,
    start: Handle,
    scale: Handle,
    bias: Handle,
    outputs: usize,
    groups: usize,
    kernel: [usize; 2],
    channels: usize,
    chunks: usize,
    /// Bytes of a piece.
    piece: usize,
    low: f32,
    high: f32,
    zero: i32,
    outside: u32,
    /// Whether it makes floats of 32 bits, whatever it multiplies: outputs, and functions that may make large numbers.
    makes_f32: bool,
}

impl Product {
    /// A product of codes, whose padding is `input_zero`.
    pub fn of_codes(device: &CubeDevice, by: By, weight: &Weight<i8>, input_zero: u8, finish: &Finish8) -> Self {
        let depth = weight.data.len() / weight.outputs.max(1);
        let sums = weight.data.chunks_exact(depth.max(1)).map(|w| w.iter().map(|&w| i32::from(w)).sum::<i32>());
        // What was taken off each code before it was multiplied.
        let off = if by == By::Units { 128 } else { 0 };
        let zeros: Vec<i32> = sums.map(|s| s * (i32::from(input_zero) - off)).collect();
        let starts = |bias: &[i32]| zeros.iter().zip(bias).map(|(z, b)| b.wrapping_sub(*z)).collect::<Vec<i32>>();
        let outside = u32::from_ne_bytes([input_zero; 4]);
        let bytes: &[u8] = bytemuck::cast_slice(weight.data);
        let this = Self::new(device, by, Numbers::Codes, weight, bytes, outside);
        let client = device.client();
        match finish {
            Finish8::Requantize { bias, scale, zero, min, max } => {
                let zero = i32::from(*zero);
                Self {
                    end: End::of(Finish::Codes),
                    start: client.create_from_slice(bytemuck::cast_slice(&starts(bias))),
                    scale: client.create_from_slice(bytemuck::cast_slice(scale)),
                    low: (i32::from(*min) - zero) as f32,
                    high: (i32::from(*max) - zero) as f32,
                    zero,
                    ..this
                }
            }
            Finish8::Scale { bias, scale, min, max } => Self {
                end: End::of(Finish::Scaled),
                start: client.create_from_slice(bytemuck::cast_slice(&starts(&vec![0; weight.outputs]))),
                scale: client.create_from_slice(bytemuck::cast_slice(scale)),
                bias: client.create_from_slice(bytemuck::cast_slice(bias)),
                low: *min,
                high: *max,
                ..this
            },
        }
    }

    /// A product of floats, within bounds.
    pub fn of_floats(
        device: &CubeDevice,
        by: By,
        products: FloatProducts,
        weight: &Weight<f32>,
        bias: &[f32],
        [low, high]: [f32; 2],
    ) -> Self {
        let numbers = match products {
            _ if by == By::Units => Numbers::Floats,
            FloatProducts::F32 => Numbers::Floats,
            FloatProducts::Tf32 => Numbers::Tf32,
            FloatProducts::Bf16 => Numbers::Bf16,
            FloatProducts::F16 => Numbers::F16,
        };
        let bytes: Cow<[u8]> = match numbers {
            Numbers::Bf16 => weight.data.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
            Numbers::F16 => weight.data.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
            _ => bytemuck::cast_slice(weight.data).into(),
        };
        let this = Self::new(device, by, numbers, weight, &bytes, 0);
        let bias = device.client().create_from_slice(bytemuck::cast_slice(bias));
        Self { bias, low, high, ..this }
    }

    fn new<T>(device: &CubeDevice, by: By, numbers: Numbers, weight: &Weight<T>, bytes: &[u8], outside: u32) -> Self {
        let (client, size) = (device.client(), numbers.size());
        let [lines, across] = weight.kernel;
        let of_tap = weight.channels * size;
        let piece = [CELL, 8, 4, 2]
            .into_iter()
            .filter(|p| *p >= 4 || size == 2)
            .find(|p| of_tap.is_multiple_of(*p))
            .unwrap_or(1);
        let row = lines * across * of_tap;
        let packed = match by {
            By::TensorCores => pack(bytes, row, weight.groups),
            By::Units => pad(bytes, row),
        };
        let mut taps: Vec<[u32; 4]> = Vec::with_capacity(row / piece);
        for tap in 0..lines * across {
            let [down, right] = [tap / across, tap % across].map(|n| n as u32);
            taps.extend((0..of_tap / piece).map(|i| [down, right, i as u32, 0]));
        }
        // What a finish doesn't read.
        let nothing = client.create_from_slice(&[0; 4]);
        Self {
            by,
            numbers,
            end: End::of(Finish::Floats),
            by_function: [0.0; 2],
            weights: client.create_from_slice(&packed),
            taps: client.create_from_slice(bytemuck::cast_slice(&taps)),
            start: nothing.clone(),
            scale: nothing.clone(),
            bias: nothing,
            outputs: weight.outputs,
            groups: weight.groups,
            kernel: weight.kernel,
            channels: weight.channels,
            chunks: row.div_ceil(CHUNK),
            piece,
            low: 0.0,
            high: 0.0,
            zero: 0,
            outside,
            makes_f32: false,
        }
    }

    /// The same, which makes floats of 32 bits also where it multiplies narrower ones.
    pub fn made_wide(self, wide: bool) -> Self {
        Self { makes_f32: self.makes_f32 || wide, ..self }
    }

    /// The same, and a function of floats.
    pub fn then(self, then: Option<UnaryOp>) -> Self {
        let (then, by_function) = then.map_or((Function::Same, [0.0; 2]), Function::of);
        let makes_f32 = self.makes_f32 || !then.is_bounded(by_function);
        Self { end: End { then, ..self.end }, by_function, makes_f32, ..self }
    }

    /// The result `[window.positions(), outputs]` of `x`, which has a dense row for each of `window.pixels()`. Floats of `added`,
    /// which is dense and has as many, are added to floats.
    ///
    /// # Panics
    /// When the window is not that of the weight.
    pub fn run(&self, x: CubeTensor, added: Option<CubeTensor>, window: &Window) -> CubeTensor {
        let tile = self.tile(&x.client, window.positions(), self.outputs / self.groups);
        self.run_in(x, added, window, tile)
    }

    /// The same, divided by `tile`.
    ///
    /// # Panics
    /// The same.
    pub fn run_in(&self, x: CubeTensor, added: Option<CubeTensor>, window: &Window, tile: Tile) -> CubeTensor {
        assert_eq!(window.kernel, self.kernel, "the window of the weight");
        let (client, device) = (x.client.clone(), x.device.clone());
        let (rows, columns) = (window.positions(), self.outputs / self.groups);
        // The sum with a wide number is wide.
        let adds_f32 = added.as_ref().is_some_and(|t| t.dtype == DType::F32);
        let makes_f32 = self.makes_f32 || adds_f32;
        let dtype = match (self.end.finish, self.numbers) {
            (Finish::Codes, _) => DType::U8,
            (_, Numbers::Bf16) if !makes_f32 => DType::BF16,
            (_, Numbers::F16) if !makes_f32 => DType::F16,
            _ => DType::F32,
        };
        let y = client.empty(rows * self.outputs * dtype.size());
        let plain = window.is_pixel() && window.kernel == [1, 1];
        let form = Form {
            numbers: self.numbers,
            tile,
            end: End { adds: added.is_some(), ..self.end },
            plain,
            piece: self.piece,
            wide: self.by == By::TensorCores && self.end.finish == Finish::Codes && columns.is_multiple_of(CELL),
            stages: if self.by == By::TensorCores && self.piece == CELL && (plain || self.outside == 0) {
                3
            } else {
                2
            },
        };
        let group = self.channels * self.numbers.size() / self.piece;
        let geometry = GeometryLaunch::new(
            rows,
            columns,
            self.outputs,
            self.chunks,
            self.kernel[0] * self.kernel[1] * group,
            group * self.groups,
            group,
            window.input[0] as i32,
            window.input[1] as i32,
            window.output[0],
            window.output[1],
            window.stride[0] as i32,
            window.stride[1] as i32,
            window.dilation[0] as i32,
            window.dilation[1] as i32,
            window.pad[0] as i32,
            window.pad[1] as i32,
            self.outside,
            self.low,
            self.high,
            self.zero,
            self.by_function[0],
            self.by_function[1],
            0,
        );
        let (sides, units, held) = match self.by {
            By::TensorCores => ([tile.rows(), tile.columns()], tile.units(), columns.next_multiple_of(COLUMNS)),
            By::Units => ([plain::SIDE; 2], plain::UNITS, columns),
        };
        let (down, across) = (rows.div_ceil(sides[0]), columns.div_ceil(sides[1]));
        // Where an axis may have 65,535 cubes alone, so that rows are divided over two.
        let folds = if self.by == By::Units { down.div_ceil(plain::MOST).max(1) } else { 1 };
        let cubes = [down.div_ceil(folds), across * folds, self.groups].map(|n| n as u32);
        let count = CubeCount::Static(cubes[0], cubes[1], cubes[2]);
        let dim = CubeDim::new_1d(units as u32);
        let address = AddressType::from_len((rows * self.outputs).max(x.meta.num_elements()));
        let (vector, x_len) = (self.piece.div_ceil(4), x.meta.num_elements());
        // SAFETY: the kernel reads pieces of rows and pixels that `window` has, and rows of the weight and entries of
        // each column's constants as `new` and its callers made them.
        let buffer = |handle: &Handle, len: usize| unsafe { BufferArg::from_raw_parts(handle.clone(), len) };
        let args = (
            buffer(&x.handle, x_len),
            buffer(&self.weights, held * self.groups * self.chunks * CHUNK / 4),
            buffer(&self.taps, 4 * self.kernel[0] * self.kernel[1] * group),
            buffer(&self.start, self.outputs),
            buffer(&self.scale, self.outputs),
            buffer(&self.bias, self.outputs),
            buffer(added.as_ref().map_or(&self.bias, |t| &t.handle), rows * self.outputs),
            buffer(&y, rows * self.outputs),
        );
        macro_rules! launch_in {
            ($kernels:ident, $x:ty, $sum:ty, $added:ty, $y:ty) => {
                // SAFETY: as above; the result has `rows` by `outputs` elements, which is what the kernel writes.
                unsafe {
                    $kernels::product::launch_unchecked::<$x, $sum, $added, $y>(
                        &client, count, dim, address, vector, args.0, args.1, args.2, args.3, args.4, args.5, args.6,
                        args.7, geometry, form,
                    )
                }
            };
        }
        macro_rules! launch {
            ($x:ty, $sum:ty, $y:ty) => {
                match self.by {
                    By::TensorCores => launch_in!(product, $x, $sum, f32, $y),
                    By::Units => launch_in!(plain, $x, $sum, f32, $y),
                }
            };
        }
        macro_rules! launch_halves {
            ($half:ty) => {
                match (self.piece, adds_f32, makes_f32) {
                    (2, true, _) => launch_in!(product, u16, f32, f32, f32),
                    (2, _, true) => launch_in!(product, u16, f32, $half, f32),
                    (2, ..) => launch_in!(product, u16, f32, $half, $half),
                    (_, true, _) => launch_in!(product, u32, f32, f32, f32),
                    (_, _, true) => launch_in!(product, u32, f32, $half, f32),
                    _ => launch_in!(product, u32, f32, $half, $half),
                }
            };
        }
        match (self.end.finish, self.piece) {
            (Finish::Codes, 1) => launch!(u8, i32, u8),
            (Finish::Codes, _) => launch!(u32, i32, u8),
            (Finish::Scaled, 1) => launch!(u8, i32, f32),
            (Finish::Scaled, _) => launch!(u32, i32, f32),
            (Finish::Floats, _) => match self.numbers {
                Numbers::Bf16 => launch_halves!(half::bf16),
                Numbers::F16 => launch_halves!(half::f16),
                _ => launch!(u32, f32, f32),
            },
        }
        CubeTensor::new_contiguous(client, device, Shape::from(vec![rows, self.outputs]), y, dtype)
    }

    /// How many channels it reads.
    pub fn inputs(&self) -> usize {
        self.channels * self.groups
    }

    /// How wide the floats are that it reads.
    pub fn width(&self) -> Precision {
        match self.numbers {
            Numbers::Bf16 => Precision::Bf16,
            Numbers::F16 => Precision::F16,
            _ => Precision::F32,
        }
    }

    /// What it multiplies.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// The tile that reads least of those that give every processor two cubes.
    fn tile(&self, client: &cubecl::client::Client, rows: usize, columns: usize) -> Tile {
        let processors = client.properties().hardware.num_streaming_multiprocessors.unwrap_or(1) as usize;
        let cubes = |t: &Tile| rows.div_ceil(t.rows()) * columns.div_ceil(t.columns()) * self.groups;
        // Floats have two sums where codes have one: the largest tile would take all registers.
        let has_room = |t: &Tile| self.numbers != Numbers::Floats || t.fragments[0] * t.fragments[1] <= 8;
        let fits = |t: &&Tile| {
            has_room(t) && cubes(t) >= 2 * processors && t.columns() < 2 * columns.next_multiple_of(COLUMNS)
        };
        *TILES.iter().find(fits).unwrap_or(&TILES[TILES.len() - 1])
    }
}
