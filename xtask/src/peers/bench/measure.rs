//! Measuring: both sides of every test, round by round.

use super::peer::{About, Peer, PeerKind};
use super::section::{Comparison, Files, Section, Test};
use crate::peers::turns::{Kvark, Speed, median};
use crate::peers::venv::Build;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Steps of a few rows take milliseconds.
const ROW_REPETITIONS: &str = "40";

/// The files to measure.
pub(super) struct Models {
    pub(super) main: PathBuf,
    pub(super) also: Vec<PathBuf>,
}

impl Models {
    fn of(&self, section: &Section) -> &[PathBuf] {
        match section.files {
            Files::Main => std::slice::from_ref(&self.main),
            Files::Also => &self.also,
            Files::Large => self.also.get(..1).unwrap_or_default(),
        }
    }
}

/// All results and the machine they were measured on.
pub(super) struct Record {
    pub(super) tables: Vec<Table>,
    /// Skipped sections: title and reason.
    pub(super) left_out: Vec<(&'static str, String)>,
    pub(super) rounds: u32,
    pub(super) cpu: String,
    pub(super) kvark_version: String,
}

/// A section as measured on one file.
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) file: String,
    /// The tier of kvark's kernels.
    pub(super) isa: String,
    pub(super) rows: Vec<Row>,
    pub(super) peer: PeerKind,
    /// The peer's processes, one for every storage of keys and values.
    pub(super) peers: Vec<About>,
}

/// What was measured of a test, round by round.
pub(super) struct Row {
    pub(super) test: Test,
    pub(super) kvark: Vec<Speed>,
    /// Tokens per second of the peer, or of kvark's single row where rows are compared.
    pub(super) other: Vec<f64>,
}

impl Row {
    pub(super) fn ratios(&self) -> Vec<f64> {
        let pairs = self.kvark.iter().zip(&self.other);
        pairs
            .map(|(kvark, other)| match self.test.comparison {
                Comparison::Speed(_) => kvark.tokens_per_second / other,
                // Of times.
                Comparison::Rows { rows, .. } => rows as f64 * other / kvark.tokens_per_second,
            })
            .collect()
    }

    pub(super) fn median(&self, of: impl Fn(&Speed) -> f64) -> f64 {
        median(&self.kvark.iter().map(of).collect::<Vec<_>>())
    }

    /// The share of the probe's bandwidth at which kvark reads.
    pub(super) fn read_share(&self) -> f64 {
        self.median(|s| s.step_bytes * s.tokens_per_second / s.read_bytes_per_second)
    }

    fn show_last(&self, peer: PeerKind) -> String {
        let (Some(kvark), Some(other)) = (self.kvark.last(), self.other.last()) else {
            return String::new();
        };
        let name = match self.test.comparison {
            Comparison::Speed(_) => peer.name(),
            Comparison::Rows { .. } => "one row",
        };
        format!(
            "{:<16} {} threads: kvark {:.1}, {name} {other:.1} tokens/s",
            self.test.name(),
            self.test.threads(),
            kvark.tokens_per_second
        )
    }
}

/// Measures every section that can run here.
pub(super) fn run(
    sections: Vec<Section>,
    models: &Models,
    mut kvark: Kvark,
    rounds: u32,
) -> Result<Record> {
    let mut left_out = Vec::new();
    let mut todo = Vec::new();
    for section in sections {
        kvark.tier.clone_from(&section.tier);
        if models.of(&section).is_empty() {
            left_out.push((section.title, "no file was given with --also".to_owned()));
        } else if let Some(reason) = refusal(&mut kvark, &models.main)? {
            left_out.push((section.title, reason));
        } else {
            // Environments that take minutes to build are prepared before the first measurement.
            section.peer.prepare(section.build())?;
            todo.push(section);
        }
    }
    let mut tables = Vec::new();
    for section in &todo {
        kvark.tier.clone_from(&section.tier);
        for file in models.of(section) {
            eprintln!("{}, {}", section.title, file.display());
            match section.peers(file)? {
                Ok(peers) => tables.push(section.measure(file, peers, &mut kvark, rounds)?),
                Err(reason) => left_out.push((section.title, reason)),
            }
        }
    }
    if tables.is_empty() {
        let (title, reason) = left_out.first().context("nothing to measure")?;
        bail!("{title}: {reason}");
    }
    Ok(Record {
        tables,
        left_out,
        rounds,
        cpu: kvark.cpu,
        kvark_version: kvark.version,
    })
}

