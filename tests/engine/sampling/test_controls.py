"""Controls beside the protocol draw as they are defined, and change nothing for anybody else."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.hf_models import save_reference
from support.sampling import (
    DEVICE,
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tokens_of,
)
from tinkex.engine.errors import UserError
from tinkex.engine.messages import Sample, SampleResult, SamplingControls
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.sampling.draw import SAMPLE, Drawer, draw_key

CONTROLS: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.3},
    "presence": {"presence_penalty": 1.5},
    "presence that invites": {"presence_penalty": -2.0},
    "frequency": {"frequency_penalty": 0.8},
    "repetition": {"repetition_penalty": 1.7},
    "repetition that invites": {"repetition_penalty": 0.5},
    "bias": {"logit_bias": {3: 4.0, 5: 100.0, 8: -100.0, 0: -1.5}},
    "allowed": {"allowed_tokens": (1, 4, 9, 16, 25, 36)},
    "all": {
        "min_p": 0.05,
        "presence_penalty": 0.4,
        "frequency_penalty": -0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {7: 2.0, 11: 30.0, 12: -3.0},
        "allowed_tokens": tuple(range(3, 60)),
    },
}
PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.9},
    {"temperature": 1.4, "top_p": 0.8},
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder, Path]:
    folder = tmp_path_factory.mktemp("llama")
    reference = save_reference("llama", folder)
    return reference.double(), load_decoder(folder, DEVICE, torch.float32), folder


def reference_scores(
    logits: NDArray[np.float64], command: Sample, said: list[int]
) -> NDArray[np.float64]:
    """What a draw races with, by the definition at `SamplingControls`, one token at a time."""
    controls, params = command.controls, command.params
    drawn, seen = Counter(said), {*said, *command.prompt.tolist()}
    x = logits.copy()
    for token in range(len(x)):
        if controls.allowed_tokens is not None and token not in controls.allowed_tokens:
            x[token] = -math.inf
        x[token] += controls.logit_bias.get(token, 0.0)
        if token in seen:
            penalty = controls.repetition_penalty
            x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        x[token] -= controls.frequency_penalty * drawn[token]
        x[token] -= controls.presence_penalty * (drawn[token] > 0)
    if params.temperature == 0:
        return np.where(x == x.max(), x, -math.inf)
    x = x / params.temperature
    probabilities = np.exp(x - x.max())
    x[probabilities < controls.min_p] = -math.inf
    order = np.argsort(-x, kind="stable")
    if params.top_k > 0:
        x[order[params.top_k :]] = -math.inf
    mass = np.exp(x[order] - x.max()) / np.exp(x - x.max()).sum()
    x[order[np.cumsum(mass) - mass >= params.top_p]] = -math.inf
    return x


def assert_drawn_by_definition(reference: Any, command: Sample, result: SampleResult) -> None:
    """Every token wins its race by the float64 numbers; its logprob is the model's own."""
    drawer = Drawer(reference.config.vocab_size, torch.device(DEVICE))
    prompt = command.prompt.tolist()
    for index, sequence in enumerate(result.sequences):
        tokens = sequence.tokens.tolist()
        with torch.no_grad():
            table = reference(torch.tensor([prompt + tokens])).logits[0].numpy()
        for place, token in enumerate(tokens):
            logits = table[len(prompt) - 1 + place]
            scores = reference_scores(logits, command, tokens[:place])
            if command.params.temperature:
                key = draw_key(command.params.seed or 0, SAMPLE, index, place)
                scores = scores + drawer.noise([key]).cpu().numpy()[0]
            assert scores[token] >= scores.max() - 1e-3
            own = logits[token] - np.logaddexp.reduce(logits)
            assert sequence.logprobs[place] == pytest.approx(own, abs=1e-4)


