//! What was measured, as a Markdown document and as JSON.

use super::measure::{Record, Row, Table};
use super::section::{Comparison, WANTED_READ_SHARE};
use crate::peers::turns::{median, range};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

impl Record {
    pub(super) fn markdown(&self) -> String {
        let mut out = format!(
            "# kvark and its peers on one CPU\n\n\
             Made by `cargo xtask bench-peers`: both sides turn by turn, {}. Figures are medians of the rounds, a ratio is the\n\
             median of the rounds' own ratios, and above 1 kvark is faster. [README.md](README.md) says how, \
             [accuracy.md](accuracy.md) how exact.\n\n",
            count(self.rounds as usize, "round")
        );
        for line in self.circumstances() {
            let _ = writeln!(out, "- {line}");
        }
        for table in &self.tables {
            table.write(&mut out);
        }
        if !self.left_out.is_empty() {
            out += "\n## Left out\n\n";
        }
        for (title, reason) in &self.left_out {
            let _ = writeln!(out, "- {title}: {reason}");
        }
        out
    }

    /// Machine and versions.
    fn circumstances(&self) -> Vec<String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut lines = vec![
            format!("CPU: {}, {cores} cores", self.cpu),
            self.kvark_version.clone(),
        ];
        // The tiers that a build of a peer was compared with.
        let mut builds: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
        for table in &self.tables {
            for peer in &table.peers {
                let (name, version) = (table.peer.name(), &peer.version);
                let build = (name, format!("{version}, built for {}", peer.build));
                let tiers = builds.entry(build).or_default();
                if !tiers.contains(&&table.isa[..]) {
                    tiers.push(&table.isa);
                }
            }
        }
        for ((name, build), tiers) in builds {
            lines.push(format!("{name} beside {}: {build}", tiers.join(" and ")));
        }
        lines.push(format!(
            "KV in f16 unless a row says otherwise; the peers' processes were busy for {:.1} % of the time between their turns",
            self.restless() * 100.0
        ));
        lines
    }

    /// The share of the time between their turns that the peers' processes were busy.
    fn restless(&self) -> f64 {
        let peers = || self.tables.iter().flat_map(|table| &table.peers);
        let waited: f64 = peers().map(|peer| peer.waited).sum();
        peers().map(|peer| peer.busy).sum::<f64>() / waited
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "tables": self.tables.iter().map(Table::json).collect::<Vec<_>>(),
            "left_out": self.left_out,
            "rounds": self.rounds,
            "cpu": self.cpu,
            "kvark_version": self.kvark_version,
            "restless": self.restless(),
        })
    }
}

impl Table {
    fn write(&self, out: &mut String) {
        let weights = self.peers.first().map_or("", |peer| &peer.weights);
        let _ = write!(
            out,
            "\n## {}: {} ({weights}), {} kernels\n\n\
             | test | threads | kvark (tokens/s) | {} (tokens/s) | ratio | target | ratio, least to most | of the read bandwidth |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|\n",
            self.title,
            self.file,
            self.isa,
            self.peer.name()
        );
        for row in &self.rows {
            row.write(out);
        }
        let mut reads: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for row in &self.rows {
            let rates = row.kvark.iter().map(|speed| speed.read_bytes_per_second);
            reads.entry(row.test.threads()).or_default().extend(rates);
        }
        out.push('\n');
        for (threads, rates) in reads {
            let (least, most) = range(&rates);
            let _ = writeln!(
                out,
                "- the probe reads {:.1} GB/s on {}, {:.1} to {:.1}",
                median(&rates) / 1e9,
                count(threads, "thread"),
                least / 1e9,
                most / 1e9
            );
        }
        for row in self.rows.iter().filter(|row| !row.is_met()) {
            if let Some(need) = row.need() {
                let _ = writeln!(out, "- {need}");
            }
        }
    }

