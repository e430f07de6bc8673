"""`Model`: the class of the extension module, with what is better written in Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from . import _kvark
from ._aio import iterate
from .views import MemoryPlan


class Model(_kvark.Model):
    """A language model with its tokenizer and chat template.

    `path_or_name` is a path (`.gguf`, `.pt2`, `.onnx`, or a folder with `genai_config.json`), a name of the catalogue,
    `hf:OWNER/REPO[:QUANT]`, `ollama:NAME`, an https address, or nothing for the default model. The other arguments:

    context: the largest number of tokens of a sequence; the model's own without it
    threads: of the CPU; one for each core without it
    kv_policy: rules for single layers, such as "layers 0-3 f16; others q8", or for the whole cache, such as "stream window 4096", or a TOML file of them
    cache_type_k, cache_type_v: how keys and values are stored: "f32", "f16", "bf16", "f8_e4m3", "q8", "q4" and others
    state_type: how the states of recurrent layers are stored: "f32", or "f16" in half the memory
    device: "cpu" or "cuda"
    memory_limit: in bytes; the free memory of the machine without it
    expert_budget: bytes of the experts of a mixture of experts that are held in memory; all, or as many as `memory_limit` allows
    slots: requests that run at once
    run_mode: "none", "piecewise", "full", "full_decode_only" or "full_and_piecewise"
    precision: "high", "balanced" or "fast": how exactly quantised weights are multiplied
    draft: a smaller model or an Eagle3 head, for `speculation`
    progress: called with the stage, the bytes done and all bytes of a download
    """

    def plan(self, *, sequences: int = 1) -> MemoryPlan:
        """The memory of a session, computed before it is made."""
        return MemoryPlan(self.memory_plan(sequences=sequences))

    async def agenerate(self, prompt: str | list[int], **options: Any) -> AsyncIterator[str]:
        """`generate` for asyncio programs."""
        async for piece in iterate(self.generate(prompt, **options)):
            yield piece

    async def achat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> AsyncIterator[str]:
        """`chat` for asyncio programs: the pieces of the answer."""
        async for piece in iterate(self.chat(messages, stream=True, **options)):
            yield piece
