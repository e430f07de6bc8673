//! The C of attention and of what is around it: norms and rotations.

use super::Calls;
use crate::c_text::float;
use crate::weights::Form;
use base::DType;
use graph::ops;
use graph::plan::Place;
use graph::{Dim, Node};

impl Calls<'_> {
    pub(super) fn norm(&mut self, node: &Node, eps: f32) -> Result<String, String> {
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
        let (width, outer) = shape
            .split_last()
            .map_or((Dim::from(1), &[][..]), |(w, o)| (*w, o));
        self.kernels.add("norm");
        let bias = match node.inputs.get(2) {
            Some(id) => self.floats(*id)?,
            None => "NULL".to_owned(),
        };
        let (x, weight) = (self.floats(node.inputs[0])?, self.floats(node.inputs[1])?);
        let out = self.out(node)?;
        let (rows, width) = (self.product(outer)?, self.product(&[width])?);
        let eps = float(eps);
        Ok(format!(
            "k_norm({x}, {weight}, {bias}, {out}, {rows}, {width}, {eps})"
        ))
    }

    pub(super) fn rope(&mut self, node: &Node, op: &ops::Rope) -> Result<String, String> {
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
        self.kernels.add("rope");
        let rotated = graph.tensor(node.inputs[1]).ty.shape[1];
        let (x, table) = (self.floats(node.inputs[0])?, self.floats(node.inputs[1])?);
        let out = self.out(node)?;
        let dims: Vec<String> = [&shape[0], &shape[1], &shape[2], &rotated]
            .into_iter()
            .map(|dim| self.product(&[*dim]))
            .collect::<Result<_, _>>()?;
        let interleaved = u8::from(op.layout == ops::RopeLayout::Interleaved);
        Ok(format!(
            "k_rope({x}, {table}, {out}, {}, {interleaved})",
            dims.join(", ")
        ))
    }

    pub(super) fn rope_table(
        &mut self,
        node: &Node,
        op: &ops::RopeTable,
    ) -> Result<String, String> {
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
        let positions = Place::Input {
            index: 1,
            offset: 0,
        };
        if !self.has_tokens() || self.place(node.inputs[0]) != positions {
            return Err("its positions are computed".to_owned());
        }
        let form = Form::RopeTable {
            positions: self.plan.context,
            magnitude: op.magnitude,
        };
        let name = self.weight(node.inputs[1], form)?;
        let out = self.out(node)?;
        let width = shape.last().copied().unwrap_or(Dim::from(1));
        let (width, count) = (self.product(&[width])?, self.product(shape)?);
        Ok(format!(
            "memcpy({out}, WF({name}) + position * {width}, {count} * sizeof(float))"
        ))
    }

    pub(super) fn update_and_attend(
        &mut self,
        node: &Node,
        op: &ops::UpdateAndAttend,
    ) -> Result<String, String> {
        if node.inputs.len() > 4 {
            return Err("there is no C of attention sinks".to_owned());
        }
        let graph = self.plan.graph;
        let shape = &graph.tensor(node.output).ty.shape[..];
        self.kernels.add("attend");
        let [q, k, v] = [0, 1, 2].map(|i| self.floats(node.inputs[i]));
        let (q, k, v) = (q?, k?, v?);
        let out = self.out(node)?;
        let (tokens, heads) = (self.product(&shape[..1])?, self.product(&shape[1..2])?);
        let layer = &self.plan.kv.layers.get(op.cache_id as usize);
        let layer = layer.ok_or("it has no cache")?;
        let window = layer.window.unwrap_or(0);
        let (scale, softcap) = (float(op.scale), float(op.softcap.unwrap_or(0.0)));
        Ok(format!(
            "k_update_and_attend(kv_at(state, {}), {q}, {k}, {v}, {out}, {tokens}, {heads}, position, {window}, {scale}, {softcap})",
            op.cache_id
        ))
    }

    pub(super) fn attention(
        &mut self,
        index: usize,
        node: &Node,
        op: &ops::Attention,
    ) -> Result<String, String> {
        self.kernels.add("attention");
        let graph = self.plan.graph;
        let shape = |i: usize| &graph.tensor(node.inputs[i]).ty.shape[..];
        let (q, k, v) = (shape(0), shape(1), shape(2));
        let leading = q.len() - 3;
        if q[..leading].iter().any(|dim| dim.as_const() != Some(1)) {
            return Err("it has a batch".to_owned());
        }
        let (heads_at, tokens_at) = match op.token_major {
            true => (leading + 1, leading),
            false => (leading, leading + 1),
        };
        let dims = [
            q[heads_at],
            k[heads_at],
            q[tokens_at],
            k[tokens_at],
            q[leading + 2],
            v[leading + 2],
        ];
        let dims: Vec<String> = dims
            .iter()
            .map(|dim| self.product(&[*dim]))
            .collect::<Result<_, _>>()?;
        let (mask, mask_head, mask_query) = match node.inputs.get(3) {
            None => ("NULL".to_owned(), "0".to_owned(), "0".to_owned()),
            Some(id) => {
                let ty = &graph.tensor(*id).ty;
                if ty.dtype != DType::Bool {
                    return Err(format!("a mask of {}", ty.dtype));
                }
                let [outer @ .., queries, keys] = &ty.shape[..] else {
                    return Err("a mask without queries and keys".to_owned());
                };
                if outer.iter().any(|dim| dim.as_const() != Some(1))
                    || *queries != q[tokens_at]
                    || *keys != k[tokens_at]
                {
                    return Err("a mask that differs between heads".to_owned());
                }
                (self.bytes(*id)?, "0".to_owned(), self.product(&[*keys])?)
            }
        };
        let [q, k, v] = [0, 1, 2].map(|i| self.floats(node.inputs[i]));
        let (q, k, v) = (q?, k?, v?);
        let out = self.out(node)?;
        let scratch = self.scratch(index, node)?;
        let (scale, softcap) = (float(op.scale), float(op.softcap.unwrap_or(0.0)));
        let (causal, token_major) = (u8::from(op.causal), u8::from(op.token_major));
        Ok(format!(
            "k_attention({q}, {k}, {v}, {mask}, {out}, (float *)({scratch}), {}, {scale}, {softcap}, {causal}, {token_major}, {mask_head}, {mask_query})",
            dims.join(", ")
        ))
    }
}
