"""ServiceClient: the entry point. Opens a session and makes the other clients."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future as ConcurrentFuture
from concurrent.futures import wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from tinkex.client import arguments
from tinkex.client.api import call_policies
from tinkex.client.concurrency.bridge import blocking, on_sdk_loop
from tinkex.client.concurrency.futures import APIFuture, AwaitableConcurrentFuture, ResultFuture
from tinkex.client.errors import ClientClosedError
from tinkex.client.rest import RestClient
from tinkex.client.sampling.client import SamplingClient
from tinkex.client.sampling.opening import open_sampler
from tinkex.client.session.holder import HolderKind, InternalClientHolder
from tinkex.client.settings.config import Config
from tinkex.client.training import creation
from tinkex.client.training.client import TrainingClient
from tinkex.client.training.custom_loss import LossHandle, PerDatumLossFn
from tinkex.client.training.loss_upload import register_loss
from tinkex.types import (
    CustomLossInputRank,
    GetServerCapabilitiesResponse,
    LoraConfig,
    OptimizerConfig,
)
from tinkex.types.checkpoints import CONSOLE_URL
from tinkex.wire import routes

if TYPE_CHECKING:
    from tinkex.client.api.retry import RetryConfig
    from tinkex.client.api.telemetry import Telemetry
    from tinkex.client.events.metrics import Snapshot

T = TypeVar("T")

FinishStatus = Literal["success", "errored", "interrupted"]


class ServiceClient:
    """The entry point. Constructing one does no I/O; the first use opens a session.

    Use it as a context manager, or call ``close``: either ends the session on the server and
    leaves nothing running here. ``base_url="local"`` uses the embedded server. Any setting of
    ``Config`` can be given by name, such as ``queue_state_observer=…`` or ``breaker=…``.
    """

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        *,
        display_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        default_headers_overrides: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        settings = {name: kwargs.pop(name) for name in Config.settings() & kwargs.keys()}
        if kwargs:
            warnings.warn(
                f"ServiceClient ignores unknown arguments: {', '.join(sorted(kwargs))}",
                FutureWarning,
                stacklevel=2,
            )
        config = Config.resolve(
            base_url=base_url, api_key=api_key, headers=default_headers_overrides, **settings
        )
        self._initialise(config, user_metadata, project_id, display_name)

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        display_name: str | None = None,
    ) -> Self:
        """A client for an explicit configuration (an addition to the official SDK)."""
        client = cls.__new__(cls)
        client._initialise(config, user_metadata, project_id, display_name)
        return client

    def _initialise(
        self,
        config: Config,
        user_metadata: dict[str, str] | None,
        project_id: str | None,
        display_name: str | None,
    ) -> None:
        arguments.check_metadata(user_metadata)
        self.config = config
        self._user_metadata = user_metadata
        self._project_id = project_id or config.project_id
        self._display_name = display_name
        self._lock = threading.Lock()
        self._closed = False
        self._session_holder: InternalClientHolder | None = None
        self._sessionless_holder: InternalClientHolder | None = None

    def __repr__(self) -> str:
        return f"ServiceClient(base_url={self.config.base_url!r})"

    # ---- holders

    def _get_session_holder(self) -> InternalClientHolder:
        with self._lock:
            self._check_open()
            if self._session_holder is None:
                self._session_holder = InternalClientHolder(
                    self.config,
                    user_metadata=self._user_metadata,
                    project_id=self._project_id,
                    display_name=self._display_name,
                )
            return self._session_holder

    def _get_rest_holder(self) -> InternalClientHolder:
        with self._lock:
            self._check_open()
            if self._sessionless_holder is None:
                self._sessionless_holder = InternalClientHolder(
                    self.config, kind=HolderKind.SESSIONLESS
                )
            return self._sessionless_holder

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("ServiceClient is closed")

    def _submit(self, work: Coroutine[Any, Any, T]) -> ResultFuture[T]:
        try:
            holder = self._get_session_holder()
        except ClientClosedError:
            work.close()
            raise
        return holder.submit(work)

    @property
    def holder(self) -> InternalClientHolder:
        """The internals of this session; reading it opens the session."""
        holder = self._get_session_holder()
        if not holder.on_loop:
            holder.submit(holder.ready()).result_here()
        return holder

    # ---- asking

    @on_sdk_loop
    async def get_server_capabilities_async(self) -> GetServerCapabilitiesResponse:
        """Which models the server offers. Opens no session."""
        holder = self._get_rest_holder()
        await holder.ready()
        return await holder.api.get(
            routes.SERVER_CAPABILITIES, GetServerCapabilitiesResponse, call_policies.REST
        )

    get_server_capabilities = blocking(get_server_capabilities_async)

    def get_console_url(self) -> str:
        """Where the console of the hosted service shows this."""
        holder = self._session_holder
        opened = holder is not None and holder.has_session
        return f"{CONSOLE_URL}/sessions" + (f"/{holder.session_id}" if opened and holder else "")

    def get_telemetry(self) -> Telemetry | None:
        """What reports to the server, or None when nothing does."""
        holder = self._session_holder or self._sessionless_holder
        return None if holder is None else holder.get_telemetry()

    def metrics(self) -> Snapshot:
        """Counters and latencies of this client's event bus (an addition)."""
        return self.config.events.metrics.snapshot()

    # ---- training clients

    @on_sdk_loop
    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """A new model to train, with low-rank adapters. Returns when the server has made it."""
        flags = {"train_mlp": train_mlp, "train_attn": train_attn, "train_unembed": train_unembed}
        arguments.check_lora(base_model, rank, seed, flags)
        arguments.check_metadata(user_metadata)
        lora = LoraConfig(rank=rank, seed=seed, **flags)
        return await creation.create_model(
            self._get_session_holder(),
            base_model,
            lora,
            user_metadata,
            arguments.as_optimizer(optimizer),
        )

    create_lora_training_client = blocking(create_lora_training_client_async)

    @on_sdk_loop
    async def create_training_client_from_state_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """A new model that starts from saved weights, with a fresh optimizer.

        ``weights_access_token`` is the key of another account that may read the checkpoint.
        """
        state = creation.State(
            path, base_model, user_metadata, weights_access_token, optimizer, False
        )
        return await creation.from_state(self._get_session_holder(), state, self._weights_info)

    create_training_client_from_state = blocking(create_training_client_from_state_async)

    @on_sdk_loop
    async def create_training_client_from_state_with_optimizer_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """A new model that goes on exactly where the saved one stopped."""
        state = creation.State(path, base_model, user_metadata, weights_access_token, None, True)
        return await creation.from_state(self._get_session_holder(), state, self._weights_info)

    create_training_client_from_state_with_optimizer = blocking(
        create_training_client_from_state_with_optimizer_async
    )

    async def _weights_info(self, path: str, weights_access_token: str | None) -> Any:
        if weights_access_token is None:
            return await self._rest().weights_info(path)
        config = self.config.with_key(weights_access_token)
        holder = InternalClientHolder(config, kind=HolderKind.SESSIONLESS)
        try:
            return await RestClient(holder).weights_info(path)
        finally:
            await holder.aclose()

    # ---- sampling clients

    @on_sdk_loop
    async def create_sampling_client_async(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """A client that samples from saved weights or from a base model."""
        if model_path is None and base_model is None:
            raise ValueError("give model_path (a tinker:// path) or base_model (a model's name)")
        if model_path is not None:
            arguments.check_model_path(model_path, "model_path")
        if base_model is not None:
            arguments.check_text(base_model, "base_model")
        return await open_sampler(
            self._get_session_holder(),
            model_path=model_path,
            base_model=base_model,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )

    create_sampling_client = blocking(create_sampling_client_async)

    # ---- custom losses

    def create_custom_loss(
        self, fn: PerDatumLossFn, input_ranks: Mapping[str, CustomLossInputRank]
    ) -> APIFuture[LossHandle]:
        """Trace a per-datum loss for use with ``TrainingClient.forward_backward_custom``.

        ``input_ranks`` names every parameter of ``fn``, ``logprobs`` included, and says how many
        dimensions it has. Needs torch.
        """
        from tinkex.client.training.loss_tracing import declared_inputs, trace

        inputs = declared_inputs(fn, input_ranks)
        graph = trace(fn)
        name = getattr(fn, "__name__", type(fn).__name__)
        return AwaitableConcurrentFuture(
            self._submit(register_loss(self._get_session_holder(), name, inputs, graph))
        )

    # ---- REST

    def copy_weights(
        self,
        path: str,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> AwaitableConcurrentFuture[str]:
        """Copy a checkpoint into this client's project; the result is its new path."""
        return self._rest().copy_weights(
            path,
            self._project_id,
            ttl_seconds=ttl_seconds,
            weights_access_token=weights_access_token,
        )

    def _rest(self) -> RestClient:
        return RestClient(self._get_rest_holder())

    def create_rest_client(self) -> RestClient:
        """Deprecated: construct ``RestClient`` directly."""
        warnings.warn(
            "create_rest_client is deprecated: use RestClient()", FutureWarning, stacklevel=2
        )
        return self._rest()

    # ---- closing

    def close(
        self, status: FinishStatus, detail: str | None = None
    ) -> AwaitableConcurrentFuture[None]:
        """End the session on the server and stop everything here. Closing twice is harmless."""
        if status not in ("success", "errored", "interrupted"):
            raise ValueError(f"status: must be success, errored or interrupted, got {status!r}")
        with self._lock:
            holders = [h for h in (self._session_holder, self._sessionless_holder) if h is not None]
            if self._closed or not holders or holders[0].forked:
                self._closed = True
                done: ConcurrentFuture[None] = ConcurrentFuture()
                done.set_result(None)
                return AwaitableConcurrentFuture(done)
            self._closed = True
        return AwaitableConcurrentFuture(holders[0].submit_closing(_close(holders, status, detail)))

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status: FinishStatus = "success"
        if exc_type is not None:
            status = "errored" if issubclass(exc_type, Exception) else "interrupted"
        try:
            wait([closing := self.close(status).future()])
            closing.result()
        finally:
            for holder in (self._session_holder, self._sessionless_holder):
                if holder is not None:
                    holder.join()

    def __reduce__(self) -> Any:
        raise TypeError(
            "A ServiceClient cannot be pickled: create one in each process, or pass a "
            "SamplingClient, which can be shared."
        )


async def _close(holders: list[InternalClientHolder], status: str, detail: str | None) -> None:
    try:
        for holder in holders:
            await holder.finish(status, detail)
    finally:
        for holder in holders:
            await holder.aclose()
