use super::*;

#[test]
fn this_tree_keeps_the_rules() {
    let (workspace, crates) = read(shell::root()).unwrap();
    assert_eq!(check(&workspace, &crates), Vec::<String>::new());
}

#[test]
fn allowed_arrows_point_inwards() {
    for (row, layer) in LAYERS.iter().enumerate() {
        for name in layer.uses {
            let inner = LAYERS[..row].iter().any(|other| other.name == *name);
            assert!(
                inner,
                "{} may use {name}, which is not above it",
                layer.name
            );
        }
    }
}

/// Puts one change into a tree of made-up crates that keeps the rules.
fn problems(name: &str, change: impl FnOnce(&mut Crate)) -> Vec<String> {
    let mut workspace = String::from("[workspace.dependencies]\nhalf = \"2\"\n");
    let mut crates = Vec::new();
    for layer in LAYERS {
        let name = layer.name;
        workspace += &format!("{name} = {{ path = \"crates/{name}\" }}\n");
        let attribute = match layer.may_be_unsafe {
            Unsafe::Nowhere => "#![forbid(unsafe_code)]",
            Unsafe::In(_) => "#![deny(unsafe_code)]",
            Unsafe::Anywhere => "",
        };
        let mut manifest: Table = "version.workspace = true
            edition.workspace = true
            rust-version.workspace = true
            license.workspace = true
            publish.workspace = true"
            .parse()
            .unwrap();
        manifest = Table::from_iter([("package".to_owned(), Value::Table(manifest))]);
        manifest.insert("lints".into(), inherited());
        let uses = layer.uses.iter().chain(&["half"]);
        let uses = Table::from_iter(uses.map(|name| ((*name).to_owned(), inherited())));
        manifest.insert("dependencies".into(), Value::Table(uses));
        crates.push(Crate {
            name: name.into(),
            manifest,
            sources: vec![("lib.rs".into(), format!("//! Docs.\n{attribute}\n"))],
        });
    }
    let changed = crates.iter_mut().find(|it| it.name == name).unwrap();
    change(changed);
    let problems = check(&workspace.parse().unwrap(), &crates);
    // The shells are at the top: nobody uses them.
    let top = [
        "workspace: no crate uses python",
        "workspace: no crate uses xtask",
    ];
    problems
        .into_iter()
        .filter(|p| !top.contains(&p.as_str()))
        .collect()
}

fn inherited() -> Value {
    Value::Table(Table::from_iter([("workspace".to_owned(), true.into())]))
}

/// Adds a dependency on another crate in a section of the manifest.
fn depend(section: &'static str, other: &'static str) -> impl FnOnce(&mut Crate) {
    move |it| {
        let section = it
            .manifest
            .entry(section)
            .or_insert(Value::Table(Table::new()));
        section
            .as_table_mut()
            .unwrap()
            .insert(other.into(), inherited());
    }
}

#[test]
fn wrong_arrows_are_named() {
    assert_eq!(problems("kv", |_| {}), Vec::<String>::new());
    assert_eq!(
        problems("text", depend("dev-dependencies", "import")),
        Vec::<String>::new()
    );
    for (name, section, other, expected) in [
        (
            "kv",
            "dependencies",
            "base",
            "kv: it must not depend on base",
        ),
        (
            "graph",
            "build-dependencies",
            "kv",
            "graph: it must not depend on kv",
        ),
        (
            "text",
            "dependencies",
            "import",
            "text: it must not depend on import",
        ),
        (
            "kv",
            "dev-dependencies",
            "import",
            "kv: its tests must not depend on import",
        ),
        (
            "runtime",
            "dependencies",
            "cpu",
            "runtime: it must not depend on cpu",
        ),
        (
            "cli",
            "dependencies",
            "runtime",
            "cli: it must not depend on runtime",
        ),
    ] {
        assert_eq!(problems(name, depend(section, other)), [expected]);
    }
    let hidden = |it: &mut Crate| {
        let unix = "[target.'cfg(unix)'.dependencies]\ncpu.workspace = true";
        it.manifest.extend(unix.parse::<Table>().unwrap());
    };
    assert_eq!(
        problems("graph", hidden),
        ["graph: it must not depend on cpu"]
    );
}

#[test]
fn own_settings_are_named() {
    let version = |it: &mut Crate| {
        it.manifest["dependencies"]["half"] = "2.7".into();
    };
    assert_eq!(
        problems("base", version),
        ["base: the version of half must be the workspace's"]
    );
    let lints = |it: &mut Crate| drop(it.manifest.remove("lints"));
    assert_eq!(
        problems("base", lints),
        ["base: lints must be the workspace's"]
    );
    let edition = |it: &mut Crate| {
        it.manifest["package"]["edition"] = "2021".into();
    };
    assert_eq!(
        problems("base", edition),
        ["base: edition must be the workspace's"]
    );
    let renamed = |it: &mut Crate| it.name = "other".into();
    assert_eq!(
        problems("kv", renamed),
        [
            "other: has no row in xtask/src/layers.rs",
            "kv: has a row but no crate"
        ]
    );
}

#[test]
fn unsafe_code_stays_where_it_may_be() {
    let source = |file: &'static str, text: &'static str| {
        move |it: &mut Crate| it.sources = vec![(file.into(), text.into())]
    };
    assert_eq!(
        problems("kv", source("lib.rs", "mod a;")),
        ["kv: lib.rs must say #![forbid(unsafe_code)]"]
    );
    assert_eq!(
        problems("base", source("quant/k.rs", "#![allow(unsafe_code)]")),
        ["base: quant/k.rs must not allow unsafe code"]
    );
    let allow = "#![allow(\n    unsafe_code,\n    reason = \"\"\n)]";
    assert_eq!(
        problems("base", source("bytes.rs", allow)),
        Vec::<String>::new()
    );
    assert_eq!(problems("base", source("dtype.rs", allow)).len(), 1);
    assert_eq!(
        problems("cpu", source("simd/x86.rs", allow)),
        Vec::<String>::new()
    );
}
