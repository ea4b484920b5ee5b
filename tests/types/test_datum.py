"""A datum turns whatever it is given into tensors once, and names what it cannot use."""

import numpy as np
import pytest

from tinkex.types import (
    Datum,
    ModelInput,
    PromptProvenanceSpan,
    SampledProvenanceSpan,
    TensorData,
)

torch = pytest.importorskip("torch")
PROMPT = ModelInput.from_ints([1, 2, 3])


def test_lists_get_the_dtype_of_their_name() -> None:
    datum = Datum(PROMPT, {"target_tokens": [2, 3, 4], "weights": [0, 1, 1]})
    assert {name: t.dtype for name, t in datum.loss_fn_inputs.items()} == {
        "target_tokens": "int64",
        "weights": "float32",
    }
    assert datum.loss_fn_inputs["weights"].shape == [3]


def test_arrays_and_tensors_are_kept_dense_except_sparse_two_dimensional_torch() -> None:
    wide = torch.zeros(20, 30, dtype=torch.int64)
    datum = Datum(
        PROMPT,
        {
            "weights": np.ones((2, 3)),
            "target_tokens": wide,
            "logprobs": torch.ones(2, 2),
            "anything": TensorData([1], "int64"),
        },
    )
    assert datum.loss_fn_inputs["target_tokens"].csr is not None
    assert datum.loss_fn_inputs["weights"].csr is None
    assert datum.loss_fn_inputs["logprobs"].shape == [2, 2]


@pytest.mark.parametrize(
    ("inputs", "error", "says"),
    [
        ({"mystery": [1]}, KeyError, "mystery.*wrap it in TensorData"),
        ({"weights": [[1, 2], [3]]}, ValueError, r"loss_fn_inputs\['weights'\].*rectangular"),
        ({"target_tokens": [1.5]}, ValueError, "fractions"),
        ({"weights": np.zeros(2, np.uint8)}, ValueError, r"\['weights'\]: unsupported dtype uint8"),
        ({"weights": 3}, TypeError, "got int"),
        ({"logprobs": [None, -1.0]}, ValueError, "entry 0 is None: give unused positions 0"),
        ({"target_tokens": [1, 2**70]}, ValueError, "entry 1 does not fit 64 bits"),
        ({"target_tokens": [1, "2"]}, ValueError, "got strings"),
    ],
)
def test_bad_inputs_are_named(inputs: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Datum(PROMPT, inputs)


def test_the_model_input_must_be_one() -> None:
    with pytest.raises(TypeError, match="ModelInput, got dict"):
        Datum({"chunks": []})


def test_spans_come_in_pairs_and_tile_both_fields() -> None:
    datum = Datum(PROMPT, {"target_tokens": [2, 3, 4]})
    prompt = PromptProvenanceSpan(sequence_id="s", length=2)
    sampled = SampledProvenanceSpan(sequence_id="s", length=1)
    marked = datum.with_provenance([prompt, sampled], [prompt, sampled])
    assert marked.model_input_spans == [prompt, sampled]
    assert datum.model_input_spans is None
    with pytest.raises(ValueError, match="model_input spans cover 2 positions of 3"):
        datum.with_provenance([prompt], [prompt, sampled])
    with pytest.raises(ValueError, match="loss_fn_inputs spans cover 1 positions of 3"):
        datum.with_provenance([prompt, sampled], [sampled])
    with pytest.raises(AssertionError, match="pairs"):
        Datum(PROMPT, {}, model_input_spans=[prompt])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sequence_id": "", "length": 1}, "sequence_id must not be empty"),
        ({"sequence_id": "a", "length": -1}, "length must be >= 0, got -1"),
        ({"sequence_id": "a", "length": 1, "offset": -2}, "offset must be >= 0, got -2"),
    ],
)
def test_impossible_spans_are_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SampledProvenanceSpan(**arguments)
