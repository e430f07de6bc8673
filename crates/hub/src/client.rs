//! The HTTP client: redirects, the token, statuses and pauses.

use crate::error::{HubError, HubErrorKind, printable};
use crate::options::HubOptions;
use crate::url;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{HeaderMap, StatusCode, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Redirects that are followed.
const MAX_REDIRECTS: usize = 10;
/// Time in which a connection must be made.
const CONNECT: Duration = Duration::from_secs(10);
/// Attempts without a connection after which the server counts as unreachable: who is offline need not wait.
const UNCONNECTED_ATTEMPTS: u32 = 2;
/// Time in which a running server must answer: it may be computing.
const SERVER_SILENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer that is not a file, such as a list of files.
const MAX_TEXT: u64 = 64 << 20;

/// A client of the hub and of plain file servers. Cloning it shares its connections.
#[derive(Clone, Debug)]
pub struct HubClient {
    pub(crate) options: Arc<HubOptions>,
    /// Uses the proxy that the environment names.
    proxied: ureq::Agent,
    /// For servers on this machine.
    direct: ureq::Agent,
}

/// An answer after redirects.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: ureq::Body,
    /// The address that gave the answer.
    pub(crate) url: String,
    /// The checksum and size that the hub states when it redirects to its storage.
    pub(crate) linked: LinkedFile,
}

/// What the hub states of a file that another host stores.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkedFile {
    pub(crate) etag: Option<String>,
    pub(crate) bytes: Option<u64>,
}

/// Why an attempt failed.
pub(crate) enum Failure {
    /// Another attempt may succeed, after a pause of at least this length.
    Again(String, Option<Duration>),
    /// There is no connection to the server; a few more attempts tell a moment's failure from a missing network.
    NoConnection(String),
    /// No other attempt can.
    Final(HubErrorKind),
}

impl HubClient {
    /// A client with these settings. Proxies are those of the environment (`HTTPS_PROXY`, `NO_PROXY` and the like).
    ///
    /// # Errors
    /// If the endpoint is not a URL, or the certificates cannot be read.
    pub fn new(options: &HubOptions) -> Result<HubClient, HubError> {
        let settings = |what: &str, message: String| HubErrorKind::Settings {
            what: what.to_owned(),
            message,
        };
        if !url::is_address(&options.endpoint) {
            let message = format!("{} is not an https address", printable(&options.endpoint));
            return Err(settings("HF_ENDPOINT", message).into());
        }
        let mut tls = TlsConfig::builder();
        if let Some(path) = &options.certificates {
            let name = path.display().to_string();
            let certificates = std::fs::read(path).map_err(|e| e.to_string());
            let certificates = certificates.and_then(|pem| root_certificates(&pem));
            let certificates = certificates.map_err(|e| settings(&name, e))?;
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let tls = tls.build();
        let configure = || {
            ureq::Agent::config_builder()
                .tls_config(tls.clone())
                .http_status_as_error(false)
                .max_redirects(0)
                .user_agent(concat!("kvark/", env!("CARGO_PKG_VERSION")))
                .timeout_connect(Some(CONNECT))
                .timeout_recv_response(Some(options.silence))
                .timeout_per_read(Some(options.silence))
                .max_idle_connections_per_host(options.connections)
        };
        Ok(HubClient {
            options: Arc::new(options.clone()),
            proxied: configure().build().into(),
            direct: configure().proxy(None).build().into(),
        })
    }

    /// A client of one server, which gets the key. It asks once and does not wait long.
    pub(crate) fn for_server(address: &str, key: Option<&str>) -> Result<HubClient, HubError> {
        HubClient::new(&HubOptions {
            endpoint: address.to_owned(),
            token: key.map(str::to_owned),
            attempts: 1,
            silence: SERVER_SILENCE,
            ..HubOptions::default()
        })
    }

    /// Sends a request for all of a file, or for the bytes from `range.0` to before `range.1`, and follows redirects.
    pub(crate) fn get(&self, address: &str, range: Option<(u64, u64)>) -> Result<Answer, Failure> {
        let mut at = address.to_owned();
        let mut linked = LinkedFile::default();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(&at, range)?;
            let (parts, body) = response.into_parts();
            let text = |name: &str| Some(parts.headers.get(name)?.to_str().ok()?.to_owned());
            linked.etag = linked.etag.or_else(|| text("x-linked-etag"));
            let bytes = text("x-linked-size").and_then(|size| size.parse().ok());
            linked.bytes = linked.bytes.or(bytes);
            let moved = [301, 302, 303, 307, 308].contains(&parts.status.as_u16());
            let Some(location) = text("location").filter(|_| moved) else {
                return Ok(Answer {
                    status: parts.status,
                    headers: parts.headers,
                    body,
                    url: at,
                    linked,
                });
            };
            let refuse = |reason| {
                let url = url::shown(&at);
                Failure::Final(HubErrorKind::Redirect { url, reason })
            };
            let Some(next) = url::join(&at, &location) else {
                return Err(refuse("redirects to something that is no http address"));
            };
            if url::is_private(&at) && !url::is_private(&next) {
                return Err(refuse("redirects to an address without encryption"));
            }
            at = next;
        }
        Err(Failure::Final(HubErrorKind::Redirect {
            url: url::shown(address),
            reason: "redirects again and again",
        }))
    }

