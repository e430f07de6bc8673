//! The results as lines, as a Markdown table, as CSV and as JSON, with ratios to earlier results.

use super::cpu_name::cpu_name;
use super::{Measured, profile};
use crate::output;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kvark::backend::Isa;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;

/// The form of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Lines for people
    Text,
    /// A Markdown table
    Md,
    /// Comma-separated values
    Csv,
    /// One JSON object
    Json,
}

/// Everything that was measured.
pub(super) struct Report<'a> {
    pub(super) results: &'a [Measured],
    pub(super) isa: Isa,
    /// The name of the GPU, if one was used.
    pub(super) gpu: Option<String>,
    /// Whether run modes are compared.
    pub(super) shows_modes: bool,
    /// Whether the time of a step is shown by op.
    pub(super) shows_profile: bool,
    /// Earlier results.
    pub(super) earlier: Option<Earlier>,
}

/// The results of an earlier `kvark bench --json`.
pub(super) struct Earlier {
    name: String,
    results: Vec<Value>,
}

impl Earlier {
    pub(super) fn read(file: &Path) -> Result<Earlier> {
        let name = file.display().to_string();
        let text = crate::text_input::read_text(file)?;
        let value: Value =
            serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))?;
        let Some(results) = value["results"].as_array() else {
            bail!("{name} has no \"results\": it must be what kvark bench --json prints");
        };
        Ok(Earlier {
            results: results.clone(),
            name,
        })
    }

    /// The speed of the same test: of the same model and number of threads, or else of the only test of this name.
    fn rate(&self, measured: &Measured) -> Option<f64> {
        let same_test =
            |row: &&Value| row["test"] == measured.test && row["run_mode"] == measured.mode.name();
        let same = |row: &&Value| {
            row["model"] == measured.subject.name && row["threads"] == measured.threads
        };
        let mut tests = self.results.iter().filter(same_test);
        let row = match tests.clone().find(same) {
            Some(row) => row,
            None => tests.next().filter(|_| tests.next().is_none())?,
        };
        row["tokens_per_second_mean"].as_f64()
    }
}

impl Report<'_> {
    pub(super) fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        match format {
            Format::Text => self.text(out),
            Format::Md => self.markdown(out),
            Format::Csv => self.csv(out),
            Format::Json => writeln!(out, "{}", self.json()),
        }
    }

    fn ratio(&self, measured: &Measured) -> Option<f64> {
        Some(measured.mean / self.earlier.as_ref()?.rate(measured)?)
    }

    /// Name of a test, with its run mode if several modes are compared.
    fn label(&self, measured: &Measured) -> String {
        match self.shows_modes {
            true => format!("{:<8} {:<18}", measured.test, measured.mode.name()),
            false => measured.test.clone(),
        }
    }

    fn text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "kvark {}", env!("CARGO_PKG_VERSION"))?;
        let mut group = None;
        for m in self.results {
            let own = (&m.subject.name, m.threads);
            if group != Some(own) {
                group = Some(own);
                writeln!(out, "{}", m.subject.line())?;
                match &self.gpu {
                    Some(gpu) => writeln!(out, "{gpu}")?,
                    None => {
                        let threads = m.threads;
                        let s = if threads == 1 { "" } else { "s" };
                        writeln!(out, "{}, {}, {threads} thread{s}", cpu_name(), self.isa)?;
                        writeln!(out, "{}", profile::machine_line(&m.probe))?;
                    }
                }
            }
            let Measured { mean, stddev, .. } = m;
            let test = self.label(m);
            let step = match self.gpu {
                Some(_) => m.step.time(),
                None => m.step.line(&m.probe),
            };
            let compared = match (&self.earlier, self.ratio(m)) {
                (None, _) => String::new(),
                (Some(earlier), Some(ratio)) => {
                    format!("   {ratio:.3} times {}", earlier.name)
                }
                (Some(earlier), None) => format!("   not in {}", earlier.name),
            };
            writeln!(
                out,
                "{test:<16} {mean:>10.2} ± {stddev:.2} tokens/s   {step}{compared}"
            )?;
        }
        if self.shows_profile {
            for m in self.results {
                writeln!(out, "\n{}\n{}", self.label(m), m.step.table(&m.probe))?;
            }
        }
        Ok(())
    }

    /// The columns of the tables, and the cells of a row.
    fn columns(&self) -> Vec<&'static str> {
        let mut columns = vec!["model", "type", "size", "params", "device", "threads"];
        if self.shows_modes {
            columns.push("run mode");
        }
        columns.extend(["test", "tokens/s", "stddev"]);
        if self.earlier.is_some() {
            columns.push("ratio");
        }
        columns
    }

    fn cells(&self, m: &Measured, size: String) -> Vec<String> {
        let device = self.gpu.clone().unwrap_or_else(|| self.isa.to_string());
        let mut cells = vec![
            m.subject.name.clone(),
            m.subject.kind().to_owned(),
            size,
            m.subject.parameters(),
            device,
            m.threads.to_string(),
        ];
        if self.shows_modes {
            cells.push(m.mode.name().to_owned());
        }
        cells.push(m.test.clone());
        cells.push(format!("{:.2}", m.mean));
        cells.push(format!("{:.2}", m.stddev));
        if self.earlier.is_some() {
            let ratio = self.ratio(m);
            cells.push(ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")));
        }
        cells
    }

    fn markdown(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.columns();
        writeln!(out, "| {} |", columns.join(" | "))?;
        // Numbers are right-aligned: those from the threads on, and size and parameters.
        let rule = |name: &&str| match *name {
            "size" | "params" | "threads" | "tokens/s" | "stddev" | "ratio" => "---:",
            _ => "---",
        };
        let rules: Vec<&str> = columns.iter().map(rule).collect();
        writeln!(out, "|{}|", rules.join("|"))?;
        for m in self.results {
            let cells = self.cells(m, output::bytes(m.subject.bytes));
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            writeln!(out, "| {} |", cells.join(" | "))?;
        }
        writeln!(
            out,
            "\nkvark {} on {}",
            env!("CARGO_PKG_VERSION"),
            cpu_name()
        )
    }

    fn csv(&self, out: &mut impl Write) -> io::Result<()> {
        let quoted = |cell: &str| match cell.contains([',', '"', '\n']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.to_owned(),
        };
        let version = env!("CARGO_PKG_VERSION");
        writeln!(out, "version,cpu,{}", self.columns().join(","))?;
        for m in self.results {
            let cells = self.cells(m, m.subject.bytes.to_string());
            let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
            writeln!(out, "{version},{},{}", quoted(&cpu_name()), cells.join(","))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let row = |m: &Measured| {
            let mut row = json!({
                "model": m.subject.name,
                "threads": m.threads,
                "test": m.test,
                "run_mode": m.mode.name(),
                "n": m.n,
                "tokens_per_second_mean": m.mean,
                "tokens_per_second_stddev": m.stddev,
                "step": m.step.json(&m.probe),
            });
            if self.earlier.is_some() {
                row["ratio"] = self.ratio(m).into();
            }
            row
        };
        let mut models: Vec<Value> = vec![];
        for m in self.results {
            let model = m.subject.json();
            if !models.contains(&model) {
                models.push(model);
            }
        }
        let first = self.results.first();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "models": models,
            "results": self.results.iter().map(row).collect::<Vec<_>>(),
            "device": self.gpu,
            "cpu": cpu_name(),
            "isa": self.isa.name(),
            "threads": first.map(|m| m.threads),
            "machine": first.map(|m| profile::machine(&m.probe)),
        })
    }
}
