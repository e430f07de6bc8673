//! `--map`: every buffer of a plan with its offset, as if all were in one address space.

use super::report::kv_shape_text;
use crate::output;
use kvark::cache::{KvStorage, SideLayout};
use kvark::memory::{ArenaBuffer, MemoryPlan, StateOffsets};
use std::io::{self, Write};

/// A line of the table.
struct Row {
    offset: usize,
    bytes: usize,
    name: String,
    shape: String,
}

pub(super) fn print(out: &mut impl Write, plan: &MemoryPlan) -> io::Result<()> {
    writeln!(
        out,
        "{:<14} {:<14} {:>12}  {:<32} Shape",
        "Offset", "End", "Size", "Buffer"
    )?;
    writeln!(out, "{}", "-".repeat(96))?;
    for row in rows(plan) {
        writeln!(
            out,
            "0x{:012X} 0x{:012X} {:>12}  {:<32} {}",
            row.offset,
            row.offset + row.bytes,
            output::bytes(row.bytes as u64),
            row.name,
            row.shape
        )?;
    }
    writeln!(out, "{}", "-".repeat(96))?;
    let total = plan.total_bytes();
    write!(out, "{} in all", output::bytes(total as u64))?;
    match plan.host_bytes() {
        0 => writeln!(out),
        host => {
            let host = output::bytes(host as u64);
            writeln!(
                out,
                " on the device; {host} of weights and logits are the host's"
            )
        }
    }
}

/// Keys and values, arena, logits, weights, packed weights; then the same of the draft.
fn rows(plan: &MemoryPlan) -> Vec<Row> {
    let mut rows = vec![];
    let mut at = 0;
    add_plan(&mut rows, &mut at, "", plan);
    rows
}

fn add_plan(rows: &mut Vec<Row>, at: &mut usize, prefix: &str, plan: &MemoryPlan) {
    let StateOffsets {
        kv,
        arena,
        logits,
        end,
    } = plan.state_offsets();
    let start = at.next_multiple_of(64);
    let (kv, arena, logits) = (start + kv, start + arena, start + logits);
    *at = (start + end).next_multiple_of(64);
    let mut add = |offset: usize, bytes: usize, name: &str, shape: String| {
        rows.push(Row {
            offset,
            bytes,
            name: format!("{prefix}{name}"),
            shape,
        });
    };
    add(kv, plan.kv_bytes(), "kv_cache", kv_shape_text(plan));
    let arena_shape = format!("{} buffers that share memory", plan.arena.buffers.len());
    add(arena, plan.arena.bytes, "arena", arena_shape);
    let rows_of_logits = plan.logits_bytes;
    add(
        logits,
        rows_of_logits,
        "logits",
        format!("[{}] f32", rows_of_logits / 4),
    );
    for section in &plan.weights {
        let resident = output::bytes(section.resident as u64);
        let shape = format!("{} tensors, {resident} resident", section.tensors);
        add(*at, section.bytes, &section.name, shape);
        *at += section.bytes;
    }
    for section in plan.weights.iter().filter(|section| section.packed > 0) {
        let name = format!("{}.packed", section.name);
        add(*at, section.packed, &name, String::new());
        *at += section.packed;
    }
    if let Some(draft) = &plan.draft {
        add_plan(rows, at, "draft.", draft);
    }
    let after = |rows: &[Row], name: &str| {
        let name = format!("{prefix}{name}");
        1 + rows.iter().position(|row| row.name == name).expect("added")
    };
    let side = |i: usize, name: &str, side: &SideLayout| Row {
        offset: kv + side.offset,
        bytes: side.bytes(),
        name: format!("{prefix}  kv_cache.{i}.{name}"),
        shape: format!(
            "[{}, {}, {}] {}{}",
            side.heads,
            side.rows,
            side.dim,
            side.storage,
            // The CPU stores plain keys in tiles, so that sixteen positions are one vector.
            match (name, side.storage) {
                ("keys", KvStorage::F32 | KvStorage::F16 | KvStorage::BF16 | KvStorage::F8E4M3) =>
                    " in tiles of 16 positions",
                _ => "",
            }
        ),
    };
    let layers = plan.kv.layers.iter().enumerate();
    let sides = layers.flat_map(|(i, layer)| {
        [
            side(i, "keys", &layer.keys),
            side(i, "values", &layer.values),
        ]
    });
    let at_kv = after(rows, "kv_cache");
    rows.splice(at_kv..at_kv, sides.collect::<Vec<_>>());
    let buffer = |b: &ArenaBuffer| {
        let (kind, dtype) = match b.dtype {
            Some(dtype) => ("", format!(" {dtype}")),
            None => (" (work space)", String::new()),
        };
        Row {
            offset: arena + b.offset,
            bytes: b.bytes,
            name: format!("{prefix}  {}{kind}", b.name),
            shape: format!("{:?}{dtype}, nodes {} to {}", b.shape, b.first, b.last),
        }
    };
    let at_arena = after(rows, "arena");
    let buffers: Vec<Row> = plan.arena.buffers.iter().map(buffer).collect();
    rows.splice(at_arena..at_arena, buffers);
}
