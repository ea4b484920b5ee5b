"""Answers what a sample command asks about its prompt, from the logits of the prompt's rows.

Row r of the logits is the distribution over prompt token r + 1. Rows arrive in any number of
pieces, and a piece may arrive again after a preemption. Every logprob is of the model's own
distribution; alternatives are drawn at the request's temperature.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.messages import Csr, Sample, TopK
from tinkex.engine.sampling.draw import ALTERNATIVE, Drawer, Rule, draw_key

EMPTY_LOGPROB = -99999.0


class PromptScores:
    """`row_cost` is what a prompt token costs of a step's budget: a draw takes about as long as
    computing the token, and there may be a thousand."""

    def __init__(self, command: Sample, prompt: NDArray[np.int32], seed: int) -> None:
        self._command = command
        self._prompt = prompt
        self._seed = seed
        length = len(prompt)
        self.rows = range(_first_row(command, length), length - 1)
        self._scored = range(_first_scored(command, length), length - 1)
        self.logprobs = np.full(length, np.nan, np.float32) if command.prompt_logprobs else None
        self.topk = empty_topk(length, command.topk_prompt_logprobs)
        self.alternatives = empty_topk(length - 1, command.prompt_alt_tokens_k)
        self.row_cost = 1 + command.prompt_alt_tokens_k
        self._wanted = _cells(command.target_prompt_logprobs)
        self._targets = np.zeros(self._wanted[0].shape, np.float32)

    def take(self, first: int, logits: Tensor, drawer: Drawer) -> None:
        """Take the float32 logits of rows `first` and on; all lie within `rows`."""
        rows = range(first, first + len(logits))
        total = drawer.totals(logits)[:, None]
        self._take_own(rows, logits, total)
        self._take_targets(rows, logits, total)
        for index in range(self._command.prompt_alt_tokens_k):
            self._take_alternative(index, rows, logits, total, drawer)

    def targets(self) -> NDArray[np.float32] | Csr | None:
        """What `target_prompt_logprobs` asked for, in the layout it was asked in."""
        wanted = self._command.target_prompt_logprobs
        if wanted is None:
            return None
        if isinstance(wanted, Csr):
            return Csr(self._targets, wanted.crow, wanted.col, wanted.shape)
        return self._targets.reshape(wanted.shape)

    def _take_own(self, rows: range, logits: Tensor, total: Tensor) -> None:
        start = max(rows.start, self._scored.start)
        if start >= rows.stop:
            return
        logits, total = logits[start - rows.start :], total[start - rows.start :]
        after = slice(start + 1, rows.stop + 1)
        if self.logprobs is not None:
            ids = torch.from_numpy(self._prompt[after].astype(np.int64)).to(logits.device)
            own = logits.gather(1, ids[:, None]) - total
            self.logprobs[after] = own[:, 0].cpu().numpy()
        if self.topk is not None:
            best, which = logits.topk(self.topk.ids.shape[1], dim=-1)
            self.topk.ids[after] = which.cpu().numpy()
            self.topk.logprobs[after] = (best - total).cpu().numpy()

    def _take_targets(self, rows: range, logits: Tensor, total: Tensor) -> None:
        row_of, ids = self._wanted
        here = np.flatnonzero((row_of >= rows.start) & (row_of < rows.stop) & (ids >= 0))
        if not len(here):
            return
        row = torch.from_numpy(row_of[here] - rows.start).to(logits.device)
        column = torch.from_numpy(ids[here]).to(logits.device)
        self._targets[here] = (logits[row, column] - total[row, 0]).cpu().numpy()

    def _take_alternative(
        self, index: int, rows: range, logits: Tensor, total: Tensor, drawer: Drawer
    ) -> None:
        assert self.alternatives is not None
        rule = Rule(self._command.params.temperature, -1, 1.0)
        keys = [draw_key(self._seed, ALTERNATIVE, index, row) for row in rows]
        ids = drawer.draw(logits, [rule] * len(rows), keys)
        place = slice(rows.start, rows.stop)
        self.alternatives.ids[place, index] = ids.cpu().numpy()
        found = logits.gather(1, ids[:, None]) - total
        self.alternatives.logprobs[place, index] = found[:, 0].cpu().numpy()


def empty_topk(rows: int, width: int) -> TopK | None:
    if not width:
        return None
    logprobs = np.full((rows, width), EMPTY_LOGPROB, np.float32)
    return TopK(np.zeros((rows, width), np.int32), logprobs)


def _first_scored(command: Sample, length: int) -> int:
    if not (command.prompt_logprobs or command.topk_prompt_logprobs):
        return length - 1
    last = command.prompt_logprobs_last_n
    return 0 if last is None else max(0, length - 1 - last)


def _first_row(command: Sample, length: int) -> int:
    """The first row anything is asked about; rows before it need no logits."""
    everything = command.target_prompt_logprobs is not None or command.prompt_alt_tokens_k
    return 0 if everything else _first_scored(command, length)


def _cells(
    wanted: NDArray[np.float32] | NDArray[np.int64] | Csr | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The asked-for cells as flat arrays of row and id."""
    if wanted is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if isinstance(wanted, Csr):
        rows = np.repeat(np.arange(wanted.shape[0]), np.diff(wanted.crow))
        return rows.astype(np.int64), wanted.values.astype(np.int64)
    rows = np.repeat(np.arange(wanted.shape[0]), wanted.shape[1])
    return rows.astype(np.int64), wanted.reshape(-1).astype(np.int64)
