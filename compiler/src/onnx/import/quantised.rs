//! Operators on codes: what ONNX Runtime's quantiser writes as QLinearConv, QLinearAdd and so on is read as what it
//! means, DequantizeLinear before the operator on floats and QuantizeLinear behind it.
//!
//! QLinearConv and QLinearMatMul, which are ONNX's own, stay where that would not be exact: where the weight is none, or
//! not around zero, or too little is known of the input, so that they would be multiplied as floats.

use super::{Declared, Importer, listing};
use crate::{
    error::Result,
    onnx::opset,
    tensor::{DType, Tensor},
};
use onnx_protobuf::{AttributeProto, NodeProto};

/// The opset that has DequantizeLinear with a scale for each channel.
const OPSET: i64 = 13;

/// The operator on floats that an operator on codes stands for, and where its inputs are.
struct QOperator {
    float: &'static str,
    /// The slot of each operand, behind which are its scale and zero point.
    codes: Vec<usize>,
    /// The axis along which the scales of the second operand, a weight, differ.
    channels: i64,
    /// The slot of a bias of 32 bits.
    bias: Option<usize>,
    /// The slot of the result's scale, behind which is its zero point.
    result: usize,
}

impl QOperator {
    fn of(node: &NodeProto) -> Option<Self> {
        let unary = |float| Self { float, codes: vec![0], channels: 1, bias: None, result: 3 };
        let binary = |float| Self { float, codes: vec![0, 3], channels: 1, bias: None, result: 6 };
        let operator = match (&node.domain[..], &node.op_type[..]) {
            (domain, "QLinearConv") if opset::is_default(domain) => {
                Self { channels: 0, bias: Some(8), ..binary("Conv") }
            }
            (domain, "QLinearMatMul") if opset::is_default(domain) => binary("MatMul"),
            ("com.microsoft", "QGemm") => {
                let transposed = int(node, "transB") == Some(1);
                Self { channels: i64::from(!transposed), bias: Some(6), result: 7, ..binary("Gemm") }
            }
            ("com.microsoft", "QLinearAdd") => binary("Add"),
            ("com.microsoft", "QLinearMul") => binary("Mul"),
            ("com.microsoft", "QLinearSigmoid") => unary("Sigmoid"),
            ("com.microsoft", "QLinearLeakyRelu") => unary("LeakyRelu"),
            ("com.microsoft", "QLinearAveragePool") => unary("AveragePool"),
            ("com.microsoft", "QLinearGlobalAveragePool") => unary("GlobalAveragePool"),
            // It says itself how it is meant.
            ("com.microsoft", "QLinearSoftmax") if int(node, "opset")? >= OPSET => unary("Softmax"),
            ("com.microsoft", "QLinearConcat") if node.input.len() % 3 == 2 => {
                Self { codes: (2..node.input.len()).step_by(3).collect(), result: 0, ..unary("Concat") }
            }
            _ => return None,
        };
        // Codes in another order, and a result whose type or scale is not given, are left to others.
        let given = |slot: usize| node.input.get(slot).is_some_and(|name| !name.is_empty());
        let last =
            operator.codes.iter().map(|slot| slot + 2).chain([operator.result + 1]).chain(operator.bias).max()?;
        let sound = !operator.codes.is_empty()
            && int(node, "channels_last").unwrap_or(0) == 0
            && node.input.len() <= last + 1
            && node.output.len() == 1
            && operator.codes.iter().all(|slot| given(*slot) && given(slot + 1))
            && given(operator.result)
            && given(operator.result + 1);
        sound.then_some(operator)
    }
}

/// The whole number that a node has as an attribute.
fn int(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|a| a.name == name).map(|a| a.i)
}

/// Attributes that only the operator on codes has.
fn is_own(attribute: &AttributeProto) -> bool {
    matches!(&attribute.name[..], "channels_last" | "opset")
}

