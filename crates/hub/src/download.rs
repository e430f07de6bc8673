//! A download: pieces over several connections into a partial file, which gets its final name when its checksum is right.
//!
//! Beside `model.gguf` there are, during a download, `model.gguf.part` (the bytes; its lock is held) and
//! `model.gguf.part.json` (which pieces are done, and of which version of the file). They stay after a failure, and the next
//! download continues there if the file on the server is still the same. A file that cannot be continued, or whose
//! checksum is wrong, is deleted.

mod part_file;
mod pieces;
mod transfer;

pub(crate) use part_file::{PartFile, is_same_file, part_path, state_path, unfinished_bytes};

use crate::catalogue::FetchStage;
use crate::client::{Answer, Failure, HubClient, content_length};
use crate::error::{HubError, HubErrorKind};
use crate::repository::is_sha256;
use crate::url;
use part_file::Claim;
use pieces::{FileVersion, Pieces};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use ureq::http::header;

/// A file to download.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) url: String,
    /// Bytes that the hub states.
    pub(crate) bytes: Option<u64>,
    /// Checksum that the hub states.
    pub(crate) sha256: Option<String>,
}

/// A file that is complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedFile {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// Receives stage, bytes done and bytes in all of one file; returns false to cancel.
pub(crate) type FileCallback<'a> = &'a mut dyn FnMut(FetchStage, u64, u64) -> bool;

/// What a first request says about a file.
struct Probe {
    bytes: u64,
    sha256: Option<String>,
    etag: Option<String>,
    /// Whether the server sends parts of the file.
    has_ranges: bool,
}

/// Downloads a file to `to`.
///
/// # Errors
/// See [`HubErrorKind`]. Nothing is at `to` then, unless it was there before.
pub(crate) fn download(
    client: &HubClient,
    file: &RemoteFile,
    to: &Path,
    on: FileCallback<'_>,
) -> Result<CheckedFile, HubError> {
    let parent = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|e| HubError::io("create", parent, e))?;
    let total = file.bytes.unwrap_or(0);
    let mut part = match PartFile::claim(to, &mut || !on(FetchStage::Download, 0, total))? {
        Claim::Ours(part) => part,
        // Another process has downloaded it meanwhile.
        Claim::Done => return check_file(to, file.sha256.as_deref(), on),
    };
    let result = fill(client, file, &mut part, on).and_then(|probe| {
        let expected = probe.sha256.as_deref();
        let checked = part
            .reader()
            .and_then(|reader| check(reader, to, expected, on));
        let checked = checked.and_then(|checked| {
            check_magic(part.reader()?, to, &file.url)?;
            part.finish(to)?;
            Ok(checked)
        });
        if let Err(error) = &checked
            && matches!(
                error.kind(),
                HubErrorKind::Checksum { .. } | HubErrorKind::NotGguf { .. }
            )
        {
            part.discard();
        }
        checked
    });
    // A partial file without a byte that could be continued is of no use.
    if result.is_err() {
        part.release();
    }
    result
}

/// Downloads all bytes into the partial file.
fn fill(
    client: &HubClient,
    file: &RemoteFile,
    part: &mut PartFile,
    on: FileCallback<'_>,
) -> Result<Probe, HubError> {
    let total = file.bytes.unwrap_or(0);
    let mut cancelled = || !on(FetchStage::Download, 0, total);
    let mut probe = client.persist(&file.url, &mut cancelled, || probe(client, &file.url))?;
    if let Some(expected) = file.bytes.filter(|bytes| *bytes != probe.bytes) {
        return Err(HubErrorKind::Size {
            file: url::shown(&file.url),
            found: probe.bytes,
            expected,
        }
        .into());
    }
    // The list of files is the hub's own statement; headers may come from a host in between.
    probe.sha256 = file.sha256.clone().or(probe.sha256);
    let version = FileVersion {
        bytes: probe.bytes,
        validator: probe.sha256.clone().or(probe.etag.clone()),
    };
    // Without a checksum, every response must have the ETag of the first one.
    let etag = probe.etag.clone().filter(|_| probe.sha256.is_none());
    let mut pieces = Pieces::new(
        part.state(),
        part.len(),
        version,
        client.options.piece_bytes,
        probe.has_ranges,
    );
    part.begin(&pieces)?;
    if probe.has_ranges {
        let complete = transfer::in_pieces(client, file, part, &mut pieces, etag.as_deref(), on)?;
        if complete {
            return Ok(probe);
        }
        // A server that no longer sends parts: from the start, over one connection.
        pieces.give_up_resuming();
        part.begin(&pieces)?;
    }
    transfer::in_one_stream(client, file, part, &mut pieces, etag.as_deref(), on)?;
    Ok(probe)
}

