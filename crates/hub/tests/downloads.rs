//! Downloads from a real HTTP server with faults: each ends in the correct file or in a clear error, and nothing half done is
//! ever used or left unseen.

#[path = "common/server.rs"]
mod server;

use hub::catalogue::{FetchStage, ModelStore};
use hub::{HubClient, HubError, HubErrorKind, HubOptions, ModelRef, ModelSource};
use server::{Fault, Request, Server, sha256};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const REPOSITORY: &str = "owner/model";
const FILE: &str = "model-Q4_K_M.gguf";
const PIECE: usize = 64 << 10;

/// A file that starts as a GGUF file does and has no two equal pieces.
fn file(seed: u32) -> Vec<u8> {
    let mut x = seed | 1;
    let noise = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    });
    b"GGUF"
        .iter()
        .copied()
        .chain(noise)
        .take(5 * PIECE - 100)
        .collect()
}

/// A store in a folder that is removed on drop.
struct Home {
    folder: PathBuf,
    store: ModelStore,
}

impl Home {
    fn new() -> Home {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("kvark-hub-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Home {
            store: ModelStore::at(&folder),
            folder,
        }
    }

    fn pull(&self, client: &HubClient, reference: &ModelRef) -> Result<PathBuf, HubError> {
        self.store.pull(client, reference, &mut |_| true)
    }

    /// Every file below the folder belongs to a listed model.
    fn check_nothing_is_hidden(&self) {
        let models = self.store.stored_models();
        let mut files = Vec::new();
        walk(&self.folder, &mut files);
        for file in files {
            let text = file.to_string_lossy().into_owned();
            let listed = models.iter().flat_map(|model| &model.files);
            let mut listed = listed.map(|known| known.to_string_lossy());
            assert!(
                listed.any(|known| text.starts_with(&*known)),
                "{text}: {models:?}"
            );
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => walk(&path, files),
            path => files.push(path),
        }
    }
}

fn options(endpoint: &str) -> HubOptions {
    HubOptions {
        endpoint: endpoint.to_owned(),
        token: Some("secret".to_owned()),
        piece_bytes: PIECE as u64,
        attempts: 4,
        first_pause: Duration::from_millis(1),
        ..HubOptions::default()
    }
}

fn client(server: &Server) -> HubClient {
    HubClient::new(&options(&server.address)).unwrap()
}

fn reference() -> ModelRef {
    format!("hf:{REPOSITORY}").parse().unwrap()
}

