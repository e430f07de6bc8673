//! Templates for models whose files carry none, under the names that llama.cpp gives them.
//!
//! None of them writes BOS: [`Tokenizer::encode_prompt`](crate::Tokenizer::encode_prompt) adds it where the model wants it.

/// Name and source of every built-in template.
pub(super) const TEMPLATES: [(&str, &str); 10] = [
    (
        "chatml",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    ),
    (
        "gemma",
        "{% set ns = namespace(system='') %}{% for m in messages %}\
         {% if m.role == 'system' %}{% set ns.system = m.content | trim + '\\n\\n' %}{% else %}\
         {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + ns.system + m.content | trim + \
         '<end_of_turn>\\n' }}{% set ns.system = '' %}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    ),
    (
        "llama3",
        "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + \
         '<|eot_id|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    ),
    (
        "mistral-v1",
        "{% set ns = namespace(open=false) %}{% for m in messages %}{% if m.role == 'assistant' %}\
         {{ ' ' + m.content + eos_token }}{% set ns.open = false %}{% else %}\
         {% if not ns.open %}{{ ' [INST] ' }}{% set ns.open = true %}{% endif %}\
         {{ m.content + ('\\n\\n' if m.role == 'system' else ' [/INST]') }}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3",
        "{% set ns = namespace(open=false) %}{% for m in messages %}{% if m.role == 'assistant' %}\
         {{ ' ' + m.content | trim + eos_token }}{% set ns.open = false %}{% else %}\
         {% if not ns.open %}{{ '[INST] ' }}{% set ns.open = true %}{% endif %}\
         {{ m.content + ('\\n\\n' if m.role == 'system' else '[/INST]') }}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7",
        "{% for m in messages %}{% if m.role == 'system' %}{{ '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}\
         {% elif m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}\
         {% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "phi3",
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
    (
        "phi4",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    ),
    (
        "vicuna",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}\
         {% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\\n' }}\
         {% else %}{{ 'ASSISTANT: ' + m.content + eos_token + '\\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    ),
    (
        "zephyr",
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
];

/// The source of the template with this name.
pub(super) fn source(name: &str) -> Option<&'static str> {
    let found = TEMPLATES.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChatTemplate, Message};

    #[test]
    fn every_template_writes_a_conversation_as_its_models_expect() {
        let turns = [
            Message::new("system", "S"),
            Message::new("user", "U"),
            Message::new("assistant", "A"),
            Message::new("user", "V"),
        ];
        // As llama.cpp's own templates write it.
        let want = [
            (
                "chatml",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n\
                 <|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "gemma",
                "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n\
                 <start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "llama3",
                "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU\
                 <|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "mistral-v1",
                " [INST] S\n\nU [/INST] A</s> [INST] V [/INST]",
            ),
            ("mistral-v3", "[INST] S\n\nU[/INST] A</s>[INST] V[/INST]"),
            (
                "mistral-v7",
                "[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] U[/INST] A</s>[INST] V[/INST]",
            ),
            (
                "phi3",
                "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n",
            ),
            (
                "phi4",
                "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>U<|im_end|>\
                 <|im_start|>assistant<|im_sep|>A<|im_end|><|im_start|>user<|im_sep|>V<|im_end|>\
                 <|im_start|>assistant<|im_sep|>",
            ),
            (
                "vicuna",
                "S\n\nUSER: U\nASSISTANT: A</s>\nUSER: V\nASSISTANT:",
            ),
            (
                "zephyr",
                "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n<|assistant|>\n",
            ),
        ];
        assert_eq!(want.map(|(name, _)| name), TEMPLATES.map(|(name, _)| name));
        for (name, want) in want {
            let template = ChatTemplate::new(source(name).unwrap(), "<s>", "</s>").unwrap();
            assert_eq!(template.render(&turns, true).unwrap(), want, "{name}");
        }
        assert_eq!(source("nobody"), None);
    }
}
