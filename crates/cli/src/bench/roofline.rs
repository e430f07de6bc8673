//! Draws the ops of a step against the machine's roofline as SVG: multiply-accumulates per second over
//! multiply-accumulates per byte read, both in logarithmic scales.

use super::flame::{BLACK, COLORS, GREY, STEP as ROOF, WHITE};
use super::profile::{OpShare, Share, StepProfile};
use crate::plan::scene::{Anchor, Color, Scene};
use crate::plan::svg;
use anyhow::{Context, Result};
use kvark::backend::Probe;
use std::ops::Range;
use std::path::Path;

const PLOT: [f32; 2] = [760.0, 520.0];
const LEFT: f32 = 80.0;
const TOP: f32 = 80.0;
const MARGIN: f32 = 20.0;
/// Width of the list beside the plot.
const LIST: f32 = 560.0;
const LABEL: f32 = 12.0;
const LIST_ROW: f32 = 18.0;
const MARK: f32 = 16.0;
/// Ops below this share of the step are not drawn.
const LEAST_SHARE: f64 = 0.005;
const GRID: Color = [0xe4; 3];

/// Draws the tests and writes the file.
pub(super) fn write(
    file: &Path,
    model: &str,
    tests: &[(&str, &StepProfile)],
    probe: &Probe,
) -> Result<()> {
    let text = svg::text(&draw(model, tests, probe));
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// A kind of node in a test.
struct Point {
    test: usize,
    label: String,
    /// Multiply-accumulates per byte, and per second.
    intensity: f64,
    rate: f64,
    /// Shares of the step's time and of the time that the roofline allows.
    of_step: f64,
    of_roof: f64,
}

fn points(tests: &[(&str, &StepProfile)], probe: &Probe) -> Vec<Point> {
    let mut all = Vec::new();
    for (test, (_, step)) in tests.iter().enumerate() {
        let whole = step.whole(probe).seconds;
        for OpShare { op, parts, .. } in step.ops(probe) {
            let drawn = |share: &Share| {
                share.macs > 0.0 && share.bytes > 0.0 && share.seconds > LEAST_SHARE * whole
            };
            for (label, share) in parts.into_iter().filter(|(_, share)| drawn(share)) {
                all.push(Point {
                    test,
                    label: format!("{op} {label}"),
                    intensity: share.macs / share.bytes,
                    rate: share.macs / share.seconds,
                    of_step: share.seconds / whole,
                    of_roof: share.floor / share.seconds,
                });
            }
        }
    }
    all
}

/// The decades that hold all numbers.
fn decades(numbers: impl Iterator<Item = f64> + Clone) -> Range<i32> {
    let low = numbers.clone().fold(f64::INFINITY, f64::min);
    let high = numbers.fold(0.0, f64::max);
    if !low.is_finite() || high <= 0.0 {
        return 0..1;
    }
    let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    low..high.max(low + 1)
}

/// The plot's scales.
struct Axes {
    x: Range<i32>,
    y: Range<i32>,
}

impl Axes {
    fn place(&self, intensity: f64, rate: f64) -> [f32; 2] {
        let part = |value: f64, range: &Range<i32>| {
            let whole = f64::from(range.end - range.start);
            ((value.log10() - f64::from(range.start)) / whole).clamp(0.0, 1.0) as f32
        };
        let x = LEFT + part(intensity, &self.x) * PLOT[0];
        let y = TOP + (1.0 - part(rate, &self.y)) * PLOT[1];
        [x, y]
    }
}

fn draw(model: &str, tests: &[(&str, &StepProfile)], probe: &Probe) -> Scene {
    let points = points(tests, probe);
    let rows = points.len() + tests.len() + 2;
    let height = (TOP + PLOT[1] + 60.0).max(TOP + rows as f32 * LIST_ROW + MARGIN);
    let mut scene = Scene::new(LEFT + PLOT[0] + LIST + 2.0 * MARGIN, height);
    let title = format!("Roofline of a step: {model}");
    scene.text([MARGIN, 36.0], 20.0, BLACK, Anchor::Start, title);
    let note = format!(
        "Measured limits: reads {:.1} GB/s, multiplies {:.0} G weights/s and {:.0} G f32/s. A larger mark takes more of its step.",
        probe.read_bytes / 1e9,
        probe.integer_macs / 1e9,
        probe.float_macs / 1e9
    );
    scene.text([MARGIN, 58.0], LABEL, GREY, Anchor::Start, note);
    let ridge = probe.integer_macs / probe.read_bytes;
    let axes = Axes {
        x: decades(points.iter().map(|p| p.intensity).chain([ridge])),
        y: decades(
            points
                .iter()
                .map(|p| p.rate)
                .chain([probe.integer_macs, probe.float_macs]),
        ),
    };
    grid(&mut scene, &axes);
    roof(&mut scene, &axes, probe);
    for (number, point) in points.iter().enumerate() {
        let [x, y] = axes.place(point.intensity, point.rate);
        let size = MARK * (0.75 + point.of_step as f32).min(1.75);
        let place = [x - size / 2.0, y - size / 2.0, size, size];
        let color = COLORS[point.test % COLORS.len()];
        let title = format!(
            "{} {}: {}",
            tests[point.test].0,
            point.label,
            numbers(point)
        );
        scene.titled(place, color, Some(title));
        let at = [x, y + 3.5];
        scene.text(at, 10.0, WHITE, Anchor::Middle, (number + 1).to_string());
    }
    list(&mut scene, tests, &points);
    scene
}

fn numbers(point: &Point) -> String {
    format!(
        "{:.1} GMAC/s, {:.0} % of the roof, {:.1} % of the step",
        point.rate / 1e9,
        100.0 * point.of_roof,
        100.0 * point.of_step
    )
}

/// Lines and labels of the decades.
fn grid(scene: &mut Scene, axes: &Axes) {
    let number = |decade: i32, unit: f64| {
        let value = 10f64.powi(decade) / unit;
        if value >= 1.0 {
            format!("{value:.0}")
        } else {
            format!("{value}")
        }
    };
    let bottom = TOP + PLOT[1];
    for decade in axes.x.start..=axes.x.end {
        let [x, _] = axes.place(10f64.powi(decade), 1.0);
        scene.rect([x, TOP, 1.0, PLOT[1]], GRID);
        let at = [x, bottom + 18.0];
        scene.text(at, LABEL, GREY, Anchor::Middle, number(decade, 1.0));
    }
    for decade in axes.y.start..=axes.y.end {
        let [_, y] = axes.place(1.0, 10f64.powi(decade));
        scene.rect([LEFT, y, PLOT[0], 1.0], GRID);
        let at = [LEFT - 8.0, y + 4.0];
        scene.text(at, LABEL, GREY, Anchor::End, number(decade, 1e9));
    }
    let below = [LEFT + PLOT[0] / 2.0, bottom + 40.0];
    let name = "multiply-accumulates per byte";
    scene.text(below, LABEL, BLACK, Anchor::Middle, name);
    scene.text(
        [LEFT - 60.0, TOP - 8.0],
        LABEL,
        BLACK,
        Anchor::Start,
        "GMAC/s",
    );
}

/// The limits: reading, and the rates of both kinds of products.
fn roof(scene: &mut Scene, axes: &Axes, probe: &Probe) {
    let (start, end) = (f64::from(axes.x.start), f64::from(axes.x.end));
    const DOTS: usize = 400;
    for limit in [probe.integer_macs, probe.float_macs] {
        for dot in 0..=DOTS {
            let intensity = 10f64.powf(start + (end - start) * dot as f64 / DOTS as f64);
            let rate = (probe.read_bytes * intensity).min(limit);
            let [x, y] = axes.place(intensity, rate);
            if y < TOP + PLOT[1] {
                scene.rect([x - 1.0, y - 1.0, 2.5, 2.0], ROOF);
            }
        }
    }
}

/// The tests and their points beside the plot.
fn list(scene: &mut Scene, tests: &[(&str, &StepProfile)], points: &[Point]) {
    let x = LEFT + PLOT[0] + MARGIN;
    let mut y = TOP;
    for (test, (name, _)) in tests.iter().enumerate() {
        scene.rect([x, y, 12.0, 12.0], COLORS[test % COLORS.len()]);
        scene.text([x + 18.0, y + 11.0], 14.0, BLACK, Anchor::Start, *name);
        y += LIST_ROW;
        for (number, point) in points.iter().enumerate().filter(|(_, p)| p.test == test) {
            let label: String = point.label.chars().take(30).collect();
            let text = format!("{:>3} {label:<30} {}", number + 1, numbers(point));
            scene.text([x, y + 11.0], 10.0, BLACK, Anchor::Start, text);
            y += LIST_ROW;
        }
    }
}
