"""Sampling serves the model's own numbers, whatever else is in the batch and however it is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.hf_models import BLOCK_FAMILIES, FAMILIES, save_reference
from support.sampling import (
    DEVICE,
    events_of,
    make_sampler,
    prompt_of,
    results_of,
    sample,
    tiny_decoder,
    tiny_folder,
    tokens_of,
    write_random_adapter,
)
from tinkex.engine.errors import UserError
from tinkex.engine.messages import Csr, Done, Progress, SampleResult
from tinkex.engine.model.loading import load_decoder

LOGPROBS = {"prompt_logprobs": True}


def reference_logprobs(model: Any, tokens: list[int]) -> torch.Tensor:
    """[n, V]: row i is the distribution after token i."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [*FAMILIES, *BLOCK_FAMILIES])
def test_every_family_gives_the_reference_numbers_in_chunks_and_token_by_token(
    family: str, stored: torch.dtype, tmp_path: Path
) -> None:
    model = save_reference(family, tmp_path, stored=stored)
    sampler = make_sampler(load_decoder(tmp_path, DEVICE, torch.float32), tmp_path, step_tokens=20)
    prompts = [prompt_of(seed, length) for seed, length in ((1, 1), (2, 45), (3, 70))]
    commands = [
        sample(f"s{i}", prompt, temperature=0.0, max_tokens=20, asks=LOGPROBS)
        for i, prompt in enumerate(prompts)
    ]
    for prompt, result in zip(prompts, results_of(sampler, *commands), strict=True):
        sequence = result.sequences[0]
        tokens = [*prompt.tolist(), *sequence.tokens.tolist()]
        wanted = reference_logprobs(model, tokens)
        assert wanted.argmax(-1)[len(prompt) - 1 : -1].tolist() == sequence.tokens.tolist()
        own = wanted[range(len(tokens) - 1), tokens[1:]].numpy()
        assert result.prompt_logprobs is not None
        assert np.isnan(result.prompt_logprobs[0])
        found = np.concatenate([result.prompt_logprobs[1:], sequence.logprobs])
        np.testing.assert_allclose(found, own, atol=1e-4)


def test_a_request_gets_the_same_tokens_alone_and_among_63_others(tmp_path: Path) -> None:
    folders = {f"w{i}": write_random_adapter(tmp_path / str(i), i, 2 + i) for i in range(3)}

    def fresh() -> Any:
        sampler = make_sampler(pages=2000)
        for name, folder in folders.items():
            sampler.versions.add(name, str(folder))
        return sampler

    weights = ["", *folders]
    commands = [
        sample(f"s{i}", prompt_of(i, 3 + 5 * i % 60), weights=weights[i % 4], seed=i,
               temperature=(1.0, 0.7, 0.0)[i % 3], top_p=(1.0, 0.9)[i % 2], max_tokens=12)
        for i in range(64)
    ]  # fmt: skip
    together = results_of(fresh(), *commands)
    for i in range(0, 64, 5):
        (alone,) = results_of(fresh(), commands[i])
        assert tokens_of(alone) == tokens_of(together[i])
        np.testing.assert_allclose(
            alone.sequences[0].logprobs,
            together[i].sequences[0].logprobs,
            atol=1e-4 if DEVICE == "cpu" else 5e-4,
        )
    texts = {tuple(tokens_of(result)[0]) for result in together}
    assert len(texts) == 64


def test_many_versions_share_a_batch_without_touching_each_other(tmp_path: Path) -> None:
    parts: list[dict[str, bool]] = [
        {}, {"train_unembed": False}, {"train_attn": False, "train_unembed": False},
        {"train_mlp": False}, {}, {},
    ]  # fmt: skip
    together = make_sampler()
    for i, part in enumerate(parts):
        folder = write_random_adapter(tmp_path / str(i), i, rank=1 + 2 * i, **part)
        together.versions.add(f"w{i}", str(folder))
    commands = [
        sample(f"{i}-{j}", prompt_of(10 * i + j, 5 + 9 * j), weights=f"w{i}" if i < 6 else "")
        for i in range(7)
        for j in range(1 + i % 3)
    ]
    for command, result in zip(commands, results_of(together, *commands), strict=True):
        alone = make_sampler()
        if command.weights:
            alone.versions.add(command.weights, str(tmp_path / command.weights[1:]))
        (wanted,) = results_of(alone, command)
        assert tokens_of(result) == tokens_of(wanted)
        np.testing.assert_allclose(
            result.sequences[0].logprobs, wanted.sequences[0].logprobs, atol=1e-4
        )


