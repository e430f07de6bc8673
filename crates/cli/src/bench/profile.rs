//! The time of a step by op, compared with the machine's roofline.

use kvark::backend::Probe;
use kvark::inference::{ExpertUse, NodeProfile};
use serde_json::{Value, json};
use std::fmt::Write;

/// The profile of a test's step, averaged over the steps of a round.
pub(super) struct StepProfile {
    times: Vec<NodeProfile>,
    steps: f64,
    /// Seconds per step, measured without profiling.
    seconds: f64,
}

/// Time, bytes and multiply-accumulates of some nodes in a step.
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    pub(super) seconds: f64,
    pub(super) bytes: f64,
    pub(super) macs: f64,
    pub(super) floor: f64,
}

impl Share {
    fn add(self, other: Share) -> Share {
        Share {
            seconds: self.seconds + other.seconds,
            bytes: self.bytes + other.bytes,
            macs: self.macs + other.macs,
            floor: self.floor + other.floor,
        }
    }
}

/// The cost of an op and of each of its kinds of nodes.
pub(super) struct OpShare<'a> {
    pub(super) op: &'static str,
    pub(super) share: Share,
    pub(super) parts: Vec<(&'a str, Share)>,
}

impl StepProfile {
    /// `seconds` is the time of a round of `steps` steps without profiling.
    pub(super) fn new(times: Vec<NodeProfile>, steps: usize, seconds: f64) -> StepProfile {
        StepProfile {
            times,
            steps: steps as f64,
            seconds: seconds / steps as f64,
        }
    }

    fn share(&self, node: &NodeProfile, probe: &Probe) -> Share {
        let (bytes, macs) = (
            node.bytes as f64 / self.steps,
            node.macs as f64 / self.steps,
        );
        let rate = if node.is_f32 {
            probe.float_macs
        } else {
            probe.integer_macs
        };
        Share {
            seconds: node.time.as_secs_f64() / self.steps,
            bytes,
            macs,
            floor: (bytes / probe.read_bytes).max(macs / rate),
        }
    }

    pub(super) fn whole(&self, probe: &Probe) -> Share {
        let shares = self.times.iter().map(|node| self.share(node, probe));
        shares.fold(Share::default(), Share::add)
    }

    /// Uses of experts, if only some of them are in memory.
    fn experts(&self) -> Option<ExpertUse> {
        let mut all = ExpertUse::default();
        self.times.iter().for_each(|node| all += node.experts);
        (all != ExpertUse::default()).then_some(all)
    }

