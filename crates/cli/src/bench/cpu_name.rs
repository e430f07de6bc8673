//! The name of the CPU that a benchmark ran on.

/// Model name of the CPU: the system's, or the CPU's own; without either, its architecture.
pub(super) fn cpu_name() -> String {
    let name = of_system().or_else(of_cpu);
    name.unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH))
}

#[cfg(target_os = "macos")]
fn of_system() -> Option<String> {
    let mut sysctl = std::process::Command::new("sysctl");
    let output = sysctl.args(["-n", "machdep.cpu.brand_string"]).output();
    let name = String::from_utf8(output.ok()?.stdout).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(not(target_os = "macos"))]
fn of_system() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut lines = info.lines();
    let line = lines.find_map(|line| line.strip_prefix("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The brand string of the CPU.
#[cfg(target_arch = "x86_64")]
fn of_cpu() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    const BRAND: std::ops::RangeInclusive<u32> = 0x8000_0002..=0x8000_0004;
    if __cpuid(0x8000_0000).eax < *BRAND.end() {
        return None;
    }
    let words = BRAND
        .map(__cpuid)
        .flat_map(|r| [r.eax, r.ebx, r.ecx, r.edx]);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    let text = bytes.split(|byte| *byte == 0).next()?;
    let name = String::from_utf8_lossy(text).trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(not(target_arch = "x86_64"))]
fn of_cpu() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_calls_itself_what_the_system_calls_it() {
        assert!(!cpu_name().is_empty());
        if let (Some(system), Some(cpu)) = (of_system(), of_cpu()) {
            assert_eq!(system, cpu);
        }
    }
}
