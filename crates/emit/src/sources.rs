//! The texts of the source files.

use crate::c_text::{define, fill};
use crate::calls::Calls;
use crate::error::{EmitError, EmitErrorKind};
use crate::kernels;
use crate::layout_map;
use crate::plan::{EmitOptions, GUARD_BYTES, ProgramKind, ProgramPlan, StateLayout};
use crate::tokenizer::TokenizerProgram;
use graph::plan::Place;
use kv::{KvStorage, LayerLayout};
use std::fmt::Write;

/// All files but the weights.
pub(crate) fn all(
    plan: &ProgramPlan<'_>,
    calls: &Calls<'_>,
    layout: &StateLayout,
    tokenizer: Option<&TokenizerProgram>,
    options: &EmitOptions,
) -> Result<Vec<(&'static str, String)>, EmitError> {
    let kernels = calls.kernels.source(options.threads);
    let tokens = |generate: &str| {
        let main = include_str!("../templates/main_tokens.c");
        let main = fill(main, &[("generate", generate)]);
        text_options(&main, plan.kind(), tokenizer.is_some())
    };
    let about_tokens = match tokenizer {
        Some(_) => include_str!("../templates/main_text_about.c"),
        None => include_str!("../templates/main_tokens_about.c"),
    };
    let (about, run) = match plan.kind() {
        ProgramKind::Decoder => (
            about_tokens,
            tokens(include_str!("../templates/main_decoder.c")),
        ),
        ProgramKind::Encoder => (
            about_tokens,
            tokens(include_str!("../templates/main_encoder.c")),
        ),
        ProgramKind::Tensors => (
            include_str!("../templates/main_tensors_about.c"),
            include_str!("../templates/main_tensors.c").to_owned(),
        ),
    };
    let mut defines = String::new();
    if options.static_state {
        defines += " -DMODEL_STATIC_STATE";
    }
    if options.threads > 1 {
        defines += " -pthread";
    }
    let declarations = kernels::declarations(&kernels);
    let headers = [
        ("limits", &*limits(plan, options)),
        ("declarations", &*declarations),
    ];
    let (sources, headers_made, tables, assembler) = match tokenizer {
        Some(_) => (
            " tokenizer.c",
            " tokenizer.h",
            " tokenizer.bin",
            include_str!("../templates/tokenizer/tokenizer.S"),
        ),
        None => ("", "", "", ""),
    };
    let mut files = vec![
        ("model.h", header(plan, calls, layout)?),
        ("model.c", source(plan, calls, layout)?),
        (
            "kernels.h",
            fill(include_str!("../templates/kernels.h"), &headers),
        ),
        ("kernels.c", kernels),
        (
            "main.c",
            fill(
                include_str!("../templates/main.c"),
                &[("about", about), ("usage", &usage(about)), ("run", &run)],
            ),
        ),
        (
            "weights.S",
            fill(
                include_str!("../templates/weights.S"),
                &[("tokenizer", assembler)],
            ),
        ),
        (
            "Makefile",
            fill(
                include_str!("../templates/Makefile"),
                &[
                    ("defines", &defines),
                    ("sources", sources),
                    ("headers", headers_made),
                    ("tables", tables),
                ],
            ),
        ),
        (
            "layout.map",
            layout_map::text(plan, calls, layout, tokenizer),
        ),
    ];
    if let Some(tokenizer) = tokenizer {
        files.push(("tokenizer.h", tokenizer.header().to_owned()));
        files.push(("tokenizer.c", tokenizer.source().to_owned()));
    }
    Ok(files)
}

