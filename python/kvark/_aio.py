"""Generations in asyncio programs."""

import asyncio
from collections.abc import AsyncIterator

from ._kvark import Generation

def _next(generation: Generation) -> str | None:
    return next(generation, None)


async def iterate(generation: Generation) -> AsyncIterator[str]:
    """The pieces of a generation, without blocking the event loop. Leaving the loop early cancels the generation."""
    loop = asyncio.get_running_loop()
    try:
        while (piece := await loop.run_in_executor(None, _next, generation)) is not None:
            yield piece
    finally:
        generation.cancel()
