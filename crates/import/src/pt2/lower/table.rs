//! Which rule lowers which ATen op.

use graph::TensorId;

use super::call::Call;
use super::context::Pt2Lowering;
use super::op_traits;
use super::{
    arithmetic, attention, complex, create, functions, index, matrix, pads, quantised, recurrent,
    reduce, resize, shape, windowed, write,
};

/// Lowers one node. Returns the results in the op's order, or the reason why the node cannot be lowered.
pub(super) type Rule = fn(&mut Pt2Lowering<'_>, &Call<'_>) -> Result<Vec<TensorId>, String>;

/// The rule for an op, by PyTorch's name without `torch.ops.`.
pub(super) fn rule(op: &str) -> Option<Rule> {
    let (namespace, rest) = op.split_once('.')?;
    let (name, overload) = rest.rsplit_once('.')?;
    match (namespace, name) {
        ("kvcache", "update_and_attend") => return Some(attention::update_and_attend),
        ("torchao" | "quantized_decomposed" | "quant", "dequantize_affine") => {
            return Some(quantised::dequantize_affine);
        }
        ("aten", _) => {}
        _ => return None,
    }
    Some(match name {
        // arithmetic
        "add" => arithmetic::add,
        "sub" | "subtract" => arithmetic::sub,
        "rsub" => arithmetic::rsub,
        "mul" | "multiply" => arithmetic::mul,
        "div" | "divide" | "true_divide" => arithmetic::div,
        "floor_divide" => arithmetic::floor_divide,
        "remainder" => arithmetic::remainder,
        "pow" => arithmetic::pow,
        "square" => arithmetic::square,
        "maximum" => arithmetic::maximum,
        "minimum" => arithmetic::minimum,
        "max" if overload == "other" => arithmetic::maximum,
        "min" if overload == "other" => arithmetic::minimum,
        "clamp" | "clip" | "clamp_min" | "clamp_max" | "hardtanh" | "relu6" => arithmetic::clamp,
        "addcmul" => arithmetic::addcmul,
        "addcdiv" => arithmetic::addcdiv,
        "lerp" => arithmetic::lerp,
        "neg" | "negative" | "abs" | "absolute" | "sign" | "sgn" => arithmetic::unary,
        "exp" | "log" | "sqrt" | "rsqrt" | "reciprocal" | "sin" | "cos" | "erf" | "log1p"
        | "expm1" => arithmetic::unary,
        "tan" | "asin" | "arcsin" | "acos" | "arccos" | "atan" | "arctan" | "sinh" | "cosh"
        | "asinh" | "arcsinh" | "acosh" | "arccosh" | "atanh" | "arctanh" => arithmetic::unary,
        "fmod"
        | "atan2"
        | "arctan2"
        | "bitwise_left_shift"
        | "__lshift__"
        | "bitwise_right_shift"
        | "__rshift__" => functions::binary,
        "fmax" | "fmin" => functions::number_of_two,
        "isfinite" => functions::is_finite,
        "nan_to_num" => functions::nan_to_num,
        "frac" | "threshold" | "hardshrink" | "softshrink" | "logit" | "deg2rad" | "rad2deg" => {
            functions::composed
        }
        "floor" | "ceil" | "round" => arithmetic::unary,
        "log2" | "log10" | "exp2" | "trunc" | "fix" | "log_sigmoid" => arithmetic::composed,
        "prelu" | "_prelu_kernel" => arithmetic::prelu,
        "logical_not" => arithmetic::not,
        "bitwise_not" => arithmetic::not,
        "relu" | "silu" | "tanh" | "sigmoid" => arithmetic::activation,
        "gelu" => arithmetic::gelu,
        "leaky_relu" => arithmetic::leaky_relu,
        "elu" | "selu" | "celu" => arithmetic::elu,
        "softplus" => arithmetic::softplus,
        "mish" => arithmetic::mish,
        "hardsigmoid" => arithmetic::hardsigmoid,
        "hardswish" => arithmetic::hardswish,
        "glu" => arithmetic::glu,
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "not_equal" | "less" | "less_equal"
        | "greater" | "greater_equal" => arithmetic::compare,
        "logical_and" | "logical_or" | "logical_xor" => arithmetic::logic,
        "bitwise_and" | "bitwise_or" | "bitwise_xor" | "__and__" | "__or__" | "__xor__" => {
            arithmetic::logic
        }
        "isnan" => arithmetic::isnan,
        "isinf" => arithmetic::isinf,
        "where" => arithmetic::choose,
        "masked_fill" => arithmetic::masked_fill,
        "to" | "_to_copy" | "type_as" | "float" | "_cast_Float" => arithmetic::convert,
        "dropout" | "feature_dropout" | "alpha_dropout" => arithmetic::dropout,
        "clone" | "contiguous" | "detach" | "detach_" | "alias" | "lift" | "lift_fresh"
        | "lift_fresh_copy" | "positive" | "resolve_conj" | "resolve_neg" => arithmetic::identity,

        // shape
        "view" | "_unsafe_view" | "_reshape_alias" | "reshape" | "flatten" | "ravel"
        | "unflatten" | "unsqueeze" | "squeeze" | "view_as" | "reshape_as" | "view_copy" => {
            shape::reshape
        }
        _ if op_traits::PERMUTATIONS.contains(&name) => shape::permute,
        _ if op_traits::EXPANSIONS.contains(&name) => shape::expand,
        "repeat" | "tile" => shape::repeat,
        "repeat_interleave" if overload == "self_int" => shape::repeat_interleave,
        "cat" | "concat" | "concatenate" => shape::cat,
        "stack" => shape::stack,
        _ if op_traits::SPLITS.contains(&name) => shape::split,
        "unbind" => shape::unbind,
        "slice" => shape::slice,
        "narrow" => shape::narrow,
        "select" => shape::select,
        "flip" => shape::flip,
        "roll" => shape::roll,
        "pad" | "constant_pad_nd" => shape::pad,
        "diff" => shape::diff,
        "reflection_pad1d" | "reflection_pad2d" | "reflection_pad3d" => pads::reflect,
        "replication_pad1d" | "replication_pad2d" | "replication_pad3d" => pads::replicate,
        "diagonal" => pads::diagonal,
        "cdist" | "_cdist_forward" => pads::cdist,
        "masked_scatter" => pads::masked_scatter,
        "bucketize" | "searchsorted" => pads::bucketize,

        // reduce
        "sum" => reduce::sum,
        "mean" => reduce::mean,
        "amax" | "amin" => reduce::extreme,
        "max" | "min" => reduce::extreme_with_index,
        "argmax" | "argmin" => reduce::arg,
        "prod" => reduce::prod,
        "any" | "all" => reduce::truth,
        "var" | "std" => reduce::variance,
        "var_mean" | "std_mean" => reduce::variance_and_mean,
        "aminmax" => reduce::extremes,
        "count_nonzero" => reduce::count_nonzero,
        "norm" | "linalg_vector_norm" => reduce::norm,
        "logsumexp" => reduce::logsumexp,
        "cumsum" => reduce::cumsum,
        "softmax" | "_softmax" | "log_softmax" | "_log_softmax" => reduce::softmax,
        "layer_norm" => reduce::layer_norm,
        "native_layer_norm" => reduce::layer_norm,
        "rms_norm" | "_fused_rms_norm" => reduce::rms_norm,
        "group_norm" | "native_group_norm" => reduce::group_norm,
        "instance_norm" => reduce::instance_norm,
        "batch_norm" | "_native_batch_norm_legit_no_training" => reduce::batch_norm,
        "_native_batch_norm_legit" => reduce::batch_norm_by_batch,

        // matrix
        "linear" => matrix::linear,
        "matmul" | "mm" | "bmm" | "mv" | "dot" => matrix::matmul,
        "addmm" | "baddbmm" => matrix::addmm,
        "outer" | "ger" => matrix::outer,
        "einsum" => matrix::einsum,

        // windows
        "conv1d" | "conv2d" | "conv3d" | "convolution" => windowed::convolution,
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => windowed::convolution,
        "max_pool1d" | "max_pool2d" | "max_pool3d" => windowed::max_pool,
        "max_pool2d_with_indices" | "max_pool3d_with_indices" => windowed::max_pool,
        "avg_pool1d" | "avg_pool2d" | "avg_pool3d" => windowed::avg_pool,
        "adaptive_avg_pool1d" | "adaptive_avg_pool2d" | "adaptive_avg_pool3d" => {
            windowed::adaptive_pool
        }
        "_adaptive_avg_pool2d" | "_adaptive_avg_pool3d" => windowed::adaptive_pool,
        "adaptive_max_pool1d" | "adaptive_max_pool2d" | "adaptive_max_pool3d" => {
            windowed::adaptive_pool
        }
        "im2col" => windowed::im2col,
        "unfold" => windowed::unfold,
        "pixel_shuffle" | "pixel_unshuffle" | "channel_shuffle" => windowed::shuffle,
        "_weight_norm" => windowed::weight_norm,
        "upsample_nearest1d" | "upsample_nearest2d" | "upsample_nearest3d" => resize::upsample,
        "_upsample_nearest_exact1d" | "_upsample_nearest_exact2d" => resize::upsample,
        "upsample_linear1d" | "upsample_bilinear2d" | "upsample_trilinear3d" => resize::upsample,
        "upsample_bicubic2d" => resize::upsample,
        "grid_sampler" | "grid_sampler_2d" | "grid_sampler_3d" => resize::grid_sampler,

        // recurrent
        "lstm" | "gru" | "rnn_tanh" | "rnn_relu" => recurrent::recurrent,

        // attention
        "scaled_dot_product_attention" => attention::scaled_dot_product,

        // complex
        "view_as_complex" | "view_as_real" | "complex" | "polar" | "real" | "imag" | "angle"
        | "conj" | "_conj" | "conj_physical" | "_conj_physical" => complex::on_reals,

        // index
        "embedding" => index::embedding,
        "embedding_bag" | "_embedding_bag" | "_embedding_bag_forward_only" => index::embedding_bag,
        "as_strided" => index::as_strided,
        "index_select" => index::index_select,
        "gather" => index::gather,
        "take_along_dim" => index::gather,
        "index" => index::index,
        "one_hot" => index::one_hot,

        // write
        "topk" => write::topk,
        "sort" | "argsort" => write::sort,
        "index_put" | "_unsafe_index_put" => write::index_put,
        "scatter" | "scatter_add" | "scatter_reduce" => write::scatter,
        "index_copy" | "index_add" | "index_fill" => write::index_write,
        "slice_scatter" | "select_scatter" => write::slice_scatter,
        "copy" => write::copy,

        // create
        "arange" => create::arange,
        "linspace" => create::linspace,
        "eye" => create::eye,
        "meshgrid" => create::meshgrid,
        "zeros" | "zeros_like" | "new_zeros" | "empty" | "empty_like" | "new_empty" | "zero" => {
            create::zeros
        }
        "ones" | "ones_like" | "new_ones" => create::ones,
        "full" | "full_like" | "new_full" | "scalar_tensor" | "fill" => create::full,
        "triu" | "tril" => create::triangle,
        _ => return None,
    })
}