/// Fills in the parts of a main file that take and print text, or leaves them out.
fn text_options(main: &str, kind: ProgramKind, has_tokenizer: bool) -> String {
    const PRINT_ID: &str = r#"printf("%s%ld", i ? "," : "", (long)id);"#;
    let is_decoder = kind == ProgramKind::Decoder;
    if !has_tokenizer {
        let empty = [
            "text",
            "text_variables",
            "text_options",
            "text_read",
            "no_text",
            "text_end",
            "as_text",
            "text_unused",
        ];
        let mut values: Vec<(&str, &str)> = empty.iter().map(|key| (*key, "")).collect();
        let print = format!("        {PRINT_ID}\n");
        values.push(("print", &print));
        return fill(main, &values);
    }
    let mut functions = include_str!("../templates/main_text.c").to_owned();
    if is_decoder {
        functions += include_str!("../templates/main_text_print.c");
    }
    let print = format!(
        "        if (as_text)\n            print_token(id);\n        else\n            {PRINT_ID}\n"
    );
    // The definition comes first: the call in `main` has another argument.
    let main = main.replacen(
        "kv_enabled@as_text@, FILE",
        "kv_enabled, int as_text, FILE",
        1,
    );
    fill(
        &main,
        &[
            ("text", &functions),
            (
                "text_variables",
                "    const char *tables_path = \"tokenizer.bin\", *prompt = NULL;\n    int special = 0;\n",
            ),
            (
                "text_options",
                include_str!("../templates/main_text_options.c"),
            ),
            ("text_read", include_str!("../templates/main_text_read.c")),
            ("no_text", " && !prompt"),
            (
                "text_end",
                " (as_text && tokenizer_is_end(&tokenizer, id)) ||",
            ),
            ("as_text", ", prompt != NULL"),
            ("text_unused", ", (void)as_text"),
            ("print", &print),
        ],
    )
}

/// The sizes of the arrays that attention has on its stack.
fn limits(plan: &ProgramPlan<'_>, options: &EmitOptions) -> String {
    let layers = &plan.kv.layers;
    let most = |of: &dyn Fn(&LayerLayout) -> usize| layers.iter().map(of).max().unwrap_or(1);
    let keys = most(&|layer| layer.keys.dim);
    let values = most(&|layer| layer.values.dim);
    format!(
        "#define MODEL_THREADS {}\n#define MAX_KEY_DIM {keys}\n#define MAX_VALUE_DIM {values}\n#define MAX_GROUP {}",
        options.threads.max(1),
        largest_group(plan)
    )
}

/// The most query heads of a KV head.
fn largest_group(plan: &ProgramPlan<'_>) -> usize {
    let groups = plan.graph.nodes().iter().filter_map(|node| {
        let graph::ops::Op::UpdateAndAttend(op) = &node.op else {
            return None;
        };
        let heads = plan.graph.tensor(node.output).ty.shape.get(1)?.as_const()?;
        let kv_heads = plan.kv.layers.get(op.cache_id as usize)?.keys.heads;
        heads.checked_div(kv_heads)
    });
    groups.max().unwrap_or(1)
}

