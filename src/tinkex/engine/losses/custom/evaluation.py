"""A custom loss in one training call: per datum, summed; evaluated in another process.

Answers usually come while the pass waits. `NotYet` is raised where they take longer: the pass goes
on without the call, and is made again for it when all its answers are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom.evaluator import Account, Evaluator
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.custom.replies import Reply
from tinkex.engine.losses.evaluation import BoundSlopes, NotYet
from tinkex.engine.losses.inputs import CheckedDatum, Wanted
from tinkex.engine.messages import CustomLoss

CALL_WORK = 1 << 31
"""Cells that a call may read and write in all, some seconds of work."""

WORK_PER_TARGET = 1 << 8
"""The same, for each cell of its targets: more data may take longer."""

Values = dict[str, NDArray[np.generic]]


class CustomEvaluation:
    """One call. Its datums' numbers are kept by their place in it."""

    whole_sequence = True

    def __init__(self, loss: CustomLoss, graph: Graph, evaluator: Evaluator) -> None:
        self._graph, self._evaluator = graph, evaluator
        self._account = Account(loss, graph, CALL_WORK)
        self._places: dict[int, int] = {}
        self._answers: dict[tuple[int, ...], Future[Reply]] = {}
        self._numbers: dict[int, NDArray[np.float64]] = {}
        ranks = {n: rank for n, rank in graph.inputs if n not in ("logprobs", "target_tokens")}
        self.wanted = Wanted((), (), None, ranks)

    def begin(self, data: Sequence[CheckedDatum]) -> None:
        rank = dict(self._graph.inputs)["logprobs"]
        for index, datum in enumerate(data):
            if len(datum.shape) != rank:
                raise UserError(
                    f"data[{index}].loss_fn_inputs.target_tokens has {len(datum.shape)} "
                    f"dimensions; the loss declared rank {rank} for logprobs"
                )
        self._places = {id(datum): index for index, datum in enumerate(data)}
        self._account.limit += WORK_PER_TARGET * sum(len(datum.targets) for datum in data)

    def bind(self, data: Sequence[CheckedDatum], device: torch.device) -> BoundSlopes:
        def slopes(first: int, last: int, logprobs: Tensor) -> Tensor:
            parts = _split(data, logprobs.detach().cpu().numpy())
            reply = self._reply(data, parts, slopes=True)
            return torch.from_numpy(reply.slopes.copy()).to(device)

        return slopes

    def metrics(
        self, data: Sequence[CheckedDatum], logprobs: Sequence[NDArray[np.float32]]
    ) -> dict[str, float]:
        left = [i for i in range(len(data)) if i not in self._numbers]
        if left:
            self._reply([data[i] for i in left], [logprobs[i] for i in left], slopes=False)
        table = np.stack([self._numbers[i] for i in range(len(data))])
        totals = dict(zip(("loss:sum", *self._graph.metrics), table.sum(axis=0), strict=True))
        return {
            name: float(total) / (len(data) if name.endswith(":mean") else 1)
            for name, total in totals.items()
        }

    def _reply(
        self, data: Sequence[CheckedDatum], logprobs: Sequence[NDArray[np.float32]], slopes: bool
    ) -> Reply:
        places = tuple(self._places[id(datum)] for datum in data)
        if places not in self._answers:
            values = [self._values(d, own) for d, own in zip(data, logprobs, strict=True)]
            self._answers[places] = self._evaluator.submit(self._account, places, values, slopes)
        answer = self._answers[places]
        if not self._evaluator.patience.wait(answer):
            raise NotYet(answer)
        reply = answer.result()
        if reply.error is not None:
            raise UserError(reply.error)
        rows = reply.numbers.reshape(len(places), -1)
        self._numbers.update(zip(places, rows, strict=True))
        return reply

    def _values(self, datum: CheckedDatum, logprobs: NDArray[np.float32]) -> Values:
        found: Values = {"logprobs": np.ascontiguousarray(logprobs.reshape(datum.shape))}
        if any(name == "target_tokens" for name, _ in self._graph.inputs):
            found["target_tokens"] = datum.targets.reshape(datum.shape)
        return found | dict(datum.extra)


def _split(
    data: Sequence[CheckedDatum], logprobs: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    return np.split(logprobs, np.cumsum([len(datum.targets) for datum in data])[:-1])
