"""The examples' PNG writer draws what it is told, in files that other programs read."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from support.documents import ROOT


@pytest.fixture
def curve(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import curve as module

    monkeypatch.delitem(sys.modules, "curve")
    return module


def test_a_curve_is_a_valid_png_of_the_stated_size(curve: ModuleType, tmp_path: Path) -> None:
    data = curve.draw(tmp_path / "deep" / "loss.png", {"loss": [3.0, 2.0, 1.5]}).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (curve.WIDTH, curve.HEIGHT)
    assert len(_pixels(data)) == height * (1 + 3 * width)


def test_a_picture_says_what_it_shows(
    curve: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(curve._Canvas, "_text", lambda _self, text, *_place: written.append(text))
    curve.draw(
        tmp_path / "two_tenants.png", {"ada": [1.0, 0.5], "bob": [2.0, 1.0]}, across="second"
    )
    assert {"TWO TENANTS", "SECOND", "ADA", "BOB"} <= set(written)
    assert set("".join(written)) - {" "} <= set(curve.GLYPHS)


def test_pillow_reads_it(curve: ModuleType, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    with image.open(curve.draw(tmp_path / "c.png", {"a": [0.0, 1.0], "b": [1.0, 0.0]})) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors()}
    assert {curve.COLOURS[0], curve.COLOURS[1], curve.PAPER, curve.INK} <= colours


def test_a_falling_line_falls(curve: ModuleType, tmp_path: Path) -> None:
    data = curve.draw(tmp_path / "c.png", {"loss": [2.0, 1.0, 0.0]}).read_bytes()
    rows = _rows(_pixels(data), curve.WIDTH)
    heights = [_first_row_with(rows, x, curve.COLOURS[0]) for x in (100, 300, 600)]
    assert heights == sorted(heights)
    assert len(set(heights)) == 3


def test_flat_and_single_values_are_drawn(curve: ModuleType, tmp_path: Path) -> None:
    curve.draw(tmp_path / "flat.png", {"x": [1.0, 1.0]})
    curve.draw(tmp_path / "zero.png", {"x": [0.0]})


def test_nothing_to_draw_is_said(curve: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one number"):
        curve.draw(tmp_path / "none.png", {"loss": []})


def _pixels(data: bytes) -> bytes:
    start = data.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", data[start - 8 : start - 4])
    return zlib.decompress(data[start : start + length])


def _rows(pixels: bytes, width: int) -> list[bytes]:
    size = 1 + 3 * width
    return [pixels[at + 1 : at + size] for at in range(0, len(pixels), size)]


def _first_row_with(rows: list[bytes], x: int, colour: tuple[int, int, int]) -> int:
    return next(y for y, row in enumerate(rows) if row[3 * x : 3 * x + 3] == bytes(colour))
