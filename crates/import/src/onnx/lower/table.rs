//! Which rule lowers which op.

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::{
    arithmetic, attention, bits, cache, contrib, contrib_attention, contrib_quantised, create,
    gather_quantised, group_query_attention, images, index, integer_products, linear_attention,
    losses, matrix, norm, quantised, quantised_experts, recurrent, reduce, regions, resize, rotary,
    shape, spectral, windowed,
};

/// Lowers one node.
pub(super) type Rule = fn(&mut OnnxLowering<'_>, &Call<'_>) -> Results;

/// The rule for an op. The op is prefixed by its domain unless that is the default domain.
pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        // arithmetic
        "Add" | "Sub" | "Mul" | "Div" | "Mod" => arithmetic::binary,
        "Pow" => arithmetic::pow,
        "Max" | "Min" | "Sum" | "Mean" => arithmetic::many,
        "Neg" | "Abs" | "Sign" => arithmetic::unary,
        "Exp" | "Log" | "Sqrt" | "Reciprocal" | "Sin" | "Cos" | "Erf" => arithmetic::unary,
        "Floor" | "Ceil" | "Round" => arithmetic::unary,
        "Tan" | "Asin" | "Acos" | "Atan" | "Sinh" | "Cosh" | "Asinh" | "Acosh" | "Atanh" => {
            arithmetic::unary
        }
        "Not" => arithmetic::not,
        "Relu" | "Sigmoid" | "Tanh" => arithmetic::activation,
        "Swish" | "com.microsoft::QuickGelu" => arithmetic::swish,
        "Gelu" | "com.microsoft::Gelu" | "com.microsoft::FastGelu" => arithmetic::gelu,
        "LeakyRelu" | "Elu" | "Selu" | "Celu" | "Softplus" | "HardSigmoid" | "HardSwish"
        | "Mish" | "Softsign" | "ThresholdedRelu" => arithmetic::composed,
        "SwiGLU" => arithmetic::swi_glu,
        "Shrink" => arithmetic::shrink,
        "PRelu" => arithmetic::prelu,
        "Clip" => arithmetic::clip,
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => arithmetic::compare,
        "And" | "Or" | "Xor" => arithmetic::logic,
        "IsNaN" | "IsInf" => arithmetic::is_special,
        "Where" => arithmetic::choose,
        "Cast" | "CastLike" => arithmetic::cast,
        "Identity" => arithmetic::identity,
        "Dropout" => arithmetic::dropout,

        // bits
        "BitShift" => bits::shift,
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" => bits::binary,
        "BitwiseNot" => bits::not,
        "BitCast" => bits::cast,

        // shape
        "Reshape" => shape::reshape,
        "Flatten" => shape::flatten,
        "Squeeze" => shape::squeeze,
        "Unsqueeze" => shape::unsqueeze,
        "Transpose" => shape::transpose,
        "Expand" => shape::expand,
        "Tile" => shape::tile,
        "Concat" => shape::concat,
        "Split" => shape::split,
        "Slice" => shape::slice,
        "Pad" => shape::pad,
        "ReverseSequence" => shape::reverse_sequence,

        // create
        "Constant" => create::constant,
        "ConstantOfShape" => create::constant_of_shape,
        "Shape" => create::shape,
        "Size" => create::size,
        "Range" => create::range,
        "Trilu" => create::trilu,
        "EyeLike" => create::eye_like,

        // index
        "Gather" => index::gather,
        "GatherElements" => index::gather_elements,
        "GatherND" => index::gather_nd,
        "OneHot" => index::one_hot,
        "TopK" => index::top_k,
        "Compress" => index::compress,
        "NonZero" => index::non_zero,
        "Unique" => index::unique,
        "NonMaxSuppression" => index::non_max_suppression,
        "ScatterND" => index::scatter_nd,
        "ScatterElements" | "Scatter" => index::scatter_elements,

        // reduce
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1"
        | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceSumSquare" => reduce::reduce,
        "ArgMax" | "ArgMin" => reduce::arg,
        "CumSum" => reduce::cum_sum,
        "CumProd" => reduce::cum_prod,
        "Hardmax" => reduce::hardmax,
        "LpNormalization" => reduce::lp_normalization,
        "MeanVarianceNormalization" => reduce::mean_variance,
        "Det" => reduce::determinant,
        "Softmax" | "LogSoftmax" => reduce::softmax,

        // norm
        "LayerNormalization" => norm::layer_norm,
        "RMSNormalization"
        | "com.microsoft::SimplifiedLayerNormalization"
        | "SimplifiedLayerNormalization" => norm::rms_norm,
        "com.microsoft::SkipSimplifiedLayerNormalization"
        | "com.microsoft::SkipLayerNormalization" => norm::skip,

        "BatchNormalization" => norm::batch_norm,
        "InstanceNormalization" | "GroupNormalization" => norm::group_norm,
        "LRN" => norm::local_response,

        // losses
        "NegativeLogLikelihoodLoss" => losses::negative_log_likelihood,
        "SoftmaxCrossEntropyLoss" => losses::softmax_cross_entropy,

        // recurrent
        "RNN" | "GRU" | "LSTM" | "com.microsoft::DynamicQuantizeLSTM" => recurrent::recurrent,
        "LinearAttention" => linear_attention::attention,
        "CausalConvWithState" => linear_attention::causal_conv,

        // signals
        "DFT" => spectral::dft,
        "STFT" => spectral::stft,
        "HannWindow" | "HammingWindow" | "BlackmanWindow" => spectral::window,
        "MelWeightMatrix" => spectral::mel_weights,

        // windows
        "Conv" | "ConvTranspose" => windowed::conv,
        "MaxPool" | "AveragePool" | "LpPool" => windowed::pool,
        "GlobalMaxPool" | "GlobalAveragePool" | "GlobalLpPool" => windowed::global_pool,
        "DepthToSpace" | "SpaceToDepth" => windowed::depth_to_space,
        "Resize" | "Upsample" => resize::resize,
        "GridSample" => windowed::grid_sample,

        // regions
        "CenterCropPad" => images::center_crop_pad,
        "AffineGrid" => images::affine_grid,
        "Col2Im" => images::col2im,
        "MaxUnpool" => images::max_unpool,
        "RoiAlign" => regions::roi_align,
        "DeformConv" => regions::deform_conv,

        // matrix
        "MatMul" => matrix::mat_mul,
        "Einsum" => matrix::einsum,
        "Gemm" => matrix::gemm,
        "com.microsoft::MatMulNBits" => matrix::mat_mul_nbits,
        "com.microsoft::QMoE" => quantised_experts::experts,
        "com.microsoft::GatherBlockQuantized" => gather_quantised::gather,

        // quantised
        "DequantizeLinear" => quantised::dequantize,
        "QuantizeLinear" => quantised::quantize,
        "DynamicQuantizeLinear" => integer_products::dynamic_quantize,
        "MatMulInteger" => integer_products::mat_mul_integer,
        "ConvInteger" => integer_products::conv_integer,
        "QLinearMatMul" => integer_products::q_linear_mat_mul,
        "QLinearConv" => integer_products::q_linear_conv,

        // attention
        "Attention" => attention::attention,
        "com.microsoft::GroupQueryAttention" => group_query_attention::attention,
        "com.microsoft::MultiHeadAttention" => contrib_attention::multi_head,
        "com.microsoft::Attention" => contrib_attention::packed,
        "RotaryEmbedding" => rotary::rotary,
        "com.microsoft::RotaryEmbedding" => rotary::rotary_contrib,
        "TensorScatter" => cache::tensor_scatter,

        // ONNX Runtime's fused ops
        "com.microsoft::EmbedLayerNormalization" => contrib::embed_layer_norm,
        "com.microsoft::BiasGelu" => contrib::bias_gelu,
        "com.microsoft::FusedMatMul" => contrib::fused_mat_mul,
        "com.microsoft::MatMulIntegerToFloat" => contrib::mat_mul_integer_to_float,
        "com.microsoft::QLinearAdd" | "com.microsoft::QLinearMul" => contrib_quantised::binary,
        "com.microsoft::QLinearSigmoid" | "com.microsoft::QLinearLeakyRelu" => {
            contrib_quantised::activation
        }
        "com.microsoft::QLinearSoftmax" => contrib_quantised::softmax,
        "com.microsoft::QLinearGlobalAveragePool" => contrib_quantised::global_average,
        "com.microsoft::QLinearConcat" => contrib_quantised::concat,
        "com.microsoft::DynamicQuantizeMatMul" => contrib::dynamic_quantize_mat_mul,
        _ => return None,
    })
}

