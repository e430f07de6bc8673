//! Dynamic sizes of inputs, by the names in the file.

use graph::{Dim, MAX_SYMBOLS};

use super::context::OnnxLowering;
use crate::onnx::file::Port;
use crate::onnx::schema::DimProto;

impl OnnxLowering<'_> {
    /// The shape of an input, with symbols for its dynamic sizes.
    pub(super) fn input_shape(&mut self, port: &Port) -> Result<Vec<Dim>, String> {
        let dims = port
            .dims
            .as_ref()
            .ok_or("has no shape; the file must state the rank of every input")?;
        let mut shape = vec![];
        for (axis, dim) in dims.iter().enumerate() {
            shape.push(match dim {
                DimProto::Number(n) => {
                    let n = usize::try_from(*n)
                        .map_err(|_| format!("has the invalid dimension {n}"))?;
                    Dim::from(n)
                }
                DimProto::Symbol(name) => self.size_named(name)?,
                DimProto::Unknown => self.symbol(&port.unnamed_size(axis))?,
            });
        }
        Ok(shape)
    }

    /// A size by its name, which may be a sum: `past_sequence_length + sequence_length`, or `total_sequence_length` if
    /// the model has both of these sizes.
    fn size_named(&mut self, name: &str) -> Result<Dim, String> {
        if let Some(now) = name.strip_prefix("total_") {
            let past = format!("past_{now}");
            if self.is_a_size(now) && self.is_a_size(&past) {
                return Ok(self.symbol(&past)? + self.symbol(now)?);
            }
        }
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

    /// Whether a dimension of an input has this name.
    fn is_a_size(&self, name: &str) -> bool {
        let mut dims = self
            .file
            .inputs
            .iter()
            .flat_map(|port| port.dims.iter().flatten());
        dims.any(|dim| matches!(dim, DimProto::Symbol(known) if known == name))
    }

    fn symbol(&mut self, name: &str) -> Result<Dim, String> {
        if let Some(symbol) = self.symbols.get(name) {
            return Ok(*symbol);
        }
        if self.symbols.len() == MAX_SYMBOLS {
            let known: Vec<&str> = self.symbols.keys().map(|name| &name[..]).collect();
            return Err(format!(
                "has the dynamic size {name:?} in addition to {}; at most {MAX_SYMBOLS} are supported",
                known.join(", ")
            ));
        }
        let symbol = self.builder.symbol(name);
        self.symbols.insert(name.to_owned(), symbol);
        Ok(symbol)
    }
}