/// What must come of a fault.
enum Outcome {
    Right,
    /// An error whose message contains this.
    Error(&'static str),
}

use Outcome::{Error, Right};

type FaultOf = fn(&Request) -> Option<Fault>;

/// The fault for the first requests that `when` selects.
fn first(n: usize, request: &Request, fault: Fault) -> Option<Fault> {
    // The first question for the size comes before the transfers of a file.
    (request.is_transfer() && request.before <= n).then_some(fault)
}

#[test]
fn every_fault_ends_in_the_right_file_or_a_clear_error() {
    let faults: &[(&str, FaultOf, Outcome)] = &[
        (
            "cut before the answer",
            |r| first(3, r, Fault::NoAnswer),
            Right,
        ),
        (
            "cut before the body",
            |r| first(3, r, Fault::CutAfter(0)),
            Right,
        ),
        (
            "cut after a byte",
            |r| first(3, r, Fault::CutAfter(1)),
            Right,
        ),
        (
            "cut in the middle",
            |r| first(5, r, Fault::CutAfter(PIECE / 2)),
            Right,
        ),
        (
            "cut at the last byte",
            |r| first(5, r, Fault::CutAfter(PIECE - 1)),
            Right,
        ),
        (
            "cut all the time, with progress",
            |r| r.is_transfer().then_some(Fault::CutAfter(9000)),
            Right,
        ),
        (
            "cut all the time",
            |r| r.is_transfer().then_some(Fault::CutAfter(0)),
            Error("the connection was cut (tried 4 times)"),
        ),
        (
            "short answers",
            |r| r.is_transfer().then_some(Fault::Shorter(10_000)),
            Right,
        ),
        (
            "another range once",
            |r| first(2, r, Fault::OtherRange),
            Right,
        ),
        (
            "another range always",
            |r| r.is_transfer().then_some(Fault::OtherRange),
            Error("another range"),
        ),
        (
            "a senseless range",
            |r| r.is_transfer().then_some(Fault::BadRange),
            Error("another range"),
        ),
        (
            "ranges ignored",
            |r| r.is_file().then_some(Fault::WholeFile),
            Right,
        ),
        (
            "ranges ignored later",
            |r| r.is_transfer().then_some(Fault::WholeFile),
            Right,
        ),
        (
            "ranges ignored, cut twice",
            |r| match r.is_file() && r.before < 3 {
                true => Some(Fault::WholeFileCut(100_000)),
                false => r.is_file().then_some(Fault::WholeFile),
            },
            Right,
        ),
        (
            "ranges ignored, always cut",
            |r| r.is_file().then_some(Fault::WholeFileCut(100_000)),
            Error("the connection was cut"),
        ),
        (
            "a changed byte",
            |r| first(1, r, Fault::Corrupt),
            Error("is damaged: its sha256 is"),
        ),
        (
            "another size",
            |r| r.is_file().then_some(Fault::OtherSize(1000)),
            Error("it has 1000 bytes, must have"),
        ),
        (
            "another size later",
            |r| r.is_transfer().then_some(Fault::OtherSize(1000)),
            Error("changed during its download"),
        ),
        (
            "no token",
            |r| r.is_file().then_some(Fault::Status(401, "")),
            Error("needs a token (HF_TOKEN)"),
        ),
        (
            "no token for the list",
            |r| (!r.is_file()).then_some(Fault::Status(401, "")),
            Error("needs a token (HF_TOKEN)"),
        ),
        (
            "gated",
            |r| {
                r.is_file().then_some(Fault::Status(
                    403,
                    "X-Error-Code: GatedRepo\r\nX-Error-Message: Ask for access\r\n",
                ))
            },
            Error("licence may have to be accepted on the hub first: Ask for access"),
        ),
        (
            "no such file",
            |r| r.is_file().then_some(Fault::Status(404, "")),
            Error("does not exist"),
        ),
        (
            "no such repository",
            |r| {
                (!r.is_file()).then_some(Fault::Status(
                    404,
                    "X-Error-Message: Repository not found\r\n",
                ))
            },
            Error("does not exist: Repository not found"),
        ),
        (
            "a teapot",
            |r| r.is_file().then_some(Fault::Status(418, "")),
            Error("status 418"),
        ),
        ("busy", |r| first(4, r, Fault::Status(429, "")), Right),
        (
            "busy for a second",
            |r| first(1, r, Fault::Status(429, "Retry-After: 1\r\n")),
            Right,
        ),
        (
            "busy until a date",
            |r| {
                first(
                    2,
                    r,
                    Fault::Status(429, "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
                )
            },
            Right,
        ),
        (
            "busy for an hour",
            |r| {
                r.is_file()
                    .then_some(Fault::Status(429, "Retry-After: 3600\r\n"))
            },
            Error("asks to wait 3600 s"),
        ),
        (
            "an error, then fine",
            |r| first(3, r, Fault::Status(500, "")),
            Right,
        ),
        (
            "the list fails first",
            |r| (!r.is_file() && r.before < 2).then_some(Fault::Status(502, "")),
            Right,
        ),
        (
            "out of service",
            |r| r.is_file().then_some(Fault::Status(503, "")),
            Error("status 503 (tried 4 times)"),
        ),
        (
            "a list that is no JSON",
            |r| (!r.is_file()).then_some(Fault::Body("<html>")),
            Error("the list of files of hf:owner/model cannot be read"),
        ),
        (
            "a list of something else",
            |r| (!r.is_file()).then_some(Fault::Body("{\"error\":1}")),
            Error("it is not a list of files"),
        ),
        (
            "a cut list",
            |r| (!r.is_file() && r.before < 2).then_some(Fault::CutAfter(30)),
            Right,
        ),
        (
            "an empty repository",
            |r| (!r.is_file()).then_some(Fault::Body("[]")),
            Error("hf:owner/model has no GGUF model"),
        ),
        (
            "a circle",
            |r| r.is_file().then_some(Fault::Redirect(r.path.clone())),
            Error("redirects again and again"),
        ),
        (
            "nowhere",
            |r| {
                r.is_file()
                    .then_some(Fault::Redirect("file:///etc/passwd".into()))
            },
            Error("redirects to something that is no http address"),
        ),
        (
            "without encryption",
            |r| {
                r.is_file()
                    .then_some(Fault::Redirect("http://storage.example/x".into()))
            },
            Error("redirects to an address without encryption"),
        ),
    ];
    let bytes = file(1);
    for (name, fault, outcome) in faults {
        let server = Server::start(REPOSITORY, &[(FILE, &bytes)]);
        let home = Home::new();
        let client = client(&server);
        server.set_fault(fault);
        let pulled = home.pull(&client, &reference());
        home.check_nothing_is_hidden();
        match (outcome, pulled) {
            (Right, Ok(path)) => {
                assert!(std::fs::read(&path).unwrap() == bytes, "{name}");
                assert_eq!(home.store.stored(&reference()), Some(path), "{name}");
            }
            (Error(want), Err(error)) => {
                let text = error.to_string();
                assert!(text.contains(want), "{name}: {text}");
                assert!(
                    !text.contains('\n') && !text.contains("secret"),
                    "{name}: {text}"
                );
                assert_eq!(home.store.stored(&reference()), None, "{name}");
                assert!(
                    home.store.stored_models().iter().all(|m| !m.is_complete),
                    "{name}"
                );
            }
            (Right, Err(error)) => panic!("{name}: {error}"),
            (Error(_), Ok(_)) => panic!("{name}: no error"),
        }
        // Once the server is well, the download succeeds.
        server.clear_fault();
        let path = home
            .pull(&client, &reference())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(std::fs::read(&path).unwrap() == bytes, "{name}");
        let models = home.store.stored_models();
        assert_eq!(models.len(), 1, "{name}: {models:?}");
        assert!(models[0].is_complete, "{name}");
        home.store.verify_stored(&models[0], &mut |_| true).unwrap();
        home.store.remove_stored(&models[0]).unwrap();
        let mut left = Vec::new();
        walk(&home.folder, &mut left);
        assert!(left.is_empty(), "{name}: {left:?}");
    }
}

#[test]
fn a_silent_server_is_left_and_asked_again() {
    let bytes = file(2);
    let server = Server::start(REPOSITORY, &[(FILE, &bytes)]);
    server.set_fault(|r| first(1, r, Fault::SilentAfter(1000)));
    let client = HubClient::new(&HubOptions {
        silence: Duration::from_secs(2),
        ..options(&server.address)
    });
    let home = Home::new();
    let path = home.pull(&client.unwrap(), &reference()).unwrap();
    assert!(std::fs::read(path).unwrap() == bytes);
}

#[test]
fn the_token_goes_to_the_hub_only() {
    let bytes = file(3);
    let hub = Server::start(REPOSITORY, &[(FILE, &bytes)]);
    let storage = Server::start(REPOSITORY, &[(FILE, &bytes)]);
    let target = format!("{}/blob/{FILE}?signature=1", storage.address);
    hub.set_fault(move |r| r.is_file().then(|| Fault::Redirect(target.clone())));
    // The storage's addresses expire: the hub is then asked again.
    storage.set_fault(|r| (r.before == 2).then_some(Fault::Status(403, "")));
    let home = Home::new();
    let path = home.pull(&client(&hub), &reference()).unwrap();
    assert!(std::fs::read(path).unwrap() == bytes);
    let has_token =
        |r: &Request| r.headers.get("authorization").map(String::as_str) == Some("Bearer secret");
    let to_hub = hub.take_requests();
    assert!(
        to_hub.len() > 3 && to_hub.iter().all(has_token),
        "{to_hub:?}"
    );
    let to_storage = storage.take_requests();
    assert!(to_storage.len() >= 6, "{to_storage:?}");
    assert!(
        to_storage
            .iter()
            .all(|r| !r.headers.contains_key("authorization"))
    );
}

#[test]
fn a_cancelled_download_continues_where_it_was() {
    let bytes = file(4);
    let server = Server::start(REPOSITORY, &[(FILE, &bytes)]);
    let (home, client) = (Home::new(), client(&server));
    // Until two pieces are there.
    let result = home
        .store
        .pull(&client, &reference(), &mut |p| p.done < 2 * PIECE as u64);
    assert!(matches!(
        result.unwrap_err().kind(),
        HubErrorKind::Interrupted
    ));
    let unfinished = home.store.stored_models();
    assert_eq!(unfinished.len(), 1);
    assert_eq!(unfinished[0].name, "hf:owner/model:Q4_K_M");
    assert!(!unfinished[0].is_complete && unfinished[0].bytes >= 2 * PIECE as u64);
    assert_eq!(unfinished[0].total_bytes, Some(bytes.len() as u64));
    assert_eq!(home.store.stored(&reference()), None);
    let stored = unfinished[0].bytes as usize;

    // Requests of the cancelled download may still reach the first server.
    let server = Server::start(REPOSITORY, &[(FILE, &bytes)]);
    let client = crate::client(&server);
    let mut least = None;
    let path = home.store.pull(&client, &reference(), &mut |p| {
        if p.stage == FetchStage::Download && p.done > 0 {
            least.get_or_insert(p.done as usize);
        }
        true
    });
    assert!(std::fs::read(path.unwrap()).unwrap() == bytes);
    assert!(least.unwrap() >= stored, "{least:?} {stored}");
    assert_eq!(server.take_asked_bytes(), bytes.len() - stored);
}

#[test]
fn a_file_that_changed_meanwhile_is_downloaded_from_the_start() {
    for damage in [false, true] {
        let (old, new) = (file(5), file(6));
        let server = Server::start(REPOSITORY, &[(FILE, &old)]);
        let (home, client) = (Home::new(), client(&server));
        let result = home
            .store
            .pull(&client, &reference(), &mut |p| p.done < 2 * PIECE as u64);
        result.unwrap_err();
        let want = match damage {
            // The state is damaged instead.
            true => {
                let state = home
                    .folder
                    .join(format!("hub/{REPOSITORY}/{FILE}.part.json"));
                std::fs::write(state, "{\"done\":").unwrap();
                &old
            }
            false => &new,
        };
        // Requests of the cancelled download may still reach the first server.
        let server = Server::start(REPOSITORY, &[(FILE, want)]);
        let client = crate::client(&server);
        let path = home.pull(&client, &reference()).unwrap();
        assert!(std::fs::read(path).unwrap() == *want);
        assert_eq!(server.take_asked_bytes(), want.len());
    }
}

#[test]
fn without_a_checksum_all_bytes_are_of_one_version() {
    let bytes = file(7);
    let server = Server::start(REPOSITORY, &[(FILE, &bytes)]).without_sums();
    let (home, client) = (Home::new(), client(&server));
    server.set_fault(|r| (r.is_transfer() && r.before > 2).then_some(Fault::OtherVersion));
    let error = home.pull(&client, &reference()).unwrap_err();
    assert!(
        matches!(error.kind(), HubErrorKind::Changed { .. }),
        "{error}"
    );
    server.clear_fault();
    let path = home.pull(&client, &reference()).unwrap();
    assert!(std::fs::read(path).unwrap() == bytes);
}

#[test]
fn two_at_once_download_once() {
    let bytes = file(8);
    let server = Server::start(REPOSITORY, &[(FILE, &bytes)]);
    let home = Home::new();
    let paths: Vec<PathBuf> = std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| home.pull(&client(&server), &reference()).unwrap()))
            .collect();
        pulls.into_iter().map(|pull| pull.join().unwrap()).collect()
    });
    for path in paths {
        assert!(std::fs::read(path).unwrap() == bytes);
    }
    assert_eq!(server.take_asked_bytes(), bytes.len());
    home.check_nothing_is_hidden();
    assert_eq!(home.store.stored_models().len(), 1);
}

