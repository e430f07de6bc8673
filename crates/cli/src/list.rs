//! `kvark list`: models that are there, and those of the catalogue.

use crate::output;
use anyhow::Result;
use clap::Args;
use console::Term;
use kvark::catalogue::{CatalogueEntry, FileState, MODELS};
use kvark::hub::{ModelSource, ModelStore, OllamaStore, StoredModel};
use kvark::model::gguf::Gguf;
use kvark::model::safetensors::Safetensors;
use kvark::model::{Format, format_of, genai};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// List models: the catalogue, downloaded ones, Ollama's
#[derive(Args)]
#[command(
    after_help = "Downloads that were not finished are listed too; kvark pull continues them, kvark rm deletes them. Models of Ollama \
on this machine can be used as ollama:NAME.

Examples:
  kvark list
  kvark list --json"
)]
pub(crate) struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A line of the list.
struct Row {
    name: String,
    source: &'static str,
    path: PathBuf,
    bytes: u64,
    /// Why the file cannot be used, or advice; empty if it can.
    remark: String,
    is_present: bool,
    quantisation: Option<String>,
    context: Option<usize>,
    last_use: Option<SystemTime>,
    /// More about a model of the catalogue.
    entry: Option<&'static CatalogueEntry>,
}

impl List {
    pub(crate) fn execute(self) -> Result<()> {
        let home = ModelStore::from_env()?;
        home.remove_leftovers();
        let rows: Vec<Row> = MODELS
            .iter()
            .map(|entry| Row::of_catalogue(&home, entry))
            .chain(home.stored_models().iter().map(Row::of_stored))
            .chain(Row::of_ollama(&home))
            .collect();
        let mut out = std::io::stdout().lock();
        if self.json {
            let models: Vec<Value> = rows.iter().map(Row::json).collect();
            let packed = json!({ "bytes": home.packed_bytes(), "path": home.packed_folder() });
            writeln!(out, "{}", json!({ "models": models, "packed": packed }))?;
            return Ok(());
        }
        let longest = rows.iter().map(|row| row.name.chars().count()).max();
        let width = longest.unwrap_or(0).max(24);
        let columns = terminal_columns();
        writeln!(
            out,
            "{:<width$}{:>9}  {:<8}{:>8}  {:<12}  FILE",
            "NAME", "SIZE", "QUANT", "CONTEXT", "LAST USE"
        )?;
        for row in &rows {
            row.print(&mut out, width, columns)?;
        }
        let packed = home.packed_bytes();
        if packed > 0 {
            let size = output::bytes(packed);
            let folder = home.packed_folder();
            let folder = folder.display();
            writeln!(out, "{:<width$}{size:>9}  {folder}", "packed weights")?;
            writeln!(
                out,
                "    cache for faster starts; kvark rm --packed deletes them"
            )?;
        }
        Ok(())
    }
}

impl Row {
    fn of_catalogue(home: &ModelStore, entry: &'static CatalogueEntry) -> Row {
        let path = home.model_path(entry);
        let state = home.state(entry);
        let (quantisation, context) = match state {
            FileState::Present => facts(&path),
            _ => (None, None),
        };
        Row {
            name: entry.name.to_owned(),
            source: "catalogue",
            bytes: entry.bytes,
            remark: match state {
                FileState::Present => String::new(),
                FileState::Absent => "not fetched".to_owned(),
                FileState::WrongSize => "damaged".to_owned(),
            },
            is_present: state == FileState::Present,
            quantisation,
            context,
            last_use: home.last_use(&path),
            path,
            entry: Some(entry),
        }
    }

    fn of_stored(model: &StoredModel) -> Row {
        let (found, context) = match model.is_complete {
            true => facts(&model.path),
            false => (None, None),
        };
        let name = &model.name;
        let remark = match (model.is_complete, model.source) {
            (true, _) => String::new(),
            (false, ModelSource::Stray) => format!("left over; kvark rm {name} deletes it"),
            (false, _) => {
                let total = model.total_bytes.map(output::bytes);
                let of = total.map_or(String::new(), |total| format!(" of {total}"));
                format!("unfinished{of}; kvark pull {name} continues, kvark rm {name} deletes")
            }
        };
        Row {
            name: name.clone(),
            source: match model.source {
                ModelSource::Hub => "hub",
                ModelSource::Url => "url",
                ModelSource::Stray => "stray",
            },
            path: model.path.clone(),
            bytes: model.bytes,
            remark,
            is_present: model.is_complete,
            quantisation: model.quantisation.clone().or(found),
            context,
            last_use: model.last_use,
            entry: None,
        }
    }

    fn of_ollama(home: &ModelStore) -> impl Iterator<Item = Row> {
        OllamaStore::from_env().list().into_iter().map(|model| {
            let (quantisation, context) = facts(&model.path);
            Row {
                name: model.name,
                source: "ollama",
                bytes: model.bytes,
                remark: String::new(),
                is_present: true,
                quantisation,
                context,
                last_use: home.last_use(&model.path),
                path: model.path,
                entry: None,
            }
        })
    }

