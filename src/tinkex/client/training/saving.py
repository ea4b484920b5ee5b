"""A run's weights saved under a name, exported, and loaded again.

The methods are alike in shape and stay written out: their parameters are the public API's.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tinkex.client import arguments
from tinkex.client.api import call_policies
from tinkex.client.concurrency.bridge import async_twin
from tinkex.client.concurrency.futures import APIFuture, AwaitableConcurrentFuture, ResultFuture
from tinkex.client.training.run import TrainingRun, json_kind
from tinkex.types import (
    LoadWeightsRequest,
    LoadWeightsResponse,
    SaveWeightsExternalRequest,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerRequest,
    SaveWeightsForSamplerResponse,
    SaveWeightsRequest,
    SaveWeightsResponse,
)
from tinkex.wire import routes

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder

T = TypeVar("T")

logger = logging.getLogger("tinkex")


class SavingClient:
    """The part of a ``TrainingClient`` that saves and loads."""

    holder: InternalClientHolder
    model_id: str
    _run: TrainingRun

    def _submit(self, work: Coroutine[Any, Any, T]) -> ResultFuture[T]:
        return self.holder.submit(work)

    def _start(self, work: Coroutine[Any, Any, T]) -> AwaitableConcurrentFuture[T]:
        return AwaitableConcurrentFuture(self._submit(work))

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[SaveWeightsResponse]:
        """Save weights and optimizer state, to go on training from later."""
        seconds = _checked_save(name, ttl_seconds, user_metadata)
        return self._start(
            self._run.operation(
                routes.SAVE_WEIGHTS,
                lambda seq_id: SaveWeightsRequest(
                    model_id=self.model_id,
                    path=name,
                    seq_id=seq_id,
                    ttl_seconds=seconds,
                    overwrite=overwrite,
                    user_metadata=user_metadata,
                ),
                json_kind("SaveWeights", SaveWeightsResponse),
                call_policies.SAVE,
            )
        )

    def load_state(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[LoadWeightsResponse]:
        """Deprecated: load weights into this run. Create a new client from the state instead."""
        return self._load_deprecated(path, weights_access_token, optimizer=False)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> APIFuture[LoadWeightsResponse]:
        """Deprecated: like ``load_state``, with the optimizer state."""
        return self._load_deprecated(path, weights_access_token, optimizer=True)

    def _load_deprecated(
        self, path: str, weights_access_token: str | None, *, optimizer: bool
    ) -> APIFuture[LoadWeightsResponse]:
        suffix = "_with_optimizer" if optimizer else ""
        text = (
            f"load_state{suffix} is deprecated: use "
            f"ServiceClient.create_training_client_from_state{suffix}"
        )
        warnings.warn(text, FutureWarning, stacklevel=3)
        logger.error("%s", text)
        return self._load(path, weights_access_token, optimizer=optimizer)

    def _load(
        self, path: str, weights_access_token: str | None, *, optimizer: bool
    ) -> AwaitableConcurrentFuture[LoadWeightsResponse]:
        arguments.check_model_path(path)
        return self._start(self._load_operation(path, weights_access_token, optimizer=optimizer))

    def _load_operation(
        self, path: str, weights_access_token: str | None, *, optimizer: bool
    ) -> Coroutine[Any, Any, LoadWeightsResponse]:
        return self._run.operation(
            routes.LOAD_WEIGHTS,
            lambda seq_id: LoadWeightsRequest(
                model_id=self.model_id,
                seq_id=seq_id,
                path=path,
                optimizer=optimizer,
                weights_access_token=weights_access_token,
            ),
            json_kind("LoadWeights", LoadWeightsResponse),
        )

    def save_weights_for_sampler(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> APIFuture[SaveWeightsForSamplerResponse]:
        """Save weights to sample from, without optimizer state."""
        seconds = _checked_save(name, ttl_seconds, user_metadata)
        work = self._run.operation(
            routes.SAVE_WEIGHTS_FOR_SAMPLER,
            lambda seq_id: SaveWeightsForSamplerRequest(
                model_id=self.model_id,
                path=name,
                seq_id=seq_id,
                ttl_seconds=seconds,
                user_metadata=user_metadata,
            ),
            json_kind("SaveWeightsForSampler", SaveWeightsForSamplerResponse),
            call_policies.SAVE,
        )
        return self._start(work)

    def save_weights_external(
        self,
        name: str,
        ttl_seconds: int | None = None,
        age_encryption_recipients: list[str] | None = None,
    ) -> APIFuture[SaveWeightsExternalResponse]:
        """Export weights for download; with recipients every file is encrypted for them (age)."""
        seconds = _checked_save(name, ttl_seconds, None)
        arguments.check_recipients(age_encryption_recipients)
        return self._start(
            self._run.operation(
                routes.SAVE_WEIGHTS_EXTERNAL,
                lambda seq_id: SaveWeightsExternalRequest(
                    model_id=self.model_id,
                    path=name,
                    seq_id=seq_id,
                    ttl_seconds=seconds,
                    age_encryption_recipients=age_encryption_recipients,
                ),
                json_kind("SaveWeightsExternal", SaveWeightsExternalResponse),
                call_policies.SAVE,
            )
        )

    save_state_async = async_twin(save_state)
    load_state_async = async_twin(load_state)
    load_state_with_optimizer_async = async_twin(load_state_with_optimizer)
    save_weights_for_sampler_async = async_twin(save_weights_for_sampler)
    save_weights_external_async = async_twin(save_weights_external)


def _checked_save(
    name: str, ttl_seconds: int | None, user_metadata: dict[str, str] | None
) -> int | None:
    """For how long to keep it."""
    arguments.check_checkpoint_name(name)
    arguments.check_metadata(user_metadata, only_text=True)
    return arguments.checked_ttl(ttl_seconds)
