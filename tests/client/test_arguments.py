"""What the clients take from a program, and in which other forms."""

import pytest

from tinkex.client.arguments import as_sampling_params
from tinkex.types import SamplingParams


def test_sampling_parameters_may_be_a_dictionary() -> None:
    given = {"max_tokens": 3, "stop": ["\n"], "temperature": 0.5}
    assert as_sampling_params(given) == SamplingParams(max_tokens=3, stop=["\n"], temperature=0.5)
    with pytest.raises(ValueError, match="max_tokens"):
        as_sampling_params({"max_tokens": -1})
