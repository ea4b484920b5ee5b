"""All the parts of one server: created, started and stopped in order. Knows no HTTP.

Starting is: lock the home, open the store, forget what was never acknowledged, load sessions and
runs, start the engines. Waiting work then continues by itself.
"""

from __future__ import annotations

import asyncio
import os

from tinkex.server.autoscaling import Autoscaling
from tinkex.server.budgets import ByteBudget
from tinkex.server.checkpoints.exports import Exports
from tinkex.server.checkpoints.links import Links
from tinkex.server.checkpoints.service import Checkpoints
from tinkex.server.checkpoints.signing import Signer
from tinkex.server.checkpoints.turns import Turns
from tinkex.server.clock import Clock, SystemClock
from tinkex.server.dashboard.door import Guesses, Invitations
from tinkex.server.dashboard.visits import Visits
from tinkex.server.engines.launching import engines_of
from tinkex.server.engines.pool import Engines
from tinkex.server.engines.unwritten_weights import UnwrittenWeights
from tinkex.server.engines.worker import Launch
from tinkex.server.fair_threads import FairThreads
from tinkex.server.listening import Listening
from tinkex.server.maintenance import Duty, Maintenance
from tinkex.server.operations import kinds, save
from tinkex.server.operations.base import Around
from tinkex.server.operations.custom_losses import Losses
from tinkex.server.operations.queue_reasons import QueueReasons
from tinkex.server.operations.run import Run
from tinkex.server.operations.runs import Runs
from tinkex.server.operations.stored_results import StoredResults
from tinkex.server.polls import Futures
from tinkex.server.promises import Promises
from tinkex.server.recording.events import Events
from tinkex.server.recording.recorder import Recorder
from tinkex.server.recording.samples import SampleRing
from tinkex.server.recording.watch import LiveParts, Watch
from tinkex.server.rolling import Rolling
from tinkex.server.sampling.jobs import Sampling
from tinkex.server.sampling.kept_routes import KeptRoutes
from tinkex.server.sampling.lanes import Lanes
from tinkex.server.sampling.sample_records import SampleRecords
from tinkex.server.sampling.samplers import Samplers
from tinkex.server.sampling.unnamed_weights import Freed, UnnamedWeights
from tinkex.server.settings import Settings
from tinkex.server.storage import recovery
from tinkex.server.storage.blobs import SegmentBlobs
from tinkex.server.storage.database import open_store
from tinkex.server.storage.database_watch import DatabaseWatch
from tinkex.server.storage.disk_watch import DiskWatch
from tinkex.server.storage.folders import Folders
from tinkex.server.storage.home import Home
from tinkex.server.storage.home_models import remember
from tinkex.server.storage.home_storage import HomeStorage
from tinkex.server.storage.integrity import Integrity
from tinkex.server.storage.objects.binding import open_objects
from tinkex.server.storage.objects.watch import StoreWatch
from tinkex.server.storage.pins import Pins
from tinkex.server.storage.store_threads import at_store, set_apart
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
from tinkex.server.training.results import Endings, Reports
from tinkex.server.training.run_endings import RunEndings
from tinkex.server.training.run_records import RunRecords
from tinkex.server.training.scheduler import Scheduler
from tinkex.server.training.service import Training
from tinkex.server.training.snapshots import Snapshots
from tinkex.server.training.submission import Submissions
from tinkex.server.views.dashboard import Dashboard
from tinkex.server.views.now import Now
from tinkex.server.views.queries import Browsing
from tinkex.server.views.token_texts import TokenTexts

DOWNLOADS_AT_ONCE = 8
"""Work of one tenant that waits for an object store at one time; others' saves run alongside."""
LARGE_AT_ONCE = 4
"""Answers of one tenant that may take megabytes until its client has taken them."""


