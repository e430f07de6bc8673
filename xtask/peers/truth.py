"""Log-probabilities of given tokens by transformers in float32 and by llama.cpp, from the same GGUF file.

    truth.py MODEL.gguf THREADS

Prints one JSON object: versions, and for every text its set, its ids, and two lists of natural log-probabilities of
all ids but the first.
"""

import json
import os
import sys

# The model is a file; nothing may be looked up elsewhere.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import llama

HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXT = 2048


def texts():
    with open(os.path.join(HERE, "prompts.json"), encoding="utf-8") as file:
        for text in json.load(file):
            yield "short", text
    with open(os.path.join(HERE, "prose.txt"), encoding="utf-8") as file:
        yield "long", file.read()


@torch.inference_mode()
def truth(model, ids):
    logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    targets = ids[1:]
    found = []
    # In parts, because a softmax over a large vocabulary copies its input.
    for start in range(0, len(targets), 128):
        part = torch.tensor(targets[start : start + 128])
        rows = logits[start : start + len(part)].double().log_softmax(-1)
        found += rows[torch.arange(len(part)), part].tolist()
    return found


def main():
    path, threads = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.dirname(path), gguf_file=os.path.basename(path), dtype=torch.float32
    ).eval()
    peer = llama.Llama(path, CONTEXT, threads)
    rows = []
    for name, text in texts():
        ids = peer.tokenize(text)
        rows.append({"set": name, "ids": ids, "truth": truth(model, ids), "llama": peer.log_probs(ids)})
    print(
        json.dumps(
            {
                "versions": [
                    llama.version(),
                    f"transformers {transformers.__version__}",
                    f"torch {torch.__version__}",
                ],
                "texts": rows,
            }
        )
    )


main()
