//! What was measured, as a Markdown document and as JSON.

use super::measure::{Record, Table};
use super::row::Row;
use super::section::{Comparison, WANTED_READ_SHARE, Wanted};
use crate::peers::turns::{median, range};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

impl Record {
    pub(super) fn markdown(&self) -> String {
        let mut out = format!(
            "# kvark and its peers on one CPU\n\n\
             Made by `cargo xtask bench-peers`: all sides turn by turn, {}. Figures are medians of the rounds in tokens/s. A ratio\n\
             is that to the best peer of the row, which it names: the median of the rounds' own ratios, and above 1 kvark is\n\
             faster. [README.md](README.md) says how, [accuracy.md](accuracy.md) how exact.\n\n",
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
        if let Some(precision) = &self.precision {
            lines.push(format!("kvark's precision: {precision}"));
        }
        // The tiers that a build of a peer was compared with.
        let mut builds: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
        for table in &self.tables {
            for peer in &table.peers {
                let name = peer.configuration.kind.name();
                let build = format!("{}, built for {}", peer.version, peer.build);
                let tiers = builds.entry((name, build)).or_default();
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
        match waited > 0.0 {
            true => peers().map(|peer| peer.busy).sum::<f64>() / waited,
            false => 0.0,
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "tables": self.tables.iter().map(Table::json).collect::<Vec<_>>(),
            "left_out": self.left_out,
            "rounds": self.rounds,
            "cpu": self.cpu,
            "kvark_version": self.kvark_version,
            "precision": self.precision,
            "restless": self.restless(),
        })
    }
}

impl Table {
    fn write(&self, out: &mut String) {
        // The first that knows: llama-bench says it with its measurements.
        let weights = self.peers.iter().map(|peer| &peer.weights[..]);
        let weights = weights.clone().find(|weights| !weights.is_empty());
        let columns = self.columns();
        let _ = write!(
            out,
            "\n## {}: {} ({}), {} kernels\n\n\
             | test | threads | kvark | {} | best peer | ratio | target | ratio, least to most | of the read bandwidth |\n\
             |---|--:|--:|{}---|--:|--:|--:|--:|\n",
            self.title,
            self.file,
            weights.unwrap_or("unknown storage"),
            self.isa,
            columns.join(" | "),
            "--:|".repeat(columns.len()),
        );
        for row in &self.rows {
            row.write(out, &columns);
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

    /// The names of the peers' configurations.
    fn columns(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for peer in &self.peers {
            let name = peer.configuration.name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn json(&self) -> Value {
        let peers = self.peers.iter().map(|peer| {
            json!({
                "name": peer.configuration.name(),
                "cache_type": peer.cache,
                "version": peer.version,
                "build": peer.build,
                "weights": peer.weights,
            })
        });
        json!({
            "title": self.title,
            "file": self.file,
            "isa": self.isa,
            "peers": peers.collect::<Vec<_>>(),
            "results": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

impl Row {
    fn write(&self, out: &mut String, columns: &[String]) {
        let speed = |name: &String| {
            let turns = self.others.iter().find(|turns| turns.name == *name);
            let median = turns.and_then(|turns| turns.median());
            median.map_or("–".to_owned(), |rate| format!("{rate:.1}"))
        };
        let (ours, theirs) = match self.test.comparison {
            Comparison::Speed(_) => (
                format!("{:.1}", self.tokens_per_second()),
                columns.iter().map(speed).collect::<Vec<_>>(),
            ),
            Comparison::Rows { rows, .. } => {
                let many = rows as f64 / self.tokens_per_second();
                let single = 1.0 / self.other_median();
                let both = format!("{:.2} and {:.2} ms a step", many * 1e3, single * 1e3);
                (both, vec![String::new(); columns.len()])
            }
        };
        let best = match self.test.comparison {
            Comparison::Speed(_) => self.best(None).map_or("none", |best| &best.name),
            Comparison::Rows { .. } => "",
        };
        let ratios = self.ratios(None);
        let [ratio, range] = match ratios.is_empty() {
            true => [String::new(), String::new()],
            false => {
                let (least, most) = range(&ratios);
                let ratio = format!("{:.2}", median(&ratios));
                [ratio, format!("{least:.2} to {most:.2}")]
            }
        };
        let wanted = self.test.wanted.iter().map(|wanted| self.target(*wanted));
        let wanted = wanted.collect::<Vec<_>>().join(", ");
        let reading = match self.test.decodes() {
            true => {
                let share = self.read_share();
                let enough = self.test.wanted.is_empty() || share >= WANTED_READ_SHARE;
                format!("{:.0} %{}", share * 100.0, missed(enough))
            }
            false => String::new(),
        };
        let cells = [vec![ours], theirs].concat().join(" | ");
        let _ = writeln!(
            out,
            "| {} | {} | {cells} | {best} | {ratio} | {wanted} | {range} | {reading} |",
            self.test.name(),
            self.test.threads(),
        );
    }

    /// A target and whether it is missed; one to a certain peer has the ratio to that peer.
    fn target(&self, wanted: Wanted) -> String {
        let sign = match self.test.comparison {
            Comparison::Speed(_) => "≥",
            Comparison::Rows { .. } => "≤",
        };
        let Wanted { ratio, peer } = wanted;
        let met = missed(self.meets(wanted) != Some(false));
        let Some(kind) = peer else {
            return format!("{sign} {ratio}{met}");
        };
        match self.ratios(peer) {
            ratios if ratios.is_empty() => format!("{sign} {ratio} × {}: –", kind.name()),
            ratios => {
                let found = median(&ratios);
                format!("{sign} {ratio} × {}: {found:.2}{met}", kind.name())
            }
        }
    }

    fn tokens_per_second(&self) -> f64 {
        self.median(|speed| speed.tokens_per_second)
    }

    /// The median of the best peer, or of the single row; not a number if there is none.
    fn other_median(&self) -> f64 {
        let best = self.best(None).and_then(|best| best.median());
        best.unwrap_or(f64::NAN)
    }

    /// What the wanted speed of decode would read.
    fn need(&self) -> Option<String> {
        let mut wanted = self.test.wanted.iter().filter(|_| self.test.decodes());
        let wanted = wanted.find(|wanted| wanted.peer.is_none())?.ratio;
        let rate = wanted * self.other_median();
        let bytes = self.median(|speed| speed.step_bytes);
        let probe = self.median(|speed| speed.read_bytes_per_second);
        Some(format!(
            "{}: {wanted} times the best peer are {rate:.0} tokens/s of {:.1} MB each, {:.1} GB/s: {:.0} % of what the probe reads",
            self.test.name(),
            bytes / 1e6,
            rate * bytes / 1e9,
            rate * bytes / probe * 100.0
        ))
    }

    fn json(&self) -> Value {
        let ours: Vec<f64> = self.kvark.iter().map(|s| s.tokens_per_second).collect();
        let others = self.others.iter().map(|turns| {
            json!({ "name": turns.name, "tokens_per_second": turns.speeds, "median": turns.median() })
        });
        let ratios = self.ratios(None);
        let wanted = self.test.wanted.iter().map(|wanted| {
            json!({
                "ratio": wanted.ratio,
                "peer": wanted.peer.map(|peer| peer.name()),
                "met": self.meets(*wanted),
            })
        });
        json!({
            "test": self.test.name(),
            "threads": self.test.threads(),
            "cache_type": self.test.cache,
            "kvark": ours,
            "others": others.collect::<Vec<_>>(),
            "kvark_median": self.tokens_per_second(),
            "best": self.best(None).map(|best| &best.name),
            "ratio": (!ratios.is_empty()).then(|| median(&ratios)),
            "wanted": wanted.collect::<Vec<_>>(),
            "met": self.is_met(),
            "read_bytes_per_second": self.median(|s| s.read_bytes_per_second),
            "read_share": self.test.decodes().then(|| self.read_share()),
        })
    }
}

fn missed(met: bool) -> &'static str {
    if met { "" } else { " (missed)" }
}

fn count(n: usize, thing: &str) -> String {
    match n {
        1 => format!("1 {thing}"),
        _ => format!("{n} {thing}s"),
    }
}

#[cfg(test)]
mod tests;
