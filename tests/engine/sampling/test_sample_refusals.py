"""A sample that cannot be served is refused by name before anything is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.sampling import (
    make_sampler,
    sample,
)
from tinkex.engine.errors import UserError
from tinkex.engine.messages import Csr

BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt: is empty"),
    ({"prompt": [272]}, "token id 272 is outside"),
    ({"prompt": [-1]}, "token id -1 is outside"),
    ({"max_tokens": 2000}, "exceeds the model's context window"),
    ({"max_tokens": -1}, "max_tokens: must be 0 or more"),
    ({"temperature": -0.1}, "temperature: must be 0"),
    ({"temperature": float("nan")}, "temperature: must be 0"),
    ({"top_k": 0}, "top_k"),
    ({"top_p": 0.0}, "top_p"),
    ({"stop": (999,)}, "stop: id 999"),
    ({"stop": tuple(map(str, range(65)))}, "stop: has 65 texts; at most 64"),
    ({"stop": ("x" * 1025,)}, "stop: a text has 1025 characters; at most 1024"),
    ({"stop": (1,) * 5000}, "stop: has 5000 ids; at most 4096"),
    ({"seed": 2**64}, "seed"),
    ({"num_samples": 0}, "num_samples"),
    (
        {"max_tokens": 1000, "num_samples": 1024, "asks": {"topk_sample_logprobs": 100}},
        "topk_sample_logprobs: 100 in each of up to 1024000 places",
    ),
    ({"weights": "nobody"}, "not loaded"),
    ({"asks": {"topk_prompt_logprobs": -1}}, "topk_prompt_logprobs"),
    ({"asks": {"prompt_logprobs": True, "prompt_logprobs_last_n": 4}}, "between 1 and 3, not 4"),
    ({"asks": {"prompt_logprobs_last_n": 1}}, "needs prompt_logprobs"),
    ({"asks": {"target_prompt_logprobs": np.zeros((2, 2), np.int64)}}, r"shape \[3, K\]"),
    ({"asks": {"target_prompt_logprobs": np.full((3, 2), 272)}}, "run from 272"),
    (
        {
            "asks": {
                "target_prompt_logprobs": Csr(
                    np.zeros(2, np.int64), np.array([0, 1, 2, 3]), np.zeros(2, np.int64), (3, 2)
                )
            }
        },
        "CSR",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_commands_are_refused_by_name_and_change_nothing(
    changes: dict[str, Any], message: str
) -> None:
    sampler = make_sampler()
    with pytest.raises(UserError, match=message):
        sampler.submit(sample("a", **({"prompt": [1, 2, 3, 4]} | changes)))
    assert not sampler.busy
    sampler.pool.check_idle()


def test_an_op_that_is_under_way_is_not_taken_twice() -> None:
    sampler = make_sampler()
    sampler.submit(sample("a", [1, 2]))
    with pytest.raises(UserError, match="under way already"):
        sampler.submit(sample("a", [3]))
    while sampler.busy:
        sampler.step()
    sampler.pool.check_idle()
