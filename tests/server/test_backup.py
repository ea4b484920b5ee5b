"""A backup as docs/operations.md says: stop, copy, start; the copy is the same server elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from support.served import Api, served


async def _steps(api: Api, model: str, first: int) -> list[Any]:
    """One pass and one step, from `first` on; how both ended."""
    ids = [await api.forward(model, first), await api.step(model, first + 1)]
    return [await api.result(each["request_id"]) for each in ids]


async def _names(api: Api, model: str) -> list[str]:
    answer = (await api.send("GET", f"training_runs/{model}/checkpoints")).json()
    return [each["checkpoint_id"] for each in answer["checkpoints"]]


async def test_a_copy_of_a_stopped_home_goes_on_elsewhere_as_the_original_does(
    tmp_path: Path,
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    async with served(home) as api:
        model = await api.model(await api.session())
        before = await _steps(api, model, 1)
        saved = await api.post("save_weights", {"model_id": model, "seq_id": 3, "path": "kept"})
        await api.result(saved["request_id"])
        fetched_later = await api.forward(model, 4)
        await api.on_disk()
    shutil.copytree(home, elsewhere)

    ends, applied = [], []
    for root in (home, elsewhere):
        async with served(root) as api:
            assert await _names(api, model) == ["weights/kept"]
            ends.append([await api.result(fetched_later["request_id"])])
            ends[-1] += await _steps(api, model, 5)
            applied.append(api.applied(model))
    assert ends[0] == ends[1]
    assert applied[0] == applied[1]
    assert len(applied[0]) > len(before)
