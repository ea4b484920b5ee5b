"""Into how many slices `lora_table` cuts the inner dimension of a product, so that few tiles fill a
large card too. Powers of two, because a kernel is compiled for each.
"""

from __future__ import annotations

_PROGRAMS = 264
"""Two for every multiprocessor of a large card."""

_MOST = 8
_LEAST_INSIDE = 256
"""Numbers of the inner dimension, below which a slice is not worth its sum."""

_STEADY_INSIDE = 1024
"""The same where the number of tiles must not matter: what few would gain, many would lose."""


def slices(programs: int, inside: int) -> int:
    """For so many programs without cuts and so long an inner dimension."""
    wanted = 1 << (-(-_PROGRAMS // programs) - 1).bit_length()
    allowed = 1 << (max(1, inside // _LEAST_INSIDE).bit_length() - 1)
    return min(_MOST, wanted, allowed)


def steady(inside: int) -> int:
    """The same for any number of programs."""
    return max(1, min(_MOST, inside // _STEADY_INSIDE))


def tile_counts(modules: int) -> list[int]:
    """Numbers of tiles of which each is cut in another way."""
    return [-(-_PROGRAMS // (cut * modules)) for cut in (1, 2, 4, _MOST)]
