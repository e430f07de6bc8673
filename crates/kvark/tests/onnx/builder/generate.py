"""Makes folders of ONNX Runtime GenAI with its own builder, from tiny random models of transformers, and records their logits.

    pip install -r requirements.txt
    python generate.py            # the two that are checked in, into this folder
    python generate.py --full DIR # all architectures, into DIR

Each folder has an expected.json: token ids and ONNX Runtime's logits of every token, which are those of
transformers too. Where ONNX Runtime cannot be fed without a cache of a window's size, they are those of transformers.
"""

import argparse
import json
import pathlib
import shutil
import tempfile

import numpy as np
import onnxruntime as ort
import torch
import transformers as tf
from onnxruntime_genai.models.builder import create_model, parse_extra_options

# The vocabulary differs from the width: the builder tells the axes of its matrix apart by their sizes.
SMALL = dict(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=32,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
PHI = dict(hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_key_value_heads=2)
IDS = [3, 14, 15, 9, 26, 5, 30, 5, 8, 9, 7, 9]

CONFIGS = {
    "llama": tf.LlamaConfig(**SMALL),
    "mistral": tf.MistralConfig(**SMALL, head_dim=16, sliding_window=None),
    "qwen2": tf.Qwen2Config(**SMALL),
    # A head is wider than its part of the model's width.
    "qwen3": tf.Qwen3Config(**SMALL, head_dim=32),
    "smollm3": tf.SmolLM3Config(**SMALL),
    # Half of each head is rotated, and attention and feed-forward layers are parallel.
    "phi": tf.PhiConfig(**(SMALL | PHI), partial_rotary_factor=0.5),
    "gemma2": tf.Gemma2Config(**SMALL, head_dim=16, sliding_window=5),
}
CHECKED_IN = ["phi", "qwen3"]


def source(config, folder):
    """A random model and a tokenizer, as Hugging Face stores them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(1)
    model = tf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            # The default is so small that logits are nearly equal.
            weight.copy_(weight * 5 if weight.dim() > 1 else weight + 0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{at}": at for at in range(3, config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return model


def build(hugging_face, folder):
    """Runs the builder of ONNX Runtime GenAI."""
    with tempfile.TemporaryDirectory() as cache:
        arguments = [None, str(hugging_face), str(folder), "fp32", "cpu", cache]
        options = parse_extra_options(*arguments, [])
        create_model(*arguments, **options)
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]:
        (folder / name).unlink(missing_ok=True)


def logits(folder):
    """ONNX Runtime's logits of all tokens, fed at once; `None` where it wants a cache with room for the window."""
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    decoder = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    if "sliding_window" in decoder:
        return None
    feed = {}
    for port in session.get_inputs():
        if port.name.startswith("past_key_values"):
            assert port.shape[3] == "kv_cache_dim"
            feed[port.name] = np.zeros((1, port.shape[1], 0, decoder["head_size"]), np.float32)
        else:
            feed[port.name] = {
                "input_ids": np.array([IDS]),
                "attention_mask": np.ones((1, len(IDS)), np.int64),
                "position_ids": np.arange(len(IDS))[None],
            }[port.name]
    return session.run(["logits"], feed)[0][0]


def make(name, folder):
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as hugging_face:
        model = source(CONFIGS[name], hugging_face)
        build(hugging_face, folder)
    with torch.no_grad():
        truth = model(torch.tensor([IDS])).logits[0].numpy()
    found = logits(folder)
    if found is not None:
        difference = np.abs(found - truth).max()
        print(f"{name}: ONNX Runtime and transformers differ by {difference:.1e}, logits by {truth.std():.2f}")
        assert difference < 2e-3
    rows = [[round(float(x), 6) for x in row] for row in (truth if found is None else found)]
    expected = dict(ids=IDS, tolerance=2e-3 if found is None else 1e-4, logits=rows)
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=pathlib.Path, metavar="DIR")
    arguments = parser.parse_args()
    parent = arguments.full or pathlib.Path(__file__).parent
    for name in CONFIGS if arguments.full else CHECKED_IN:
        make(name, parent / name)


if __name__ == "__main__":
    main()
