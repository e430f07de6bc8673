//! A server on a free port, and a plain HTTP client.
#![allow(dead_code, reason = "each test uses some of these")]

use kvark::Cpu;
use serde_json::Value;
use server::{Server, ServerOptions, StopHandle};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// Conversations without the rung of the cache on which each lies, which changes behind them.
pub(crate) fn without_rungs(mut value: Value) -> Value {
    match value["data"].as_array_mut() {
        Some(all) => all.iter_mut().for_each(|one| {
            one.as_object_mut().unwrap().remove("cache");
        }),
        None => _ = value.as_object_mut().unwrap().remove("cache"),
    }
    value
}

/// A running server. It is stopped when it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

/// The model of the tests; without it they are skipped.
pub(crate) fn model() -> Option<PathBuf> {
    let path = std::env::var_os("KVARK_TEST_MODEL").filter(|path| !path.is_empty());
    if path.is_none() {
        _ = writeln!(std::io::stderr(), "skipped: KVARK_TEST_MODEL is not set");
    }
    path.map(PathBuf::from)
}

/// Starts a server of the test model, with changes to its options.
pub(crate) fn start(change: impl FnOnce(&mut ServerOptions)) -> Option<Running> {
    let model = model()?;
    Some(serve(|options| {
        options.models = vec![("smol".to_owned(), model)];
        options.runner.context = Some(2048);
        change(options);
    }))
}

/// Starts a server with these changes to its options.
pub(crate) fn serve(change: impl FnOnce(&mut ServerOptions)) -> Running {
    let mut options = ServerOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        grace: Duration::from_millis(200),
        ..ServerOptions::default()
    };
    change(&mut options);
    let server = Server::bind(options, Box::new(Cpu::new().unwrap())).unwrap();
    server.load_default().unwrap();
    let address = server.address().unwrap();
    let stop = server.stop_handle();
    let thread = std::thread::spawn(move || server.run());
    Running {
        address,
        stop,
        thread: Some(thread),
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// A response.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| &**value)
    }

    /// The `data:` lines of a stream.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = String::from_utf8(self.body.clone()).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(str::to_owned).collect()
    }
}

impl Running {
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        stream
    }

    /// Stops the server.
    pub(crate) fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Sends bytes as they are and reads one response.
    pub(crate) fn raw(&self, request: &[u8]) -> Option<Reply> {
        let mut stream = self.connect();
        // A server that refuses early may close before everything is sent.
        _ = stream.write_all(request);
        read_reply(stream)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            self.address,
            body.len()
        );
        let request = [head.as_bytes(), body].concat();
        self.raw(&request).expect("a response")
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, "", body.to_string().as_bytes())
    }

    /// Posts, and expects success.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.json());
        reply.json()
    }
}

/// Reads a response; `None` if the connection ends before one.
fn read_reply(stream: TcpStream) -> Option<Reply> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut headers = vec![];
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let find = |name: &str| headers.iter().find(|(other, _)| other == name);
    let mut body = vec![];
    if find("transfer-encoding").is_some() {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            body.extend(&chunk[..size]);
        }
    } else {
        let length = find("content-length").map(|(_, n)| n.parse().unwrap());
        body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
    }
    Some(Reply {
        status,
        headers,
        body,
    })
}
