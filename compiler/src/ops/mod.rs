//! One file an operator, or a family that differs in one word: attributes, reading, inference,
//! facets. `docs/adding-an-op.md` shows how to add one.

use crate::{
    attr::Reader,
    error::{Error, Result},
    op::Op,
};

pub mod activation;
pub mod arg;
pub mod attention;
pub mod batch_norm;
pub mod binary;
pub mod cast;
pub mod clip;
pub mod concat;
pub mod control;
pub mod conv;
pub mod conv_transpose;
pub mod crop;
pub mod cumulative;
pub mod deform_conv;
pub mod dynamic_lstm;
pub mod einsum;
pub mod expand;
pub mod find;
pub mod flex_attention;
pub mod gather;
pub mod gather_blocks;
pub mod gemm;
pub mod grid;
pub mod group_norm;
pub mod group_query_attention;
pub mod identity;
pub mod integer;
pub mod layer_norm;
pub mod linear_attention;
pub mod loss;
pub mod lrn;
pub mod matmul;
pub mod matmul_nbits;
pub mod max_unpool;
pub mod normalize;
pub mod one_hot;
pub mod opaque;
pub mod pad;
pub mod pool;
pub mod quantize;
pub mod range;
pub mod recurrent;
pub mod reduce;
pub mod reshape;
pub mod resize;
pub mod roi;
pub mod rotary_embedding;
pub mod scatter;
pub mod select;
pub mod shape;
pub mod signal;
pub mod slice;
pub mod softmax;
pub mod source;
pub mod space;
pub mod split;
pub mod squeeze;
pub mod swiglu;
pub mod tfidf;
pub mod tile;
pub mod top_k;
pub mod transpose;
pub mod unary;
pub mod variadic;
pub mod window;

