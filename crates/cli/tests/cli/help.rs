//! Every command's help has a description, its flags and examples.

use crate::support::Folder;

#[test]
fn every_command_explains_itself() {
    let engine = "--ctx-size --threads --batch-size --cache-type-k --cache-type-v --mem-limit";
    let sampling = "--temp --top-k --top-p --min-p --typical --repeat-penalty --frequency-penalty --presence-penalty --dry-multiplier --xtc-probability --logit-bias --seed";
    let cases = [
        (
            "run",
            format!(
                "--model --prompt --file --token-ids --chat --system --messages --chat-template --special --predict --stop --prompt-cache --context-shift --keep --json {engine} {sampling}"
            ),
        ),
        (
            "chat",
            format!(
                "--model --prompt --system --chat-template --special --predict --prompt-cache --context-shift --keep --verbose /regen /edit /set /system /stats Tab /rewind /save /load /clear Ctrl-C {engine} {sampling}"
            ),
        ),
        (
            "score",
            format!("--model --prompt --file --token-ids --stride --json {engine}"),
        ),
        (
            "bench",
            format!("--n-prompt --n-gen --n-depth --repetitions --json {engine}"),
        ),
        (
            "embed",
            "--model --file --pooling --no-normalize --truncate --threads --json cosine".into(),
        ),
        (
            "exec",
            "--input --random --dim --trace --output --repeat --profile --passes --executor --json".into(),
        ),
        (
            "export",
            "--model --output --features --max-step --python KVARK_PYTHON pip".into(),
        ),
        ("inspect", "--model --graph --json".into()),
        (
            "plan",
            "--model --ctx-size --compare --cache-type-k --mem-limit --map --svg --png --json config.json".into(),
        ),
        (
            "tokenize",
            "--model --prompt --file --bos --special --json".into(),
        ),
        ("detokenize", "--model --token-ids --json".into()),
        ("pull", "NAME --force --verify KVARK_HOME".into()),
        ("list", "--json".into()),
        ("rm", "NAME".into()),
        (
            "config",
            "--path --json config.toml KVARK_CONFIG XDG_CONFIG_HOME".into(),
        ),
        ("completions", "SHELL --dir bash zsh fish".into()),
        ("man", "COMMAND --dir".into()),
    ];
    let folder = Folder::new();
    let overview = folder.run(&["help"]).ok();
    for (command, words) in cases {
        let help = folder.run(&[command, "--help"]).ok();
        for word in words.split(' ').chain(["Examples:", "kvark "]) {
            assert!(
                help.contains(word),
                "kvark {command} --help lacks {word}:\n{help}"
            );
        }
        let about = help.lines().next().unwrap();
        assert!(overview.contains(about), "{command}: {about}");
    }
    assert!(overview.contains("Examples:"), "{overview}");
    assert!(folder.run(&["--version"]).ok().starts_with("kvark "));
}
