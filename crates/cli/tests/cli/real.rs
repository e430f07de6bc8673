//! The default model, if it is present: `KVARK_TEST_MODEL`, or the file that `kvark pull` downloaded to the tester's home.

use crate::support::Folder;
use kvark::catalogue::{FileState, ModelStore, default_entry};
use std::path::PathBuf;

/// Path of the default model; says that the test is skipped if there is none.
pub(crate) fn model() -> Option<String> {
    let named = std::env::var_os("KVARK_TEST_MODEL").map(PathBuf::from);
    let path = named.or_else(|| {
        let home = ModelStore::from_env().ok()?;
        let there = home.state(default_entry()) == FileState::Present;
        there.then(|| home.model_path(default_entry()))
    });
    let path = path.and_then(|path| Some(path.to_str()?.to_owned()));
    if path.is_none() {
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"skipped: no default model at hand\n",
        );
    }
    path
}

#[test]
fn the_default_model_speaks() {
    let Some(model) = model() else {
        return;
    };
    let folder = Folder::new();
    let args = [
        "run",
        &model,
        "-p",
        "The capital of France is",
        "-n",
        "8",
        "--temp",
        "0",
        "--json",
    ];
    let first = folder.run(&args).json();
    assert!(first["text"].as_str().unwrap().contains("Paris"), "{first}");
    // The second run uses the packed weights that the first one wrote.
    let packed = || folder.run(&["list", "--json"]).json()["packed"]["bytes"].as_u64();
    assert!(packed() > Some(90_000_000));
    assert_eq!(first["tokens"], folder.run(&args).json()["tokens"]);
    // A flipped bit is detected wherever it is: the weight is packed again and the file replaced.
    let file = std::fs::read_dir(folder.path("home/packed"))
        .unwrap()
        .next();
    let file = file.unwrap().unwrap().path();
    let clean = std::fs::read(&file).unwrap();
    for part in [0.0, 0.3, 0.6, 0.999_999_9] {
        let mut bytes = clean.clone();
        let at = (clean.len() as f64 * part) as usize;
        bytes[at] ^= 0x40;
        std::fs::write(&file, bytes).unwrap();
        let again = folder.run(&args).json();
        assert_eq!(first["tokens"], again["tokens"], "byte {at}");
        assert!(std::fs::read(&file).unwrap() == clean, "byte {at}");
    }
    folder.run(&["rm", "--packed"]).ok();
    let alone = folder.run(&[&args[..], &["--no-packed-file"]].concat());
    assert_eq!(first["tokens"], alone.json()["tokens"]);
    assert_eq!(packed(), Some(0));

    let text = "Grüße, 世界!  1234 tabs\tand\nlines";
    let ids = folder.run(&["tokenize", &model, "-p", text]).ok();
    assert_eq!(
        folder.run(&["detokenize", &model, ids.trim()]).ok(),
        format!("{text}\n")
    );

    let args = ["chat", &model, "--temp", "0", "-n", "12"];
    let answers = folder.run_with_input(
        &args,
        "What is the capital of France?\n/rewind\nWhat is the capital of France?\n",
    );
    let answers = answers.ok();
    let (a, b) = answers.split_at(answers.len() / 2);
    assert_eq!(a, b);
    assert!(a.contains("Paris"), "{a}");
}

#[test]
fn habits_work_on_the_default_model() {
    let Some(model) = model() else {
        return;
    };
    let folder = Folder::new();
    // The prompt in each place gives the same text.
    let prompt = "The capital of France is";
    let options = ["-n", "6", "--temp", "0", "--json"];
    let text = |args: &[&str], input: &str| {
        let args = [&["run"], args, &options[..]].concat();
        let report = folder.run_with_input(&args, input).json();
        report["text"].as_str().unwrap().to_owned()
    };
    let expect = text(&[&model, "-p", prompt], "");
    assert!(expect.contains("Paris"), "{expect}");
    assert_eq!(text(&[&model, prompt], ""), expect);
    assert_eq!(text(&["-m", &model], &format!("{prompt}\n")), expect);
    // A conversation from a file.
    let file = folder.file(
        "messages.json",
        r#"[{"role": "system", "content": "You answer with one word."},
            {"role": "user", "content": "What is the capital of France?"}]"#,
    );
    let answer = text(&[&model, "--messages", &file], "");
    assert!(answer.contains("Paris"), "{answer}");
    let flags = [&*model, "--chat", "--system", "You answer with one word."];
    let asked = text(
        &[&flags[..], &["What is the capital of France?"]].concat(),
        "",
    );
    assert_eq!(asked, answer);

    // Greedy text that runs in circles: DRY breaks the circle, at the length where it first repeats.
    let circle = |more: &[&str]| {
        let args = [
            "run",
            &model,
            "-n",
            "48",
            "--temp",
            "0",
            "--ignore-eos",
            "--json",
        ];
        let prompt = "row row row your boat row row row your boat row row row";
        let report = folder.run(&[&args[..], &[prompt], more].concat()).json();
        report["text"].as_str().unwrap().to_owned()
    };
    let boats = |text: &str| text.matches("row row row your boat").count();
    let (plain, dry) = (circle(&[]), circle(&["--dry-multiplier", "2"]));
    assert!(boats(&plain) > 2, "{plain}");
    assert!(boats(&dry) <= 1, "{dry}");

    // A text of several contexts in windows: near its perplexity in one piece.
    let prose = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../CONTRIBUTING.md"),
    );
    let prose = folder.file("prose.txt", &prose.unwrap()[..1500]);
    let perplexity = |more: &[&str]| {
        let args = ["score", &model, "-f", &prose, "--json"];
        let report = folder.run(&[&args[..], more].concat()).json();
        report["perplexity"].as_f64().unwrap()
    };
    let whole = perplexity(&[]);
    let windows = perplexity(&["-c", "128", "--stride", "48"]);
    let apart = perplexity(&["-c", "128", "--stride", "127"]);
    assert!(
        whole <= windows && windows <= apart,
        "{whole} {windows} {apart}"
    );
    assert!(windows < 1.5 * whole, "{whole} {windows} {apart}");
}