    fn json(&self) -> Value {
        let peers = self.peers.iter().map(
            |peer| json!({ "version": peer.version, "build": peer.build, "weights": peer.weights }),
        );
        json!({
            "title": self.title,
            "file": self.file,
            "isa": self.isa,
            "peer": self.peer.name(),
            "peers": peers.collect::<Vec<_>>(),
            "results": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

impl Row {
    fn write(&self, out: &mut String) {
        let ratios = self.ratios();
        let (least, most) = range(&ratios);
        let (sign, [ours, theirs]) = match self.test.comparison {
            Comparison::Speed(_) => (
                "≥",
                [self.tokens_per_second(), median(&self.other)].map(|rate| format!("{rate:.1}")),
            ),
            Comparison::Rows { rows, .. } => {
                let [many, single] = [
                    rows as f64 / self.tokens_per_second(),
                    1.0 / median(&self.other),
                ];
                let both = format!("{:.2} and {:.2} ms a step", many * 1e3, single * 1e3);
                ("≤", [both, String::new()])
            }
        };
        let missed = |met| if met { "" } else { " (missed)" };
        let wanted = self.test.wanted.map_or(String::new(), |ratio| {
            format!("{sign} {ratio}{}", missed(self.is_met()))
        });
        let reading = match self.test.decodes() {
            true => {
                let share = self.read_share();
                let enough = self.test.wanted.is_none() || share >= WANTED_READ_SHARE;
                format!("{:.0} %{}", share * 100.0, missed(enough))
            }
            false => String::new(),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {ours} | {theirs} | {:.2} | {wanted} | {least:.2} to {most:.2} | {reading} |",
            self.test.name(),
            self.test.threads(),
            median(&ratios),
        );
    }

    fn tokens_per_second(&self) -> f64 {
        self.median(|speed| speed.tokens_per_second)
    }

    fn is_met(&self) -> bool {
        self.test.is_met_by(median(&self.ratios()))
    }

    /// What the wanted speed of decode would read.
    fn need(&self) -> Option<String> {
        let wanted = self.test.wanted.filter(|_| self.test.decodes())?;
        let rate = wanted * median(&self.other);
        let bytes = self.median(|speed| speed.step_bytes);
        let probe = self.median(|speed| speed.read_bytes_per_second);
        Some(format!(
            "{}: {wanted} times the peer are {rate:.0} tokens/s of {:.1} MB each, {:.1} GB/s: {:.0} % of what the probe reads",
            self.test.name(),
            bytes / 1e6,
            rate * bytes / 1e9,
            rate * bytes / probe * 100.0
        ))
    }

    fn json(&self) -> Value {
        let ours: Vec<f64> = self.kvark.iter().map(|s| s.tokens_per_second).collect();
        let other = match self.test.comparison {
            Comparison::Speed(_) => "other",
            Comparison::Rows { .. } => "one_row",
        };
        json!({
            "test": self.test.name(),
            "threads": self.test.threads(),
            "cache_type": self.test.cache,
            "kvark": ours,
            other: self.other,
            "kvark_median": self.tokens_per_second(),
            "other_median": median(&self.other),
            "ratio": median(&self.ratios()),
            "wanted": self.test.wanted,
            "met": self.is_met(),
            "read_bytes_per_second": self.median(|s| s.read_bytes_per_second),
            "read_share": self.test.decodes().then(|| self.read_share()),
        })
    }
}

fn count(n: usize, thing: &str) -> String {
    match n {
        1 => format!("1 {thing}"),
        _ => format!("{n} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::peer::{About, PeerKind};
    use super::super::section::{Test, record};
    use super::*;
    use crate::peers::turns::Speed;

    fn row(test: Test, kvark: f64, other: f64) -> Row {
        let speed = Speed {
            tokens_per_second: kvark,
            step_bytes: 100e6,
            read_bytes_per_second: 20e9,
        };
        Row {
            test,
            kvark: vec![speed],
            other: vec![other],
        }
    }

    /// The second section of the record: a prompt, a text, rows.
    fn document(figures: [(f64, f64); 3]) -> String {
        let section = record().swap_remove(1);
        let rows = section.tests.into_iter().zip(figures);
        let table = Table {
            title: section.title,
            file: "model.gguf".to_owned(),
            isa: "amx".to_owned(),
            rows: rows.map(|(test, (a, b))| row(test, a, b)).collect(),
            peer: PeerKind::Llama,
            peers: vec![About {
                version: "llama-cpp-python 1".to_owned(),
                build: "AVX2".to_owned(),
                weights: "Q4_1".to_owned(),
                waited: 10.0,
                busy: 1.0,
            }],
        };
        let record = Record {
            tables: vec![table],
            left_out: vec![("Other files", "no file".to_owned())],
            rounds: 1,
            cpu: "a CPU".to_owned(),
            kvark_version: "kvark 1".to_owned(),
        };
        record.markdown()
    }

    #[test]
    fn lost_rows_are_marked_and_say_what_they_would_need() {
        let text = document([(600.0, 200.0), (100.0, 50.0), (800.0, 200.0)]);
        for line in [
            "## AVX-512 with VNNI, no tiles: model.gguf (Q4_1), amx kernels",
            "| pp512 | 2 | 600.0 | 200.0 | 3.00 | ≥ 4 (missed) | 3.00 to 3.00 |  |",
            "| tg64 | 2 | 100.0 | 50.0 | 2.00 | ≥ 2.5 (missed) | 2.00 to 2.00 | 50 % (missed) |",
            "| 8 rows against 1 | 2 | 10.00 and 5.00 ms a step |  | 2.00 | ≤ 1.9 (missed) | 2.00 to 2.00 |  |",
            "- the probe reads 20.0 GB/s on 2 threads, 20.0 to 20.0",
            "- tg64: 2.5 times the peer are 125 tokens/s of 100.0 MB each, 12.5 GB/s: 62 % of what the probe reads",
            "- llama.cpp beside amx: llama-cpp-python 1, built for AVX2",
            "- Other files: no file",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line}\nis not in\n{text}"
            );
        }
    }

    #[test]
    fn won_rows_are_not_marked() {
        let text = document([(2000.0, 200.0), (180.0, 60.0), (1200.0, 200.0)]);
        assert!(
            !text.contains("missed") && !text.contains("times the peer"),
            "{text}"
        );
    }
}
