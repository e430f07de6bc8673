//! Flags of llama.cpp that clap would misread: long ones with one dash (`-ngl 99` is not `-n gl`), and those without a
//! meaning here. They are spelled out, or refused with advice, before clap sees them.

use std::ffi::OsString;

/// Each flag with one dash, and how clap knows it.
const FLAGS: &[(&str, &str)] = &[
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-md", "--model-draft"),
    ("-mu", "--model"),
    ("-np", "--parallel"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system"),
    ("-dev", "--device"),
    ("-jf", "--json-schema"),
    ("-to", "--timeout"),
    ("-pg", "--n-prompt-gen"),
];

/// Each flag of llama.cpp that has no counterpart, and the advice.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["-ngl", "--gpu-layers", "--n-gpu-layers"],
        "all layers are on one device: use --device cuda for a GPU",
    ),
    (
        &["-fa", "--flash-attn"],
        "attention always reads the cache in place: leave it out",
    ),
    (
        &["-cnv", "--conversation", "-i", "--interactive"],
        "use kvark chat",
    ),
    (
        &["-no-cnv", "-nocnv", "--no-conversation"],
        "kvark run completes a prompt as it is: leave it out",
    ),
    (
        &["-st", "--single-turn"],
        "use kvark run --chat -p \"...\" for one turn",
    ),
    (&["-tb", "--threads-batch"], "use -t for all steps"),
    (&["-ub", "--ubatch-size"], "use -b"),
    (&["-hff", "--hf-file"], "use -hf OWNER/REPO:FILE.gguf"),
    (&["-hft", "--hf-token"], "set the variable HF_TOKEN"),
    (
        &["-cb", "--cont-batching"],
        "requests are always batched: leave it out",
    ),
    (&["-sm", "-mg", "-ts"], "a model runs on one device"),
    (
        &["--mmap", "--no-mmap", "--mlock"],
        "weights are always mapped: leave it out",
    ),
    (&["-jff", "--json-schema-file"], "use --json-schema FILE"),
];

/// Flags whose value may begin with a dash.
const OF_TEXT: [&str; 6] = ["-p", "--prompt", "--system", "-sys", "--stop", "--regex"];

/// Replaces the flags. Text after `-p` and the like and arguments after `--` stay as they are.
///
/// # Errors
/// If a flag has no counterpart; the message names what to use.
pub(crate) fn spell_out(args: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut out: Vec<OsString> = Vec::new();
    let mut is_over = false;
    let mut is_text = false;
    for arg in args {
        is_over |= arg == "--" && !is_text;
        let given = arg.to_str().filter(|_| !is_over && !is_text);
        if let Some(advice) = given.and_then(refusal) {
            let flag = given.unwrap_or_default();
            return Err(format!("{flag} is a flag of llama.cpp; {advice}"));
        }
        is_text = given.is_some_and(|arg| OF_TEXT.contains(&arg));
        out.push(given.and_then(spelled).map_or(arg, OsString::from));
    }
    Ok(out)
}

fn refusal(arg: &str) -> Option<&'static str> {
    let name = arg.split_once('=').map_or(arg, |(name, _)| name);
    let found = REFUSED.iter().find(|(flags, _)| flags.contains(&name));
    found.map(|(_, advice)| *advice)
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

    fn spell(given: &str) -> Result<String, String> {
        let args = spell_out(given.split(' ').map(OsString::from))?;
        let args: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        Ok(args.join(" "))
    }

    #[test]
    fn only_the_flag_is_replaced() {
        let table = [
            ("run -hf o/r -n 1", "run --hf-repo o/r -n 1"),
            ("run -hfr o/r", "run --hf-repo o/r"),
            ("run -hf=o/r:Q8_0", "run --hf-repo=o/r:Q8_0"),
            ("run -h", "run -h"),
            ("run -n16", "run -n16"),
            ("serve -np 8 -n 3", "serve --parallel 8 -n 3"),
            (
                "run -ctk q8_0 -ctv q8_0",
                "run --cache-type-k q8_0 --cache-type-v q8_0",
            ),
            ("run -sys -fa -c 9", "run --system -fa -c 9"),
            ("run -p -hf -hf o/r", "run -p -hf --hf-repo o/r"),
            ("run -p -ngl", "run -p -ngl"),
            ("embed -m x -- -hf", "embed -m x -- -hf"),
            ("run -p -- -hf o/r", "run -p -- --hf-repo o/r"),
        ];
        for (given, want) in table {
            assert_eq!(spell(given).unwrap(), want);
        }
    }

    #[test]
    fn a_flag_without_counterpart_is_refused_by_name() {
        let table = [
            ("run -ngl 99 -p a", "-ngl", "--device cuda"),
            ("run -ngl=99 -p a", "-ngl=99", "--device cuda"),
            ("bench -fa on", "-fa", "leave it out"),
            ("run -cnv", "-cnv", "kvark chat"),
            ("run -st", "-st", "--chat"),
        ];
        for (given, flag, advice) in table {
            let error = spell(given).unwrap_err();
            assert!(error.starts_with(&format!("{flag} is a flag")), "{error}");
            assert!(error.contains(advice), "{error}");
        }
    }
}
