//! Draws profiles as SVG: the step of every test, its ops and their nodes as bars whose width is their time.

use super::profile::{OpShare, StepProfile};
use crate::plan::scene::{Anchor, Color, Scene, text_width};
use crate::plan::svg;
use anyhow::{Context, Result};
use kvark::backend::Probe;
use std::path::Path;

const WIDTH: f32 = 1200.0;
const MARGIN: f32 = 20.0;
const BAR: f32 = 24.0;
/// Distance between the tops of two bars.
const ROW: f32 = BAR + 2.0;
const LABEL: f32 = 12.0;
/// Legend entries per line.
const LEGEND_COLUMNS: usize = 4;
const LEGEND_ROW: f32 = 20.0;
pub(super) const BLACK: Color = [0x22, 0x22, 0x22];
pub(super) const WHITE: Color = [0xff; 3];
pub(super) const GREY: Color = [0x66; 3];
pub(super) const STEP: Color = [0x44; 3];
pub(super) const COLORS: [Color; 12] = [
    [0xc2, 0x4f, 0x06],
    [0x1f, 0x78, 0xb4],
    [0x2a, 0x8a, 0x47],
    [0x6a, 0x5a, 0xaa],
    [0xb8, 0x17, 0x80],
    [0x86, 0x66, 0x2b],
    [0x13, 0x7d, 0x86],
    [0xb2, 0x18, 0x2b],
    [0x5b, 0x7f, 0x18],
    [0x35, 0x4e, 0x9e],
    [0x7b, 0x43, 0x8f],
    [0x60, 0x60, 0x60],
];

/// Infinite rates, so that every floor is zero: only times are drawn.
const NO_FLOOR: Probe = Probe {
    read_bytes: f64::INFINITY,
    integer_macs: f64::INFINITY,
    float_macs: f64::INFINITY,
};

/// Draws the tests one below the other and writes the file.
pub(super) fn write(file: &Path, model: &str, tests: &[(&str, &StepProfile)]) -> Result<()> {
    let text = svg::text(&draw(model, tests));
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn draw(model: &str, tests: &[(&str, &StepProfile)]) -> Scene {
    let colors = OpColors::of(tests);
    let head = MARGIN + 56.0;
    let legend = |ops: usize| ops.div_ceil(LEGEND_COLUMNS) as f32 * LEGEND_ROW;
    let tall =
        |step: &StepProfile| 30.0 + 3.0 * ROW + 14.0 + legend(step.ops(&NO_FLOOR).len()) + 24.0;
    let height: f32 = head + tests.iter().map(|(_, step)| tall(step)).sum::<f32>();
    let mut scene = Scene::new(WIDTH + 2.0 * MARGIN, height);
    let title = format!("Where the time of a step goes: {model}");
    scene.text([MARGIN, MARGIN + 16.0], 20.0, BLACK, Anchor::Start, title);
    let note = "The width of a bar is its time. From the top: the step, its ops, and the nodes of each op.";
    scene.text([MARGIN, MARGIN + 38.0], LABEL, GREY, Anchor::Start, note);
    let mut y = head;
    for (name, step) in tests {
        let ops = step.ops(&NO_FLOOR);
        let whole = step.whole(&NO_FLOOR).seconds;
        test(&mut scene, y, (name, whole), &ops, &colors);
        y += tall(step);
    }
    scene
}

/// Draws one test: heading, bars and legend.
fn test(
    scene: &mut Scene,
    top: f32,
    (name, whole): (&str, f64),
    ops: &[OpShare<'_>],
    colors: &OpColors,
) {
    let wide = |seconds: f64| (seconds / whole) as f32 * WIDTH;
    let share = |seconds: f64| {
        let percent = 100.0 * seconds / whole;
        format!("{percent:.1} %, {:.0} us", seconds * 1e6)
    };
    scene.text([MARGIN, top + 16.0], 15.0, BLACK, Anchor::Start, name);
    let bars = top + 30.0;
    let step = format!("{:.2} ms", whole * 1e3);
    bar(scene, [MARGIN, bars, WIDTH], STEP, "step", &step);
    let mut x = MARGIN;
    for OpShare {
        op,
        share: own,
        parts,
    } in ops
    {
        let color = colors.get(op);
        let place = [x, bars + ROW, wide(own.seconds)];
        bar(scene, place, color, op, &share(own.seconds));
        let mut at = x;
        for (i, (label, part)) in parts.iter().enumerate() {
            let lighter = if i % 2 == 0 { 2 } else { 3 };
            let color = color.map(|c| 255 - (255 - c) / lighter);
            let place = [at, bars + 2.0 * ROW, wide(part.seconds)];
            bar(scene, place, color, label, &share(part.seconds));
            at += wide(part.seconds);
        }
        x += wide(own.seconds);
    }
    let legend = bars + 3.0 * ROW + 14.0;
    for (i, OpShare { op, share: own, .. }) in ops.iter().enumerate() {
        let x = MARGIN + (i % LEGEND_COLUMNS) as f32 * (WIDTH / LEGEND_COLUMNS as f32);
        let y = legend + (i / LEGEND_COLUMNS) as f32 * LEGEND_ROW;
        scene.rect([x, y, 12.0, 12.0], colors.get(op));
        let text = format!("{op}: {}", share(own.seconds));
        scene.text([x + 18.0, y + 10.5], LABEL, BLACK, Anchor::Start, text);
    }
}

/// Draws a bar with its name and share, or with as much of them as fits; viewers show the full text as a tooltip.
fn bar(scene: &mut Scene, [x, y, width]: [f32; 3], color: Color, name: &str, share: &str) {
    let gap = 0.5_f32.min(width / 4.0);
    let whole = format!("{name}: {share}");
    scene.titled([x, y, width - gap, BAR], color, Some(whole.clone()));
    let fits = |text: &str| text_width(text, LABEL) + 8.0 <= width;
    let cut = || {
        let room = ((width - 8.0) / text_width("x", LABEL)).max(0.0) as usize;
        let begin: String = name.chars().take(room.saturating_sub(1)).collect();
        (room >= 5).then(|| begin + "…")
    };
    let label = match (fits(&whole), fits(name)) {
        (true, _) => Some(whole),
        (false, true) => Some(name.to_owned()),
        (false, false) => cut(),
    };
    if let Some(label) = label {
        let ink = if is_light(color) { BLACK } else { WHITE };
        scene.text([x + 4.0, y + 16.0], LABEL, ink, Anchor::Start, label);
    }
}

/// Whether dark text is easier to read on a color than white text.
fn is_light([r, g, b]: Color) -> bool {
    299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b) > 140_000
}

/// The color of every op, the same in all tests.
struct OpColors(Vec<&'static str>);

impl OpColors {
    fn of(tests: &[(&str, &StepProfile)]) -> OpColors {
        let mut ops = Vec::new();
        for (_, step) in tests {
            for OpShare { op, .. } in step.ops(&NO_FLOOR) {
                if !ops.contains(&op) {
                    ops.push(op);
                }
            }
        }
        OpColors(ops)
    }

    fn get(&self, op: &str) -> Color {
        let index = self.0.iter().position(|other| *other == op);
        COLORS[index.unwrap_or(0) % COLORS.len()]
    }
}
