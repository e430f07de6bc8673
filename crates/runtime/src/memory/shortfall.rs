//! `MemoryShortfall`: a plan above its memory limit, and the smallest changes that would make it fit.

use super::MemoryPlan;
use base::{MemoryBound, size_text};
use kv::{CacheConfig, KvStorage, QuantGroup};
use std::fmt;

/// A plan that needs more memory than its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryShortfall {
    /// Bytes that the plan needs.
    pub needed: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// What the limit is.
    pub source: LimitSource,
    /// Bytes that the plan needs without keys and values.
    pub bytes_without_kv: u64,
    /// Changes each of which would make the plan fit; empty if the plan is too large even without keys and values.
    pub remedies: Vec<Remedy>,
}

/// Where a limit of memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// The caller's [`MemoryLimit::Bytes`](crate::MemoryLimit::Bytes).
    Caller,
    /// The device, or the system's limits of this process.
    System(MemoryBound),
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitSource::Caller => "the memory limit that was asked for",
            LimitSource::System(MemoryBound::Free) => "the free memory",
            LimitSource::System(MemoryBound::Group) => "what the memory limit of the cgroup leaves",
            LimitSource::System(MemoryBound::AddressSpace) => {
                "what the limit of the address space leaves, see ulimit -v"
            }
        })
    }
}

/// A change that would make a plan fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The longest context that fits, in tokens.
    pub context: u32,
    /// The storage type of keys and values, if it changes.
    pub storage: Option<KvStorage>,
    /// Whether the context is shorter than the requested one.
    pub shorter: bool,
}

/// The smaller storage types that are tried, the most exact first.
const SMALLER_STORAGE: [KvStorage; 3] = [
    KvStorage::F16,
    KvStorage::Q8(QuantGroup::G32),
    KvStorage::Q4(QuantGroup::G32),
];

impl MemoryShortfall {
    /// The shortfall of a plan under a limit; `None` if the plan fits.
    pub(super) fn of(
        plan: &MemoryPlan,
        limit: u64,
        source: LimitSource,
    ) -> Option<MemoryShortfall> {
        let needed = plan.total_bytes() as u64;
        if needed <= limit {
            return None;
        }
        let bytes_without_kv = needed.saturating_sub(plan.kv_bytes() as u64);
        let room = limit.checked_sub(bytes_without_kv);
        let remedies = room.map_or(vec![], |room| remedies(plan, room));
        Some(MemoryShortfall {
            needed,
            limit,
            source,
            bytes_without_kv,
            remedies,
        })
    }
}

/// The changes that reduce keys and values to at most `room` bytes.
fn remedies(plan: &MemoryPlan, room: u64) -> Vec<Remedy> {
    let config = &plan.cache;
    let bytes = |storage: Option<KvStorage>, context: u32| {
        let config = CacheConfig {
            capacity: context,
            key_storage: storage.unwrap_or(config.key_storage),
            value_storage: storage.unwrap_or(config.value_storage),
            layer_storage: match storage {
                Some(_) => Default::default(),
                None => config.layer_storage.clone(),
            },
            ..config.clone()
        };
        config.layout(context, plan.kind.sequences()).bytes() as u64
    };
    let longest = |storage: Option<KvStorage>| {
        let (mut fits, mut too_long) = (0, config.capacity.saturating_add(1));
        while too_long - fits > 1 {
            let middle = fits + (too_long - fits) / 2;
            match bytes(storage, middle) <= room {
                true => fits = middle,
                false => too_long = middle,
            }
        }
        (fits > 0).then_some(Remedy {
            context: fits,
            storage,
            shorter: fits < config.capacity,
        })
    };
    let whole = |storage| longest(Some(storage)).filter(|remedy| !remedy.shorter);
    let mut remedies: Vec<Remedy> = SMALLER_STORAGE
        .into_iter()
        .find_map(whole)
        .into_iter()
        .collect();
    remedies.extend(longest(None));
    if remedies.is_empty() {
        let smallest = KvStorage::Q4(QuantGroup::G32);
        remedies.extend(longest(Some(smallest)));
    }
    remedies
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shorter {
            write!(f, "a context of {} tokens (-c {0})", self.context)?;
        }
        match self.storage {
            Some(storage) => {
                let and = if self.shorter { " and " } else { "" };
                write!(
                    f,
                    "{and}keys and values in {storage} (--cache-type-k {storage} --cache-type-v {storage})"
                )
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for MemoryShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryShortfall {
            needed,
            limit,
            source,
            bytes_without_kv,
            remedies,
        } = self;
        let [needed, limit, bytes_without_kv] =
            [needed, limit, bytes_without_kv].map(|bytes| size_text(*bytes));
        write!(
            f,
            "the run needs {needed} of memory, and the limit is {limit} ({source}); "
        )?;
        if remedies.is_empty() {
            return write!(
                f,
                "without any context it needs {bytes_without_kv}, so a smaller model or batch (-b) is needed"
            );
        }
        let texts: Vec<String> = remedies.iter().map(Remedy::to_string).collect();
        write!(f, "it would fit with {}", texts.join(", or with "))
    }
}