def test_sample_i_depends_on_the_seed_and_i_only() -> None:
    prompt = prompt_of(1, 21)
    (few,) = results_of(make_sampler(), sample("a", prompt, num_samples=2, seed=3))
    (many,) = results_of(make_sampler(rows=3), sample("a", prompt, num_samples=9, seed=3))
    (other,) = results_of(make_sampler(), sample("a", prompt, num_samples=2, seed=4))
    assert tokens_of(many)[:2] == tokens_of(few)
    assert len({tuple(tokens) for tokens in tokens_of(many)}) == 9
    assert tokens_of(other) != tokens_of(few)


def test_without_a_seed_samples_differ_from_call_to_call() -> None:
    one, two = results_of(
        make_sampler(), *(sample(op, prompt_of(1, 5), seed=None, max_tokens=20) for op in "ab")
    )
    assert tokens_of(one) != tokens_of(two)


def test_sampled_logprobs_are_the_prompt_logprobs_of_the_same_tokens(tmp_path: Path) -> None:
    sampler = make_sampler()
    sampler.versions.add("w", str(write_random_adapter(tmp_path / "a", 1)))
    prompt = prompt_of(5, 30)
    (result,) = results_of(
        sampler, sample("a", prompt, weights="w", temperature=0.6, top_k=20, max_tokens=25)
    )
    whole = np.concatenate([prompt, result.sequences[0].tokens])
    (again,) = results_of(sampler, sample("b", whole, weights="w", max_tokens=1, asks=LOGPROBS))
    assert again.prompt_logprobs is not None
    np.testing.assert_allclose(again.prompt_logprobs[30:], result.sequences[0].logprobs, atol=1e-4)


def test_reusing_a_prefix_changes_nothing_and_is_counted() -> None:
    sampler = make_sampler()
    prompt = prompt_of(7, 50)
    command = sample("a", prompt, num_samples=2, max_tokens=30)
    (first,) = results_of(sampler, command)
    (again,) = results_of(sampler, command)
    assert (first.cached_tokens, again.cached_tokens) == (0, 48)
    assert tokens_of(again) == tokens_of(first)
    longer = np.concatenate([prompt, first.sequences[0].tokens])
    (after,) = results_of(sampler, sample("b", longer, max_tokens=5))
    (fresh,) = results_of(make_sampler(), sample("b", longer, max_tokens=5))
    assert after.cached_tokens >= 64
    assert tokens_of(after) == tokens_of(fresh)


def test_prefixes_are_not_shared_between_weights(tmp_path: Path) -> None:
    sampler = make_sampler()
    sampler.versions.add("w", str(write_random_adapter(tmp_path / "a", 1)))
    base, tuned = (sample("a", prompt_of(7, 50), weights=name) for name in ("", "w"))
    results_of(sampler, base)
    (result,) = results_of(sampler, tuned)
    assert result.cached_tokens == 0


def test_preempted_requests_end_with_the_tokens_they_would_have_had() -> None:
    commands = [
        sample(f"s{i}", prompt_of(i, 20), num_samples=2, max_tokens=60, seed=i) for i in range(5)
    ]
    wanted = [tokens_of(result) for result in results_of(make_sampler(), *commands)]
    tight = make_sampler(pages=14)
    assert [tokens_of(result) for result in results_of(tight, *commands)] == wanted
    assert tight.scheduler.preemptions > 0
    tight.pool.check_idle()


def test_streamed_tokens_add_up_to_the_result() -> None:
    command = sample("a", prompt_of(1, 9), num_samples=3, max_tokens=11, stream=True)
    events = events_of(make_sampler(), [command])
    done = events[-1]
    assert isinstance(done, Done)
    assert isinstance(done.result, SampleResult)
    for index, sequence in enumerate(done.result.sequences):
        parts = [e for e in events if isinstance(e, Progress) and e.index == index]
        assert len(parts) == 11
        assert np.concatenate([part.tokens for part in parts]).tolist() == sequence.tokens.tolist()
        logprobs = np.concatenate([part.logprobs for part in parts])
        np.testing.assert_array_equal(logprobs, sequence.logprobs)


