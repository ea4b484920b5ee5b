"""A service client for commands that train and sample: predictable tokens, nothing behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.command_line import (
    done,
)
from tinkex import types


class Tokenizer:
    """One token per character."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: list[int], **_options: bool) -> str:
        return "".join(chr(token) for token in tokens)

    def apply_chat_template(self, messages: Any, **_options: Any) -> list[int]:
        return self.encode(f"<user>{messages[0]['content']}<bot>")


class Sampler:
    def __init__(self, answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, int, types.SamplingParams]] = []

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def sample(self, prompt: Any, num_samples: int, params: Any) -> Any:
        self.asked.append((Tokenizer().decode(prompt.to_ints()), num_samples, params))
        return self.answers


class Service:
    """A service client that hands out one sampler and one trainer."""

    def __init__(self, answers: Any = None, saved: Any = None) -> None:
        sequences = [
            types.SampledSequence("stop", "a", _tokens_list=[72, 105], _logprobs_list=[-0.5, -1.0]),
            types.SampledSequence("length", "b", _tokens_list=[33]),
        ]
        self.sampler = Sampler(answers or done(types.SampleResponse(sequences)))
        self.saved = saved
        self.made: list[tuple[str, Any]] = []

    def get_server_capabilities(self) -> Any:
        models = [types.SupportedModel(model_name="here/default")]
        return types.GetServerCapabilitiesResponse(supported_models=models)

    def create_sampling_client(self, retry_config: Any, **model: str) -> Sampler:
        assert retry_config.enable_retry_logic is False
        self.made.append(("sampler", model))
        return self.sampler

    def create_lora_training_client(self, base_model: str, **lora: Any) -> Any:
        self.made.append(("lora", {"base_model": base_model, **lora}))
        return self._trainer()

    def create_training_client_from_state(self, path: str, base_model: str | None) -> Any:
        self.made.append(("state", path))
        return self._trainer()

    def _trainer(self) -> Any:
        info = SimpleNamespace(model_data=SimpleNamespace(model_name="org/from-state"))
        return SimpleNamespace(
            model_id="run-1", get_info=lambda: info, save_weights_for_sampler=self._save
        )

    def _save(self, name: str) -> Any:
        self.made.append(("save", name))
        path = f"tinker://run-1/sampler_weights/{name}"
        return self.saved or done(types.SaveWeightsForSamplerResponse(path=path))