#[test]
fn a_model_in_use_by_a_download_is_not_deleted() {
    let bytes = file(9);
    let server = Server::start(REPOSITORY, &[(FILE, &bytes)]);
    let (home, client) = (Home::new(), client(&server));
    let mut refused = None;
    let path = home.store.pull(&client, &reference(), &mut |p| {
        if p.done > 0 && refused.is_none() {
            let model = &home.store.stored_models()[0];
            refused = Some(home.store.remove_stored(model).unwrap_err().to_string());
        }
        true
    });
    assert!(std::fs::read(path.unwrap()).unwrap() == bytes);
    let refused = refused.unwrap();
    assert!(
        refused.contains("is being downloaded by another process"),
        "{refused}"
    );
}

#[test]
fn quantisations_and_split_models_of_a_repository() {
    let files: Vec<Vec<u8>> = (10..15).map(file).collect();
    let names = [
        "model-Q8_0.gguf",
        "model-Q4_0.gguf",
        "sub/model-q2_k-00001-of-00002.gguf",
        "sub/model-q2_k-00002-of-00002.gguf",
        "sub/lost-Q6_K-00001-of-00003.gguf",
    ];
    let pairs: Vec<(&str, &[u8])> = names
        .into_iter()
        .zip(files.iter().map(Vec::as_slice))
        .collect();
    let server = Server::start(REPOSITORY, &pairs);
    let (home, client) = (Home::new(), client(&server));
    let pull = |text: &str| {
        let reference: ModelRef = text.parse().unwrap();
        let path = home.pull(&client, &reference).map_err(|e| e.to_string())?;
        assert_eq!(
            home.store.stored(&reference).as_deref(),
            Some(&*path),
            "{text}"
        );
        Ok::<_, String>(path)
    };
    // The default is Q4_0 here; a quantisation that is stored is not the default for that.
    let eight = pull("hf:owner/model:q8_0").unwrap();
    assert_eq!(home.store.stored(&reference()), None);
    assert!(std::fs::read(eight).unwrap() == files[0]);
    assert!(std::fs::read(pull("hf:owner/model").unwrap()).unwrap() == files[1]);
    let split = pull("hf:owner/model:Q2_K").unwrap();
    assert!(
        split.ends_with("sub/model-q2_k-00001-of-00002.gguf"),
        "{split:?}"
    );
    let second = split.with_file_name("model-q2_k-00002-of-00002.gguf");
    assert!(std::fs::read(second).unwrap() == files[3]);
    assert_eq!(
        pull("hf:owner/model:Q5_K_M").unwrap_err(),
        "hf:owner/model has no GGUF model \"Q5_K_M\"; it has Q4_0, Q8_0, Q6_K, Q2_K"
    );
    let error = pull("hf:owner/model:Q6_K").unwrap_err();
    assert!(
        error.contains("no file sub/lost-Q6_K-00002-of-00003.gguf"),
        "{error}"
    );

    let mut models = home.store.stored_models();
    models.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<&str> = models.iter().map(|model| &*model.name).collect();
    assert_eq!(
        names,
        [
            "hf:owner/model:Q2_K",
            "hf:owner/model:Q4_0",
            "hf:owner/model:Q8_0"
        ]
    );
    assert_eq!(models[0].files.len(), 2);
    let error = home
        .store
        .find_stored("hf:owner/model")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("hf:owner/model:Q4_0 or hf:owner/model:Q8_0"),
        "{error}"
    );
    let found = home.store.find_stored("hf:owner/model:q2_k").unwrap();
    home.store.remove_stored(&found).unwrap();
    assert_eq!(home.store.stored_models().len(), 2);

    // A part that is missing makes the model incomplete, and a pull fetches only that part.
    let split = pull("hf:owner/model:Q2_K").unwrap();
    std::fs::remove_file(&split).unwrap();
    let two: ModelRef = "hf:owner/model:Q2_K".parse().unwrap();
    assert_eq!(home.store.stored(&two), None);
    server.take_requests();
    pull("hf:owner/model:Q2_K").unwrap();
    assert_eq!(server.take_asked_bytes(), files[2].len());
}