def test_stop_tokens_and_texts_are_part_of_the_result() -> None:
    prompt = prompt_of(3, 12)
    (free,) = results_of(make_sampler(), sample("a", prompt, max_tokens=30, temperature=0.0))
    tokens = tokens_of(free)[0]
    (by_id,) = results_of(
        make_sampler(), sample("a", prompt, max_tokens=30, temperature=0.0, stop=(tokens[4],))
    )
    assert tokens_of(by_id)[0] == tokens[: tokens.index(tokens[4]) + 1]
    assert by_id.sequences[0].stop_reason == "stop"
    assert free.sequences[0].stop_reason == "length"


def test_what_is_asked_about_a_prompt_is_answered_in_its_layout() -> None:
    prompt = prompt_of(4, 40)
    rows, columns = len(prompt) - 1, 3
    targets = np.random.default_rng(0).integers(-1, 272, (rows, columns))
    targets[0] = [-1, 0, 271]
    listed = np.argwhere(targets != 5)
    sparse = Csr(
        targets[tuple(listed.T)].astype(np.int64),
        np.concatenate([[0], np.bincount(listed[:, 0], minlength=rows).cumsum()]).astype(np.int64),
        listed[:, 1].astype(np.int64),
        (rows, columns),
    )
    asks: dict[str, Any] = {
        "prompt_logprobs": True, "topk_prompt_logprobs": 4, "topk_sample_logprobs": 2,
        "target_prompt_logprobs": targets, "prompt_alt_tokens_k": 3,
    }  # fmt: skip
    everything, csr = results_of(
        make_sampler(step_tokens=17),
        sample("a", prompt, asks=asks),
        sample("b", prompt, asks={"target_prompt_logprobs": sparse}),
    )
    table = whole_table(prompt)
    wanted = np.where(targets >= 0, np.take_along_axis(table, np.maximum(targets, 0), 1), 0.0)
    assert isinstance(everything.target_prompt_logprobs, np.ndarray)
    np.testing.assert_allclose(everything.target_prompt_logprobs, wanted, atol=1e-4)
    assert isinstance(csr.target_prompt_logprobs, Csr)
    np.testing.assert_allclose(
        csr.target_prompt_logprobs.values, wanted[tuple(listed.T)], atol=1e-4
    )
    topk = everything.topk_prompt_logprobs
    assert topk is not None
    assert (topk.ids[0].tolist(), topk.logprobs[0].tolist()) == ([0] * 4, [-99999.0] * 4)
    np.testing.assert_allclose(topk.logprobs[1:], -np.sort(-table, 1)[:, :4], atol=1e-4)
    alternatives = everything.alt_tokens
    assert alternatives is not None
    assert alternatives.ids.shape == (rows, 3)
    own = np.take_along_axis(table, alternatives.ids.astype(np.int64), 1)
    np.testing.assert_allclose(alternatives.logprobs, own, atol=1e-4)
    assert len(np.unique(alternatives.ids[:, 0] - alternatives.ids[:, 1])) > 5
    sampled = everything.sequences[0]
    assert sampled.topk is not None
    assert sampled.topk.ids.shape == (8, 2)
    assert (sampled.topk.logprobs[:, 0] >= sampled.logprobs - 1e-5).all()


