"""A call that no engine takes is refused before an engine reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.fake_engine import READY, FakeEngine
from support.served import served
from tinkex.engine.messages import ForwardBackward
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire.protobuf import encode_forward_backward

MOST = 4


def _datum(inputs: int) -> Datum:
    names = ["target_tokens", *(f"x{number}" for number in range(inputs - 1))]
    return Datum(
        model_input=ModelInput.from_ints([1]),
        loss_fn_inputs={name: np.ones(1, np.int64) for name in names},
    )


@pytest.mark.parametrize(
    ("datums", "inputs", "said"),
    [(5, 1, "5 datums are over the limit of 4"), (4, 16, "68 inputs and token lists")],
)
async def test_more_than_an_engine_takes_never_gets_there(
    tmp_path: Path, datums: int, inputs: int, said: str
) -> None:
    """60,000 datums of one token, 4 MB, kept an engine and its runs waiting for 12 s."""
    engine = FakeEngine()
    engine.ready = replace(READY, max_data=MOST)
    async with served(tmp_path, engine) as api:
        model = await api.model(await api.session())
        body = encode_forward_backward(model, 1, [_datum(inputs)] * datums, "cross_entropy")
        await api.forward(model, 1, content=body)
        failed = await api.result(f"{model}:1")
        assert said in failed["error"]
        assert not any(isinstance(each, ForwardBackward) for each in engine.current.seen)
        await api.forward(model, 2)
        assert isinstance(await api.result(f"{model}:2"), bytes)
