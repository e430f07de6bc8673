//! `kvark inspect` of a prefix file.

use super::saved::shortened;
use crate::output;
use crate::prefix::GivenPrefix;
use anyhow::Result;
use kvark::snapshot::Snapshot;
use serde_json::json;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Prints the facts of the prefix file at `path`.
pub(super) fn show(path: &Path, as_json: bool) -> Result<()> {
    let prefix = GivenPrefix::open(path)?;
    let system = prefix.system().map(|message| message.content);
    let file = &prefix.file;
    let [keys, values] = file.storage();
    let fingerprint = format!("{:016x}", file.fingerprint());
    let layers = file.layers().len();
    let mut out = BufWriter::new(std::io::stdout().lock());
    if as_json {
        let object = json!({
            "format": "prefix",
            "version": Snapshot::VERSION,
            "architecture": null,
            "metadata": {},
            "ops": {},
            "model": prefix.model,
            "fingerprint": fingerprint,
            "file_bytes": file.file_bytes(),
            "tokens": file.tokens(),
            "kv": {
                "layers": layers,
                "key_type": keys.name(),
                "value_type": values.name(),
                "bytes": file.kv_bytes(),
            },
            "system": system,
        });
        writeln!(out, "{object}")?;
        out.flush()?;
        return Ok(());
    }
    writeln!(out, "format        kvark prefix {}", Snapshot::VERSION)?;
    let model = prefix.model.as_deref().unwrap_or("not named");
    writeln!(out, "model         {model}, fingerprint {fingerprint}")?;
    let size = output::bytes(file.file_bytes() as u64);
    writeln!(out, "file          {size}")?;
    writeln!(out, "tokens        {}", file.tokens().len())?;
    let bytes = output::bytes(file.kv_bytes() as u64);
    let layers = output::count(layers, "layer");
    writeln!(
        out,
        "KV cache      {layers}, keys {keys}, values {values}, {bytes}"
    )?;
    match &system {
        Some(text) => writeln!(out, "system        {}", shortened(text))?,
        None => writeln!(out, "begins        plain prompts")?,
    }
    out.flush()?;
    Ok(())
}
