"""Plans and cell maps as notebooks show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from ._kvark import Branch, Branches

_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]


def size_text(size: float) -> str:
    """A number of bytes with a unit."""
    unit = 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size /= 1024
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


class MemoryPlan(Mapping[str, Any]):
    """The memory of a session by part, in bytes. A notebook shows it as a table with bars."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts

    def __getitem__(self, key: str) -> Any:
        return self._parts[key]

    def __iter__(self) -> Any:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def _rows(self) -> list[tuple[str, int]]:
        names = [name for name in self._parts if name.endswith("_bytes")]
        return [(name.removesuffix("_bytes"), self._parts[name]) for name in names]

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {size_text(size)}" for name, size in self._rows())
        return f"MemoryPlan(context {self._parts['context']}: {rows})"

    def _repr_html_(self) -> str:
        total = max(1, self._parts["total_bytes"])
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td style='text-align:right'>{size_text(size)}</td>"
            f"<td style='width:16em'><div style='background:#4a7;height:.8em;width:{100 * size / total:.1f}%'></div></td></tr>"
            for name, size in self._rows()
        )
        return f"<table><caption>context of {self._parts['context']} tokens</caption>{rows}</table>"


class CellMap:
    """Which branch holds which cell. `array` has a row a branch: the position of the cell's token, or -1."""

    def __init__(self, branches: Branches, of: Sequence[Branch]) -> None:
        self.array: npt.NDArray[np.int32] = branches.cell_map(list(of))
        self.capacity = branches.capacity

    @property
    def shared(self) -> npt.NDArray[np.int64]:
        """The number of the branches that hold each cell."""
        return np.asarray((self.array >= 0).sum(axis=0), dtype=np.int64)

    def __repr__(self) -> str:
        held = self.shared
        return f"CellMap({(held > 0).sum()} of {self.capacity} cells, {(held > 1).sum()} shared)"

    def _repr_html_(self) -> str:
        rows, cells = self.array.shape
        side, columns = 8, 96
        held = self.shared
        squares = []
        for cell in range(cells):
            owners = np.flatnonzero(self.array[:, cell] >= 0)
            color = "#ddd" if len(owners) == 0 else f"hsl({owners[0] * 137.5 % 360:.0f} 60% 50%)"
            position = self.array[owners[0], cell] if len(owners) else None
            title = "hole" if position is None else f"cell {cell}: position {position}, branches {list(map(int, owners))}"
            border = " stroke='#000'" if held[cell] > 1 else ""
            x, y = cell % columns * side, cell // columns * side
            squares.append(
                f"<rect x='{x}' y='{y}' width='{side - 1}' height='{side - 1}' fill='{color}'{border}>"
                f"<title>{escape(title)}</title></rect>"
            )
        height = (cells + columns - 1) // columns * side
        text = f"{escape(repr(self))}, {rows} branches; outlined cells are shared"
        return f"<div>{text}</div><svg width='{columns * side}' height='{height}'>{''.join(squares)}</svg>"
