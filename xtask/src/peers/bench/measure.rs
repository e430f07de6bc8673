//! Measuring: all sides of every test, round by round.

use super::peer::{About, Peer, PeerKind, Setting};
use super::row::{Row, Turns};
use super::section::{Comparison, Files, Section, Test};
use crate::peers::turns::{Case, Kvark, Speed};
use crate::peers::venv::Build;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
            Files::Others => self.also.get(1..).unwrap_or_default(),
        }
    }
}

/// All results and the machine they were measured on.
pub(super) struct Record {
    pub(super) tables: Vec<Table>,
    /// What was left out, and why: a section, a peer in a section, a peer in a row, a row.
    pub(super) left_out: Vec<(String, String)>,
    pub(super) rounds: u32,
    pub(super) cpu: String,
    pub(super) kvark_version: String,
    /// The precision that kvark was asked for.
    pub(super) precision: Option<String>,
}

/// A section as measured on one file.
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) file: String,
    /// The tier of kvark's kernels.
    pub(super) isa: String,
    pub(super) rows: Vec<Row>,
    /// The peers' configurations, each once for every storage of keys and values.
    pub(super) peers: Vec<About>,
}

/// The other sides of a comparison.
pub(super) struct Peers {
    pub(super) kinds: Vec<PeerKind>,
    /// The longest time of a measurement of a peer.
    pub(super) patience: Duration,
}

/// Measures every section that can run here.
pub(super) fn run(
    sections: Vec<Section>,
    models: &Models,
    mut kvark: Kvark,
    rounds: u32,
    peers: &Peers,
) -> Result<Record> {
    let mut left_out = Vec::new();
    let mut todo = Vec::new();
    for section in sections {
        kvark.tier.clone_from(&section.tier);
        if models.of(&section).is_empty() {
            left_out.push((section.title.to_owned(), "no file was given".to_owned()));
        } else if let Some(reason) = refusal(&mut kvark, &models.main)? {
            left_out.push((section.title.to_owned(), reason));
        } else {
            // Environments that take minutes to build are prepared before the first measurement.
            for kind in &peers.kinds {
                kind.prepare(Build::of(section.tier.as_deref()))?;
            }
            todo.push(section);
        }
    }
    let mut tables = Vec::new();
    for section in &todo {
        kvark.tier.clone_from(&section.tier);
        for file in models.of(section) {
            eprintln!("{}, {}", section.title, file.display());
            let started = section.start(file, peers, &mut left_out)?;
            let table = section.measure(file, started, &mut kvark, rounds, &mut left_out)?;
            if !table.rows.is_empty() {
                tables.push(table);
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
        precision: kvark.precision,
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
    /// Measures the tests on a file. A peer that fails is left out of that row, and a row that kvark cannot run is left out.
    fn measure(
        &self,
        file: &Path,
        mut peers: Vec<Peer>,
        kvark: &mut Kvark,
        rounds: u32,
        left_out: &mut Vec<(String, String)>,
    ) -> Result<Table> {
        let row = |test: &Test| Row {
            test: test.clone(),
            kvark: Vec::new(),
            others: match test.comparison {
                Comparison::Rows { .. } => vec![Turns::of_kvark()],
                Comparison::Speed(_) => {
                    let with_cache = |i: &usize| peers[*i].about.cache == test.cache;
                    let own = (0..peers.len()).filter(with_cache);
                    own.map(|i| Turns::of_peer(i, &peers[i].about)).collect()
                }
            },
        };
        let mut rows: Vec<Row> = self.tests.iter().map(row).collect();
        let title = self.title_of(file);
        for round in 0..rounds {
            let mut failed = Vec::new();
            for (i, row) in rows.iter_mut().enumerate() {
                let name = format!("{title}, {}", row.test.name());
                match row.test.comparison {
                    Comparison::Speed(case) => {
                        let sides = row.others.len() + 1;
                        for turn in 0..sides {
                            // Who goes first changes with the round.
                            let side = (turn + round as usize) % sides;
                            let Some(peer) = side.checked_sub(1) else {
                                match kvark.speed(file, case, &row.test.cache) {
                                    Ok(speed) => row.kvark.push(speed),
                                    Err(error) => {
                                        left_out.push((name.clone(), reason(&error, "kvark")));
                                        failed.push(i);
                                        break;
                                    }
                                }
                                continue;
                            };
                            let turns = &mut row.others[peer];
                            if let Err(error) = turns.take(&mut peers, case) {
                                left_out.push((name.clone(), reason(&error, &turns.name)));
                            }
                        }
                    }
                    Comparison::Rows { rows, threads } => {
                        let (many, single) = kvark.rows(file, rows, threads, round)?;
                        row.kvark.push(many);
                        row.others[0].speeds.push(single.tokens_per_second);
                    }
                }
                eprintln!("round {} of {rounds}: {}", round + 1, row.show_last());
            }
            for i in failed.into_iter().rev() {
                rows.remove(i);
            }
        }
        let name = file.file_name().unwrap_or_default();
        Ok(Table {
            title: self.title,
            file: name.to_string_lossy().into_owned(),
            isa: kvark.isa.clone(),
            rows,
            peers: peers.into_iter().map(|peer| peer.about).collect(),
        })
    }

    fn title_of(&self, file: &Path) -> String {
        let name = file.file_name().unwrap_or_default();
        format!("{}, {}", self.title, name.to_string_lossy())
    }

    /// The peers that can load the file: every configuration, once for every storage of keys and values, with a context that
    /// holds the longest test.
    fn start(
        &self,
        file: &Path,
        peers: &Peers,
        left_out: &mut Vec<(String, String)>,
    ) -> Result<Vec<Peer>> {
        let mut needs: Vec<(&str, usize, usize)> = Vec::new();
        for test in &self.tests {
            let Comparison::Speed(case) = test.comparison else {
                continue;
            };
            let length = case.n + case.depth;
            match needs.iter_mut().find(|(cache, ..)| *cache == test.cache) {
                Some((_, longest, _)) => *longest = length.max(*longest),
                None => needs.push((&test.cache, length, case.threads)),
            }
        }
        let mut started = Vec::new();
        for (cache, context, threads) in needs {
            let configurations = peers.kinds.iter().flat_map(|kind| kind.configurations());
            for configuration in configurations {
                let setting = Setting {
                    model: file.to_owned(),
                    context,
                    cache: cache.to_owned(),
                    threads,
                    tier: self.tier.clone(),
                    patience: peers.patience,
                };
                match Peer::start(configuration, setting)? {
                    Ok(peer) => started.push(peer),
                    Err(reason) => {
                        let reason = format!("{}, KV in {cache}: {reason}", configuration.name());
                        left_out.push((self.title_of(file), reason));
                    }
                }
            }
        }
        Ok(started)
    }
}

/// Who could not run a test, and the last line of why.
fn reason(error: &anyhow::Error, side: &str) -> String {
    let text = format!("{error:#}");
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    format!("{side}: {}", last.unwrap_or_default().trim())
}

impl Kvark {
    /// The speed of a test with keys and values in a type.
    fn speed(&mut self, model: &Path, case: Case, cache: &str) -> Result<Speed> {
        let own = ["--cache-type-k", cache, "--cache-type-v", cache];
        self.measure(model, case, &own)
    }

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