def commands_for(controls: dict[str, Any], count: int = 4) -> list[Sample]:
    asks = {"controls": SamplingControls(**controls)}
    return [
        sample(f"s{i}", prompt_of(i, 3 + 11 * i, vocab=60), asks=asks, seed=i, max_tokens=16,
               num_samples=1 + i % 2, **PARAMS[i % len(PARAMS)])
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*CONTROLS])
def test_each_control_draws_what_its_definition_says_in_float64(
    name: str, model: tuple[Any, Decoder, Path]
) -> None:
    reference, decoder, folder = model
    commands = commands_for(CONTROLS[name])
    results = results_of(make_sampler(decoder, folder), *commands)
    for command, result in zip(commands, results, strict=True):
        assert_drawn_by_definition(reference, command, result)


@pytest.mark.parametrize("name", [*CONTROLS])
def test_each_control_matters(name: str, model: tuple[Any, Decoder, Path]) -> None:
    _, decoder, folder = model
    steered = results_of(make_sampler(decoder, folder), *commands_for(CONTROLS[name]))
    plain = results_of(make_sampler(decoder, folder), *commands_for({}))
    assert [tokens_of(r) for r in steered] != [tokens_of(r) for r in plain]


def test_rows_in_company_of_controls_are_the_same_to_the_bit(
    model: tuple[Any, Decoder, Path],
) -> None:
    _, decoder, folder = model
    plain = commands_for({})
    steered = [
        replace(command, op=f"{name}-{command.op}")
        for name, controls in CONTROLS.items()
        for command in commands_for(controls, 3)
    ]
    alone = results_of(make_sampler(decoder, folder), *plain)
    together = results_of(make_sampler(decoder, folder), *steered, *plain)
    for mine, wanted in zip(together[len(steered) :], alone, strict=True):
        assert tokens_of(mine) == tokens_of(wanted)
    for command, among in zip(steered, together[: len(steered)], strict=True):
        (own,) = results_of(make_sampler(decoder, folder), command)
        assert tokens_of(own) == tokens_of(among)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU takes single rows as they are")
@pytest.mark.parametrize("name", [*CONTROLS])
def test_guesses_change_nothing_about_a_steered_sample(name: str) -> None:
    asks = {"controls": SamplingControls(**CONTROLS[name])}
    commands = [
        sample(f"s{i}", prompt_of(i, 30, vocab=9), asks=asks, max_tokens=40,
               temperature=0.4 * i, seed=i)
        for i in range(2)
    ]  # fmt: skip
    plain, guessing = make_sampler(), make_sampler()
    plain._with_guesses = lambda chunks: chunks
    wanted, found = results_of(plain, *commands), results_of(guessing, *commands)
    assert [tokens_of(r) for r in found] == [tokens_of(r) for r in wanted]


def test_preempted_samples_keep_their_penalties() -> None:
    asks = {"controls": SamplingControls(**CONTROLS["all"])}
    commands = [
        sample(f"s{i}", prompt_of(i, 40), asks=asks, seed=i, max_tokens=60) for i in range(4)
    ]
    tight = make_sampler(pages=16)
    found = results_of(tight, *commands)
    assert tight.scheduler.preemptions
    wanted = results_of(make_sampler(), *commands)
    assert [tokens_of(r) for r in found] == [tokens_of(r) for r in wanted]


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ({"min_p": 1.5}, "min_p: must be between 0 and 1, not 1.5"),
        ({"min_p": math.nan}, "min_p: must be between"),
        ({"presence_penalty": 2.1}, "presence_penalty: must be between -2 and 2"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty: must be between -2 and 2"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: must be between 0.01 and 100"),
        ({"logit_bias": {10**6: 1.0}}, "logit_bias: id 1000000 is outside the vocabulary"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias: id -1 is outside the vocabulary"),
        ({"logit_bias": {3: 101.0}}, "logit_bias: of token 3: must be between -100 and 100"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "at most 1024 are allowed"),
        ({"allowed_tokens": ()}, "allowed_tokens: is empty"),
        ({"allowed_tokens": (5, 10**6)}, "allowed_tokens: id 1000000 is outside the vocabulary"),
    ],
)
def test_controls_out_of_range_are_refused_by_name(controls: dict[str, Any], message: str) -> None:
    sampler = make_sampler()
    with pytest.raises(UserError, match=message):
        sampler.submit(sample("s", [1, 2], asks={"controls": SamplingControls(**controls)}))
    assert not sampler.busy
