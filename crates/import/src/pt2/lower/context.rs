//! State of lowering one program: its tensors and dynamic sizes, by the file's names.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};

use graph::{Dim, GraphBuilder, MAX_SYMBOLS, TensorId};

use super::aliases::Aliases;
use super::complex::Parts;
use super::states::State;
use crate::error::ImportError;
use crate::lowering::LoweringBuilder;
use crate::pt2::file::Program;
use crate::pt2::schema::{self, Argument, InputSpec, SymInt, TensorMeta};
use crate::pt2::size_expr::SizeExpr;
use crate::pt2::tensor;

/// State of lowering one program.
pub(in crate::pt2) struct Pt2Lowering<'a> {
    pub(super) program: &'a Program,
    pub(super) graph: &'a schema::Graph,
    pub(super) emitter: LoweringBuilder,
    /// Dynamic sizes by the file's names.
    pub(in crate::pt2) symbols: BTreeMap<String, Dim>,
    /// Tensors by the file's names.
    pub(in crate::pt2) values: HashMap<String, TensorId>,
    /// Weights by storage address and shape.
    weights: HashMap<(usize, &'a [usize]), TensorId>,
    /// Weights that are not widened, by storage address and shape.
    narrow_weights: HashMap<(usize, &'a [usize]), TensorId>,
    /// Transposed 16-bit matrices, by the tensors of the transposes: names of the matrices.
    pub(super) transposed_halves: HashMap<TensorId, String>,
    /// Name of the input that holds positions, and the tensor that attention takes.
    pub(in crate::pt2) position: Option<(String, TensorId)>,
    /// Tensors that share memory in PyTorch.
    pub(super) aliases: Aliases<'a>,
    /// Weights and buffers that the program writes to.
    pub(super) states: Vec<State<'a>>,
    /// Tensors of complex numbers by the file's names.
    pub(super) complexes: HashMap<String, Parts>,
    /// Whether a rule runs on one part of complex numbers.
    pub(super) by_parts: bool,
}

impl Deref for Pt2Lowering<'_> {
    type Target = LoweringBuilder;

    fn deref(&self) -> &LoweringBuilder {
        &self.emitter
    }
}

impl DerefMut for Pt2Lowering<'_> {
    fn deref_mut(&mut self) -> &mut LoweringBuilder {
        &mut self.emitter
    }
}

