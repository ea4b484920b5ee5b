"""Checks what callers pass in, before anything is sent.

Every message names the argument, what was given (its kind or size, never a secret) and the fix. A
wrong kind is a `TypeError`; a wrong value is the error that a server's refusal would have been.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from numbers import Real
from operator import index
from typing import SupportsIndex, get_args

import numpy as np

from tinkex.client.errors import InvalidArgumentError, InvalidDataError
from tinkex.types import (
    Datum,
    ImageAssetPointerChunk,
    LossFnType,
    ModelInput,
    SamplingParams,
    TensorData,
)
from tinkex.types.optimizer import AdamOptimizerConfig, DimuonOptimizerConfig, OptimizerConfig
from tinkex.types.strictness import twin
from tinkex.types.tinker_path import SCHEME
from tinkex.wire.errors import WireError
from tinkex.wire.limits import MAX_AGE_RECIPIENTS, MAX_TTL_SECONDS, MIN_TTL_SECONDS
from tinkex.wire.paths import check_name

LOSSES: tuple[str, ...] = get_args(LossFnType)


def checked_data(data: object) -> list[Datum]:
    """The datums, whatever they came in, each of them looked at."""
    if isinstance(data, Datum):
        raise TypeError("data: expected a list of Datum, got one Datum; write [datum]")
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        raise TypeError(f"data: expected a list of Datum, got {_kind(data)}")
    datums = [twin(datum, Datum) for datum in data]
    if not datums:
        raise ValueError("No data provided: data must hold at least one Datum")
    for place, datum in enumerate(datums):
        if not isinstance(datum, Datum):
            raise TypeError(f"data[{place}]: expected a Datum, got {_kind(datum)}")
        if not datum.model_input.chunks:
            raise InvalidDataError(
                f"data[{place}].model_input: is empty; give it at least one token"
            )
        _check_sendable(datum.model_input, f"data[{place}].model_input")
    return datums


def _check_sendable(model_input: ModelInput, name: str) -> None:
    """What has no form in a training request is refused before the call has a number: the server
    would wait for one that never comes."""
    for place, chunk in enumerate(model_input.chunks):
        if isinstance(chunk, ImageAssetPointerChunk):
            raise InvalidDataError(
                f"{name}.chunks[{place}]: the address of an image cannot be trained on; "
                "send the image itself, where the model reads images"
            )


def check_no_nan(datums: list[Datum]) -> None:
    """Of what is sent: inputs that only a function of the caller's own reads may hold anything."""
    for place, datum in enumerate(datums):
        for name, tensor in datum.loss_fn_inputs.items():
            values = tensor._numpy
            if values.dtype.kind == "f" and values.size and np.isnan(values.min()):
                raise InvalidDataError(
                    f"data[{place}].loss_fn_inputs[{name!r}] holds NaN: give unused positions 0"
                )


