//! Weights as floats of 8 bits, E4M3 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning"), a scale for each output: as TensorRT
//! reads them, with DequantizeLinear of opset 19.

use super::form;
use crate::{layers::Layer, weight_matrix::WeightMatrix};
use compress_compiler::{
    error::Result,
    graph::Graph,
    narrow::{RoundMode, encode},
    ops::quantize::Dequantize,
    pass::Context,
    tensor::{DType, Tensor},
};
use rayon::prelude::*;

/// The type of the floats, and the largest of them.
const TYPE: DType = DType::F8E4M3FN;
const LARGEST: f32 = 448.0;

/// A weight as such floats, in the order in which it is stored, and the scale of each row of its matrix.
pub(super) struct Floats {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

/// Rounds a weight, whose values are `stored`, to the nearest such floats.
pub(super) fn rounded(layout: &WeightMatrix, stored: &[f32]) -> Floats {
    let matrix = layout.matrix(stored);
    let each = |row: &[f32]| -> (f32, Vec<u8>) {
        let scale = row.iter().fold(0f32, |most, w| most.max(w.abs())) / LARGEST;
        let scale = if scale.is_normal() { scale } else { 1.0 };
        (scale, row.iter().map(|w| encode(TYPE, f64::from(w / scale), true, RoundMode::Nearest)).collect())
    };
    let rows: Vec<(f32, Vec<u8>)> = matrix.par_chunks(layout.columns()).map(each).collect();
    let scales = rows.iter().map(|(scale, _)| *scale).collect();
    let codes = layout.stored(&rows.into_iter().flat_map(|(_, codes)| codes).collect::<Vec<u8>>());
    Floats { codes, scales }
}

/// Lets the readers of the weight of `layer` read `floats` instead.
pub(super) fn write(g: &mut Graph, layer: &Layer, layout: &WeightMatrix, floats: &Floats, cx: &Context) -> Result<()> {
    let outputs = 1 - layout.input_axis();
    let shape = if outputs == 0 { vec![layout.rows, layout.columns()] } else { vec![layout.columns(), layout.rows] };
    let codes = cx.kept(Tensor::new(TYPE, shape, floats.codes.clone())?)?;
    let scales = Tensor::f32(&[layout.rows], &floats.scales);
    form::read_through(g, layer, Dequantize::along(outputs as i64), [Some(codes), Some(scales), None])
}
