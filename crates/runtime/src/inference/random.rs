//! Random inputs for an inference session.

use super::{InferenceSession, Runs, TensorDim, TensorInfo, list};
use crate::{RuntimeError, RuntimeErrorKind};
use backend::{BackendError, integer_source};
use base::DType;
use graph::ops::Op;
use graph::plan::MemoryPlan;
use graph::{Bindings, Data, Dim, Graph, GraphBuilder, TensorId, Value};
use std::collections::BTreeMap;

/// The options of random inputs.
#[derive(Clone, Debug, Default)]
pub struct RandomInputs {
    /// Dynamic sizes by name. A size that is neither here nor fixed by a given input is the smallest valid one, at
    /// least 1.
    pub sizes: Vec<(String, usize)>,
    /// Seed of the random values.
    pub seed: u64,
}

impl InferenceSession {
    /// The names of the dynamic sizes of the inputs.
    pub fn dynamic_sizes(&self) -> Vec<&str> {
        match &self.runs {
            Runs::Planned(runnable) => {
                let symbols = runnable.graph().symbols().iter();
                symbols.map(|symbol| &symbol.name[..]).collect()
            }
            Runs::ByShape(runs) => runs.method().dynamic_sizes(),
        }
    }

    /// The given inputs, and random values for the others: floats uniform from -1 to 1, valid indices for tensors that
    /// are indexed, positions from 0 on, 0 for other integers and `true` for booleans.
    ///
    /// # Errors
    /// If the graph has no such dynamic size, a size is out of range, an input has an unsupported type, or a run on
    /// these inputs would not fit in the available memory.
    pub fn random_inputs(
        &mut self,
        mut given: Vec<(String, Value)>,
        random: &RandomInputs,
    ) -> Result<Vec<(String, Value)>, RuntimeError> {
        self.check_names(random)?;
        let (bindings, planned) = match &self.runs {
            Runs::Planned(runnable) => (self.bindings(runnable.graph(), &given, random)?, vec![]),
            Runs::ByShape(_) => {
                let planned = self.plan_for_sizes(&mut given, random)?;
                (Bindings::default(), planned)
            }
        };
        let shapes;
        let (graph, positions) = match &self.runs {
            Runs::Planned(runnable) => (runnable.graph(), runnable.position_input()),
            Runs::ByShape(runs) => {
                shapes = self.graph_of_inputs(&planned)?;
                (runs.last().unwrap_or(&shapes), None)
            }
        };
        let left_out = |name: &str| given.iter().all(|(given, _)| given != name);
        let missing = (0..self.inputs.len()).filter(|i| left_out(&self.inputs[*i].name));
        let missing: Vec<usize> = missing.collect();
        self.check_memory(graph, &bindings)?;
        // The state of an xorshift generator must not be zero.
        let mut noise = RandomSource(random.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for input in missing {
            let value = self.random(graph, positions, input, &bindings, &mut noise)?;
            given.push((self.inputs[input].name.clone(), value));
        }
        Ok(given)
    }

    /// Returns an error if inputs and intermediates of these sizes need more than the available memory.
    fn check_memory(&self, graph: &Graph, bindings: &Bindings) -> Result<(), RuntimeError> {
        let sizes = graph.inputs().iter().chain(graph.outputs()).map(|id| {
            let tensor = graph.tensor(*id);
            let bytes = tensor.ty.bytes(bindings);
            bytes.ok_or_else(|| RuntimeErrorKind::TooLarge(tensor.name.clone()).into())
        });
        let sizes = sizes.collect::<Result<Vec<usize>, RuntimeError>>()?;
        let plan = MemoryPlan::new(graph, *bindings, |_| 0).map_err(BackendError::from)?;
        let needed = sizes
            .iter()
            .fold(plan.arena_bytes, |sum, own| sum.saturating_add(*own));
        match self.free_memory {
            Some(available) if needed as u64 > available => Err(RuntimeErrorKind::TooMuchMemory {
                needed: needed as u64,
                available,
            }
            .into()),
            _ => Ok(()),
        }
    }

    /// Makes the graph for the chosen sizes and the given inputs, and returns the shapes of all. Single integers, which the graph may be made for, are then given too.
    fn plan_for_sizes(
        &mut self,
        given: &mut Vec<(String, Value)>,
        random: &RandomInputs,
    ) -> Result<Vec<Vec<usize>>, RuntimeError> {
        let Runs::ByShape(runs) = &mut self.runs else {
            return Ok(vec![]);
        };
        let shapes = runs.method().shapes(|name| {
            let chosen = random.sizes.iter().rfind(|(own, _)| own == name);
            let chosen = chosen.map(|(_, size)| *size);
            Some(
                chosen
                    .or_else(|| named_size(&self.inputs, name, given))
                    .unwrap_or(1),
            )
        })?;
        let mut integers = BTreeMap::new();
        for at in runs.method().integers() {
            let TensorInfo { name, dtype, .. } = &self.inputs[at];
            let own = given.iter().find(|(given, _)| given == name);
            let own = own.map(|(_, value)| value.clone());
            let value = own.unwrap_or_else(|| Value {
                shape: shapes[at].clone(),
                data: match dtype {
                    DType::Bool => Data::Bool(vec![true]),
                    DType::I32 => Data::I32(vec![0]),
                    _ => Data::I64(vec![0]),
                },
            });
            if given.iter().all(|(given, _)| given != name) {
                given.push((name.clone(), value.clone()));
            }
            integers.insert(name.clone(), value);
        }
        let views: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
        runs.plan_for(&views, integers)?;
        Ok(shapes)
    }

    /// A graph that has the inputs with these shapes and computes nothing, for a model whose first graph is made when its inputs are
    /// known.
    fn graph_of_inputs(&self, shapes: &[Vec<usize>]) -> Result<Graph, RuntimeError> {
        let mut builder = GraphBuilder::new("inputs");
        let mut ids = vec![];
        for (info, shape) in self.inputs.iter().zip(shapes) {
            let shape: Vec<Dim> = shape.iter().map(|size| Dim::from(*size)).collect();
            ids.push(builder.input(&info.name, info.dtype, shape));
        }
        Ok(builder.finish(&ids).map_err(BackendError::from)?)
    }

    /// Returns an error if a chosen size is none of the model's.
    fn check_names(&self, random: &RandomInputs) -> Result<(), RuntimeError> {
        let known = self.dynamic_sizes();
        match random
            .sizes
            .iter()
            .find(|(name, _)| !known.contains(&&name[..]))
        {
            None => Ok(()),
            Some((name, _)) => Err(RuntimeErrorKind::UnknownSize {
                name: name.clone(),
                sizes: known.join(", "),
                inputs: list(&self.inputs),
            }
            .into()),
        }
    }

    /// The value of every symbol: the chosen size, or the size in a given input.
    fn bindings(
        &self,
        graph: &Graph,
        given: &[(String, Value)],
        random: &RandomInputs,
    ) -> Result<Bindings, RuntimeError> {
        let mut bindings = Bindings::default();
        for (i, symbol) in graph.symbols().iter().enumerate() {
            let chosen = random.sizes.iter().rfind(|(name, _)| *name == symbol.name);
            let chosen = chosen.map(|(_, size)| *size);
            let (least, most) = (*symbol.range.start(), *symbol.range.end());
            if let Some(size) = chosen.filter(|size| !symbol.range.contains(size)) {
                return Err(RuntimeErrorKind::SizeRange {
                    name: symbol.name.clone(),
                    size,
                    range: match most {
                        usize::MAX => format!("at least {least}"),
                        most => format!("from {least} to {most}"),
                    },
                }
                .into());
            }
            let size = chosen.or_else(|| self.given_size(graph, i, given));
            bindings.0[i] = size.unwrap_or(least.max(1).min(most));
        }
        Ok(bindings)
    }

    /// The value of a symbol in the given inputs.
    fn given_size(&self, graph: &Graph, symbol: usize, given: &[(String, Value)]) -> Option<usize> {
        given.iter().find_map(|(name, value)| {
            let input = self.inputs.iter().position(|info| info.name == *name)?;
            let shape = &graph.tensor(graph.inputs()[input]).ty.shape;
            let axis = shape.iter().position(|dim| {
                dim.as_symbol()
                    .is_some_and(|own| usize::from(own.0) == symbol)
            })?;
            value.shape.get(axis).copied()
        })
    }

    fn random(
        &self,
        graph: &Graph,
        positions: Option<(usize, usize)>,
        input: usize,
        bindings: &Bindings,
        noise: &mut RandomSource,
    ) -> Result<Value, RuntimeError> {
        let named = |id: &&TensorId| graph.tensor(**id).name == self.inputs[input].name;
        let id = graph.inputs().iter().find(named);
        let id = *id.expect("inputs that are no constants are in the graph");
        let tensor = graph.tensor(id);
        let shape = tensor.ty.dims(bindings);
        let shape = shape.ok_or_else(|| RuntimeErrorKind::TooLarge(tensor.name.clone()))?;
        let len: usize = shape.iter().product();
        let integer = |noise: &mut RandomSource, i: usize| -> usize {
            match positions {
                Some((positions, per_token)) if positions == input => i / per_token.max(1),
                _ => match rows_indexed(graph, id, bindings) {
                    Some(Rows::Table(rows)) => noise.below(rows),
                    Some(Rows::Computed(rows)) => i % rows.max(1),
                    None => 0,
                },
            }
        };
        let data = match tensor.ty.dtype {
            DType::F32 => Data::F32((0..len).map(|_| noise.unit()).collect()),
            DType::I32 => Data::I32((0..len).map(|i| integer(noise, i) as i32).collect()),
            DType::I64 => Data::I64((0..len).map(|i| integer(noise, i) as i64).collect()),
            DType::Bool => Data::Bool(vec![true; len]),
            other => {
                let input = self.inputs[input].to_string();
                return Err(RuntimeErrorKind::NotRandom(input, other).into());
            }
        };
        Ok(Value { shape, data })
    }
}

/// A size with this name in the given inputs.
fn named_size(inputs: &[TensorInfo], size: &str, given: &[(String, Value)]) -> Option<usize> {
    given.iter().find_map(|(name, value)| {
        let info = inputs.iter().find(|info| info.name == *name)?;
        let is_named = |dim: &TensorDim| matches!(dim, TensorDim::Dynamic(own) if own == size);
        let axis = info.shape.iter().position(is_named)?;
        value.shape.get(axis).copied()
    })
}

/// The table that an input of indices refers to.
#[derive(Clone, Copy)]
enum Rows {
    /// A constant with this many rows, for instance an embedding table.
    Table(usize),
    /// A computed tensor with this many rows.
    Computed(usize),
}

/// The rows that an integer input indexes; the smallest number if it indexes several tensors.
fn rows_indexed(graph: &Graph, input: TensorId, bindings: &Bindings) -> Option<Rows> {
    let indexed = graph.nodes().iter().filter_map(|node| {
        let axis = match &node.op {
            Op::GatherRows(_) => 0,
            Op::Gather(op) => op.axis,
            _ => return None,
        };
        let &[table, index] = &node.inputs[..] else {
            return None;
        };
        if integer_source(graph, index) != input {
            return None;
        }
        let table = graph.tensor(table);
        let rows = table.ty.shape.get(axis)?.eval(bindings)?;
        Some(match table.constant() {
            Some(_) => Rows::Table(rows),
            None => Rows::Computed(rows),
        })
    });
    indexed.min_by_key(|rows| match rows {
        Rows::Table(n) | Rows::Computed(n) => *n,
    })
}

/// A small xorshift random number generator.
struct RandomSource(u64);

impl RandomSource {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// From 0 to below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InferenceOptions;
    use backend::reference::Reference;
    use base::Bytes;
    use graph::ops::GatherRows;

