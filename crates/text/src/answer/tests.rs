use super::*;
use serde_json::json;

fn tools() -> Vec<Value> {
    let parameters = json!({ "type": "object", "properties": {
        "city": { "type": "string" },
        "days": { "type": "integer" },
        "exact": { "type": "boolean" },
        "list": { "type": "array" },
        "zip": { "type": ["string", "null"] },
    }});
    vec![
        json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } }),
        json!({ "name": "time" }),
    ]
}

fn format(template: &str) -> AnswerFormat {
    AnswerFormat {
        reasoning: ReasoningFormat::of_template(template),
        tools: ToolFormat::of_template(template),
    }
}

/// The parts of a text, with the parts of one kind joined.
fn run(format: AnswerFormat, tools: &[Value], opened: &str, pieces: &[String]) -> Vec<AnswerPart> {
    let mut parser = AnswerParser::new(format, tools);
    parser.begin_after(opened);
    let mut parts: Vec<AnswerPart> = vec![];
    let mut streamed: Option<ToolCall> = None;
    let mut add = |part| match (parts.last_mut(), part) {
        (_, AnswerPart::CallPiece(piece)) => {
            let begun = streamed.get_or_insert_with(|| ToolCall {
                name: piece.name.clone().expect("the first piece has a name"),
                arguments: String::new(),
            });
            begun.arguments.push_str(&piece.arguments);
        }
        (_, AnswerPart::Call(call)) => {
            // The pieces of a call are the whole call.
            if let Some(streamed) = streamed.take() {
                assert_eq!(streamed, call);
            }
            parts.push(AnswerPart::Call(call));
        }
        (Some(AnswerPart::Reasoning(last)), AnswerPart::Reasoning(text))
        | (Some(AnswerPart::Content(last)), AnswerPart::Content(text)) => last.push_str(&text),
        (_, part) => parts.push(part),
    };
    for piece in pieces {
        parser.push(piece).into_iter().for_each(&mut add);
    }
    parser.finish().into_iter().for_each(&mut add);
    parts
}

/// The parts of an answer, which are the same in pieces of every size.
fn parse(template: &str, opened: &str, text: &str) -> Vec<AnswerPart> {
    let (format, tools) = (format(template), tools());
    let whole = run(format, &tools, opened, &[text.to_owned()]);
    let chars: Vec<char> = text.chars().collect();
    for size in 1..chars.len().max(2) {
        let pieces: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
        let parts = run(format, &tools, opened, &pieces);
        assert_eq!(parts, whole, "{text:?} in pieces of {size}");
    }
    whole
}

fn reasoning(text: &str) -> AnswerPart {
    AnswerPart::Reasoning(text.to_owned())
}

fn content(text: &str) -> AnswerPart {
    AnswerPart::Content(text.to_owned())
}

fn call(name: &str, arguments: Value) -> AnswerPart {
    AnswerPart::Call(ToolCall {
        name: name.to_owned(),
        arguments: arguments.to_string(),
    })
}

const THINK: &str = "{{ tools }}<think></think><tool_call>";
const HARMONY: &str = "{{ tools }}<|channel|>final<|message|>";
const GEMMA: &str = "{{ tools }}<|channel>thought<|tool_call>call:";
const LFM: &str = "{{ tools }}<|tool_call_start|>";
const GRANITE: &str = "{{ tools }}<think><response><|tool_call|>";

#[test]
fn reasoning_between_tags() {
    for (opened, text, parts) in [
        (
            "",
            "<think>\nSo 1 < 2.\n</think>\n\nYes.",
            vec![reasoning("So 1 < 2."), content("Yes.")],
        ),
        (
            "<think>",
            "\nSo.\n</think>\n\nYes.",
            vec![reasoning("So."), content("Yes.")],
        ),
        ("", "<think>\n\n</think>\n\nYes.", vec![content("Yes.")]),
        (
            "",
            "<think>It was cut </thi",
            vec![reasoning("It was cut </thi")],
        ),
        ("", "\n<thin", vec![content("\n<thin")]),
        (
            "",
            "The tag <think> opens.",
            vec![content("The tag <think> opens.")],
        ),
        (
            "<think>",
            "a</think><think>b</think>c",
            vec![reasoning("ab"), content("c")],
        ),
        ("", " plain \n", vec![content(" plain \n")]),
    ] {
        assert_eq!(parse(THINK, opened, text), parts, "{text}");
    }
    let magistral = parse("[THINK]", "", "[THINK]a[/THINK]b");
    assert_eq!(magistral, [reasoning("a"), content("b")]);
    let words = "Here is my thought process: a\n\nHere is my response: b";
    assert_eq!(
        parse("Here is my thought process:", "", words),
        [reasoning("a"), content("b")]
    );
    let granite = "<think>a</think>\n<response>\nb\n</response>";
    assert_eq!(parse(GRANITE, "", granite), [reasoning("a"), content("b")]);
    assert_eq!(
        parse("{{ messages }}", "", "<think>a"),
        [content("<think>a")]
    );
}

