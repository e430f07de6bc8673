//! The bytes of a download: worker threads read from connections, the caller's thread writes the partial file.
//!
//! One thread writes, so a cancelled download ends at once: workers that still wait for a server have nothing to write to.

use super::part_file::PartFile;
use super::pieces::{MissingRange, Pieces};
use super::{FileCallback, RemoteFile, content_range};
use crate::catalogue::FetchStage;
use crate::client::{Answer, Failure, HubClient, content_length, wait};
use crate::error::{HubError, HubErrorKind};
use crate::url;
use std::collections::VecDeque;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes that are read and written at once.
const CHUNK: usize = 128 << 10;
/// Chunks that wait to be written.
const WAITING: usize = 32;
/// The interval between two reports while no byte arrives.
const POLL: Duration = Duration::from_millis(100);

/// What a worker tells the thread that writes.
enum Event {
    Bytes(u64, Vec<u8>),
    Failed(HubErrorKind),
    /// The server does not send parts of the file.
    NoRanges,
}

/// Why a worker stopped reading a range.
enum RangeFailure {
    Attempt(Failure),
    NoRanges,
    /// The download has ended.
    Ended,
}

impl From<Failure> for RangeFailure {
    fn from(failure: Failure) -> RangeFailure {
        RangeFailure::Attempt(failure)
    }
}

/// What the workers of a download share.
struct Shared {
    client: HubClient,
    url: String,
    total: u64,
    /// The version that every answer must be of, where the server names one and no checksum is known.
    etag: Option<String>,
    queue: Mutex<VecDeque<MissingRange>>,
    /// The address that redirects led to.
    located: Mutex<Option<String>>,
    /// Bytes received by all workers.
    received: AtomicU64,
    ended: AtomicBool,
}

/// Ends the workers when the download ends, however it does.
struct EndWorkers(Arc<Shared>);

impl Drop for EndWorkers {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

fn shared(
    client: &HubClient,
    file: &RemoteFile,
    pieces: &Pieces,
    etag: Option<&str>,
) -> Arc<Shared> {
    Arc::new(Shared {
        client: client.clone(),
        url: file.url.clone(),
        total: pieces.total(),
        etag: etag.map(str::to_owned),
        queue: Mutex::new(pieces.missing().collect()),
        located: Mutex::new(None),
        received: AtomicU64::new(0),
        ended: AtomicBool::new(false),
    })
}

/// Downloads the missing pieces over several connections. Returns false if the server does not send parts of the file.
pub(super) fn in_pieces(
    client: &HubClient,
    file: &RemoteFile,
    part: &mut PartFile,
    pieces: &mut Pieces,
    etag: Option<&str>,
    on: FileCallback<'_>,
) -> Result<bool, HubError> {
    let shared = shared(client, file, pieces, etag);
    let _end = EndWorkers(shared.clone());
    let (sender, events) = sync_channel(WAITING);
    let workers = client
        .options
        .connections
        .clamp(1, pieces.missing().count().max(1));
    for _ in 0..workers {
        let (shared, sender) = (shared.clone(), sender.clone());
        std::thread::spawn(move || shared.read_pieces(&sender));
    }
    drop(sender);
    write_events(&events, part, pieces, on)
}

/// Downloads the whole file over one connection, from its start.
pub(super) fn in_one_stream(
    client: &HubClient,
    file: &RemoteFile,
    part: &mut PartFile,
    pieces: &mut Pieces,
    etag: Option<&str>,
    on: FileCallback<'_>,
) -> Result<(), HubError> {
    let shared = shared(client, file, pieces, etag);
    let _end = EndWorkers(shared.clone());
    let (sender, events) = sync_channel(WAITING);
    let worker = shared.clone();
    std::thread::spawn(move || worker.read_stream(&sender));
    write_events(&events, part, pieces, on).map(|_| ())
}

/// Writes what the workers read until the file is complete. Returns false if the server does not send parts.
fn write_events(
    events: &Receiver<Event>,
    part: &mut PartFile,
    pieces: &mut Pieces,
    on: FileCallback<'_>,
) -> Result<bool, HubError> {
    let mut write = || {
        while !pieces.is_complete() {
            if !on(FetchStage::Download, pieces.done(), pieces.total()) {
                return Err(HubErrorKind::Interrupted.into());
            }
            match events.recv_timeout(POLL) {
                Ok(Event::Bytes(at, bytes)) => {
                    part.write(at, &bytes)?;
                    if pieces.wrote(at, bytes.len() as u64) {
                        part.save(pieces)?;
                    }
                }
                Ok(Event::Failed(kind)) => return Err(HubError::from(kind)),
                Ok(Event::NoRanges) => return Ok(false),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("workers end when the file is complete, or say why not")
                }
            }
        }
        on(FetchStage::Download, pieces.total(), pieces.total());
        Ok(true)
    };
    let written = write();
    if written.is_err() && pieces.done() > 0 {
        // On a full disk the last stored state remains.
        let _ = part.save(pieces);
    }
    written
}

