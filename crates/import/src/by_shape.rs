//! Methods without a graph for all shapes: their graphs are made for the shapes of a run's inputs.
//!
//! A graph plans with sizes that are polynomials in those of its inputs. Where a method divides a size with a remainder, takes the larger
//! of two, or makes a shape of such sizes, there is no such graph; with numbers in the place of the dynamic sizes there is. The same holds
//! for a method that makes a shape of an integer that it is given, or chooses a branch by it. A method whose sizes depend on what it
//! computes is lowered in [stages](crate::Stage).

use std::collections::BTreeMap;

use base::DType;
use graph::Value;

use crate::error::{ImportError, ImportErrorKind as K};
use crate::tensor_info::{TensorDim, TensorInfo};

/// A method whose graph is made for given shapes of its inputs, by [`Artifact::specialise`](crate::Artifact::specialise).
#[derive(Clone, Debug)]
pub struct ShapedMethod {
    /// The name callers use.
    pub name: String,
    /// The inputs, with the file's names of dynamic sizes.
    pub inputs: Vec<TensorInfo>,
    /// The outputs, as the file declares them.
    pub outputs: Vec<TensorInfo>,
    /// Why there is no graph for all shapes.
    pub reason: String,
}

impl ShapedMethod {
    /// The method in the place of a graph for all shapes, which could not be made.
    ///
    /// # Errors
    /// The given error, if it has nothing to do with sizes, or if no input has a dynamic one or is a single integer and nothing depends
    /// on data.
    pub(crate) fn in_place_of(
        error: ImportError,
        name: &str,
        inputs: Vec<TensorInfo>,
        outputs: Vec<TensorInfo>,
    ) -> Result<ShapedMethod, ImportError> {
        let by_sizes = matches!(error.kind(), K::Node | K::Value | K::Graph | K::Unsupported);
        let dynamic = |input: &TensorInfo| input.dynamic_sizes().count() > 0 || is_integer(input);
        let dynamic = inputs.iter().any(dynamic) || error.depends_on_data();
        match by_sizes && dynamic {
            false => Err(error),
            true => Ok(ShapedMethod {
                name: name.to_owned(),
                inputs,
                outputs,
                reason: error.to_string(),
            }),
        }
    }

    /// The numbers of the inputs that are single integers or booleans, whose values may decide shapes and branches.
    pub fn integers(&self) -> Vec<usize> {
        let inputs = self.inputs.iter().enumerate();
        let integers = inputs.filter(|(_, input)| is_integer(input));
        integers.map(|(index, _)| index).collect()
    }

