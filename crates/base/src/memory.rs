//! The memory that is available on this machine.

#[cfg(target_os = "linux")]
use std::fs;

/// Bytes available for allocation, as the system reports them. `None` if it does not.
#[cfg(not(target_os = "linux"))]
pub fn available_memory() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    Some(system.available_memory()).filter(|bytes| *bytes > 0)
}

/// Bytes available for allocation: the smaller of `MemAvailable` and what the cgroup limit leaves. `None` if neither
/// can be read.
#[cfg(target_os = "linux")]
pub fn available_memory() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let whole = read("/proc/meminfo").and_then(|text| field(&text, "MemAvailable:", 1024));
    let group = || {
        let limit = read("/sys/fs/cgroup/memory.max")?;
        let used = read("/sys/fs/cgroup/memory.current")?;
        let stat = read("/sys/fs/cgroup/memory.stat")?;
        group_bytes(&limit, &used, &stat)
    };
    match (whole, group()) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The number after `name` at the start of a line, times `unit`.
#[cfg(any(target_os = "linux", test))]
fn field(text: &str, name: &str, unit: u64) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.split_whitespace().next()?;
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// The bytes that a cgroup limit leaves. Page cache of files counts as free, because it can be dropped.
#[cfg(any(target_os = "linux", test))]
fn group_bytes(limit: &str, used: &str, stat: &str) -> Option<u64> {
    // The text `max` means no limit and does not parse.
    let limit: u64 = limit.trim().parse().ok()?;
    let used: u64 = used.trim().parse().ok()?;
    let files =
        field(stat, "inactive_file ", 1).unwrap_or(0) + field(stat, "active_file ", 1).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let bytes = available_memory().expect("reported");
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_system_s_text_is_read() {
        let text = "MemTotal:       16000 kB\nMemFree:  100 kB\nMemAvailable:    9000 kB\n";
        assert_eq!(field(text, "MemAvailable:", 1024), Some(9000 * 1024));
        assert_eq!(field(text, "Nothing:", 1), None);
        assert_eq!(field("MemAvailable:", "MemAvailable:", 1024), None);
        let stat = "anon 5\ninactive_file 30\nactive_file 20\n";
        assert_eq!(group_bytes("1000\n", "400\n", stat), Some(650));
        assert_eq!(group_bytes("max\n", "400\n", stat), None);
    }
}
