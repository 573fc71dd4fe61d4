//! What becomes of sums: scaled, rounded, within bounds. Each formula has the operations of the CPU's kernels in their order.

use super::{
    functions::{applied, bounded},
    patches::Geometry,
    tile::{End, Finish},
};
use cubecl::prelude::*;

/// The product of two floats, which no sum is fused with: compilers may fuse a product and a sum, and don't know that `nothing` is 0.
#[cube]
pub fn product_alone(x: f32, y: f32, nothing: u32) -> f32 {
    f32::reinterpret(u32::reinterpret(x * y) ^ nothing)
}

/// `x` between two integers of less than 2^21, rounded, half to even. NaN becomes `low`.
#[cube]
pub fn round_within(x: f32, low: f32, high: f32) -> i32 {
    let x = select(x > low, x, low);
    let x = select(x < high, x, high);
    // `round` is the driver's choice of ties on some.
    let floor = x.floor();
    let part = x - floor;
    let whole = i32::cast_from(floor);
    let tie = select(part == 0.5f32, whole & 1i32, 0i32);
    whole + select(part > 0.5f32, 1i32, tie)
}

/// The element `at` of what is added, if anything is.
#[cube]
pub fn other<A: Numeric>(added: &[A], at: usize, #[comptime] end: End) -> f32 {
    let mut found = 0.0f32;
    if comptime!(end.adds) {
        found = f32::cast_from(added[at]);
    }
    found
}

/// The constants of a column.
#[derive(CubeType, Clone, Copy)]
pub struct Constants {
    start: i32,
    scale: f32,
    bias: f32,
}

#[cube]
impl Constants {
    /// Those of the column `at`, as far as `finish` needs them.
    pub fn of(start: &[i32], scale: &[f32], bias: &[f32], at: usize, #[comptime] finish: Finish) -> Constants {
        let mut found = Constants { start: 0i32, scale: 0.0f32, bias: 0.0f32 };
        if comptime!(finish != Finish::Floats) {
            found.start = start[at];
            found.scale = scale[at];
        }
        if comptime!(finish != Finish::Codes) {
            found.bias = bias[at];
        }
        found
    }

    /// What becomes of a sum, to which `added` is added.
    pub fn finish<C: Numeric, Y: Numeric>(&self, sum: C, added: f32, g: &Geometry, #[comptime] end: End) -> Y {
        match comptime!(end.finish) {
            Finish::Codes => {
                let real = f32::cast_from(i32::cast_from(sum) + self.start) * self.scale;
                Y::cast_from(round_within(real, g.low, g.high) + g.zero)
            }
            Finish::Scaled => {
                let real =
                    product_alone(f32::cast_from(i32::cast_from(sum) + self.start), self.scale, g.nothing) + self.bias;
                Y::cast_from(applied(bounded(real, g.low, g.high), g.alpha, g.beta, end.then))
            }
            Finish::Floats => {
                let mut real = f32::cast_from(sum) + self.bias;
                if comptime!(end.adds) {
                    real += added;
                }
                Y::cast_from(applied(bounded(real, g.low, g.high), g.alpha, g.beta, end.then))
            }
        }
    }
}
