//! Functions of whole rows: Softmax and LayerNormalization, a cube a row.

use ::burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::{prelude::*, server::Handle};

/// Cubes along an axis, before rows are folded: on some devices an axis may have 65,535.
const MOST: usize = 32_768;
/// The most units of a cube.
const UNITS: usize = 256;

/// How the rows of a cube's units become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Total {
    Sum,
    Most,
}

/// The sum, or the greatest, of what all units of a cube have. A NaN may get lost among the greatest.
#[cube]
fn total(x: f32, all: &mut Shared<[f32]>, #[comptime] units: usize, #[comptime] what: Total) -> f32 {
    let unit = UNIT_POS_X as usize;
    all[unit] = x;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(units.ilog2() as usize) {
        let half = comptime!(units >> (step + 1));
        if unit < half {
            let (own, other) = (all[unit], all[unit + half]);
            all[unit] = match comptime!(what) {
                Total::Sum => own + other,
                Total::Most => max(own, other),
            };
        }
        sync_cube();
    }
    let found = all[0usize];
    // What follows may write there.
    sync_cube();
    found
}

/// The row of this cube.
#[cube]
fn own_row() -> usize {
    CUBE_POS_Y as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn soften<X: Numeric>(
    x: &[X],
    y: &mut [X],
    rows: usize,
    width: usize,
    #[comptime] units: usize,
    #[comptime] log: bool,
) {
    let mut all = Shared::<[f32]>::new_slice(units);
    let (unit, row) = (UNIT_POS_X as usize, own_row());
    if row < rows {
        let first = row * width;
        let mut most = f32::min_value();
        let mut at = unit;
        while at < width {
            most = max(most, f32::cast_from(x[first + at]));
            at += units;
        }
        let most = total(most, &mut all, units, Total::Most);
        let mut sum = 0.0f32;
        let mut at = unit;
        while at < width {
            sum += (f32::cast_from(x[first + at]) - most).exp();
            at += units;
        }
        let sum = total(sum, &mut all, units, Total::Sum);
        let mut at = unit;
        while at < width {
            let over = f32::cast_from(x[first + at]) - most;
            if comptime!(log) {
                y[first + at] = X::cast_from(over - sum.ln());
            } else {
                y[first + at] = X::cast_from(over.exp() / sum);
            }
            at += units;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn normalise<X: Numeric>(
    x: &[X],
    scale: &[f32],
    bias: &[f32],
    y: &mut [X],
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] units: usize,
) {
    let mut all = Shared::<[f32]>::new_slice(units);
    let (unit, row) = (UNIT_POS_X as usize, own_row());
    if row < rows {
        let first = row * width;
        let mut sum = 0.0f32;
        let mut at = unit;
        while at < width {
            sum += f32::cast_from(x[first + at]);
            at += units;
        }
        let mean = total(sum, &mut all, units, Total::Sum) / f32::cast_from(width);
        let mut squares = 0.0f32;
        let mut at = unit;
        while at < width {
            let off = f32::cast_from(x[first + at]) - mean;
            squares += off * off;
            at += units;
        }
        let variance = total(squares, &mut all, units, Total::Sum) / f32::cast_from(width);
        let by = 1.0f32 / (variance + epsilon).sqrt();
        let mut at = unit;
        while at < width {
            let made = (f32::cast_from(x[first + at]) - mean) * by * scale[at] + bias[at];
            y[first + at] = X::cast_from(made);
            at += units;
        }
    }
}

/// How rows are launched.
struct Launch {
    rows: usize,
    width: usize,
    units: usize,
    cubes: CubeCount,
    dim: CubeDim,
    address: AddressType,
    y: Handle,
}

impl Launch {
    fn of(x: &CubeTensor, width: usize) -> Self {
        let (n, across) = (x.meta.num_elements(), width.max(1));
        let rows = n / across;
        // Four elements a unit or more, and whole planes.
        let units = (across / 4).next_power_of_two().clamp(32, UNITS);
        let folds = rows.div_ceil(MOST).max(1);
        Self {
            rows,
            width,
            units,
            cubes: CubeCount::Static(rows.div_ceil(folds) as u32, folds as u32, 1),
            dim: CubeDim::new_1d(units as u32),
            address: AddressType::from_len(n),
            y: x.client.empty(n * x.dtype.size()),
        }
    }
}

/// # Safety
/// The handle has `len` elements.
unsafe fn buffer(handle: &Handle, len: usize) -> BufferArg {
    // SAFETY: as the caller says.
    unsafe { BufferArg::from_raw_parts(handle.clone(), len) }
}

/// The Softmax of each row of `width` elements of `x`, which is dense, or its logarithm.
pub fn softmax(x: CubeTensor, width: usize, log: bool) -> CubeTensor {
    let (l, n) = (Launch::of(&x, width), x.meta.num_elements());
    if n > 0 {
        macro_rules! launch {
            ($x:ty) => {
                // SAFETY: both have `rows` of `width` elements.
                unsafe {
                    let (from, to) = (buffer(&x.handle, n), buffer(&l.y, n));
                    soften::launch_unchecked::<$x>(
                        &x.client, l.cubes, l.dim, l.address, from, to, l.rows, l.width, l.units, log,
                    )
                }
            };
        }
        match x.dtype {
            DType::BF16 => launch!(half::bf16),
            DType::F16 => launch!(half::f16),
            _ => launch!(f32),
        }
    }
    CubeTensor { handle: l.y, ..x }
}

/// What LayerNormalization multiplies columns by, and what it adds.
pub struct LayerNorm {
    scale: Handle,
    bias: Handle,
    /// Elements of a row.
    pub width: usize,
    epsilon: f32,
}

impl LayerNorm {
    /// As many factors as summands.
    pub fn new(cube: &burn_cubecl::CubeDevice, scale: &[f32], bias: Option<&[f32]>, epsilon: f32) -> Self {
        let client = cube.client();
        let send = |v: &[f32]| client.create_from_slice(bytemuck::cast_slice(v));
        let bias = bias.map_or_else(|| send(&vec![0.0; scale.len()]), send);
        Self { scale: send(scale), bias, width: scale.len(), epsilon }
    }

    /// Rows of `width` elements of `x`, which is dense, with mean 0 and variance 1, scaled and moved.
    pub fn run(&self, x: CubeTensor) -> CubeTensor {
        let (l, n) = (Launch::of(&x, self.width), x.meta.num_elements());
        if n > 0 {
            macro_rules! launch {
                ($x:ty) => {
                    // SAFETY: both have `rows` of `width` elements, and there are as many factors and summands.
                    unsafe {
                        let (from, to) = (buffer(&x.handle, n), buffer(&l.y, n));
                        let (scale, bias) = (buffer(&self.scale, self.width), buffer(&self.bias, self.width));
                        normalise::launch_unchecked::<$x>(
                            &x.client,
                            l.cubes,
                            l.dim,
                            l.address,
                            from,
                            scale,
                            bias,
                            to,
                            l.rows,
                            l.width,
                            self.epsilon,
                            l.units,
                        )
                    }
                };
            }
            match x.dtype {
                DType::BF16 => launch!(half::bf16),
                DType::F16 => launch!(half::f16),
                _ => launch!(f32),
            }
        }
        CubeTensor { handle: l.y, ..x }
    }
}
