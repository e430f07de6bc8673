//! A table of plans: a line per context length, a column per storage type.

use super::report::grouped;
use crate::output;
use anyhow::Result;
use kvark::cache::KvStorage;
use kvark::memory::MemoryPlan;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Bytes of keys and values, and of everything, for each context and type.
pub(super) struct Table {
    types: Vec<String>,
    /// Per context, one entry for each type.
    rows: Vec<(u32, Vec<Entry>)>,
}

struct Entry {
    kv: usize,
    total: usize,
}

impl Table {
    /// Computes the plan of every context and storage type; without types, `plan` uses the types of the arguments.
    pub(super) fn new(
        contexts: &[u32],
        types: &[KvStorage],
        own: (KvStorage, KvStorage),
        plan: impl Fn(Option<u32>, Option<KvStorage>) -> Result<MemoryPlan>,
    ) -> Result<Table> {
        let contexts: Vec<Option<u32>> = match contexts {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        let columns: Vec<Option<KvStorage>> = match types {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        let name = |column: &Option<KvStorage>| match column {
            Some(storage) => storage.to_string(),
            None if own.0 == own.1 => own.0.to_string(),
            None => format!("{}/{}", own.0, own.1),
        };
        let mut rows = vec![];
        for context in contexts {
            let mut entries = vec![];
            let mut capacity = 0;
            for storage in &columns {
                let plan = plan(context, *storage)?;
                capacity = plan.cache.capacity;
                entries.push(Entry {
                    kv: plan.kv_bytes(),
                    total: plan.total_bytes(),
                });
            }
            rows.push((capacity, entries));
        }
        Ok(Table {
            types: columns.iter().map(name).collect(),
            rows,
        })
    }

    pub(super) fn json(&self) -> Value {
        let entries = self.rows.iter().flat_map(|(context, entries)| {
            self.types.iter().zip(entries).map(move |(name, entry)| {
                json!({
                    "context": context,
                    "type": name,
                    "kv_bytes": entry.kv,
                    "total_bytes": entry.total,
                })
            })
        });
        entries.collect()
    }

    pub(super) fn print(&self, out: &mut impl Write, name: &str) -> io::Result<()> {
        writeln!(out, "{name}")?;
        for part in ["KV", "total"] {
            write!(out, "\n{part:<10}")?;
            for name in &self.types {
                write!(out, " {name:>12}")?;
            }
            writeln!(out)?;
            for (context, entries) in &self.rows {
                write!(out, "{:>10}", grouped(*context as usize))?;
                for entry in entries {
                    let n = match part {
                        "KV" => entry.kv,
                        _ => entry.total,
                    };
                    let short = output::bytes(n as u64);
                    write!(out, " {short:>12}")?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }
}
