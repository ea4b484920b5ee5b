"""Captured steps and passes on a machine without a GPU: a replay computes the step again.

Buffers, tables and the order of uploads are those of a card; streams and graphs are not there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch


class Stream:
    """All work is done where it is asked for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass


class Event:
    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Replay:
    def __init__(self, replay: Callable[[], object]) -> None:
        self.replay = replay


def replay_steps(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this sampler take its decode steps as captured ones."""
    from tinkex.engine.sampling.gpu_decode import graph

    _as_on_a_card(graph, monkeypatch)
    monkeypatch.setattr(graph.DecodeGraphs, "_capture", _capture)
    rows, context = sampler._limits.rows, sampler.context
    sampler._graphs = graph.DecodeGraphs(
        sampler._decoder, sampler._cache, sampler._drawer, rows, context
    )


def replay_prompts(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this sampler take passes of few tokens as captured ones."""
    from tinkex.engine.sampling.gpu_decode import prompts

    _as_on_a_card(prompts, monkeypatch)
    monkeypatch.setattr(prompts.PromptGraphs, "_capture", _capture_prompts)
    sampler._forward._prompts = prompts.PromptGraphs(
        sampler._decoder, sampler._cache, sampler.context
    )


def _as_on_a_card(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zeros", "empty"):
        monkeypatch.setattr(torch, name, _unpinned(getattr(torch, name)))
    for name, fake in (
        ("Event", Event), ("current_stream", Stream), ("stream", lambda stream: nullcontext()),
        ("graph_pool_handle", lambda: None),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(module, "Stream", Stream)


def _capture(self: Any, *key: Any) -> Any:
    from tinkex.engine.sampling.gpu_decode.graph import _Captured

    logits = self._compute(*key)
    drawn = self._draw(logits)
    forward = Replay(lambda: logits.copy_(self._compute(*key)))
    return _Captured(forward, Replay(lambda: drawn.copy_(self._draw(logits))), logits, drawn)


def _capture_prompts(self: Any, *key: Any) -> Any:
    hidden = self._compute(*key)
    return Replay(lambda: hidden.copy_(self._compute(*key))), hidden


def _unpinned(made: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(*shape: Any, pin_memory: bool = False, **facts: Any) -> torch.Tensor:
        return made(*shape, **facts)

    return make
