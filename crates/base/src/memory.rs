//! The memory that this process can still allocate, and which limit that is.

#[cfg(target_os = "linux")]
mod linux;

/// The limit that bounds the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    /// The free memory of the machine or of the device.
    Free,
    /// The limit of a cgroup: of the process' own one or of one that contains it.
    Group,
    /// The limit of the address space (`ulimit -v`).
    AddressSpace,
}

/// Bytes that can be allocated, and what bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// The bytes.
    pub bytes: u64,
    /// The smallest of the limits.
    pub bound: MemoryBound,
}

/// The memory available for allocation, as the system reports it. `None` if it does not.
#[cfg(not(target_os = "linux"))]
pub fn available_memory() -> Option<AvailableMemory> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let bytes = Some(system.available_memory()).filter(|bytes| *bytes > 0)?;
    Some(AvailableMemory {
        bytes,
        bound: MemoryBound::Free,
    })
}

/// The memory available for allocation: the smallest of the machine's free memory, what the limits of the process' cgroups
/// leave, and what the limit of its address space leaves. `None` if nothing can be read.
#[cfg(target_os = "linux")]
pub fn available_memory() -> Option<AvailableMemory> {
    let of = |bytes: Option<u64>, bound| bytes.map(|bytes| AvailableMemory { bytes, bound });
    [
        of(linux::free(), MemoryBound::Free),
        of(linux::left_in_groups(), MemoryBound::Group),
        of(linux::left_in_address_space(), MemoryBound::AddressSpace),
    ]
    .into_iter()
    .flatten()
    .min_by_key(|available| available.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let bytes = available_memory().expect("reported").bytes;
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    }
}