#[test]
fn a_repository_without_gguf_files_is_downloaded_as_a_folder() {
    let mut weights = file(20);
    weights[..10].copy_from_slice(b"\x02\0\0\0\0\0\0\0{}");
    let files: [(&str, &[u8]); 4] = [
        ("1_Pooling/config.json", b"{}"),
        ("config.json", b"{\"model_type\": \"bert\"}"),
        ("model.safetensors", &weights),
        ("vocab.txt", b"[PAD]"),
    ];
    let server = Server::start(REPOSITORY, &files);
    let (home, client) = (Home::new(), client(&server));
    let path = home.pull(&client, &reference()).unwrap();
    assert!(path.ends_with("owner/model/model.safetensors"), "{path:?}");
    assert!(std::fs::read(&path).unwrap() == weights);
    assert!(
        path.with_file_name("1_Pooling")
            .join("config.json")
            .is_file()
    );
    assert!(!path.with_file_name("vocab.txt").exists());
    for asked in ["hf:owner/model", "hf:owner/model:safetensors"] {
        let reference: ModelRef = asked.parse().unwrap();
        assert_eq!(home.store.stored(&reference).as_deref(), Some(&*path));
    }
    home.check_nothing_is_hidden();
    let model = home.store.find_stored("hf:owner/model").unwrap();
    assert_eq!(model.name, "hf:owner/model:safetensors");
    home.store.remove_stored(&model).unwrap();
    assert!(home.store.stored_models().is_empty());
    assert!(!path.with_file_name("1_Pooling").exists());

    // An error page in the place of a file is no model.
    let page: [(&str, &[u8]); 2] = [
        ("config.json", b"<!DOCTYPE html>"),
        ("model.safetensors", &weights),
    ];
    let server = Server::start(REPOSITORY, &page);
    let client = self::client(&server);
    let error = home.pull(&client, &reference()).unwrap_err().to_string();
    assert!(error.contains("config.json is not a JSON file"), "{error}");
}

