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

/// Lowers a file to a model with one method per method that computes.
pub fn lower(file: &Pte, options: &ImportOptions) -> Result<LoweredModel, ImportError> {
    let programs = file.methods().map(translate::program);
    let programs = programs.collect::<Result<Vec<_>, _>>()?;
    if programs.is_empty() {
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
    lowered.architecture = "executorch".to_owned();
    Ok(lowered)
}
