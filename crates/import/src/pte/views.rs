//! Views that ExecuTorch leaves out: a tensor that shares the memory of another one has no call that writes it.

use std::collections::{HashMap, HashSet};

use super::call::PlanCall;
use super::file::{EValue, KernelCall, Plan};

/// The op of a view.
pub(super) const VIEW: &str = "executorch_prim::et_view.default";

impl Plan {
    /// Inserts a view before the first use of every tensor that no call writes: it shows the tensor that was last written to
    /// its place.
    pub(super) fn insert_views(&mut self) {
        let mut defined: HashSet<usize> = self.inputs.iter().copied().collect();
        let mut last: HashMap<(u32, u64), usize> = HashMap::new();
        for input in &self.inputs {
            if let Some(place) = self.place(*input) {
                last.insert(place, *input);
            }
        }
        let mut calls = vec![];
        for call in std::mem::take(&mut self.calls) {
            let known = PlanCall::new(self, &call);
            let results = known.as_ref().map(PlanCall::results);
            let results =
                results.unwrap_or_else(|| call.args.last().copied().into_iter().collect());
            let read = call
                .args
                .iter()
                .flat_map(|value| match &self.values[*value] {
                    EValue::Tensors(list) | EValue::OptionalTensors(list) => list.clone(),
                    _ => vec![*value],
                });
            let read: Vec<usize> = read.filter(|value| !results.contains(value)).collect();
            for value in read {
                calls.extend(self.view_of(value, &mut defined, &last));
            }
            for result in results {
                defined.insert(result);
                if let Some(place) = self.place(result) {
                    last.insert(place, result);
                }
            }
            calls.push(call);
        }
        for output in self.outputs.clone() {
            calls.extend(self.view_of(output, &mut defined, &last));
        }
        self.calls = calls;
    }

    fn place(&self, value: usize) -> Option<(u32, u64)> {
        match &self.values[value] {
            EValue::Tensor(tensor) => tensor.place,
            _ => None,
        }
    }

    /// The view that defines a value which nothing has written.
    fn view_of(
        &self,
        value: usize,
        defined: &mut HashSet<usize>,
        last: &HashMap<(u32, u64), usize>,
    ) -> Option<KernelCall> {
        let EValue::Tensor(tensor) = &self.values[value] else {
            return None;
        };
        if tensor.data.is_some() || !defined.insert(value) {
            return None;
        }
        let shown = *last.get(&tensor.place?)?;
        Some(KernelCall {
            op: VIEW.to_owned(),
            // The size is the result's own.
            args: vec![shown, shown, value],
        })
    }
}
