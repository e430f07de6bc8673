//! `GatherBlockQuantized`: rows of a table whose blocks have scales, which stays quantised if kvark has a matching format.

use base::Bytes;
use graph::Dim;
use graph::ops::GatherRows;

use super::call::Call;
use super::context::{OnnxLowering, Results};
use crate::lowering::LoweringBuilder;
use crate::onnx::mat_mul_nbits::NBitsWeights;
use crate::onnx::tensor::OnnxTensor;
use crate::stored_type::StoredType;

pub(super) fn gather(lower: &mut OnnxLowering<'_>, call: &Call<'_>) -> Results {
    let file = lower.file;
    let stored = |index: usize| {
        let stored = call.name(index).and_then(|name| file.tensors.get(name));
        stored.ok_or_else(|| format!("operand {index} must be an initialiser"))
    };
    let (data, scales) = (stored(0)?, stored(2)?);
    let zeros = call.name(3).map(|_| stored(3)).transpose()?;
    let axis =
        |name: &str, default| LoweringBuilder::axis(call.int_or(name, default)?, data.shape.len());
    let [rows, columns] = data.shape[..] else {
        return Err("tables of other than two axes are not supported".into());
    };
    if (axis("gather_axis", 0)?, axis("quantize_axis", 1)?) != (0, 1) {
        return Err("only rows of blocks along the last axis are supported".into());
    }
    let bits = match data.kind {
        StoredType::U8 => call.count("bits")?.unwrap_or(4),
        StoredType::I4 | StoredType::U4 => 4,
        kind => return Err(format!("tables of type {} are not supported", kind.name())),
    };
    let depth = match (data.kind, bits) {
        (StoredType::U8, 4) => columns * 2,
        _ => columns,
    };
    let block = call.count("block_size")?.unwrap_or(128);
    if block == 0 || depth % block != 0 || depth == 0 {
        return Err(format!(
            "rows of {depth} in blocks of {block} are not supported"
        ));
    }
    // A row of packed zero points begins with a byte of its own only in a table of bytes.
    let apart = data.kind == StoredType::U8 || (depth / block).is_multiple_of(2);
    if zeros.is_some() && !apart {
        return Err("zero points of an odd number of blocks are not supported".into());
    }
    let quants = unsigned(data);
    let none;
    let zeros = match (zeros.map(unsigned), data.kind) {
        (Some(zeros), _) => Some(zeros),
        (None, StoredType::U4) => {
            none = vec![0f32; rows * (depth / block)];
            Some(OnnxTensor {
                kind: StoredType::F32,
                shape: vec![none.len()],
                data: Bytes::from_slice(&none),
            })
        }
        (None, _) => None,
    };
    let weights = NBitsWeights {
        rows,
        depth,
        bits,
        block,
        quants: &quants,
        scales,
        zeros: zeros.as_ref(),
    };
    let (dtype, data) = weights.to_kvark_blocks()?;
    let name = lower.fresh_name();
    let table = lower.builder.constant(&name, dtype, &[rows, depth], data);
    let table = table.map_err(|e| e.to_string())?;
    let index = lower.operand(call, 1)?;
    let mut shape = lower.shape(index);
    let count = Dim::product(&shape).ok_or("has too many dynamic sizes of indices")?;
    let index = lower.reshape(index, vec![count])?;
    let result = lower.emit(GatherRows, &[table, index])?;
    shape.push(Dim::from(depth));
    let kind = lower.operand_kind(call, 2);
    lower.set_kind(call, kind);
    Ok(vec![lower.reshape(result, shape)?])
}

/// The integers of a table without signs: those of four bits with a sign are moved up by eight.
fn unsigned(stored: &OnnxTensor) -> OnnxTensor {
    let data = match stored.kind {
        StoredType::I4 => {
            let moved: Vec<u8> = stored.data.iter().map(|byte| byte ^ 0x88).collect();
            Bytes::from(&moved[..])
        }
        _ => stored.data.clone(),
    };
    OnnxTensor {
        kind: StoredType::U8,
        shape: stored.shape.clone(),
        data,
    }
}
