//! Pass "int8", dynamic: products read codes by the range that their input has in each run. No calibration is needed.
//!
//! A product of rows by a constant matrix becomes DynamicQuantizeLinear, MatMulInteger, Cast and Mul, of opset 11: the form that ONNX
//! Runtime's optimiser makes one kernel of. All of an input shares a scale, the samples of a batch too. Weights have a scale for each
//! output.

use super::{
    choices::Choices,
    layer_forms::{self, LayerRule},
    recurrent,
    reduce_range::{ReduceRange, scale_for_any_codes},
    scheme::{Codes, Scheme},
};
use crate::{
    layers::{Layer, excluded, is_left_out, layers, obstacle},
    nested,
    target::Target,
    weight_matrix::WeightMatrix,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        binary::Binary,
        cast::{Cast, Rounding},
        integer::{Accumulator, DynamicQuantize, IntegerMatMul},
    },
    pass::{Context, Outcome, Pass, Skipped, reasons},
    rewrite::remove_dead,
    tensor::{DType, Tensor},
    words::option::{INT8, REDUCE_RANGE},
};
use regex::Regex;
use std::collections::HashMap;

/// Weights of fewer elements stay floats: there is nothing to save, and codes of what they multiply cost as much as ever.
const LEAST: usize = 1024;

/// The pass "int8", where ranges are those of each run.
#[derive(Debug)]
pub struct DynamicInt8 {
    /// What numbers become.
    pub scheme: Scheme,
    /// What has to run them.
    pub target: Target,
    /// Layers to leave in floats.
    pub exclude: Vec<Regex>,
    /// Layers whose form the user named: those of another form than INT8 stay.
    pub rules: Vec<LayerRule>,
}

impl Pass for DynamicInt8 {
    fn name(&self) -> &'static str {
        "int8"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        super::feasible(g, self.target, &self.scheme, layer_forms::store_weights(&self.rules))?;
        let mut out = nested::change_each(g, |g| self.quantise(g, cx))?;
        if out.edits == 0 {
            out.warnings.push(format!("{INT8}: nothing was quantised: {}", reasons(&out.skipped)));
        }
        Ok(out)
    }
}

/// An input as codes: what DynamicQuantizeLinear makes of it.
#[derive(Clone, Copy)]
struct AsCodes {
    codes: Port,
    scale: Port,
    zero: Port,
}

/// A weight as codes `[inputs, outputs]`, and the scale of each output.
#[derive(Clone, Copy)]
struct Coded {
    codes: Port,
    scales: Port,
}

/// What was made in a graph so far.
#[derive(Default)]
struct Made {
    inputs: HashMap<Port, AsCodes>,
    /// By the weight, and whether it is stored with its outputs first: layers may share one, and read it either way.
    weights: HashMap<(NodeId, usize), Coded>,
    /// Outputs of which sums of two products may not fit 16 bits, and of how many.
    cut_off: [usize; 2],
}

impl DynamicInt8 {
    fn quantise(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let (mut out, mut made) = (Outcome::default(), Made::default());
        for layer in layers(g)? {
            cx.check()?;
            match self.matrix(g, &layer) {
                Ok(matrix) => {
                    self.to_codes(g, &layer, matrix, &mut made)?;
                    out.edits += 1;
                }
                Err(reason) => out.skipped.push(skipped(g, layer.node, reason)),
            }
        }
        let [count, all] = made.cut_off;
        if count > 0 && self.scheme.may_be_cut_off() {
            out.warnings.push(format!(
                "in {count} of {all} output channels, sums of two products may exceed 16 bits: processors with AVX2 and without VNNI \
                 cut them off, and answer otherwise than measured here. {REDUCE_RANGE} always leaves room"
            ));
        }
        self.recurrent(g, &mut out);
        Ok(out)
    }

    /// The matrix that a layer's weight is, or why it stays.
    fn matrix(&self, g: &Graph, layer: &Layer) -> std::result::Result<WeightMatrix, String> {
        let left = excluded(g, layer, &self.exclude).or_else(|| layer_forms::not_int8(g, layer.node, &self.rules));
        if let Some(why) = left.or_else(|| obstacle(g, layer)) {
            return Err(why);
        }
        match g.op(layer.node) {
            Op::MatMul(_) => {}
            Op::Gemm(gemm) if !gemm.trans_a && gemm.alpha == 1.0 && gemm.beta == 1.0 => {}
            Op::Gemm(_) => return Err("its input is transposed, or its result scaled".into()),
            _ => {
                let why = "only products of rows by a matrix are fast by ranges of each run";
                return Err(format!("{why}; static {INT8} quantises it"));
            }
        }
        let matrix = WeightMatrix::of(g, layer).ok_or("its weight isn't a matrix")?;
        match matrix.len() < LEAST {
            true => Err(format!("its weight has fewer than {LEAST} elements")),
            false => Ok(matrix),
        }
    }