impl Importer<'_> {
    /// Adds what `node` stands for if it is an operator on codes, and says whether it was.
    pub(super) fn quantised(&mut self, node: &NodeProto, declared: &Declared) -> Result<bool> {
        let Some(operator) = QOperator::of(node) else { return Ok(false) };
        let standard = opset::is_default(&node.domain);
        if standard && !self.has_centred_weight(node, &operator) {
            return Ok(false);
        }
        let bias = operator.bias.and_then(|slot| node.input.get(slot)).filter(|name| !name.is_empty());
        let bias = match bias.map(|name| (name, self.bias_scale(node))) {
            Some((_, None)) => return Ok(false),
            Some((name, Some(scale))) => Some((name, scale)),
            None => None,
        };

        self.stands_for(node, declared, |list| {
            let mut inputs = vec![];
            for (i, slot) in operator.codes.iter().enumerate() {
                let from: Vec<&str> = node.input[*slot..].iter().take(3).map(|name| &name[..]).collect();
                let axis = if i == 1 { vec![listing::int("axis", operator.channels)] } else { vec![] };
                inputs.push(list.with("DequantizeLinear", &from, axis));
            }
            if let Some((bias, scale)) = bias {
                let scale = list.constant(scale);
                inputs.push(list.with("DequantizeLinear", &[bias, &scale], vec![listing::int("axis", 0)]));
            }
            let inputs: Vec<&str> = inputs.iter().map(|name| &name[..]).collect();
            let attributes = node.attribute.iter().filter(|a| standard || !is_own(a)).cloned().collect();
            let float = list.with(operator.float, &inputs, attributes);
            list.keeps_name();
            let [scale, zero] = [&node.input[operator.result], &node.input[operator.result + 1]];
            let codes = list.op("QuantizeLinear", &[&float, scale, zero]);
            list.result(0, &codes);
            Some(())
        })
    }

    /// The constant that a node reads at `slot`.
    fn constant_of(&self, node: &NodeProto, slot: usize) -> Option<&Tensor> {
        let port = self.values.get(node.input.get(slot)?).copied().flatten()?;
        self.graph.constant(port)
    }

    /// Whether the second operand of `node` is a weight that is multiplied in integers.
    fn has_centred_weight(&self, node: &NodeProto, operator: &QOperator) -> bool {
        let x = self.values.get(&node.input[0]).copied().flatten();
        if x.is_none_or(|x| self.graph.fact(x).rank().is_none() || self.graph.constant(x).is_some()) {
            return false;
        }
        let constant = |slot| self.constant_of(node, slot);
        let parameters = [1, 2, 4, 5, operator.result, operator.result + 1].map(constant);
        let [_, _, Some(scale), Some(zeros), ..] = parameters else { return false };
        let Some(weight) = constant(3).filter(|_| parameters.iter().all(Option::is_some)) else { return false };
        let centre = match weight.dtype() {
            DType::I8 => 0,
            DType::U8 => 128,
            _ => return false,
        };
        let shape = weight.shape();
        let along = shape.get(operator.channels as usize);
        let per_output = scale.len() == 1 || scale.shape().len() == 1 && along == Some(&scale.len());
        let rank = if operator.float == "Conv" { 4 } else { 2 };
        shape.len() == rank && per_output && zeros.as_i64().is_some_and(|z| z.iter().all(|z| *z == centre))
    }

    /// The scale of a bias in units of the sums that it is added to.
    fn bias_scale(&self, node: &NodeProto) -> Option<Tensor> {
        let alpha = node.attribute.iter().find(|a| a.name == "alpha").map_or(1.0, |a| a.f);
        let scale = |slot| self.constant_of(node, slot).filter(|t| t.dtype() == DType::F32);
        let (x, w) = (scale(1)?.as_f32()?, scale(4)?.as_f32()?);
        let [x] = x[..] else { return None };
        let scales: Vec<f32> = w.iter().map(|w| alpha * (x * w)).collect();
        let shape: &[usize] = if scales.len() == 1 { &[] } else { &[scales.len()] };
        Some(Tensor::f32(shape, &scales))
    }
}
