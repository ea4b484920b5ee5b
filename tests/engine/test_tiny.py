"""The built-in models are real Hugging Face folders, the same everywhere, that chat formats fit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.sampling import tiny_decoder, tiny_folder
from tinkex.engine.builtin.tiny import TINY_MODELS, ensure_tiny
from tinkex.engine.builtin.tiny_tokenizer import SPECIAL, TAGS, VOCAB_SIZE

TEXTS = [
    "",
    "plain words",
    "  leading, trailing  and   inner spaces ",
    "line\n\nbreaks\r\n\ttabs",
    "ünïcode: 你好, 😀 and \u200bmore",
    "choice#A choice#Z",
    "markers <|im_end|> and <think> inside",
    "\x00\x7f control",
]

DIGESTS = {
    "tinkex/tiny-llama": "72f2ef7e99d000eb",
    "tinkex/tiny-qwen3": "335f8a2ed07068c6",
    "tinkex/tiny-qwen3-moe": "ba0857d78193489b",
    "tinkex/tiny-qwen3.5": "fe961a2f2855278b",
    "tinkex/tiny-gpt-oss": "5f395572b57d9578",
}


@pytest.fixture(params=sorted(TINY_MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tokenizer_of(name: str) -> Any:
    return AutoTokenizer.from_pretrained(tiny_folder(name))


def test_the_files_are_the_same_everywhere(name: str) -> None:
    weights = (tiny_folder(name) / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest()[:16] == DIGESTS[name]


def test_a_second_request_finds_the_folder_and_strangers_are_refused(tmp_path: Path) -> None:
    folder = ensure_tiny("tinkex/tiny-llama", tmp_path)
    before = (folder / "config.json").stat().st_mtime_ns
    assert ensure_tiny("tinkex/tiny-llama", tmp_path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    with pytest.raises(ValueError, match="tinkex/tiny-qwen3"):
        ensure_tiny("tinkex/huge", tmp_path)


def test_transformers_loads_the_model_and_agrees_with_the_engine(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32)
    assert not model.config.tie_word_embeddings
    assert sum(p.numel() for p in model.parameters()) == tiny_decoder(name).parameters
    with torch.no_grad():
        logits = model(torch.arange(64)[None]).logits
    assert 0.5 < float(logits.std()) < 2.0


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_survives_encoding_and_decoding(text: str) -> None:
    tokenizer = tokenizer_of("tinkex/tiny-llama")
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_markers_are_single_tokens_and_only_tags_survive_splitting(name: str) -> None:
    tokenizer = tokenizer_of(name)
    assert len(tokenizer) == VOCAB_SIZE == tiny_decoder(name).config.vocab_size
    for marker in (*SPECIAL, *TAGS):
        assert len(tokenizer.encode(marker, add_special_tokens=False)) == 1
        split = tokenizer.encode(marker, add_special_tokens=False, split_special_tokens=True)
        assert (len(split) == 1) == (marker in TAGS)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.bos_token is None


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And héllo?\n"},
]
ANSWER = {"role": "assistant", "content": "World"}


@pytest.mark.parametrize(
    ("name", "renderer"),
    [("tinkex/tiny-qwen3", "qwen3"), ("tinkex/tiny-llama", "qwen3_instruct")],
)
def test_the_chat_template_is_the_cookbooks_rendering(name: str, renderer: str) -> None:
    get_renderer = pytest.importorskip("tinker_cookbook.renderers").get_renderer
    tokenizer = tokenizer_of(name)
    rendering = get_renderer(renderer, tokenizer)
    prompt = rendering.build_generation_prompt(CONVERSATION).to_ints()
    own = tokenizer.apply_chat_template(
        CONVERSATION, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(own) == list(prompt)
    example, _ = rendering.build_supervised_example([*CONVERSATION, ANSWER])
    whole = tokenizer.apply_chat_template([*CONVERSATION, ANSWER], tokenize=False)
    assert whole == tokenizer.decode(example.to_ints()) + "\n"


@pytest.mark.parametrize(
    "renderer", ["qwen3", "qwen3_instruct", "qwen3_disable_thinking", "llama3", "role_colon"]
)
def test_the_cookbooks_renderers_work_and_read_back_what_they_wrote(renderer: str) -> None:
    get_renderer = pytest.importorskip("tinker_cookbook.renderers").get_renderer
    tokenizer = tokenizer_of("tinkex/tiny-qwen3")
    rendering = get_renderer(renderer, tokenizer)
    prompt = rendering.build_generation_prompt(CONVERSATION).to_ints()
    example, weights = rendering.build_supervised_example([*CONVERSATION, ANSWER])
    tokens = example.to_ints()
    assert tokens[: len(prompt)] == prompt
    assert float(weights.sum()) > 0
    message, _ = rendering.parse_response(tokens[len(prompt) :])
    assert "World" in str(message["content"])


def test_end_of_sequence_ids_are_published(name: str) -> None:
    facts = json.loads((tiny_folder(name) / "generation_config.json").read_text())
    tokenizer = tokenizer_of(name)
    assert tokenizer.convert_ids_to_tokens(facts["eos_token_id"]) == [
        "<|im_end|>",
        "<|endoftext|>",
    ]
