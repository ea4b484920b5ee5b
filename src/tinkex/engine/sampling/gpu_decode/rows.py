"""What one decode step needs to know of its rows, laid out for one upload.

A row is one branch that gets its next token. What changes with every step is filled in for all rows
at once; what belongs to the branch, its pages above all, only when a row changes hands or its
branch got another page. Rows beyond the branches are padding: they write to the scratch page and
see one token of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.kernels.row_adapters import SEGMENT
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE
from tinkex.engine.sampling.draw import draw_keys
from tinkex.engine.sampling.projection import Span
from tinkex.engine.sampling.request import Branch

TOKENS, POSITIONS, PLACES, KEYS, HEAT, MASKED, SEGMENTS = 0, 1, 2, 3, 5, 6, 7
OWNERS, STATES = 10, 11
"""Rows of the uploaded numbers; keys take two, segments three. Owners are one more than an
adapter's place, 0 for none, and states the places of what recurrent layers keep."""

_NUMBERS = 12


class DecodeRows:
    """Rows of a step, on the host and, after `upload`, on the device."""

    def __init__(self, rows: int, pages: int, vocab: int, device: torch.device) -> None:
        self.numbers = torch.zeros(_NUMBERS, rows, dtype=torch.int32, device=device)
        self.table = torch.zeros(pages, rows, dtype=torch.int32, device=device)
        # Two, taken in turn: the upload of the step before may still be under way.
        self._staged = [
            torch.zeros(_NUMBERS, rows, dtype=torch.int32, pin_memory=True) for _ in range(2)
        ]
        words = (vocab + 31) // 32
        self.masks = torch.zeros(rows, words, dtype=torch.int32, device=device)
        self._staged_masks = torch.zeros(rows, words, dtype=torch.int32, pin_memory=True)
        self._staged_table = torch.zeros(pages, rows, dtype=torch.int32, pin_memory=True)
        self._pages: NDArray[np.int32] = self._staged_table.numpy()
        self._branches: list[Branch | None] = [None] * rows
        self._lists: list[list[int] | None] = [None] * rows
        self._counts = [0] * rows
        self._states = np.zeros(rows, np.uint64)
        self._heat = np.zeros(rows, np.float32)
        self._masked = np.zeros(rows, np.int32)
        self._stale = 0

    def fill(
        self, branches: Sequence[Branch], spans: Sequence[Span], at: Sequence[int], ahead: int,
        states: Sequence[int] = (), scratch: int = 0,
    ) -> None:  # fmt: skip
        """Take these branches as rows; `spans` have adapters, in the table's places `at`, and
        recurrent layers keep their states at `states`, those of padding at `scratch`.

        With `ahead` 1 the step is the one after a step of the same branches that is still under
        way: their tokens are not known here, and must be put in on the device.
        """
        count = len(branches)
        self._staged.reverse()
        host: NDArray[np.int32] = self._staged[0].numpy()
        for row, branch in enumerate(branches):
            pages = branch.pages
            if self._branches[row] is not branch:
                self._take(row, branch)
            if self._lists[row] is not pages or self._counts[row] != len(pages):
                self._place(row, pages)
        host[TOKENS, :count] = [branch.generated[-1] for branch in branches]
        positions = np.array([branch.length - 1 for branch in branches]) + ahead
        host[POSITIONS, :count] = positions
        pages_at = self._pages[positions // PAGE_SIZE, np.arange(count)]
        host[PLACES, :count] = pages_at * PAGE_SIZE + positions % PAGE_SIZE
        drawn = np.array([len(branch.generated) + ahead for branch in branches], np.uint64)
        host[KEYS : KEYS + 2, :count] = draw_keys(self._states[:count], drawn)
        host[HEAT] = self._heat.view(np.int32)
        host[MASKED] = self._masked
        # A padding row must be harmless: position 0 of the scratch page.
        host[:HEAT, count:] = 0
        host[SEGMENTS:OWNERS] = segments_of(spans, at, host.shape[1])
        host[OWNERS:] = 0
        for span, place in zip(spans, at, strict=True):
            host[OWNERS, span.start : span.stop] = place + 1
        host[STATES, : len(states)] = states
        host[STATES, len(states) :] = scratch

    def upload(self) -> None:
        """Send what `fill` wrote, without waiting for it."""
        self.numbers.copy_(self._staged[0], non_blocking=True)
        if self._stale:
            pages = self._stale
            self.table[:pages].copy_(self._staged_table[:pages], non_blocking=True)
            self._stale = 0

    def upload_masks(self, masks: Mapping[int, NDArray[np.int32]]) -> None:
        """Send the masks of these rows for the draw of the step last filled in. The draw before it
        must be over; a mask that is too short is 0 beyond its end."""
        host: NDArray[np.int32] = self._staged_masks.numpy()
        for row, mask in masks.items():
            host[row, : len(mask)] = mask
            host[row, len(mask) :] = 0
        first, last = min(masks), max(masks) + 1
        self.masks[first:last].copy_(self._staged_masks[first:last], non_blocking=True)

    def _take(self, row: int, branch: Branch) -> None:
        rule = branch.request.rule
        self._branches[row] = branch
        self._states[row] = branch.draws
        self._heat[row] = 0.0 if rule.greedy else rule.temperature
        self._masked[row] = branch.masked

    def _place(self, row: int, pages: list[int]) -> None:
        self._lists[row], self._counts[row] = pages, len(pages)
        self._pages[: len(pages), row] = pages
        self._stale = max(self._stale, len(pages))

    def view(self, first: int, count: int, rows: int) -> Tensor:
        """Numbers `first` … of the first `rows` rows; one number is a vector."""
        part = self.numbers[first : first + count, :rows]
        return part[0] if count == 1 else part


def segments_of(spans: Sequence[Span], at: Sequence[int], rows: int) -> NDArray[np.int32]:
    """First row, rows and place of each segment; no rows where there is none."""
    found = [
        (start, min(SEGMENT, span.stop - start), place)
        for span, place in zip(spans, at, strict=True)
        for start in range(span.start, span.stop, SEGMENT)
    ]
    segments = np.zeros((3, rows), np.int32)
    if found:
        segments[:, : len(found)] = np.array(found, np.int32).T
    return segments
