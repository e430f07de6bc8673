"""Writes cases.json: conversations, and what Hugging Face's own renderer makes of them with each template.

Needs `transformers` and `jinja2`. Run it in this folder after changing a template or a conversation.
"""

import json
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = Path(__file__).parent
USER = {"role": "user", "content": " Hello, <who> are you? "}
REPLY = {"role": "assistant", "content": "I'm a 🦙.\n"}
SYSTEM = {"role": "system", "content": "Be brief.\n"}
MORE = {"role": "user", "content": "Good & bye"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": "int", "b": ["ü", 1.5, None]}}}]
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": True}}}]}
ANSWER = {"role": "tool", "content": {"sum": 2}}
PICTURE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what? "}]}

CONVERSATIONS = [
    ([USER], True, {}),
    ([USER, REPLY, MORE], True, {}),
    ([SYSTEM, USER, REPLY], False, {}),
    ([SYSTEM, USER, REPLY, MORE, THOUGHT], False, {}),
    ([USER, USER], True, {}),
    ([REPLY], True, {}),
]
OWN = {
    "llama3": [([USER, CALL, ANSWER], True, {"tools": TOOLS}), ([USER, CALL | {"tool_calls": []}], True, {})],
    "qwen": [([USER, THOUGHT], True, {"tools": TOOLS, "enable_thinking": False})],
    "gemma": [([PICTURE], True, {}), ([{"role": "user", "content": 3}], True, {})],
}


def run(source, messages, add_generation_prompt, variables):
    given = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>"} | variables
    template = _compile_jinja_template(source)
    try:
        text = template.render(messages=messages, add_generation_prompt=add_generation_prompt, **given)
        return {"text": text}
    except jinja2.TemplateError as error:
        return {"raised": str(error)}


cases = []
for path in sorted((HERE / "templates").glob("*.jinja")):
    for messages, prompt, variables in CONVERSATIONS + OWN.get(path.stem, []):
        case = {"template": path.stem, "messages": messages, "add_generation_prompt": prompt, "variables": variables}
        cases.append(case | {"want": run(path.read_text(), messages, prompt, variables)})
(HERE / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
