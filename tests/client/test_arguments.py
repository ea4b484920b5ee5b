"""What the clients take from a program, and in which other forms."""

import pytest

from tinkex.client.arguments import as_sampling_params, checked_data
from tinkex.types import Datum, ModelInput, SamplingParams


def test_sampling_parameters_may_be_a_dictionary() -> None:
    given = {"max_tokens": 3, "stop": ["\n"], "temperature": 0.5}
    assert as_sampling_params(given) == SamplingParams(max_tokens=3, stop=["\n"], temperature=0.5)
    with pytest.raises(ValueError, match="max_tokens"):
        as_sampling_params({"max_tokens": -1})


def test_data_may_be_anything_that_yields_datums() -> None:
    datum = Datum(ModelInput.from_ints([1]), {})
    for data in ([datum], (datum,), (each for each in [datum])):
        assert checked_data(data) == [datum]