    /// Rows of a table of seven, and a row of numbers for each.
    fn session() -> InferenceSession {
        let mut b = GraphBuilder::new("forward");
        let tokens = b.symbol("tokens");
        let few = b.symbol_in("few", 2..=4);
        let ids = b.input("ids", DType::I64, [tokens]);
        b.input("x", DType::F32, [tokens, few]);
        let table = Bytes::from_slice(&[0.5f32; 14]);
        let table = b.constant("table", DType::F32, &[7, 2], table).unwrap();
        let rows = b.node("rows", GatherRows, &[table, ids]).unwrap();
        let graph = b.finish(&[rows]).unwrap();
        InferenceSession::from_graph(graph, &Reference::new(), &InferenceOptions::default())
            .unwrap()
    }

    fn random(sizes: &[(&str, usize)]) -> RandomInputs {
        let sizes = sizes.iter().map(|(name, size)| ((*name).to_owned(), *size));
        RandomInputs {
            sizes: sizes.collect(),
            seed: 1,
        }
    }

    #[test]
    fn inputs_have_the_chosen_sizes_and_indices_lie_in_their_table() {
        let mut session = session();
        let made = session.random_inputs(vec![], &random(&[("tokens", 100)]));
        let made = made.unwrap();
        let [(_, ids), (_, x)] = &made[..] else {
            panic!("{made:?}")
        };
        assert_eq!((&ids.shape[..], &x.shape[..]), (&[100][..], &[100, 2][..]));
        let Data::I64(ids) = &ids.data else {
            panic!("{ids:?}")
        };
        let mut seen = ids.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);

        // A given input decides the sizes of the others.
        let given = vec![("x".to_owned(), Value::f32([3, 4], vec![0.0; 12]))];
        let made = session.random_inputs(given, &random(&[])).unwrap();
        assert_eq!(made[1].1.shape, [3]);
    }

    #[test]
    fn sizes_that_cannot_be_are_named() {
        let table: [(&[(&str, usize)], &str); 4] = [
            (
                &[("rows", 1)],
                "there is no dynamic size \"rows\"; the dynamic sizes are tokens, few;",
            ),
            (&[("few", 5)], "the size few is 5, must be from 2 to 4"),
            (
                &[("tokens", 999_999_999_999_999)],
                "a run of these sizes needs ",
            ),
            (&[("tokens", usize::MAX / 2)], "the tensor ids is too large"),
        ];
        for (sizes, expect) in table {
            let error = session().random_inputs(vec![], &random(sizes)).unwrap_err();
            assert!(error.to_string().starts_with(expect), "{error}");
        }
    }
}
