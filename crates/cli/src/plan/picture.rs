//! The plan as a picture: total memory by part, the arena over time, and keys and values by layer.

use super::report::{kv_shape_text, kv_types, parts};
use super::scene::{Anchor, Color, Scene, text_width};
use crate::output;
use kvark::memory::{ArenaBuffer, MemoryPlan};
use std::collections::BTreeMap;

const WIDTH: f32 = 1280.0;
const HEIGHT: f32 = 980.0;
/// Left and right edges of the panels.
const LEFT: f32 = 100.0;
const RIGHT: f32 = 1250.0;

const INK: Color = [34, 40, 49];
const SOFT: Color = [120, 128, 140];
const GRID: Color = [232, 235, 240];
const PAGE: Color = [255, 255, 255];
const SCRATCH: Color = [197, 203, 212];
/// Colours, for the largest parts first.
const PALETTE: [Color; 8] = [
    [66, 133, 196],
    [237, 139, 61],
    [88, 168, 104],
    [196, 84, 92],
    [131, 112, 184],
    [77, 176, 182],
    [214, 178, 70],
    [160, 120, 96],
];

pub(super) fn draw(name: &str, plan: &MemoryPlan) -> Scene {
    let mut scene = Scene::new(WIDTH, HEIGHT);
    let title = format!("{name}, context of {} tokens", plan.cache.capacity);
    scene.text([LEFT, 44.0], 22.0, INK, Anchor::Start, title);
    totals(&mut scene, plan);
    arena(&mut scene, plan, [190.0, 590.0]);
    layers(&mut scene, plan, [700.0, 920.0]);
    scene
}

fn short(bytes: usize) -> String {
    output::bytes(bytes as u64)
}

/// Draws one bar for the total memory, divided into its parts.
fn totals(scene: &mut Scene, plan: &MemoryPlan) {
    let total = plan.total_bytes();
    let width = RIGHT - LEFT;
    let mut x = LEFT;
    let mut key = LEFT;
    let parts = parts(plan);
    for ((part, bytes, _), color) in parts.iter().zip(PALETTE.iter().cycle()) {
        if *bytes == 0 {
            continue;
        }
        let share = *bytes as f32 / total.max(1) as f32;
        let label = format!("{part} {}", short(*bytes));
        scene.titled(
            [x, 64.0, (share * width - 1.0).max(1.0), 26.0],
            *color,
            Some(label.clone()),
        );
        x += share * width;
        scene.rect([key, 102.0, 11.0, 11.0], *color);
        scene.text([key + 16.0, 112.0], 12.0, INK, Anchor::Start, &label);
        key += 40.0 + text_width(&label, 12.0);
    }
    scene.text(
        [RIGHT, 44.0],
        15.0,
        SOFT,
        Anchor::End,
        format!("{} in all", short(total)),
    );
}

/// Draws labelled grid lines at round numbers of bytes.
fn scale(scene: &mut Scene, [top, bottom]: [f32; 2], most: usize) {
    let step = round_step(most);
    for bytes in (0..=most).step_by(step) {
        let y = bottom - (bottom - top) * bytes as f32 / most.max(1) as f32;
        scene.rect([LEFT, y, RIGHT - LEFT, 1.0], GRID);
        scene.text([LEFT - 8.0, y + 4.0], 11.0, SOFT, Anchor::End, short(bytes));
    }
}

/// A round step that divides `most` into a few parts.
fn round_step(most: usize) -> usize {
    let mut unit = 1usize;
    loop {
        for factor in [1, 2, 5] {
            let step = unit.saturating_mul(factor);
            if most / step <= 6 {
                return step;
            }
        }
        unit = unit.saturating_mul(10);
    }
}

/// Draws each buffer at its offset, from the node that writes it to the last node that reads it.
fn arena(scene: &mut Scene, plan: &MemoryPlan, [top, bottom]: [f32; 2]) {
    let arena = &plan.arena;
    let heading = format!(
        "Arena over time: {} for {} tokens, {} nodes from left to right, places from bottom to top",
        short(arena.bytes),
        plan.step.tokens,
        arena.steps
    );
    scene.text([LEFT, top - 22.0], 15.0, INK, Anchor::Start, heading);
    scale(scene, [top, bottom], arena.bytes);
    let colors = op_colors(&arena.buffers);
    let x = |step: usize| LEFT + (RIGHT - LEFT) * step as f32 / arena.steps.max(1) as f32;
    let y = |byte: usize| bottom - (bottom - top) * byte as f32 / arena.bytes.max(1) as f32;
    for buffer in &arena.buffers {
        let (left, right) = (x(buffer.first), x(buffer.last + 1));
        let (upper, lower) = (y(buffer.end()), y(buffer.offset));
        // Leave a gap between neighbours if the buffer is large enough.
        let gap = if right - left > 4.0 { 0.7 } else { 0.0 };
        let gap_y = if lower - upper > 4.0 { 0.7 } else { 0.0 };
        let color = match buffer.is_scratch() {
            true => SCRATCH,
            false => colors[buffer.op],
        };
        let title = format!("{} {:?} {}", buffer.name, buffer.shape, short(buffer.bytes));
        let area = [
            left,
            upper,
            (right - left - gap).max(0.4),
            (lower - upper - gap_y).max(0.4),
        ];
        scene.titled(area, color, Some(title));
        if right - left > text_width(&buffer.name, 10.0) + 8.0 && lower - upper > 13.0 {
            let at = [left + 4.0, (upper + lower) / 2.0 + 3.5];
            scene.text(at, 10.0, PAGE, Anchor::Start, &buffer.name);
        }
    }
    legend(scene, &arena.buffers, &colors, bottom + 22.0);
}

