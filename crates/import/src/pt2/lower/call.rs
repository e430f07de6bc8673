//! Access to a node's arguments by name for lowering rules. Errors are reasons; the caller adds the node's name.

use graph::ops::Scalar;

use crate::pt2::schema::{Argument, Node, OptionalTensor, ScalarType, SymIntArgument};

/// The node being lowered.
pub(super) struct Call<'a> {
    pub(super) node: &'a Node,
    /// The op's name, without the `_` of ops that write into their operand.
    pub(super) op: String,
}

/// A size: a constant, or the name of a size in the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum SizeArg<'a> {
    Number(i64),
    Name(&'a str),
}

/// A tensor or a size by name, or a number.
pub(super) enum Operand<'a> {
    Tensor(&'a str),
    Number(Scalar),
    Size(&'a str),
}

impl<'a> Call<'a> {
    /// The op's name without namespace and overload.
    pub(super) fn name(&self) -> &str {
        self.op.split('.').nth(1).unwrap_or_default()
    }

    /// The node as it is in the file.
    pub(super) fn of(node: &'a Node) -> Call<'a> {
        Call {
            node,
            op: node.op().to_owned(),
        }
    }

    /// The argument; `None` if it is absent or Python's `None`.
    pub(super) fn get(&self, name: &str) -> Option<&'a Argument> {
        let found = self.node.inputs.iter().find(|input| input.name == name)?;
        match &found.arg {
            Argument::AsNone(_) | Argument::AsOptionalTensor(OptionalTensor::AsNone(_)) => None,
            arg => Some(arg),
        }
    }

    fn need(&self, name: &str) -> Result<&'a Argument, String> {
        self.get(name).ok_or_else(|| format!("has no {name}"))
    }

    /// The name of a tensor.
    pub(super) fn tensor(&self, name: &str) -> Result<&'a str, String> {
        self.maybe_tensor(name)?
            .ok_or_else(|| format!("has no {name}"))
    }

    /// The name of an optional tensor.
    pub(super) fn maybe_tensor(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(
                Argument::AsTensor(t) | Argument::AsOptionalTensor(OptionalTensor::AsTensor(t)),
            ) => Ok(Some(&t.name)),
            Some(_) => Err(format!("{name} is not a tensor")),
        }
    }

    /// The names of a list of tensors; `None` for omitted ones.
    pub(super) fn tensors(&self, name: &str) -> Result<Vec<Option<&'a str>>, String> {
        Ok(match self.need(name)? {
            Argument::AsTensors(list) => list.iter().map(|t| Some(&t.name[..])).collect(),
            Argument::AsOptionalTensors(list) => {
                let tensor = |t: &'a OptionalTensor| match t {
                    OptionalTensor::AsTensor(t) => Some(&t.name[..]),
                    OptionalTensor::AsNone(_) => None,
                };
                list.iter().map(tensor).collect()
            }
            _ => return Err(format!("{name} is not a list of tensors")),
        })
    }

    /// A tensor or a number.
    pub(super) fn operand(&self, name: &str) -> Result<Operand<'a>, String> {
        Ok(match self.need(name)? {
            Argument::AsTensor(t) => Operand::Tensor(&t.name),
            Argument::AsSymInt(SymIntArgument::AsName(name)) => Operand::Size(name),
            arg => Operand::Number(
                scalar(arg).ok_or_else(|| format!("{name} is neither a tensor nor a number"))?,
            ),
        })
    }

    /// A number.
    pub(super) fn number(&self, name: &str, default: Scalar) -> Result<Scalar, String> {
        match self.get(name) {
            None => Ok(default),
            Some(arg) => scalar(arg).ok_or_else(|| format!("{name} is not a number")),
        }
    }

    /// A real number.
    pub(super) fn float(&self, name: &str, default: f32) -> Result<f32, String> {
        Ok(self.number(name, Scalar::F32(default))?.to_f32())
    }

    /// A list of real numbers.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f64>, String> {
        match self.need(name)? {
            Argument::AsFloats(list) => Ok(list.iter().map(|x| x.0).collect()),
            _ => Err(format!("{name} is not a list of numbers")),
        }
    }

    /// A constant integer.
    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64, String> {
        match self.get(name) {
            None => Ok(default),
            Some(Argument::AsInt(n)) => Ok(*n),
            Some(Argument::AsSymInt(SymIntArgument::AsInt(n))) => Ok(*n),
            Some(_) => Err(format!("{name} is not a constant integer")),
        }
    }

    /// A list of constant integers; `None` if absent. A single integer is a list of one.
    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, String> {
        let Some(arg) = self.get(name) else {
            return Ok(None);
        };
        let number = |n: &SymIntArgument| match n {
            SymIntArgument::AsInt(n) => Some(*n),
            SymIntArgument::AsName(_) => None,
        };
        let list = match arg {
            Argument::AsInt(n) => Some(vec![*n]),
            Argument::AsInts(list) => Some(list.clone()),
            Argument::AsSymInts(list) => list.iter().map(number).collect(),
            _ => None,
        };
        match list {
            Some(list) => Ok(Some(list)),
            None => Err(format!("{name} is not a list of constant integers")),
        }
    }

    /// A size; `None` if absent.
    pub(super) fn size(&self, name: &str) -> Result<Option<SizeArg<'a>>, String> {
        Ok(Some(match self.get(name) {
            None => return Ok(None),
            Some(Argument::AsInt(n)) => SizeArg::Number(*n),
            Some(Argument::AsSymInt(SymIntArgument::AsInt(n))) => SizeArg::Number(*n),
            Some(Argument::AsSymInt(SymIntArgument::AsName(name))) => SizeArg::Name(name),
            Some(_) => return Err(format!("{name} is not a size")),
        }))
    }

    /// A bool.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.get(name) {
            None => Ok(default),
            Some(Argument::AsBool(b)) => Ok(*b),
            Some(_) => Err(format!("{name} is not a bool")),
        }
    }

    /// A string; `None` if absent.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::AsString(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{name} is not a string")),
        }
    }

    /// An element type; `None` if absent.
    pub(super) fn scalar_type(&self, name: &str) -> Result<Option<ScalarType>, String> {
        match self.get(name) {
            None => Ok(None),
            Some(Argument::AsScalarType(code)) => Ok(Some(*code)),
            Some(_) => Err(format!("{name} is not an element type")),
        }
    }

    /// The names of the results, in order.
    pub(super) fn results(&self) -> Vec<&'a str> {
        self.node.outputs.iter().flat_map(Argument::names).collect()
    }
}

fn scalar(arg: &Argument) -> Option<Scalar> {
    Some(match arg {
        Argument::AsInt(n) => Scalar::I64(*n),
        Argument::AsFloat(x) => Scalar::F32(x.0 as f32),
        Argument::AsBool(b) => Scalar::Bool(*b),
        _ => return None,
    })
}
