//! The parts of `kernels.c`, and those that a model uses.

use base::DType;
use base::quant::{BlockFormat, Codes, Dialect, QuantBlock};
use graph::ops::Activation;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::LazyLock;

/// A part of `kernels.c`.
struct Part {
    name: Cow<'static, str>,
    /// The part that this one calls; empty if there is none.
    needs: Cow<'static, str>,
    source: Cow<'static, str>,
}

fn part(
    name: impl Into<Cow<'static, str>>,
    needs: impl Into<Cow<'static, str>>,
    source: impl Into<Cow<'static, str>>,
) -> Part {
    Part {
        name: name.into(),
        needs: needs.into(),
        source: source.into(),
    }
}

/// What every program has.
const COMMON: &str = include_str!("../kernels/common.c");

/// How pieces of work are run by one thread and by several.
const SERIAL: &str = include_str!("../kernels/serial.c");
const PARALLEL: &str = include_str!("../kernels/parallel.c");

/// All other parts, in the order of the file.
static PARTS: LazyLock<Vec<Part>> = LazyLock::new(|| {
    let mut parts = vec![
        part("norm", "", include_str!("../kernels/norm.c")),
        part("rope", "", include_str!("../kernels/rope.c")),
        part(
            "linear_row_scaled",
            "",
            include_str!("../kernels/linear_row_scaled.c"),
        ),
        part(
            "linear_byte_quants",
            "linear_row_scaled",
            include_str!("../kernels/linear_byte_quants.c"),
        ),
        part("linear_f32", "", include_str!("../kernels/linear_f32.c")),
        part("linear_half", "", include_str!("../kernels/linear_half.c")),
        part("attend", "", include_str!("../kernels/attend.c")),
        part("attention", "", include_str!("../kernels/attention.c")),
        part("binary", "", include_str!("../kernels/binary.c")),
        part("scale", "", include_str!("../kernels/scale.c")),
        part("round", "", include_str!("../kernels/round.c")),
        part("selection", "", include_str!("../kernels/selection.c")),
        part(
            "activation_silu",
            "",
            include_str!("../kernels/activation_silu.c"),
        ),
        part(
            "activation_gelu_tanh",
            "",
            include_str!("../kernels/activation_gelu_tanh.c"),
        ),
        part(
            "activation_gelu_erf",
            "selection",
            include_str!("../kernels/activation_gelu_erf.c"),
        ),
        part(
            "activation_relu",
            "",
            include_str!("../kernels/activation_relu.c"),
        ),
        part(
            "activation_tanh",
            "selection",
            include_str!("../kernels/activation_tanh.c"),
        ),
        part(
            "activation_sigmoid",
            "",
            include_str!("../kernels/activation_sigmoid.c"),
        ),
        part(
            "activation_hard_swish",
            "",
            include_str!("../kernels/activation_hard_swish.c"),
        ),
        part("gather_rows", "", include_str!("../kernels/gather_rows.c")),
        part(
            "gather_panels",
            "",
            include_str!("../kernels/gather_panels.c"),
        ),
        part("copy_rows", "", include_str!("../kernels/copy_rows.c")),
        part("decode_f16", "", include_str!("../kernels/decode_f16.c")),
        part("decode_bf16", "", include_str!("../kernels/decode_bf16.c")),
        part(
            "window_place",
            "",
            include_str!("../kernels/window_place.c"),
        ),
        part(
            "windows",
            "window_place",
            include_str!("../kernels/windows.c"),
        ),
        part("conv", "window_place", include_str!("../kernels/conv.c")),
        part("pool", "window_place", include_str!("../kernels/pool.c")),
        part("copy", "", include_str!("../kernels/copy.c")),
        part("equal", "", include_str!("../kernels/equal.c")),
        part("quant", "", include_str!("../kernels/quant.c")),
    ];
    let formats = DType::ALL.into_iter().filter_map(DType::format);
    parts.extend(formats.flat_map(format_parts));
    parts
});

/// The C keywords that declare the functions and tables of block formats.
const DIALECT: Dialect = Dialect {
    function: "static",
    table: "static const",
    values: "const",
};

/// The values of a block format's codes, if they are in a table, and the decoder of a block.
fn format_parts(format: &'static BlockFormat) -> Vec<Part> {
    let BlockFormat { name, len, .. } = *format;
    let mut parts = Vec::new();
    let mut needs = Cow::from("quant");
    if format.values_name().is_some() {
        needs = format!("values_{name}").into();
        parts.push(part(needs.clone(), "quant", format.values_source(&DIALECT)));
    }
    let element = format.element_source(&DIALECT);
    let value = format.value_expression();
    let min = if format.mins { " + q.min" } else { "" };
    let source = format!(
        "{element}
void k_decode_{name}(const uint8_t *block, float *out)
{{
    for (int e = 0; e < {len}; e++) {{
        struct quant q = {name}_at(block, e);
        out[e] = q.scale * (float){value}{min};
    }}
}}
"
    );
    let decode = format!("decode_{name}");
    parts.push(part(decode.clone(), needs, source));
    if let Some(scales) = scale_bytes(format) {
        let (start, count, bytes) = (scales.start, scales.len(), format.bytes);
        let code = match format.codes {
            Codes::Signed => "(signed char)codes[e]",
            _ => "codes[e]",
        };
        let source = format!(
            "void k_join_{name}(const uint8_t *scales, const uint8_t *codes, float *out)
{{
    uint8_t block[{bytes}] = {{0}};
    memcpy(block + {start}, scales, {count});
    for (int e = 0; e < {len}; e++) {{
        struct quant q = {name}_at(block, e);
        q.code = {code};
        out[e] = q.scale * (float){value}{min};
    }}
}}
"
        );
        parts.push(part(format!("join_{name}"), decode, source));
    }
    parts
}

