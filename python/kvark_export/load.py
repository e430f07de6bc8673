"""Loads Hugging Face folders and GGUF files as PyTorch models, with the sidecar files for the archive."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from .decoder import ExportError

#: Files of a Hugging Face folder that a conversation needs.
CARRIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def load(path: Path) -> tuple[PreTrainedModel, dict[str, str]]:
    """The model in fp32, and the extra files for its archive."""
    if path.is_dir():
        return load_folder(path)
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == b"GGUF":
            return load_gguf(path)
        raise ExportError(f"{path} is neither a Hugging Face folder nor a GGUF file")
    raise ExportError(f"{path} does not exist")


def load_folder(path: Path) -> tuple[PreTrainedModel, dict[str, str]]:
    """A folder as `save_pretrained` writes it."""
    if not (path / "config.json").is_file():
        raise ExportError(f"{path} has no config.json")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    extra = {f"kvark/{name}": (path / name).read_text("utf-8") for name in CARRIED if (path / name).is_file()}
    return model, extra


def load_gguf(path: Path) -> tuple[PreTrainedModel, dict[str, str]]:
    """A GGUF file, dequantised; its vocabulary is copied key by key, so that token ids do not change."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
    )
    config = model.config.to_diff_dict()
    vocabulary = {key: value for key, value in gguf_metadata(path).items() if key.startswith("tokenizer.")}
    return model, {
        "kvark/config.json": json.dumps(config, default=str),
        "kvark/tokenizer.ggml.json": json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")),
    }


def gguf_metadata(path: Path) -> dict:
    """The key-value section of a GGUF file."""
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with path.open("rb") as file:

        def number(code: str):
            (value,) = struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))
            return value

        def text() -> str:
            return file.read(number("Q")).decode("utf-8", "replace")

        def value(kind: int):
            if kind == 8:
                return text()
            if kind == 9:
                inner, count = number("I"), number("Q")
                if inner in scalars:
                    code = f"<{count}{scalars[inner]}"
                    return list(struct.unpack(code, file.read(struct.calcsize(code))))
                return [value(inner) for _ in range(count)]
            return number(scalars[kind])

        if file.read(4) != b"GGUF":
            raise ExportError(f"{path} is no GGUF file")
        number("I"), number("Q")
        return {text(): value(number("I")) for _ in range(number("Q"))}
