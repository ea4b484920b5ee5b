"""Draws curves to a PNG with nothing but the standard library.

Knows pixels and axes; knows nothing of training. A title, a legend and labelled axes, written in a
small built-in font, let a picture be read without the script that made it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 44, 46
PAPER = (255, 255, 255)
GRID = (225, 228, 232)
INK = (90, 96, 104)
COLOURS = ((31, 111, 235), (218, 54, 51), (26, 127, 55), (154, 103, 0), (130, 80, 223))
TICKS = 5

# Each glyph is five rows of three pixels, written as octal digits.
GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711",
    "5": "74717", "6": "74757", "7": "71222", "8": "75757", "9": "75717",
    ".": "00002", "-": "00700", "e": "07746", "+": "02720", "/": "11244", ":": "02020",
    "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644",
    "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447",
    "M": "57755", "N": "65555", "O": "25552", "P": "65644", "Q": "25563", "R": "65655",
    "S": "34216", "T": "72222", "U": "55557", "V": "55552", "W": "55775", "X": "55255",
    "Y": "55222", "Z": "71247",
}  # fmt: skip

Colour = tuple[int, int, int]


def draw(path: Path | str, series: Mapping[str, Sequence[float]], across: str = "step") -> Path:
    """Write one line per entry of `series` against its index, which counts `across`. The title is
    the file's name. Returns the path, for printing."""
    target = Path(path)
    values = [value for line in series.values() for value in line]
    if not values:
        raise ValueError("draw needs at least one number; every series given is empty")
    longest = max(len(line) for line in series.values())
    canvas = _Canvas(_Scale(min(values), max(values), longest))
    canvas.title(target.stem, across)
    canvas.axes()
    canvas.legend(list(series))
    for index, line in enumerate(series.values()):
        canvas.line(line, COLOURS[index % len(COLOURS)])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_png(canvas.rows))
    return target


class _Scale:
    """Maps (index, value) to pixels."""

    def __init__(self, low: float, high: float, count: int) -> None:
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        self.low, self.high = low - margin, high + margin
        self.last = max(1, count - 1)

    def x(self, index: float) -> int:
        return LEFT + round(index / self.last * (WIDTH - LEFT - RIGHT - 1))

    def y(self, value: float) -> int:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - 1 - round(share * (HEIGHT - TOP - BOTTOM - 1))


class _Canvas:
    def __init__(self, scale: _Scale) -> None:
        self.scale = scale
        self.rows = [bytearray(bytes(PAPER) * WIDTH) for _ in range(HEIGHT)]

    def dot(self, x: int, y: int, colour: Colour) -> None:
        if 0 <= x < WIDTH and 0 <= y < HEIGHT:
            self.rows[y][3 * x : 3 * x + 3] = bytes(colour)

    def title(self, title: str, across: str) -> None:
        middle = (LEFT + WIDTH - RIGHT) // 2
        self._text(title.replace("_", " ").upper(), middle, 8)
        self._text(across.upper(), middle, HEIGHT - 18)

    def legend(self, names: Sequence[str]) -> None:
        left = LEFT
        for index, name in enumerate(names):
            for x in range(left, left + 12):
                for y in range(28, 32):
                    self.dot(x, y, COLOURS[index % len(COLOURS)])
            label = name.replace("_", " ").upper()
            self._text(label, left + 18 + 4 * len(label), 25)
            left += 36 + 8 * len(label)

    def axes(self) -> None:
        for tick in range(TICKS):
            share = tick / (TICKS - 1)
            value = self.scale.low + share * (self.scale.high - self.scale.low)
            self._horizontal(self.scale.y(value), f"{value:.3g}")
            index = round(share * self.scale.last)
            self._text(f"{index}", self.scale.x(index), HEIGHT - BOTTOM + 10)

    def _horizontal(self, y: int, label: str) -> None:
        for x in range(LEFT, WIDTH - RIGHT):
            self.dot(x, y, GRID)
        self._text(label, LEFT - 8 * len(label) // 2 - 8, y - 5)

    def line(self, values: Sequence[float], colour: Colour) -> None:
        points = [(self.scale.x(i), self.scale.y(value)) for i, value in enumerate(values)]
        for start, end in zip(points, points[1:] or points, strict=False):
            self._stroke(start, end, colour)

    def _stroke(self, start: tuple[int, int], end: tuple[int, int], colour: Colour) -> None:
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(steps + 1):
            x = start[0] + (end[0] - start[0]) * step // steps
            y = start[1] + (end[1] - start[1]) * step // steps
            for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
                self.dot(x + dx, y + dy, colour)

    def _text(self, text: str, centre: int, top: int) -> None:
        left = centre - 4 * len(text)
        for offset, character in enumerate(text):
            self._glyph(GLYPHS.get(character, "00000"), left + 8 * offset, top)

    def _glyph(self, rows: str, left: int, top: int) -> None:
        lit = ((x, y) for y, row in enumerate(rows) for x in range(3) if int(row, 8) >> (2 - x) & 1)
        for x, y in lit:
            for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
                self.dot(left + 2 * x + dx, top + 2 * y + dy, INK)


def _png(rows: Sequence[bytearray]) -> bytes:
    """An eight-bit RGB PNG; every scan line is stored with filter type 0."""
    header = struct.pack(">IIBBBBB", WIDTH, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