#[test]
fn harmony_channels_and_calls() {
    for (text, parts) in [
        (
            "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Hi <b>",
            vec![reasoning("Think."), content("Hi <b>")],
        ),
        (
            "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>",
            vec![reasoning("T"), call("weather", json!({}))],
        ),
        (
            " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Rome\"}",
            vec![call("weather", json!({}))],
        ),
        (
            "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant to=functions.time<|channel|>commentary<|message|>",
            vec![content("I will look."), call("time", json!({}))],
        ),
        ("No channel at all.", vec![content("No channel at all.")]),
        ("<|channel|>analysis<|mess", vec![]),
    ] {
        let found = parse(HARMONY, "", text);
        let names = |parts: &[AnswerPart]| -> Vec<AnswerPart> {
            let plain = |part: &AnswerPart| match part {
                AnswerPart::Call(found) => call(&found.name, json!({})),
                other => other.clone(),
            };
            parts.iter().map(plain).collect()
        };
        assert_eq!(names(&found), parts, "{text}");
        for part in found {
            if let AnswerPart::Call(call) = part {
                let rome = text.contains("Rome");
                let wanted = if rome { r#"{"city": "Rome"}"# } else { "{}" };
                assert_eq!(call.arguments, wanted);
            }
        }
    }
    assert_eq!(
        parse(
            HARMONY,
            "<|channel|>analysis<|message|>",
            "T<|end|><|start|>assistant<|channel|>final<|message|>x"
        ),
        [reasoning("T"), content("x")]
    );
}

#[test]
fn xml_arguments_have_the_types_of_the_schema() {
    let text = "<think>\nT\n</think>\n\nLook:\n\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n\
                <parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=list>\n[1, 'a']\n</parameter>\n\
                <parameter=zip>\nnull\n</parameter>\n<parameter=other>\n{\"a\": 1}\n</parameter>\n</function>\n</tool_call>";
    let arguments = json!({
        "city": "12", "days": 3, "exact": true, "list": [1, "a"], "zip": null, "other": { "a": 1 },
    });
    assert_eq!(
        parse("{{ tools }}<think><function=", "", text),
        [reasoning("T"), content("Look:"), call("weather", arguments)]
    );
    // Without the outer tags, with an end's text in a value, and cut.
    let bare =
        "<function=weather>\n<parameter=city>\na</parameter> b\nc\n</parameter>\n</function>";
    let two_lines = call("weather", json!({ "city": "a</parameter> b\nc" }));
    assert_eq!(parse(THINK, "", bare), [two_lines]);
    let cut = "<tool_call>\n<function=time>\n</function>";
    assert_eq!(parse(THINK, "", cut), [call("time", json!({}))]);
}

#[test]
fn gemma_lfm_and_granite_calls() {
    let gemma = "<|channel>thought\nT\n<channel|>Look.<|tool_call>call:weather{city:<|\"|>São {x}<|\"|>,days:3,list:[true,{a:1.5}]}<tool_call|>\
                 <|tool_call>call:time{}<tool_call|>";
    assert_eq!(
        parse(GEMMA, "", gemma),
        [
            reasoning("T"),
            content("Look."),
            call(
                "weather",
                json!({ "city": "São {x}", "days": 3, "list": [true, { "a": 1.5 }] })
            ),
            call("time", json!({})),
        ]
    );
    let lfm = "<|tool_call_start|>[weather(city='It\\'s \"x\", )', days=3, exact=False, zip=None), time()]<|tool_call_end|>Wait.";
    assert_eq!(
        parse(LFM, "", lfm),
        [
            call(
                "weather",
                json!({ "city": "It's \"x\", )", "days": 3, "exact": false, "zip": null })
            ),
            call("time", json!({})),
            content("Wait."),
        ]
    );
    let granite = "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}, {\"name\": \"time\"}]";
    assert_eq!(
        parse(GRANITE, "", granite),
        [
            call("weather", json!({ "city": "Rome" })),
            call("time", json!({}))
        ]
    );
    // What is no call is text, with its marks.
    for text in [
        "<|tool_call_start|>[weather(city]<|tool_call_end|>",
        "<|tool_call>call:weather{city<tool_call|>",
        "<|tool_call|>nothing",
    ] {
        assert_eq!(parse(LFM, "", text), [content(text)]);
    }
}

#[test]
fn bare_and_fenced_json_of_an_offered_tool_is_a_call() {
    let object = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}";
    let weather = call("weather", json!({ "city": "Rome" }));
    for template in [THINK, GEMMA, LFM, HARMONY] {
        assert_eq!(parse(template, "", object), std::slice::from_ref(&weather));
    }
    let fenced = format!("```json\n{object}\n```");
    assert_eq!(parse(THINK, "", &fenced), std::slice::from_ref(&weather));
    assert_eq!(
        parse(THINK, "<think>", &format!("T</think>\nLook:\n{fenced}\n")),
        [reasoning("T"), content("Look:"), weather]
    );
    for text in [
        "{\"name\": \"other\"}",
        "{\"city\": \"Rome\"}",
        "```json\n{\"name\": \"other\"}\n```\n",
        "```json\n{\"city\": 1}\n```",
        "```python\nprint('x')\n```",
        "Say {\"name\": \"time\"}",
        "[1, 2]",
    ] {
        assert_eq!(parse(THINK, "", text), [content(text)]);
    }
}

