"""The example board asks Prometheus for nothing that a server does not offer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.documents import DOCS
from support.served import served

BOARD: dict[str, Any] = json.loads((DOCS / "grafana-board.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def asked() -> set[str]:
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions.append(BOARD["templating"]["list"][1]["query"])
    return {name for text in expressions for name in re.findall(r"tinkex_\w+", text)}


async def test_every_metric_on_the_board_is_one_the_server_shows(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        await api.result((await api.forward(model, 1))["request_id"])
        await api.result((await api.step(model, 2))["request_id"])
        headers = {"x-api-key": api.key}
        text = (await api.client.get("/metrics", headers=headers)).text
    shown = set(re.findall(r"^(tinkex_\w+)[{ ]", text, re.M))
    assert asked() <= shown, f"not shown: {sorted(asked() - shown)}"
    assert "tinkex_steps_total 1" in text
    assert 'tinkex_operation_wait_seconds_count{kind="optim_step"} 1' in text


def test_every_metric_that_tells_of_trouble_is_on_the_board() -> None:
    assert {
        "tinkex_advice",
        "tinkex_engine_deaths_total",
        "tinkex_operations_failed_total",
        "tinkex_disk_free_bytes",
        "tinkex_replay_differences_total",
    } <= asked()


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(panel["title"] for panel in PANELS)
    assert all(len(panel["targets"]) for panel in PANELS)