/// Whether all integers of an op's results are integers of its operands, or are in the range of their type for another reason.
/// Results of all other ops wrap.
pub(super) fn keeps_range(op: &str) -> bool {
    matches!(
        op,
        "Max"
            | "Min"
            | "Sign"
            | "Relu"
            | "Clip"
            | "Where"
            | "Identity"
            | "Dropout"
            | "Reshape"
            | "Flatten"
            | "Squeeze"
            | "Unsqueeze"
            | "Transpose"
            | "Expand"
            | "Tile"
            | "Concat"
            | "Split"
            | "Slice"
            | "Pad"
            | "Constant"
            | "ConstantOfShape"
            | "Trilu"
            | "EyeLike"
            | "Gather"
            | "GatherElements"
            | "GatherND"
            | "OneHot"
            | "TopK"
            | "ReduceMax"
            | "ReduceMin"
            | "MaxPool"
            | "GlobalMaxPool"
            | "DepthToSpace"
            | "SpaceToDepth"
            | "QuantizeLinear"
            | "DynamicQuantizeLinear"
            | "QLinearMatMul"
            | "QLinearConv"
            | "com.microsoft::QLinearAdd"
            | "com.microsoft::QLinearMul"
            | "com.microsoft::QLinearSigmoid"
            | "com.microsoft::QLinearLeakyRelu"
            | "com.microsoft::QLinearGlobalAveragePool"
            | "com.microsoft::QLinearConcat"
            | "com.microsoft::QLinearSoftmax"
            | "ReverseSequence"
            | "Compress"
            | "NonZero"
            | "NonMaxSuppression"
            | "Unique"
            | "CenterCropPad"
            | "BitwiseAnd"
            | "BitwiseOr"
            | "BitwiseXor"
            | "TensorScatter"
    )
}
