"""The gap between trainer and sampler counts sampled tokens, and only those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.served import Api, served
from tinkex import types
from tinkex.engine.messages import Datum
from tinkex.server.operations.sampler_gap import SamplerGap, measure
from tinkex.wire.protobuf import encode_forward_backward


def datum(*given: float) -> Datum:
    return Datum(np.arange(len(given), dtype=np.int32), {"logprobs": np.array(given, np.float32)})


def trained(*logprobs: float) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {"logprobs": np.array(logprobs, np.float32)}


def test_a_prompts_zeros_do_not_count() -> None:
    gap = measure(
        [datum(0.0, -1.0, -2.0), datum(0.0, -4.0)], [trained(-9, -1.5, -2), trained(-9, -4)]
    )
    assert gap == SamplerGap(pytest.approx(0.5 / 3), pytest.approx(0.5), 3)


def test_data_without_sampled_logprobs_measures_nothing() -> None:
    plain = Datum(np.arange(2, dtype=np.int32), {"weights": np.ones(2, np.float32)})
    assert measure([plain], [trained(-1, -1)]) is None
    assert measure([datum(0.0, 0.0)], [trained(-1, -1)]) is None
    assert measure([datum(-1.0)], [{}]) is None
    assert measure([datum(-1.0)], [trained(-1, -1)]) is None


def test_what_is_not_finite_is_left_out() -> None:
    gap = measure([datum(-1.0, float("nan"))], [trained(-1, -1)])
    assert gap == SamplerGap(0.0, 0.0, 1)


def rollout(model: str, seq: int) -> bytes:
    """A call with what a sampler said of three tokens."""
    inputs = {
        "target_tokens": np.array([2, 3, 4], np.int64),
        "logprobs": np.array([0.0, -1.5, -1.5], np.float32),
        "advantages": np.ones(3, np.float32),
    }
    sampled = types.Datum(types.ModelInput.from_ints([1, 2, 3]), inputs)
    return encode_forward_backward(model, seq, [sampled], "importance_sampling", None, False)


async def told(api: Api, model: str) -> Any:
    return (await api.send("GET", f"training_runs/{model}")).json()["sampler_gap"]


@pytest.mark.parametrize("name", [{"path": "named"}, {"sampling_session_seq_id": 3}])
async def test_it_is_measured_while_the_weights_are_those_that_were_sampled(
    tmp_path: Path, name: dict[str, Any]
) -> None:
    """The fake trainer says -1 of every token. Everything is queued before the first answer."""
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.forward(model, 1, content=rollout(model, 1))
        await api.result(f"{model}:1")
        assert await told(api, model) is None
        await api.post("save_weights_for_sampler", {"model_id": model, "seq_id": 2, **name})
        await api.forward(model, 3, content=rollout(model, 3))
        await api.result(f"{model}:3")
        await api.result(f"{model}:2")
        assert await told(api, model) == {"mean": 0.5, "max": 0.5, "tokens": 2}
        assert "tinkex_sampler_gap_nats 0.5" in (await api.client.get("/metrics")).text


async def test_after_a_step_or_a_refused_save_nothing_is_measured(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.post("save_weights_for_sampler", {"model_id": model, "seq_id": 1, "path": "one"})
        await api.step(model, 2)
        await api.forward(model, 3, content=rollout(model, 3))
        refused = {"model_id": model, "seq_id": 4, "path": "../no"}
        answer = await api.post("save_weights_for_sampler", refused)
        assert "error" in await api.result(answer["request_id"])
        await api.forward(model, 5, content=rollout(model, 5))
        await api.result(f"{model}:5")
        assert await told(api, model) is None
