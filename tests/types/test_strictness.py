"""Values whose validators are built when they are first used."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from tinkex.types.optimizer import AdamOptimizerConfig
from tinkex.types.sampling import SamplingParams
from tinkex.types.strictness import Strict, defaults


def test_threads_that_use_a_class_first_build_its_validator_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    building, most, at_once = 0, 0, threading.Barrier(8)

    def build(cls: type[BaseModel], **options: Any) -> bool | None:
        nonlocal building, most
        building += 1
        most = max(most, building)
        built: bool | None = rebuild.__func__(cls, **options)
        building -= 1
        return built

    rebuild: Any = BaseModel.model_rebuild
    monkeypatch.setattr(BaseModel, "model_rebuild", classmethod(build))

    class Inner(Strict):
        number: int

    class Outer(Strict):
        inners: list[Inner]

    def use(_: int) -> Outer:
        at_once.wait()
        return Outer.model_validate({"inners": [{"number": 1}]})

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(repr, threads.map(use, range(8))))) == 1
    assert most == 1


@pytest.mark.parametrize("kind", [AdamOptimizerConfig, SamplingParams])
def test_defaults_are_what_the_class_makes_of_nothing(kind: type[Strict]) -> None:
    made = kind()
    assert defaults(kind) == made
    assert defaults(kind).model_fields_set == made.model_fields_set