fn header(
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

/// Offset and length of each input or output, as a C initialiser.
fn tensor_table(
    plan: &ProgramPlan<'_>,
    name: &str,
    ids: &[graph::TensorId],
) -> Result<String, EmitError> {
    let rows = ids.iter().enumerate().map(|(i, id)| {
        let len = plan.graph.tensor(*id).ty.bytes(&plan.memory.bindings);
        let len = len.map(|bytes| bytes / size_of::<f32>());
        len.map(|len| format!("{{{name}_{i}, {len}}}"))
    });
    let rows: Option<Vec<String>> = rows.collect();
    let rows = rows.ok_or_else(|| EmitErrorKind::Graph("a size overflows".to_owned()))?;
    Ok(rows.join(", "))
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

fn source(
    plan: &ProgramPlan<'_>,
    calls: &Calls<'_>,
    layout: &StateLayout,
) -> Result<String, EmitError> {
    let regions = &plan.regions;
    let mut kv = String::new();
    if !plan.kv.layers.is_empty() {
        kv += "/* The caches: offsets of keys and values, sizes, window (0 for none), and storage types. */\n";
        kv += "static const struct {\n    size_t keys, values, heads, rows, key_dim, value_dim, window;\n    int key_type, value_type;\n} KV[MODEL_LAYERS] = {\n";
        for layer in &plan.kv.layers {
            let (keys, values) = (&layer.keys, &layer.values);
            let code = |storage: KvStorage| match storage {
                KvStorage::F8E4M3 => "KV_E4M3",
                KvStorage::F16 => "KV_F16",
                _ => "KV_F32",
            };
            let _ = writeln!(
                kv,
                "    {{{:#x}ull, {:#x}ull, {}, {}, {}, {}, {}, {}, {}}},",
                regions.kv + keys.offset,
                regions.kv + values.offset,
                keys.heads,
                keys.rows,
                keys.dim,
                values.dim,
                layer.window.unwrap_or(0),
                code(keys.storage),
                code(values.storage)
            );
        }
        kv += "};\n\n";
        kv += include_str!("../templates/kv_at.c");
    }
    let output = match plan.vocab {
        0 => String::new(),
        vocab => {
            let output = plan.graph.outputs()[0];
            let Place::Arena(slot) = plan.memory.place(output) else {
                return Err(EmitErrorKind::Graph("its logits are not computed".to_owned()).into());
            };
            format!(
                "    memcpy(state + A_LOGITS, state + A_ARENA + {}, R * {vocab} * sizeof(float));\n",
                slot.offset
            )
        }
    };
    let mut ends = Vec::new();
    if !plan.kv.layers.is_empty() {
        ends.push(format!("{:#x}", regions.kv + plan.kv.bytes()));
    }
    ends.push(format!("{:#x}", regions.arena + plan.memory.arena_bytes));
    if plan.vocab > 0 {
        ends.push(format!("{:#x}", regions.end));
    }
    let kind = plan.kind();
    match kind {
        ProgramKind::Tensors => {
            let inputs = layout.inputs.iter();
            ends.extend(inputs.map(|(offset, bytes)| format!("{:#x}", offset + bytes)));
        }
        _ => {
            ends.push("A_TOKEN_IDS + MODEL_CONTEXT * 4".to_owned());
            ends.push("A_POSITIONS + MODEL_CONTEXT * 4".to_owned());
        }
    }
    let functions = match kind {
        ProgramKind::Tensors => fill(
            include_str!("../templates/tensors.c"),
            &[
                (
                    "input_table",
                    &tensor_table(plan, "A_INPUT", plan.graph.inputs())?,
                ),
                (
                    "output_table",
                    &tensor_table(plan, "A_OUTPUT", plan.graph.outputs())?,
                ),
            ],
        ),
        ProgramKind::Encoder => include_str!("../templates/encoder.c").to_owned(),
        ProgramKind::Decoder => include_str!("../templates/decoder.c").to_owned(),
    };
    let (inputs, open) = match kind {
        ProgramKind::Tensors => ("", ""),
        _ => (
            include_str!("../templates/token_inputs.c"),
            include_str!("../templates/token_open.c"),
        ),
    };
    Ok(fill(
        include_str!("../templates/model.c"),
        &[
            ("title", &plan.title()),
            ("kv", &kv),
            ("body", &calls.body),
            ("output", &output),
            ("guards", &ends.join(", ")),
            ("inputs", inputs),
            ("open", open),
            ("functions", &functions),
        ],
    ))
}

/// The text of a C comment as a string literal, one line of C per line: what `--help` prints.
fn usage(comment: &str) -> String {
    let text = comment
        .trim()
        .trim_start_matches("/*")
        .trim_end_matches("*/");
    let lines = text.trim_end().lines().map(|line| {
        let line = line.trim_start().trim_start_matches('*');
        let line = line.strip_prefix(' ').unwrap_or(line);
        let line = line.replace('\\', "\\\\").replace('"', "\\\"");
        format!("    \"{line}\\n\"")
    });
    lines.collect::<Vec<_>>().join("\n")
}
