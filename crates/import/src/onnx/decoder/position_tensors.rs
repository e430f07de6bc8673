//! Finds computed tensors that hold the positions of the step's tokens.

use std::collections::HashSet;

use super::mask_probe::{MaskProbe, integers};
use crate::error::ImportError;
use crate::onnx::file::Onnx;

impl<'a> MaskProbe<'a, '_> {
    /// Tensors that hold the positions of the step's tokens, among those computed from mask, index and shape inputs only.
    pub(super) fn positions(&self) -> Result<Vec<&'a str>, ImportError> {
        let mut candidates = self.driven();
        for step in self.steps().filter(|step| step.end() < 8) {
            if candidates.is_empty() {
                break;
            }
            // If the probe fails, no tensor is treated as positions; lowering reports an error if a node depends on one.
            let Ok(values) = self.probe(&self.substitutes(step, 0.0)?, &candidates) else {
                return Ok(vec![]);
            };
            let positions: Vec<i64> = (step.past as i64..).take(step.tokens).collect();
            candidates.retain(|name| {
                let value = &values[*name];
                value.shape == [1, step.tokens] && integers(value).as_ref() == Some(&positions)
            });
        }
        Ok(candidates)
    }

    /// Tensors that depend only on the mask, the indices and shapes.
    fn driven(&self) -> Vec<&'a str> {
        let names = self.names;
        let drivers = [
            &names.attention_mask,
            &names.write_indices,
            &names.nonpad_kv_seqlen,
        ];
        let file: &'a Onnx = self.file;
        let inputs = file.inputs.iter().map(|port| &port.name);
        let inputs = inputs.filter(|name| drivers.contains(name));
        let mut driven: HashSet<&str> = inputs.map(|name| &name[..]).collect();
        let mut fixed: HashSet<&str> = file.tensors.keys().map(|name| &name[..]).collect();
        fixed.insert("");
        let mut found: Vec<&'a str> = vec![];
        for node in &file.nodes {
            let mut inputs = node.inputs.iter().map(|name| &name[..]);
            let outputs = node.outputs.iter().map(|name| &name[..]);
            let outputs = outputs.filter(|name| !name.is_empty());
            let is_fixed = |name: &str| fixed.contains(name);
            // A shape depends on the step's sizes only, not on elements.
            if node.op == "Shape" || inputs.clone().all(is_fixed) {
                fixed.extend(outputs);
            } else if inputs.all(|name| is_fixed(name) || driven.contains(name)) {
                driven.extend(outputs.clone());
                found.extend(outputs);
            }
        }
        found
    }
}
