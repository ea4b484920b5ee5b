"""Figures as files: SVG of our own making, PNG by matplotlib where it is installed.

A figure is panels under each other, one per metric, with a line per run: through the means, over a
band from lowest to highest. Knows nothing of servers.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tinkex.cli.errors import CliError
from tinkex.cli.terminal.charts import Curve, number
from tinkex.cli.terminal.tables import printable

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d31")
"""Told apart by those who see fewer colours, too (Okabe and Ito)."""
_WIDTH, _PANEL, _TOP = 900, 280, 48
_LEFT, _RIGHT, _BELOW = 84, 24, 56


@dataclass(frozen=True)
class Line:
    name: str
    curve: Curve


@dataclass(frozen=True)
class Panel:
    """One metric, with a line for each run."""

    metric: str
    lines: list[Line]


@dataclass(frozen=True)
class Figure:
    title: str
    x_text: str
    panels: list[Panel]
    log: bool = False
    points: int = 0


# ---- SVG


def svg(figure: Figure) -> bytes:
    return "\n".join(_svg(figure)).encode()


def _svg(figure: Figure) -> Iterator[str]:
    height = _TOP + _PANEL * len(figure.panels) + 12
    title = _text(figure.title)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    yield f"<title>{title}</title>"
    yield f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
    yield f'<text x="{_LEFT}" y="28" font-size="16" font-weight="600">{title}</text>'
    for place, panel in enumerate(figure.panels):
        yield from _svg_panel(panel, figure, _TOP + place * _PANEL)
    yield "</svg>"


def _svg_panel(panel: Panel, figure: Figure, top: int) -> Iterator[str]:
    curves = [line.curve for line in panel.lines if len(line.curve.x)]
    if not curves:
        return
    x = _Axis.over([value for curve in curves for value in curve.x], _LEFT, _WIDTH - _RIGHT)
    values = [value for curve in curves for value in (*curve.low, *curve.high)]
    bottom = top + _PANEL - _BELOW
    y = _Axis.over(values, bottom, top + 8, log=figure.log)
    for at in y.ticks():
        place = y.place(at)
        yield f'<path d="M{_LEFT} {place:.1f}H{_WIDTH - _RIGHT}" stroke="#e5e5e5"/>'
        yield (
            f'<text x="{_LEFT - 8}" y="{place + 4:.1f}" text-anchor="end" fill="#444">'
            f"{number(at)}</text>"
        )
    for at in x.ticks():
        yield (
            f'<text x="{x.place(at):.1f}" y="{bottom + 18}" text-anchor="middle" fill="#444">'
            f"{number(at)}</text>"
        )
    yield f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" stroke="#888"/>'
    yield (
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{bottom + 36}" text-anchor="middle">'
        f"{_text(figure.x_text)}</text>"
    )
    yield (
        f'<text transform="translate(18 {(top + bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{_text(panel.metric)}</text>'
    )
    for place, line in enumerate(panel.lines):
        yield from _svg_line(line, x, y, COLOURS[place % len(COLOURS)])
    yield from _svg_legend(panel, top)


def _svg_line(line: Line, x: _Axis, y: _Axis, colour: str) -> Iterator[str]:
    curve = line.curve
    kept = [i for i in range(len(curve.x)) if y.has(curve.low[i]) and y.has(curve.mean[i])]
    if not kept:
        return
    across = [f"{x.place(curve.x[i]):.1f}" for i in kept]
    if any(curve.low[i] != curve.high[i] for i in kept):
        upper = [f"{a},{y.place(curve.high[i]):.1f}" for a, i in zip(across, kept, strict=True)]
        lower = [f"{a},{y.place(curve.low[i]):.1f}" for a, i in zip(across, kept, strict=True)]
        band = " ".join([*upper, *reversed(lower)])
        yield f'<polygon points="{band}" fill="{colour}" opacity="0.2"/>'
    points = " ".join(
        f"{a},{y.place(curve.mean[i]):.1f}" for a, i in zip(across, kept, strict=True)
    )
    yield (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5" '
        'stroke-linejoin="round"/>'
    )


def _svg_legend(panel: Panel, top: int) -> Iterator[str]:
    for place, line in enumerate(panel.lines):
        y = top + 22 + 16 * place
        colour = COLOURS[place % len(COLOURS)]
        yield f'<path d="M{_WIDTH - 190} {y - 4}h18" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{_WIDTH - 166}" y="{y}">{_text(line.name[:24])}</text>'


def _text(text: str) -> str:
    """Text of others as it may stand in XML."""
    return escape(printable(text))


@dataclass(frozen=True)
class _Axis:
    """Values as places along a side of a panel."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @staticmethod
    def over(values: Sequence[float], start: float, end: float, *, log: bool = False) -> _Axis:
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(finite), max(finite)) if finite else (1.0, 10.0)
        if low == high:
            around = abs(low) / 2 or 0.5
            low, high = (low / 2, high * 2) if log else (low - around, high + around)
        return _Axis(low, high, start, end, log)

    def has(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)

    def place(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        found = math.log(max(value, 1e-300)) if self.log else value
        return self.start + (found - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About five round numbers within."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            every = max(1, (last - first) // 5)
            tens = [10.0**power for power in range(first, last + 1, every)]
            inside = [value for value in tens if self.low <= value <= self.high]
            return inside or [self.low, self.high]
        rough = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough)
        first = math.ceil(self.low / step)
        count = int((self.high - first * step) / step + 1e-9) + 1
        return [(first + place) * step for place in range(count)]


# ---- PNG


def png(figure: Figure) -> bytes:
    """By matplotlib: the extra `plot`."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise CliError(
            "A .png is drawn by matplotlib, which is not installed",
            next_step="Next: pip install 'tinkex[plot]', or choose a name that ends in .svg",
        ) from error
    count = len(figure.panels)
    canvas = Canvas(figsize=(9, 2.8 * count + 0.6), layout="constrained", dpi=150)
    canvas.suptitle(_literal(figure.title))
    for axes, panel in zip(canvas.subplots(count, squeeze=False)[:, 0], figure.panels, strict=True):
        for place, line in enumerate(panel.lines):
            colour, curve = COLOURS[place % len(COLOURS)], line.curve
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(curve.x, curve.mean, color=colour, label=_literal(line.name), linewidth=1.5)
        scale = "log" if figure.log else "linear"
        axes.set(xlabel=figure.x_text, ylabel=_literal(panel.metric), yscale=scale)
        axes.legend()
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a sign its font lacks is drawn as a box
        canvas.savefig(picture, format="png")
    return picture.getvalue()


def _literal(text: str) -> str:
    """Text of others as it is: matplotlib reads what stands between dollars as a formula."""
    return printable(text).replace("$", r"\$")
