//! Streaming requests to a server, with the times of what arrives.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest wait for bytes of an answer.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What arrived of one streamed answer.
pub(super) struct Answer {
    /// From the request to the first text.
    pub(super) first_token: Duration,
    first: Instant,
    last: Instant,
    /// The number of generated tokens, as the server counts them.
    tokens: usize,
}

/// Streams the greedy answer to a chat from a server at `host:port`.
pub(super) fn stream(host: &str, messages: &Value, max_tokens: usize) -> Result<Answer> {
    let body = json!({
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    })
    .to_string();
    let start = Instant::now();
    let mut connection = TcpStream::connect(host).with_context(|| host.to_owned())?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    write!(
        connection,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut reader = BufReader::new(connection);
    let chunked = read_head(&mut reader)?;
    let mut events = BufReader::new(match chunked {
        true => Body::Chunked { reader, left: 0 },
        false => Body::Plain(reader),
    });
    let (mut first, mut last, mut tokens) = (None, start, None);
    let mut line = String::new();
    while {
        line.clear();
        events.read_line(&mut line)? > 0
    } {
        let Some(data) = line.strip_prefix("data: ").map(str::trim) else {
            continue;
        };
        if data == "[DONE]" {
            break;
        }
        let now = Instant::now();
        let chunk: Value = serde_json::from_str(data).with_context(|| data.to_owned())?;
        ensure!(chunk.get("error").is_none(), "{host} answers {data}");
        let text = chunk["choices"][0]["delta"]["content"].as_str();
        if text.is_some_and(|text| !text.is_empty()) {
            first.get_or_insert(now);
            last = now;
        }
        let counted = chunk["usage"]["completion_tokens"].as_u64();
        tokens = counted.map(|n| n as usize).or(tokens);
    }
    let first = first.with_context(|| format!("{host} sent no text"))?;
    Ok(Answer {
        first_token: first - start,
        first,
        last,
        tokens: tokens.with_context(|| format!("{host} sent no usage"))?,
    })
}

/// Streams one answer to each chat at once. Returns the tokens per second of all together, from the first text to the
/// last.
pub(super) fn tokens_per_second(host: &str, chats: &[Value], max_tokens: usize) -> Result<f64> {
    let answers: Result<Vec<Answer>> = std::thread::scope(|scope| {
        let clients = chats
            .iter()
            .map(|chat| scope.spawn(|| stream(host, chat, max_tokens)));
        let clients: Vec<_> = clients.collect();
        let join = |client: std::thread::ScopedJoinHandle<'_, _>| {
            client.join().expect("a client does not panic")
        };
        clients.into_iter().map(join).collect()
    });
    let answers = answers?;
    let first = answers.iter().map(|answer| answer.first).min();
    let last = answers.iter().map(|answer| answer.last).max();
    let (first, last) = first.zip(last).context("no clients")?;
    // The first token of the first stream is there when the time begins.
    let tokens = answers.iter().map(|answer| answer.tokens).sum::<usize>() - 1;
    Ok(tokens as f64 / (last - first).as_secs_f64())
}

/// Reads the head of a successful answer. Returns whether its body comes in chunks.
fn read_head(reader: &mut impl BufRead) -> Result<bool> {
    let mut status = String::new();
    reader.read_line(&mut status)?;
    let mut chunked = false;
    let mut line = String::new();
    while {
        line.clear();
        reader.read_line(&mut line)? > 2
    } {
        let header = line.to_ascii_lowercase();
        chunked |= header.starts_with("transfer-encoding:") && header.contains("chunked");
    }
    if status.split_whitespace().nth(1) != Some("200") {
        let mut body = vec![0; 400];
        let n = reader.read(&mut body)?;
        bail!("{}: {}", status.trim(), String::from_utf8_lossy(&body[..n]));
    }
    Ok(chunked)
}

/// The body of an answer.
enum Body<R> {
    Plain(R),
    /// `left` bytes of the current chunk have not been read.
    Chunked {
        reader: R,
        left: usize,
    },
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let (reader, left) = match self {
            Body::Plain(reader) => return reader.read(to),
            Body::Chunked { reader, left } => (reader, left),
        };
        if *left == 0 {
            let mut size = String::new();
            // An empty line ends the chunk before.
            while size.trim().is_empty() {
                size.clear();
                if reader.read_line(&mut size)? == 0 {
                    return Ok(0);
                }
            }
            *left = usize::from_str_radix(size.trim(), 16).map_err(std::io::Error::other)?;
            if *left == 0 {
                return Ok(0);
            }
        }
        let most = to.len().min(*left);
        let n = reader.read(&mut to[..most])?;
        *left -= n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        let bytes = &b"5\r\ndata:\r\n3\r\n x\n\r\n0\r\n\r\n"[..];
        let mut text = String::new();
        let mut body = Body::Chunked {
            reader: bytes,
            left: 0,
        };
        body.read_to_string(&mut text).unwrap();
        assert_eq!(text, "data: x\n");
    }

    #[test]
    fn an_error_status_is_an_error_with_its_body() {
        let mut answer = &b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno"[..];
        let error = read_head(&mut answer).unwrap_err().to_string();
        assert_eq!(error, "HTTP/1.1 400 Bad Request: no");
    }
}