    fn request(
        &self,
        at: &str,
        range: Option<(u64, u64)>,
    ) -> Result<ureq::http::Response<ureq::Body>, Failure> {
        let agent = match url::is_loopback(at) {
            true => &self.direct,
            false => &self.proxied,
        };
        let mut request = agent.get(at).header("accept-encoding", "identity");
        if let Some((from, end)) = range {
            request = request.header("range", format!("bytes={from}-{}", end - 1));
        }
        let is_hub = url::origin(at) == url::origin(&self.options.endpoint);
        if let Some(token) = &self.options.token
            && is_hub
            && url::is_private(at)
        {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => {
                Failure::Final(HubErrorKind::Settings {
                    what: url::shown(at),
                    message: printable(&error.to_string()),
                })
            }
            // A certificate that is not trusted stays so.
            error if is_tls(&error) => Failure::Final(HubErrorKind::Unreachable {
                url: url::shown(at),
                message: reason(&error),
                attempts: 1,
            }),
            error if is_without_connection(&error) => Failure::NoConnection(reason(&error)),
            error => Failure::Again(reason(&error), None),
        })
    }

    /// Runs `attempt` until it succeeds, fails for good, or has failed too often.
    pub(crate) fn persist<T>(
        &self,
        address: &str,
        cancelled: &mut dyn FnMut() -> bool,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut failures = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Failure::NoConnection(message))
                    if failures + 1 >= UNCONNECTED_ATTEMPTS.min(self.options.attempts) =>
                {
                    return Err(HubErrorKind::Unreachable {
                        url: url::shown(address),
                        message,
                        attempts: failures + 1,
                    }
                    .into());
                }
                Err(failure) => {
                    let (message, asked) = match failure {
                        Failure::Again(message, asked) => (message, asked),
                        Failure::NoConnection(message) => (message, None),
                        Failure::Final(kind) => return Err(kind.into()),
                    };
                    failures += 1;
                    let pause = self.pause(address, failures, message, asked)?;
                    if !wait(pause, cancelled) {
                        return Err(HubErrorKind::Interrupted.into());
                    }
                }
            }
        }
    }

    /// The pause after this many failures.
    ///
    /// # Errors
    /// If there were too many, or the server asks for too long a pause.
    pub(crate) fn pause(
        &self,
        address: &str,
        failures: u32,
        message: String,
        asked: Option<Duration>,
    ) -> Result<Duration, HubErrorKind> {
        let options = &self.options;
        let url = url::shown(address);
        if failures >= options.attempts {
            return Err(HubErrorKind::Unreachable {
                url,
                message,
                attempts: failures,
            });
        }
        if let Some(asked) = asked.filter(|asked| *asked > options.longest_pause) {
            let seconds = asked.as_secs();
            return Err(HubErrorKind::Busy { url, seconds });
        }
        let doubled = options.first_pause * (1 << failures.min(6)) / 2;
        // Connections that failed together must not come back together.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let doubled = doubled + doubled * (now.subsec_micros() % 256) / 1024;
        Ok(asked.unwrap_or_default().max(doubled))
    }

    /// The text of an answer, which must be a success.
    pub(crate) fn text(&self, address: &str) -> Result<(String, HeaderMap), Failure> {
        let mut answer = self.get(address, None)?;
        answer.check_status()?;
        let mut text = Vec::new();
        let mut reader = answer.body.as_reader().take(MAX_TEXT);
        let read = reader.read_to_end(&mut text);
        read.map_err(|e| Failure::Again(e.to_string(), None))?;
        let stated = content_length(&answer.headers);
        if stated.is_some_and(|stated| stated != text.len() as u64) {
            return Err(Failure::Again("the connection was cut".to_owned(), None));
        }
        Ok((String::from_utf8_lossy(&text).into_owned(), answer.headers))
    }
}

