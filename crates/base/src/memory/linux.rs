//! The memory that Linux states in files.

use std::fs;
use std::path::{Path, PathBuf};

/// Address space that a process takes beside what it plans: stacks and heaps of its threads.
const PER_THREAD: u64 = 4 << 20;

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The machine's free memory. Page cache counts as free, because it can be dropped.
pub(super) fn free() -> Option<u64> {
    field(&read("/proc/meminfo")?, "MemAvailable:", 1024)
}

/// The smallest number of bytes that a limit of the process' cgroups leaves.
pub(super) fn left_in_groups() -> Option<u64> {
    let folders = group_folders(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?);
    folders.iter().filter_map(|folder| left_in(folder)).min()
}

/// The bytes that the limit of the address space leaves for a plan.
pub(super) fn left_in_address_space() -> Option<u64> {
    let limit = address_space_limit(&read("/proc/self/limits")?)?;
    let used = field(&read("/proc/self/status")?, "VmSize:", 1024)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    Some(limit.saturating_sub(used + threads * PER_THREAD))
}

/// The number after `name` at the start of a line, times `unit`.
fn field(text: &str, name: &str, unit: u64) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.split_whitespace().next()?;
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// The soft limit of the address space in bytes; `None` if there is none.
fn address_space_limit(limits: &str) -> Option<u64> {
    // The text `unlimited` does not parse.
    field(limits, "Max address space", 1)
}

/// The folders of the process' cgroups that account memory, each followed by those that contain it. `groups` is the text of
/// `/proc/self/cgroup`, `mounts` that of `/proc/self/mountinfo`.
fn group_folders(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        // `4:memory:/path` in version 1, `0::/path` in version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_unified = controllers.is_empty();
        if !is_unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some((root, mount)) = mounts
            .lines()
            .find_map(|line| group_mount(line, is_unified))
        else {
            continue;
        };
        // A path outside of what is mounted is another namespace's: the mounted root is all that can be read.
        let inner = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let inner = match inner.components().any(|part| part.as_os_str() == "..") {
            true => Path::new(""),
            false => inner,
        };
        let own = mount.join(inner);
        let above = own
            .ancestors()
            .take_while(|folder| folder.starts_with(mount));
        folders.extend(above.map(Path::to_owned));
    }
    folders
}

/// The root and the mount point of a cgroup file system of this version that accounts memory.
fn group_mount(line: &str, is_unified: bool) -> Option<(&Path, &Path)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, mount) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1)?);
    let found = match is_unified {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    found.then_some((Path::new(root), Path::new(mount)))
}

/// The bytes that the limit of the cgroup in this folder leaves. Page cache of files counts as free, because it can be
/// dropped.
fn left_in(folder: &Path) -> Option<u64> {
    let versions = [
        ["memory.max", "memory.current", "", "memory.high"],
        [
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_",
            "",
        ],
    ];
    versions
        .into_iter()
        .find_map(|[limit, used, prefix, soft]| {
            let number = |name: &str| read(folder.join(name))?.trim().parse::<u64>().ok();
            // The text `max` means no limit and does not parse.
            let limit = [limit, soft].into_iter().filter_map(number).min()?;
            let stat = read(folder.join("memory.stat"))?;
            let files = |kind| field(&stat, &format!("{prefix}{kind}_file "), 1).unwrap_or(0);
            let files = files("inactive") + files("active");
            Some(limit.saturating_sub(number(used)?.saturating_sub(files)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_text_is_read() {
        let text = "MemTotal:       16000 kB\nMemFree:  100 kB\nMemAvailable:    9000 kB\n";
        assert_eq!(field(text, "MemAvailable:", 1024), Some(9000 * 1024));
        assert_eq!(field(text, "Nothing:", 1), None);
        assert_eq!(field("MemAvailable:", "MemAvailable:", 1024), None);
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax address space  4096  unlimited  bytes\n";
        assert_eq!(address_space_limit(limits), Some(4096));
        let limits = limits.replace("4096", "unlimited");
        assert_eq!(address_space_limit(&limits), None);
    }

    #[test]
    fn groups_and_their_ancestors_are_found() {
        let v1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                  32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        // A container sees its own part of the tree as the root.
        let container = v1.replace("0:32 /", "0:32 /docker/abc");
        let table: [(&str, &str, &[&str]); 6] = [
            ("4:memory:/\n1:cpu:/a\n", v1, &["/sys/fs/cgroup/memory"]),
            (
                "4:memory:/a/b\n0::/\n",
                v1,
                &[
                    "/sys/fs/cgroup/memory/a/b",
                    "/sys/fs/cgroup/memory/a",
                    "/sys/fs/cgroup/memory",
                ],
            ),
            (
                "0::/user.slice/run:1.scope\n",
                v2,
                &[
                    "/sys/fs/cgroup/user.slice/run:1.scope",
                    "/sys/fs/cgroup/user.slice",
                    "/sys/fs/cgroup",
                ],
            ),
            ("0::/../other\n", v2, &["/sys/fs/cgroup"]),
            (
                "4:memory:/docker/abc/x\n",
                &container,
                &["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"],
            ),
            (
                "4:memory:/elsewhere\n",
                &container,
                &["/sys/fs/cgroup/memory"],
            ),
        ];
        for (groups, mounts, want) in table {
            let want: Vec<PathBuf> = want.iter().map(PathBuf::from).collect();
            assert_eq!(group_folders(groups, mounts), want, "{groups}");
        }
    }

    #[test]
    fn both_versions_of_a_limit_are_read() {
        let folder = std::env::temp_dir().join(format!("kvark-cgroup-{}", std::process::id()));
        let left = |files: &[(&str, &str)]| {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in files {
                fs::write(folder.join(name), text).unwrap();
            }
            left_in(&folder)
        };
        let stat = ("memory.stat", "anon 5\ninactive_file 30\nactive_file 20\n");
        let used = ("memory.current", "400\n");
        assert_eq!(left(&[("memory.max", "1000\n"), used, stat]), Some(650));
        let soft = ("memory.high", "800\n");
        assert_eq!(
            left(&[("memory.max", "1000\n"), soft, used, stat]),
            Some(450)
        );
        assert_eq!(left(&[("memory.max", "max\n"), used, stat]), None);
        let first = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "400\n"),
            (
                "memory.stat",
                "cache 9\ninactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\n",
            ),
        ];
        assert_eq!(left(&first), Some(650));
        assert_eq!(left(&[]), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
