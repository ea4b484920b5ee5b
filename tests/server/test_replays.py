"""What is repeated after a loss is compared with what its client was told."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from support.fake_engine import FakeEngine, FakeWorker
from support.served import Api, served
from tinkex.engine.messages import ForwardBackward, ForwardBackwardResult


async def test_a_replay_that_comes_out_the_same_is_only_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as api:
        _, page = await _one_replayed(api)
    assert "tinkex_replays_total 2" in page
    assert "tinkex_replay_differences_total 0" in page
    assert "another result" not in caplog.text


async def test_a_replay_that_differs_is_said_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, forward = FakeEngine(), FakeWorker._forward_backward

    def drifting(worker: FakeWorker, command: ForwardBackward) -> ForwardBackwardResult:
        result = forward(worker, command)
        life = float(len(engine.workers))
        return ForwardBackwardResult(result.outputs, {"loss:sum": life})

    monkeypatch.setattr(FakeWorker, "_forward_backward", drifting)
    async with served(tmp_path, engine) as api:
        model, page = await _one_replayed(api)
    assert "tinkex_replay_differences_total 1" in page
    (said,) = [each for each in caplog.records if "another result" in each.message]
    assert said.levelno == logging.ERROR
    assert f"{model}:1" in said.message


async def _one_replayed(api: Api) -> tuple[str, str]:
    """A run whose first call is repeated because the engine died after it, and the metrics then."""
    model = await api.model(await api.session())
    await api.forward(model, 1)
    await api.result(f"{model}:1")
    api.engine.current.die()
    await api.forward(model, 2)
    await api.result(f"{model}:2")
    return model, (await api.client.get("/metrics")).text
