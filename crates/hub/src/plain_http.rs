//! `PlainHttp`: requests to a server that the user names, such as one on this machine, which can be given up at any moment.

use crate::error::{HubError, HubErrorKind, printable};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time in which a connection must be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may send nothing: it may be computing a long prompt.
const SILENCE: Duration = Duration::from_secs(600);
/// How often the caller is asked whether to go on while nothing arrives.
const PATIENCE: Duration = Duration::from_millis(20);
/// Bytes of an answer.
const MAX_ANSWER: u64 = 64 << 20;

/// A client of one server, over HTTP/1.1 without encryption, with a connection for each request.
///
/// Giving a request up closes its connection, which tells the server that nobody reads the answer.
#[derive(Clone, Debug)]
pub struct PlainHttp {
    /// `HOST:PORT`.
    host: String,
    /// The prefix of all paths; empty for most servers.
    base: String,
    key: Option<String>,
    cancelled: fn() -> bool,
}

/// The events of a request while its answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// A line of the answer.
    Line(&'a str),
    /// Nothing arrived for a moment.
    Nothing,
}

/// Why a read ended before the answer.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error("interrupted")]
    Cancelled,
    #[error("given up")]
    GivenUp,
}

impl PlainHttp {
    /// A client of the server at `http://HOST[:PORT][/PATH]`; a `/v1` at its end is left out. `key` is sent as a bearer token. All
    /// requests end when `cancelled` returns true.
    ///
    /// # Errors
    /// If the address is not one of plain HTTP.
    pub fn new(
        address: &str,
        key: Option<&str>,
        cancelled: fn() -> bool,
    ) -> Result<PlainHttp, HubError> {
        let wrong = |message: &str| HubErrorKind::Settings {
            what: printable(address),
            message: message.to_owned(),
        };
        let Some(rest) = address.strip_prefix("http://") else {
            let message = match address.starts_with("https://") {
                true => "only http addresses are supported here",
                false => "is not an address such as http://127.0.0.1:8080",
            };
            return Err(wrong(message).into());
        };
        let (host, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| {
            !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit())
        });
        let is_text = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || !is_text(rest) || !key.is_none_or(is_text) {
            return Err(wrong("is not an address such as http://127.0.0.1:8080").into());
        }
        Ok(PlainHttp {
            host: match has_port {
                true => host.to_owned(),
                false => format!("{host}:80"),
            },
            base: base.to_owned(),
            key: key.map(str::to_owned),
            cancelled,
        })
    }

    /// The server's address, as `http://HOST:PORT[/PATH]`.
    pub fn address(&self) -> String {
        format!("http://{}{}", self.host, self.base)
    }

    /// The JSON that the server has at a path.
    ///
    /// # Errors
    /// If no server answers, or with another status than success, or with something else than JSON.
    pub fn get_json(&self, path: &str) -> Result<Value, HubError> {
        self.json("GET", path, None)
    }

    /// The JSON that the server answers a JSON with.
    ///
    /// # Errors
    /// As [`get_json`](Self::get_json).
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value, HubError> {
        self.json("POST", path, Some(body))
    }

    fn json(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, HubError> {
        let mut text = String::new();
        self.send(method, path, body, &mut |heard| {
            if let Heard::Line(line) = heard {
                text.push_str(line);
                text.push('\n');
            }
            true
        })?;
        serde_json::from_str(&text).map_err(|error| {
            let message = format!("its answer is no JSON: {error}");
            self.no_answer(path, &message)
        })
    }

    /// Posts a JSON and hands the lines of the answer to `hear`, as they arrive. Returns false if `hear` returned false, which
    /// gives the request up.
    ///
    /// # Errors
    /// As [`get_json`](Self::get_json).
    pub fn post_lines(
        &self,
        path: &str,
        body: &Value,
        hear: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<bool, HubError> {
        self.send("POST", path, Some(body), hear)
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        hear: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<bool, HubError> {
        let stopped = |error: &io::Error| {
            let inner = error.get_ref()?.downcast_ref::<Stopped>()?;
            Some(matches!(inner, Stopped::Cancelled))
        };
        match self.exchange(method, path, body, hear) {
            Ok((status, whole, _)) if (200..300).contains(&status) => Ok(whole),
            Ok((status, _, text)) => Err(HubErrorKind::Status {
                url: self.address() + path,
                status,
                message: message_of(&text),
            }
            .into()),
            Err(error) => match stopped(&error) {
                Some(true) => Err(HubErrorKind::Interrupted.into()),
                Some(false) => Ok(false),
                None => Err(self.no_answer(path, &error.to_string())),
            },
        }
    }

    fn no_answer(&self, path: &str, message: &str) -> HubError {
        let url = self.address() + path;
        let message = printable(message);
        HubErrorKind::NoAnswer { url, message }.into()
    }

    /// Sends a request. Returns the status, whether the answer was heard to its end, and the text of an answer that is an error.
    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        hear: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> io::Result<(u16, bool, String)> {
        let mut stream = self.connect()?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut head = format!(
            "{method} {}{path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\naccept: */*\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            self.base,
            self.host,
            text.len()
        );
        if let Some(key) = &self.key {
            head += &format!("authorization: Bearer {key}\r\n");
        }
        stream.write_all((head + "\r\n" + &text).as_bytes())?;
        let hear = std::cell::RefCell::new(hear);
        let mut reader = BufReader::new(Patient {
            stream,
            cancelled: self.cancelled,
            go_on: || (hear.borrow_mut())(Heard::Nothing),
            since: Instant::now(),
        });
        let (status, length) = read_head(&mut reader)?;
        let mut body = BufReader::new(Body::new(reader, length)).take(MAX_ANSWER);
        if !(200..300).contains(&status) {
            let mut text = vec![];
            body.read_to_end(&mut text)?;
            return Ok((status, true, String::from_utf8_lossy(&text).into_owned()));
        }
        let mut line = vec![];
        while {
            line.clear();
            body.read_until(b'\n', &mut line)? > 0
        } {
            let text = String::from_utf8_lossy(&line);
            let heard = Heard::Line(text.trim_end_matches(['\r', '\n']));
            if !(hear.borrow_mut())(heard) {
                return Ok((status, false, String::new()));
            }
        }
        Ok((status, true, String::new()))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut failure = io::Error::other("the host has no address");
        for address in self.host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// The server's own words in the body of an error.
fn message_of(text: &str) -> String {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let error = &body["error"];
    let said = error["message"].as_str().or(error.as_str());
    printable(said.unwrap_or(text))
}

/// A connection that asks whether to go on while nothing arrives.
struct Patient<F> {
    stream: TcpStream,
    cancelled: fn() -> bool,
    go_on: F,
    /// When something arrived last.
    since: Instant,
}

impl<F: FnMut() -> bool> Read for Patient<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(to) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if (self.cancelled)() {
                        return Err(io::Error::other(Stopped::Cancelled));
                    }
                    if !(self.go_on)() {
                        return Err(io::Error::other(Stopped::GivenUp));
                    }
                    if self.since.elapsed() > SILENCE {
                        let silence = SILENCE.as_secs();
                        let message = format!("the server sent nothing for {silence} s");
                        return Err(io::Error::other(message));
                    }
                }
                read => {
                    self.since = Instant::now();
                    return read;
                }
            }
        }
    }
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Length {
    Bytes(u64),
    Chunks,
    ToTheEnd,
}

