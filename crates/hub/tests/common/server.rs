//! An HTTP server on loopback that speaks the hub's routes, with faults on request.
#![allow(dead_code, reason = "each test uses some of these")]

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// First and last byte asked for.
    pub(crate) range: Option<(usize, usize)>,
    /// How many requests for the same path came before it.
    pub(crate) before: usize,
}

impl Request {
    /// Whether a file is asked for, not the list of files.
    pub(crate) fn is_file(&self) -> bool {
        !self.path.starts_with("/api/")
    }

    /// Whether it is more than the first question for the size of a file.
    pub(crate) fn is_transfer(&self) -> bool {
        self.is_file() && self.range != Some((0, 0))
    }
}

/// What a server does wrong.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Closes the connection without an answer.
    NoAnswer,
    /// Closes the connection after this many bytes of the body.
    CutAfter(usize),
    /// Sends this many bytes of the body, then nothing, and keeps the connection open.
    SilentAfter(usize),
    /// Sends and states fewer bytes than asked for.
    Shorter(usize),
    /// Sends the bytes after the ones asked for, and says so.
    OtherRange,
    /// Sends the bytes asked for with a range header that makes no sense.
    BadRange,
    /// Sends the whole file with status 200.
    WholeFile,
    /// The same, closed after this many bytes.
    WholeFileCut(usize),
    /// The same without its size.
    NoSize,
    /// States another size of the file.
    OtherSize(usize),
    /// Changes a byte of the body.
    Corrupt,
    /// Names another version of the file.
    OtherVersion,
    /// Answers with a status and headers.
    Status(u16, &'static str),
    /// Redirects.
    Redirect(String),
    /// Answers with this body and status 200.
    Body(&'static str),
}

type FaultOf = dyn Fn(&Request) -> Option<Fault> + Send + Sync;

struct Shared {
    /// `OWNER/REPOSITORY` and its files.
    repository: String,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    fault: Mutex<Option<Box<FaultOf>>>,
    requests: Mutex<Vec<Request>>,
    ended: AtomicBool,
    /// Whether the list of files states checksums.
    states_sums: AtomicBool,
}

/// A running server; it ends when dropped.
pub(crate) struct Server {
    shared: Arc<Shared>,
    pub(crate) address: String,
}

impl Server {
    /// A hub with one repository.
    pub(crate) fn start(repository: &str, files: &[(&str, &[u8])]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let files = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        let shared = Arc::new(Shared {
            repository: repository.to_owned(),
            files: Mutex::new(files.collect()),
            fault: Mutex::new(None),
            requests: Mutex::default(),
            ended: AtomicBool::new(false),
            states_sums: AtomicBool::new(true),
        });
        let server = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if server.ended.load(Ordering::SeqCst) {
                    break;
                }
                let server = server.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        Server { shared, address }
    }

    pub(crate) fn set_fault(
        &self,
        fault: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static,
    ) {
        *self.shared.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub(crate) fn clear_fault(&self) {
        *self.shared.fault.lock().unwrap() = None;
    }

    /// Leaves the checksums out of the list of files.
    pub(crate) fn without_sums(self) -> Server {
        self.shared.states_sums.store(false, Ordering::SeqCst);
        self
    }

    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) {
        let mut files = self.shared.files.lock().unwrap();
        files.insert(name.to_owned(), bytes.to_vec());
    }

    /// The requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }

    /// Bytes of files that were asked for since the last call.
    pub(crate) fn take_asked_bytes(&self) -> usize {
        let transfers = self
            .take_requests()
            .into_iter()
            .filter(Request::is_transfer);
        transfers
            .filter_map(|r| r.range)
            .map(|(first, last)| last + 1 - first)
            .sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address.trim_start_matches("http://"));
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = self.read_request(&mut reader, &mut stream) {
            let fault = self.fault_of(&request);
            if !self.answer(&request, fault, &mut stream) {
                break;
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }

    /// The fault of a request. An answer may take long, so the lock is not held meanwhile.
    fn fault_of(&self, request: &Request) -> Option<Fault> {
        let fault = self.fault.lock().unwrap();
        fault.as_ref().and_then(|fault| fault(request))
    }

    fn read_request(&self, reader: &mut impl BufRead, stream: &mut TcpStream) -> Option<Request> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let first = lines.first()?;
        let target = first.split(' ').nth(1)?.to_owned();
        if first.starts_with("CONNECT ") {
            // As a proxy: the rest of the connection is for this server, whatever host was asked for.
            self.log(&target, BTreeMap::new(), None);
            stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
            return self.read_request(reader, stream);
        }
        // A request to a proxy has the whole address.
        let target = match target.split_once("://") {
            Some((_, rest)) => rest[rest.find('/')?..].to_owned(),
            None => target,
        };
        let headers: BTreeMap<String, String> = lines[1..]
            .iter()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let range = headers.get("range").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        let path = target.split('?').next()?.to_owned();
        Some(self.log(&path, headers, range))
    }

    fn log(
        &self,
        path: &str,
        headers: BTreeMap<String, String>,
        range: Option<(usize, usize)>,
    ) -> Request {
        let mut requests = self.requests.lock().unwrap();
        let request = Request {
            path: path.to_owned(),
            headers,
            range,
            before: requests.iter().filter(|other| other.path == path).count(),
        };
        requests.push(request.clone());
        request
    }

    /// Answers; returns whether the connection stays open.
    fn answer(&self, request: &Request, fault: Option<Fault>, to: &mut TcpStream) -> bool {
        match fault {
            Some(Fault::NoAnswer) => return false,
            Some(Fault::Status(status, headers)) => {
                let head = format!("HTTP/1.1 {status} Fault\r\n{headers}Content-Length: 0\r\n\r\n");
                return to.write_all(head.as_bytes()).is_ok();
            }
            Some(Fault::Redirect(location)) => {
                let name = request.path.rsplit("/main/").next().unwrap_or_default();
                let files = self.files.lock().unwrap();
                let linked = files.get(name).map_or(String::new(), |bytes| {
                    let (len, sum) = (bytes.len(), sha256(bytes));
                    format!("X-Linked-Size: {len}\r\nX-Linked-ETag: \"{sum}\"\r\n")
                });
                let head = format!("Location: {location}\r\n{linked}Content-Length: 0\r\n\r\n");
                return to
                    .write_all(format!("HTTP/1.1 302 Found\r\n{head}").as_bytes())
                    .is_ok();
            }
            Some(Fault::Body(body)) => {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                return to.write_all(head.as_bytes()).is_ok();
            }
            _ => {}
        }
        let list = format!("/api/models/{}/tree/main", self.repository);
        if request.path == list {
            let body = self.list();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let sent = match fault {
                Some(Fault::CutAfter(n)) => &body[..n],
                _ => &body,
            };
            let written = to.write_all(format!("{head}{sent}").as_bytes());
            return written.is_ok() && sent.len() == body.len();
        }
        let folder = format!("/{}/resolve/main/", self.repository);
        let name = request
            .path
            .strip_prefix(&folder)
            .or_else(|| request.path.strip_prefix("/blob/"));
        let file = name.and_then(|name| self.files.lock().unwrap().get(name).cloned());
        let Some(file) = file else {
            let head = "HTTP/1.1 404 Not Found\r\nX-Error-Message: Entry not found\r\nContent-Length: 0\r\n\r\n";
            return to.write_all(head.as_bytes()).is_ok();
        };
        self.send_file(request, &file, fault, to)
    }

    fn list(&self) -> String {
        let sums = self.states_sums.load(Ordering::SeqCst);
        let files = self.files.lock().unwrap();
        let entries = files.iter().map(|(name, bytes)| {
            let lfs = match sums {
                true => format!(
                    r#","lfs":{{"oid":"{}","size":{},"pointerSize":134}}"#,
                    sha256(bytes),
                    bytes.len()
                ),
                false => String::new(),
            };
            format!(
                r#"{{"type":"file","oid":"0","path":"{name}","size":{}{lfs}}}"#,
                bytes.len()
            )
        });
        let entries: Vec<String> = entries.collect();
        format!(
            r#"[{{"type":"directory","path":"sub","size":0}},{}]"#,
            entries.join(",")
        )
    }

    fn send_file(
        &self,
        request: &Request,
        file: &[u8],
        fault: Option<Fault>,
        to: &mut TcpStream,
    ) -> bool {
        let total = match fault {
            Some(Fault::OtherSize(total)) => total,
            _ => file.len(),
        };
        let version = match fault {
            Some(Fault::OtherVersion) => "other".to_owned(),
            _ => sha256(file)[..8].to_owned(),
        };
        let ignores = matches!(
            fault,
            Some(Fault::WholeFile | Fault::WholeFileCut(_) | Fault::NoSize)
        );
        let (status, (first, last)) = match request.range {
            Some((first, last)) if !ignores => match fault {
                Some(Fault::Shorter(n)) => ("206 Partial", (first, last.min(first + n - 1))),
                Some(Fault::OtherRange) => {
                    let later = (last + 1).min(file.len() - 1);
                    (
                        "206 Partial",
                        (later, (later + last - first).min(file.len() - 1)),
                    )
                }
                _ => ("206 Partial", (first, last)),
            },
            _ => ("200 OK", (0, file.len() - 1)),
        };
        if first >= file.len() {
            let head = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n";
            return to.write_all(head.as_bytes()).is_ok();
        }
        let mut body = file[first..=last.min(file.len() - 1)].to_vec();
        if let Some(Fault::Corrupt) = fault {
            let middle = body.len() / 2;
            body[middle] ^= 1;
        }
        let mut head = format!("HTTP/1.1 {status}\r\nETag: \"{version}\"\r\n");
        match fault {
            Some(Fault::NoSize) => head.push_str("Connection: close\r\n"),
            _ => head.push_str(&format!("Content-Length: {}\r\n", body.len())),
        }
        if status.starts_with("206") {
            head.push_str(&match fault {
                Some(Fault::BadRange) => "Content-Range: bytes many/few\r\n".to_owned(),
                _ => format!("Content-Range: bytes {first}-{last}/{total}\r\n"),
            });
        }
        head.push_str("\r\n");
        let sent = match fault {
            Some(Fault::CutAfter(n) | Fault::SilentAfter(n) | Fault::WholeFileCut(n)) => {
                &body[..n.min(body.len())]
            }
            _ => &body,
        };
        let written = to
            .write_all(head.as_bytes())
            .and_then(|()| to.write_all(sent));
        if let Some(Fault::SilentAfter(_)) = fault {
            // Until the client gives up.
            let _ = to.read(&mut [0]);
        }
        written.is_ok() && sent.len() == body.len() && !matches!(fault, Some(Fault::NoSize))
    }
}
