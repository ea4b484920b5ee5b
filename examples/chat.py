"""Turns chat messages into training datums and prompts, in the ChatML form that the SmolLM, Qwen
and built-in tiny models share. Knows tokens and weights; knows nothing of servers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tinkex

Message = dict[str, str]


def read_jsonl(path: Path) -> list[list[Message]]:
    """One conversation a line: `{"messages": [{"role": …, "content": …}, …]}`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"] for line in lines if line.strip()]


def prompt(tokenizer: Any, messages: Sequence[Message]) -> tinkex.ModelInput:
    """The conversation so far, open for the assistant's next turn."""
    text = "".join(_turn(message) for message in messages) + "<|im_start|>assistant\n"
    return tinkex.ModelInput.from_ints(tokenizer.encode(text, add_special_tokens=False))


def datum(tokenizer: Any, messages: Sequence[Message]) -> tinkex.Datum:
    """Learn the assistant's words: every other token has weight 0."""
    tokens: list[int] = []
    weights: list[float] = []
    for text, weight in _pieces(messages):
        piece = tokenizer.encode(text, add_special_tokens=False)
        tokens += piece
        weights += [weight] * len(piece)
    return next_token_datum(tokens, weights)


def next_token_datum(tokens: Sequence[int], weights: Sequence[float]) -> tinkex.Datum:
    """Position i predicts token i + 1, so inputs, targets and weights are shifted by one."""
    return tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={"target_tokens": list(tokens[1:]), "weights": list(weights[1:])},
    )


def mean_loss(result: tinkex.ForwardBackwardOutput, data: Iterable[tinkex.Datum]) -> float:
    """The loss is a sum over tokens; per weighted token it can be compared between batches."""
    weight = sum(float(d.loss_fn_inputs["weights"].to_numpy().sum()) for d in data)
    return result.metrics["loss:sum"] / weight


def _pieces(messages: Sequence[Message]) -> Iterable[tuple[str, float]]:
    for message in messages:
        if message["role"] == "assistant":
            yield "<|im_start|>assistant\n", 0.0
            yield f"{message['content']}<|im_end|>", 1.0
            yield "\n", 0.0
        else:
            yield _turn(message), 0.0


def _turn(message: Message) -> str:
    return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