def whole_table(prompt: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[P - 1, V] logprobs of every id at every prompt position after the first."""
    rows = np.tile(np.arange(272), (len(prompt) - 1, 1))
    (result,) = results_of(
        make_sampler(), sample("t", prompt, asks={"target_prompt_logprobs": rows})
    )
    assert isinstance(result.target_prompt_logprobs, np.ndarray)
    np.testing.assert_allclose(np.exp(result.target_prompt_logprobs).sum(1), 1.0, atol=1e-4)
    return result.target_prompt_logprobs


def test_only_the_last_n_are_scored_and_the_rest_may_come_from_the_cache() -> None:
    sampler = make_sampler()
    prompt = prompt_of(8, 60)
    (whole,) = results_of(sampler, sample("a", prompt, asks=LOGPROBS))
    asks = LOGPROBS | {"prompt_logprobs_last_n": 10, "topk_prompt_logprobs": 2}
    (last,) = results_of(sampler, sample("b", prompt, asks=asks))
    assert last.cached_tokens == 48
    assert last.prompt_logprobs is not None
    assert whole.prompt_logprobs is not None
    assert last.topk_prompt_logprobs is not None
    assert np.isnan(last.prompt_logprobs[:50]).all()
    assert (last.topk_prompt_logprobs.logprobs[:50] == -99999.0).all()
    np.testing.assert_allclose(last.prompt_logprobs[50:], whole.prompt_logprobs[50:], atol=1e-4)


def test_max_tokens_zero_scores_the_prompt_alone_and_none_fills_the_context() -> None:
    sampler = make_sampler(max_context=64)
    (scored,) = results_of(sampler, sample("a", prompt_of(1, 64), max_tokens=0, asks=LOGPROBS))
    assert tokens_of(scored) == [[]]
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == 64
    (full,) = results_of(sampler, sample("b", prompt_of(1, 10), max_tokens=None))
    assert len(full.sequences[0].tokens) == 54
    assert full.sequences[0].stop_reason == "length"


def test_a_sequence_that_fills_the_context_can_be_scored_as_compute_logprobs_asks() -> None:
    sampler, prompt = make_sampler(max_context=64), prompt_of(1, 64)
    (alone,) = results_of(sampler, sample("a", prompt, max_tokens=0, asks=LOGPROBS))
    (scored,) = results_of(sampler, sample("b", prompt, max_tokens=1, asks=LOGPROBS))
    assert tokens_of(scored) == [[]]
    assert alone.prompt_logprobs is not None
    assert scored.prompt_logprobs is not None
    np.testing.assert_array_equal(scored.prompt_logprobs, alone.prompt_logprobs)


def test_weights_that_give_no_finite_logits_fail_their_request_alone(tmp_path: Path) -> None:
    sampler = make_sampler()
    sampler.versions.add("bad", str(write_random_adapter(tmp_path / "a", 1, size=1e30)))
    commands = [sample("a", prompt_of(1, 9), weights="bad"), sample("b", prompt_of(1, 9))]
    events = {event.op: event for event in events_of(sampler, commands)}
    assert getattr(events["a"], "kind", None) == "user"
    assert isinstance(events["b"], Done)
    sampler.pool.check_idle()


def test_adapters_beyond_the_budget_are_read_again_when_asked_for(tmp_path: Path) -> None:
    small = make_sampler(adapter_bytes=1)
    for name in ("a", "b"):
        small.versions.add(name, str(write_random_adapter(tmp_path / name, ord(name))))
    assert small.versions.nbytes <= 1
    commands = [sample(name, prompt_of(1, 9), weights=name) for name in ("a", "b")]
    wide = make_sampler()
    for name in ("a", "b"):
        wide.versions.add(name, str(tmp_path / name))
    assert [tokens_of(r) for r in results_of(small, *commands)] == [
        tokens_of(r) for r in results_of(wide, *commands)
    ]
    assert small.versions.nbytes <= 1


def test_adapters_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_random_adapter(tmp_path / "a", 1)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "q_proj.lora_A" in name)
    save_file(tensors | {name: torch.zeros(4, 7)}, file)
    with pytest.raises(UserError, match="q_proj"):
        make_sampler().versions.add("w", str(folder))


def test_a_page_lost_from_the_books_is_noticed_when_idle_and_the_cache_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampler = make_sampler()
    sampler.pool.take(1)
    results_of(sampler, sample("a", prompt_of(1, 9)))
    assert sampler.imbalances == 1
    assert "page accounts" in caplog.text
    sampler.pool.check_idle()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_bfloat16_on_a_gpu_stays_near_float32() -> None:
    exact = make_sampler()
    rough = make_sampler(load_decoder(tiny_folder(), DEVICE, torch.bfloat16))
    command = sample("a", prompt_of(1, 60), temperature=0.0, max_tokens=1, asks=LOGPROBS)
    (one,), (two,) = results_of(exact, command), results_of(rough, command)
    assert one.prompt_logprobs is not None
    assert two.prompt_logprobs is not None
    np.testing.assert_allclose(one.prompt_logprobs[1:], two.prompt_logprobs[1:], atol=0.15)
    assert tiny_decoder().dtype == torch.float32
