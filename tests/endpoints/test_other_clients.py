"""litellm, lm-eval and inspect, unmodified, against `tinkex serve`: exact where they measure."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from endpoints.conftest import KEY, MODEL, World
from support.client_packages import clients_python
from tinkex import ModelInput

LM_EVAL = """
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
lm = LocalCompletionsAPI(base_url=url + "/v1/completions", model=model, auth_token=key,
                         num_concurrent=1, batch_size=2)
pairs = [("Is it?", " yes"), ("Is it?", " no way"), ("Was it not, äh?", " ja")]
asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
until = {"until": ["z"], "max_gen_toks": 6}
drawn = lm.generate_until([Instance("generate_until", {}, ("Is it?", until), 0)])
print(json.dumps({"scores": lm.loglikelihood(asked), "drawn": drawn}))
"""
LITELLM = """
import litellm
texts = []
for prefix, base in (("openai", url + "/v1"), ("anthropic", url), ("hosted_vllm", url + "/v1")):
    options = dict(model=f"{prefix}/{model}", api_base=base, api_key=key, max_tokens=9,
                   temperature=0, messages=[{"role": "user", "content": "1+1?"}])
    texts.append(litellm.completion(**options).choices[0].message.content)
    parts = litellm.completion(**options, stream=True)
    texts.append("".join(part.choices[0].delta.content or "" for part in parts))
print(json.dumps(texts))
"""
INSPECT = """
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

@tool
def add():
    async def execute(a: int):
        '''Add one.

        Args:
            a: A number.
        '''
        return str(a + 1)
    return execute

config = GenerateConfig(max_tokens=200, temperature=0, logprobs=True, top_logprobs=2, max_retries=0)
chat = get_model(f"openai-api/tinkex/{model}", base_url=url + "/v1", api_key=key, config=config)
task = Task(dataset=[Sample(input="1+1?", target="x")], solver=[use_tools(add()), generate()],
            scorer=includes(), message_limit=6)
(log,) = eval(task, model=chat, display="none", log_dir="logs")
choice = log.samples[0].output.choices[0]
print(json.dumps({"status": log.status, "error": log.error and log.error.message,
                  "logprobs": len(choice.logprobs.content)}))
"""


def run(folder: Path, world: World, program: str, model: str) -> Any:
    """What a program prints last, as JSON."""
    head = f"import json\nurl, key, model = {world.url!r}, {KEY!r}, {model!r}\n"
    script = folder / "program.py"
    script.write_text(head + program, encoding="utf-8")
    environ = {**os.environ, "OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [clients_python(), str(script)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("which", ["base", "adapter"])
def test_lm_evals_loglikelihoods_are_ours_to_the_last_digit(
    world: World, tmp_path: Path, which: str
) -> None:
    model = MODEL if which == "base" else world.adapter
    found = run(tmp_path, world, LM_EVAL, model)
    sampler = world.sampler(model)
    pairs = [("Is it?", " yes"), ("Is it?", " no way"), ("Was it not, äh?", " ja")]
    for (context, answer), (score, _) in zip(pairs, found["scores"], strict=True):
        tokens = ModelInput.from_ints(list((context + answer).encode()))
        logprobs = sampler.compute_logprobs(tokens).result(60)
        assert score == sum(logprobs[len(context.encode()) :])
    assert isinstance(found["drawn"][0], str)


@pytest.mark.slow
def test_litellm_reaches_every_api_by_names_with_slashes_and_colons(
    world: World, tmp_path: Path
) -> None:
    base, adapter = (run(tmp_path, world, LITELLM, model) for model in (MODEL, world.adapter))
    assert len(set(base)) == len(set(adapter)) == 1, "chat and messages, whole and streamed"
    assert base != adapter


@pytest.mark.slow
def test_inspect_evaluates_with_tools_and_logprobs(world: World, tmp_path: Path) -> None:
    found = run(tmp_path, world, INSPECT, world.adapter)
    assert found["status"] == "success", found
    assert found["logprobs"] > 0