/// Reads the head of an answer: the status, and how the end of the body is known.
fn read_head(reader: &mut impl BufRead) -> io::Result<(u16, Length)> {
    let mut limited = reader.take(64 << 10);
    let mut line = String::new();
    limited.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    let is_http = line.starts_with("HTTP/1.");
    let Some(status) = status.filter(|_| is_http) else {
        return Err(io::Error::other("it does not speak HTTP"));
    };
    let mut length = Length::ToTheEnd;
    loop {
        line.clear();
        if limited.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the answer ends within its head"));
        }
        let header = line.trim_end().to_ascii_lowercase();
        match header.split_once(':') {
            None => return Ok((status, length)),
            Some(("transfer-encoding", value)) if value.contains("chunked") => {
                length = Length::Chunks;
            }
            Some(("content-length", value)) if length != Length::Chunks => {
                let bytes = value.trim().parse().map_err(io::Error::other)?;
                length = Length::Bytes(bytes);
            }
            Some(_) => {}
        }
    }
}

/// The body of an answer.
struct Body<R> {
    reader: R,
    is_chunked: bool,
    /// Bytes of the body or of the current chunk that were not read yet.
    left: u64,
}

impl<R: BufRead> Body<R> {
    fn new(reader: R, length: Length) -> Body<R> {
        Body {
            reader,
            is_chunked: length == Length::Chunks,
            left: match length {
                Length::Bytes(n) => n,
                Length::Chunks => 0,
                Length::ToTheEnd => u64::MAX,
            },
        }
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && self.is_chunked {
            let mut size = String::new();
            // An empty line ends the chunk before.
            while size.trim().is_empty() {
                size.clear();
                if self.reader.by_ref().take(64).read_line(&mut size)? == 0 {
                    return Err(io::Error::other("the answer was cut"));
                }
            }
            let digits = size.trim().split(';').next().unwrap_or_default();
            self.left = u64::from_str_radix(digits, 16).map_err(io::Error::other)?;
            if self.left == 0 {
                self.is_chunked = false;
            }
        }
        if self.left == 0 {
            return Ok(0);
        }
        let most = to.len().min(usize::try_from(self.left).unwrap_or(to.len()));
        let n = self.reader.read(&mut to[..most])?;
        if n == 0 && most > 0 && self.left < u64::MAX / 2 {
            return Err(io::Error::other("the answer was cut"));
        }
        self.left -= n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that gives one connection this answer, and its address.
    fn answering(answer: &'static [u8], stays: bool) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                request.read_line(&mut line).unwrap();
            }
            stream.write_all(answer).unwrap();
            // Until the client closes.
            if stays {
                _ = request.read_to_end(&mut vec![]);
            }
        });
        (address, server)
    }

    fn client(address: &str) -> PlainHttp {
        PlainHttp::new(address, None, || false).unwrap()
    }

    #[test]
    fn bodies_end_by_length_by_chunks_or_with_the_connection() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}rest"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n\r\n{\"a\":1}",
        ] {
            let (address, server) = answering(answer, false);
            assert_eq!(client(&address).get_json("/x").unwrap()["a"], 1);
            server.join().unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (answer, part) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"[..], "the answer was cut"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", "was cut"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", "no JSON"),
            (b"SSH-2.0-x\r\n", "does not speak HTTP"),
            (
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 34\r\n\r\n{\"error\":{\"message\":\"no context\"}}",
                "status 400: no context",
            ),
        ] {
            let (address, server) = answering(answer, false);
            let error = client(&address).get_json("/x").unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(&address), "{error}");
            server.join().unwrap();
        }
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let error = client(&format!("http://{free}"))
            .get_json("/x")
            .unwrap_err();
        assert!(
            matches!(error.kind(), HubErrorKind::NoAnswer { .. }),
            "{error}"
        );
        for address in ["https://a", "a:80", "http://", "http://a b", "http:///x"] {
            let error = PlainHttp::new(address, None, || false).unwrap_err();
            assert!(error.to_string().starts_with(address), "{error}");
        }
        assert_eq!(
            client("http://localhost/api/v1/").address(),
            "http://localhost:80/api"
        );
    }

    #[test]
    fn a_request_is_given_up_while_the_server_is_silent() {
        let (address, server) = answering(
            b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\nfirst\n",
            true,
        );
        let mut lines = vec![];
        let whole = client(&address).post_lines("/x", &Value::Null, &mut |heard| match heard {
            Heard::Line(line) => {
                lines.push(line.to_owned());
                true
            }
            Heard::Nothing => lines.is_empty(),
        });
        assert!(!whole.unwrap());
        assert_eq!(lines, ["first"]);
        // It ends because the connection was closed.
        server.join().unwrap();
        let (address, server) = answering(b"", true);
        let stopped = PlainHttp::new(&address, None, || true).unwrap();
        let error = stopped.get_json("/x").unwrap_err();
        assert!(matches!(error.kind(), HubErrorKind::Interrupted), "{error}");
        server.join().unwrap();
    }
}
