//! `kvark inspect` of a snapshot.

use crate::chat::Saved;
use crate::output;
use anyhow::Result;
use kvark::snapshot::Snapshot;
use serde_json::json;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Characters of a message that are shown.
const SHOWN: usize = 100;

/// Prints the facts and the conversation of the snapshot at `path`.
pub(super) fn show(path: &Path, as_json: bool) -> Result<()> {
    let snapshot = Snapshot::open(path)?;
    let saved = Saved::of(&snapshot);
    let [keys, values] = snapshot.storage();
    let fingerprint = format!("{:016x}", snapshot.fingerprint());
    let layers = snapshot.layers().len();
    let mut out = BufWriter::new(std::io::stdout().lock());
    if as_json {
        let object = json!({
            "format": "snapshot",
            "version": Snapshot::VERSION,
            "architecture": null,
            "metadata": {},
            "ops": {},
            "model": saved.model,
            "fingerprint": fingerprint,
            "file_bytes": snapshot.file_bytes(),
            "tokens": snapshot.tokens(),
            "kv": {
                "layers": layers,
                "key_type": keys.name(),
                "value_type": values.name(),
                "bytes": snapshot.kv_bytes(),
            },
            "branch": saved.branch,
            "turns": saved.turns,
            "messages": saved.messages,
        });
        writeln!(out, "{object}")?;
        out.flush()?;
        return Ok(());
    }
    writeln!(out, "format        kvark snapshot {}", Snapshot::VERSION)?;
    let model = saved.model.as_deref().unwrap_or("not named");
    writeln!(out, "model         {model}, fingerprint {fingerprint}")?;
    let file = output::bytes(snapshot.file_bytes() as u64);
    writeln!(out, "file          {file}")?;
    writeln!(out, "tokens        {}", snapshot.tokens().len())?;
    let bytes = output::bytes(snapshot.kv_bytes() as u64);
    writeln!(
        out,
        "KV cache      {}, keys {keys}, values {values}, {bytes}",
        output::count(layers, "layer")
    )?;
    let (Some(messages), Some(turns)) = (saved.messages, saved.turns) else {
        writeln!(out, "conversation  none: the prompt of a kvark run")?;
        out.flush()?;
        return Ok(());
    };
    writeln!(out, "conversation  {}", output::count(turns, "turn"))?;
    writeln!(
        out,
        "branch        {}",
        saved.branch.as_deref().unwrap_or("main")
    )?;
    writeln!(out, "\nmessages")?;
    for message in messages {
        let short = shortened(&message.content);
        writeln!(out, "  {:<11} {short}", message.role)?;
    }
    out.flush()?;
    Ok(())
}

/// The beginning of a text as one line.
pub(super) fn shortened(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