/// Asks for the first byte of a file.
fn probe(client: &HubClient, address: &str) -> Result<Probe, Failure> {
    let answer = client.get(address, Some((0, 1)))?;
    // An empty file has no first byte.
    if answer.status.as_u16() == 416 {
        let url = url::shown(address);
        let kind = kind_of(Path::new(&url::path(address)));
        let start = vec![];
        return Err(Failure::Final(HubErrorKind::NotGguf { url, kind, start }));
    }
    answer.check_status()?;
    let range = content_range(&answer);
    let stated = match &range {
        Some((_, _, total)) => *total,
        None => content_length(&answer.headers),
    };
    let Some(bytes) = stated.or(answer.linked.bytes) else {
        let url = url::shown(address);
        return Err(Failure::Final(HubErrorKind::NoSize { url }));
    };
    let linked = answer.linked.etag.as_deref();
    let linked = linked.map(|etag| etag.trim_matches('"').to_ascii_lowercase());
    Ok(Probe {
        bytes,
        sha256: linked.filter(|etag| is_sha256(etag)),
        etag: answer.etag(),
        has_ranges: answer.status.as_u16() == 206 && range.is_some(),
    })
}

/// First byte, last byte and size of the whole file of an answer's `Content-Range`.
fn content_range(answer: &Answer) -> Option<(u64, u64, Option<u64>)> {
    let text = answer.headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = text.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?, total))
}

/// Computes the checksum of the file at `path` and compares it with the stated one.
pub(crate) fn check_file(
    path: &Path,
    expected: Option<&str>,
    on: FileCallback<'_>,
) -> Result<CheckedFile, HubError> {
    let file = File::open(path).map_err(|e| HubError::io("read", path, e))?;
    check(file, path, expected, on)
}

/// Computes the checksum of a file that is or will be at `to`, and compares it with the stated one.
fn check(
    mut file: File,
    to: &Path,
    expected: Option<&str>,
    on: FileCallback<'_>,
) -> Result<CheckedFile, HubError> {
    let unreadable = |error| HubError::io("read", to, error);
    let total = file.metadata().map_err(unreadable)?.len();
    let (mut hash, mut done) = (Sha256::new(), 0);
    let mut chunk = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut chunk).map_err(unreadable)?;
        if n == 0 {
            break;
        }
        hash.update(&chunk[..n]);
        done += n as u64;
        if !on(FetchStage::Verify, done.min(total), total) {
            return Err(HubErrorKind::Interrupted.into());
        }
    }
    let mut found = String::new();
    for byte in hash.finalize() {
        let _ = write!(found, "{byte:02x}");
    }
    match expected.filter(|expected| !expected.eq_ignore_ascii_case(&found)) {
        None => Ok(CheckedFile {
            bytes: done,
            sha256: found,
        }),
        Some(expected) => Err(HubErrorKind::Checksum {
            file: to.display().to_string(),
            found,
            expected: expected.to_owned(),
        }
        .into()),
    }
}

/// The kind of a file by its name.
fn kind_of(path: &Path) -> &'static str {
    let extension = path.extension().and_then(|e| e.to_str());
    match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("json") => "JSON",
        Some("safetensors") => "safetensors",
        Some("jinja") => "template",
        _ => "GGUF",
    }
}

/// Checks that the file starts as one of its kind does: servers send error pages with status 200, too.
fn check_magic(mut file: File, to: &Path, address: &str) -> Result<(), HubError> {
    let mut start = vec![0; 16];
    let n = file.read(&mut start);
    let n = n.map_err(|e| HubError::io("read", to, e))?;
    start.truncate(n);
    let kind = kind_of(to);
    let first = start.iter().find(|byte| !byte.is_ascii_whitespace());
    let right = match kind {
        "JSON" => matches!(first, Some(b'{' | b'[')),
        // The header follows its length.
        "safetensors" => start.get(8) == Some(&b'{'),
        "template" => !start.starts_with(b"<!") && !start.starts_with(b"<html"),
        _ => start.starts_with(b"GGUF"),
    };
    if right {
        return Ok(());
    }
    let url = url::shown(address);
    Err(HubErrorKind::NotGguf { url, kind, start }.into())
}
