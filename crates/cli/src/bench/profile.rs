//! Where the time of a step goes, and how far that is from what the machine could do.

use crate::plan::scene::{Anchor, Color, Scene};
use crate::plan::svg;
use anyhow::{Context, Result};
use kvark::{NodeTime, Probe};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// What one step of a test does, on average over the steps of a round.
pub(super) struct StepProfile {
    times: Vec<NodeTime>,
    steps: f64,
    /// Seconds of a step while nothing is profiled.
    seconds: f64,
}

/// Some nodes' share of a step.
#[derive(Clone, Copy, Default)]
struct Share {
    seconds: f64,
    bytes: f64,
    macs: f64,
    floor: f64,
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

/// An op's share, and those of its kinds of nodes.
struct OpShare<'a> {
    op: &'static str,
    share: Share,
    parts: Vec<(&'a str, Share)>,
}

impl StepProfile {
    /// `seconds` is what a round of so many steps took while nothing was profiled.
    pub(super) fn new(times: Vec<NodeTime>, steps: usize, seconds: f64) -> StepProfile {
        StepProfile {
            times,
            steps: steps as f64,
            seconds: seconds / steps as f64,
        }
    }

    fn share(&self, node: &NodeTime, probe: &Probe) -> Share {
        let (bytes, macs) = (
            node.bytes as f64 / self.steps,
            node.macs as f64 / self.steps,
        );
        let rate = if node.floats {
            probe.float_macs
        } else {
            probe.byte_macs
        };
        Share {
            seconds: node.time.as_secs_f64() / self.steps,
            bytes,
            macs,
            floor: (bytes / probe.read_bytes).max(macs / rate),
        }
    }

    fn whole(&self, probe: &Probe) -> Share {
        let shares = self.times.iter().map(|node| self.share(node, probe));
        shares.fold(Share::default(), Share::add)
    }

    /// By op, the one that takes longest first.
    fn ops(&self, probe: &Probe) -> Vec<OpShare<'_>> {
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

    /// Bytes and multiplications of a step, and the share of its floor that is reached.
    pub(super) fn line(&self, probe: &Probe) -> String {
        let whole = self.whole(probe);
        format!(
            "a step of {:.2} ms: {:.1} MB, {:.2} GMAC, {:.0} % of the floor",
            self.seconds * 1e3,
            whole.bytes / 1e6,
            whole.macs / 1e9,
            100.0 * whole.floor / self.seconds
        )
    }

    /// A line for every op, and below it one for every kind of node that takes a hundredth of the step.
    pub(super) fn table(&self, probe: &Probe) -> String {
        let mut out = format!(
            "{:<44} {:>7} {:>9} {:>9} {:>7} {:>8} {:>8}\n",
            "op", "share", "us/step", "MB/step", "GB/s", "GMAC/s", "of floor"
        );
        let whole = self.whole(probe);
        let mut row = |name: &str, share: &Share| {
            let rate = |amount: f64| amount / share.seconds / 1e9;
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "{name:<44} {:>5.1} % {:>9.1} {:>9.2} {:>7.1} {:>8.1} {:>6.0} %",
                100.0 * share.seconds / whole.seconds,
                share.seconds * 1e6,
                share.bytes / 1e6,
                rate(share.bytes),
                rate(share.macs),
                100.0 * share.floor / share.seconds
            );
        };
        for OpShare { op, share, parts } in self.ops(probe) {
            row(op, &share);
            if parts.len() > 1 {
                for (label, share) in parts.iter().filter(|p| p.1.seconds > 0.01 * whole.seconds) {
                    row(&format!("  {label}"), share);
                }
            }
        }
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
        })
    }
}

/// What was measured of the machine.
pub(super) fn machine(probe: &Probe) -> Value {
    json!({
        "read_bytes_per_second": probe.read_bytes,
        "byte_macs_per_second": probe.byte_macs,
        "float_macs_per_second": probe.float_macs,
    })
}

/// The same as a line.
pub(super) fn machine_line(probe: &Probe) -> String {
    format!(
        "reads {:.1} GB/s, multiplies {:.0} G bytes/s and {:.0} G f32/s",
        probe.read_bytes / 1e9,
        probe.byte_macs / 1e9,
        probe.float_macs / 1e9
    )
}

const WIDTH: f32 = 1200.0;
const BAR: f32 = 22.0;
const COLORS: [Color; 8] = [
    [0xd9, 0x5f, 0x0e],
    [0x2b, 0x8c, 0xbe],
    [0x31, 0xa3, 0x54],
    [0x75, 0x6b, 0xb1],
    [0xc5, 0x1b, 0x8a],
    [0x8c, 0x6d, 0x31],
    [0x63, 0x63, 0x63],
    [0x1c, 0x90, 0x99],
];

/// Draws every test as a flame: the step, above it its ops, above them their nodes, each as wide as it takes time.
pub(super) fn draw(file: &Path, tests: &[(&str, &StepProfile)]) -> Result<()> {
    let margin = 20.0;
    let height = margin + tests.len() as f32 * (4.0 * BAR + 40.0);
    let mut scene = Scene::new(WIDTH + 2.0 * margin, height);
    let mut y = margin;
    for (name, step) in tests {
        // Times alone are drawn: no rate is needed.
        let probe = Probe {
            read_bytes: f64::INFINITY,
            byte_macs: f64::INFINITY,
            float_macs: f64::INFINITY,
        };
        let whole = step.whole(&probe).seconds;
        let wide = |seconds: f64| (seconds / whole) as f32 * WIDTH;
        let base = y + 2.0 * (BAR + 2.0);
        let title = format!("{name}: {:.2} ms a step", whole * 1e3);
        bar(
            &mut scene,
            [margin, base, WIDTH],
            [0x44, 0x44, 0x44],
            &title,
        );
        let mut x = margin;
        for (OpShare { op, share, parts }, color) in
            step.ops(&probe).into_iter().zip(COLORS.iter().cycle())
        {
            let title = |name: &str, seconds: f64| {
                format!(
                    "{name} {:.1} % {:.0} us",
                    100.0 * seconds / whole,
                    seconds * 1e6
                )
            };
            let place = [x, base - BAR - 2.0, wide(share.seconds)];
            bar(&mut scene, place, *color, &title(op, share.seconds));
            let mut at = x;
            for (i, (label, part)) in parts.iter().enumerate() {
                let lighter = color.map(|c| c + (255 - c) / if i % 2 == 0 { 3 } else { 2 });
                let place = [at, y, wide(part.seconds)];
                bar(&mut scene, place, lighter, &title(label, part.seconds));
                at += wide(part.seconds);
            }
            x += wide(share.seconds);
        }
        y += 4.0 * BAR + 40.0;
    }
    std::fs::write(file, svg::text(&scene)).with_context(|| file.display().to_string())
}

/// A bar with as much of its title as fits; viewers show the whole of it.
fn bar(scene: &mut Scene, [x, y, width]: [f32; 3], color: Color, title: &str) {
    const LETTER: f32 = 6.7;
    let gap = 0.5_f32.min(width / 4.0);
    scene.titled([x, y, width - gap, BAR], color, Some(title.to_owned()));
    let room = ((width - 6.0) / LETTER).max(0.0) as usize;
    if room >= 4 {
        let text: String = title.chars().take(room).collect();
        scene.text(
            [x + 4.0, y + 15.0],
            11.0,
            [255, 255, 255],
            Anchor::Start,
            &text,
        );
    }
}
