"""Checking what callers pass in, before anything is sent.

Every message names the argument, what was given (its kind or size, never a secret) and the fix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from tinkex.types import Datum, LossFnType, ModelInput, SamplingParams, TensorData
from tinkex.types.tinker_path import SCHEME
from tinkex.wire.limits import MAX_AGE_RECIPIENTS, MAX_TTL_SECONDS, MIN_TTL_SECONDS
from tinkex.wire.paths import check_name

LOSSES: tuple[str, ...] = get_args(LossFnType)


def checked_data(data: object) -> list[Datum]:
    """The datums, whatever they came in, each of them looked at."""
    if isinstance(data, Datum):
        raise TypeError("data: expected a list of Datum, got one Datum; write [datum]")
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        raise TypeError(f"data: expected a list of Datum, got {_kind(data)}")
    datums = list(data)
    if not datums:
        raise ValueError("No data provided: data must hold at least one Datum")
    for index, datum in enumerate(datums):
        if not isinstance(datum, Datum):
            raise TypeError(f"data[{index}]: expected a Datum, got {_kind(datum)}")
        if not datum.model_input.chunks:
            raise ValueError(f"data[{index}].model_input: is empty; give it at least one token")
    return datums


def check_loss(loss_fn: object, config: Mapping[str, float | str] | None) -> None:
    if loss_fn not in LOSSES:
        raise ValueError(
            f"loss_fn: unknown loss {loss_fn!r}; the losses are {', '.join(LOSSES)}. "
            "For your own function use forward_backward_custom."
        )
    if config is None:
        return
    if not isinstance(config, Mapping):
        raise TypeError(
            f"loss_fn_config: expected a mapping of names to numbers, got {_kind(config)}"
        )
    for name, value in config.items():
        if isinstance(value, str):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(
                f"loss_fn_config[{name!r}]: expected a number or text, got {_kind(value)}"
            )
        if not math.isfinite(value):
            raise ValueError(f"loss_fn_config[{name!r}]: must be finite, got {value}")


def check_checkpoint_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name: expected text, got {_kind(name)}")
    if name.startswith(SCHEME):
        raise ValueError(f"name: expected a bare checkpoint name, got the path {name!r}")
    check_name(name, "name")


def check_ttl(ttl_seconds: object) -> None:
    if ttl_seconds is None:
        return
    if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int):
        raise TypeError(f"ttl_seconds: expected whole seconds or None, got {_kind(ttl_seconds)}")
    if not MIN_TTL_SECONDS <= ttl_seconds <= MAX_TTL_SECONDS:
        raise ValueError(
            f"ttl_seconds: must be between {MIN_TTL_SECONDS} (an hour) and {MAX_TTL_SECONDS} "
            f"(ten years), got {ttl_seconds}; None keeps it for ever"
        )


def check_metadata(user_metadata: object) -> None:
    if user_metadata is None:
        return
    if not isinstance(user_metadata, dict):
        raise TypeError(f"user_metadata: expected a dict of text, got {_kind(user_metadata)}")
    for key, value in user_metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"user_metadata[{key!r}]: keys and values must be text, got {_kind(value)}; "
                "convert with str() or json.dumps()"
            )


def check_recipients(recipients: object) -> None:
    if recipients is None:
        return
    if not isinstance(recipients, list) or not all(isinstance(item, str) for item in recipients):
        raise TypeError("age_encryption_recipients: expected a list of age public keys")
    if len(recipients) > MAX_AGE_RECIPIENTS:
        raise ValueError(
            f"age_encryption_recipients: at most {MAX_AGE_RECIPIENTS}, got {len(recipients)}"
        )


def check_text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected text, got {_kind(value)}")
    if not value.strip():
        raise ValueError(f"{name}: must not be empty")


def check_lora(
    base_model: object, rank: object, seed: object, train_flags: Mapping[str, object]
) -> None:
    check_text(base_model, "base_model")
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise TypeError(f"rank: expected a whole number, got {_kind(rank)}")
    if rank < 1:
        raise ValueError(f"rank: must be at least 1, got {rank}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed: expected a whole number or None, got {_kind(seed)}")
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
        raise ValueError(f"{name}: must start with {SCHEME}, got {path[:80]!r}")


def check_prompt(prompt: object) -> None:
    if not isinstance(prompt, ModelInput):
        raise TypeError(
            f"prompt: expected a ModelInput, got {_kind(prompt)}; "
            "make one with ModelInput.from_ints(tokens) or ModelInput.from_text(text, tokenizer)"
        )
    if not prompt.chunks:
        raise ValueError("prompt: is empty; give it at least one token")


def as_sampling_params(given: object) -> SamplingParams:
    """Sampling parameters; a dictionary of them will do, as it does for the official client."""
    if isinstance(given, Mapping):
        return SamplingParams(**given)
    if not isinstance(given, SamplingParams):
        raise TypeError(f"sampling_params: expected SamplingParams, got {_kind(given)}")
    return given


def check_sample(
    num_samples: object,
    counts: Mapping[str, object],
) -> None:
    if isinstance(num_samples, bool) or not isinstance(num_samples, int):
        raise TypeError(f"num_samples: expected a whole number, got {_kind(num_samples)}")
    if num_samples < 1:
        raise ValueError(f"num_samples: must be at least 1, got {num_samples}")
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected a whole number, got {_kind(value)}")
        if value < 0:
            raise ValueError(f"{name}: must be >= 0, got {value}")


def check_logprob_requests(
    prompt: ModelInput,
    include_prompt_logprobs: bool,
    target: TensorData | None,
    last_n: object,
) -> None:
    if target is not None:
        _check_target(prompt, target)
    if last_n is None:
        return
    if isinstance(last_n, bool) or not isinstance(last_n, int):
        raise TypeError(f"prompt_logprobs_last_n: expected a whole number, got {_kind(last_n)}")
    if last_n < 1:
        raise ValueError(f"prompt_logprobs_last_n: must be >= 1, got {last_n}")
    if not include_prompt_logprobs:
        raise ValueError("prompt_logprobs_last_n: needs include_prompt_logprobs=True")


def _check_target(prompt: ModelInput, target: Any) -> None:
    name = "target_prompt_logprobs"
    if not isinstance(target, TensorData):
        raise TypeError(f"{name}: expected TensorData, got {_kind(target)}")
    if target.dtype != "int64":
        raise ValueError(f"{name}: must be int64, got {target.dtype}")
    if target.shape is None or len(target.shape) != 2:
        raise ValueError(f"{name}: must be 2-D [len(prompt) - 1, k], got shape {target.shape}")
    rows = _known_length(prompt)
    if rows is not None and target.shape[0] != rows - 1:
        raise ValueError(
            f"{name}: needs one row per prompt position after the first, {rows - 1}, "
            f"got {target.shape[0]}"
        )


def _known_length(prompt: ModelInput) -> int | None:
    try:
        return prompt.length
    except ValueError:
        return None  # an image without expected_tokens: only the server knows


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
