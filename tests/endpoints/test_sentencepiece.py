"""Text of models with a tokenizer of SentencePiece's kind, such as Mistral's and Phi-3's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.live_server import live_server
from support.sentencepiece import build_sentencepiece, write_sentencepiece
from tinkex.server.engines.model_sources import default_cache, resolve

NAME = "pieces"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = resolve("tinkex/tiny-llama", default_cache(os.environ), os.environ).folder
    folder = tmp_path_factory.mktemp("sentencepiece") / NAME
    shutil.copytree(tiny, folder)
    write_sentencepiece(folder, "stripped")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[openai.OpenAI]:
    with (
        live_server(model.parent / "home", "--model", str(model)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="tml-local", max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def only() -> dict[str, Any]:
    """Settings with which nothing but " t" is drawn."""
    bias = {str(build_sentencepiece("stripped").token_to_id("▁t")): 100}
    return {"max_tokens": 3, "temperature": 0, "logit_bias": bias}


def test_a_completion_keeps_the_space_it_begins_with(
    client: openai.OpenAI, only: dict[str, Any]
) -> None:
    found = client.completions.create(model=NAME, prompt="hello", **only)
    assert found.choices[0].text == " t t t"
    found = client.completions.create(model=NAME, prompt="hello", echo=True, **only)
    assert found.choices[0].text == "hello t t t"


def test_a_message_that_goes_on_keeps_the_space_it_goes_on_with(
    client: openai.OpenAI, only: dict[str, Any]
) -> None:
    messages: Any = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "hello"}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    create = client.chat.completions.create
    found = create(model=NAME, messages=messages, extra_body=goes_on, **only)
    assert found.choices[0].message.content == " t t t"
    found = create(model=NAME, messages=messages[:1], **only)
    assert found.choices[0].message.content == "t t t", "a text of its own"
