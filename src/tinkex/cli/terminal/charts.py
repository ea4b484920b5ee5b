"""Curves in a terminal: sparklines of eighth blocks, and charts of braille dots with axes.

Numbers in, text out; knows no terminal. `plain` draws with letters that every terminal has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS = "_.-=+*#@"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille cell, from the top, left and right."""
_BRAILLE = 0x2800


def spark(values: Sequence[float], width: int, *, plain: bool = False) -> str:
    """A curve in one line, at most `width` wide; its own minimum at the bottom."""
    blocks = _PLAIN_BLOCKS if plain else _BLOCKS
    points = _thinned([value for value in values if math.isfinite(value)], width)
    if not points:
        return ""
    low, span = min(points), (max(points) - min(points)) or 1.0
    return "".join(blocks[min(7, int((value - low) / span * 8))] for value in points)


def _thinned(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    parts = (values[a:b] for a, b in itertools.pairwise(edges))
    return [sum(part) / len(part) for part in parts]


@dataclass(frozen=True)
class Curve:
    """Points along x, each with the lowest and highest value it stands for."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    mean: Sequence[float]


@dataclass
class _Canvas:
    """Dots in cells of two by four, counted from the lower left corner."""

    columns: int
    rows: int
    cells: dict[tuple[int, int], int] = field(default_factory=dict)

    def dot(self, x: int, y: int) -> None:
        row, column = self.rows - 1 - y // 4, x // 2
        bit = _DOTS[3 - y % 4][x % 2]
        self.cells[row, column] = self.cells.get((row, column), 0) | bit

    def lines(self, *, plain: bool) -> list[str]:
        def cell(row: int, column: int) -> str:
            bits = self.cells.get((row, column), 0)
            if plain:
                return "*" if bits else " "
            return chr(_BRAILLE + bits) if bits else " "

        return [
            "".join(cell(row, column) for column in range(self.columns)) for row in range(self.rows)
        ]


def chart(
    curve: Curve,
    width: int,
    height: int,
    *,
    log: bool = False,
    plain: bool = False,
    x_text: str = "step",
) -> list[str]:
    """A curve with its axes in `height` lines of at most `width`: from lowest to highest of each
    point, and a line through the means."""
    rows = max(1, height - 2)
    scale = _Scale.over([*curve.low, *curve.high], log)
    labels = [number(scale.value(place)) for place in (1.0, 0.5, 0.0)]
    margin = max(map(len, labels)) + 1
    canvas = _Canvas(max(2, width - margin - 1), rows)
    _draw(canvas, curve, scale)
    shown = {0: labels[0], rows - 1: labels[2], **({rows // 2: labels[1]} if rows > 4 else {})}
    edge = "|" if plain else "┤"
    body = [
        f"{shown.get(row, ''):>{margin}}{edge}{line}".rstrip()
        for row, line in enumerate(canvas.lines(plain=plain))
    ]
    first, last = number(curve.x[0]), number(curve.x[-1])
    room = canvas.columns - len(first) - len(last)
    corner = "+" if plain else "└"
    rule = ("-" if plain else "─") * canvas.columns
    middle = x_text.center(room) if room > len(x_text) else " " * max(1, room)
    return [
        *body,
        f"{'':>{margin}}{corner}{rule}",
        f"{'':>{margin}} {first}{middle}{last}".rstrip(),
    ]


@dataclass(frozen=True)
class _Scale:
    """Values as places from 0 to 1, and back."""

    low: float
    high: float
    log: bool

    @staticmethod
    def over(values: Iterable[float], log: bool) -> _Scale:
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        if log:
            low, high = math.log(low if low > 0 else 1.0), math.log(high if high > 0 else 1.0)
        if high == low:
            around = 0.5 if log else abs(low) / 2 or 0.5
            low, high = low - around, high + around
        return _Scale(low, high, log)

    def place(self, value: float) -> float | None:
        if not math.isfinite(value) or (self.log and value <= 0):
            return None
        found = math.log(value) if self.log else value
        return min(1.0, max(0.0, (found - self.low) / (self.high - self.low)))

    def value(self, place: float) -> float:
        found = self.low + place * (self.high - self.low)
        return math.exp(found) if self.log else found


def _draw(canvas: _Canvas, curve: Curve, scale: _Scale) -> None:
    wide, tall = 2 * canvas.columns - 1, 4 * canvas.rows - 1
    start, span = curve.x[0], (curve.x[-1] - curve.x[0]) or 1.0
    before: tuple[int, int] | None = None
    for x, low, high, mean in zip(curve.x, curve.low, curve.high, curve.mean, strict=True):
        column = round((x - start) / span * wide)
        places = [scale.place(value) for value in (low, mean, high)]
        if places[0] is None or places[1] is None or places[2] is None:
            before = None
            continue
        bottom, middle, top = (round(place * tall) for place in places if place is not None)
        for y in range(bottom, top + 1):
            canvas.dot(column, y)
        if before is not None:
            _join(canvas, before, (column, middle))
        before = column, middle


def _join(canvas: _Canvas, start: tuple[int, int], end: tuple[int, int]) -> None:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        part = step / steps
        canvas.dot(
            round(start[0] + part * (end[0] - start[0])),
            round(start[1] + part * (end[1] - start[1])),
        )


def number(value: float) -> str:
    """A number in few letters: `0.0123`, `1.5e-05`, `12,000`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000 and value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
