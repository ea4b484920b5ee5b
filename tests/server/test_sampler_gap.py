"""The gap between trainer and sampler counts sampled tokens, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from tinkex.engine.messages import Datum
from tinkex.server.sampler_gap import SamplerGap, measure


def datum(*given: float) -> Datum:
    return Datum(np.arange(len(given), dtype=np.int32), {"logprobs": np.array(given, np.float32)})


def trained(*logprobs: float) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {"logprobs": np.array(logprobs, np.float32)}


def test_a_prompts_zeros_do_not_count() -> None:
    gap = measure(
        [datum(0.0, -1.0, -2.0), datum(0.0, -4.0)], [trained(-9, -1.5, -2), trained(-9, -4)]
    )
    assert gap == SamplerGap(pytest.approx(0.5 / 3), pytest.approx(0.5), 3)  # type: ignore[arg-type]


def test_data_without_sampled_logprobs_measures_nothing() -> None:
    plain = Datum(np.arange(2, dtype=np.int32), {"weights": np.ones(2, np.float32)})
    assert measure([plain], [trained(-1, -1)]) is None
    assert measure([datum(0.0, 0.0)], [trained(-1, -1)]) is None
    assert measure([datum(-1.0)], [{}]) is None
    assert measure([datum(-1.0)], [trained(-1, -1)]) is None


def test_what_is_not_finite_is_left_out() -> None:
    gap = measure([datum(-1.0, float("nan"))], [trained(-1, -1)])
    assert gap == SamplerGap(0.0, 0.0, 1)
