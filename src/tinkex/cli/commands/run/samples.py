"""What `run sample` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinkex.cli.terminal.output import LineOutput

if TYPE_CHECKING:
    from tinkex.types import SampledSequence, SampleResponse


class Samples(LineOutput):
    """Sampled sequences. `tokenizer` turns them into text; `with_text` adds it to the JSON."""

    def __init__(self, response: SampleResponse, tokenizer: Any, with_text: bool) -> None:
        self.response = response
        self.tokenizer = tokenizer
        self.with_text = with_text

    def to_dict(self) -> dict[str, Any]:
        response = self.response
        return {
            "sequences": [self._sequence(sequence) for sequence in response.sequences],
            "prompt_logprobs": response.prompt_logprobs,
            "topk_prompt_logprobs": response.topk_prompt_logprobs,
            "type": "sample",
        }

    def _sequence(self, sequence: SampledSequence) -> dict[str, Any]:
        values = {
            "tokens": sequence.tokens,
            "logprobs": sequence.logprobs,
            "stop_reason": sequence.stop_reason,
        }
        return {**values, "text": self.text(sequence)} if self.with_text else values

    def lines(self) -> list[str]:
        blocks = [
            [f"Sample {number}:", self.text(sequence), summary(sequence)]
            for number, sequence in enumerate(self.response.sequences, 1)
        ]
        return [line for i, block in enumerate(blocks) for line in ([""] * bool(i) + block)]

    def text(self, sequence: SampledSequence) -> str:
        """The decoded text; a token the tokenizer cannot read does not hide the rest."""
        try:
            return str(self.tokenizer.decode(sequence.tokens, skip_special_tokens=True))
        except Exception as error:
            return f"[decode error: {error}]"


def summary(sequence: SampledSequence) -> str:
    """Why the sequence ended, and how likely its tokens were on average."""
    line = f"stop_reason={sequence.stop_reason}"
    if sequence.logprobs:
        line += f" | avg_logprob={sum(sequence.logprobs) / len(sequence.logprobs):.3f}"
    return line
