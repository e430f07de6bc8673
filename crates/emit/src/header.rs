//! `model.h`: the facts, offsets and functions of a program.

use crate::c_text::{define, fill};
use crate::calls::Calls;
use crate::error::{EmitError, EmitErrorKind};
use crate::plan::{GUARD_BYTES, ProgramKind, ProgramPlan, StateLayout};
use graph::plan::Place;
use kv::LayerLayout;

/// The text of `model.h`.
pub(crate) fn text(
    plan: &ProgramPlan<'_>,
    calls: &Calls<'_>,
    layout: &StateLayout,
) -> Result<String, EmitError> {
    let mut facts = String::new();
    let kind = plan.kind();
    if kind != ProgramKind::Tensors {
        define(&mut facts, "MODEL_CONTEXT", plan.context, "tokens");
        define(
            &mut facts,
            "MODEL_STEP",
            plan.max_step,
            "the most tokens of a step",
        );
        define(
            &mut facts,
            "MODEL_TABLE_ROWS",
            calls.table_rows.min(i32::MAX as usize),
            "token ids are below",
        );
    }
    if plan.vocab > 0 {
        define(&mut facts, "MODEL_VOCAB", plan.vocab, "logits");
        define(
            &mut facts,
            "MODEL_LAYERS",
            plan.kv.layers.len(),
            "layers with keys and values",
        );
    }
    define(
        &mut facts,
        "MODEL_GUARD_BYTES",
        GUARD_BYTES,
        "between two regions of the state",
    );
    define(
        &mut facts,
        "MODEL_STATE_BYTES",
        format!("{}ull", layout.bytes),
        "",
    );
    define(
        &mut facts,
        "MODEL_WEIGHT_BYTES",
        format!("{}ull", calls.weights.bytes()),
        "",
    );

    let mut state = String::new();
    let regions = &plan.regions;
    let mut region = |name: &str, offset: usize, comment: &str| {
        define(&mut state, name, format!("{offset:#x}ull"), comment);
    };
    if !plan.kv.layers.is_empty() {
        region("A_KV_CACHE", regions.kv, "keys and values");
    }
    region("A_ARENA", regions.arena, "intermediate results");
    if plan.vocab > 0 {
        region("A_LOGITS", regions.logits, "logits");
    }
    match kind {
        ProgramKind::Tensors => {
            for (i, (offset, _)) in layout.inputs.iter().enumerate() {
                let name = &plan.graph.tensor(plan.graph.inputs()[i]).name;
                let name = name.replace("*/", "* /");
                region(&format!("A_INPUT_{i}"), *offset, &name);
            }
        }
        _ => {
            region("A_TOKEN_IDS", layout.token_ids, "the tokens of the context");
            region("A_POSITIONS", layout.positions, "0, 1, 2 and so on");
            region(
                "A_ROWS",
                layout.rows,
                "the row of the step whose logits are wanted, or the text of every token",
            );
        }
    }

    let mut arena = String::new();
    for (name, offset, _, shape) in &calls.buffers {
        define(
            &mut arena,
            name,
            format!("{:#x}ull", regions.arena + offset),
            shape,
        );
    }
    let functions = match kind {
        ProgramKind::Tensors => {
            for (name, count) in [
                ("MODEL_INPUTS", plan.graph.inputs().len()),
                ("MODEL_OUTPUTS", plan.graph.outputs().len()),
            ] {
                define(&mut facts, name, count, "");
            }
            for (i, output) in plan.graph.outputs().iter().enumerate() {
                let offset = format!("{:#x}ull", output_offset(plan, *output)?);
                define(&mut arena, &format!("A_OUTPUT_{i}"), offset, "");
            }
            include_str!("../templates/tensors.h")
        }
        ProgramKind::Encoder => {
            let output = plan.graph.outputs()[0];
            let offset = output_offset(plan, output)?;
            let width = plan
                .graph
                .tensor(output)
                .ty
                .shape
                .last()
                .and_then(|dim| dim.as_const());
            let width = width
                .ok_or_else(|| EmitErrorKind::Graph("its output has no fixed width".to_owned()))?;
            define(
                &mut arena,
                "A_OUTPUT",
                format!("{offset:#x}ull"),
                "hidden states",
            );
            define(
                &mut facts,
                "MODEL_WIDTH",
                width,
                "numbers of a hidden state",
            );
            include_str!("../templates/encoder.h")
        }
        ProgramKind::Decoder => include_str!("../templates/decoder.h"),
    };
    let mut weights = String::new();
    for weight in calls.weights.iter() {
        define(
            &mut weights,
            &weight.name,
            format!("{:#x}ull", weight.offset),
            &weight.shape,
        );
    }
    Ok(fill(
        include_str!("../templates/model.h"),
        &[
            ("title", &plan.title()),
            ("facts", &facts),
            ("kv", &closed_form(plan)),
            ("state", &state),
            ("arena", &arena),
            ("weights", &weights),
            ("functions", functions),
        ],
    ))
}

/// The offset of an output of the graph in the state.
fn output_offset(plan: &ProgramPlan<'_>, output: graph::TensorId) -> Result<usize, EmitError> {
    match plan.memory.place(output) {
        Place::Arena(slot) if plan.graph.tensor(output).ty.dtype == base::DType::F32 => {
            Ok(plan.regions.arena + slot.offset)
        }
        _ => {
            let name = &plan.graph.tensor(output).name;
            let reason = format!("its output {name} is not f32 that is computed");
            Err(EmitErrorKind::Graph(reason).into())
        }
    }
}

/// The offset of a row of the cache as a formula, if all layers are alike.
fn closed_form(plan: &ProgramPlan<'_>) -> String {
    let Some(first) = plan.kv.layers.first() else {
        return String::new();
    };
    let (keys, values) = (&first.keys, &first.values);
    let alike = |layer: &LayerLayout| {
        let same = |a: &kv::SideLayout, b: &kv::SideLayout| {
            (a.heads, a.rows, a.dim, a.storage) == (b.heads, b.rows, b.dim, b.storage)
        };
        same(&layer.keys, keys) && same(&layer.values, keys)
    };
    let shapes = format!(
        "/* The cache is [layer][side][head][position][dim]; side 0 has keys, side 1 values, {} bytes a row. */\n",
        keys.row_bytes()
    );
    match plan.kv.layers.iter().all(alike) && values.rows == keys.rows {
        true => format!(
            "{shapes}#define KV_OFFSET(layer, side, head, position) \\\n    (A_KV_CACHE + ((((layer) * 2ull + (side)) * {} + \
             (head)) * {} + (position) % {}) * {})\n",
            keys.heads,
            keys.rows,
            keys.rows,
            keys.row_bytes()
        ),
        false => "/* The cache is [layer][side][head][position][dim]; layers differ, so KV of model.c has their offsets. */\n".to_owned(),
    }
}
