"""Bad input raises before any request, naming the argument and the fix, and changes nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinkex
from support.clients import PARAMS, datum, prompt, service_for
from support.protocol_server import ProtocolServer
from tinkex.types import Datum, ImageAssetPointerChunk, ModelInput, TensorData

POINTER = ImageAssetPointerChunk(format="png", location="tinker://run/picture")


class World:
    """One of every client, and how many requests had been made when the test began."""

    def __init__(self, server: ProtocolServer) -> None:
        self.server = server
        self.service = service_for(server)
        self.training = self.service.create_lora_training_client("acme/tiny")
        self.sampler = self.service.create_sampling_client(base_model="acme/tiny")
        self.rest = tinkex.RestClient(self.service._get_rest_holder())
        self.rest.list_sessions().result(timeout=30)

    def requests(self) -> list[str]:
        quiet = ("/session_heartbeat", "/retrieve_future", "/dynamic_config")
        return [r.path for r in self.server.requests if not r.path.endswith(quiet)]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ProtocolServer() as server:
        made = World(server)
        yield made
        made.service.close("success").result()


def text(w: World) -> Any:
    return ModelInput.from_ints([1, 2])


Case = tuple[str, Callable[[World], Any], type[Exception], str]

CASES: list[Case] = [
    # training data
    ("empty batch", lambda w: w.training.forward_backward([], "cross_entropy"), ValueError,
     "No data"),
    ("one datum, no list", lambda w: w.training.forward_backward(datum(1, 2), "cross_entropy"),
     TypeError, r"write \[datum\]"),
    ("not a datum", lambda w: w.training.forward_backward([datum(1, 2), "x"], "cross_entropy"),
     TypeError, r"data\[1\]: expected a Datum, got str"),
    ("no tokens", lambda w: w.training.forward([Datum(ModelInput.empty())], "cross_entropy"),
     ValueError, r"data\[0\].model_input: is empty"),
    ("an image's address", lambda w: w.training.forward_backward(
        [datum(1, 2), Datum(ModelInput(chunks=[POINTER]))], "cross_entropy"),
     ValueError, r"data\[1\].model_input.chunks\[0\]: the address of an image.*send the image"),
    ("unknown loss", lambda w: w.training.forward_backward([datum(1, 2)], "nll"), ValueError,
     "unknown loss 'nll'.*cross_entropy"),
    ("config not a mapping", lambda w: w.training.forward([datum(1, 2)], "ppo", [1]), TypeError,
     "loss_fn_config: expected a mapping"),
    ("config with NaN", lambda w: w.training.forward([datum(1, 2)], "ppo", {"c": float("nan")}),
     ValueError, r"loss_fn_config\['c'\]: must be finite"),
    ("config with a list", lambda w: w.training.forward([datum(1, 2)], "ppo", {"c": [1]}),
     TypeError, r"loss_fn_config\['c'\]: expected a number or text, got list"),
    ("NaN weights", lambda w: w.training.forward(
        [datum(1, 2), Datum(text(w), {"weights": [float("nan"), 1.0]})], "cross_entropy"),
     ValueError, r"data\[1\].loss_fn_inputs\['weights'\] holds NaN: give unused positions 0"),
    ("ragged list", lambda w: Datum(text(w), {"target_tokens": [[1], [2, 3]]}), ValueError,
     "target_tokens"),
    ("unsigned dtype", lambda w: Datum(text(w), {"weights": np.ones(2, dtype=np.uint8)}),
     ValueError, "uint8"),
    ("negative size", lambda w: TensorData([1.0], "float32", [-1]), ValueError, "negative"),
    ("unknown list", lambda w: Datum(text(w), {"other": [1.0]}), KeyError, "TensorData"),
    # optimizer
    ("no parameters", lambda w: w.training.optim_step(), TypeError, "optim_params: expected"),
    ("wrong parameters", lambda w: w.training.optim_step({"lr": 1}), TypeError, "got dict"),
    ("both names", lambda w: w.training.optim_step(
        tinkex.AdamParams(), adam_params=tinkex.AdamParams()), ValueError, "give one"),
    # saving
    ("empty name", lambda w: w.training.save_state(""), ValueError, "name: must not be empty"),
    ("path for a name", lambda w: w.training.save_state("tinker://a/weights/b"), ValueError,
     "bare checkpoint name"),
    ("slash in a name", lambda w: w.training.save_weights_for_sampler("a/b"), ValueError, "slash"),
    ("short ttl", lambda w: w.training.save_state("a", ttl_seconds=5), ValueError,
     "ttl_seconds: must be between 3600"),
    ("ttl in hours", lambda w: w.training.save_state("a", ttl_seconds=1.5), TypeError,
     "ttl_seconds: expected whole seconds"),
    ("numbers in metadata", lambda w: w.training.save_state("a", user_metadata={"a": 1}),
     TypeError, r"user_metadata\['a'\].*json.dumps"),
    ("too many recipients", lambda w: w.training.save_weights_external(
        "a", age_encryption_recipients=["k"] * 11), ValueError, "at most 10, got 11"),
    # creating
    ("rank 0", lambda w: w.service.create_lora_training_client("m", rank=0), ValueError,
     "rank: must be at least 1"),
    ("rank as text", lambda w: w.service.create_lora_training_client("m", rank="8"), TypeError,
     "rank: expected a whole number, got str"),
    ("no model", lambda w: w.service.create_lora_training_client(" "), ValueError, "base_model"),
    ("nothing to train", lambda w: w.service.create_lora_training_client(
        "m", train_mlp=False, train_attn=False, train_unembed=False), AssertionError, "train_mlp"),
    ("bad state path", lambda w: w.service.create_training_client_from_state("/tmp/x"), ValueError,
     "path: must start with tinker://"),
    ("no weights to sample", lambda w: w.service.create_sampling_client(), ValueError,
     "model_path .* or base_model"),
    ("bad model path", lambda w: w.service.create_sampling_client(model_path="x"), ValueError,
     "model_path: must start with tinker://"),
    ("bad status", lambda w: w.service.close("fine"), ValueError, "status: must be success"),
    # sampling
    ("prompt as text", lambda w: w.sampler.sample("hi", 1, PARAMS), TypeError, "from_text"),
    ("empty prompt", lambda w: w.sampler.sample(ModelInput.empty(), 1, PARAMS), ValueError,
     "prompt: is empty"),
    ("no samples", lambda w: w.sampler.sample(prompt(1), 0, PARAMS), ValueError,
     "num_samples: must be at least 1, got 0"),
    ("params as a number", lambda w: w.sampler.sample(prompt(1), 1, 20), TypeError,
     "sampling_params: expected SamplingParams"),
    ("negative top-k", lambda w: w.sampler.sample(prompt(1), 1, PARAMS, topk_prompt_logprobs=-1),
     ValueError, "topk_prompt_logprobs: must be >= 0"),
    ("negative alternatives", lambda w: w.sampler.sample(
        prompt(1), 1, PARAMS, prompt_alt_tokens_k=-1), ValueError, "prompt_alt_tokens_k"),
    ("suffix without logprobs", lambda w: w.sampler.sample(
        prompt(1), 1, PARAMS, prompt_logprobs_last_n=1), ValueError, "include_prompt_logprobs"),
    ("empty suffix", lambda w: w.sampler.compute_logprobs(prompt(1), 0), ValueError, ">= 1"),
    ("float targets", lambda w: w.sampler.sample(
        prompt(1, 2), 1, PARAMS, target_prompt_logprobs=TensorData([1.0], "float32", [1, 1])),
     ValueError, "must be int64"),
    ("flat targets", lambda w: w.sampler.sample(
        prompt(1, 2), 1, PARAMS, target_prompt_logprobs=TensorData([1], "int64")),
     ValueError, "must be 2-D"),
    ("targets of another length", lambda w: w.sampler.sample(
        prompt(1, 2, 3), 1, PARAMS, target_prompt_logprobs=TensorData([1], "int64", [1, 1])),
     ValueError, "one row per prompt position"),
    # records
    ("bad path", lambda w: w.rest.delete_checkpoint_from_tinker_path("tinker://x").result(),
     ValueError, "Invalid tinker path"),
    ("wrong kind", lambda w: w.rest.get_external_weights_urls("tinker://r/weights/x").result(),
     ValueError, "external_weights"),
    ("limit -1", lambda w: w.rest.list_training_runs(limit=-1).result(), ValueError, "limit"),
    ("negative offset", lambda w: w.rest.list_sessions(offset=-1).result(), ValueError, "offset"),
    ("no project", lambda w: w.rest.copy_weights("tinker://r/weights/x").result(), ValueError,
     "destination_project_id: is required"),
    ("empty run id", lambda w: w.rest.get_training_run("").result(), ValueError, "training_run_id"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "kind", "says"), CASES, ids=[c[0] for c in CASES])
def test_it_raises_before_any_request(
    world: World, name: str, call: Callable[[World], Any], kind: type[Exception], says: str
) -> None:
    before = world.requests()
    with pytest.raises(kind, match=f"(?s){says}"):
        call(world)
    assert world.requests() == before


def test_a_wrong_value_is_caught_as_the_refusal_it_would_have_been(world: World) -> None:
    with pytest.raises(tinkex.BadRequestError) as caught:
        world.sampler.sample(ModelInput.empty(), 1, PARAMS)
    assert caught.value.response.json() == {"detail": str(caught.value)}
    assert caught.value.is_user_error
    with pytest.raises(tinkex.RequestFailedError) as failed:
        world.training.forward([Datum(ModelInput.empty())], "cross_entropy")
    assert failed.value.category == "user"


def test_a_refused_call_uses_no_number(world: World) -> None:
    with pytest.raises(ValueError, match="No data"):
        world.training.forward_backward([], "cross_entropy")
    world.training.optim_step(tinkex.AdamParams()).result(timeout=30)
    world.training.optim_step(tinkex.AdamParams()).result(timeout=30)
    first, second = [c.body["seq_id"] for c in world.server.asked("/optim_step")][-2:]
    assert second == first + 1 == 2


def test_unknown_arguments_of_a_service_are_ignored_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="retries"):
        tinkex.ServiceClient(api_key="tml-x", retries=3)


def test_a_holder_and_a_url_contradict(world: World) -> None:
    for kind in (tinkex.RestClient, tinkex.AdminClient):
        with pytest.raises(ValueError, match="not both"):
            kind(world.rest.holder, base_url="http://x")