/// The bytes of a block that its scales and mins are read from. `None` if they take half of a block, as where they are apart.
pub(crate) fn scale_bytes(format: &BlockFormat) -> Option<Range<usize>> {
    let numbers = |block: &[u8]| {
        let mut read = QuantBlock::default();
        (format.unpack)(block, &mut read);
        let factors = (read.scales, read.mins);
        (read.scale.to_bits(), read.min.to_bits(), factors)
    };
    let empty = vec![0; format.bytes];
    let counts = |at: &usize| {
        (0..8).any(|bit| {
            let mut block = empty.clone();
            block[*at] = 1 << bit;
            numbers(&block) != numbers(&empty)
        })
    };
    let mut at = (0..format.bytes).filter(counts);
    let first = at.next()?;
    let end = at.next_back().unwrap_or(first) + 1;
    (2 * (end - first) < format.bytes).then_some(first..end)
}

/// The parts that a program uses, by name.
#[derive(Default)]
pub(crate) struct Kernels(BTreeSet<String>);

impl Kernels {
    /// Adds a part, and the parts that it needs.
    ///
    /// # Panics
    /// If there is no such part.
    pub(crate) fn add(&mut self, name: &str) {
        let part = find(name).expect("a part of the kernels");
        self.0.insert(name.to_owned());
        if !part.needs.is_empty() {
            self.add(&part.needs);
        }
    }

    /// The text of `kernels.c` for a number of threads.
    pub(crate) fn source(&self, threads: usize) -> String {
        let (parallel, headers) = match threads {
            0 | 1 => (SERIAL, ""),
            _ => (PARALLEL, "#include <pthread.h>\n#include <stdlib.h>\n"),
        };
        let common = COMMON.replace("@parallel@\n", parallel);
        let common = common.replace(
            "#include <string.h>\n",
            &format!("{headers}#include <string.h>\n"),
        );
        let used = PARTS.iter().filter(|part| self.0.contains(&*part.name));
        let sources = std::iter::once(&*common).chain(used.map(|part| &*part.source));
        sources.collect::<Vec<_>>().join("\n")
    }
}

fn find(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.name == name)
}

/// The part that decodes rows of a type, if there is one.
pub(crate) fn decoder(dtype: DType) -> Option<&'static str> {
    find(&format!("decode_{dtype}")).map(|part| &*part.name)
}

/// The name of an activation in C.
pub(crate) fn activation(function: Activation) -> &'static str {
    match function {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::GeluErf => "gelu_erf",
        Activation::Relu => "relu",
        Activation::Tanh => "tanh",
        Activation::Sigmoid => "sigmoid",
        Activation::HardSwish => "hard_swish",
    }
}

/// The name in C of the values of a type's codes, if codes index a table, and the part that has them.
pub(crate) fn values(dtype: DType) -> Option<(String, &'static str)> {
    let name = dtype.format()?.values_name()?;
    let part = find(&format!("values_{dtype}")).expect("made of every such format");
    Some((name, &*part.name))
}

/// The declarations of the kernels in a source: every function and array at the start of a line whose name starts with `k_`.
pub(crate) fn declarations(source: &str) -> String {
    let mut text = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if let Some((array, _)) = line.split_once(" = {")
            && line.starts_with("const signed char k_")
        {
            text += &format!("extern {array};\n");
        }
        if !line.starts_with("void k_") {
            continue;
        }
        text += line;
        let mut last = line;
        while !last.ends_with(')') {
            let Some(next) = lines.next() else { break };
            text += "\n";
            text += next;
            last = next;
        }
        text += ";\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantised_type_has_a_decoder_and_every_activation_a_part() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantised()) {
            assert!(decoder(dtype).is_some(), "{dtype}");
        }
        assert_eq!(decoder(DType::I64), None);
        let mut kernels = Kernels::default();
        for function in Activation::ALL {
            kernels.add(&format!("activation_{}", activation(function)));
        }
        assert_eq!(
            kernels.source(1).matches("_gated(").count(),
            Activation::ALL.len()
        );
    }

    #[test]
    fn scales_are_a_part_of_a_block() {
        let table = [
            (DType::Q8_0, Some(0..2)),
            (DType::Q4_1, Some(0..4)),
            (DType::Q5_0, Some(0..2)),
            (DType::Q4_K, Some(0..16)),
            (DType::Q5_K, Some(0..16)),
            (DType::Q6_K, Some(192..210)),
            // The first and the last bytes.
            (DType::Q2_K, None),
        ];
        for (dtype, expected) in table {
            assert_eq!(scale_bytes(dtype.format().unwrap()), expected, "{dtype}");
        }
    }

    #[test]
    fn declarations_are_whole_and_helpers_come_once() {
        let mut kernels = Kernels::default();
        for name in ["linear_row_scaled", "decode_q5_k", "decode_q4_k"] {
            kernels.add(name);
        }
        let source = kernels.source(1);
        let found = declarations(&source);
        assert_eq!(found.matches("void k_").count(), 3, "{found}");
        assert_eq!(found.matches(");").count(), 3, "{found}");
        assert_eq!(source.matches("struct quant {").count(), 1);
    }
}