/// A colour for each op, in the order of the bytes they occupy over time.
fn op_colors(buffers: &[ArenaBuffer]) -> BTreeMap<&'static str, Color> {
    let mut ops: Vec<(&'static str, usize)> = by_op(buffers).into_iter().collect();
    ops.sort_by_key(|(_, area)| std::cmp::Reverse(*area));
    let colors = PALETTE.into_iter().chain(std::iter::repeat(SOFT));
    ops.into_iter()
        .zip(colors)
        .map(|((op, _), color)| (op, color))
        .collect()
}

/// Bytes of each op's results, multiplied by the number of nodes that they live for.
fn by_op(buffers: &[ArenaBuffer]) -> BTreeMap<&'static str, usize> {
    let mut areas = BTreeMap::new();
    for buffer in buffers.iter().filter(|buffer| !buffer.is_scratch()) {
        let area = buffer.bytes.saturating_mul(buffer.last + 1 - buffer.first);
        let sum: &mut usize = areas.entry(buffer.op).or_default();
        *sum = sum.saturating_add(area);
    }
    areas
}

fn legend(
    scene: &mut Scene,
    buffers: &[ArenaBuffer],
    colors: &BTreeMap<&'static str, Color>,
    y: f32,
) {
    let mut ops: Vec<(&str, usize)> = by_op(buffers).into_iter().collect();
    ops.sort_by_key(|(_, area)| std::cmp::Reverse(*area));
    let shown = ops.iter().take(PALETTE.len());
    let mut keys: Vec<(&str, Color)> = shown.map(|(op, _)| (*op, colors[op])).collect();
    if buffers.iter().any(ArenaBuffer::is_scratch) {
        keys.push(("work space", SCRATCH));
    }
    let mut x = LEFT;
    for (name, color) in keys {
        scene.rect([x, y - 10.0, 11.0, 11.0], color);
        scene.text([x + 16.0, y], 12.0, INK, Anchor::Start, name);
        x += 34.0 + text_width(name, 12.0);
    }
}

/// Draws a bar per layer: keys below, values above; layers with a window have another colour.
fn layers(scene: &mut Scene, plan: &MemoryPlan, [top, bottom]: [f32; 2]) {
    let layers = &plan.kv.layers;
    let what = match layers.is_empty() {
        true => "no cache".to_owned(),
        false => format!(
            "{} in {}, {}",
            short(plan.kv_bytes()),
            kv_types(plan),
            kv_shape_text(plan)
        ),
    };
    let heading = format!("Keys and values by layer: {what}");
    scene.text([LEFT, top - 22.0], 15.0, INK, Anchor::Start, heading);
    let most = layers.iter().map(|layer| layer.bytes()).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    scale(scene, [top, bottom], most);
    let pitch = (RIGHT - LEFT) / layers.len() as f32;
    let height = |bytes: usize| (bottom - top) * bytes as f32 / most as f32;
    let every = layers.len().div_ceil(64);
    for (i, layer) in layers.iter().enumerate() {
        let [keys, values] = side_colors(layer.window.is_some());
        let x = LEFT + i as f32 * pitch + pitch * 0.1;
        let (low, high) = (height(layer.keys.bytes()), height(layer.values.bytes()));
        let rows = layer.keys.rows;
        let title = |side: &str| Some(format!("layer {i} {side}, {rows} rows"));
        let width = pitch * 0.8;
        scene.titled([x, bottom - low, width, low], keys, title("keys"));
        let upper = [x, bottom - low - high, width, (high - 1.0).max(0.4)];
        scene.titled(upper, values, title("values"));
        if i % every == 0 {
            let at = [x + width / 2.0, bottom + 16.0];
            scene.text(at, 11.0, SOFT, Anchor::Middle, i.to_string());
        }
    }
    let mut x = LEFT;
    for window in [false, true] {
        let Some(layer) = layers.iter().find(|l| l.window.is_some() == window) else {
            continue;
        };
        let name = match layer.window {
            Some(window) => format!("window of {window}, {} rows", layer.keys.rows),
            None => format!("all {} rows", layer.keys.rows),
        };
        for (side, color) in ["keys", "values"].into_iter().zip(side_colors(window)) {
            let name = format!("{side}, {name}");
            scene.rect([x, bottom + 28.0, 11.0, 11.0], color);
            scene.text([x + 16.0, bottom + 38.0], 12.0, INK, Anchor::Start, &name);
            x += 40.0 + text_width(&name, 12.0);
        }
    }
}

fn side_colors(window: bool) -> [Color; 2] {
    match window {
        true => [[88, 168, 104], [156, 207, 166]],
        false => [[66, 133, 196], [150, 190, 226]],
    }
}

#[cfg(test)]
mod tests {
    use super::round_step;

    #[test]
    fn scales_have_few_round_steps() {
        assert_eq!(round_step(0), 1);
        assert_eq!(round_step(6), 1);
        assert_eq!(round_step(7), 2);
        assert_eq!(round_step(23_000_000), 5_000_000);
        assert_eq!(round_step(usize::MAX), 5_000_000_000_000_000_000);
    }
}
