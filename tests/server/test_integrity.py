"""What the database names and the disk lacks is found, said and counted."""

from __future__ import annotations

from pathlib import Path

from support.served import Api, served
from tinkex.server.settings import Scheduling


async def _trained(api: Api) -> None:
    model = await api.model(await api.session())
    for number in range(2):
        large = await api.forward(model, 2 * number + 1, length=30_000)
        step = await api.step(model, 2 * number + 2)
        await api.result(large["request_id"])
        await api.result(step["request_id"])
    save = {"model_id": model, "seq_id": 5, "path": "kept"}
    await api.result((await api.post("save_weights", save))["request_id"])


async def test_a_sound_home_has_no_problems(tmp_path: Path) -> None:
    async with served(tmp_path, scheduling=Scheduling(snapshot_steps=1)) as api:
        await _trained(api)
        assert await api.core.integrity.check() == []
        page = (await api.client.get("/metrics")).text
        assert "tinkex_integrity_checks_total 1" in page
        assert "tinkex_integrity_problems 0" in page


async def test_damage_of_every_kind_is_found(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        await _trained(api)
        for segment in tmp_path.rglob("*.segment"):
            segment.write_bytes(b"\0" * segment.stat().st_size)
        (weights,) = tmp_path.glob("weights/*/adapter_model.safetensors")
        weights.write_text("changed")
        found = " ".join(await api.core.integrity.check())
        assert "blob" in found
        assert "adapter_model.safetensors" in found
        page = (await api.client.get("/metrics")).text
        assert f"tinkex_integrity_problems {api.core.integrity.problems}" in page
        assert api.core.integrity.problems >= 2