    /// Prints the row. What is longer than `columns` goes to lines of its own, broken between words.
    fn print(&self, out: &mut impl Write, width: usize, columns: usize) -> Result<()> {
        let (name, size) = (&self.name, output::bytes(self.bytes));
        let quantisation = self.quantisation.as_deref().unwrap_or("-");
        let context = self.context.map_or("-".to_owned(), |n| n.to_string());
        let used = self.last_use.map_or("-".to_owned(), ago);
        let path = self.path.display();
        let there = match (&*self.remark, self.entry.is_some()) {
            ("", _) => path.to_string(),
            ("not fetched", _) => self.remark.clone(),
            (remark, true) => format!("{remark}: {path}"),
            (remark, false) => remark.to_owned(),
        };
        let first = format!("{name:<width$}{size:>9}  {quantisation:<8}{context:>8}  {used:<12}  ");
        let indented = |out: &mut dyn Write, text: &str| -> std::io::Result<()> {
            for line in wrapped(text, columns.saturating_sub(INDENT.len())) {
                writeln!(out, "{INDENT}{line}")?;
            }
            Ok(())
        };
        match first.chars().count() + there.chars().count() <= columns {
            true => writeln!(out, "{first}{there}")?,
            false => {
                writeln!(out, "{}", first.trim_end())?;
                indented(out, &there)?;
            }
        }
        if let Some(entry) = self.entry {
            let (description, licence) = (entry.description, entry.licence);
            let aliases = entry.aliases.join(", ");
            indented(
                out,
                &format!("{description} (licence {licence}; also {aliases})"),
            )?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let seconds = |time: SystemTime| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs());
        let mut row = json!({
            "name": self.name,
            "source": self.source,
            "bytes": self.bytes,
            "present": self.is_present,
            "path": self.path,
            "quantisation": self.quantisation,
            "context": self.context,
            "last_use": self.last_use.and_then(seconds),
        });
        if let Some(entry) = self.entry {
            row["aliases"] = json!(entry.aliases);
            row["sha256"] = json!(entry.sha256);
            row["licence"] = json!(entry.licence);
            row["description"] = json!(entry.description);
        }
        row
    }
}

const INDENT: &str = "    ";

/// The width of the terminal; without one, lines are as long as their text.
fn terminal_columns() -> usize {
    let terminal = Term::stdout();
    let size = terminal.size_checked().filter(|_| terminal.is_term());
    size.map_or(usize::MAX, |(_, columns)| usize::from(columns))
}

/// The text in lines of at most `columns` characters, broken between words. A longer word has a line of its own.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The quantisation that a file states, or else the type that most bytes of its weights have, and the model's context, as far
/// as the file can be read.
pub(crate) fn facts(path: &Path) -> (Option<String>, Option<usize>) {
    let Ok(file) = Gguf::open(path) else {
        return folder_facts(path).unwrap_or_default();
    };
    let mut bytes = BTreeMap::new();
    for tensor in &file.tensors {
        *bytes.entry(tensor.dtype.name()).or_insert(0) += tensor.data.len();
    }
    let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes);
    let architecture = file.metadata.str("general.architecture").ok().flatten();
    let key = format!("{}.context_length", architecture.unwrap_or_default());
    let context = file.metadata.usize(&key).ok().flatten();
    let stated = file.metadata.usize("general.file_type").ok().flatten();
    let stated = stated
        .and_then(quantisation_of_file_type)
        .map(str::to_owned);
    let most = || most.map(|(name, _)| name.to_uppercase());
    (stated.or_else(most), context)
}

/// The same of a folder with safetensors, or of their file.
fn folder_facts(path: &Path) -> Option<(Option<String>, Option<usize>)> {
    let path = genai::model_file(path).ok()?;
    if format_of(&path).ok()? != Format::Safetensors {
        return None;
    }
    let file = Safetensors::open(&path).ok()?;
    let mut bytes = BTreeMap::new();
    for tensor in &file.tensors {
        *bytes.entry(tensor.dtype.name()).or_insert(0) += tensor.data.len();
    }
    let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes);
    let context = file.config.get("max_position_embeddings");
    let context = context.and_then(serde_json::Value::as_u64);
    Some((
        most.map(|(name, _)| name.to_uppercase()),
        context.map(|n| n as usize),
    ))
}

/// The quantisation that the key `general.file_type` of a GGUF file states, by llama.cpp's numbers.
fn quantisation_of_file_type(number: usize) -> Option<&'static str> {
    Some(match number {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4",
        _ => return None,
    })
}

/// The time since then, in the largest unit.
fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    let (n, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "min"),
        3600..86400 => (seconds / 3600, "h"),
        _ => (seconds / 86400, "days"),
    };
    let unit = if n == 1 {
        unit.trim_end_matches('s')
    } else {
        unit
    };
    format!("{n} {unit} ago")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("ab cd efghij k", 5), ["ab cd", "efghij", "k"]);
        assert_eq!(wrapped("ab cd", usize::MAX), ["ab cd"]);
    }

    #[test]
    fn times_in_words() {
        let table = [
            (5, "just now"),
            (60, "1 min ago"),
            (7300, "2 h ago"),
            (86_400, "1 day ago"),
            (900_000, "10 days ago"),
        ];
        for (seconds, want) in table {
            assert_eq!(ago(SystemTime::now() - Duration::from_secs(seconds)), want);
        }
    }
}
