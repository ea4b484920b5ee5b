"""TrainingClient: train one model, save it, load it, and sample from it."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future as ConcurrentFuture
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tinkex.client import arguments
from tinkex.client.api import call_policies
from tinkex.client.concurrency.bridge import async_twin, blocking, on_sdk_loop
from tinkex.client.concurrency.futures import APIFuture, AwaitableConcurrentFuture
from tinkex.client.concurrency.running_loop import warn_if_blocking
from tinkex.client.errors import FutureRetrievalError
from tinkex.client.settings.queue_state import TRAINING_RATE_REASON, QueueReporter, QueueState
from tinkex.client.training.custom_loss import (
    CustomLossFnV1,
    CustomLossStep,
    LossHandle,
    custom_step,
)
from tinkex.client.training.run import TrainingRun, json_kind, then
from tinkex.client.training.saving import SavingClient
from tinkex.types import (
    AdamParams,
    Datum,
    ForwardBackwardOutput,
    GetInfoRequest,
    GetInfoResponse,
    LossFnType,
    OptimParams,
    OptimStepRequest,
    OptimStepResponse,
    SaveWeightsForSamplerRequest,
    SaveWeightsForSamplerResponseInternal,
)
from tinkex.types.checkpoints import CONSOLE_URL
from tinkex.types.optimizer import DimuonParams, OptimParamsBase
from tinkex.types.strictness import twin
from tinkex.wire import routes
from tinkex.wire.json import encode_request

if TYPE_CHECKING:
    from tinkex.client.api.retry import RetryConfig
    from tinkex.client.api.telemetry import Telemetry
    from tinkex.client.sampling.client import SamplingClient
    from tinkex.client.session.holder import InternalClientHolder

T = TypeVar("T")

logger = logging.getLogger("tinkex")


class TrainingClient(SavingClient):
    """Trains one model. Get one from ``ServiceClient.create_lora_training_client``.

    Every call is submitted at once, in the order of the calls, and returns a future: submit
    ``forward_backward`` and ``optim_step``, then wait for both. The ``_async`` forms give the same
    future after one ``await``; a second ``await`` gives the result.
    """

    def __init__(self, holder: InternalClientHolder, model_seq_id: int, model_id: str) -> None:
        self.holder = holder
        self.model_id = model_id
        self._queue = QueueReporter(
            f"Training for {model_id}",
            TRAINING_RATE_REASON,
            holder.config,
        )
        self._run = TrainingRun(holder, model_id, self)  # type: ignore[arg-type]  # one by its method
        logger.info("training run %s is ready", model_id)

    def __repr__(self) -> str:
        return f"TrainingClient(model_id={self.model_id!r})"

    def _guaranteed_model_id(self) -> str:
        # Programs for the official SDK call it, from when model_id could be None.
        return self.model_id

    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None:
        """Told why results are late; override to react. Logs pauses once a minute."""
        self._queue.on_queue_state_change(queue_state, queue_state_reason)

    # ---- computing

    def forward(
        self,
        data: list[Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Evaluate a loss without keeping gradients."""
        return self._forward_backward(data, loss_fn, loss_fn_config, forward_only=True)

    def forward_backward(
        self,
        data: list[Datum],
        loss_fn: LossFnType,
        loss_fn_config: Mapping[str, float | str] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Evaluate a loss and add its gradients to those already accumulated.

        Large batches travel as several requests and come back as one result. The loss is
        ``result.metrics["loss:sum"]``.
        """
        return self._forward_backward(data, loss_fn, loss_fn_config, forward_only=False)

    def _forward_backward(
        self,
        data: list[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        *,
        forward_only: bool,
        finish: Callable[[ForwardBackwardOutput], ForwardBackwardOutput] | None = None,
    ) -> AwaitableConcurrentFuture[ForwardBackwardOutput]:
        datums = arguments.checked_data(data)
        arguments.check_no_nan(datums)
        settings = arguments.checked_loss(loss_fn, config)
        work = self._run.forward_backward(
            datums, loss_fn, settings, forward_only=forward_only, finish=finish
        )
        return self._start(work)

    def forward_backward_custom(
        self,
        data: list[Datum],
        loss_fn: CustomLossFnV1 | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Train on your own loss.

        Blocks through the forward pass and the call of ``loss_fn(data, logprobs)``, which returns
        ``(loss, metrics)``; the future is that of the backward pass. Needs torch. A ``LossHandle``
        the server knows is one request, without a forward pass here.
        """
        data = arguments.checked_data(data)
        step = self._custom_step(data, loss_fn, loss_type_input)
        if step is None:
            return self._server_side_loss(data, loss_fn)
        warn_if_blocking("forward_backward_custom", "forward_backward_custom_async")
        forward = self._forward_backward(
            step.forward_data, "cross_entropy", None, forward_only=True
        )
        wait([done := forward.future()])
        return self._backward(step, done.result())

    async def forward_backward_custom_async(
        self,
        data: list[Datum],
        loss_fn: CustomLossFnV1 | LossHandle,
        *,
        loss_type_input: Literal["logprobs"] | None = None,
    ) -> APIFuture[ForwardBackwardOutput]:
        """Like ``forward_backward_custom``, without blocking during the forward pass."""
        data = arguments.checked_data(data)
        step = self._custom_step(data, loss_fn, loss_type_input)
        if step is None:
            return self._server_side_loss(data, loss_fn)
        forward = self._forward_backward(
            step.forward_data, "cross_entropy", None, forward_only=True
        )
        return self._backward(step, await forward)

    def _custom_step(
        self, data: list[Datum], loss_fn: CustomLossFnV1 | LossHandle, loss_type_input: str | None
    ) -> CustomLossStep | None:
        """What to run here, or None when the server runs the loss."""
        if loss_type_input not in (None, "logprobs"):
            raise ValueError(f'loss_type_input: only "logprobs" exists, got {loss_type_input!r}')
        if loss_type_input is not None:
            warnings.warn(
                "loss_type_input is deprecated: leave it out", DeprecationWarning, stacklevel=3
            )
        if isinstance(loss_fn, LossHandle):
            loss_fn.check_usable(data, self.holder.session_id)
            if loss_fn.loss_id is not None:
                return None
        return custom_step(data, loss_fn)

    def _server_side_loss(
        self, data: list[Datum], handle: CustomLossFnV1 | LossHandle
    ) -> APIFuture[ForwardBackwardOutput]:
        assert isinstance(handle, LossHandle)
        assert handle.loss_id is not None
        config = {"loss_id": handle.loss_id}
        return self._forward_backward(data, "custom", config, forward_only=False)

    def _backward(
        self, step: CustomLossStep, forward: ForwardBackwardOutput
    ) -> APIFuture[ForwardBackwardOutput]:
        backward_data = step.backward_data(forward)
        return self._forward_backward(
            backward_data, "cross_entropy", None, forward_only=False, finish=step.finish
        )

    def optim_step(
        self, optim_params: OptimParams | None = None, *, adam_params: AdamParams | None = None
    ) -> APIFuture[OptimStepResponse]:
        """Apply the accumulated gradients and clear them. ``adam_params`` is the older name.

        Metrics, where the server sends any, have names of their own (``optim/grad_norm``): they
        can be merged into any log.
        """
        params = _optimizer_params(optim_params, adam_params)
        return self._start(
            self._run.optim_step(
                lambda seq_id: OptimStepRequest(
                    optim_params=params, model_id=self.model_id, seq_id=seq_id
                ),
                getattr(params, "learning_rate", None),
            )
        )

    # ---- asking

    @on_sdk_loop
    async def get_info_async(self) -> GetInfoResponse:
        """What the server knows about this model."""
        info = await self.holder.api.post(
            routes.GET_INFO,
            encode_request(GetInfoRequest(model_id=self.model_id)),
            GetInfoResponse,
            call_policies.TRAINING,
        )
        tokenizer_id = info.model_data.tokenizer_id
        if tokenizer_id is None or ":" not in tokenizer_id:
            return info
        model_data = info.model_data.model_copy(
            update={"tokenizer_id": tokenizer_id.partition(":")[0]}
        )
        return info.model_copy(update={"model_data": model_data})

    get_info = blocking(get_info_async)

    def get_tokenizer(self) -> Any:
        """The tokenizer of the base model; see ``tinkex.client.tokenizer``."""
        from tinkex.client.tokenizer import tokenizer_for

        data = self._submit(_core(self.get_info_async)(self)).result_here().model_data
        arguments.check_text(data.model_name, "model_name of the server's model info")
        return tokenizer_for(str(data.model_name), data.tokenizer_id, self.holder)

    def get_console_url(self) -> str:
        """Where the console of the hosted service shows this."""
        return f"{CONSOLE_URL}/training_runs/{self.model_id}"

    def get_telemetry(self) -> Telemetry | None:
        """What reports to the server, or None when nothing does."""
        return self.holder.get_telemetry()

    # ---- sampling

    @on_sdk_loop
    async def create_sampling_client_async(
        self,
        model_path: str,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """A client that samples from saved weights, in this run's session."""
        from tinkex.client.sampling.opening import open_sampler

        arguments.check_model_path(model_path, "model_path")
        return await open_sampler(
            self.holder,
            model_path=model_path,
            base_model=None,
            retry_config=retry_config,
            record_stability_info=record_stability_info,
        )

    create_sampling_client = blocking(create_sampling_client_async)

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Sample from the weights as they are now. Nothing is listed as a checkpoint."""
        warn_if_blocking(
            "save_weights_and_get_sampling_client", "save_weights_and_get_sampling_client_async"
        )
        return self._save_for_new_sampler(name, retry_config, record_stability_info).result()

    async def save_weights_and_get_sampling_client_async(
        self,
        name: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Like ``save_weights_and_get_sampling_client``; takes its turn when first awaited."""
        return await asyncio.wrap_future(
            self._save_for_new_sampler(name, retry_config, record_stability_info)
        )

    def _save_for_new_sampler(
        self, name: str | None, retry_config: RetryConfig | None, record_stability_info: bool
    ) -> ConcurrentFuture[SamplingClient]:
        from tinkex.client.sampling.client import SamplingClient

        if name is not None:
            warnings.warn(
                "name has no effect here: the sampler is ephemeral. Use save_weights_for_sampler "
                "to keep the weights.",
                DeprecationWarning,
                stacklevel=3,
            )
        number = next(self.holder.sampler_numbers)
        work = self._run.operation(
            routes.SAVE_WEIGHTS_FOR_SAMPLER,
            lambda seq_id: SaveWeightsForSamplerRequest(
                model_id=self.model_id, seq_id=seq_id, sampling_session_seq_id=number
            ),
            json_kind("SaveWeightsForSampler", SaveWeightsForSamplerResponseInternal),
            call_policies.SAVE,
        )

        def make(saved: SaveWeightsForSamplerResponseInternal) -> SamplingClient:
            if saved.sampling_session_id is None:
                raise FutureRetrievalError("The server saved the weights but named no sampler.", "")
            return SamplingClient(
                self.holder,
                sampling_session_id=saved.sampling_session_id,
                retry_config=retry_config,
                record_stability_info=record_stability_info,
            )

        return self._submit(then(work, make))

    forward_async = async_twin(forward)
    forward_backward_async = async_twin(forward_backward)
    optim_step_async = async_twin(optim_step)

    def __reduce__(self) -> Any:
        raise TypeError(
            "A TrainingClient cannot be pickled: its operations are ordered in one process. "
            "Pass a SamplingClient to other processes, or create a client from saved state there."
        )


def _core(method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The coroutine function under a bridged method, without a bound ``self``."""
    function = getattr(method, "__func__", method)
    return getattr(function, "__wrapped__", function)


def _optimizer_params(
    optim_params: OptimParams | None, adam_params: AdamParams | None
) -> OptimParams:
    if optim_params is not None and adam_params is not None:
        raise ValueError("optim_params and adam_params are two names for one thing: give one")
    given = adam_params if optim_params is None else optim_params
    params = twin(given, AdamParams, DimuonParams)
    if not isinstance(params, AdamParams | OptimParamsBase):
        kind = "nothing" if params is None else type(params).__name__
        raise TypeError(f"optim_params: expected AdamParams or another optimizer's, got {kind}")
    return params
