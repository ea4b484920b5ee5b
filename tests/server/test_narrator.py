"""Promises of the progress reports: enough to follow a run, never more than a bounded rate."""

from __future__ import annotations

import logging

import pytest

from tinkex.server.operations.base import Conclusion, Prepared
from tinkex.server.operations.kinds import named
from tinkex.server.operations.log import CREATION, Entry, RunLog
from tinkex.server.operations.run import Run
from tinkex.server.protocol.outcomes import failure, success
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.training.progress_reports import (
    REFUSALS_EVERY_S,
    STEPS_EVERY_S,
    Narrator,
    one_line,
)

SESSION = "0123456789abcdef0123456789abcdef"
LOGGER = "tinkex.server.training.progress_reports"


class _Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class _Told:
    """A narrator, one run and what the log says of it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, LOGGER)
        self._caplog = caplog
        self.clock = _Clock()
        self.narrator = Narrator(self.clock, lambda: 0)
        model_id = f"{SESSION}:train:0"
        row = RunRow(model_id, SESSION, "key-a", "tiny", '{"type":"adamw"}', 0.0, 0.0, rank=8)
        self.run = Run(row, RunLog(-1, 60.0, 5.0))

    def end(self, kind: str, conclusion: Conclusion, tokens: int = 0) -> None:
        seq_id = CREATION if kind.startswith("create") else 1

        async def never(_: object) -> Conclusion:
            raise AssertionError

        entry = Entry("r", seq_id, named(kind), b"", 0.0)
        self.narrator.ended(self.run, entry, Prepared((), never, tokens), conclusion)

    def step(self, number: int, *losses: tuple[float, float]) -> None:
        for total, tokens in losses:
            metrics = {"loss:sum": total, "tokens:sum": tokens}
            self.end("forward_backward", Conclusion(success({}), metrics=metrics), int(tokens))
        self.end("optim_step", Conclusion(success({}), metrics={"optim/step": float(number)}))

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._records]

    @property
    def facts(self) -> dict[str, object]:
        found: dict[str, object] = self._records[-1].__dict__["facts"]
        return found

    @property
    def _records(self) -> list[logging.LogRecord]:
        """Its own: threads that other tests left behind may have something to say too."""
        return [record for record in self._caplog.records if record.name == LOGGER]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> _Told:
    return _Told(caplog)


def test_a_run_that_begins_is_told_whole(told: _Told) -> None:
    told.end("create_model", Conclusion(success({})))
    (line,) = told.lines
    assert line == f"run {SESSION}:train:0 created by key-a: tiny, rank 8"


def test_steps_are_told_now_and_then_with_the_loss_of_their_passes_and_the_speed(
    told: _Told,
) -> None:
    told.step(1, (20.0, 10.0), (40.0, 10.0))
    assert told.lines == ["run 01234567…:train:0: step 1, loss 3.0000"]
    for number in range(2, 200):
        told.step(number, (10.0, 10.0))
    assert len(told.lines) == 1
    told.clock.at += STEPS_EVERY_S
    told.step(200, (5.0, 10.0))
    assert told.lines[1:] == ["run 01234567…:train:0: step 200, loss 0.5000, 199 tokens/s"]
    assert told.facts == {
        "event": "stepped",
        "run": f"{SESSION}:train:0",
        "steps": 199,
        "tokens": 1990,
        "step": 200,
        "loss": 0.5,
        "tokens_per_s": 199.0,
    }


def test_saves_are_told_and_nameless_samplers_counted(told: _Told) -> None:
    told.end("save_weights", Conclusion(success({}), path="tinker://x/weights/one"))
    assert told.lines == ["run 01234567…:train:0: saved tinker://x/weights/one"]
    told.end("save_weights_for_sampler", Conclusion(success({}), sampler="s"))
    told.step(1)
    assert told.lines[1:] == ["run 01234567…:train:0: step 1, loss 0.0000, 1 samplers made"]


def test_a_refusal_is_told_once_in_a_while_with_how_many_more_there_were(told: _Told) -> None:
    for _ in range(1000):
        told.narrator.refused("/asample", 429, "too many")
    told.narrator.refused("/asample", 422, "bad")
    told.clock.at += REFUSALS_EVERY_S
    told.narrator.refused("/asample", 429, "too many")
    assert told.lines == [
        "refused 429 /asample: too many",
        "refused 422 /asample: bad",
        "refused 429 /asample: too many (and 999 like it)",
    ]


def test_a_failed_operation_says_of_which_run_and_why(told: _Told) -> None:
    told.end("forward_backward", Conclusion(failure("user", "data[0] is empty")))
    (line,) = told.lines
    assert line == "run 01234567…:train:0: forward_backward failed: data[0] is empty"


def test_text_of_others_cannot_forge_or_flood_the_log() -> None:
    assert one_line("a\nb\x1b[31mc\r") == "a b [31mc "
    assert len(one_line("x" * 10_000)) < 400
