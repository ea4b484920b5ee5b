"""All the parts of one server, made, started and stopped in order. Knows no HTTP.

Starting is: lock the home, open the store, forget what was never acknowledged, take up sessions and
runs, start the engines. Work that was waiting goes on by itself.
"""

from __future__ import annotations

import asyncio

from tinkex.server.budgets import ByteBudget
from tinkex.server.checkpoints.exports import Exports
from tinkex.server.checkpoints.links import Links
from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.checkpoints.signing import Signer
from tinkex.server.clock import Clock, SystemClock
from tinkex.server.dashboard.door import Guesses, Invitations
from tinkex.server.dashboard.visits import Visits
from tinkex.server.engines.child_process import engine_processes
from tinkex.server.engines.pool import Engines
from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.engines.worker import Launch
from tinkex.server.listening import Listening
from tinkex.server.maintenance import Reaper
from tinkex.server.operations import kinds, save
from tinkex.server.operations.base import Around
from tinkex.server.operations.custom_losses import Losses
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.polls import Futures
from tinkex.server.promises import Promises
from tinkex.server.protocol.forward_codec import encode_sample
from tinkex.server.recording.events import Events
from tinkex.server.recording.recorder import Recorder
from tinkex.server.recording.samples import SampleRing
from tinkex.server.recording.watch import Watch
from tinkex.server.sampling.accepted_numbers import SampleWindows
from tinkex.server.sampling.jobs import Sampling
from tinkex.server.sampling.samplers import Samplers
from tinkex.server.sampling.unnamed_weights import Freed, UnnamedWeights
from tinkex.server.settings import Settings
from tinkex.server.storage.blobs import SegmentBlobs
from tinkex.server.storage.database import open_store
from tinkex.server.storage.disk_watch import DiskWatch
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.home import Home
from tinkex.server.storage.integrity import Integrity
from tinkex.server.storage.pins import Pins
from tinkex.server.tenancy.ownership import Belongings
from tinkex.server.tenancy.sessions import Sessions
from tinkex.server.tenancy.tenants import Tenants
from tinkex.server.tenancy.usage import Meter
from tinkex.server.tracing.session_traces import Traces
from tinkex.server.training.carry import Carrier
from tinkex.server.training.payload_intake import Intake
from tinkex.server.training.payloads import Bodies
from tinkex.server.training.progress_reports import Narrator
from tinkex.server.training.residency import Residency
from tinkex.server.training.results import Endings
from tinkex.server.training.run_records import RunRecords
from tinkex.server.training.scheduler import Scheduler
from tinkex.server.training.service import Training
from tinkex.server.training.snapshots import Snapshots
from tinkex.server.training.submission import Submissions
from tinkex.server.views.dashboard import Dashboard
from tinkex.server.views.now import Now
from tinkex.server.views.queries import Browsing
from tinkex.server.views.token_texts import TokenTexts


