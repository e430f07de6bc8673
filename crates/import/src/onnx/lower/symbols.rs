//! Dynamic sizes by the names that a file gives them.

use graph::{Dim, MAX_SYMBOLS};

use super::Lower;
use crate::onnx::Port;
use crate::onnx::schema::DimProto;

impl Lower<'_> {
    /// The shape of an input, its dynamic sizes made symbols.
    pub(super) fn input_shape(&mut self, port: &Port) -> Result<Vec<Dim>, String> {
        let dims = port.dims.as_ref().ok_or("has no shape in the file")?;
        let mut shape = vec![];
        for (axis, dim) in dims.iter().enumerate() {
            shape.push(match dim {
                DimProto::Number(n) => {
                    let n = usize::try_from(*n).map_err(|_| format!("has a dimension of {n}"))?;
                    Dim::from(n)
                }
                DimProto::Symbol(name) => self.size_named(name)?,
                // Without a name it is like no other.
                DimProto::Unknown => self.symbol(&format!("{}.{axis}", port.name))?,
            });
        }
        Ok(shape)
    }

    /// A size by its name, which may be a sum: `past_sequence_length + sequence_length`.
    fn size_named(&mut self, name: &str) -> Result<Dim, String> {
        let mut sum = Dim::from(0);
        for term in name.split('+').map(str::trim) {
            let term = match term.parse::<u32>() {
                Ok(n) => Dim::from(n as usize),
                Err(_) => self.symbol(term)?,
            };
            sum = sum + term;
        }
        Ok(sum)
    }

    fn symbol(&mut self, name: &str) -> Result<Dim, String> {
        if let Some(symbol) = self.symbols.get(name) {
            return Ok(*symbol);
        }
        if self.symbols.len() == MAX_SYMBOLS {
            let known: Vec<&str> = self.symbols.keys().map(|name| &name[..]).collect();
            return Err(format!(
                "has the dynamic size {name:?} besides {}, and kvark runs models with at most {MAX_SYMBOLS}",
                known.join(", ")
            ));
        }
        let symbol = self.builder.symbol(name);
        self.symbols.insert(name.to_owned(), symbol);
        Ok(symbol)
    }
}
