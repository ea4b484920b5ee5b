"""The Tinker protocol's samples: numbered, admitted within limits, answered once, kept for a while.

Samples are not logged. If the server dies, polls for them are answered with 410 and clients
resubmit; `windows` remembers enough to tell batch pollers so. A sample that no client asks for any
more is stopped and forgotten, which looks the same to a client that returns after all. `lanes`
brings samples through an engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tinkex.engine.messages import Progress, Sample
from tinkex.server.clock import Clock
from tinkex.server.engines.engine import CommandFailed
from tinkex.server.engines.model_names import context_limit
from tinkex.server.promises import Outcome, Promise, Promises
from tinkex.server.protocol.forward_codec import encode_sample
from tinkex.server.protocol.outcomes import failure
from tinkex.server.protocol.sample_request import SampleRequest
from tinkex.server.refusals import Gone, Refusal, TooLong
from tinkex.server.sampling.admission import Admission
from tinkex.server.sampling.completion_feed import Completions
from tinkex.server.sampling.lanes import Lanes, Load
from tinkex.server.sampling.rides import Ride
from tinkex.server.sampling.sample_records import SampleRecords
from tinkex.server.sampling.samplers import Samplers
from tinkex.server.settings import Settings
from tinkex.server.storage.database.samplers import SamplerRow
from tinkex.wire.limits import QUEUE_ACTIVE, QUEUE_PAUSED_CAPACITY, SAMPLER_CLONE_STRIDE

logger = logging.getLogger(__name__)

OnProgress = Callable[[Progress], None]
_IDLE_S = 600.0


@dataclass(slots=True, eq=False)
class Job:
    """One sample, from admission until its result is dropped."""

    # The request.
    request: SampleRequest
    # The id that its client polls for.
    request_id: str
    # The sampler whose weights it draws with.
    sampler: SamplerRow
    # Its way through an engine.
    ride: Ride
    # What polls wait for.
    promise: Promise
    # Bytes of the request, counted against its tenant's limit.
    size: int
    # Seconds since 1970; the other times are on the monotonic clock.
    accepted_at: float
    # When its client last asked about it: one that no client waits for is stopped.
    asked_at: float
    # When the engine had answered.
    finished_at: float | None = None
    # When its result was first sent; it is dropped some time later.
    fetched_at: float | None = None

    @property
    def sequence_ids(self) -> list[str]:
        return [f"{self.request_id}:{index}" for index in range(self.ride.sequences)]

    @property
    def stream(self) -> tuple[str, int]:
        """The batched polls that report its end."""
        return self.sampler.sampler_id, self.request.seq_id // SAMPLER_CLONE_STRIDE


class Sampling:
    """All samples of the server."""

    def __init__(
        self,
        samplers: Samplers,
        lanes: Lanes,
        promises: Promises,
        records: SampleRecords,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self.lanes = lanes
        self._samplers = samplers
        self._windows = samplers.windows
        self._promises = promises
        self._records = records
        self._clock = clock
        self._timings = settings.timings
        self.admission = Admission(settings)
        lanes.is_held = self.admission.is_full
        self._jobs: dict[str, Job] = {}
        self._finished: deque[Job] = deque()
        self._streams: dict[tuple[str, int], Completions] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- in

    async def submit(
        self,
        tenant: str,
        request: SampleRequest,
        size: int,
        on_progress: OnProgress | None = None,
    ) -> Job:
        """Admit a sample. The same number again gives the same sample."""
        sampler = await self._samplers.owned(tenant, request.sampler_id)
        request_id = f"{request.sampler_id}:{request.seq_id}"
        known = self._jobs.get(request_id)
        if known is not None:
            if known.request.digest != request.digest:
                raise Refusal(f"seq_id {request.seq_id} was already used for another sample")
            known.asked_at = self._clock.monotonic()
            return known
        self.admission.check(tenant, size)
        command = self._fitting(sampler, request)
        clone = request.seq_id // SAMPLER_CLONE_STRIDE
        if not self._windows.covers(sampler.sampler_id, clone, request.seq_id):
            oldest = partial(self._oldest, sampler.sampler_id, clone, request.seq_id)
            await self._windows.extend(sampler.sampler_id, clone, request.seq_id, oldest)
            if request_id in self._jobs:
                return self._jobs[request_id]
        return self._admit(request_id, request, command, sampler, size, on_progress)

    def _fitting(self, sampler: SamplerRow, request: SampleRequest) -> Sample:
        """The engine's command. What cannot fit is refused here if the model's context is known:
        programs that shorten their prompts expect a 400, not a failed sample."""
        context, facts = context_limit(sampler.base_model), self._samplers.pool(sampler).facts
        command = replace(request.command, context=context, routes=True)
        if facts is not None and command.room(facts.max_context) < 0:
            raise TooLong(command.too_long(facts.max_context))
        return command

    def _admit(
        self,
        request_id: str,
        request: SampleRequest,
        command: Sample,
        sampler: SamplerRow,
        size: int,
        on_progress: OnProgress | None,
    ) -> Job:
        tenant, pool = sampler.tenant, self._samplers.pool(sampler)
        weights = self._samplers.weights.served(sampler)
        ride = self.lanes.enter(tenant, pool, weights, command, on_progress)
        promise = self._promises.add(request_id, tenant)
        now, asked = self._clock.now(), self._clock.monotonic()
        job = Job(request, request_id, sampler, ride, promise, size, now, asked)
        self._jobs[request_id] = job
        self.admission.begin(tenant, size)
        task = asyncio.get_running_loop().create_task(self._see_through(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def _oldest(self, sampler_id: str, clone: int, number: int) -> int:
        """The lowest number of this client whose sample is still kept, else `number`."""
        mine = [
            job.request.seq_id for job in self._jobs.values() if job.stream == (sampler_id, clone)
        ]
        return min(mine, default=number)

    def find(self, tenant: str, request_id: str) -> Job | None:
        job = self._jobs.get(request_id)
        return job if job is not None and job.sampler.tenant == tenant else None

    def cancel(self, tenant: str, request_id: str) -> None:
        """Stop a sample that no client wants any more. Unknown or finished ones are no error."""
        job = self.find(tenant, request_id)
        if job is not None:
            self.lanes.cancel(job.ride)

    # ---- to its end

    async def _see_through(self, job: Job) -> None:
        outcome = await self._outcome(job)
        if job.finished_at is None:
            self._finish(job, outcome)

    async def _outcome(self, job: Job) -> Outcome:
        try:
            result = await job.ride.result
            made_by = await self._samplers.weights.named(job.sampler)
        except CommandFailed as failed:
            return failure("user" if failed.kind != "server" else "server", failed.message)
        except Exception as error:
            logger.exception("sample %s broke", job.request_id)
            return failure("server", f"the server failed on this: {type(error).__name__}")
        self._records.count(job.sampler, job.request, result)
        return Outcome("protobuf", encode_sample(result, made_by))

    def _finish(self, job: Job, outcome: Outcome) -> None:
        job.finished_at = self._clock.monotonic()
        times = job.accepted_at, job.ride.sent_at, self._clock.now()
        self._records.trace(job.sampler, job.request, times, outcome.failed)
        if job.ride.result.done():
            job.ride.let_go()  # its bytes are kept: the arrays they were made of are not
        self.admission.end(job.sampler.tenant, job.size, len(outcome.body))
        self._finished.append(job)
        job.promise.resolve(outcome)
        self._make_room(job.sampler.tenant)
        stream = self._streams.get(job.stream)
        if stream is not None:
            stream.add(job.request_id, outcome.failed, len(outcome.body))

    def _make_room(self, tenant: str) -> None:
        """What was fetched is kept for answers that get lost, if there is room."""
        if not self.admission.is_full(tenant):
            return
        for job in list(self._finished):
            if job.fetched_at is not None and job.sampler.tenant == tenant:
                self._drop(job)
                if not self.admission.is_full(tenant):
                    return

    # ---- out

    async def completions(self, tenant: str, sampler_id: str, clone: int) -> Completions:
        """The stream of ends of one client. It starts with what ended before the first poll, and
        with the samples that an earlier life of the server may have lost."""
        await self._samplers.owned(tenant, sampler_id)
        if (sampler_id, clone) not in self._streams:
            lost = await self._windows.lost(sampler_id, clone)
            if (sampler_id, clone) not in self._streams:
                self._streams[sampler_id, clone] = self._begin(sampler_id, clone, lost)
        return self._streams[sampler_id, clone]

    def _begin(self, sampler_id: str, clone: int, lost: range) -> Completions:
        stream = Completions(self._clock)
        for number in lost:
            request_id = f"{sampler_id}:{number}"
            if request_id not in self._jobs:
                stream.add(request_id, True, 0)
        for job in self._finished:
            if job.stream == (sampler_id, clone):
                self._announce(stream, job)
        return stream

    def _announce(self, stream: Completions, job: Job) -> None:
        outcome = job.promise.outcome
        if outcome is not None:
            stream.add(job.request_id, outcome.failed, len(outcome.body))

    def asked(self, request_id: str) -> None:
        """A client has just waited for this one in vain."""
        job = self._jobs.get(request_id)
        if job is not None:
            job.asked_at = self._clock.monotonic()

    def fetched(self, request_id: str) -> bool:
        """The result was sent to a client. It is kept a little longer in case it never arrived.
        False if there is no such sample."""
        job = self._jobs.get(request_id)
        if job is not None and job.fetched_at is None:
            job.fetched_at = self._clock.monotonic()
            self._make_room(job.sampler.tenant)
        return job is not None

    def acknowledge(self, tenant: str, request_ids: list[str]) -> None:
        """A client has these results: they can be dropped."""
        for request_id in request_ids:
            job = self.find(tenant, request_id)
            if job is not None and job.finished_at is not None:
                self._drop(job)

    def explain(self, request_id: str) -> tuple[str, str] | None:
        """(queue state, reason) of an unfinished sample."""
        job = self._jobs.get(request_id)
        if job is None or job.finished_at is not None:
            return None
        pool = job.ride.pool
        if self._samplers.weights.unwritten.lacks(job.ride.weights.name, pool) and pool.is_ready:
            return QUEUE_PAUSED_CAPACITY, "its weights were lost with the engine and are made again"
        if job.ride.sent_at is None and not pool.takes_work:
            return QUEUE_PAUSED_CAPACITY, pool.reason
        if job.ride.sent_at is None and self.admission.is_full(job.sampler.tenant):
            return (
                QUEUE_PAUSED_CAPACITY,
                "the results of this key that nobody fetched leave no room",
            )
        if job.ride.sent_at is not None:
            return QUEUE_ACTIVE, "the engine is sampling"
        ahead = self.lanes.ahead_of(job.ride)
        return QUEUE_ACTIVE, f"{ahead} samples of this key are queued before it"

    async def lost(self, tenant: str, request_id: str) -> Gone | None:
        """The answer to a poll for a sample of the tenant that is not here any more."""
        sampler_id, _, number = request_id.rpartition(":")
        sampler = await self._samplers.find(sampler_id) if number.isdecimal() else None
        if sampler is None or sampler.tenant != tenant:
            return None
        return Gone(f"sample {request_id!r} is lost or was dropped: submit it again")

    # ---- time

    def expire(self) -> None:
        """Stop samples that no client waits for; drop results that were fetched a while ago or
        never."""
        self._stop_unwanted()
        now, timings = self._clock.monotonic(), self._timings
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

    def session_ended(self, session_id: str) -> None:
        """Stop the samples of this session that no client waits for at this moment."""
        for job in self._unfinished():
            if job.sampler.session_id == session_id and not self._is_wanted(job, 0.0):
                self._abandon(job)

    def _stop_unwanted(self) -> None:
        """Stop the samples that no client has waited for in a while."""
        for job in self._unfinished():
            if not self._is_wanted(job, self._timings.unwatched_sample_s):
                self._abandon(job)

    def _unfinished(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.finished_at is None]

    def _is_wanted(self, job: Job, patience_s: float) -> bool:
        since = self._clock.monotonic() - patience_s
        stream = self._streams.get(job.stream)
        if stream is not None and not stream.idle_since(since):
            return True
        return job.promise.is_awaited or job.asked_at > since

    def _abandon(self, job: Job) -> None:
        """Stop a sample and forget it: a client that comes back is told to submit it again."""
        self._finish(job, failure("server", "nobody waits for this sample any more"))
        self._drop(job)
        self.lanes.cancel(job.ride)

    def busy(self) -> set[str]:
        """The samplers with a sample under way."""
        return {job.sampler.sampler_id for job in self._unfinished()}

    def in_flight(self) -> int:
        return len(self.admission)

    def of_tenant(self, tenant: str) -> int:
        return self.admission.of(tenant)

    def tenants(self) -> set[str]:
        """Whose samples are in flight."""
        return self.admission.tenants

    def loads(self) -> list[Load]:
        """The work that waits for engines or is at them."""
        return self.lanes.loads()

    def dismiss(self) -> None:
        """Answer every batched poll with what there is."""
        for stream in self._streams.values():
            stream.wake()

    async def stop(self) -> None:
        """End every sample at once: its result could not be fetched any more."""
        await self.lanes.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, job: Job) -> None:
        if self._jobs.pop(job.request_id, None) is not None:
            self._promises.drop(job.request_id)
            outcome = job.promise.outcome
            size = 0 if outcome is None else len(outcome.body)
            self.admission.forget(job.sampler.tenant, size)
            self.lanes.pump()  # for those that waited for room
