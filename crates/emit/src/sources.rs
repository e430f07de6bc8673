//! The texts of the source files.

use crate::c_text::fill;
use crate::calls::Calls;
use crate::error::{EmitError, EmitErrorKind};
use crate::header;
use crate::kernels;
use crate::layout_map;
use crate::plan::{EmitOptions, ProgramKind, ProgramPlan, StateLayout};
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
        ("model.h", header::text(plan, calls, layout)?),
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
