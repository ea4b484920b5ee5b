"""A base model's name may carry a context limit, which the server's own must hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.fake_engine import FakeEngine
from tinkex.server.clock import SystemClock
from tinkex.server.engines.model_names import split_context
from tinkex.server.engines.model_sources import declared_context
from tinkex.server.engines.pool import Engines
from tinkex.server.refusals import Refusal
from tinkex.server.settings import ModelSpec, Settings


@pytest.mark.parametrize(
    ("name", "model", "context"),
    [
        ("Qwen/Qwen3.8-27B:peft:262144", "Qwen/Qwen3.8-27B", 262144),
        ("Qwen/Qwen3.8-27B", "Qwen/Qwen3.8-27B", None),
        ("a/b:peft:", "a/b:peft:", None),
        ("a/b:peft:0", "a/b:peft:0", None),
        ("a/b:full:16", "a/b:full:16", None),
        ("a/b:peft:16:peft:16", "a/b:peft:16:peft:16", None),
    ],
)
def test_a_suffix_is_read_or_part_of_the_name(name: str, model: str, context: int | None) -> None:
    assert split_context(name) == (model, context)


def engines(tmp_path: Path, context: object) -> Engines:
    (tmp_path / "config.json").write_text(json.dumps(context))
    settings = Settings(
        home=tmp_path, models=(ModelSpec("acme/m", str(tmp_path)),), aliases={"big/m": "acme/m"}
    )
    return Engines(settings, FakeEngine().launch, SystemClock())


@pytest.mark.parametrize(
    "config", [{"max_position_embeddings": 64}, {"text_config": {"max_position_embeddings": 64}}]
)
def test_a_served_model_is_found_with_any_context_it_has(tmp_path: Path, config: object) -> None:
    served = engines(tmp_path, config)
    assert declared_context(tmp_path) == 64
    for name in ("acme/m", "acme/m:peft:64", "big/m:peft:1"):
        assert served.get(name) is served.get("acme/m")
    with pytest.raises(Refusal, match=r"65 tokens; acme/m has at most 64 here.*acme/m:peft:64"):
        served.get("acme/m:peft:65")
    with pytest.raises(Refusal, match="is not served here"):
        served.get("acme/other:peft:64")