impl Shared {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn next_range(&self) -> Option<MissingRange> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    }

    /// The address to ask: where redirects led before, or the file's own.
    fn address(&self) -> String {
        let located = self.located.lock().unwrap_or_else(PoisonError::into_inner);
        located.as_ref().unwrap_or(&self.url).clone()
    }

    fn locate(&self, url: Option<String>) {
        *self.located.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }

    /// Work of one connection: reads ranges until none is left.
    fn read_pieces(&self, to: &SyncSender<Event>) {
        while let Some(mut range) = self.next_range() {
            let mut failures = 0;
            let mut seen = self.received.load(Ordering::Relaxed);
            while range.from < range.end {
                let failure = match self.read_range(&mut range, to) {
                    Ok(()) => continue,
                    Err(RangeFailure::Ended) => return,
                    Err(RangeFailure::NoRanges) => {
                        let _ = to.send(Event::NoRanges);
                        return;
                    }
                    Err(RangeFailure::Attempt(failure)) => failure,
                };
                self.locate(None);
                // While any connection receives bytes, the server is not unreachable.
                let received = self.received.load(Ordering::Relaxed);
                failures = if received > seen { 1 } else { failures + 1 };
                seen = received;
                if !self.recover(failure, failures, to) {
                    return;
                }
            }
        }
    }

    /// Pauses after a failure. Returns false if the download is over.
    fn recover(&self, failure: Failure, failures: u32, to: &SyncSender<Event>) -> bool {
        let pause = match failure {
            Failure::Final(kind) => Err(kind),
            Failure::Again(message, asked) => {
                self.client.pause(&self.url, failures, message, asked)
            }
            Failure::NoConnection(message) => self.client.pause(&self.url, failures, message, None),
        };
        match pause {
            Ok(pause) => wait(pause, &mut || self.has_ended()),
            Err(kind) => {
                let _ = to.send(Event::Failed(kind));
                false
            }
        }
    }

    /// Asks for a range and reads what the answer has of it; `range` is then what is still missing.
    fn read_range(
        &self,
        range: &mut MissingRange,
        to: &SyncSender<Event>,
    ) -> Result<(), RangeFailure> {
        if self.has_ended() {
            return Err(RangeFailure::Ended);
        }
        let address = self.address();
        let answer = self.client.get(&address, Some((range.from, range.end)))?;
        let status = answer.status.as_u16();
        if answer.url != self.url && [401, 403, 410].contains(&status) {
            // The address of a storage host is valid for a limited time.
            let message = format!("the storage answers with status {status}");
            return Err(Failure::Again(message, None).into());
        }
        if status == 416 {
            return Err(self.changed().into());
        }
        answer.check_status()?;
        self.check_version(&answer)?;
        if status != 206 {
            return Err(RangeFailure::NoRanges);
        }
        let wrong = || Failure::Again("the server sends another range".to_owned(), None);
        let (first, last, total) = content_range(&answer).ok_or_else(wrong)?;
        if total.is_some_and(|total| total != self.total) {
            return Err(self.changed().into());
        }
        if first != range.from || !(range.from..range.end).contains(&last) {
            return Err(wrong().into());
        }
        if answer.url != self.url {
            self.locate(Some(answer.url.clone()));
        }
        let mut at = range.from;
        let read = self.read_body(answer, &mut at, last + 1, to);
        range.from = at;
        read
    }

    fn changed(&self) -> Failure {
        let url = url::shown(&self.url);
        Failure::Final(HubErrorKind::Changed { url })
    }

    fn check_version(&self, answer: &Answer) -> Result<(), Failure> {
        match (&self.etag, answer.etag()) {
            (Some(own), Some(other)) if *own != other => Err(self.changed()),
            _ => Ok(()),
        }
    }

    /// Reads an answer's body to before `end` and sends it on.
    fn read_body(
        &self,
        answer: Answer,
        at: &mut u64,
        end: u64,
        to: &SyncSender<Event>,
    ) -> Result<(), RangeFailure> {
        let mut reader = answer.body.into_reader();
        while *at < end {
            let mut chunk = vec![0; CHUNK.min((end - *at) as usize)];
            let n = match reader.read(&mut chunk) {
                Ok(n) if n > 0 => n,
                _ => return Err(Failure::Again("the connection was cut".to_owned(), None).into()),
            };
            chunk.truncate(n);
            if self.has_ended() || to.send(Event::Bytes(*at, chunk)).is_err() {
                return Err(RangeFailure::Ended);
            }
            *at += n as u64;
            self.received.fetch_add(n as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Work of the only connection to a server that does not send parts: every attempt begins at the start.
    fn read_stream(&self, to: &SyncSender<Event>) {
        let mut failures = 0;
        loop {
            let attempt = || -> Result<(), RangeFailure> {
                let answer = self.client.get(&self.url, None)?;
                answer.check_status()?;
                self.check_version(&answer)?;
                if content_length(&answer.headers).is_some_and(|n| n != self.total) {
                    return Err(self.changed().into());
                }
                self.read_body(answer, &mut 0, self.total, to)
            };
            match attempt() {
                Ok(()) | Err(RangeFailure::Ended | RangeFailure::NoRanges) => return,
                Err(RangeFailure::Attempt(failure)) => {
                    failures += 1;
                    if !self.recover(failure, failures, to) {
                        return;
                    }
                }
            }
        }
    }
}
