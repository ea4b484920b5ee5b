"""A damaged snapshot is found, said and gone around; nothing is ever rebuilt from wrong bytes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from support.served import Api, served
from tinkex.server.operations.run import Run
from tinkex.server.settings import Scheduling
from tinkex.server.storage.database.snapshots import SnapshotRow

OFTEN = Scheduling(snapshot_steps=1)
WEIGHTS = "adapter_model.safetensors"


def flip(folder: Path, name: str = WEIGHTS) -> None:
    """Change one bit of a file, so that it still can be read."""
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


async def step(api: Api, model: str, seq: int) -> None:
    """A forward and a step, and the snapshot that is taken after it."""
    run = found(api, model)
    await api.forward(model, seq, first=seq)
    await api.step(model, seq + 1)
    await api.result(f"{model}:{seq + 1}")
    while run.snapshot is None or run.snapshot.seq_id < seq + 1:
        await run.progress()


def found(api: Api, model: str) -> Run:
    run = api.core.runs.find(model)
    assert run is not None
    return run


def folder(home: Path, snapshot: SnapshotRow | None) -> Path:
    assert snapshot is not None
    return home / "snapshots" / snapshot.folder


EXPECTED = ["forward:1", "step:0.1", "forward:3", "step:0.1", "forward:5"]


@pytest.mark.parametrize("name", [WEIGHTS, "adapter_config.json", "manifest.json"])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_flipped_byte_in_the_newest_snapshot_goes_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, restart: bool
) -> None:
    async with served(tmp_path, scheduling=OFTEN) as api:
        model = await api.model(await api.session())
        await step(api, model, 1)
        await step(api, model, 3)
        flip(folder(tmp_path, found(api, model).snapshot), name)
        if not restart:
            api.engine.current.die()
            await api.forward(model, 5, first=5)
            await api.result(f"{model}:5")
            await went_back(api, model, caplog)
    if restart:
        async with served(tmp_path, scheduling=OFTEN) as api:
            await api.forward(model, 5, first=5)
            await api.result(f"{model}:5")
            await went_back(api, model, caplog)


async def went_back(api: Api, model: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost or doubled, the damage is said, and only what had to be was repeated."""
    assert api.applied(model) == EXPECTED
    seen = [type(each).__name__ for each in api.engine.current.seen]
    assert seen.count("ForwardBackward") == 2
    (said,) = [each for each in caplog.records if "is damaged" in each.message]
    assert said.levelno == logging.ERROR
    assert "at step 2" in said.message
    assert "going back to step 1" in said.message
    page = (await api.client.get("/metrics")).text
    assert "tinkex_snapshots_damaged_total 1" in page
    assert "tinkex_replays_total 2" in page
    assert "tinkex_replay_differences_total 0" in page
    assert "tinkex_runs_broken 0" in page


async def test_a_damaged_first_snapshot_is_replaced_by_the_whole_replay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, scheduling=OFTEN) as api:
        model = await api.model(await api.session())
        await step(api, model, 1)
        flip(folder(tmp_path, found(api, model).snapshot))
        api.engine.current.die()
        await api.forward(model, 5, first=5)
        await api.result(f"{model}:5")
        assert api.applied(model) == ["forward:1", "step:0.1", "forward:5"]
        assert "going back to its beginning" in caplog.text


async def test_a_run_goes_on_for_long_after_it_went_back(tmp_path: Path) -> None:
    async with served(tmp_path, scheduling=OFTEN) as api:
        model = await api.model(await api.session())
        expected: list[str] = []
        for seq in range(1, 12, 2):
            await step(api, model, seq)
            expected += [f"forward:{seq}", "step:0.1"]
            if seq in (3, 7):
                flip(folder(tmp_path, found(api, model).snapshot))
                api.engine.current.die()
        assert api.applied(model) == expected
        assert await api.core.integrity.check() == []
        assert len(list((tmp_path / "snapshots").iterdir())) == 2


async def test_when_both_are_damaged_the_run_says_so_and_nobody_else_is_hurt(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, scheduling=OFTEN) as api:
        session = await api.session()
        model, other = await api.model(session, 0), await api.model(session, 1)
        for seq in (1, 3, 5):
            await step(api, model, seq)
        for snapshot in (found(api, model).snapshot, found(api, model).before):
            flip(folder(tmp_path, snapshot))
        api.engine.current.die()
        await api.step(model, 7)
        await api.step(other, 1)
        failed = await api.result(f"{model}:7")
        assert "cannot continue" in failed["error"]
        assert WEIGHTS in failed["error"]
        assert "metrics" in await api.result(f"{other}:1")
        page = (await api.client.get("/metrics")).text
        assert "tinkex_snapshots_damaged_total 2" in page
        assert "tinkex_runs_broken 1" in page


async def test_a_load_between_the_two_is_repeated_though_its_checkpoint_is_gone(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, scheduling=OFTEN) as api:
        session = await api.session()
        model = await api.model(session)
        await step(api, model, 1)
        save = {"model_id": model, "seq_id": 3, "path": "kept"}
        await api.result((await api.post("save_weights", save))["request_id"])
        await step(api, model, 4)
        load = {"model_id": model, "seq_id": 6, "path": f"tinker://{model}/weights/kept"}
        await api.result(
            (await api.post("load_weights", {**load, "optimizer": True}))["request_id"]
        )
        run = found(api, model)
        while run.snapshot is None or run.snapshot.seq_id < 6:
            await run.progress()
        deleted = await api.send("DELETE", f"training_runs/{model}/checkpoints/weights/kept")
        assert deleted.status_code == 200, deleted.text
        flip(folder(tmp_path, run.snapshot))
    async with served(tmp_path, scheduling=OFTEN) as api:
        await api.step(model, 7, rate=0.5)
        await api.result(f"{model}:7")
        assert api.applied(model) == ["forward:1", "step:0.1", "step:0.5"]


async def test_only_the_newest_is_kept_where_the_other_would_take_too_much(tmp_path: Path) -> None:
    tight = Scheduling(snapshot_steps=1, fallback_payload_bytes=1000)
    async with served(tmp_path, scheduling=tight) as api:
        model = await api.model(await api.session())
        await step(api, model, 1)
        await api.forward(model, 3, first=3, length=30_000)
        await step(api, model, 4)
        run = found(api, model)
        assert run.before is None
        assert run.spare_bytes == 0
        assert len(list((tmp_path / "snapshots").iterdir())) == 1
        assert "tinkex_payload_bytes 0" in (await api.client.get("/metrics")).text


async def test_the_idle_check_finds_a_damaged_snapshot(tmp_path: Path) -> None:
    async with served(tmp_path, scheduling=OFTEN) as api:
        model = await api.model(await api.session())
        await step(api, model, 1)
        flip(folder(tmp_path, found(api, model).snapshot))
        (problem,) = await api.core.integrity.check()
        assert problem.startswith("snapshot ")
