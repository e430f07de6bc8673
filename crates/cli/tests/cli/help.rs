//! Every command's help has a description, its flags and examples.

use crate::support::Folder;

#[test]
fn every_command_explains_itself() {
    let engine =
        "--ctx-size --threads --batch-size --cache-type-k --cache-type-v --preallocate --mem-limit";
    let sampling = "--temp --top-k --top-p --min-p --typical --repeat-penalty --frequency-penalty --presence-penalty --dry-multiplier --xtc-probability --logit-bias --seed";
    let cases = [
        (
            "run",
            format!(
                "--model --hf-repo --prompt --file --token-ids --chat --system --messages --chat-template --special --predict --stop --prompt-cache --prefix --context-shift --keep --json --json-schema --grammar --regex {engine} {sampling}"
            ),
        ),
        (
            "chat",
            format!(
                "--model --hf-repo --prompt --system --chat-template --special --predict --prompt-cache --context-shift --keep --verbose /regen /edit /set /system /stats Tab /rewind /save /load /clear Ctrl-C {engine} {sampling}"
            ),
        ),
        (
            "prefix",
            format!("build --model --hf-repo --prompt --file --output --on --chat --special {engine}"),
        ),
        (
            "score",
            format!("--model --hf-repo --prompt --file --token-ids --stride --json {engine}"),
        ),
        (
            "bench",
            format!("--n-prompt --n-gen --n-prompt-gen --n-depth --repetitions --output --compare --json {engine}"),
        ),
        (
            "agents-bench",
            format!("--model --url --api --served-model --trace --requests --print-trace --parallel --cache-disk --json {engine}"),
        ),
        (
            "embed",
            "--model --hf-repo --file --pooling --no-normalize --truncate --threads --json cosine".into(),
        ),
        (
            "exec",
            "--input --random --dim --step --trace --output --repeat --profile --passes --executor --json".into(),
        ),
        (
            "export",
            "--model --hf-repo --output --features --max-step --python KVARK_PYTHON pip".into(),
        ),
        (
            "emit-c",
            "--model --hf-repo --output --ctx-size --batch-size --cache-type-k --static --max-bytes layout.map".into(),
        ),
        ("inspect", "--model --hf-repo --graph --json".into()),
        ("show", "--model --hf-repo --template --json".into()),
        ("ps", "--host --port --api-key --json".into()),
        (
            "plan",
            "--model --hf-repo --ctx-size --compare --cache-type-k --mem-limit --map --svg --json config.json".into(),
        ),
        (
            "tokenize",
            "--model --hf-repo --prompt --file --bos --special --json".into(),
        ),
        ("detokenize", "--model --hf-repo --token-ids --json".into()),
        ("pull", "NAME hf:OWNER/REPO --hf-repo --force --verify KVARK_HOME HF_TOKEN HF_ENDPOINT".into()),
        ("list", "--json ollama:NAME".into()),
        ("rm", "NAME".into()),
        (
            "serve",
            format!("--model --hf-repo --host --port --parallel -np --slots --queue --api-key --cors-origin --cache-disk --timeout --grace --lenient /v1/chat/completions {engine}"),
        ),
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