def whole(value: object, name: str, *, expected: str = "a whole number") -> int:
    """The int that `value` is: also a number of numpy's, or a float without a fraction, as what
    is computed often is."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return index(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise TypeError(f"{name}: expected {expected}, got {_kind(value)}")


def checked_loss(
    loss_fn: object, config: Mapping[str, float | str] | None
) -> dict[str, float | str] | None:
    """The settings of a loss that exists, as plain numbers and text."""
    if loss_fn not in LOSSES:
        raise InvalidArgumentError(
            f"loss_fn: unknown loss {loss_fn!r}; the losses are {', '.join(LOSSES)}. "
            "For your own function use forward_backward_custom."
        )
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise TypeError(
            f"loss_fn_config: expected a mapping of names to numbers, got {_kind(config)}"
        )
    return {name: _setting(f"loss_fn_config[{name!r}]", value) for name, value in config.items()}


def _setting(name: str, value: object) -> float | str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number or text, got {_kind(value)}")
    if not math.isfinite(value):
        raise InvalidArgumentError(f"{name}: must be finite, got {value}")
    return float(value)


def check_checkpoint_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name: expected text, got {_kind(name)}")
    if name.startswith(SCHEME):
        raise InvalidArgumentError(f"name: expected a bare checkpoint name, got the path {name!r}")
    try:
        check_name(name, "name")
    except WireError as error:
        raise InvalidArgumentError(str(error)) from None


def checked_ttl(ttl_seconds: object) -> int | None:
    if ttl_seconds is None:
        return None
    seconds = whole(ttl_seconds, "ttl_seconds", expected="whole seconds or None")
    if not MIN_TTL_SECONDS <= seconds <= MAX_TTL_SECONDS:
        raise InvalidArgumentError(
            f"ttl_seconds: must be between {MIN_TTL_SECONDS} (an hour) and {MAX_TTL_SECONDS} "
            f"(ten years), got {ttl_seconds}; None keeps it for ever"
        )
    return seconds


def check_metadata(user_metadata: object, *, only_text: bool = False) -> None:
    """Of sessions and runs: anything JSON has a form for. Of checkpoints: only text."""
    if user_metadata is None:
        return
    if not isinstance(user_metadata, dict):
        raise TypeError(f"user_metadata: expected a dict of text, got {_kind(user_metadata)}")
    for key, value in user_metadata.items():
        if not isinstance(key, str) or not (isinstance(value, str) if only_text else _json(value)):
            allowed = "text" if only_text else "what JSON has a form for"
            raise TypeError(
                f"user_metadata[{key!r}]: keys must be text and values {allowed}, got "
                f"{_kind(value)}; convert with str() or json.dumps()"
            )


def _json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def check_recipients(recipients: object) -> None:
    if recipients is None:
        return
    if not isinstance(recipients, list) or not all(isinstance(item, str) for item in recipients):
        raise TypeError("age_encryption_recipients: expected a list of age public keys")
    if len(recipients) > MAX_AGE_RECIPIENTS:
        raise InvalidArgumentError(
            f"age_encryption_recipients: at most {MAX_AGE_RECIPIENTS}, got {len(recipients)}"
        )


def check_text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected text, got {_kind(value)}")
    if not value.strip():
        raise InvalidArgumentError(f"{name}: must not be empty")


def check_lora(
    base_model: object, rank: object, seed: object, train_flags: Mapping[str, object]
) -> None:
    check_text(base_model, "base_model")
    if whole(rank, "rank") < 1:
        raise InvalidArgumentError(f"rank: must be at least 1, got {rank}")
    if seed is not None:
        whole(seed, "seed", expected="a whole number or None")
    if not any(train_flags.values()):
        raise AssertionError(
            "At least one of train_mlp, train_attn and train_unembed must be True: "
            "otherwise there is nothing to train"
        )


def check_model_path(path: object, name: str = "path") -> None:
    """Only the scheme: the server knows which paths it can load."""
    if not isinstance(path, str):
        raise TypeError(f"{name}: expected a {SCHEME} path, got {_kind(path)}")
    if not path.startswith(SCHEME):
        raise InvalidArgumentError(f"{name}: must start with {SCHEME}, got {path[:80]!r}")


def checked_prompt(given: object) -> ModelInput:
    prompt = twin(given, ModelInput)
    if not isinstance(prompt, ModelInput):
        raise TypeError(
            f"prompt: expected a ModelInput, got {_kind(prompt)}; "
            "make one with ModelInput.from_ints(tokens) or ModelInput.from_text(text, tokenizer)"
        )
    if not prompt.chunks:
        raise InvalidArgumentError("prompt: is empty; give it at least one token")
    return prompt


def as_sampling_params(given: object) -> SamplingParams:
    """Sampling parameters; a dictionary of them will do, as it does for the official client."""
    if isinstance(given, Mapping):
        return SamplingParams(**given)
    params = twin(given, SamplingParams)
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params: expected SamplingParams, got {_kind(given)}")
    return params


def as_optimizer(given: OptimizerConfig | None) -> OptimizerConfig:
    """What a run is to be trained with; Adam unless something is said."""
    found: OptimizerConfig = twin(given, AdamOptimizerConfig, DimuonOptimizerConfig)
    return found or AdamOptimizerConfig()


def checked_counts(num_samples: object, **counts: object) -> tuple[int, ...]:
    """How many samples, at least one, and how many of whatever else, at least none."""
    samples = whole(num_samples, "num_samples")
    if samples < 1:
        raise InvalidArgumentError(f"num_samples: must be at least 1, got {num_samples}")
    others = tuple(whole(value, name) for name, value in counts.items())
    for name, value in zip(counts, others, strict=True):
        if value < 0:
            raise InvalidArgumentError(f"{name}: must be >= 0, got {value}")
    return samples, *others


def checked_last_n(include_prompt_logprobs: bool, last_n: object) -> int | None:
    if last_n is None:
        return None
    number = whole(last_n, "prompt_logprobs_last_n")
    if number < 1:
        raise InvalidArgumentError(f"prompt_logprobs_last_n: must be >= 1, got {last_n}")
    if not include_prompt_logprobs:
        raise InvalidArgumentError("prompt_logprobs_last_n: needs include_prompt_logprobs=True")
    return number


def checked_target(prompt: ModelInput, given: object) -> TensorData | None:
    """Tokens whose logprobs are asked for: a row for each place of the prompt after its first."""
    if given is None:
        return None
    name, target = "target_prompt_logprobs", twin(given, TensorData)
    if not isinstance(target, TensorData):
        raise TypeError(f"{name}: expected TensorData, got {_kind(target)}")
    if target.dtype != "int64":
        raise InvalidArgumentError(f"{name}: must be int64, got {target.dtype}")
    if target.shape is None or len(target.shape) != 2:
        raise InvalidArgumentError(
            f"{name}: must be 2-D [len(prompt) - 1, k], got shape {target.shape}"
        )
    rows = _known_length(prompt)
    if rows is not None and target.shape[0] != rows - 1:
        raise InvalidArgumentError(
            f"{name}: needs one row per prompt position after the first, {rows - 1}, "
            f"got {target.shape[0]}"
        )
    return target


def _known_length(prompt: ModelInput) -> int | None:
    try:
        return prompt.length
    except ValueError:
        return None  # an image without expected_tokens: only the server knows


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