    /// Makes codes of a layer's weight, and of what it multiplies.
    fn to_codes(&self, g: &mut Graph, layer: &Layer, matrix: WeightMatrix, made: &mut Made) -> Result<()> {
        let bug = || Error::bug("a weight is not a constant of f32");
        let key = (layer.weight, matrix.input_axis());
        let weight = match made.weights.get(&key) {
            Some(weight) => *weight,
            None => {
                let tensor = g.constant(layer.weight.into()).ok_or_else(bug)?;
                let rows = matrix.matrix(&tensor.as_f32().ok_or_else(bug)?);
                let (codes, scales, cut_off) = codes(&rows, matrix, self.scheme);
                made.cut_off = [made.cut_off[0] + cut_off, made.cut_off[1] + matrix.rows];
                let name = g.value(layer.weight.into()).name.clone();
                let [codes, scales] = [("quantized", codes), ("scale", scales)]
                    .map(|(what, t)| g.add_constant(&format!("{name}_{what}"), t).into());
                *made.weights.entry(key).or_insert(Coded { codes, scales })
            }
        };
        let input = g.operand(layer.node, 0).ok_or_else(bug)?;
        let x = match made.inputs.get(&input) {
            Some(made) => *made,
            None => *made.inputs.entry(input).or_insert(as_codes(g, input)?),
        };
        replace(g, layer.node, x, weight)
    }

    /// Makes codes of the weights of LSTM layers, where the target has an operator for it.
    fn recurrent(&self, g: &mut Graph, out: &mut Outcome) {
        let is_able = self.target.capabilities().lstm_by_codes;
        let all = recurrent::layers(g).filter(|n| !is_left_out(g, *n, &self.exclude));
        for node in all.collect::<Vec<_>>() {
            let why = match is_able {
                true => recurrent::obstacle(g, node, &self.exclude),
                false => Some(recurrent::no_operator(g, node)),
            };
            match why {
                Some(why) => out.skipped.push(skipped(g, node, why.into())),
                None => out.edits += 1,
            }
        }
        if is_able {
            recurrent::to_codes(g, &self.exclude, &self.scheme, &Choices::default());
        }
    }
}

fn skipped(g: &Graph, node: NodeId, reason: String) -> Skipped {
    Skipped { rule: "int8".into(), node: g.node(node).label(), reason }
}

/// The rows of `matrix`, one an output, as codes `[inputs, outputs]`, the scale of each output, and in how many of them sums of two products
/// may not fit 16 bits.
fn codes(rows: &[f32], matrix: WeightMatrix, scheme: Scheme) -> (Tensor, Tensor, usize) {
    let Codes { stored, .. } = scheme.weights.codes;
    let high = scheme.weights.codes.range().1;
    let (inputs, outputs) = (matrix.columns(), matrix.rows);
    let mut codes = vec![0i64; rows.len()];
    let mut scales = Vec::with_capacity(outputs);
    let mut cut_off = 0;
    for (output, row) in rows.chunks(inputs.max(1)).enumerate() {
        let scale = scale_for_any_codes(row, scheme.reduce_range, high as f32);
        for (input, v) in row.iter().enumerate() {
            codes[input * outputs + output] = ((v / scale).round_ties_even() as i64).clamp(-high, high);
        }
        cut_off += usize::from(scale_for_any_codes(row, ReduceRange::Always, high as f32) > scale);
        scales.push(scale);
    }
    (Tensor::ints(stored, &[inputs, outputs], &codes), Tensor::f32(&[outputs], &scales), cut_off)
}

/// Codes of `x` by its own range.
fn as_codes(g: &mut Graph, x: Port) -> Result<AsCodes> {
    let name = g.value(x).name.clone();
    let outputs = ["quantized", "scale", "zero_point"].map(|what| g.fresh(&format!("{name}_{what}")));
    let node = g.add_node("", DynamicQuantize.into(), &[Some(x)], &outputs.each_ref().map(|s| &s[..]))?;
    let [codes, scale, zero] = [0, 1, 2].map(|slot| Port { node, slot });
    Ok(AsCodes { codes, scale, zero })
}

/// Puts the product of `x` by codes with their scales in the place of a product of floats, whose bias is added to it.
fn replace(g: &mut Graph, node: NodeId, x: AsCodes, weight: Coded) -> Result<()> {
    let (name, old, bias) = (g.node(node).name.clone(), Port::from(node), g.operand(node, 2));
    let base = g.value(old).name.clone();
    let mut add = |name: &str, op: Op, inputs: &[Port], what: &str| -> Result<Port> {
        let output = g.fresh(&format!("{base}_{what}"));
        let inputs: Vec<Option<Port>> = inputs.iter().copied().map(Some).collect();
        Ok(g.add_node(name, op, &inputs, &[&output])?.into())
    };
    let product = IntegerMatMul { result: Accumulator::Kept };
    let sums = add(&name, product.into(), &[x.codes, weight.codes, x.zero], "sums")?;
    let sums = add("", Cast { to: DType::F32, rounding: Rounding::default() }.into(), &[sums], "cast")?;
    let scale = add("", Binary::Mul.into(), &[x.scale, weight.scales], "scale")?;
    let mut made = add("", Binary::Mul.into(), &[sums, scale], "product")?;
    if let Some(bias) = bias {
        made = add("", Binary::Add.into(), &[made, bias], "sum")?;
    }
    g.redirect(old, made, &[]);
    remove_dead(g, node);
    Ok(())
}
