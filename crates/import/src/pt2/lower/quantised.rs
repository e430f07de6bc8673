//! torchao's weight-only quantisation: integers with a scale and zero point for each block.

use base::DType;
use graph::TensorId;

use super::call::Call;
use super::context::Pt2Lowering;
use super::quantised_matrix::QuantisedMatrix;
use crate::pt2::tensor::Pt2Tensor;

type Results = Result<Vec<TensorId>, String>;

/// The elements of a small stored tensor as f32.
fn reals(stored: &Pt2Tensor) -> Result<Vec<f32>, String> {
    let (dtype, data) = stored.computed()?;
    let value = graph::Data::from_bytes(dtype, &data, stored.len());
    match value {
        Some(graph::Data::F32(list)) => Ok(list),
        Some(graph::Data::I64(list)) => Ok(list.into_iter().map(|n| n as f32).collect()),
        Some(graph::Data::I32(list)) => Ok(list.into_iter().map(|n| n as f32).collect()),
        _ => Err(format!(
            "has scales or zero points of type {}",
            stored.type_name()
        )),
    }
}

pub(super) fn dequantize_affine(lower: &mut Pt2Lowering<'_>, call: &Call<'_>) -> Results {
    let stored = |name: &str| -> Result<Option<&Pt2Tensor>, String> {
        let Some(name) = call.maybe_tensor(name)? else {
            return Ok(None);
        };
        let found = lower.stored(name);
        let found = found
            .ok_or_else(|| format!("{name} is computed; only stored weights are supported"))?;
        Ok(Some(found))
    };
    let integers = stored("input")?.ok_or("has no input")?;
    let scales = stored("scale")?.ok_or("has no scale")?;
    let zeros = stored("zero_point")?;
    let &[rows, depth] = &integers.shape[..] else {
        return Err("only matrices are supported".into());
    };
    if integers.type_name() != "i8" {
        let name = integers.type_name();
        return Err(format!(
            "integers of type {name} are not supported, only i8"
        ));
    }
    let block = call.ints("block_size")?.unwrap_or_default();
    let block: Vec<usize> = block
        .iter()
        .filter_map(|n| usize::try_from(*n).ok())
        .collect();
    let &[high, wide] = &block[..] else {
        return Err("its block_size must have two numbers".into());
    };
    if high == 0 || wide == 0 || !rows.is_multiple_of(high) || !depth.is_multiple_of(wide) {
        return Err(format!(
            "blocks of {block:?} do not divide [{rows}, {depth}]"
        ));
    }
    let count = (rows / high) * (depth / wide);
    let scales = reals(scales)?;
    let zeros = match zeros {
        Some(zeros) => reals(zeros)?,
        None => vec![0.0; count],
    };
    if scales.len() != count || zeros.len() != count {
        return Err(format!("has {} scales for {count} blocks", scales.len()));
    }
    let weights = QuantisedMatrix {
        integers: &integers.data,
        rows,
        depth,
        block: [high, wide],
        scales,
        zeros,
    };
    let range = [call.int("quant_min", -128)?, call.int("quant_max", 127)?];
    let format = weights.format(range).filter(|_| {
        let name = call.results().first().copied().unwrap_or_default();
        lower.is_weight_only(name)
    });
    let (dtype, data) = match format {
        Some(format) => (format, weights.pack(format)),
        None => (DType::F32, weights.dense()),
    };
    Ok(vec![lower.constant(dtype, &[rows, depth], data)?])
}

impl Pt2Lowering<'_> {
    /// Whether a tensor is read only as the weight of products and embeddings.
    fn is_weight_only(&self, name: &str) -> bool {
        let outputs = self.graph.outputs.iter();
        if outputs
            .flat_map(crate::pt2::schema::Argument::names)
            .any(|n| n == name)
        {
            return false;
        }
        let mut readers = self.graph.nodes.iter().flat_map(|node| {
            let product = matches!(node.op(), "aten.linear.default" | "aten.embedding.default");
            let inputs = node.inputs.iter().map(move |input| (product, input));
            inputs.filter(|(_, input)| input.arg.names().contains(&name))
        });
        readers.all(|(product, input)| product && input.name == "weight")
    }
}
