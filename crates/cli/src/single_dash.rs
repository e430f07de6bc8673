//! Long flags with one dash, as llama.cpp has them. clap has none, so they are spelled out before clap sees them.

use std::ffi::OsString;

/// Each flag, and how clap knows it.
const FLAGS: &[(&str, &str)] = &[
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-md", "--model-draft"),
    ("-np", "--parallel"),
];

/// Replaces the flags. Text after `-p` and arguments after `--` stay as they are.
pub(crate) fn spell_out(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = Vec::new();
    let mut is_over = false;
    for arg in args {
        let is_text = out
            .last()
            .is_some_and(|last| last == "-p" || last == "--prompt");
        is_over |= arg == "--" && !is_text;
        let spelled = match arg.to_str() {
            Some(arg) if !is_over && !is_text => spelled(arg),
            _ => None,
        };
        out.push(spelled.map_or(arg, OsString::from));
    }
    out
}

fn spelled(arg: &str) -> Option<String> {
    FLAGS.iter().find_map(|(short, long)| {
        let rest = arg.strip_prefix(short)?;
        (rest.is_empty() || rest.starts_with('=')).then(|| format!("{long}{rest}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flag_is_replaced() {
        let table = [
            ("run -hf o/r -n 1", "run --hf-repo o/r -n 1"),
            ("run -hfr o/r", "run --hf-repo o/r"),
            ("run -hf=o/r:Q8_0", "run --hf-repo=o/r:Q8_0"),
            ("run -h", "run -h"),
            ("serve -np 8 -n 3", "serve --parallel 8 -n 3"),
            ("run -p -hf -hf o/r", "run -p -hf --hf-repo o/r"),
            ("embed -m x -- -hf", "embed -m x -- -hf"),
            ("run -p -- -hf o/r", "run -p -- --hf-repo o/r"),
        ];
        for (given, want) in table {
            let args = spell_out(given.split(' ').map(OsString::from));
            let args: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            assert_eq!(args.join(" "), want);
        }
    }
}