class Core:
    """One server over one home. Make it inside a running event loop, then `start` it."""

    def __init__(
        self,
        settings: Settings,
        launch: Launch | None = None,
        clock: Clock | None = None,
        home: Home | None = None,
    ) -> None:
        """A `home` that is locked already is taken over, and released by `stop`."""
        self.settings = settings
        self.clock = clock = clock or SystemClock()
        self.home = home = home or Home(settings.home, settings.address)
        try:
            self.store = open_store(home.database)
        except BaseException:
            home.release()
            raise
        self.blobs = SegmentBlobs(home.payloads)
        self.weights = Folders(home.weights)
        snapshot_folders, pins = Folders(home.snapshots), Pins(home.pins)
        self.tenants = Tenants(settings.keys, settings.operators)
        self.promises = Promises()
        self.receiving = ByteBudget(settings.limits.receiving_bytes, "bodies being received")
        self.meter = Meter(self.store, clock)
        self.events = Events()
        self.samples = SampleRing(self.store, self.events, clock, recording=settings.record_samples)
        self.recorder = Recorder(self.store, self.events, self.samples, clock)
        self.narrator = Narrator(clock, lambda: int(self.meter.totals.get("sampling_sample", 0)))
        self.traces = Traces(self.store, clock)
        self.engines = Engines(settings, launch or engine_processes(settings), clock)
        self.listening = Listening(clock)
        self.sessions = Sessions(self.store, clock, self.listening, settings)
        self.runs = Runs(self.store, clock, settings, kinds.named)
        limits = settings.limits
        self.checkpoints = Checkpoints(
            self.store, self.weights, clock, limits.name_length, limits.checkpoint_bytes_per_tenant
        )
        self.samplers = Samplers(self.store, self.checkpoints, self.engines, clock)
        self.unnamed = UnnamedWeights(
            self.store,
            self.weights,
            self.samplers,
            lambda: self.sampling.busy(),
            clock,
            self.listening,
            settings,
        )
        self.losses = Losses(self.store, self.engines, self.promises, clock, settings.limits)
        self.unwritten = UnwrittenWeights()
        self.around = around = Around(
            self.checkpoints,
            self.unnamed,
            self.unwritten,
            self.losses,
            pins,
            self.engines,
            clock,
        )
        self.snapshots = Snapshots(
            self.runs, self.store, self.blobs, snapshot_folders, pins, clock, settings
        )
        residency = Residency(self.engines, self.snapshots, clock)
        self.carrier = Carrier(
            around,
            Bodies(self.store, self.blobs),
            Endings(
                self.store,
                self.blobs,
                self.promises,
                self.meter,
                self.narrator,
                self.recorder,
                clock,
                settings,
            ),
            self.snapshots,
            settings.scheduling,
        )
        self.scheduler = Scheduler(
            self.runs, self.engines, self.carrier, residency, clock, settings
        )
        self.submissions = Submissions(
            self.store,
            self.blobs,
            self.runs,
            self.promises,
            clock,
            settings,
            self._accepted,
        )
        self.training = Training(
            self.sessions,
            self.runs,
            self.submissions,
            Intake(self.blobs),
            around,
            self.tenants,
        )
        self.sampling = Sampling(
            self.samplers,
            self.engines,
            self.unwritten,
            self.weights,
            self.promises,
            SampleWindows(self.store),
            self.meter,
            self.traces,
            encode_sample,
            self.samples.sampled,
            clock,
            settings,
        )
        self.futures = Futures(
            self.promises,
            self.store,
            self.blobs,
            self.runs,
            self.engines,
            self.sampling,
            self.losses,
            clock,
            settings,
        )
        self.exports = Exports(home.exports)
        self.belongings = Belongings(self.store)
        self.browsing = Browsing(self.store, self.runs, self.meter, clock)
        self.signer = Signer.from_file(home.root / "signing.key")
        self.links = Links(self.signer, clock)
        self.visits = Visits(self.signer, clock)
        self.invitations, self.guesses = Invitations(clock), Guesses(clock)
        self.reaper = Reaper(
            self.store,
            self.blobs,
            self.weights,
            snapshot_folders,
            pins,
            self.sessions,
            self.runs,
            self.sampling,
            self.futures,
            self.scheduler,
            residency,
            self.checkpoints,
            self.losses,
            self.meter,
            self.recorder,
            clock,
            self.listening,
            settings,
        )
        self.run_records = RunRecords(
            self.store,
            self.blobs,
            self.runs,
            self.checkpoints,
            clock,
            self.scheduler.pump,
            self.reaper.end_runs,
            self.recorder,
        )
        self.integrity = Integrity(self.store, self.blobs, self.weights, snapshot_folders)
        self.disk = DiskWatch(home.root, self._relieve, clock)
        self.watch = Watch(
            self.store,
            self.samples,
            self.meter,
            self.engines,
            self.runs,
            self.sampling,
            clock,
        )
        self.now = Now(
            self.engines,
            self.runs,
            self.scheduler,
            self.sampling,
            self.futures,
            self.watch,
            self.recorder,
            self.disk,
            clock,
            settings,
        )
        self.dashboard = Dashboard(
            self.store, self.meter, self.samples, self.now, TokenTexts(self.engines), clock
        )
        self._background: list[asyncio.Task[None]] = []

    @property
    def is_ready(self) -> bool:
        """Whether every model can serve, at once or by waking its engine."""
        return all(engine.is_ready or engine.is_asleep for engine in self.engines)

    async def start(self) -> None:
        """Take up where the last life of this home stopped."""
        await self.reaper.recover()
        self.sessions.load()
        self.runs.load()
        for run in self.runs:
            self._promise(run)
        await self.reaper.sweep()
        if not self.samples.recording:
            await self.samples.forget_all()
        self.engines.start()
        timings, create = self.settings.timings, asyncio.get_running_loop().create_task
        self._background = [
            create(self.reaper.live(timings.maintenance_interval_s)),
            create(self.integrity.live(timings.integrity_interval_s, self._is_idle)),
            create(self.narrator.live()),
            create(self.disk.live()),
            create(self.watch.live()),
        ]

    def dismiss_polls(self) -> None:
        """Answer every held poll now with what there is; clients ask again by themselves."""
        self.promises.dismiss()
        self.events.close()
        self.sampling.dismiss()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Give training under way so long to end, then stop. What is left waits on disk."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.scheduler.drain(drain_s)
        await self.scheduler.stop()
        await self.sampling.stop()
        await self.watch.stop()
        await self.losses.stop()
        await self.engines.stop()
        self.futures.flush()
        await self.meter.flush()
        self.store.close()
        self.home.release()

    async def collect(self) -> Freed:
        """Let go now of what time would end, and of weights without a name that are not live."""
        freed = await self.unnamed.collect("tinkex home gc")
        await asyncio.to_thread(self.exports.sweep)
        await self.reaper.tick()
        return freed

    async def _relieve(self) -> None:
        await self.unnamed.collect("the disk is low")

    def _is_idle(self) -> bool:
        return not any(self.scheduler.in_flight(engine) for engine in self.engines)

    def _accepted(self, _: Run) -> None:
        self.scheduler.pump()

    def _promise(self, run: Run) -> None:
        for entry in run.log.entries.values():
            if entry.state == "waiting":
                self.promises.add(entry.request_id, run.tenant)
                save.expect(self.around, entry)
