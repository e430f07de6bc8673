//! Which rule lowers which op.

use super::call::Call;
use super::context::{OnnxLowering, Results};
use super::{
    arithmetic, attention, cache, create, group_query_attention, index, matrix, norm, quantised,
    reduce, rotary, shape, windowed,
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
        "Not" => arithmetic::not,
        "Relu" | "Sigmoid" | "Tanh" => arithmetic::activation,
        "Swish" | "com.microsoft::QuickGelu" => arithmetic::swish,
        "Gelu" | "com.microsoft::Gelu" | "com.microsoft::FastGelu" => arithmetic::gelu,
        "LeakyRelu" | "Elu" | "Selu" | "Celu" | "Softplus" | "HardSigmoid" | "HardSwish"
        | "Mish" => arithmetic::composed,
        "PRelu" => arithmetic::prelu,
        "Clip" => arithmetic::clip,
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => arithmetic::compare,
        "And" | "Or" | "Xor" => arithmetic::logic,
        "IsNaN" | "IsInf" => arithmetic::is_special,
        "Where" => arithmetic::choose,
        "Cast" | "CastLike" => arithmetic::cast,
        "Identity" => arithmetic::identity,
        "Dropout" => arithmetic::dropout,

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
        "ScatterND" => index::scatter_nd,
        "ScatterElements" | "Scatter" => index::scatter_elements,

        // reduce
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1"
        | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceSumSquare" => reduce::reduce,
        "ArgMax" | "ArgMin" => reduce::arg,
        "CumSum" => reduce::cum_sum,
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

        // windows
        "Conv" | "ConvTranspose" => windowed::conv,
        "MaxPool" | "AveragePool" => windowed::pool,
        "GlobalMaxPool" | "GlobalAveragePool" => windowed::global_pool,
        "DepthToSpace" | "SpaceToDepth" => windowed::depth_to_space,
        "Resize" | "Upsample" => windowed::resize,
        "GridSample" => windowed::grid_sample,

        // matrix
        "MatMul" => matrix::mat_mul,
        "Gemm" => matrix::gemm,
        "com.microsoft::MatMulNBits" => matrix::mat_mul_nbits,

        // quantised
        "DequantizeLinear" => quantised::dequantize,
        "QuantizeLinear" => quantised::quantize,

        // attention
        "Attention" => attention::attention,
        "com.microsoft::GroupQueryAttention" => group_query_attention::attention,
        "RotaryEmbedding" => rotary::rotary,
        "com.microsoft::RotaryEmbedding" => rotary::rotary_contrib,
        "TensorScatter" => cache::tensor_scatter,
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
            | "TensorScatter"
    )
}