/// Why kvark's tier cannot run on this CPU, if it cannot.
fn refusal(kvark: &mut Kvark, model: &Path) -> Result<Option<String>> {
    let Err(error) = kvark.bench(model, &["-r", "1", "-p", "1", "-n", "0"]) else {
        return Ok(None);
    };
    let text = format!("{error:#}");
    match text.find("KVARK_ISA=") {
        Some(start) => Ok(Some(text[start..].trim_end().to_owned())),
        None => Err(error),
    }
}

impl Section {
    fn measure(
        &self,
        file: &Path,
        mut peers: Vec<Peer>,
        kvark: &mut Kvark,
        rounds: u32,
    ) -> Result<Table> {
        let start = |test: &Test| Row {
            test: test.clone(),
            kvark: Vec::new(),
            other: Vec::new(),
        };
        let mut rows: Vec<Row> = self.tests.iter().map(start).collect();
        for round in 0..rounds {
            for row in &mut rows {
                match row.test.comparison {
                    Comparison::Speed(case) => {
                        let cache = &row.test.cache[..];
                        let own = ["--cache-type-k", cache, "--cache-type-v", cache];
                        let peer = peers.iter_mut().find(|peer| peer.cache == cache);
                        let peer = peer.expect("every storage has a peer");
                        for turn in 0..2 {
                            if (round + turn) % 2 == 0 {
                                row.kvark.push(kvark.measure(file, case, &own)?);
                            } else {
                                row.other.push(peer.measure(case)?);
                            }
                        }
                    }
                    Comparison::Rows { rows, threads } => {
                        let (many, single) = kvark.rows(file, rows, threads, round)?;
                        row.kvark.push(many);
                        row.other.push(single.tokens_per_second);
                    }
                }
                eprintln!(
                    "round {} of {rounds}: {}",
                    round + 1,
                    row.show_last(self.peer)
                );
            }
        }
        let name = file.file_name().unwrap_or_default();
        Ok(Table {
            title: self.title,
            file: name.to_string_lossy().into_owned(),
            isa: kvark.isa.clone(),
            rows,
            peer: self.peer,
            peers: peers.into_iter().map(|peer| peer.about).collect(),
        })
    }

    /// A peer for every storage of keys and values, with a context that holds its longest test; or why there is none.
    fn peers(&self, file: &Path) -> Result<Result<Vec<Peer>, String>> {
        let mut needs: Vec<(&str, usize)> = Vec::new();
        for test in &self.tests {
            let Comparison::Speed(case) = test.comparison else {
                continue;
            };
            let length = case.n + case.depth;
            match needs.iter_mut().find(|(cache, _)| *cache == test.cache) {
                Some((_, longest)) => *longest = length.max(*longest),
                None => needs.push((&test.cache, length)),
            }
        }
        needs
            .into_iter()
            .map(|(cache, longest)| Peer::start(self.peer, file, longest, cache, self.build()))
            .collect()
    }

    /// The llama.cpp in the peer's environment.
    fn build(&self) -> Build {
        Build::of(self.tier.as_deref())
    }
}

impl Kvark {
    /// A step of many rows and one of a single row, from one process; which comes first changes with the round.
    fn rows(
        &mut self,
        model: &Path,
        rows: usize,
        threads: usize,
        round: u32,
    ) -> Result<(Speed, Speed)> {
        let mut sizes = [rows, 1];
        let turned = !round.is_multiple_of(2);
        if turned {
            sizes.reverse();
        }
        let prompts = sizes.map(|n| n.to_string()).join(",");
        let threads = threads.to_string();
        let tests = ["-p", &prompts, "-n", "0", "-r", ROW_REPETITIONS];
        let mut speeds = self.bench(model, &[&tests, &["-t", &threads][..]].concat())?;
        if turned {
            speeds.reverse();
        }
        match speeds[..] {
            [many, single] => Ok((many, single)),
            _ => bail!("kvark bench measured {} of two tests", speeds.len()),
        }
    }
}
