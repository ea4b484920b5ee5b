"""SamplingClient: generate text from a model and score prompts with it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tinkex.client.api import call_policies
from tinkex.client.api.retry import RetryConfig, RetryHandler, server_says
from tinkex.client.concurrency.bridge import blocking, on_sdk_loop
from tinkex.client.concurrency.futures import APIFuture, AwaitableConcurrentFuture, ResultFuture
from tinkex.client.errors import (
    APIStatusError,
    BillingError,
    FutureRetrievalError,
    RateLimitError,
)
from tinkex.client.sampling.call import SampleCall, result_kind
from tinkex.client.sampling.numbering import Numbering
from tinkex.client.sampling.sharing import (
    SamplerState,
    read_handle,
    shadow_holder,
    write_handle,
)
from tinkex.client.sampling.streaming import SampleStream
from tinkex.client.session.batch_polling import SINGLE_POLLS, CompletionPoller
from tinkex.client.session.polling import ResultKind
from tinkex.client.settings.queue_state import (
    SAMPLING_RATE_REASON,
    QueueReporter,
    QueueState,
    QueueStateObserver,
)
from tinkex.types import (
    GetSamplerResponse,
    ModelInput,
    SampleResponse,
    SamplingParams,
    TensorData,
    UntypedAPIFuture,
)
from tinkex.wire import limits, routes

if TYPE_CHECKING:
    from tinkex.client.api.telemetry import Telemetry
    from tinkex.client.session.holder import InternalClientHolder

T = TypeVar("T")


class SamplingClient(QueueStateObserver):
    """Samples from one set of weights. Get one from a ServiceClient or a TrainingClient.

    Thousands of calls may be in flight at once. It can be pickled, and used after a fork: the copy
    samples from the same weights with request numbers of its own.
    """

    def __init__(
        self,
        holder: InternalClientHolder,
        *,
        sampling_session_id: str,
        shadow: bool = False,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> None:
        self.holder = holder
        self.feature_gates = set(holder.config.feature_gates)
        self._sampling_session_id = sampling_session_id
        self._retry_config = retry_config or RetryConfig()
        self._record_stability_info = record_stability_info
        self._start_numbering(shadow)
        self._queue = QueueReporter(
            f"Sampling for sampler {sampling_session_id}",
            SAMPLING_RATE_REASON,
            holder.config,
        )

    def __repr__(self) -> str:
        return f"SamplingClient(sampling_session_id={self._sampling_session_id!r})"

    def _start_numbering(self, shadow: bool) -> None:
        self._pid = os.getpid()
        self._fork_lock = threading.Lock()
        self._numbering = Numbering(self.holder, self._sampling_session_id, is_clone=shadow)
        self._handler: RetryHandler | None = None
        self._completions: CompletionPoller | None = None
        self._asking = 0

    def _submit(self, work: Coroutine[Any, Any, T]) -> ResultFuture[T]:
        if self._pid != os.getpid():
            self._adopt_process()
        return self.holder.submit(work)

    def _adopt_process(self) -> None:
        """This object was inherited through a fork: become a clone with a holder of our own."""
        with self._fork_lock:
            if self._pid != os.getpid():
                self.holder = shadow_holder(self._state())
                self._start_numbering(shadow=True)

    # ---- sampling

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> ResultFuture[SampleResponse]:
        """Generate ``num_samples`` continuations of a prompt.

        The prompt can be scored in the same request: all of it (``include_prompt_logprobs``), its
        last positions, the likeliest tokens at each position, or chosen tokens
        (``target_prompt_logprobs``: int64 ``[len(prompt) - 1, k]``, -1 skips a cell).
        """
        call = SampleCall.checked(
            prompt,
            num_samples,
            sampling_params,
            include_prompt_logprobs,
            topk_prompt_logprobs,
            topk_sample_logprobs,
            target_prompt_logprobs,
            prompt_alt_tokens_k,
            prompt_logprobs_last_n,
        )
        return self._submit(self._sample(call))

    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
    ) -> SampleResponse:
        """Like ``sample``; cancelling it cancels the sample."""
        return await asyncio.wrap_future(
            self.sample(
                prompt,
                num_samples,
                sampling_params,
                include_prompt_logprobs,
                topk_prompt_logprobs,
                topk_sample_logprobs,
                target_prompt_logprobs,
                prompt_alt_tokens_k,
                prompt_logprobs_last_n,
            )
        )

    def compute_logprobs(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> ResultFuture[list[float | None]]:
        """The logprob of every prompt token given those before it; the first is None."""
        call = SampleCall.scoring(prompt, prompt_logprobs_last_n)
        return self._submit(self._score(call))

    async def compute_logprobs_async(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        """Like ``compute_logprobs``."""
        return await asyncio.wrap_future(self.compute_logprobs(prompt, prompt_logprobs_last_n))

    async def _score(self, call: SampleCall) -> list[float | None]:
        await self.holder.ready()
        response = await self._handler_now().execute(self._attempt, call)
        if response.prompt_logprobs is None:
            raise FutureRetrievalError("The server returned no prompt logprobs.", "")
        return response.prompt_logprobs

    async def _sample(self, call: SampleCall) -> SampleResponse:
        await self.holder.ready()
        if self.holder.flags.sample_no_retries:
            return await self._attempt(call)
        return await self._handler_now().execute(self._attempt, call)

    def _handler_now(self) -> RetryHandler:
        if self._handler is None:
            flags = self.holder.flags
            unlimited = flags.sample_use_retrieve_futures
            config = replace(
                self._retry_config,
                max_connections=None if unlimited else flags.sample_max_concurrent_requests,
                enable_stuck_detection=self._retry_config.enable_stuck_detection
                and flags.sample_enable_stuck_detection,
            )
            self._handler = RetryHandler(config, self._sampling_session_id, self.holder.telemetry)
            self._handler.bus = self.holder.config.events
            self._handler.pause = self.holder.api.pause
        return self._handler

    async def _attempt(self, call: SampleCall) -> SampleResponse:
        """One submission and its result; every attempt is a new request with a new number."""
        seq_id = await self._numbering.next()
        started = asyncio.get_running_loop().time()
        promise = await self._dispatch(call, seq_id)
        roundtrip = asyncio.get_running_loop().time() - started
        try:
            return await self._collect(call, promise, roundtrip)
        except asyncio.CancelledError:
            self._cancel_on_server(promise.request_id)
            raise

    async def _dispatch(self, call: SampleCall, seq_id: int) -> UntypedAPIFuture:
        """Hand the request to the server, holding back for as long as it says it is busy."""
        body = await call.encode(
            self.holder, self._sampling_session_id, seq_id, self._record_stability_info
        )
        while True:
            async with self.holder.sampling.admission(call.size):
                try:
                    return await self._post(body)
                except (RateLimitError, BillingError) as error:
                    resend = self._should_resend(error)
                    if resend or error.status_code == 429:
                        self.holder.sampling.hold(call.size)
                    if not resend:
                        raise

    async def _post(self, body: bytes) -> UntypedAPIFuture:
        headers = {limits.HEADER_SAMPLING_BACKPRESSURE: "1"}
        return await self.holder.api.post(
            routes.ASAMPLE, body, UntypedAPIFuture, call_policies.SAMPLE, headers=headers
        )

    def _should_resend(self, error: APIStatusError) -> bool:
        if not self._retry_config.enable_retry_logic or server_says(error) is False:
            return False
        return error.status_code == 429 or self.holder.api.billing.goes_on(str(error))

    async def _collect(
        self, call: SampleCall, promise: UntypedAPIFuture, roundtrip: float
    ) -> SampleResponse:
        ids = promise.sample_sequence_ids or []
        if len(ids) != call.num_samples:
            raise FutureRetrievalError(
                f"The server promised {len(ids)} sequences for {call.num_samples} samples.",
                promise.request_id,
            )
        response = await self._poll(promise.request_id, result_kind(ids), roundtrip)
        call.check_honoured(response)
        return response

    async def _poll(
        self, request_id: str, kind: ResultKind[SampleResponse], roundtrip: float
    ) -> SampleResponse:
        poller = self.holder.poller
        batched = self.holder.flags.sample_use_retrieve_futures
        if not batched or self._asking < SINGLE_POLLS:
            self._asking += 1
            try:
                return await poller.result(request_id, kind, observer=self, roundtrip=roundtrip)
            finally:
                self._asking -= 1
        completions = self._completions_now()
        size = await completions.completion(request_id)
        try:
            return await poller.result(
                request_id, kind, observer=self, roundtrip=roundtrip, announced_size=size
            )
        finally:
            completions.acknowledge(request_id)

    def _completions_now(self) -> CompletionPoller:
        if self._completions is None:
            self._completions = CompletionPoller(
                self.holder.api, self._sampling_session_id, self._numbering.clone_id or 0
            )
            self.holder.on_close(self._completions.aclose)
        return self._completions

    def _cancel_on_server(self, request_id: str) -> None:
        if self.holder.dynamic_flags.sample_cancel_enabled:
            self.holder.cancel_future(request_id)

    # ---- streaming (an addition)

    def stream(self, prompt: ModelInput, sampling_params: SamplingParams) -> SampleStream:
        """One sample, token by token as it is generated; read with ``for`` or ``async for``.

        Only servers of this project stream. Not part of the official SDK.
        """
        call = SampleCall.checked(prompt, 1, sampling_params, False, 0, 0, None, 0, None)
        return SampleStream(self, call)

    sample_stream = stream

    async def _stream_body(self, call: SampleCall) -> bytes:
        """The request of a stream, with the next number. Only on the SDK's loop."""
        await self.holder.ready()
        return await call.encode(
            self.holder, self._sampling_session_id, await self._numbering.next(), False
        )

    # ---- asking

    @on_sdk_loop
    async def get_base_model_async(self) -> str:
        """The name of the base model."""
        return (await self._sampler_info()).base_model

    get_base_model = blocking(get_base_model_async)

    async def _sampler_info(self) -> GetSamplerResponse:
        await self.holder.ready()
        path = routes.SAMPLER.format(sampler_id=self._sampling_session_id)
        return await self.holder.api.get(path, GetSamplerResponse, call_policies.TRAINING)

    def get_tokenizer(self) -> Any:
        """The tokenizer of the base model; see ``tinkex.client.tokenizer``."""
        from tinkex.client.tokenizer import tokenizer_for

        info = self._submit(self._sampler_info()).result_here()
        return tokenizer_for(info.base_model, None, self.holder)

    def get_telemetry(self) -> Telemetry | None:
        """What reports to the server, or None when nothing does."""
        return self.holder.get_telemetry()

    def on_queue_state_change(
        self, queue_state: QueueState, queue_state_reason: str | None
    ) -> None:
        """Told why results are late; override to react. Logs pauses once a minute."""
        self._queue.on_queue_state_change(queue_state, queue_state_reason)

    # ---- making one

    @staticmethod
    def create(
        holder: InternalClientHolder,
        *,
        model_path: str | None = None,
        base_model: str | None = None,
        sampling_session_id: str | None = None,
        retry_config: RetryConfig | None = None,
        record_stability_info: bool = False,
    ) -> APIFuture[SamplingClient]:
        """Open a sampler, or take over one by its id."""
        from tinkex.client.sampling.opening import open_sampler

        return AwaitableConcurrentFuture(
            holder.submit(
                open_sampler(
                    holder,
                    model_path=model_path,
                    base_model=base_model,
                    sampling_session_id=sampling_session_id,
                    retry_config=retry_config,
                    record_stability_info=record_stability_info,
                )
            )
        )

    # ---- sharing one

    def _state(self) -> SamplerState:
        return SamplerState.of(
            self.holder, self._sampling_session_id, self._record_stability_info, self._retry_config
        )

    def __reduce__(self) -> tuple[Any, tuple[SamplerState]]:
        return _restore, (self._state(),)

    def get_sampler_handle(self) -> str:
        """Text from which another process can make the same client. Holds no credentials."""
        return write_handle(self._state())

    @staticmethod
    def from_sampler_handle(handle: str, *, api_key: str | None = None) -> SamplingClient:
        """A client from a handle, with this process's credentials."""
        return _restore(read_handle(handle, api_key))


def _restore(state: SamplerState) -> SamplingClient:
    return SamplingClient(
        shadow_holder(state),
        sampling_session_id=state.sampling_session_id,
        shadow=True,
        retry_config=state.retry_config,
        record_stability_info=state.record_stability_info,
    )
