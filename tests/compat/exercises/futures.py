"""Exercises of the futures that training calls return."""

from __future__ import annotations

from typing import Any

from compat.exercises.registry import proves
from compat.world import World


@proves("APIFuture.result", "APIFuture.result_async")
def _(w: World) -> None:
    future = w.training.forward([w.datum()], "cross_entropy")
    assert future.result(timeout=60).metrics == w.run(_awaited(future)).metrics


async def _awaited(future: Any) -> Any:
    return await future.result_async(timeout=60)
