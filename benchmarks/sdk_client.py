"""A user's program in a process of its own, told what to do and timed: one SDK against one server.

    with SdkClient("tinker", url, key) as client:
        seconds = client.ask("steps", rounds=5)

The child (`python benchmarks/sdk_client.py SDK URL KEY MODEL VOCABULARY`) reads one JSON request a
line and answers each with one line. It uses only what both SDKs offer, under the names they share.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MODEL = "tinkex/tiny-llama"
VOCABULARY = 256
RANK = 32


class SdkClient:
    """The parent's end of a child."""

    def __init__(
        self, sdk: str, url: str, key: str, model: str = MODEL, vocabulary: int = VOCABULARY
    ) -> None:
        self.sdk = sdk
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "TINKEX_"))}
        self._process = subprocess.Popen(
            [sys.executable, __file__, sdk, url, key, model, str(vocabulary)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=plain | {"PYTHONUNBUFFERED": "1"},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, what: str, **arguments: Any) -> None:
        """Set it to work; `answer` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the {self.sdk} client ended; see its error above")
        return json.loads(line)

    def ask(self, what: str, **arguments: Any) -> Any:
        self.tell(what, **arguments)
        return self.answer()

    def __enter__(self) -> SdkClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


class User:
    """The child's end: what a user's program does with an SDK."""

    def __init__(self, sdk: str, url: str, key: str, model: str, vocabulary: int) -> None:
        self._model, self._vocabulary = model, range(vocabulary)
        self._sdk: Any = importlib.import_module(sdk)
        self._types = self._sdk.types
        self._service = self._sdk.ServiceClient(base_url=url, api_key=key)
        self._training: Any = None
        self._sampler: Any = None
        self._samplers: list[Any] = []
        self._rng = random.Random(0)
        self._numbers = itertools.count()

    def begin(self) -> None:
        """Make the clients that the rest uses; not timed."""
        self._training = self._service.create_lora_training_client(self._model, rank=RANK, seed=0)
        self._sampler = self._service.create_sampling_client(base_model=self._model)

    def tuned(self) -> None:
        """Sample from what was trained from now on."""
        self._sampler = self._training.save_weights_and_get_sampling_client()

    def on_policy(self, rounds: int, prompt: int) -> list[float]:
        """Seconds from asking for a sampler of the run as it is to that sampler's first token."""
        one = self._types.SamplingParams(max_tokens=1, temperature=1.0, stop=[])
        found = []
        for _ in range(rounds):
            self._step(self._data(1, 31), pipelined=True)
            begun = time.perf_counter()
            sampler = self._training.save_weights_and_get_sampling_client()
            sampler.sample(self._prompt(prompt), 1, one).result()
            found.append(time.perf_counter() - begun)
        return found

    def passes(self, rounds: int, sequences: int, tokens: int, backward: bool) -> list[float]:
        """Seconds of a pass alone, awaited."""
        training = self._training
        make = training.forward_backward if backward else training.forward
        found = []
        for _ in range(rounds):
            data, begun = self._data(sequences, tokens), time.perf_counter()
            make(data, "cross_entropy").result()
            found.append(time.perf_counter() - begun)
        return found

    def operations(self, rounds: int) -> dict[str, list[float]]:
        """Seconds of each operation, awaited before the next one is sent."""
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, operation in self._operations(f"saved-{next(self._numbers)}").items():
                begun = time.perf_counter()
                operation()
                times.setdefault(name, []).append(time.perf_counter() - begun)
        return times

    def _operations(self, save_as: str) -> dict[str, Callable[[], Any]]:
        training, data, prompt = self._training, self._data(1, 31), self._prompt(32)
        one = self._types.SamplingParams(max_tokens=1, temperature=1.0, stop=[])
        return {
            "get_server_capabilities": self._service.get_server_capabilities,
            "forward": lambda: training.forward(data, "cross_entropy").result(),
            "forward_backward": lambda: training.forward_backward(data, "cross_entropy").result(),
            "optim_step": lambda: training.optim_step(self._adam()).result(),
            "sample": lambda: self._sampler.sample(prompt, 1, one).result(),
            "compute_logprobs": lambda: self._sampler.compute_logprobs(prompt).result(),
            "save_weights_for_sampler": lambda: training.save_weights_for_sampler(save_as).result(),
            "save_state": lambda: training.save_state(save_as).result(),
        }

    def steps(self, rounds: int, sequences: int, tokens: int, pipelined: bool) -> list[float]:
        """Seconds of a step: forward_backward, then optim_step, sent together or one by one."""
        return [self._step(self._data(sequences, tokens), pipelined) for _ in range(rounds)]

    def _step(self, data: list[Any], pipelined: bool) -> float:
        begun = time.perf_counter()
        gradients = self._training.forward_backward(data, "cross_entropy")
        if not pipelined:
            gradients.result()
        self._training.optim_step(self._adam()).result()
        gradients.result()
        return time.perf_counter() - begun

    def learn(self, rounds: int, sequences: int, tokens: int) -> list[float]:
        """The loss per token of the same batch, again and again."""
        data, losses = self._data(sequences, tokens), []
        for _ in range(rounds):
            found = self._training.forward_backward(data, "cross_entropy").result()
            self._training.optim_step(self._adam(1e-3)).result()
            losses.append(found.metrics["loss:sum"] / (sequences * tokens))
        return losses

    def steps_for(self, seconds: float, sequences: int, tokens: int) -> float:
        """Steps a second, as many as there is time for."""
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            self._step(self._data(sequences, tokens), pipelined=True)
            steps += 1
        return steps / (time.perf_counter() - begun)

    def timed_steps(self, seconds: float, sequences: int, tokens: int) -> list[float]:
        """Seconds of each step, as many as there is time for."""
        end, found = time.perf_counter() + seconds, []
        while time.perf_counter() < end:
            found.append(self._step(self._data(sequences, tokens), pipelined=True))
        return found

    def many_runs(self, runs: int, rank: int, seconds: float, sequences: int, tokens: int) -> int:
        """Steps of new runs that take turns, as many as there is time for."""
        kept, steps = self._training, 0
        make = self._service.create_lora_training_client
        made = [make(self._model, rank=rank, seed=seed) for seed in range(runs)]
        end = time.perf_counter() + seconds
        for self._training in itertools.cycle(made):
            self._step(self._data(sequences, tokens), pipelined=True)
            steps += 1
            if time.perf_counter() > end:
                break
        self._training = kept
        return steps

    def together(self, ranks: list[int], rounds: int, sequences: int, tokens: int) -> list[float]:
        """Seconds of a step of new runs of these ranks, all sent at once."""
        make = self._service.create_lora_training_client
        runs = [make(self._model, rank=rank, seed=seed) for seed, rank in enumerate(ranks)]
        found = []
        for _ in range(rounds):
            data = [self._data(sequences, tokens) for _ in runs]
            begun = time.perf_counter()
            sent = [
                (run.forward_backward(own, "cross_entropy"), run.optim_step(self._adam()))
                for run, own in zip(runs, data, strict=True)
            ]
            for futures in sent:
                for future in futures:
                    future.result()
            found.append(time.perf_counter() - begun)
        return found

    def prefix(self, rounds: int, tokens: int) -> list[list[float]]:
        """Seconds to the first token of a new prompt, and of one that begins like it."""
        one = self._types.SamplingParams(max_tokens=1, temperature=1.0, stop=[])
        found = []
        for _ in range(rounds):
            known, took = self._tokens(tokens), []
            for _ in range(2):
                prompt = self._types.ModelInput.from_ints(known + self._tokens(16))
                begun = time.perf_counter()
                self._sampler.sample(prompt, 1, one).result()
                took.append(time.perf_counter() - begun)
            found.append(took)
        return found

    def adapters(self, count: int, rounds: int, prompt: int, new: int) -> list[list[float]]:
        """For each round the seconds it took and the tokens that came: a sample of each of so many
        samplers of the run, between whose making it took a step."""
        params = self._types.SamplingParams(max_tokens=new, temperature=1.0, stop=[])
        samplers: list[Any] = []
        for _ in range(count):
            self._step(self._data(1, 31), pipelined=True)
            samplers.append(self._training.save_weights_and_get_sampling_client())
        self._samplers = samplers
        found = []
        for _ in range(rounds):
            prompts = [self._prompt(prompt) for _ in samplers]
            begun = time.perf_counter()
            pairs = zip(samplers, prompts, strict=True)
            futures = [sampler.sample(each, 1, params) for sampler, each in pairs]
            came = sum(len(s.tokens) for f in futures for s in f.result().sequences)
            found.append([time.perf_counter() - begun, came])
        return found

    def first_answers(self, prompt: int) -> list[float]:
        """Seconds to one token of each of those samplers, after one of the base model."""
        one = self._types.SamplingParams(max_tokens=1, temperature=1.0, stop=[])
        base = self._service.create_sampling_client(base_model=self._model)
        found = []
        for sampler in [base, *self._samplers]:
            begun = time.perf_counter()
            sampler.sample(self._prompt(prompt), 1, one).result()
            found.append(time.perf_counter() - begun)
        return found[1:]

    def apart(self, count: int, prompt: int, new: int) -> list[float]:
        """By how many nats the trainer's logprobs of what it sampled are others than the sampler's:
        on average, and at most."""
        params = self._types.SamplingParams(max_tokens=new, temperature=1.0, stop=[])
        sampler = self._training.save_weights_and_get_sampling_client()
        prompts = [self._tokens(prompt) for _ in range(count)]
        asked = [
            sampler.sample(self._types.ModelInput.from_ints(each), 1, params) for each in prompts
        ]
        drawn = [future.result().sequences[0] for future in asked]
        data = [
            self._datum([*before, *after.tokens])
            for before, after in zip(prompts, drawn, strict=True)
        ]
        found = self._training.forward(data, "cross_entropy").result()
        gaps = [
            abs(one - other)
            for output, after in zip(found.loss_fn_outputs, drawn, strict=True)
            for one, other in zip(
                output["logprobs"].data[prompt - 1 :], after.logprobs, strict=True
            )
        ]
        return [sum(gaps) / len(gaps), max(gaps)]

    def refused(self, tokens: int) -> str:
        """What is said to a sequence that should not be taken."""
        try:
            self._training.forward_backward(self._data(1, tokens), "cross_entropy").result()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "taken"

    def samples(self, rounds: int, at_once: int, prompt: int, new: int) -> list[list[float]]:
        """For each round the seconds it took and the tokens that came."""
        params = self._types.SamplingParams(max_tokens=new, temperature=1.0, stop=[])
        found = []
        for _ in range(rounds):
            prompts = [self._prompt(prompt) for _ in range(at_once)]
            begun = time.perf_counter()
            futures = [self._sampler.sample(each, 1, params) for each in prompts]
            came = sum(len(s.tokens) for f in futures for s in f.result().sequences)
            found.append([time.perf_counter() - begun, came])
        return found

    def _adam(self, learning_rate: float = 1e-4) -> Any:
        return self._types.AdamParams(learning_rate=learning_rate)

    def _prompt(self, tokens: int) -> Any:
        return self._types.ModelInput.from_ints(self._tokens(tokens))

    def _data(self, sequences: int, tokens: int) -> list[Any]:
        return [self._datum(self._tokens(tokens + 1)) for _ in range(sequences)]

    def _datum(self, tokens: list[int]) -> Any:
        return self._types.Datum(
            model_input=self._types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
        )

    def _tokens(self, count: int) -> list[int]:
        return self._rng.choices(self._vocabulary, k=count)


def main(sdk: str, url: str, key: str, model: str, vocabulary: str) -> None:
    user = User(sdk, url, key, model, int(vocabulary))
    for line in sys.stdin:
        what, arguments = json.loads(line)
        print(json.dumps(getattr(user, what)(**arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