impl<'a> Pt2Lowering<'a> {
    /// Starts a graph with the program's symbols.
    ///
    /// `names` renames some of the file's symbols.
    pub(in crate::pt2) fn new(
        program: &'a Program,
        names: &BTreeMap<String, &str>,
    ) -> Result<Pt2Lowering<'a>, ImportError> {
        let mut lower = Pt2Lowering {
            program,
            graph: &program.graph,
            emitter: LoweringBuilder::new(&program.name),
            symbols: BTreeMap::new(),
            values: HashMap::new(),
            weights: HashMap::new(),
            narrow_weights: HashMap::new(),
            transposed_halves: HashMap::new(),
            position: None,
            aliases: Aliases::of(program),
            states: vec![],
            complexes: HashMap::new(),
            by_parts: false,
        };
        lower.states = lower.find_states();
        for name in user_inputs(program)? {
            let meta = lower.input_meta(name)?;
            for size in &meta.sizes {
                lower.declare(name, size, names)?;
            }
        }
        Ok(lower)
    }

    /// The graph built so far.
    pub(in crate::pt2) fn into_builder(self) -> GraphBuilder {
        self.emitter.builder
    }

    /// Declares the symbols of a dynamic size of an input.
    fn declare(
        &mut self,
        input: &str,
        size: &SymInt,
        names: &BTreeMap<String, &str>,
    ) -> Result<(), ImportError> {
        let SymInt::AsExpr(expr) = size else {
            return Ok(());
        };
        let parsed = SizeExpr::parse(&expr.expr_str);
        let parsed =
            parsed.map_err(|reason| self.wrong_input(input, format!("a size {reason}")))?;
        for name in parsed.terms().flat_map(|(names, _)| names) {
            if self.symbols.contains_key(name) {
                continue;
            }
            // One symbol is reserved for the requested rows of a decoder.
            if self.symbols.len() + 1 == MAX_SYMBOLS {
                let what = format!(
                    "{} with more than {} dynamic sizes",
                    self.program.name,
                    MAX_SYMBOLS - 1
                );
                return Err(ImportError::unsupported(what));
            }
            let (min, max) = self
                .program
                .ranges
                .get(name)
                .copied()
                .unwrap_or((0, i64::MAX));
            let bound = |n: i64| usize::try_from(n.max(0)).unwrap_or(usize::MAX);
            // PyTorch writes a large number for "no upper bound".
            let max = if max >= i64::MAX / 2 {
                usize::MAX
            } else {
                bound(max)
            };
            let own = self.program.size_names.get(name);
            let shown = names.get(name).copied().or(own.map(|own| &own[..]));
            let shown = shown.unwrap_or(name);
            let symbol = self.builder.symbol_in(shown, bound(min)..=max);
            self.symbols.insert(name.clone(), symbol);
        }
        Ok(())
    }

    pub(in crate::pt2) fn input_meta(&self, name: &str) -> Result<&'a TensorMeta, ImportError> {
        let missing = || self.wrong_input(name, "the file does not state its type".into());
        self.graph.tensor_values.get(name).ok_or_else(missing)
    }

    pub(in crate::pt2) fn input_type(
        &self,
        name: &str,
        meta: &TensorMeta,
    ) -> Result<(base::DType, Vec<Dim>), ImportError> {
        let wrong = |reason| self.wrong_input(name, reason);
        let kind = tensor::kind(meta.dtype).map_err(wrong)?;
        if meta.layout != schema::STRIDED {
            return Err(wrong(format!(
                "has layout {}, must be dense (strided)",
                meta.layout
            )));
        }
        let sizes = meta.sizes.iter().map(|size| self.sym_int(size));
        let sizes = sizes.collect::<Result<_, _>>().map_err(wrong)?;
        Ok((kind.dtype(), sizes))
    }

    fn wrong_input(&self, name: &str, reason: String) -> ImportError {
        let what = format!("input {name:?} of {}", self.program.name);
        ImportError::value(what, reason)
    }

    /// The tensor with this name in the file. Weights are added to the graph on first use.
    pub(super) fn value(&mut self, name: &str) -> Result<TensorId, String> {
        if let Some(id) = self.values.get(name) {
            return Ok(*id);
        }
        let stored = self.program.tensors.get(name);
        let stored = stored.ok_or_else(|| match self.complexes.contains_key(name) {
            true => format!("reads the complex numbers {name}, which is not supported"),
            false => format!("there is no tensor {name}"),
        })?;
        if stored.complex {
            return Err(format!(
                "reads the complex numbers {name}, which is not supported"
            ));
        }
        // Tied weights are stored once and become one constant.
        let place = (stored.data.as_ptr() as usize, &stored.shape[..]);
        let id = match self.weights.get(&place) {
            Some(id) => *id,
            None => {
                let (dtype, data) = stored.computed()?;
                let constant = self.builder.constant(name, dtype, &stored.shape, data);
                let id = constant.map_err(|e| e.to_string())?;
                self.weights.insert(place, id);
                id
            }
        };
        self.values.insert(name.to_owned(), id);
        Ok(id)
    }

    /// The matrix with this name in a form that products read without widening it: 16-bit floats as they are stored, and
    /// int8 in blocks. `None` if it has no such form.
    pub(super) fn narrow_matrix(&mut self, name: &str) -> Result<Option<TensorId>, String> {
        let stored = self.stored(name);
        let stored = stored.filter(|stored| stored.shape.len() == 2 && !stored.is_empty());
        let Some(stored) = stored.filter(|stored| stored.half().is_some() || stored.is_int8())
        else {
            return Ok(None);
        };
        let place = (stored.data.as_ptr() as usize, &stored.shape[..]);
        if let Some(id) = self.narrow_weights.get(&place) {
            return Ok(Some(*id));
        }
        let (dtype, data) = match stored.half() {
            Some(dtype) => (dtype, stored.data.clone()),
            None => match super::quantised_matrix::int8_blocks(&stored.data, stored.shape[1]) {
                Some(blocks) => (base::DType::Q8_0, blocks),
                None => return Ok(None),
            },
        };
        // The name belongs to the widened tensor, should another op need that.
        let name = self.fresh_name();
        let constant = self.builder.constant(&name, dtype, &stored.shape, data);
        let id = constant.map_err(|e| e.to_string())?;
        self.narrow_weights.insert(place, id);
        Ok(Some(id))
    }

    /// Converts a size of the file to a dimension.
    pub(super) fn sym_int(&self, size: &SymInt) -> Result<Dim, String> {
        let parsed = match size {
            SymInt::AsInt(n) => return Ok(Dim::constant(*n)),
            SymInt::AsExpr(expr) => {
                let wrong = |reason| format!("a size {reason}");
                SizeExpr::parse(&expr.expr_str).map_err(wrong)?
            }
        };
        let mut sum = Dim::constant(0);
        for (names, coefficient) in parsed.terms() {
            let mut term = Dim::constant(coefficient);
            for name in names {
                let symbol = self.symbols.get(name).ok_or_else(|| {
                    format!("a size depends on data ({name}); only shapes that follow from the shapes of the inputs are supported")
                })?;
                let product = term.checked_mul(symbol);
                term = product.ok_or("a size is too large")?;
            }
            sum = sum + term;
        }
        Ok(sum)
    }

    /// Renames a tensor that the current node emitted to its name in the file.
    pub(in crate::pt2) fn own_name(&mut self, id: TensorId, name: &str) {
        if self.take_emitted(id) && !self.values.contains_key(name) {
            self.builder.rename(id, name);
        }
    }
}

/// The names of the program's tensor inputs that are not weights.
pub(in crate::pt2) fn user_inputs(program: &Program) -> Result<Vec<&str>, ImportError> {
    let mut names = vec![];
    for input in &program.signature.input_specs {
        match input {
            InputSpec::UserInput {
                arg: Argument::AsTensor(tensor),
            } => names.push(&tensor.name[..]),
            InputSpec::UserInput { arg } => match arg.names().first() {
                Some(name) => {
                    let what =
                        format!("input {name:?} of {}, which is not a tensor,", program.name);
                    return Err(ImportError::unsupported(what));
                }
                // A number or `None` that is constant since export.
                None => continue,
            },
            _ => continue,
        }
    }
    Ok(names)
}
