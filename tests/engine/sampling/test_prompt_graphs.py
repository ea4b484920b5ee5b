"""Prompts of few tokens as captured passes give the numbers that the common way gives.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.hf_models import FAMILIES, save_reference
from support.interpreted import DEVICE, here
from support.replayed_steps import Replay, replay_prompts
from support.sampling import (
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tiny_folder,
    tokens_of,
    write_random_adapter,
)
from tinkex.engine.messages import Sample, SampleResult
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.process.building import widen_stream

Fresh = Callable[..., Any]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Fresh:
    """A sampler that has captured passes for adapters of these ranks, with its adapters there."""
    from tinkex.engine.kernels import paged_attention
    from tinkex.engine.sampling.gpu_decode import prompts

    # Interpreted, every program takes milliseconds.
    monkeypatch.setattr(prompts, "BUCKETS", (4, 18))
    monkeypatch.setattr(paged_attention, "splits_for", lambda programs: 1)

    def made(
        adapters: dict[str, Path], *given: Any, ranks: tuple[int, ...] = (0,), **limits: int
    ) -> Any:
        monkeypatch.setattr(prompts, "_LIKELY_RANKS", ranks)
        sampler = serving(adapters, *given, **limits)
        if DEVICE.type != "cuda":
            replay_prompts(sampler, monkeypatch)
        sampler.replays = counted(sampler._forward._prompts)
        while sampler._forward.prepare():
            pass
        return sampler

    return made


def counted(graphs: Any) -> list[tuple[int, int]]:
    """Rows and rank of every pass that is replayed from now on."""
    capture, replays = graphs._capture, list[tuple[int, int]]()

    def counting(*key: int) -> tuple[Replay, torch.Tensor]:
        graph, hidden = capture(*key)

        def replay() -> None:
            replays.append((key[0], key[1]))
            graph.replay()

        return Replay(replay), hidden

    graphs._capture = counting
    return replays


def serving(adapters: dict[str, Path], *given: Any, **limits: int) -> Any:
    sampler = make_sampler(*given, step_tokens=256, **limits)
    sampler._decode = None  # a CPU's own way
    for name, folder in adapters.items():
        sampler.versions.add(name, str(folder))
    return sampler


def without_graphs(adapters: dict[str, Path], *given: Any, **limits: int) -> Any:
    sampler = serving(adapters, *given, **limits)
    sampler._forward._prompts = None
    return sampler


def scored(op: str, length: int, **params: Any) -> Sample:
    asks = {"prompt_logprobs": True}
    return sample(op, prompt_of(len(op), length), asks=asks, **{"max_tokens": 1, **params})


def assert_same(found: list[SampleResult], wanted: list[SampleResult]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert tokens_of(one) == tokens_of(other)
        assert one.prompt_logprobs is not None
        assert other.prompt_logprobs is not None
        np.testing.assert_allclose(one.prompt_logprobs, other.prompt_logprobs, atol=2e-4)
        for a, b in zip(one.sequences, other.sequences, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-4)


@here
def test_prompts_of_any_mix_of_adapters_give_the_same_captured(
    captured: Fresh, tmp_path: Path
) -> None:
    """Of any lengths, adapters that come later included."""
    ranks = {"w1": 2, "w2": 32, "w3": 7}
    folders = {name: write_random_adapter(tmp_path / name, r, r) for name, r in ranks.items()}
    first = [
        scored("a", 1, max_tokens=3),
        scored("bb", 15, weights="w2"),
        scored("ccc", 2, weights="w1"),
    ]
    again = [scored("ccc", 3, weights="w1"), scored("bb", 2, weights="w3")]
    last = [scored("bb", 2, weights="w1")]
    sampler, other = captured(folders, ranks=(32,)), without_graphs(folders)
    for commands in (first, again, last):
        assert_same(results_of(sampler, *commands), results_of(other, *commands))
    assert {rank for _, rank in sampler.replays} == {32}
    assert {rows for rows, _ in sampler.replays} == {4, 18}


@here
def test_a_pass_nobody_foresaw_goes_the_common_way_and_is_captured_for_the_next(
    captured: Fresh, tmp_path: Path
) -> None:
    folders = {"w": write_random_adapter(tmp_path / "w", 1, 8)}
    sampler = captured(folders, ranks=())
    wanted = results_of(without_graphs(folders), scored("a", 10, weights="w"))
    assert_same(results_of(sampler, scored("a", 10, weights="w")), wanted)
    assert not sampler.replays
    while sampler._forward.prepare():
        pass
    assert_same(results_of(sampler, scored("b", 10, weights="w")),
                results_of(without_graphs(folders), scored("b", 10, weights="w")))  # fmt: skip
    assert sampler.replays == [(18, 32)]


@here
def test_a_pass_captured_beside_others_leaves_their_pages_alone(captured: Fresh) -> None:
    """It runs as it is captured, while buffers still name the rows of the pass before."""
    command = scored("a", 10)
    sampler = captured({})
    wanted = results_of(sampler, command)
    sampler._forward._prompts._wanted.append((18, 0))
    assert sampler._forward.prepare()
    assert_same(results_of(sampler, scored("a", 10)), wanted)


@here
def test_many_tokens_and_long_contexts_are_not_for_captured_passes(
    captured: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinkex.engine.sampling.gpu_decode import prompts

    sampler, prompt = captured({}), prompt_of(0, 40)
    (wanted,) = results_of(sampler, sample("a", prompt, max_tokens=1))
    assert not sampler.replays
    (found,) = results_of(
        sampler, sample("a", prompt, max_tokens=1)
    )  # 32 of its tokens are known by now
    assert sampler.replays == [(18, 0)]
    assert tokens_of(found) == tokens_of(wanted)
    monkeypatch.setattr(prompts, "_MOST_READ", 8 * 40 - 1)
    results_of(sampler, sample("a", prompt, max_tokens=1))
    assert len(sampler.replays) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_reads_prompts_the_same_captured_or_not(
    family: str, captured: Fresh, tmp_path: Path
) -> None:
    save_reference(family, tmp_path)
    decoder: Decoder = load_decoder(tmp_path, DEVICE, torch.float32)
    commands = [scored("s" * n, length) for n, length in enumerate((1, 45, 70, 16, 15), start=1)]
    found = results_of(captured({}, decoder, tmp_path), *commands)
    assert_same(found, results_of(without_graphs({}, decoder, tmp_path), *commands))


@here
@pytest.mark.parametrize("wide", [False, True])
def test_a_model_of_16_bits_gives_nearly_what_float32_gives_whatever_its_stream(
    captured: Fresh, tmp_path: Path, wide: bool
) -> None:
    """A wide stream is added to by products that are narrow, the adapters' too."""
    folders = {"w": write_random_adapter(tmp_path / "w", 1, 8)}
    commands = [scored("bb", 15, weights="w"), scored("ccc", 2)]
    narrow = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
    decoder = load_decoder(tiny_folder(), DEVICE, narrow)
    if wide:
        widen_stream(decoder)
    sampler = captured(folders, decoder, ranks=(0, 32))
    found, wanted = (results_of(each, *commands) for each in (sampler, without_graphs(folders)))
    assert sampler.replays
    for one, other in zip(found, wanted, strict=True):
        assert one.prompt_logprobs is not None
        assert other.prompt_logprobs is not None
        np.testing.assert_allclose(one.prompt_logprobs, other.prompt_logprobs, atol=0.03)
