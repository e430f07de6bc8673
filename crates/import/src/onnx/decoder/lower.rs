//! Lowers decoders to the form that runners call: `forward(tokens [T], position [T], rows [R]) -> logits [R, vocab]` (see
//! [`crate::transformer`]).

use std::collections::{HashMap, HashSet};

use base::DType;
use graph::ops::{GatherRows, UpdateAndAttend};
use graph::{Dim, Graph, TensorId};

use super::OnnxDecoder;
use super::attention_site::{AttentionOperands, AttentionSite};
use super::mask_probe::AttentionWindow;
use crate::error::{ImportError, ImportErrorDetail};
use crate::onnx::file::{Node, Onnx};
use crate::onnx::lower::rotary::{Tables, layout};
use crate::onnx::lower::{OnnxLowering, check_supported};
use crate::onnx::schema::DimProto;

/// Builds the decoder's graph.
pub(in crate::onnx) fn lower(file: &Onnx, decoder: &OnnxDecoder<'_>) -> Result<Graph, ImportError> {
    let sites: HashMap<usize, &(AttentionSite<'_>, AttentionWindow)> = decoder
        .sites
        .iter()
        .map(|site| (site.0.node, site))
        .collect();
    let live = live(file, decoder, &sites);
    let needed = file.nodes.iter().zip(&live).enumerate();
    let needed = needed.filter(|(index, (_, live))| **live && !sites.contains_key(index));
    check_supported(needed.map(|(_, (node, _))| node))?;

    let mut lower = OnnxLowering::new(file);
    let tokens = lower.builder.symbol_in("T", 1..=usize::MAX);
    let rows = lower.builder.symbol("R");
    let names = &decoder.names;
    lower.given("tokens", &names.input_ids, tokens)?;
    let position = lower.given("position", &names.position_ids, tokens)?;
    let wanted = lower.builder.input("rows", DType::I32, [rows]);
    for name in &decoder.positions {
        lower.counted(name, position, tokens)?;
    }
    for (index, (node, live)) in file.nodes.iter().zip(live).enumerate() {
        if !live {
            continue;
        }
        let result = match sites.get(&index) {
            Some((site, window)) => lower.site(site, window, position),
            None => lower
                .check_given(node, decoder)
                .and_then(|()| lower.node(node)),
        };
        result.map_err(|reason| {
            let (node, op) = (node.label.clone(), node.op.clone());
            ImportErrorDetail::Op { node, op, reason }
        })?;
    }

    let wrong = |reason: String| ImportError::value(format!("output {:?}", names.logits), reason);
    lower.begin_node("rows");
    let logits = lower.value(&names.logits).map_err(wrong)?;
    let vocab = lower.shape(logits).last().copied();
    let vocab = vocab.filter(|vocab| vocab.as_const().is_some());
    let vocab = vocab.ok_or_else(|| wrong("has a vocabulary size that is not constant".into()))?;
    let by_token = lower.reshape(logits, vec![tokens, vocab]);
    let by_token = by_token.map_err(|_| wrong("does not have one row per token".into()))?;
    let picked = lower.emit(GatherRows, &[by_token, wanted]).map_err(wrong)?;
    Ok(lower.emitter.builder.finish(&[picked])?)
}

/// Marks the nodes that the logits depend on, given that attention reads only the step's own rows.
fn live(
    file: &Onnx,
    decoder: &OnnxDecoder<'_>,
    sites: &HashMap<usize, &(AttentionSite<'_>, AttentionWindow)>,
) -> Vec<bool> {
    let mut wanted = HashSet::from([&decoder.names.logits[..]]);
    let mut live = vec![false; file.nodes.len()];
    for (index, node) in file.nodes.iter().enumerate().rev() {
        let open =
            |name: &String| wanted.contains(&name[..]) && !decoder.positions.contains(&&name[..]);
        live[index] = node.outputs.iter().any(open);
        match sites.get(&index) {
            _ if !live[index] => {}
            Some((site, _)) => match site.operands {
                AttentionOperands::Separate { q, k, v } => wanted.extend([q, k, v]),
                AttentionOperands::Packed(all) => {
                    wanted.insert(all);
                }
            },
            None => wanted.extend(node.inputs.iter().map(|name| &name[..])),
        }
    }
    live
}

impl<'a> OnnxLowering<'a> {
    /// Adds the input `name: i32[T]`. If the model has the input `exported`, defines it from `name`, in the exported shape
    /// and type.
    fn given(&mut self, name: &str, exported: &str, tokens: Dim) -> Result<TensorId, ImportError> {
        let id = self.builder.input(name, DType::I32, [tokens]);
        let file = self.file;
        let Some(port) = file.inputs.iter().find(|port| port.name == exported) else {
            return Ok(id);
        };
        let wrong = |reason: String| ImportError::value(format!("input {exported:?}"), reason);
        let fits = |dim: &DimProto, one: bool| match dim {
            DimProto::Number(n) => one && *n == 1,
            _ => true,
        };
        match port.dims.as_deref() {
            Some([batch, length]) if fits(batch, true) && fits(length, false) => {}
            _ => {
                let shape = port.shape.join(", ");
                return Err(wrong(format!("is [{shape}], must be [batch, tokens]")));
            }
        }
        let kind = port.kind.filter(|kind| kind.range().is_some());
        let kind =
            kind.ok_or_else(|| wrong(format!("is {}, must have an integer type", port.dtype)))?;
        self.begin_node(name);
        let form = self.cast(id, kind.dtype()).map_err(wrong)?;
        let form = self
            .reshape(form, vec![Dim::from(1), tokens])
            .map_err(wrong)?;
        self.values.insert(exported.to_owned(), form);
        self.kinds.insert(exported.to_owned(), kind);
        Ok(id)
    }

    /// Defines a tensor that the model computes as the positions of the step.
    fn counted(&mut self, name: &str, position: TensorId, tokens: Dim) -> Result<(), ImportError> {
        self.begin_node(name);
        let wrong = |reason: String| ImportError::value(format!("tensor {name:?}"), reason);
        let form = self.cast(position, DType::I64).map_err(wrong)?;
        let form = self
            .reshape(form, vec![Dim::from(1), tokens])
            .map_err(wrong)?;
        self.values.insert(name.to_owned(), form);
        Ok(())
    }

    /// Checks that a node uses no cache and no cache index: only attention may.
    fn check_given(&self, node: &Node, decoder: &OnnxDecoder<'_>) -> Result<(), String> {
        let ports = self.file.inputs.iter().map(|port| &port.name);
        let mut missing = ports.filter(|name| !self.values.contains_key(*name));
        match missing.find(|name| node.inputs.contains(name)) {
            Some(name) if !self.file.tensors.contains_key(name) => {
                let logits = &decoder.names.logits;
                Err(format!(
                    "makes {logits} depend on {name:?}, an input that runners do not provide"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Lowers an attention site to `UpdateAndAttend`.
    fn site(
        &mut self,
        site: &AttentionSite<'_>,
        window: &AttentionWindow,
        position: TensorId,
    ) -> Result<(), String> {
        self.begin_node(site.result);
        let (q, k, v) = match site.operands {
            AttentionOperands::Separate { q, k, v } => {
                (self.value(q)?, self.value(k)?, self.value(v)?)
            }
            AttentionOperands::Packed(all) => self.unpacked(all, site)?,
        };
        let flat = self.rank(q) == 3;
        let (q_heads, kv_heads) = site
            .heads
            .map_or((None, None), |(q, kv)| (Some(q), Some(kv)));
        let [mut q, mut k, v] =
            [(q, q_heads), (k, kv_heads), (v, kv_heads)].map(|(x, heads)| self.by_token(x, heads));
        if let Some(rotary) = &site.rotary {
            let tables = Tables {
                cos: self.value(rotary.cos)?,
                sin: self.value(rotary.sin)?,
                positions: Some(position),
            };
            for x in [&mut q, &mut k] {
                *x = self.rotated_by_token(x.clone()?, &tables, rotary.interleaved);
            }
        }
        let (q, k, v) = (q?, k?, v?);
        let dim = self.shape(q)[2].as_const();
        let dim = dim.ok_or("its head size must be constant")?;
        let op = UpdateAndAttend {
            cache_id: site.cache as u32,
            scale: site.scale.unwrap_or(1.0 / (dim as f32).sqrt()) * window.factor,
            softcap: site.softcap,
        };
        let attended = self.emit(op, &[q, k, v, position])?;
        let shape = self.shape(attended);
        let [tokens, heads, dim] = shape[..] else {
            return Err("its queries must have 3 or 4 axes".into());
        };
        let one = Dim::from(1);
        let width = heads.as_const().map(|heads| dim * heads);
        let result = if flat {
            let width = width.ok_or("its number of heads must be constant")?;
            self.reshape(attended, vec![one, tokens, width])?
        } else {
            let apart = self.reshape(attended, vec![one, tokens, heads, dim])?;
            self.permute(apart, vec![0, 2, 1, 3])?
        };
        self.values.insert(site.result.to_owned(), result);
        Ok(())
    }

    /// Splits queries, keys and values that are concatenated along the last axis.
    fn unpacked(
        &mut self,
        all: &str,
        site: &AttentionSite<'_>,
    ) -> Result<(TensorId, TensorId, TensorId), String> {
        let all = self.value(all)?;
        let (heads, kv_heads) = site.heads.ok_or("does not state its number of heads")?;
        let width = self.shape(all).last().and_then(Dim::as_const);
        let count = heads + 2 * kv_heads;
        let dim = width.filter(|width| count > 0 && width.is_multiple_of(count));
        let dim =
            dim.ok_or_else(|| format!("{count} heads do not divide the width {width:?}"))? / count;
        let mut part = |start: usize, heads: usize| {
            self.slice(all, 2, Dim::from(start * dim), Dim::from(heads * dim))
        };
        let q = part(0, heads)?;
        let k = part(heads, kv_heads)?;
        Ok((q, k, part(heads + kv_heads, kv_heads)?))
    }

    /// `[1, T, H · D]` or `[1, H, T, D]` as `[T, H, D]`.
    fn by_token(&mut self, x: TensorId, heads: Option<usize>) -> Result<TensorId, String> {
        let x = self.cast(x, DType::F32)?;
        match self.shape(x)[..] {
            [_, tokens, width] => {
                let heads = heads.ok_or("does not state its number of heads")?;
                let dim = width.checked_div(heads);
                let dim =
                    dim.ok_or_else(|| format!("{heads} heads do not divide the width {width:?}"))?;
                self.reshape(x, vec![tokens, Dim::from(heads), dim])
            }
            [_, heads, tokens, dim] => {
                let x = self.permute(x, vec![0, 2, 1, 3])?;
                self.reshape(x, vec![tokens, heads, dim])
            }
            _ => Err(format!(
                "an operand has {} axes, must have 3 or 4",
                self.rank(x)
            )),
        }
    }

    /// `[T, H, D]` rotated by the positions of a step.
    fn rotated_by_token(
        &mut self,
        x: TensorId,
        tables: &Tables,
        interleaved: bool,
    ) -> Result<TensorId, String> {
        let shape = self.shape(x);
        let mut batched = shape.clone();
        batched.insert(0, Dim::from(1));
        let positions = tables.positions.map(|positions| {
            let row = vec![Dim::from(1), shape[0]];
            self.reshape(positions, row)
        });
        let tables = Tables {
            positions: positions.transpose()?,
            ..*tables
        };
        let x = self.reshape(x, batched)?;
        let x = self.rotated(x, &tables, layout(interleaved))?;
        self.reshape(x, shape)
    }
}
