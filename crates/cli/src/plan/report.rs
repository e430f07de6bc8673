//! The plan as a summary and as JSON.

use crate::output;
use kvark::cache::{KvStorage, LayerConfig, LayerLayout, Side, SideLayout};
use kvark::memory::{ArenaBuffer, MemoryPlan, WeightSection};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The KV shapes with the number of layers that have each: `[layers, 2, heads, rows, dim]`. The layers need not be
/// consecutive.
pub(super) fn kv_shapes(plan: &MemoryPlan) -> Vec<[usize; 5]> {
    let mut shapes: Vec<[usize; 5]> = vec![];
    for layer in plan.kv.layers.iter().filter(|layer| !layer.has_state()) {
        let SideLayout {
            heads, rows, dim, ..
        } = layer.keys;
        match shapes.iter_mut().find(|s| s[2..] == [heads, rows, dim]) {
            Some(shape) => shape[0] += 1,
            None => shapes.push([1, 2, heads, rows, dim]),
        }
    }
    shapes
}

/// `[28, 2, 8, 1024, 128]`, or several such, of the layers with keys and values.
pub(super) fn kv_shape_text(plan: &MemoryPlan) -> String {
    let shapes = kv_shapes(plan);
    let texts: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
    texts.join(" + ")
}

/// The types of keys and values.
pub(super) fn kv_types(plan: &MemoryPlan) -> String {
    let mut types: Vec<([KvStorage; 2], usize)> = vec![];
    let layers = 0..plan.cache.layers.len();
    for layer in layers.filter(|layer| !plan.cache.layers[*layer].is_state()) {
        let pair = [Side::Key, Side::Value].map(|side| plan.cache.storage(layer, side));
        match types.iter_mut().find(|(known, _)| *known == pair) {
            Some((_, layers)) => *layers += 1,
            None => types.push((pair, 1)),
        }
    }
    let text = |[keys, values]: [KvStorage; 2]| match keys == values {
        true => keys.to_string(),
        false => format!("{keys}/{values}"),
    };
    match &types[..] {
        [(only, _)] => text(*only),
        many => {
            let many = many
                .iter()
                .map(|(pair, layers)| format!("{layers} in {}", text(*pair)));
            many.collect::<Vec<_>>().join(", ")
        }
    }
}

/// How many layers have sinks.
fn kv_sinks(plan: &MemoryPlan) -> String {
    let layers = plan.cache.layers.iter();
    match layers.filter(|layer| layer.sinks > 0).count() {
        0 => String::new(),
        layers => format!(", sinks in {layers} layers"),
    }
}

/// The parts of a plan that add up to its total, with a description of each.
pub(super) fn parts(plan: &MemoryPlan) -> Vec<(&'static str, usize, String)> {
    let sections = plan.weights.len();
    let tensors: usize = plan.weights.iter().map(|section| section.tensors).sum();
    let step = &plan.step;
    let scratch = output::bytes(plan.arena.scratch_bytes() as u64);
    let (state_bytes, states) = plan.kv.states();
    let mut parts = vec![
        (
            "weights",
            plan.resident_weights_bytes(),
            format!(
                "resident of the mapped file: {tensors} tensors in {sections} sections, {}",
                output::bytes(plan.weights_bytes() as u64)
            ),
        ),
        (
            "packed",
            plan.packed_bytes() - plan.expert_bytes(),
            "weights in the layout of the kernels, in their place".to_owned(),
        ),
        (
            "KV",
            plan.kv_bytes() - state_bytes,
            match kv_shapes(plan).is_empty() {
                true => "no cache".to_owned(),
                false => format!(
                    "{} {}{}",
                    kv_shape_text(plan),
                    kv_types(plan),
                    kv_sinks(plan)
                ),
            },
        ),
        (
            "arena",
            plan.arena.bytes,
            format!(
                "{} buffers of a step of {} tokens, scratch up to {scratch}",
                plan.arena.buffers.len(),
                step.tokens
            ),
        ),
        ("logits", plan.logits_bytes, "kept after a step".to_owned()),
    ];
    if states > 0 {
        let one = output::bytes(plan.cache.state_bytes() as u64);
        let note = format!(
            "{states} states of recurrent layers, {one} each, in {}",
            plan.cache.states.storage
        );
        parts.insert(3, ("states", state_bytes, note));
    }
    if let Some(experts) = plan.experts
        && let Some(held) = experts.held
    {
        let all = output::bytes(experts.all as u64);
        let note =
            format!("held of {all}, the others are read from the packed file when they are used");
        let at = parts.iter().position(|(part, ..)| *part == "KV");
        parts.insert(at.unwrap_or(parts.len()), ("experts", held, note));
    }
    if plan.own_memory {
        // Weights and logits are in the host's memory.
        parts.retain(|(part, ..)| !matches!(*part, "weights" | "logits"));
    }
    if let Some(draft) = &plan.draft {
        parts.push((
            "draft",
            draft.total_bytes(),
            "the plan of the draft model".into(),
        ));
    }
    parts
}

