"""Prompts, data and parameters that the official package made are taken like ours: a program may
import tinkex while a library it uses imports tinker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tinkex
from support.clients import datum, prompt, service_for
from support.protocol_server import ProtocolServer
from tinkex.client import arguments
from tinkex.types.strictness import twin

tinker = pytest.importorskip("tinker")

PROMPT = tinker.ModelInput.from_ints([1, 2])
DATUM = tinker.Datum(PROMPT, {"target_tokens": [2, 0], "weights": [1.0, 1.0]})


@pytest.fixture(scope="module")
def server() -> Iterator[ProtocolServer]:
    with ProtocolServer() as server:
        yield server


@pytest.fixture(scope="module")
def service(server: ProtocolServer) -> Iterator[tinkex.ServiceClient]:
    with service_for(server) as service:
        yield service


def test_samples_are_asked_for_in_the_same_words(
    service: tinkex.ServiceClient, server: ProtocolServer
) -> None:
    sampler = service.create_sampling_client(base_model="m")
    for text, kind in ((PROMPT, tinker.SamplingParams), (prompt(1, 2), tinkex.SamplingParams)):
        sampler.sample(text, 1, kind(max_tokens=3, stop=["x"])).result(timeout=30)
    theirs, ours = [{**call.body, "seq_id": 0} for call in server.asked("/asample")][-2:]
    assert theirs == ours


def test_a_step_is_asked_for_in_the_same_words(
    service: tinkex.ServiceClient, server: ProtocolServer
) -> None:
    run = service.create_lora_training_client("m", optimizer=tinker.AdamOptimizerConfig())
    for data, kind in (([DATUM], tinker.AdamParams), ([datum(1, 2)], tinkex.AdamParams)):
        run.forward_backward(data, "cross_entropy").result(timeout=30)
        run.optim_step(kind(learning_rate=0.5)).result(timeout=30)
    theirs, ours = [{**call.body, "seq_id": 0} for call in server.asked("/optim_step")][-2:]
    assert theirs == ours


def test_a_datum_of_ours_is_made_from_parts_of_theirs() -> None:
    spans = [tinker.PromptProvenanceSpan(sequence_id="s", length=2)]
    made = tinkex.Datum(PROMPT, DATUM.loss_fn_inputs, spans, spans)
    assert made.model_input == prompt(1, 2)
    assert made.model_input_spans == [tinkex.PromptProvenanceSpan(sequence_id="s", length=2)]
    assert all(isinstance(each, tinkex.TensorData) for each in made.loss_fn_inputs.values())
    assert tinkex.ModelInput(chunks=list(PROMPT.chunks)) == prompt(1, 2)
    assert prompt(1).append(tinker.EncodedTextChunk(tokens=[2])).to_ints() == [1, 2]


def test_tensors_keep_their_numbers_shape_and_sparsity() -> None:
    dense = tinker.TensorData.from_numpy(np.array([[1, 2], [3, 4]]))
    sparse = tinker.TensorData(
        data=[7], dtype="int64", shape=[2, 2], sparse_crow_indices=[0, 1, 1], sparse_col_indices=[1]
    )
    for given in (dense, sparse):
        taken = twin(given, tinkex.TensorData)
        assert isinstance(taken, tinkex.TensorData)
        assert (taken.dtype, taken.shape) == (given.dtype, given.shape)
        np.testing.assert_array_equal(taken.to_numpy(), given.to_numpy())
        assert taken.sparse_col_indices == given.sparse_col_indices


def test_what_has_no_place_here_is_still_refused_by_name() -> None:
    with pytest.raises(TypeError, match="prompt: expected a ModelInput, got Datum"):
        arguments.checked_prompt(DATUM)
    with pytest.raises(TypeError, match=r"data\[0\]: expected a Datum, got ModelInput"):
        arguments.checked_data([PROMPT])
