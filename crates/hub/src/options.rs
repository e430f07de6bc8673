//! Settings of the hub's client, from the variables that the hub's own tools read.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The hub that is asked if `HF_ENDPOINT` is not set.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Settings of a [`HubClient`](crate::HubClient).
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Address of the hub.
    pub endpoint: String,
    /// Token that is sent to the hub, and to no other host.
    pub token: Option<String>,
    /// File with root certificates (PEM) that are trusted instead of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// Number of connections of a download.
    pub connections: usize,
    /// Bytes of a piece: what one request asks for.
    pub piece_bytes: u64,
    /// Number of attempts without progress after which a download fails.
    pub attempts: u32,
    /// Pause after the first failed attempt; it doubles with every further one.
    pub first_pause: Duration,
    /// Longest pause that a server may ask for (`Retry-After`).
    pub longest_pause: Duration,
    /// Time without a byte after which a connection counts as cut.
    pub silence: Duration,
}

impl Default for HubOptions {
    fn default() -> HubOptions {
        HubOptions {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            certificates: None,
            connections: 4,
            piece_bytes: 16 << 20,
            attempts: 6,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(300),
            silence: Duration::from_secs(30),
        }
    }
}

impl HubOptions {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` (or else the token file of the hub's tools) and `SSL_CERT_FILE`.
    pub fn from_env() -> HubOptions {
        HubOptions::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> HubOptions {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &str| get(name)?.into_string().ok();
        let trimmed = |text: String| Some(text.trim().to_owned()).filter(|t| !t.is_empty());
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let cache = get("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(get("HOME")?).join(".cache")));
        let home = get("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(cache?.join("huggingface")));
        let file = get("HF_TOKEN_PATH").map(PathBuf::from);
        let file = file.or_else(|| Some(home?.join("token")));
        let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(file?).ok());
        HubOptions {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            token: token.and_then(trimmed),
            certificates: get("SSL_CERT_FILE").map(PathBuf::from),
            ..HubOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_the_token_file() {
        let folder = std::env::temp_dir().join(format!("kvark-hf-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(".cache/huggingface")).unwrap();
        std::fs::write(folder.join(".cache/huggingface/token"), "from-file\n").unwrap();
        let options = |set: &[(&str, &str)]| {
            HubOptions::from_variables(|name| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let home = ("HOME", folder.to_str().unwrap());
        let read = options(&[home]);
        assert_eq!(read.endpoint, DEFAULT_ENDPOINT);
        assert_eq!(read.token.as_deref(), Some("from-file"));
        let read = options(&[
            home,
            ("HF_TOKEN", "own"),
            ("HF_ENDPOINT", "https://m.example/"),
        ]);
        assert_eq!(read.endpoint, "https://m.example");
        assert_eq!(read.token.as_deref(), Some("own"));
        assert_eq!(options(&[("HF_TOKEN", " ")]).token, None);
        assert_eq!(options(&[]).token, None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
