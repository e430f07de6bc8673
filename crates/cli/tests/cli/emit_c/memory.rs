//! The resident memory of emitted programs is that of `layout.map`.

use super::{Case, compiler};
use crate::support::Folder;
use kvark::cache::KvStorage;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Prints the peak of the resident memory in KiB when the program ends.
const PEAK: &str = "
#include <stdio.h>
__attribute__((destructor)) static void report(void)
{
    char line[256];
    unsigned long peak = 0;
    FILE *status = fopen(\"/proc/self/status\", \"r\");
    while (status && fgets(line, sizeof line, status) && sscanf(line, \"VmHWM: %lu\", &peak) != 1)
        ;
    fprintf(stderr, \"%lu\", peak);
}
";

/// Compiles an emitted program with flags and runs it; its peak in bytes, or `None` if it does not link with the flags.
fn peak(target: &Path, compiler: &str, flags: &[&str]) -> Option<u64> {
    std::fs::write(target.join("peak.c"), PEAK).unwrap();
    let sources = ["main.c", "model.c", "kernels.c", "peak.c"];
    let built = Command::new(compiler)
        .current_dir(target)
        .args(["-O2", "-std=c11", "-ffp-contract=off"])
        .args(flags)
        .args(sources)
        .args(["-lm", "-o", "measured"])
        .output()
        .unwrap();
    if !built.status.success() {
        let note = format!("skipped: {compiler} does not link with {flags:?}\n");
        let _ = std::io::stderr().write_all(note.as_bytes());
        return None;
    }
    let output = Command::new(target.join("measured"))
        .current_dir(target)
        .args(["-n", "2", "1,2,3"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    Some(said.parse::<u64>().unwrap() * 1024)
}

/// The sum of state and weights in `layout.map`.
fn mapped(target: &Path) -> u64 {
    let map = std::fs::read_to_string(target.join("layout.map")).unwrap();
    let line = map.lines().find(|line| line.starts_with("in all")).unwrap();
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[test]
fn the_process_holds_what_the_map_says() {
    let (Some(model), Some(compiler)) = (crate::real::model(), compiler("cc")) else {
        return;
    };
    if !Path::new("/proc/self/status").exists() {
        let _ = std::io::stderr().write_all(b"skipped: there is no /proc\n");
        return;
    }
    let folder = Folder::new();
    let mut case = Case {
        model: Path::new(&model),
        context: 8192,
        step: 512,
        storage: KvStorage::F16,
        more: &[],
    };
    // A short context needs a static C library: the pages of shared libraries count as the process's.
    for (context, flags) in [(8192, &[][..]), (256, &["-static"])] {
        case.context = context;
        let target = case.emit(&folder, "measured");
        let Some(peak) = peak(&target, compiler, flags) else {
            continue;
        };
        let mapped = mapped(&target);
        let excess = peak as f64 / mapped as f64 - 1.0;
        assert!(
            excess.abs() < 0.01,
            "{context} tokens: {peak} bytes are resident, {mapped} are in the map"
        );
    }
}

#[test]
fn the_sources_of_the_default_model_are_short() {
    let Some(model) = crate::real::model() else {
        return;
    };
    let folder = Folder::new();
    let target = folder.path("short");
    folder
        .run(&["emit-c", &model, "-o", target.to_str().unwrap()])
        .ok();
    let entries = std::fs::read_dir(&target)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_source = |path: &std::path::PathBuf| {
        path.extension()
            .is_none_or(|ending| ending != "bin" && ending != "map")
    };
    let texts = entries.filter(is_source).map(std::fs::read_to_string);
    let lines: usize = texts.map(|text| text.unwrap().lines().count()).sum();
    assert!(lines <= 3100, "{lines} lines");
}
