//! The few operations on URLs that downloads need.

use import::gguf::SplitName;
use std::net::IpAddr;

/// The scheme, host and port of an address, such as `https://host:8443`. `None` unless it is http or https.
pub(crate) fn origin(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    if !["http", "https"].contains(&scheme) {
        return None;
    }
    let host = rest.split(['/', '?', '#']).next()?;
    (!host.is_empty()).then(|| &url[..scheme.len() + 3 + host.len()])
}

/// The host of an address, without user and port.
pub(crate) fn host(url: &str) -> Option<&str> {
    let authority = origin(url)?.split_once("://")?.1;
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let end = match host.strip_prefix('[') {
        Some(ip) => ip.find(']')? + 2,
        None => host.find(':').unwrap_or(host.len()),
    };
    Some(&host[..end])
}

/// The path of an address, without query and fragment.
pub(crate) fn path(url: &str) -> &str {
    let after = &url[origin(url).map_or(0, str::len)..];
    after.split(['?', '#']).next().unwrap_or_default()
}

/// The addresses of all parts of a split model, or the one address.
pub(crate) fn parts(address: &str) -> Vec<String> {
    let path = path(address);
    let Some(split) = SplitName::parse(path) else {
        return vec![address.to_owned()];
    };
    let start = address.find(path).unwrap_or(0);
    let (before, after) = (&address[..start], &address[start + path.len()..]);
    let part = |number| format!("{before}{}{after}", split.part(number));
    (1..=split.count()).map(part).collect()
}

/// Whether the address is on this machine.
pub(crate) fn is_loopback(url: &str) -> bool {
    let host = host(url).unwrap_or_default();
    let ip = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Whether what is sent to the address cannot be read on the way.
pub(crate) fn is_private(url: &str) -> bool {
    url.starts_with("https://") || is_loopback(url)
}

/// The address as messages show it: without user, query and fragment, which may hold secrets.
pub(crate) fn shown(url: &str) -> String {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let authority = origin(url)
        .and_then(|o| o.split_once("://"))
        .map_or("", |(_, a)| a);
    let authority = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    crate::error::printable(&format!("{scheme}://{authority}{}", path(url)))
}

/// The address that a `Location` header of an answer of `base` names.
pub(crate) fn join(base: &str, location: &str) -> Option<String> {
    if location.contains("://") {
        return origin(location).map(|_| location.to_owned());
    }
    let origin = origin(base)?;
    if let Some(other) = location.strip_prefix("//") {
        let scheme = origin.split_once("://")?.0;
        return Some(format!("{scheme}://{other}"));
    }
    if location.starts_with('/') {
        return Some(format!("{origin}{location}"));
    }
    let folder = path(base).rsplit_once('/').map_or("", |(folder, _)| folder);
    Some(format!("{origin}{folder}/{location}"))
}

/// Percent-encodes a path of a repository; `/` stays.
pub(crate) fn encode_path(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    let mut out = String::new();
    for byte in path.bytes() {
        match plain(byte) {
            true => out.push(byte.into()),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_address() {
        let url = "https://user:secret@hub.example:8443/a/b.gguf?sig=1#x";
        assert_eq!(origin(url), Some("https://user:secret@hub.example:8443"));
        assert_eq!((host(url), path(url)), (Some("hub.example"), "/a/b.gguf"));
        assert_eq!(shown(url), "https://hub.example:8443/a/b.gguf");
        assert_eq!(origin("ftp://x/y"), None);
        assert_eq!(origin("https:///y"), None);
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
        let base = "https://h.example/a/b?q";
        let table = [
            ("https://o.example/x", Some("https://o.example/x")),
            ("//o.example/x", Some("https://o.example/x")),
            ("/x", Some("https://h.example/x")),
            ("x", Some("https://h.example/a/x")),
            ("file:///etc/passwd", None),
        ];
        for (location, want) in table {
            assert_eq!(join(base, location).as_deref(), want, "{location}");
        }
    }
}