impl Answer {
    /// Tells successes from failures.
    pub(crate) fn check_status(&self) -> Result<(), Failure> {
        let status = self.status.as_u16();
        if self.status.is_success() {
            return Ok(());
        }
        let header = |name: &str| self.headers.get(name).and_then(|v| v.to_str().ok());
        let message = printable(header("x-error-message").unwrap_or_default());
        let url = url::shown(&self.url);
        Err(match status {
            408 | 429 | 500 | 502 | 503 | 504 => {
                let pause = header(header::RETRY_AFTER.as_str()).and_then(retry_after);
                Failure::Again(format!("the server answers with status {status}"), pause)
            }
            401 => Failure::Final(HubErrorKind::Unauthorized { url, message }),
            403 => Failure::Final(HubErrorKind::Forbidden { url, message }),
            404 | 410 => Failure::Final(HubErrorKind::NotFound { url, message }),
            _ => Failure::Final(HubErrorKind::Status {
                url,
                status,
                message,
            }),
        })
    }

    /// The validator of this version of the file.
    pub(crate) fn etag(&self) -> Option<String> {
        let etag = self.headers.get(header::ETAG)?.to_str().ok()?;
        // A weak validator does not promise the same bytes.
        (!etag.starts_with("W/")).then(|| etag.trim_matches('"').to_owned())
    }
}

/// The `Content-Length` of an answer.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// Waits; returns false if it was cancelled.
pub(crate) fn wait(pause: Duration, cancelled: &mut dyn FnMut() -> bool) -> bool {
    const SLICE: Duration = Duration::from_millis(50);
    let start = std::time::Instant::now();
    loop {
        if cancelled() {
            return false;
        }
        match pause.checked_sub(start.elapsed()) {
            None | Some(Duration::ZERO) => return true,
            Some(left) => std::thread::sleep(left.min(SLICE)),
        }
    }
}

/// The pause that a `Retry-After` header asks for: seconds, or a date.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new();
    let date = date.parse_timestamp(text.trim()).ok()?;
    let date = Duration::from_secs(u64::try_from(date.as_second()).ok()?);
    Some(date.saturating_sub(std::time::UNIX_EPOCH.elapsed().ok()?))
}

/// Whether no connection to the server was made.
fn is_without_connection(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => true,
        // The standard library has no kind for a name that cannot be resolved.
        ureq::Error::Io(error) if error.to_string().contains("lookup address") => true,
        ureq::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
        ),
        _ => false,
    }
}

fn is_tls(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// A transport error in words.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => printable(&error.to_string()),
        ureq::Error::HostNotFound => "the host is not known".to_owned(),
        ureq::Error::ConnectionFailed => "the server cannot be reached".to_owned(),
        ureq::Error::Timeout(_) => "the server does not answer".to_owned(),
        error => printable(&error.to_string()),
    }
}

fn root_certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut certificates = Vec::new();
    for item in parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(printable(&error.to_string())),
        }
    }
    match certificates.is_empty() {
        true => Err("the file has no certificates".to_owned()),
        false => Ok(certificates),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_in_seconds_or_until_a_date() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        let past = retry_after("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(past, Some(Duration::ZERO));
        let later = retry_after("Sat, 06 Nov 2094 08:49:37 GMT").unwrap();
        assert!(later > Duration::from_secs(1 << 30));
        assert_eq!(retry_after("soon"), None);
    }

    #[test]
    fn a_missing_network_is_told_from_a_cut_connection() {
        use std::io::{Error, ErrorKind};
        let lookup =
            Error::other("failed to lookup address information: Name or service not known");
        let table = [
            (ureq::Error::HostNotFound, true),
            (ureq::Error::Io(lookup), true),
            (ureq::Error::Io(ErrorKind::ConnectionRefused.into()), true),
            (ureq::Error::Io(ErrorKind::ConnectionReset.into()), false),
        ];
        for (error, want) in table {
            assert_eq!(is_without_connection(&error), want, "{error}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        let folder = std::env::temp_dir().join(format!("kvark-pem-{}", std::process::id()));
        std::fs::write(&folder, "no certificate").unwrap();
        let error = |options: HubOptions| HubClient::new(&options).unwrap_err().to_string();
        let certificates = error(HubOptions {
            certificates: Some(folder.clone()),
            ..HubOptions::default()
        });
        assert!(
            certificates.ends_with("the file has no certificates"),
            "{certificates}"
        );
        let endpoint = error(HubOptions {
            endpoint: "hub.example".to_owned(),
            ..HubOptions::default()
        });
        assert_eq!(endpoint, "HF_ENDPOINT: hub.example is not an https address");
        std::fs::remove_file(folder).unwrap();
    }
}
