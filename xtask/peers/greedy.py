"""What PyTorch says next, in float32 and always the most likely token.

    greedy.py MODEL N TOKENS.json

MODEL is what kvark_export takes; PYTHONPATH must have it. Writes {"texts": [{"prompt": [ids], "greedy": [N ids]}]} for the
first 16 tokens of every text in prompts.json.
"""

import json
import os
import sys
from pathlib import Path

# The model is a file; nothing may be looked up elsewhere.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from kvark_export.load import load

PROMPT = 16


@torch.inference_mode()
def greedy(model, prompt, count):
    found, past, ids = [], None, torch.tensor([prompt])
    for _ in range(count):
        output = model(input_ids=ids, past_key_values=past, use_cache=True)
        past, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
        found.append(ids.item())
    return found


def tokenizer(path):
    if path.is_dir():
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)


def main():
    path, count, output = Path(sys.argv[1]).resolve(), int(sys.argv[2]), Path(sys.argv[3])
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model, _ = load(path)
    encode = tokenizer(path)
    texts = json.loads((Path(__file__).parent / "prompts.json").read_text("utf-8"))
    rows = []
    for text in texts:
        prompt = encode(text)["input_ids"][:PROMPT]
        rows.append({"prompt": prompt, "greedy": greedy(model.eval(), prompt, count)})
    output.write_text(json.dumps({"texts": rows}))


if __name__ == "__main__":
    main()
