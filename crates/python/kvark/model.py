"""`Model`: the class of the extension module, with what is better written in Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from . import _kvark
from ._aio import iterate
from .views import MemoryPlan


class Model(_kvark.Model):
    """A language model with its tokenizer and chat template.

    `path_or_name` is a path (`.gguf`, `.pt2`, `.onnx`, or a folder with `genai_config.json`), a name of the catalogue,
    `hf:OWNER/REPO[:QUANT]`, `ollama:NAME`, an https address, or nothing for the default model.
    """

    def plan(self, *, sequences: int = 1) -> MemoryPlan:
        """The memory of a session, computed before it is made."""
        return MemoryPlan(self.memory_plan(sequences=sequences))

    async def agenerate(self, prompt: str | list[int], **options: Any) -> AsyncIterator[str]:
        """`generate` for asyncio programs."""
        async for piece in iterate(self.generate(prompt, **options)):
            yield piece

    async def achat(self, messages: str | list[dict[str, str]], **options: Any) -> AsyncIterator[str]:
        """`chat` for asyncio programs: the pieces of the answer."""
        async for piece in iterate(self.chat(messages, stream=True, **options)):
            yield piece
