//! Addresses of downloads, read by the parser that the HTTP client uses. Crate `url` is not used: it brings the tables of
//! international domain names (26 crates), and what it reads in an address could differ from what the client reads.

use import::gguf::SplitName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::net::IpAddr;
use ureq::http::Uri;
use ureq::http::uri::Authority;

/// The bytes of a repository's path that are percent-encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Parses an address. `None` unless it is http or https and has a host.
fn parse(url: &str) -> Option<Uri> {
    let uri: Uri = url.parse().ok()?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    (is_http && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri)
}

/// The scheme, host and port of an address, such as `https://host:8443`. `None` unless it is http or https and has a host.
pub(crate) fn origin(url: &str) -> Option<String> {
    let uri = parse(url)?;
    Some(format!("{}://{}", uri.scheme_str()?, host_and_port(&uri)))
}

/// The host and port of an address, such as `host:8443`; empty if it has none.
pub(crate) fn authority(url: &str) -> String {
    parse(url).as_ref().map(host_and_port).unwrap_or_default()
}

/// The authority of an address without its user.
fn host_and_port(uri: &Uri) -> String {
    let authority = uri.authority().map_or("", Authority::as_str);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    host.to_owned()
}

/// Whether the address is http or https and has a host.
pub(crate) fn is_address(url: &str) -> bool {
    parse(url).is_some()
}

/// The path of an address, without query and fragment.
pub(crate) fn path(url: &str) -> String {
    parse(url)
        .map(|uri| uri.path().to_owned())
        .unwrap_or_default()
}

/// The addresses of all parts of a split model, or the one address.
pub(crate) fn parts(address: &str) -> Vec<String> {
    let path = path(address);
    let Some(split) = SplitName::parse(&path) else {
        return vec![address.to_owned()];
    };
    let part = |number| address.replacen(&path, &split.part(number), 1);
    (1..=split.count()).map(part).collect()
}

/// Whether the address is on this machine.
pub(crate) fn is_loopback(url: &str) -> bool {
    let uri = parse(url);
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let ip = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Whether what is sent to the address cannot be read on the way.
pub(crate) fn is_private(url: &str) -> bool {
    url.starts_with("https://") || is_loopback(url)
}

/// The address as messages show it: without user, query and fragment, which may hold secrets.
pub(crate) fn shown(url: &str) -> String {
    let shown = origin(url).unwrap_or_default() + &path(url);
    crate::error::printable(&shown)
}

/// The address that a `Location` header of an answer of `base` names.
pub(crate) fn join(base: &str, location: &str) -> Option<String> {
    let base = parse(base)?;
    let scheme = base.scheme_str()?;
    let origin = format!("{scheme}://{}", base.authority()?);
    let is_scheme = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_absolute = |text: &str| text.split_once("://").is_some_and(|(s, _)| is_scheme(s));
    let joined = match location {
        absolute if is_absolute(absolute) => absolute.to_owned(),
        other_host if other_host.starts_with("//") => format!("{scheme}:{other_host}"),
        rooted if rooted.starts_with('/') => format!("{origin}{rooted}"),
        relative => {
            let folder = base
                .path()
                .rsplit_once('/')
                .map_or("", |(folder, _)| folder);
            format!("{origin}{folder}/{relative}")
        }
    };
    is_address(&joined).then_some(joined)
}

/// Percent-encodes a path of a repository; `/` stays.
pub(crate) fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_address() {
        let url = "https://user:secret@hub.example:8443/a/b.gguf?sig=1#x";
        let origin_of = |url| origin(url).unwrap_or_default();
        assert_eq!(origin_of(url), "https://hub.example:8443");
        assert_eq!(authority(url), "hub.example:8443");
        assert_eq!(path(url), "/a/b.gguf");
        assert_eq!(shown(url), "https://hub.example:8443/a/b.gguf");
        for wrong in [
            "ftp://x/y",
            "https:///y",
            "https://",
            "https://u@/y",
            "https://h/a b",
            "h/y",
        ] {
            assert!(!is_address(wrong), "{wrong}");
        }
        for local in [
            "http://localhost:1/x",
            "http://127.0.0.1",
            "http://[::1]:80/",
        ] {
            assert!(is_loopback(local), "{local}");
        }
        assert!(!is_loopback("http://127.0.0.1.example/"));
        assert_eq!(encode_path("a b/ü.gguf"), "a%20b/%C3%BC.gguf");
    }

    #[test]
    fn redirects_may_be_relative() {
        let base = "https://h.example/a/b?q=/c/";
        let table = [
            ("https://o.example/x", Some("https://o.example/x")),
            ("//o.example/x", Some("https://o.example/x")),
            ("/x", Some("https://h.example/x")),
            ("x", Some("https://h.example/a/x")),
            (
                "/x?to=https://o.example/",
                Some("https://h.example/x?to=https://o.example/"),
            ),
            ("file:///etc/passwd", None),
            ("https://o.example/a b", None),
        ];
        for (location, want) in table {
            assert_eq!(join(base, location).as_deref(), want, "{location}");
        }
    }
}
