//! `-hf`, as llama.cpp has it. clap has no long flags with one dash, so the flag is spelled out before clap sees it.

use std::ffi::OsString;

/// Replaces `-hf` and `-hfr` by `--hf-repo`. Text after `-p` and arguments after `--` stay as they are.
pub(crate) fn spell_out(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = Vec::new();
    let mut is_over = false;
    for arg in args {
        let is_text = out
            .last()
            .is_some_and(|last| last == "-p" || last == "--prompt");
        is_over |= arg == "--" && !is_text;
        let spelled = match arg.to_str() {
            _ if is_over || is_text => None,
            Some("-hf" | "-hfr") => Some("--hf-repo".to_owned()),
            Some(arg) => {
                let value = arg
                    .strip_prefix("-hf=")
                    .or_else(|| arg.strip_prefix("-hfr="));
                value.map(|value| format!("--hf-repo={value}"))
            }
            None => None,
        };
        out.push(spelled.map_or(arg, OsString::from));
    }
    out
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