/// Reads the operator that `r` holds: the one table from ONNX names to files.
pub(crate) fn read(r: &mut Reader) -> Result<Op> {
    if r.opset < 7 && old_form(&r.op_type, r.opset) {
        return Err(Error::unsupported(format!("{} of opset {}", r.op_type, r.opset)));
    }
    Ok(match r.op_type.as_str() {
        "Conv" => conv::Conv::read(r)?.into(),
        "ConvTranspose" => conv_transpose::ConvTranspose::read(r)?.into(),
        "MaxPool" | "AveragePool" | "LpPool" => pool::Pool::read(r)?.into(),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => pool::GlobalPool::read(r)?.into(),
        "MaxUnpool" => max_unpool::MaxUnpool::read(r)?.into(),
        "DeformConv" => deform_conv::DeformConv::read(r)?.into(),
        "ConvInteger" | "QLinearConv" => integer::IntegerConv::read(r)?.into(),
        "MatMulInteger" | "QLinearMatMul" => integer::IntegerMatMul::read(r).into(),
        "DynamicQuantizeLinear" => integer::DynamicQuantize.into(),
        "BatchNormalization" => batch_norm::BatchNorm::read(r)?.into(),
        "LayerNormalization" => layer_norm::LayerNorm::read(r)?.into(),
        "RMSNormalization" => layer_norm::RmsNorm::read(r)?.into(),
        "GroupNormalization" => group_norm::GroupNorm::read(r)?.into(),
        "InstanceNormalization" => group_norm::InstanceNorm::read(r)?.into(),
        "LRN" => lrn::Lrn::read(r)?.into(),
        "Attention" => attention::Attention::read(r)?.into(),
        "ai.onnx.preview.FlexAttention" => flex_attention::FlexAttention::read(r)?.into(),
        "com.microsoft.GroupQueryAttention" => group_query_attention::GroupQueryAttention::read(r)?.into(),
        "RotaryEmbedding" => rotary_embedding::RotaryEmbedding::read(r)?.into(),
        "LinearAttention" => linear_attention::LinearAttention::read(r)?.into(),
        "CausalConvWithState" => linear_attention::CausalConv::read(r)?.into(),
        "RNN" | "GRU" | "LSTM" => recurrent::Recurrent::read(r)?.into(),
        "com.microsoft.DynamicQuantizeLSTM" => dynamic_lstm::DynamicLstm::read(r)?.into(),
        "Gemm" => gemm::Gemm::read(r)?.into(),
        "MatMul" => matmul::MatMul.into(),
        "LeakyRelu" | "Elu" | "HardSigmoid" | "Gelu" | "Selu" | "Celu" | "ThresholdedRelu" | "Swish" | "Shrink" => {
            activation::Activation::read(r)?.into()
        }
        "IsInf" => unary::IsInf::read(r)?.into(),
        "Mod" => binary::Mod::read(r)?.into(),
        "BitShift" => binary::BitShift::read(r)?.into(),
        "Sum" | "Mean" | "Max" | "Min" => variadic::Variadic::read(r)?,
        "SwiGLU" => swiglu::SwiGlu::read(r)?.into(),
        "ArgMax" | "ArgMin" => arg::Arg::read(r)?.into(),
        "CumSum" | "CumProd" => cumulative::Cumulative::read(r)?.into(),
        "LpNormalization" => normalize::LpNorm::read(r)?.into(),
        "MeanVarianceNormalization" => normalize::MeanVarianceNorm::read(r)?.into(),
        "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss" => loss::Loss::read(r)?.into(),
        "Clip" => clip::Clip::read(r)?.into(),
        "Softmax" | "LogSoftmax" | "Hardmax" => softmax::Softmax::read(r)?.into(),
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceSumSquare" => reduce::Reduce::read(r)?.into(),
        "Identity" => identity::Identity.into(),
        "Dropout" => identity::Dropout::read(r)?.into(),
        "Cast" => cast::Cast::read(r)?.into(),
        "CastLike" => cast::CastLike::read(r)?.into(),
        "BitCast" => cast::BitCast::read(r)?.into(),
        "Where" => select::Where.into(),
        "Reshape" => reshape::Reshape::read(r)?.into(),
        "Flatten" => reshape::Flatten::read(r)?.into(),
        "Squeeze" => squeeze::Squeeze::read(r)?.into(),
        "Unsqueeze" => squeeze::Unsqueeze::read(r)?.into(),
        "Transpose" => transpose::Transpose::read(r)?.into(),
        "Concat" => concat::Concat::read(r)?.into(),
        "Split" => split::Split::read(r)?.into(),
        "Slice" => slice::Slice::read(r)?.into(),
        "Gather" => gather::Gather::read(r)?.into(),
        "GatherElements" => gather::GatherElements::read(r)?.into(),
        "GatherND" => gather::GatherNd::read(r)?.into(),
        "ScatterND" => scatter::ScatterNd::read(r)?.into(),
        "ScatterElements" | "Scatter" => scatter::ScatterElements::read(r)?.into(),
        "TensorScatter" => scatter::TensorScatter::read(r)?.into(),
        "OneHot" => one_hot::OneHot::read(r)?.into(),
        "EyeLike" => one_hot::EyeLike::read(r)?.into(),
        "Trilu" => one_hot::Trilu::read(r)?.into(),
        "Tile" => tile::Tile.into(),
        "NonZero" => find::NonZero.into(),
        "Compress" => find::Compress::read(r)?.into(),
        "Unique" => find::Unique::read(r)?.into(),
        "TopK" => top_k::TopK::read(r)?.into(),
        "DepthToSpace" => space::DepthToSpace::read(r)?.into(),
        "SpaceToDepth" => space::SpaceToDepth::read(r)?.into(),
        "Col2Im" => space::Col2Im::read(r)?.into(),
        "CenterCropPad" => crop::CenterCropPad::read(r)?.into(),
        "ReverseSequence" => crop::ReverseSequence::read(r)?.into(),
        "Einsum" => einsum::Einsum::read(r)?.into(),
        "Det" => einsum::Det.into(),
        "NonMaxSuppression" => roi::NonMaxSuppression::read(r)?.into(),
        "RoiAlign" => roi::RoiAlign::read(r)?.into(),
        "MaxRoiPool" => roi::MaxRoiPool::read(r)?.into(),
        "GridSample" => grid::GridSample::read(r)?.into(),
        "AffineGrid" => grid::AffineGrid::read(r)?.into(),
        "HannWindow" | "HammingWindow" | "BlackmanWindow" => signal::SignalWindow::read(r)?.into(),
        "DFT" => signal::Dft::read(r)?.into(),
        "STFT" => signal::Stft::read(r)?.into(),
        "TfIdfVectorizer" => tfidf::TfIdf::read(r)?.into(),
        "MelWeightMatrix" => signal::MelWeightMatrix::read(r)?.into(),
        "Pad" => pad::Pad::read(r)?.into(),
        "Expand" => expand::Expand.into(),
        "ConstantOfShape" => expand::ConstantOfShape::read(r)?.into(),
        "Range" => range::Range::read(r)?.into(),
        "Resize" | "Upsample" => resize::Resize::read(r)?.into(),
        "Shape" => shape::Shape::read(r)?.into(),
        "Size" => shape::Size.into(),
        "QuantizeLinear" => quantize::Quantize::read(r)?.into(),
        "DequantizeLinear" => quantize::Dequantize::read(r)?.into(),
        "If" => control::If::read(r)?.into(),
        "Loop" => control::Loop::read(r)?.into(),
        "Scan" => control::Scan::read(r)?.into(),
        name => match (unary::Unary::from_name(name), binary::Binary::from_name(name)) {
            (Some(op), _) => op.into(),
            (None, Some(op)) => op.read(r)?.into(),
            (None, None) => return Err(Error::unsupported(format!("operator {name}"))),
        },
    })
}

/// Whether an operator meant something else in an opset below 7 than what is read here.
fn old_form(op_type: &str, opset: i64) -> bool {
    let until_6 = ["Cast", "Concat", "Pad", "Reshape", "Selu", "Split", "Tile", "LpPool", "GlobalLpPool"];
    op_type == "Upsample" || (opset < 6 && until_6.contains(&op_type))
}
