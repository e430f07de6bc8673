//! `.pte`: ExecuTorch programs, with portable ops and `kvcache::update_and_attend`.
//!
//! A program is a FlatBuffer with weights in segments after it, or in a `.ptd` file beside it. Its kernel calls are
//! translated to the nodes of a `.pt2` program, which the same rules lower. Programs with delegates are refused.

mod call;
mod file;
mod flatbuffer;
mod read;
mod signatures;
mod sizes;
mod translate;
mod types;
mod views;

pub use file::{Plan, Pte, PteTensor};

use graph::Graph;

use crate::error::ImportError;
use crate::lowered::{ImportOptions, LoweredModel};
use crate::pt2::{self, ExtraFiles, Pt2};

impl Pte {
    /// The methods that compute something.
    pub fn methods(&self) -> impl Iterator<Item = &Plan> {
        translate::computing(&self.plans)
    }

    /// The values of constant methods, such as `get_max_ctx_len`.
    pub fn metadata(&self) -> kv::metadata::Metadata {
        translate::constants(&self.plans)
    }
}

impl Plan {
    /// Ops without a lowering rule.
    pub fn unknown_ops(&self) -> Vec<String> {
        translate::unknown_ops(self)
    }
}

/// Lowers the method of this name, which has no graph for all shapes, for inputs of these shapes.
pub(crate) fn specialise(
    file: &Pte,
    name: &str,
    shapes: &[&[usize]],
) -> Result<Graph, ImportError> {
    let plan = file.methods().find(|plan| plan.name == name);
    let plan = plan.ok_or_else(|| ImportError::value(format!("method {name:?}"), "is unknown"))?;
    pt2::specialise_program(&translate::program_for(plan, shapes)?, shapes)
}

/// Lowers a file to a model with one method per method that computes.
pub fn lower(file: &Pte, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    let (mut programs, mut shaped) = (vec![], vec![]);
    for plan in file.methods() {
        match translate::program(plan) {
            Ok(program) => programs.push(program),
            Err(error) if options.by_shape => {
                shaped.push(translate::shaped_method(plan, error)?);
            }
            Err(error) => return Err(error),
        }
    }
    if programs.is_empty() && shaped.is_empty() {
        let what = "a program whose methods only return constants";
        return Err(ImportError::unsupported(what));
    }
    let pt2 = Pt2 {
        name: String::new(),
        programs,
        extra: ExtraFiles {
            metadata: file.metadata(),
            ..ExtraFiles::default()
        },
    };
    let mut lowered = pt2::lower(&pt2, options)?;
    lowered.shaped.extend(shaped);
    lowered.architecture = "executorch".to_owned();
    Ok(lowered)
}