    /// The names of the inputs' dynamic sizes, in the order of the inputs.
    pub fn dynamic_sizes(&self) -> Vec<&str> {
        let mut names = vec![];
        for name in self.inputs.iter().flat_map(TensorInfo::dynamic_sizes) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The shapes of the inputs with these dynamic sizes.
    ///
    /// # Errors
    /// `Value` if `size` has none for a name.
    pub fn shapes(
        &self,
        size: impl Fn(&str) -> Option<usize>,
    ) -> Result<Vec<Vec<usize>>, ImportError> {
        let number = |dim: &TensorDim| match dim {
            TensorDim::Fixed(n) => Ok(*n),
            TensorDim::Dynamic(name) => size(name).ok_or_else(|| {
                let what = format!("the size {name:?} of {}", self.name);
                let sizes = self.dynamic_sizes().join(", ");
                ImportError::value(what, format!("is not given; its dynamic sizes are {sizes}"))
            }),
        };
        let shape = |input: &TensorInfo| input.shape.iter().map(number).collect();
        self.inputs.iter().map(shape).collect()
    }

    /// Checks that shapes are those of the inputs (ranks, constant sizes, equal sizes of one name), and the types of fixed inputs.
    ///
    /// # Errors
    /// `Value` with the first input that has another shape.
    pub(crate) fn check(
        &self,
        shapes: &[&[usize]],
        fixed: &BTreeMap<String, Value>,
    ) -> Result<(), ImportError> {
        if shapes.len() != self.inputs.len() {
            let reason = format!(
                "takes {} inputs, {} were given",
                self.inputs.len(),
                shapes.len()
            );
            return Err(ImportError::value(
                format!("method {:?}", self.name),
                reason,
            ));
        }
        let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
        for (input, shape) in self.inputs.iter().zip(shapes) {
            let wrong = |reason: String| ImportError::value(format!("input {input}"), reason);
            if let Some(value) = fixed.get(&input.name)
                && value.dtype() != input.dtype
            {
                return Err(wrong(format!(
                    "was given elements of type {}",
                    value.dtype()
                )));
            }
            if shape.len() != input.shape.len() {
                let (own, given) = (input.shape.len(), shape.len());
                return Err(wrong(format!("has {own} dimensions, {given} were given")));
            }
            for (axis, (dim, given)) in input.shape.iter().zip(*shape).enumerate() {
                let own = match dim {
                    TensorDim::Fixed(n) => *n,
                    TensorDim::Dynamic(name) => *sizes.entry(name).or_insert(*given),
                };
                if own != *given {
                    let reason = format!("was given {given} in dimension {axis}, must be {own}");
                    return Err(wrong(reason));
                }
            }
        }
        Ok(())
    }

    /// Checks that the elements of inputs have their types.
    ///
    /// # Errors
    /// `Value` with the first input that has another type.
    pub fn check_types(&self, types: &[DType]) -> Result<(), ImportError> {
        let mut pairs = self.inputs.iter().zip(types);
        match pairs.find(|(input, dtype)| input.dtype != **dtype) {
            None => Ok(()),
            Some((input, dtype)) => {
                let reason = format!("was given elements of type {dtype}");
                Err(ImportError::value(format!("input {input}"), reason))
            }
        }
    }

    /// The inputs with these shapes, for messages.
    pub(crate) fn shown(&self, shapes: &[&[usize]]) -> String {
        let pairs = self.inputs.iter().zip(shapes);
        let texts: Vec<String> = pairs
            .map(|(input, shape)| format!("{} {shape:?}", input.name))
            .collect();
        texts.join(", ")
    }
}

/// Whether an input is a single integer or boolean.
fn is_integer(input: &TensorInfo) -> bool {
    let single = |dim: &TensorDim| *dim == TensorDim::Fixed(1);
    matches!(input.dtype, DType::I32 | DType::I64 | DType::Bool) && input.shape.iter().all(single)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored_type::StoredType;

    fn info(name: &str, shape: &[&str]) -> TensorInfo {
        let dim = |text: &&str| match text.parse() {
            Ok(n) => TensorDim::Fixed(n),
            Err(_) => TensorDim::Dynamic((*text).to_owned()),
        };
        TensorInfo {
            name: name.to_owned(),
            dtype: DType::F32,
            declared: StoredType::F32,
            shape: shape.iter().map(dim).collect(),
        }
    }

    fn method() -> ShapedMethod {
        let inputs = vec![info("x", &["batch", "3", "height"]), info("y", &["batch"])];
        let error = ImportError::value("a size", "has a remainder");
        ShapedMethod::in_place_of(error, "forward", inputs, vec![]).unwrap()
    }

    #[test]
    fn shapes_follow_from_named_sizes() {
        let method = method();
        assert_eq!(method.dynamic_sizes(), ["batch", "height"]);
        let sizes = [("batch", 2), ("height", 5)];
        let named = |name: &str| sizes.iter().find(|(own, _)| *own == name).map(|(_, n)| *n);
        assert_eq!(method.shapes(named).unwrap(), [vec![2, 3, 5], vec![2]]);
        let error = method.shapes(|name| (name == "batch").then_some(1));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("the size \"height\""), "{error}");
    }

    #[test]
    fn shapes_that_are_not_those_of_the_inputs_are_named() {
        let method = method();
        let check = |x: &[usize], y: &[usize]| {
            let checked = method.check(&[x, y], &BTreeMap::new());
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check(&[2, 3, 9], &[2]), Ok(()));
        let x = "input x: f32[batch, 3, height]";
        let table = [
            (
                check(&[2, 3], &[2]),
                format!("{x} has 3 dimensions, 2 were given"),
            ),
            (
                check(&[2, 4, 9], &[2]),
                format!("{x} was given 4 in dimension 1, must be 3"),
            ),
            (
                check(&[2, 3, 9], &[7]),
                "input y: f32[batch] was given 7 in dimension 0, must be 2".to_owned(),
            ),
        ];
        for (found, expect) in table {
            assert_eq!(found, Err(expect));
        }
    }

    #[test]
    fn other_errors_stay() {
        let inputs = || vec![info("x", &["n"])];
        let fixed = || vec![info("x", &["4"])];
        let made = |error, inputs| ShapedMethod::in_place_of(error, "forward", inputs, vec![]);
        assert!(made(ImportError::malformed("a tensor", "is cut off"), inputs()).is_err());
        assert!(made(ImportError::value("a size", "is odd"), fixed()).is_err());
        assert!(made(ImportError::value("a size", "is odd"), inputs()).is_ok());
    }
}
