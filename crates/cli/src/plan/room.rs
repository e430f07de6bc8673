//! Whether a plan fits into the memory that is there.

use crate::output;
use kvark::RuntimeErrorKind;
use kvark::backend::Backend;
use kvark::memory::{LimitSource, MemoryLimit, MemoryPlan, MemoryShortfall};
use serde_json::Value;
use std::io::{self, Write};

/// The memory of the device, and whether a plan fits into it.
pub(super) struct Room {
    /// Bytes that can be allocated, and what bounds them; `None` if the device does not report them.
    available: Option<(u64, LimitSource)>,
    shortfall: Option<MemoryShortfall>,
}

impl Room {
    pub(super) fn new(plan: &MemoryPlan, backend: &dyn Backend) -> Room {
        let checked = plan.check(MemoryLimit::Machine, backend);
        let shortfall = checked.err().and_then(|error| match error.kind() {
            RuntimeErrorKind::MemoryShortfall(shortfall) => Some((**shortfall).clone()),
            _ => None,
        });
        let source = LimitSource::System(backend.memory_bound());
        Room {
            available: backend.free_memory().map(|bytes| (bytes, source)),
            shortfall,
        }
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Some((bytes, source)) = self.available else {
            return Ok(());
        };
        let size = output::bytes(bytes);
        write!(out, "{:<8} {size:>10}  {source}: ", "limit")?;
        let Some(shortfall) = &self.shortfall else {
            return writeln!(out, "the run fits");
        };
        let remedies: Vec<String> = shortfall.remedies.iter().map(ToString::to_string).collect();
        match remedies.is_empty() {
            true => writeln!(out, "the run does not fit"),
            false => writeln!(
                out,
                "the run does not fit; it would with {}",
                remedies.join(", or with ")
            ),
        }
    }

    /// Adds the fields of JSON.
    pub(super) fn add_to(&self, object: &mut Value) {
        if let Some((bytes, source)) = self.available {
            object["fits"] = self.shortfall.is_none().into();
            object["available_bytes"] = bytes.into();
            object["available"] = source.to_string().into();
        }
    }
}