#[test]
fn addresses_are_downloaded_as_they_are() {
    let (bytes, other) = (file(20), file(21));
    let files: [(&str, &[u8]); 3] = [
        ("m.gguf", &bytes),
        ("s-00001-of-00002.gguf", &bytes),
        ("s-00002-of-00002.gguf", &other),
    ];
    let server = Server::start(REPOSITORY, &files);
    let (home, client) = (Home::new(), client(&server));
    let url =
        |name: &str| -> ModelRef { format!("{}/blob/{name}", server.address).parse().unwrap() };
    let path = home.pull(&client, &url("m.gguf?sig=1")).unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert_eq!(home.store.stored(&url("m.gguf?sig=1")), Some(path));
    assert_eq!(home.store.stored(&url("m.gguf?sig=2")), None);
    let path = home.pull(&client, &url("s-00002-of-00002.gguf")).unwrap();
    assert!(path.ends_with("s-00001-of-00002.gguf"));
    assert!(std::fs::read(path.with_file_name("s-00002-of-00002.gguf")).unwrap() == other);
    let models = home.store.stored_models();
    assert!(
        models
            .iter()
            .all(|m| m.source == ModelSource::Url && m.is_complete),
        "{models:?}"
    );
    home.check_nothing_is_hidden();

    let error = |name: &str| home.pull(&client, &url(name)).unwrap_err().to_string();
    assert!(error("none.gguf").ends_with("does not exist: Entry not found"));
    server.set_fault(|_| Some(Fault::Body("<html>Please log in</html>")));
    let page = error("page.gguf");
    assert!(
        page.ends_with("is not a GGUF file: it starts with \"<html>Please log\""),
        "{page}"
    );
    server.set_fault(|_| Some(Fault::NoSize));
    assert!(error("m.gguf").contains("does not state its size"));
    assert_eq!(home.store.stored_models().len(), 2);

    // A redirect of the hub states the checksum of the file.
    let storage = Server::start(REPOSITORY, &files);
    let target = format!("{}/blob/m.gguf", storage.address);
    server.set_fault(move |_| Some(Fault::Redirect(target.clone())));
    storage.set_fault(|r| first(1, r, Fault::Corrupt));
    let linked: ModelRef = format!("{}/{REPOSITORY}/resolve/main/m.gguf", server.address)
        .parse()
        .unwrap();
    let error = home.pull(&client, &linked).unwrap_err().to_string();
    assert!(
        error.ends_with(&format!("must be {}", sha256(&bytes))),
        "{error}"
    );
}

#[test]
fn a_server_that_is_not_there_or_not_encrypted_is_named() {
    let home = Home::new();
    let server = Server::start(REPOSITORY, &[]);
    let encrypted = server.address.replace("http://", "https://");
    let url: ModelRef = format!("{encrypted}/m.gguf").parse().unwrap();
    let error = home.pull(&client(&server), &url).unwrap_err();
    assert!(
        matches!(error.kind(), HubErrorKind::Unreachable { .. }),
        "{error}"
    );
    let address = server.address.clone();
    drop(server);
    // The port is free now.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = HubClient::new(&options(&format!("http://{nobody}")))
        .and_then(|client| home.pull(&client, &reference()));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("(tried 2 times)"), "{error} {address}");
    assert!(home.store.stored_models().is_empty());
}