pub(super) fn print(out: &mut impl Write, name: &str, plan: &MemoryPlan) -> io::Result<()> {
    writeln!(out, "{name}, context of {} tokens", plan.cache.capacity)?;
    for (part, bytes, note) in parts(plan) {
        let text = output::bytes(bytes as u64);
        writeln!(out, "{part:<8} {text:>10}  {note}")?;
    }
    let total = plan.total_bytes();
    let text = output::bytes(total as u64);
    let device = if plan.own_memory {
        "  on the device"
    } else {
        ""
    };
    writeln!(out, "{:<8} {text:>10}{device}", "total")?;
    if plan.own_memory {
        let text = output::bytes(plan.host_bytes() as u64);
        let note = "weights mapped from the file, and logits kept after a step";
        let experts = match plan.host_packed_bytes {
            0 => String::new(),
            bytes => format!(", and {} of experts", output::bytes(bytes as u64)),
        };
        writeln!(out, "{:<8} {text:>10}  {note}{experts}", "host")?;
    }
    Ok(())
}

/// Formats a number with separated thousands.
pub(super) fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn json(name: &str, plan: &MemoryPlan) -> Value {
    let side = |side: &SideLayout| {
        json!({
            "offset": side.offset,
            "end": side.end(),
            "bytes": side.bytes(),
            "type": side.storage.name(),
            "shape": [side.heads, side.rows, side.dim],
            "row_bytes": side.row_bytes(),
        })
    };
    let layer = |(layer, config): (&LayerLayout, &LayerConfig)| {
        json!({
            "bytes": layer.bytes(),
            "window": layer.window,
            "sinks": config.sinks,
            "rows": layer.keys.rows,
            "keys": side(&layer.keys),
            "values": side(&layer.values),
        })
    };
    let buffer = |b: &ArenaBuffer| {
        json!({
            "offset": b.offset,
            "end": b.end(),
            "bytes": b.bytes,
            "name": b.name,
            "op": b.op,
            "dtype": b.dtype.map(|dtype| dtype.to_string()),
            "shape": b.shape,
            "first": b.first,
            "last": b.last,
        })
    };
    let section = |s: &WeightSection| json!({ "name": s.name, "tensors": s.tensors, "bytes": s.bytes, "resident_bytes": s.resident, "packed_bytes": s.packed });
    let (shapes, states) = (kv_shapes(plan), plan.kv.states());
    let shape = match &shapes[..] {
        [only] => json!(only),
        _ => Value::Null,
    };
    json!({
        "model": name,
        "context": plan.cache.capacity,
        "step": { "tokens": plan.step.tokens, "rows": plan.step.rows },
        "weights": {
            "bytes": plan.weights_bytes(),
            "resident_bytes": plan.resident_weights_bytes(),
            "packed_bytes": plan.packed_bytes(),
            "experts": plan.experts.map(|experts| json!({
                "bytes": experts.all,
                "held_bytes": experts.held.unwrap_or(experts.all),
                "minimum_bytes": experts.minimum,
                "bounded": experts.held.is_some(),
            })),
            "sections": plan.weights.iter().map(section).collect::<Vec<_>>(),
        },
        "kv": {
            "bytes": plan.kv_bytes(),
            "shape": shape,
            "shapes": shapes,
            "key_type": plan.cache.key_storage.name(),
            "value_type": plan.cache.value_storage.name(),
            "layers": plan.kv.layers.iter().zip(&plan.cache.layers).map(layer).collect::<Vec<_>>(),
            "states": { "bytes": states.0, "count": states.1 },
        },
        "arena": {
            "bytes": plan.arena.bytes,
            "lower_bound": plan.arena.lower_bound,
            "scratch_bytes": plan.arena.scratch_bytes(),
            "steps": plan.arena.steps,
            "buffers": plan.arena.buffers.iter().map(buffer).collect::<Vec<_>>(),
        },
        "logits": { "bytes": plan.logits_bytes },
        "draft": plan.draft.as_ref().map(|draft| json("draft", draft)),
        "total_bytes": plan.total_bytes(),
        "host_bytes": plan.host_bytes(),
        "host_expert_bytes": plan.host_packed_bytes,
    })
}
