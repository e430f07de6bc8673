//! `layout.map`: every buffer with its offset, size and shape.

use crate::calls::Calls;
use crate::plan::{ProgramKind, ProgramPlan, StateLayout};
use crate::tokenizer::TokenizerProgram;
use base::size_text;
use kv::SideLayout;
use std::fmt::Write;

/// The table of the state, then those of the weights and the tokenizer.
pub(crate) fn text(
    plan: &ProgramPlan<'_>,
    calls: &Calls<'_>,
    layout: &StateLayout,
    tokenizer: Option<&TokenizerProgram>,
) -> String {
    let mut text = String::new();
    let regions = &plan.regions;
    let _ = writeln!(text, "MEMORY\n{:-<96}", "");
    let (state, weights) = (layout.bytes, calls.weights.bytes());
    let tables = tokenizer.map(|program| ("tokenizer.bin", program.tables().len()));
    for (name, bytes) in [
        ("state", state),
        ("weights.bin", weights),
        ("in all", state.saturating_add(weights)),
    ]
    .into_iter()
    .chain(tables)
    {
        let _ = writeln!(
            text,
            "{name:<14} {bytes:>16} bytes  ({})",
            size_text(bytes as u64)
        );
    }
    text += "\nSTATE\n";
    head(&mut text);
    if !plan.kv.layers.is_empty() {
        row(
            &mut text,
            regions.kv,
            plan.kv.bytes(),
            "kv_cache",
            "[layer, side, head, position, dim]",
        );
        for (i, layer) in plan.kv.layers.iter().enumerate() {
            for (side, name) in [(&layer.keys, "keys"), (&layer.values, "values")] {
                let SideLayout {
                    heads,
                    rows,
                    dim,
                    storage,
                    ..
                } = side;
                let shape = format!("[{heads}, {rows}, {dim}] {storage}");
                row(
                    &mut text,
                    regions.kv + side.offset,
                    side.bytes(),
                    &format!("  kv_cache.{i}.{name}"),
                    &shape,
                );
            }
        }
    }
    let shared = format!("{} buffers that share memory", plan.memory.buffers.len());
    row(
        &mut text,
        regions.arena,
        plan.memory.arena_bytes,
        "arena",
        &shared,
    );
    for (name, offset, bytes, shape) in &calls.buffers {
        row(
            &mut text,
            regions.arena + offset,
            *bytes,
            &format!("  {name}"),
            shape,
        );
    }
    if plan.vocab > 0 {
        row(
            &mut text,
            regions.logits,
            regions.end - regions.logits,
            "logits",
            &format!("f32[{}]", plan.vocab),
        );
    }
    if plan.kind() == ProgramKind::Tensors {
        for (id, (offset, bytes)) in plan.graph.inputs().iter().zip(&layout.inputs) {
            let name = &plan.graph.tensor(*id).name;
            let shape = format!("f32[{}]", bytes / size_of::<f32>());
            row(&mut text, *offset, *bytes, name, &shape);
        }
    } else {
        let ids = plan.context * size_of::<i32>();
        let shape = format!("i32[{}]", plan.context);
        row(&mut text, layout.token_ids, ids, "token_ids", &shape);
        row(&mut text, layout.positions, ids, "positions", &shape);
        row(
            &mut text,
            layout.rows,
            layout.rows_bytes,
            "rows",
            &format!("i32[{}]", layout.rows_bytes / 4),
        );
    }
    text += "\nWEIGHTS\n";
    head(&mut text);
    for weight in calls.weights.iter() {
        row(
            &mut text,
            weight.offset,
            weight.bytes,
            &weight.name,
            &weight.shape,
        );
    }
    if let Some(tokenizer) = tokenizer {
        text += "\nTOKENIZER\n";
        head(&mut text);
        for section in &tokenizer.sections {
            let (name, shape) = (&section.name, &section.shape);
            row(&mut text, section.offset, section.bytes, name, shape);
        }
    }
    text
}

fn head(text: &mut String) {
    let _ = writeln!(
        text,
        "{:<14} {:<14} {:>16}  {:<40} Shape",
        "Offset", "End", "Size", "Buffer"
    );
    let _ = writeln!(text, "{:-<96}", "");
}

fn row(text: &mut String, offset: usize, bytes: usize, name: &str, shape: &str) {
    let end = offset + bytes;
    let _ = writeln!(
        text,
        "0x{offset:012X} 0x{end:012X} {bytes:>16}  {name:<40} {shape}"
    );
}