    /// The costs by op, the most expensive op first.
    pub(super) fn ops(&self, probe: &Probe) -> Vec<OpShare<'_>> {
        let mut ops: Vec<OpShare<'_>> = Vec::new();
        for node in &self.times {
            let share = self.share(node, probe);
            let part = (&node.label[..], share);
            match ops.iter_mut().find(|found| found.op == node.op) {
                Some(found) => {
                    found.share = found.share.add(share);
                    found.parts.push(part);
                }
                None => ops.push(OpShare {
                    op: node.op,
                    share,
                    parts: vec![part],
                }),
            }
        }
        let slower = |a: &Share, b: &Share| b.seconds.total_cmp(&a.seconds);
        ops.sort_by(|a, b| slower(&a.share, &b.share));
        for op in &mut ops {
            op.parts.sort_by(|a, b| slower(&a.1, &b.1));
        }
        ops
    }

    /// The time of a step alone: the probe measures the CPU, not other devices.
    pub(super) fn time(&self) -> String {
        format!("a step of {:.3} ms", self.seconds * 1e3)
    }

    /// Bytes and multiply-accumulates of a step, and the share of the roofline that it reaches: its floor as a percentage of its
    /// time.
    pub(super) fn line(&self, probe: &Probe) -> String {
        if self.times.is_empty() {
            return self.time();
        }
        let whole = self.whole(probe);
        format!(
            "a step of {:.2} ms: {:.1} MB, {:.2} GMAC, {:.0} % of the roofline",
            self.seconds * 1e3,
            whole.bytes / 1e6,
            whole.macs / 1e9,
            100.0 * whole.floor / self.seconds
        )
    }

    /// A table with a line for every op and, below it, a line for every kind of node that takes at least 1 % of the step.
    pub(super) fn table(&self, probe: &Probe) -> String {
        let heads = [
            "op", "share", "us/step", "MB/step", "GB/s", "GMAC/s", "of roof",
        ];
        let mut rows = vec![heads.map(str::to_owned)];
        let whole = self.whole(probe);
        let mut row = |name: String, share: &Share| {
            let rate = |amount: f64| amount / share.seconds / 1e9;
            rows.push([
                name,
                format!("{:.1} %", 100.0 * share.seconds / whole.seconds),
                format!("{:.1}", share.seconds * 1e6),
                format!("{:.2}", share.bytes / 1e6),
                format!("{:.1}", rate(share.bytes)),
                format!("{:.1}", rate(share.macs)),
                format!("{:.0} %", 100.0 * share.floor / share.seconds),
            ]);
        };
        for OpShare { op, share, parts } in self.ops(probe) {
            row(op.to_owned(), &share);
            if parts.len() > 1 {
                for (label, share) in parts.iter().filter(|p| p.1.seconds > 0.01 * whole.seconds) {
                    row(format!("  {label}"), share);
                }
            }
        }
        let mut out = aligned(&rows);
        if let Some(experts) = self.experts() {
            let per_step = |count: u64| count as f64 / self.steps;
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "experts: {:.1} hits and {:.1} misses a step, {:.1} % in memory; {:.1} of the misses foreseen",
                per_step(experts.hits),
                per_step(experts.misses),
                100.0 * hit_rate(experts),
                per_step(experts.foreseen)
            );
        }
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "between the nodes: {:.1} us a step",
            (self.seconds - whole.seconds).max(0.0) * 1e6
        );
        out
    }

    pub(super) fn json(&self, probe: &Probe) -> Value {
        let numbers = |share: &Share| {
            json!({
                "seconds": share.seconds,
                "bytes": share.bytes,
                "macs": share.macs,
                "floor_seconds": share.floor,
            })
        };
        let op = |OpShare { op, share, parts }: OpShare<'_>| {
            let nodes: Vec<Value> = parts
                .iter()
                .map(|(label, share)| json!({ "nodes": label, "share": numbers(share) }))
                .collect();
            json!({ "op": op, "share": numbers(&share), "parts": nodes })
        };
        let whole = self.whole(probe);
        json!({
            "seconds": self.seconds,
            "bytes": whole.bytes,
            "macs": whole.macs,
            "floor_seconds": whole.floor,
            "floor_share": whole.floor / self.seconds,
            "ops": self.ops(probe).into_iter().map(op).collect::<Vec<_>>(),
            "experts": self.experts().map(|experts| json!({
                "hits": experts.hits as f64 / self.steps,
                "misses": experts.misses as f64 / self.steps,
                "foreseen": experts.foreseen as f64 / self.steps,
                "hit_rate": hit_rate(experts),
            })),
        })
    }
}

/// The share of used experts that were in memory.
fn hit_rate(experts: ExpertUse) -> f64 {
    experts.hits as f64 / (experts.hits + experts.misses).max(1) as f64
}

/// The measured rates of the machine as JSON.
pub(super) fn machine(probe: &Probe) -> Value {
    json!({
        "read_bytes_per_second": probe.read_bytes,
        "integer_macs_per_second": probe.integer_macs,
        "float_macs_per_second": probe.float_macs,
    })
}

/// The measured rates of the machine as a line of text.
pub(super) fn machine_line(probe: &Probe) -> String {
    format!(
        "reads {:.1} GB/s, multiplies {:.0} G weights/s and {:.0} G f32/s",
        probe.read_bytes / 1e9,
        probe.integer_macs / 1e9,
        probe.float_macs / 1e9
    )
}

/// Formats rows as lines: the first column left-aligned, the others right-aligned, each as wide as its widest cell.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for row in rows {
        for (i, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match i {
                0 => write!(out, "{cell:<width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            ["op", "share", "us"],
            ["linear", "99.0 %", "123456.7"],
            [
                "  a_node_with_a_name_that_is_longer_than_forty_four_letters",
                "1.0 %",
                "8.0",
            ],
        ];
        let text = aligned(&rows.map(|row| row.map(str::to_owned)));
        let ends = |line: &str| -> Vec<usize> {
            let places = line.char_indices().rev();
            let (end, _) = places.clone().next().unwrap();
            let gap = line.rfind("  ").unwrap();
            vec![end, line[..gap].trim_end().len()]
        };
        let all: Vec<Vec<usize>> = text.lines().map(ends).collect();
        assert!(all.iter().all(|ends| *ends == all[0]), "{text}");
    }
}
