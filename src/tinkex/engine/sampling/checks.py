"""Refuses sample commands that cannot be served as sent: names the field, the limit, the fix."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.errors import UserError
from tinkex.engine.messages import Csr, Sample, SamplingControls, SamplingParams, Tensor

MAX_SAMPLES = 1024
MAX_TOP_LOGPROBS = 1024
MAX_TOP_CELLS = 1 << 26
"""Logprobs of likeliest tokens and alternatives, of one command: 512 MiB if all were drawn. Twenty
of each token of 64 samples of 32,768 must pass."""
MAX_STOP_TEXTS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 4096
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_PENALTY = 2.0
REPETITION_PENALTIES = (0.01, 100.0)
"""Beyond these, logits leave float32's range."""

NOT_FINITE = (
    "weights: the model's logits are not finite, so nothing can be drawn from them; "
    "load weights from before the training diverged"
)


def check_sample(command: Sample, *, vocab_size: int, max_tokens_total: int) -> int:
    """The most tokens a sample may have. `max_tokens_total` bounds prompt and sample together, as
    the command's own context does."""
    length = check_prompt(command.prompt, vocab_size)
    _check_params(command.params, vocab_size)
    check_controls(command.controls, vocab_size)
    _check_counts(command, length, vocab_size)
    if command.target_prompt_logprobs is not None:
        _check_targets(command.target_prompt_logprobs, length, vocab_size)
    room = command.room(max_tokens_total)
    if room < 0:
        raise UserError(command.too_long(max_tokens_total))
    _check_cells(command, length, room)
    return room


def _check_cells(command: Sample, length: int, room: int) -> None:
    for field, width, places in (
        ("topk_prompt_logprobs", command.topk_prompt_logprobs, length),
        ("prompt_alt_tokens_k", command.prompt_alt_tokens_k, length),
        ("topk_sample_logprobs", command.topk_sample_logprobs, command.num_samples * room),
    ):
        if width * places > MAX_TOP_CELLS:
            raise UserError(
                f"{field}: {width} in each of up to {places} places are more than the"
                f" {MAX_TOP_CELLS} logprobs that one request may ask for; ask for fewer, or of"
                " fewer tokens or samples"
            )


def check_prompt(prompt: NDArray[np.int32] | NDArray[np.int64], vocab_size: int) -> int:
    if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
        raise UserError(
            f"prompt: must be a row of whole numbers, not {prompt.dtype} of shape {prompt.shape}"
        )
    if not len(prompt):
        raise UserError("prompt: is empty; give at least one token")
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise UserError(f"prompt: token id {bad} is outside the vocabulary (0 to {vocab_size - 1})")
    return len(prompt)


def _check_params(params: SamplingParams, vocab_size: int) -> None:
    if params.max_tokens is not None and params.max_tokens < 0:
        raise UserError(f"max_tokens: must be 0 or more, not {params.max_tokens}")
    if not math.isfinite(params.temperature) or params.temperature < 0:
        raise UserError(f"temperature: must be 0 or more, not {params.temperature}")
    if params.top_k < 1 and params.top_k != -1:
        raise UserError(f"top_k: must be 1 or more, or -1 for no limit, not {params.top_k}")
    if not 0 < params.top_p <= 1:
        raise UserError(f"top_p: must be above 0 and at most 1, not {params.top_p}")
    if params.seed is not None and not -(2**63) <= params.seed < 2**64:
        raise UserError("seed: must fit into 64 bits")
    stops = params.stop or ()
    texts = any(isinstance(stop, str) for stop in stops)
    most = MAX_STOP_TEXTS if texts else MAX_STOP_IDS  # ids cost nothing, texts are searched for
    if len(stops) > most:
        kind = "texts" if texts else "ids"
        raise UserError(f"stop: has {len(stops)} {kind}; at most {most} are allowed")
    for stop in stops:
        if isinstance(stop, str) and len(stop) > MAX_STOP_CHARACTERS:
            raise UserError(
                f"stop: a text has {len(stop)} characters; at most {MAX_STOP_CHARACTERS}"
                " are allowed"
            )
        if isinstance(stop, int):
            _check_id("stop", stop, vocab_size)


