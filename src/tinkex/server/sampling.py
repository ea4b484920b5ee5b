"""Samples in flight: admitted within limits, sent fairly, answered once, kept for a while.

Samples are not logged. If the engine dies they are sent again; if the server does, polls for them
are answered with 410 and clients resubmit. `windows` remembers enough to tell batch pollers so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from tinkex.engine.messages import Cancel, Progress, SampleResult
from tinkex.server import manifest
from tinkex.server.blobs import Folders
from tinkex.server.clock import Clock
from tinkex.server.completions import Completions
from tinkex.server.engines import Engines
from tinkex.server.fairness import Fairness
from tinkex.server.outcomes import failure
from tinkex.server.refusals import Busy, Gone, Refusal
from tinkex.server.sample_request import SampleRequest
from tinkex.server.sample_windows import SampleWindows
from tinkex.server.samplers import Samplers
from tinkex.server.settings import Settings
from tinkex.server.store.samplers import SamplerRow
from tinkex.server.store.usage import Source
from tinkex.server.supervisor import CommandFailed, Engine, EngineLost
from tinkex.server.trace import Span
from tinkex.server.traces import Traces
from tinkex.server.usage import Meter
from tinkex.server.waiting import Outcome, Promise, Promises
from tinkex.server.weights import BASE, LoadedWeights
from tinkex.types.sampling import SampledWeights

logger = logging.getLogger(__name__)

Encode = Callable[[SampleResult, SampledWeights], bytes]
_NAMED = 4096
CLONE_STRIDE = 10**9
_IDLE_S = 600.0


@dataclass(slots=True, eq=False)
class Job:
    """One sample, from admission until its result is dropped."""

    request: SampleRequest
    request_id: str
    sampler: SamplerRow
    engine: Engine
    promise: Promise
    size: int
    accepted_at: float
    deaths: int = 0
    sent: bool = False
    sent_at: float | None = None
    cancelled: bool = False
    finished_at: float | None = None
    fetched_at: float | None = None
    on_progress: Callable[[Progress], None] | None = None

    @property
    def sequences(self) -> int:
        return self.request.command.num_samples

    @property
    def sequence_ids(self) -> list[str]:
        return [f"{self.request_id}:{index}" for index in range(self.sequences)]


@dataclass(slots=True)
class _Lane:
    """The samples of one engine: queued per tenant, and how many sequences are with it."""

    engine: Engine
    weights: LoadedWeights
    queues: dict[str, deque[Job]] = field(default_factory=dict)
    fairness: Fairness = field(default_factory=Fairness)
    sequences: int = 0


class Sampling:
    """All samples of the server."""

    def __init__(
        self,
        samplers: Samplers,
        engines: Engines,
        folders: Folders,
        promises: Promises,
        windows: SampleWindows,
        meter: Meter,
        traces: Traces,
        encode: Encode,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._samplers = samplers
        self._engines = engines
        self._folders = folders
        self._promises = promises
        self._windows = windows
        self._meter = meter
        self._traces = traces
        self._encode = encode
        self._clock = clock
        self._settings = settings
        self._jobs: dict[str, Job] = {}
        self._finished: deque[Job] = deque()
        self._streams: dict[tuple[str, int], Completions] = {}
        self._named: dict[str, SampledWeights] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._result_bytes = 0
        self._per_tenant: dict[str, int] = {}
        self._lanes = {
            engine.spec.name: _Lane(
                engine, LoadedWeights(engine, settings.scheduling.loaded_weights)
            )
            for engine in engines
        }
        for engine in engines:
            engine.listen(self.pump)

    # ---- in

    async def submit(self, tenant: str, request: SampleRequest, size: int) -> Job:
        """Admit a sample; the same number again gives the same one."""
        sampler = self._samplers.owned(tenant, request.sampler_id)
        request_id = f"{request.sampler_id}:{request.seq_id}"
        known = self._jobs.get(request_id)
        if known is not None:
            if known.request.digest != request.digest:
                raise Refusal(f"seq_id {request.seq_id} was already used for another sample")
            return known
        self._check_room(tenant, size)
        clone = request.seq_id // CLONE_STRIDE
        if not self._windows.covers(sampler.sampler_id, clone, request.seq_id):
            oldest = self._oldest(sampler.sampler_id, clone, request.seq_id)
            await self._windows.extend(sampler.sampler_id, clone, request.seq_id, oldest)
            if request_id in self._jobs:
                return self._jobs[request_id]
        promise = self._promises.add(request_id, tenant)
        engine = self._engines.get(sampler.base_model)
        engine.wake()
        job = Job(request, request_id, sampler, engine, promise, size, self._clock.now())
        self._admit(job)
        return job

    def _oldest(self, sampler_id: str, clone: int, number: int) -> int:
        """The lowest number of this client whose sample is still here, else `number`."""
        requests = (job.request for job in self._jobs.values())
        mine = [
            request.seq_id
            for request in requests
            if request.sampler_id == sampler_id and request.seq_id // CLONE_STRIDE == clone
        ]
        return min(mine, default=number)

    def find(self, tenant: str, request_id: str) -> Job | None:
        job = self._jobs.get(request_id)
        return job if job is not None and job.sampler.tenant == tenant else None

    def cancel(self, tenant: str, request_id: str) -> None:
        """Stop a sample nobody wants any more. Unknown or finished ones are no error."""
        job = self.find(tenant, request_id)
        if job is None or job.finished_at is not None:
            return
        job.cancelled = True
        if job.sent:
            self._spawn(self._cancel(job))
        else:
            self._lanes[job.engine.spec.name].queues[tenant].remove(job)
            self._finish(job, failure("user", "cancelled"))

    def _admit(self, job: Job) -> None:
        tenant = job.sampler.tenant
        self._jobs[job.request_id] = job
        self._waiting_bytes += job.size
        self._per_tenant[tenant] = self._per_tenant.get(tenant, 0) + 1
        lane = self._lanes[job.engine.spec.name]
        lane.queues.setdefault(tenant, deque()).append(job)
        self.pump()

    def _check_room(self, tenant: str, size: int) -> None:
        limits = self._settings.limits
        if self._per_tenant.get(tenant, 0) >= limits.samples_per_tenant:
            raise Busy(f"{limits.samples_per_tenant} samples of this key are in flight", 1.0)
        if sum(self._per_tenant.values()) >= limits.samples:
            raise Busy(f"{limits.samples} samples are in flight on this server", 1.0)
        if self._waiting_bytes + size > limits.sample_bytes:
            raise Busy("the waiting prompts fill the memory set aside for them", 1.0)
        if self._result_bytes > limits.sample_result_bytes:
            raise Busy("the results nobody fetched fill the memory set aside for them", 1.0)

    # ---- to the engine and back

    def pump(self) -> None:
        """Send what fits, the tenant served least in front."""
        for lane in self._lanes.values():
            while lane.engine.is_ready and self._send_one(lane):
                pass

    def _send_one(self, lane: _Lane) -> bool:
        if lane.sequences >= self._settings.scheduling.sequences_in_flight:
            return False
        tenants = [tenant for tenant, queue in lane.queues.items() if queue]
        for tenant in lane.fairness.waiting(tenants):
            job = lane.queues[tenant].popleft()
            if not lane.queues[tenant]:
                del lane.queues[tenant]
            lane.fairness.charge(tenant, _cost(job))
            lane.sequences += job.sequences
            job.sent, job.sent_at = True, self._clock.now()
            self._spawn(self._carry(job, lane))
            return True
        return False

    async def _carry(self, job: Job, lane: _Lane) -> None:
        try:
            outcome = await self._outcome(job, lane)
        finally:
            lane.sequences -= job.sequences
        if outcome is None:
            job.sent = False
            lane.queues.setdefault(job.sampler.tenant, deque()).appendleft(job)
        else:
            self._finish(job, outcome)
        self.pump()

    async def _outcome(self, job: Job, lane: _Lane) -> Outcome | None:
        """How a sample ended, or None when it has to be sent again."""
        folder = job.sampler.folder
        path = None if folder is None else self._folders.path(folder)
        if path is not None and not path.is_dir():
            return failure("user", "this sampler's session ended and its weights were dropped")
        weights = folder or BASE
        stream = job.on_progress is not None
        command = job.request.addressed(f"sample:{job.request_id}", weights, stream)
        try:
            async with lane.weights.use(weights, path):
                result = await lane.engine.submit(command, job.on_progress)
            made_by = await self._weights(job.sampler)
        except EngineLost:
            return self._again(job)
        except CommandFailed as failed:
            return failure("user" if failed.kind != "server" else "server", failed.message)
        except Exception as error:
            logger.exception("sample %s broke", job.request_id)
            return failure("server", f"the server failed on this: {type(error).__name__}")
        assert isinstance(result, SampleResult)
        self._count(job, result)
        return Outcome("protobuf", self._encode(result, made_by))

    async def _weights(self, sampler: SamplerRow) -> SampledWeights:
        """Which weights a sampler serves; they never change."""
        known = self._named.get(sampler.sampler_id)
        if known is None:
            digest = None
            if sampler.folder is not None:
                folder = self._folders.path(sampler.folder)
                digest = await asyncio.to_thread(manifest.digest_of, folder)
            known = SampledWeights(sampler.base_model, sampler.model_path, digest)
            if len(self._named) >= _NAMED:
                self._named.pop(next(iter(self._named)))
            self._named[sampler.sampler_id] = known
        return known

    def _again(self, job: Job) -> Outcome | None:
        job.deaths += 1
        if job.cancelled:
            return failure("user", "cancelled")
        if job.deaths < self._settings.scheduling.deaths_before_poison:
            return None
        return failure("server", f"the engine died {job.deaths} times while it ran this")

    async def _cancel(self, job: Job) -> None:
        command = Cancel(f"cancel:{job.request_id}", f"sample:{job.request_id}")
        try:
            await job.engine.submit(command)
        except (EngineLost, CommandFailed):
            logger.debug("sample %s ended before it could be cancelled", job.request_id)

    def _count(self, job: Job, result: SampleResult) -> None:
        sampler = job.sampler
        source = Source(sampler.tenant, sampler.session_id, "", sampler.base_model)
        fresh = len(job.request.command.prompt) - result.cached_tokens
        self._meter.add(source, "sampling_prefill", fresh)
        self._meter.add(source, "sampling_prefill", result.cached_tokens, cached=True)
        sampled = sum(len(sequence.tokens) for sequence in result.sequences)
        self._meter.add(source, "sampling_sample", sampled)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        tenant = job.sampler.tenant
        job.finished_at = self._clock.monotonic()
        self._traces.sample(job.sampler.session_id, self._span(job, outcome))
        self._waiting_bytes -= job.size
        self._per_tenant[tenant] -= 1
        if not self._per_tenant[tenant]:
            del self._per_tenant[tenant]
        self._result_bytes += len(outcome.body)
        self._finished.append(job)
        job.promise.resolve(outcome)
        clone = job.request.seq_id // CLONE_STRIDE
        stream = self._streams.get((job.sampler.sampler_id, clone))
        if stream is not None:
            stream.add(job.request_id, outcome.failed, len(outcome.body))

    def _span(self, job: Job, outcome: Outcome) -> Span:
        command = job.request.command
        args = {
            "seq_id": job.request.seq_id,
            "prompt_tokens": len(command.prompt),
            "num_samples": command.num_samples,
            "failed": outcome.failed,
        }
        now = self._clock.now()
        return Span(job.request.sampler_id, "asample", job.accepted_at, job.sent_at, now, args)

    # ---- out

    def completions(self, tenant: str, sampler_id: str, clone: int) -> Completions:
        """The stream of ends of one client; begun with what ended before it first asked, and with
        the samples that an earlier life of the server may have lost."""
        self._samplers.owned(tenant, sampler_id)
        stream = self._streams.get((sampler_id, clone))
        if stream is None:
            stream = self._streams[sampler_id, clone] = Completions(self._clock)
            for number in self._windows.lost(sampler_id, clone):
                request_id = f"{sampler_id}:{number}"
                if request_id not in self._jobs:
                    stream.add(request_id, True, 0)
            for job in self._finished:
                request = job.request
                if (request.sampler_id, request.seq_id // CLONE_STRIDE) == (sampler_id, clone):
                    self._announce(stream, job)
        return stream

    def _announce(self, stream: Completions, job: Job) -> None:
        outcome = job.promise.outcome
        if outcome is not None:
            stream.add(job.request_id, outcome.failed, len(outcome.body))

    def fetched(self, request_id: str) -> bool:
        """A client was sent the result; it is kept a little longer in case it never arrived.
        False if that was no sample."""
        job = self._jobs.get(request_id)
        if job is not None and job.fetched_at is None:
            job.fetched_at = self._clock.monotonic()
        return job is not None

    def acknowledge(self, tenant: str, request_ids: list[str]) -> None:
        """A client has these results: they can go."""
        for request_id in request_ids:
            job = self.find(tenant, request_id)
            if job is not None and job.finished_at is not None:
                self._drop(job)

    def explain(self, request_id: str) -> tuple[str, str] | None:
        """(queue state, reason) of a sample that is not finished."""
        job = self._jobs.get(request_id)
        if job is None or job.finished_at is not None:
            return None
        if not job.engine.is_ready:
            return "paused_capacity", job.engine.reason
        if job.sent:
            return "active", "the engine is sampling"
        ahead = sum(len(queue) for queue in self._lanes[job.engine.spec.name].queues.values())
        return "active", f"{ahead} samples are queued for the engine"

    def lost(self, tenant: str, request_id: str) -> Gone | None:
        """The answer to a poll for a sample of the tenant's that is not here any more."""
        sampler_id, _, number = request_id.rpartition(":")
        sampler = self._samplers.find(sampler_id) if number.isdecimal() else None
        if sampler is None or sampler.tenant != tenant:
            return None
        return Gone(f"sample {request_id!r} is lost or was dropped: submit it again")

    # ---- time

    def expire(self) -> None:
        """Drop results that were fetched and are old, or that nobody came for."""
        now, timings = self._clock.monotonic(), self._settings.timings
        kept: deque[Job] = deque()
        for job in self._finished:
            if self._jobs.get(job.request_id) is not job:
                continue
            assert job.finished_at is not None
            stale = now - job.finished_at > timings.sample_retention_s
            fetched = job.fetched_at
            if stale or (fetched and now - fetched > timings.fetched_sample_retention_s):
                self._drop(job)
            else:
                kept.append(job)
        self._finished = kept
        for key in [
            key for key, stream in self._streams.items() if stream.idle_since(now - _IDLE_S)
        ]:
            del self._streams[key]

    def in_flight(self) -> int:
        return sum(self._per_tenant.values())

    def dismiss(self) -> None:
        """Answer every batched poll with what there is."""
        for stream in self._streams.values():
            stream.wake()

    async def stop(self) -> None:
        """End every sample where it stands: nobody could fetch its result any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, job: Job) -> None:
        if self._jobs.pop(job.request_id, None) is not None:
            self._promises.drop(job.request_id)
            outcome = job.promise.outcome
            self._result_bytes -= 0 if outcome is None else len(outcome.body)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cost(job: Job) -> int:
    command = job.request.command
    return len(command.prompt) + command.num_samples * (command.params.max_tokens or 256)
