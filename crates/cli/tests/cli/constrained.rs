//! `kvark run` with a schema, a grammar or an expression, on the default model.

use crate::real::model;
use crate::support::Folder;

#[test]
fn the_output_follows_what_was_asked_for() {
    let Some(model) = model() else { return };
    let folder = Folder::new();
    std::fs::write(
        folder.path("moves.gbnf"),
        "root ::= (\"left\" | \"right\") \"!\"{3}\n",
    )
    .unwrap();
    std::fs::write(folder.path("two.lark"), "start: \"ab\" \"c\"{2}\n").unwrap();
    let gbnf = folder.path("moves.gbnf");
    let lark = folder.path("two.lark");
    let run = |flag: &str, value: &str| {
        let args = [
            "run",
            &model,
            "Which way?",
            flag,
            value,
            "-n",
            "60",
            "--seed",
            "1",
            "--no-display-prompt",
        ];
        folder.run(&args).ok().trim().to_owned()
    };
    assert!(["left!!!", "right!!!"].contains(&&*run("--grammar", gbnf.to_str().unwrap())));
    assert_eq!(run("--grammar", lark.to_str().unwrap()), "abcc");
    let number = run("--regex", "[1-9][0-9]{2}");
    assert!(
        (100..1000).contains(&number.parse::<u32>().unwrap()),
        "{number}"
    );
    let schema = r#"{"type":"object","properties":{"way":{"enum":["left","right"]}},"required":["way"],"additionalProperties":false}"#;
    let way: serde_json::Value = serde_json::from_str(&run("--json-schema", schema)).unwrap();
    assert!(["left", "right"].contains(&way["way"].as_str().unwrap()));
}

#[test]
fn bad_grammars_are_named() {
    let Some(model) = model() else { return };
    let folder = Folder::new();
    std::fs::write(folder.path("bad.gbnf"), "root ::= \"a\" |\n  other\n").unwrap();
    let bad = folder.path("bad.gbnf");
    for (flag, value, message) in [
        ("--grammar", bad.to_str().unwrap(), "line 2 of the grammar"),
        ("--grammar", "none.gbnf", "none.gbnf"),
        ("--json-schema", "{", "--json-schema is not JSON"),
        ("--regex", "(", "regex"),
    ] {
        let error = folder
            .run(&["run", &model, "x y", flag, value, "-n", "4"])
            .error();
        assert!(error.contains(message), "{value}: {error}");
    }
}