def check_controls(controls: SamplingControls, vocab_size: int) -> None:
    _between("min_p", controls.min_p, 0.0, 1.0)
    _between("presence_penalty", controls.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _between("frequency_penalty", controls.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    _between("repetition_penalty", controls.repetition_penalty, *REPETITION_PENALTIES)
    if len(controls.logit_bias) > MAX_BIASES:
        given = len(controls.logit_bias)
        raise UserError(f"logit_bias: has {given} tokens; at most {MAX_BIASES} are allowed")
    for token, bias in controls.logit_bias.items():
        _check_id("logit_bias", token, vocab_size)
        _between(f"logit_bias: of token {token}", bias, -MAX_BIAS, MAX_BIAS)
    if controls.allowed_tokens is not None:
        if not controls.allowed_tokens:
            raise UserError(
                "allowed_tokens: is empty, so nothing could be drawn; name some or none"
            )
        for token in controls.allowed_tokens:
            _check_id("allowed_tokens", token, vocab_size)


def _check_id(field: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise UserError(f"{field}: id {token} is outside the vocabulary (0 to {vocab_size - 1})")


def _between(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UserError(f"{field}: must be between {low:g} and {high:g}, not {value}")


def _check_counts(command: Sample, length: int, vocab_size: int) -> None:
    _within("num_samples", command.num_samples, 1, MAX_SAMPLES)
    top = min(MAX_TOP_LOGPROBS, vocab_size)
    _within("topk_prompt_logprobs", command.topk_prompt_logprobs, 0, top)
    _within("topk_sample_logprobs", command.topk_sample_logprobs, 0, top)
    _within("prompt_alt_tokens_k", command.prompt_alt_tokens_k, 0, MAX_TOP_LOGPROBS)
    if command.prompt_logprobs_last_n is not None:
        if not (command.prompt_logprobs or command.topk_prompt_logprobs):
            raise UserError("prompt_logprobs_last_n: needs prompt_logprobs as well")
        _within("prompt_logprobs_last_n", command.prompt_logprobs_last_n, 1, max(1, length - 1))


def _within(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UserError(f"{field}: must be between {low} and {high}, not {value}")


def _check_targets(targets: Tensor, length: int, vocab_size: int) -> None:
    shape = targets.shape
    if len(shape) != 2 or shape[0] != length - 1:
        raise UserError(
            f"target_prompt_logprobs: must have the shape [{length - 1}, K] for a prompt of"
            f" {length} tokens, not {list(shape)}"
        )
    values = _checked_csr(targets) if isinstance(targets, Csr) else targets
    if values.dtype.kind != "i":
        raise UserError(f"target_prompt_logprobs: must be int64, not {values.dtype}")
    if values.size and (values.min() < -1 or values.max() >= vocab_size):
        raise UserError(
            f"target_prompt_logprobs: ids must be -1 to skip, or 0 to {vocab_size - 1};"
            f" they run from {values.min()} to {values.max()}"
        )


def _checked_csr(targets: Csr) -> NDArray[np.float32] | NDArray[np.int64]:
    rows, columns = targets.shape
    bounds, count = targets.crow, len(targets.values)
    fits = (
        len(bounds) == rows + 1
        and len(targets.col) == count
        and (rows == 0 or (bounds[0] == 0 and bounds[-1] == count and (np.diff(bounds) >= 0).all()))
        and (count == 0 or (targets.col.min() >= 0 and targets.col.max() < columns))
    )
    if not fits:
        raise UserError(
            "target_prompt_logprobs: row pointers, columns and values do not fit together;"
            " send them as a valid CSR tensor or dense"
        )
    return targets.values
