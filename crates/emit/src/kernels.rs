//! The parts of `kernels.c`, and those that a model uses.

use base::DType;
use graph::ops::Activation;
use std::collections::BTreeSet;

/// A part of `kernels.c`.
struct Part {
    name: &'static str,
    /// The part that this one calls; empty if there is none.
    needs: &'static str,
    source: &'static str,
}

const fn part(name: &'static str, needs: &'static str, source: &'static str) -> Part {
    Part {
        name,
        needs,
        source,
    }
}

/// What every program has.
const COMMON: &str = include_str!("../kernels/common.c");

/// How pieces of work are run by one thread and by several.
const SERIAL: &str = include_str!("../kernels/serial.c");
const PARALLEL: &str = include_str!("../kernels/parallel.c");

/// All other parts, in the order of the file.
const PARTS: &[Part] = &[
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
    part("gather_rows", "", include_str!("../kernels/gather_rows.c")),
    part("copy_rows", "", include_str!("../kernels/copy_rows.c")),
    part("k_scales", "", include_str!("../kernels/k_scales.c")),
    part("iq4_values", "", include_str!("../kernels/iq4_values.c")),
    part("decode_f16", "", include_str!("../kernels/decode_f16.c")),
    part("decode_bf16", "", include_str!("../kernels/decode_bf16.c")),
    part("decode_q4_0", "", include_str!("../kernels/decode_q4_0.c")),
    part("decode_q4_1", "", include_str!("../kernels/decode_q4_1.c")),
    part("decode_q5_0", "", include_str!("../kernels/decode_q5_0.c")),
    part("decode_q5_1", "", include_str!("../kernels/decode_q5_1.c")),
    part("decode_q8_0", "", include_str!("../kernels/decode_q8_0.c")),
    part("decode_q2_k", "", include_str!("../kernels/decode_q2_k.c")),
    part("decode_q3_k", "", include_str!("../kernels/decode_q3_k.c")),
    part(
        "decode_q4_k",
        "k_scales",
        include_str!("../kernels/decode_q4_k.c"),
    ),
    part(
        "decode_q5_k",
        "k_scales",
        include_str!("../kernels/decode_q5_k.c"),
    ),
    part("decode_q6_k", "", include_str!("../kernels/decode_q6_k.c")),
    part(
        "decode_iq4_nl",
        "iq4_values",
        include_str!("../kernels/decode_iq4_nl.c"),
    ),
    part(
        "decode_iq4_xs",
        "iq4_values",
        include_str!("../kernels/decode_iq4_xs.c"),
    ),
    part("windows", "", include_str!("../kernels/windows.c")),
    part("copy", "", include_str!("../kernels/copy.c")),
    part("equal", "", include_str!("../kernels/equal.c")),
];

/// The parts that a program uses, by name.
#[derive(Default)]
pub(crate) struct Kernels(BTreeSet<String>);

impl Kernels {
    /// Adds a part.
    ///
    /// # Panics
    /// If there is no such part.
    pub(crate) fn add(&mut self, name: &str) {
        let part = find(name).expect("a part of the kernels");
        self.0.insert(name.to_owned());
        if !part.needs.is_empty() {
            self.0.insert(part.needs.to_owned());
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
        let used = PARTS.iter().filter(|part| self.0.contains(part.name));
        let sources = std::iter::once(&*common).chain(used.map(|part| part.source));
        sources.collect::<Vec<_>>().join("\n")
    }
}

fn find(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.name == name)
}

/// The part that decodes rows of a type, if there is one.
pub(crate) fn decoder(dtype: DType) -> Option<&'static str> {
    let name = format!("decode_{}", dtype.to_string().to_lowercase());
    find(&name).map(|part| part.name)
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
    }
}

/// The declarations of the kernels in a source: every function at the start of a line whose name starts with `k_`.
pub(crate) fn declarations(source: &str) -> String {
    let mut text = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
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
    fn declarations_are_whole_and_helpers_come_once() {
        let mut kernels = Kernels::default();
        for name in ["linear_row_scaled", "decode_q5_k", "decode_q4_k"] {
            kernels.add(name);
        }
        let source = kernels.source(1);
        let found = declarations(&source);
        assert_eq!(found.matches("void k_").count(), 3, "{found}");
        assert_eq!(found.matches(");").count(), 3, "{found}");
        assert_eq!(source.matches("static void scale_and_min").count(), 1);
    }
}