#[test]
fn prompts_open_reasoning() {
    let format = |template| format(template).reasoning;
    for (template, end, opened) in [
        (THINK, "assistant\n<think>\n", "<think>"),
        (THINK, "assistant\n<think>\n\n</think>\n\n", ""),
        (GEMMA, "model\n<|channel>thought\n<channel|>", ""),
        (HARMONY, "<|end|><|start|>assistant", ""),
        (
            HARMONY,
            "<|start|>assistant<|channel|>analysis<|message|>",
            "<|channel|>analysis<|message|>",
        ),
        ("{{ x }}", "<think>", ""),
    ] {
        assert_eq!(format(template).opened(end), opened, "{end}");
    }
}

/// Parts of marks in any order, so that most texts are nearly right.
const FRAGMENTS: [&str; 16] = [
    "<think>",
    "</think>",
    "<response>",
    "</response>",
    "<|channel|>",
    "analysis",
    "final",
    "<|message|>",
    "<|end|>",
    "<|start|>assistant",
    " to=functions.time ",
    "<|channel>thought",
    "<channel|>",
    "<tool_call>{\"name\": \"time\"}</tool_call>",
    "{}",
    " \n",
];

proptest::proptest! {
    #[test]
    fn any_text_in_any_pieces_gives_the_same_parts(
        parts in proptest::collection::vec((0..FRAGMENTS.len(), "[a-z<|>/é]{0,3}"), 0..10),
    ) {
        let text: String = parts.iter().map(|(i, noise)| FRAGMENTS[*i].to_owned() + noise).collect();
        for template in [THINK, HARMONY, GEMMA, GRANITE] {
            parse(template, "", &text);
        }
    }
}

/// The templates of llama.cpp, in the folder that `KVARK_TEMPLATES` names.
#[test]
fn formats_of_others_templates_are_recognised() {
    let Some(folder) = std::env::var_os("KVARK_TEMPLATES") else {
        return;
    };
    let think = ReasoningFormat::of_template("<think>");
    for (name, reasoning, tools) in [
        ("Qwen-Qwen3-0.6B", think, ToolFormat::Tagged),
        ("Qwen3.5-4B", think, ToolFormat::Xml),
        (
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            think,
            ToolFormat::Xml,
        ),
        ("HuggingFaceTB-SmolLM3-3B", think, ToolFormat::Tagged),
        (
            "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            think,
            ToolFormat::Tagged,
        ),
        (
            "openai-gpt-oss-120b",
            ReasoningFormat::Harmony,
            ToolFormat::Harmony,
        ),
        (
            "google-gemma-4-31B-it",
            format(GEMMA).reasoning,
            ToolFormat::Gemma,
        ),
        ("LFM2-8B-A1B", ReasoningFormat::None, ToolFormat::Pythonic),
        ("LFM2.5-8B-A1B", think, ToolFormat::Pythonic),
        (
            "ibm-granite-granite-3.3-2B-Instruct",
            format(GRANITE).reasoning,
            ToolFormat::Granite,
        ),
        (
            "ibm-granite-granite-4.0",
            ReasoningFormat::None,
            ToolFormat::Tagged,
        ),
    ] {
        let path = std::path::Path::new(&folder).join(format!("{name}.jinja"));
        let found = format(&std::fs::read_to_string(path).unwrap());
        assert_eq!((found.reasoning, found.tools), (reasoning, tools), "{name}");
    }
}
