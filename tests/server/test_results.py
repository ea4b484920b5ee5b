"""Promises of results: durable first, then known, whatever the disk says in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.served import served
from tinkex.server.storage.database import operations
from tinkex.server.training import results


async def test_a_result_is_told_only_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_RETRY_S", 0.01)
    tries: list[str] = []
    finish = operations.finish

    def failing(db: Any, row: Any) -> None:
        tries.append(row.request_id)
        if len(tries) < 3:
            raise OSError("no space left on device")
        finish(db, row)

    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        monkeypatch.setattr(operations, "finish", failing)
        answer = await api.forward(model, 1)
        found = await api.result(answer["request_id"])
        assert isinstance(found, bytes), found
        assert tries == [answer["request_id"]] * 3
        assert api.applied(model) == ["forward:1"], "computed once, written thrice"
