//! A kernel call with its arguments by name.

use super::file::{EValue, KernelCall, Plan};
use super::signatures;

/// A kernel call whose op is known.
pub(super) struct PlanCall<'a> {
    plan: &'a Plan,
    call: &'a KernelCall,
    names: &'static [&'static str],
    /// The op's name without namespace, overload and `_copy`.
    pub(super) name: String,
    /// PyTorch's name of the op, as `.pt2` files have it: `aten.mm.default`.
    pub(super) target: String,
}

/// Ops on integers, which compute sizes.
const INTEGER_OPS: &[&str] = &["self", "dim"];

impl<'a> PlanCall<'a> {
    /// The call; `None` if the op is unknown.
    pub(super) fn new(plan: &'a Plan, call: &'a KernelCall) -> Option<PlanCall<'a>> {
        let (namespace, rest) = call.op.split_once("::")?;
        let (name, overload) = rest.split_once('.')?;
        let names = match (namespace, name) {
            ("aten", "sym_size") => INTEGER_OPS,
            _ => signatures::names(&call.op)?,
        };
        if call.args.len() <= names.len() {
            return None;
        }
        let name = match name {
            "et_view" => "view",
            "_to_dim_order_copy" => "_to_copy",
            "_clone_dim_order" => "clone",
            "_to_copy" | "lift_fresh_copy" => name,
            name => name.strip_suffix("_copy").unwrap_or(name),
        };
        let overload = match overload {
            "out" => "default",
            overload => overload.strip_suffix("_out").unwrap_or(overload),
        };
        let namespace = match namespace {
            "kvcache" => "kvcache",
            _ => "aten",
        };
        Some(PlanCall {
            plan,
            call,
            names,
            name: name.to_owned(),
            target: format!("{namespace}.{name}.{overload}"),
        })
    }

    /// Names and values of the arguments.
    pub(super) fn arguments(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.names
            .iter()
            .copied()
            .zip(self.call.args.iter().copied())
    }

    /// The value of an argument.
    pub(super) fn argument(&self, name: &str) -> Option<usize> {
        self.arguments()
            .find(|(other, _)| *other == name)
            .map(|(_, value)| value)
    }

    /// The results: the arguments after the named ones. The last ones repeat them.
    pub(super) fn results(&self) -> Vec<usize> {
        let mut results = vec![];
        for value in &self.call.args[self.names.len()..] {
            let all = match &self.plan.values[*value] {
                EValue::Tensors(list) => &list[..],
                _ => std::slice::from_ref(value),
            };
            for value in all {
                if !results.contains(value) {
                    results.push(*value);
                }
            }
        }
        results
    }

    /// The tensor of an argument.
    pub(super) fn tensor(&self, name: &str) -> Option<usize> {
        let value = self.argument(name)?;
        matches!(self.plan.values[value], EValue::Tensor(_)).then_some(value)
    }

    /// The values of a list.
    pub(super) fn list(&self, name: &str) -> &'a [usize] {
        let value = self.argument(name).map(|value| &self.plan.values[value]);
        match value {
            Some(EValue::Ints(list) | EValue::Tensors(list) | EValue::OptionalTensors(list)) => {
                list
            }
            _ => &[],
        }
    }

    pub(super) fn tensors(&self, name: &str) -> Vec<usize> {
        self.list(name).to_vec()
    }

    /// All tensors among the arguments.
    pub(super) fn all_tensors(&self) -> Vec<usize> {
        let tensor = |(name, _)| self.tensor(name);
        self.arguments().filter_map(tensor).collect()
    }

    /// A constant integer.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.plan.values[self.argument(name)?] {
            EValue::Int(n) => Some(n),
            _ => None,
        }
    }

    /// Whether an argument is true.
    pub(super) fn flag(&self, name: &str) -> bool {
        let value = self.argument(name).map(|value| &self.plan.values[value]);
        matches!(value, Some(EValue::Bool(true)))
    }

    /// A list of constant integers.
    pub(super) fn ints(&self, name: &str) -> Option<Vec<i64>> {
        let EValue::Ints(list) = &self.plan.values[self.argument(name)?] else {
            return None;
        };
        let number = |value: &usize| match self.plan.values[*value] {
            EValue::Int(n) => Some(n),
            _ => None,
        };
        list.iter().map(number).collect()
    }
}