class Core:
    """One server over one home. Create it inside a running event loop, then `start` it."""

    def __init__(
        self,
        settings: Settings,
        launch: Launch | None = None,
        clock: Clock | None = None,
        home: Home | None = None,
    ) -> None:
        """A `home` that is locked already is taken over, and released by `stop`."""
        self.settings = settings
        self.clock = clock or SystemClock()
        self._launch = launch or engines_of(settings)
        self.home = home = home or Home(settings.home, settings.address)
        remember(home.root, settings.sources)
        try:
            self.storage = self._open_storage(home)
        except BaseException:
            home.release()
            raise
        self.store = self.storage.store
        self.blobs, self.weights = self.storage.blobs, self.storage.weights
        self._make_common()
        self._make_weights()
        self._make_training()
        self._make_sampling()
        self._make_views()
        self._make_upkeep()

    def _open_storage(self, home: Home) -> HomeStorage:
        objects = open_objects(home.root, self.settings.objects)
        store = open_store(home.database) if home.lease is None else home.lease.open_store()
        if objects is not None:
            # Most homes are files: a server of one needs none of these modules.
            from tinkex.server.storage.objects.opening import object_storage

            room = self.settings.limits.object_cache_bytes
            return object_storage(store, objects, home.cache, room)
        blobs = SegmentBlobs(home.payloads, home.first_segment)
        weights, snapshots = Folders(home.weights), Folders(home.snapshots)
        return HomeStorage(store, blobs, weights, snapshots, Pins(home.pins))

    def _make_common(self) -> None:
        settings, clock = self.settings, self.clock
        self.tenants = Tenants(settings.keys, settings.operators)
        self.promises = Promises()
        self.receiving = ByteBudget(settings.limits.receiving_bytes, "bodies being received")
        threads = min(32, (os.cpu_count() or 1) + 4)
        self.reading = FairThreads(threads, "tinkex-bodies", most=threads // 2)
        self.meter = Meter(self.store, clock)
        self.events = Events()
        self.samples = SampleRing(self.store, self.events, clock, recording=settings.record_samples)
        self.recorder = Recorder(self.store, self.events, self.samples, clock)
        self.narrator = Narrator(clock, lambda: int(self.meter.totals.get("sampling_sample", 0)))
        self.traces = Traces(self.store, clock, self.reading)
        self.engines = Engines(settings, self._launch, clock)
        self.listening = Listening(clock)
        self.sessions = Sessions(self.store, clock, self.listening, settings)
        self.runs = Runs(self.store, clock, settings, kinds.named)

    def _make_weights(self) -> None:
        storage, settings, clock = self.storage, self.settings, self.clock
        self.checkpoints = Checkpoints(
            self.store,
            self.weights,
            clock,
            settings.limits.name_length,
            lambda tenant: settings.limits_of(tenant).checkpoint_bytes_per_tenant,
        )
        self.unwritten = UnwrittenWeights()
        self.samplers = Samplers(storage, self.checkpoints, self.engines, self.unwritten, clock)
        self.unnamed = UnnamedWeights(
            storage,
            self.samplers,
            lambda: self.sampling.busy(),
            clock,
            self.listening,
            settings,
        )

    def _make_training(self) -> None:
        storage, settings, clock = self.storage, self.settings, self.clock
        limits = settings.limits
        self.routes = KeptRoutes(limits.route_bytes_per_tenant, limits.route_bytes)
        self.losses = Losses(self.store, self.engines, self.promises, clock, settings.limits)
        self.around = around = Around(
            self.checkpoints,
            self.unnamed,
            self.unwritten,
            self.losses,
            storage.pins,
            self.engines,
            clock,
            self.routes,
            self.reading,
        )
        self.snapshots = Snapshots(self.runs, storage, clock, settings)
        self.residency = Residency(self.engines, self.snapshots, clock)
        self.carrier = Carrier(
            around,
            Bodies(storage),
            Endings(
                storage,
                self.promises,
                Reports(self.meter, self.narrator, self.recorder),
                clock,
                settings,
            ),
            self.snapshots,
            settings.scheduling,
        )
        self.scheduler = Scheduler(
            self.runs, self.engines, self.carrier, self.residency, clock, settings
        )
        self.submissions = Submissions(
            storage, self.runs, self.promises, clock, settings, self.scheduler.attend
        )
        self.training = Training(
            self.sessions,
            self.runs,
            self.submissions,
            Intake(self.blobs, self.reading),
            around,
            self.tenants,
        )

    def _make_sampling(self) -> None:
        storage, settings, clock = self.storage, self.settings, self.clock
        self.sampling = Sampling(
            self.samplers,
            Lanes(self.engines, self.unwritten, clock, settings),
            self.promises,
            SampleRecords(self.meter, self.traces, self.samples.sampled, self.routes, self.engines),
            clock,
            settings,
        )
        self.rolling = Rolling(self.engines, self.scheduler, self.sampling.lanes)
        self.autoscaling = Autoscaling(
            self.engines, self.scheduler, self.sampling.lanes, self.rolling, clock, settings
        )
        self.results = StoredResults(storage, self.listening, clock, settings.timings)
        self.reasons = QueueReasons(self.runs, self.engines, clock, self.store_trouble)
        self.futures = Futures(
            self.promises,
            self.results,
            self.sampling,
            self.losses,
            self.reasons,
            settings.timings.poll_hold_s,
        )

    def _make_views(self) -> None:
        home, clock = self.home, self.clock
        self.exports = Exports(home.exports)
        self.belongings = Belongings(self.store)
        self.browsing = Browsing(self.store, self.runs, self.meter, clock)
        self.signer = Signer.from_file(home.root / "signing.key")
        self.links = Links(self.signer, clock)
        self.downloads = Turns(DOWNLOADS_AT_ONCE)
        self.large_answers = Turns(LARGE_AT_ONCE)
        self.visits = Visits(self.signer, clock)
        self.invitations, self.guesses = Invitations(clock), Guesses(clock)

    def _make_upkeep(self) -> None:
        storage, settings, clock = self.storage, self.settings, self.clock
        self.endings = RunEndings(
            self.runs, self.sessions, self.residency, self.snapshots, self.recorder
        )
        self.run_records = RunRecords(
            storage, self.runs, self.checkpoints, clock, self._run_stopped, self.recorder
        )
        self.maintenance = Maintenance(self.listening, self._duties())
        self.integrity = Integrity(storage)
        self.database = DatabaseWatch(self.store, clock)
        self.disk = DiskWatch(self.home.root, self._relieve, clock)
        self.object_store = StoreWatch(storage.remote)
        live = LiveParts(self.engines, self.sessions, self.runs, self.sampling, self.reasons, clock)
        self.watch = Watch(self.store, self.samples, self.meter, live)
        self.now = Now(self.watch, self.scheduler, self.futures, self.recorder, self.disk, settings)
        self.dashboard = Dashboard(
            self.store, self.meter, self.samples, self.now, TokenTexts(self.engines), clock
        )
        self._background: list[asyncio.Task[None]] = []

    @property
    def is_ready(self) -> bool:
        """Whether every model can serve, at once or after waking its engine."""
        return all(pool.is_ready or pool.is_asleep for pool in self.engines.pools)

    async def start(self) -> None:
        """Continue where the last life of this home stopped."""
        await self._open_remote()
        await recovery.clear_halves(self.storage)
        await self.sessions.load()
        await self.runs.load()
        for run in self.runs:
            await self._promise(run)
        await recovery.clear_pins(self.storage, kinds.PINNING)
        await self.unnamed.delete_orphans(all_ages=True)
        if not self.samples.recording:
            await self.samples.forget_all()
        self.engines.start()
        timings, create = self.settings.timings, asyncio.get_running_loop().create_task
        self._background = [
            create(self.maintenance.live(timings.maintenance_interval_s)),
            create(self.integrity.live(timings.integrity_interval_s, self._is_idle)),
            create(self.narrator.live()),
            create(self.disk.live()),
            create(self.object_store.live()),
            create(self.watch.live()),
            create(self.autoscaling.live()),
        ]

    async def _open_remote(self) -> None:
        """Read what an object store holds."""
        remote = self.storage.remote
        if remote is not None:
            set_apart()
            remote.cache.held = self.sampling.lanes.loaded
            await at_store(remote.open)

    def store_trouble(self) -> str | None:
        """Why work that needs the object store waits, in words."""
        return None if self.storage.remote is None else self.storage.remote.trouble

    def dismiss_polls(self) -> None:
        """Answer every held poll now with what there is; clients ask again by themselves."""
        self.promises.dismiss()
        self.events.close()
        self.sampling.dismiss()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Give running training this long to end, then stop. The rest waits on disk."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.rolling.stop()
        await self.scheduler.drain(drain_s)
        await self.scheduler.stop()
        await self.sampling.stop()
        await self.watch.stop()
        await self.losses.stop()
        await self.engines.stop()
        self.results.flush()
        await self.meter.flush()
        self.reading.close()
        self.store.close()
        self.home.release()

    async def collect(self) -> Freed:
        """Delete now what would expire, and unnamed weights that are not live."""
        freed = await self.unnamed.collect("tinkex home gc")
        await asyncio.to_thread(self.exports.sweep)
        await self.maintenance.tick()
        return freed

    async def _relieve(self) -> None:
        await self.unnamed.collect("the disk is low")

    def _is_idle(self) -> bool:
        return not any(self.scheduler.in_flight(engine) for engine in self.engines)

    def _duties(self) -> dict[str, Duty]:
        """What expires, by the parts that own it."""
        return {
            "silent sessions": self.sessions.expire_silent,
            "runs that are over": self.endings.end_runs,
            "custom losses": lambda: self.losses.free(self.runs.sessions()),
            "idle runs": self.scheduler.release_idle,
            "samples": self.sampling.expire,
            "fetched results": self.results.flush,
            "usage": self.meter.flush,
            "old results": self.results.expire,
            "checkpoints": self.checkpoints.expire,
            "old records": self.results.forget_old,
            "weights nobody names": self.unnamed.delete_orphans,
            "waiting work, and runs that had better move": self.scheduler.balance,
        }

    async def _run_stopped(self) -> None:
        self.scheduler.pump()
        await self.endings.end_runs()

    async def _promise(self, run: Run) -> None:
        for entry in run.log.entries.values():
            if entry.state == "waiting":
                self.promises.add(entry.request_id, run.tenant)
                await save.expect(self.around, entry)
