"""What is kept of a finished sample: what was used, a span of its session's trace, its routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tinkex.engine.messages import Sample, SampleResult
from tinkex.server.engines.pool import Engines
from tinkex.server.protocol.sample_request import SampleRequest
from tinkex.server.sampling.kept_routes import KeptRoutes
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.server.storage.database.usage import Source
from tinkex.server.tenancy.usage import Meter
from tinkex.server.tracing.session_traces import Traces
from tinkex.server.tracing.trace_events import Span

OnSampled: TypeAlias = Callable[[SamplerRow, Sample, SampleResult], None]
"""Called with each sample that ended well: the sampler, the request, the result."""


class SampleRecords:
    """Records usage, traces and routes of samples."""

    def __init__(
        self,
        meter: Meter,
        traces: Traces,
        on_sampled: OnSampled,
        routes: KeptRoutes,
        engines: Engines,
    ) -> None:
        self._meter = meter
        self._on_sampled = on_sampled
        self._traces = traces
        self._routes = routes
        self._engines = engines

    def count(self, sampler: SamplerRow, request: SampleRequest, result: SampleResult) -> None:
        source = Source(sampler.tenant, sampler.session_id, "", sampler.base_model)
        fresh = len(request.command.prompt) - result.cached_tokens
        self._meter.add(source, "sampling_prefill", fresh)
        self._meter.add(source, "sampling_prefill", result.cached_tokens, cached=True)
        sampled = sum(len(sequence.tokens) for sequence in result.sequences)
        self._meter.add(source, "sampling_sample", sampled)
        model = self._engines.model_of(sampler.base_model)
        self._routes.keep(sampler.tenant, model, request.command, result.sequences)
        self._on_sampled(sampler, request.command, result)

    def trace(
        self,
        sampler: SamplerRow,
        request: SampleRequest,
        times: tuple[float, float | None, float],
        failed: bool,
    ) -> None:
        """`times` are when it was accepted, sent and finished."""
        args = {
            "seq_id": request.seq_id,
            "prompt_tokens": len(request.command.prompt),
            "num_samples": request.command.num_samples,
            "failed": failed,
        }
        span = Span(request.sampler_id, "asample", *times, args)
        self._traces.sample(sampler.session_id, span)
