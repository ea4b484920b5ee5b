"""Promises about the server's settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tinkex.engine.settings import WorkerConfig
from tinkex.server.engines.child_process import engine_numbers, worker_config
from tinkex.server.engines.worker import EngineSpec
from tinkex.server.settings import Limits, ModelSpec, Scaling, Settings

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_every_limit_is_explained_in_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    fields = (*dataclasses.fields(Limits), *dataclasses.fields(Scaling))
    missing = [each.name for each in fields if f"`{each.name}`" not in page]
    assert missing == []


def test_every_setting_of_an_engine_is_explained_in_the_documentation() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = engine_numbers()
    assert {"kv_bytes", "sampling_share", "max_runs"} <= set(names)
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_setting_of_an_engine_is_a_number_or_has_an_option_of_its_own() -> None:
    others = {each.name for each in dataclasses.fields(WorkerConfig)} - set(engine_numbers())
    assert others == {"model", "device", "dtype", "base", "steady"}


def test_what_an_operator_chose_reaches_the_engine(tmp_path: Path) -> None:
    chosen = {name: kind(3) for name, kind in engine_numbers().items()}
    settings = Settings(home=tmp_path, models=(), engine=chosen, steady=True)
    config = worker_config(EngineSpec(ModelSpec("tiny", "folder")), settings)
    spare = config.max_runs - 3
    assert dataclasses.asdict(config) == {
        **chosen,
        "model": "folder",
        "device": "auto",
        "dtype": "auto",
        "base": "auto",
        "steady": True,
        "max_runs": 3 + spare,
    }
    assert spare > 0
