"""Engines load and save weights that lie on another host, bit for bit as on this one."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from support.sampling import DEVICE, prompt_of, sample, tiny_folder, tokens_of
from support.training import adam_step
from tinkex.engine.errors import OutOfReach
from tinkex.engine.messages import (
    Command,
    CreateRun,
    Done,
    DropWeights,
    Event,
    Failed,
    FileLink,
    LoadRun,
    LoadWeights,
    LoraSpec,
    OptimStep,
    SampleResult,
    SaveResult,
    SaveRun,
    WeightsRef,
)
from tinkex.engine.process import linked_files
from tinkex.engine.process.building import build_worker
from tinkex.engine.process.fetched_weights import FetchedWeights
from tinkex.engine.process.worker import Worker
from tinkex.engine.settings import WorkerConfig


class Elsewhere:
    """A worker driven by hand."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        torch.set_num_threads(1)
        config = WorkerConfig(str(tiny_folder()), device=DEVICE, dtype="float32", kv_bytes=16 << 20)
        self.worker: Worker = build_worker(config, self._events.append)
        self._events.clear()

    def ask(self, *commands: Command) -> list[Event]:
        for command in commands:
            self.worker.submit(command)
        while len(self._events) < len(commands):
            self.worker.turn()
        found, self._events[:] = list(self._events), []
        return found


@pytest.fixture
def worker() -> Iterator[Elsewhere]:
    before = torch.get_num_threads()
    made = Elsewhere()
    yield made
    made.worker.stop()
    made.worker.run()
    torch.set_num_threads(before)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An HTTP server over the other host's folders."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def reference(folder: Path, address: str) -> WeightsRef:
    """As a sender on another host would make it."""
    links = tuple(
        FileLink(
            path.name,
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
            f"{address}/{folder.name}/{path.name}",
        )
        for path in sorted(folder.iterdir())
    )
    return WeightsRef("/not/on/this/host", "d" * 64, links)


def saved(worker: Elsewhere, folder: Path) -> SaveResult:
    folder.mkdir()
    params = adam_step("run").params
    *_, event = worker.ask(
        CreateRun("create", "run", LoraSpec(4, seed=3)),
        OptimStep("step", "run", "adamw", params),
        SaveRun("save", "run", str(folder), training=True),
    )
    assert isinstance(event, Done)
    assert isinstance(event.result, SaveResult)
    return event.result


def test_a_worker_fetches_what_its_host_lacks_and_gives_it_back(
    worker: Elsewhere, address: str, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    assert saved(worker, folder).files == {}
    far = reference(folder, address)
    load = LoadRun("load", "again", far, optimizer=True, create=True)
    loaded, served, near = worker.ask(
        LoadWeights("near", "near", WeightsRef(str(folder))), load, LoadWeights("far", "far", far)
    )
    assert all(isinstance(event, Done) for event in (loaded, served, near))
    draws = worker.ask(
        sample("a", prompt_of(1, 9), weights="near", temperature=0.0),
        sample("b", prompt_of(1, 9), weights="far", temperature=0.0),
    )
    results = [event.result for event in draws if isinstance(event, Done)]
    assert all(isinstance(each, SampleResult) for each in results)
    first, second = results
    assert tokens_of(first) == tokens_of(second)
    worker.ask(DropWeights("drop", "far"))
    assert worker.worker._fetched._users == {}


def test_a_save_for_another_host_comes_with_its_files(worker: Elsewhere, tmp_path: Path) -> None:
    saved(worker, tmp_path / "here")
    (event,) = worker.ask(SaveRun("far", "run", str(tmp_path / "not here"), training=True))
    assert isinstance(event, Done)
    assert isinstance(event.result, SaveResult)
    here = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert {name: bytes(content) for name, content in event.result.files.items()} == here


def test_weights_that_cannot_be_fetched_are_lost_for_now_not_damaged(
    worker: Elsewhere, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_files, "_FIRST_PAUSE_S", 0.0)
    saved(worker, tmp_path / "saved")
    link = FileLink("run.json", 3, "0" * 64, f"{address}/saved/missing")
    bad = WeightsRef("/not/on/this/host", "e" * 64, (link,))
    found = worker.ask(
        LoadRun("load", "x", bad, optimizer=False, create=True),
        LoadWeights("weights", "w", bad),
        CreateRun("next", "x", LoraSpec(4)),
    )
    kinds = {event.op: event.kind for event in found if isinstance(event, Failed)}
    assert kinds == {"load": "lost", "weights": "lost"}
    assert worker.worker._fetched._users == {}


def test_other_bytes_than_were_saved_are_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_files, "_FIRST_PAUSE_S", 0.0)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "run.json").write_bytes(b"now")
    far = reference(tmp_path / "saved", address)
    (tmp_path / "saved" / "run.json").write_bytes(b"not")
    fetched = FetchedWeights()
    with pytest.raises(OutOfReach, match="other bytes"):
        fetched.bring(far, "me")
    fetched.close()


def test_a_file_name_cannot_leave_its_folder(tmp_path: Path) -> None:
    fetched = FetchedWeights()
    link = FileLink("../outside", 0, "", "http://127.0.0.1:1/x")
    with pytest.raises(OutOfReach, match="no name of a file"):
        fetched.bring(WeightsRef("/nowhere", "f" * 64, (link,)), "me")
    fetched.close()
