"""What the compatibility exercises share: one SDK, one server, and clients made once.

The SDK is a module handed in: the official `tinker` or ours. Nothing here knows which.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.request
from collections.abc import Coroutine
from functools import cached_property
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

PROMPT = [72, 101, 108, 108, 111]
ADMIN_HOUR_S = 3600


class World:
    """An SDK talking to a server as one tenant."""

    def __init__(self, sdk: Any, base_url: str, base_model: str, api_key: str) -> None:
        self.sdk = sdk
        self.types = sdk.types
        self.base_url = base_url
        self.base_model = base_model
        self.api_key = api_key
        self._names = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run async code the way a script does: on an event loop of its own."""
        return asyncio.run(work)

    def run_audit(self, client: Any, work: Coroutine[Any, Any, T]) -> T:
        """The official client's audit call works on its own event loop only; ours on any."""
        if self.sdk.__name__ != "tinker":
            return self.run(work)
        result: T = client.holder.run_coroutine_threadsafe(work).result()
        return result

    def name(self) -> str:
        """A checkpoint name nobody used yet."""
        self._names += 1
        return f"ck-{self._names}"

    @cached_property
    def service(self) -> Any:
        return self.sdk.ServiceClient(
            user_metadata={"job": "compat"},
            display_name="compatibility matrix",
            base_url=self.base_url,
            api_key=self.api_key,
        )

    @cached_property
    def training(self) -> Any:
        return self.service.create_lora_training_client(
            self.base_model, rank=4, seed=7, user_metadata={"purpose": "compat"}
        )

    @cached_property
    def sampling(self) -> Any:
        return self.training.save_weights_and_get_sampling_client()

    @cached_property
    def rest(self) -> Any:
        return self.service.create_rest_client()

    @cached_property
    def admin(self) -> Any:
        return self.sdk.AdminClient(base_url=self.base_url, api_key=self.api_key)

    @cached_property
    def state_path(self) -> str:
        """A training checkpoint that stays."""
        return str(self.training.save_state("kept").result().path)

    def external_path(self) -> str:
        return str(self.training.save_weights_external(self.name()).result().path)

    def sampler_path(self) -> str:
        return str(self.training.save_weights_for_sampler(self.name()).result().path)

    def fresh_state_path(self) -> str:
        return str(self.training.save_state(self.name(), ttl_seconds=7200).result().path)

    @property
    def session_id(self) -> str:
        return str(self.training.model_id).partition(":")[0]

    def datum(self, length: int = 6) -> Any:
        tokens = [65 + place % 26 for place in range(length)]
        return self.types.Datum(
            model_input=self.types.ModelInput.from_ints(tokens),
            loss_fn_inputs={"target_tokens": [*tokens[1:], 10], "weights": [1.0] * length},
        )

    def prompt(self) -> Any:
        return self.types.ModelInput.from_ints(PROMPT)

    def params(self, max_tokens: int = 3) -> Any:
        return self.types.SamplingParams(max_tokens=max_tokens, seed=3, temperature=1.0, stop=[])

    def training_logprobs(self, client: Any) -> list[float]:
        """What a training client's weights say about one fixed datum."""
        result = client.forward([self.datum()], "cross_entropy").result()
        return [float(value) for value in result.loss_fn_outputs[0]["logprobs"].tolist()]

    def checkpoint(self, path: str) -> Any:
        run = path.removeprefix("tinker://").partition("/")[0]
        found = self.rest.list_checkpoints(run).result().checkpoints
        return next(checkpoint for checkpoint in found if checkpoint.tinker_path == path)

    def assert_gone(self, path: str) -> None:
        found = self.rest.list_checkpoints(self.training.model_id).result().checkpoints
        assert path not in [checkpoint.tinker_path for checkpoint in found]

    def assert_stays_in_process(self, sampling: Any) -> None:
        """The embedded server has no address that another process could use, and says so."""
        with pytest.raises(TypeError, match="tinkex serve"):
            sampling.get_sampler_handle()

    def fetch(self, url: str) -> bytes:
        """What anyone who holds a signed link gets, without a key."""
        with urllib.request.urlopen(url, timeout=30) as response:
            return bytes(response.read())

    def close(self) -> None:
        if "service" in self.__dict__:
            self.service.close("success").result()


def unsigned_jwt(subject: str) -> str:
    """A key in the form of a token that names its user; clients read it and never verify it."""
    payload = {
        "iss": "passport-test",
        "sub": subject,
        "org_id": "acme",
        "email": "a@example.org",
        "exp": int(time.time()) + ADMIN_HOUR_S,
    }
    parts = [{"alg": "none"}, payload]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b"x"]).decode()
